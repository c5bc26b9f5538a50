"""Signatures from index notation, and their composition over a mesh."""

import numpy as np

from sbp.algebra import P_MAX, ArrayType, B, P, Split
from sbp.factors import (
    Call,
    Factor,
    NdSignature,
    Signature,
    has_sum,
    linear,
    localize_call,
    nd_signatures,
    parse_factors,
    replicated,
    split_signatures,
)
from sbp.rules import RULES
from sbp.rules.rule import LocalRun, local_call

F32, I32, BOOL = (np.dtype(name) for name in ("float32", "int32", "bool"))


def reshape_call(source, target):
    """A reshape."""
    params = {"new_sizes": target, "dimensions": None, "sharding": None}
    return Call("reshape", (ArrayType(source, F32),), (ArrayType(target, F32),), params)


def test_notation_of_a_matrix_product():
    factors = parse_factors("b m k, b k n -> b m n")
    assert [str(signature) for signature in split_signatures(factors)] == [
        "S(0), S(0) -> S(0)",
        "S(1), B -> S(1)",
        "S(2), S(1) -> P",
        "B, S(2) -> S(2)",
    ]


def test_notation_of_other_reductions():
    (free, reduced) = parse_factors("i j -> i", P_MAX)
    assert free.signature() == Signature((Split(0),), (Split(0),))
    assert reduced.signature() == Signature((Split(1),), (P_MAX,))
    assert parse_factors("i j -> i", None)[1].signature() is None
    assert str(Factor((), (0,)).signature()) == "-> S(0)"
    assert parse_factors("-> i j") == (Factor((), (0,), P), Factor((), (1,), P))


def test_sums_are_of_numbers():
    assert has_sum(ArrayType((), I32))
    assert not has_sum(ArrayType((), BOOL))
    call = Call("add", (ArrayType((2,), BOOL),) * 2, (ArrayType((2,), BOOL),))
    assert list(linear(call, 0, 1)) == []
    assert [str(s) for s in linear(call, 0, word=P_MAX)] == ["P.max, B -> P.max"]


def test_each_axis_sees_the_local_shapes_of_the_axes_before():
    """No product of one-axis signatures splits [16] -> [2, 8] over 2 x 4 devices."""
    rule = RULES["reshape"]
    call = reshape_call((16,), (2, 8))
    found = nd_signatures(call, (2, 4), rule.signatures, rule.localize)
    wanted = NdSignature(((Split(0), Split(0)),), ((Split(0), Split(1)),))
    assert wanted in found
    assert local_call(call, wanted, (2, 4), rule).params["new_sizes"] == (1, 2)
    one_axis = nd_signatures(call, (8,), rule.signatures, rule.localize)
    assert not any(Split(0) in words for s in one_axis for words in s.inputs)


def test_everything_replicated_is_always_legal():
    call = reshape_call((3,), (3, 1))
    rule = RULES["reshape"]
    found = nd_signatures(call, (2, 2), rule.signatures, rule.localize)
    assert NdSignature(((B, B),), ((B, B),)) in found
    assert replicated(call) == Signature((B,), (B,))
    # On an axis of one device every word means the same.
    assert nd_signatures(call, (1,), rule.signatures, rule.localize) == (
        NdSignature(((B,),), ((B,),)),
    )


def test_a_dim_that_does_not_divide_is_not_split():
    rule = RULES["reshape"]
    call = reshape_call((6,), (3, 2))
    split = Signature((Split(0),), (Split(0),))
    assert localize_call(call, split, 2, rule.localize) is None
    local = localize_call(call, split, 3, rule.localize)
    assert local == Call("reshape", (ArrayType((2,), F32),), (ArrayType((1, 2), F32),))
    assert localize_call(call, Signature((Split(7),), (B,)), 2, rule.localize) is None


def test_groups_that_do_not_divide_are_refused():
    assert (
        localize_call(reshape_call((4,), (4,)), Signature((B,), (B,)), 2, lambda *_: None) is None
    )


def test_signature_of_one_axis():
    nd = NdSignature(((Split(0), P), (B, P)), ((Split(0), P),))
    assert nd.axis(0) == Signature((Split(0), B), (Split(0),))
    assert str(nd.axis(1)) == "P, P -> P"


def test_block_index_counts_the_outer_axis_first():
    call = Call("neg", (ArrayType((16,), F32),), (ArrayType((16,), F32),))
    words = (Split(0), B, Split(0))
    signature = NdSignature((words,), (words,))
    position = (1, 5, 2)
    run = LocalRun(call, call, signature, (2, 8, 4), position.__getitem__)
    assert run.block_index(words, 0) == 1 * 4 + 2
    assert run.num_blocks(words, 0) == 8
    assert (run.block_index(words, 1), run.num_blocks(words, 1)) == (0, 1)
