"""Signatures of whole functions: those found are those that can be proved, and no others."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp
from sbp.algebra import B, P, Split
from sbp.factors import Signature
from tests.one_device import whole

X, W = whole(4, 6), whole(6, 2, seed=1)
FUNCTIONS = {
    "matmul": (lambda x, w: x @ w, (X, W)),
    "relu": (lambda x: jnp.maximum(x, 0), (X,)),
    "sum": (lambda x: (x.sum(0), x.sum()), (X,)),
    "product": (lambda x, y: x * y, (X, X)),
    "reshape": (lambda x: x.reshape(x.shape[0] // 2, 2, -1), (X,)),
}


def words_of(shape):
    return [B, P, *(Split(d) for d, extent in enumerate(shape) if extent % 2 == 0)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures_found_are_proved_and_those_left_out_are_wrong(name):
    fn, args = FUNCTIONS[name]
    found = sbp.signatures(fn, *args)
    results = jax.tree.leaves(fn(*args))
    for signature in found:
        sbp.verify_signature(fn, signature, *args)
    wrong = 0
    for words in itertools.product(*(words_of(np.shape(x)) for x in (*args, *results))):
        claim = Signature(words[: len(args)], words[len(args) :])
        if claim not in found:
            wrong += not holds(fn, claim, args)
    assert found
    assert wrong


def holds(fn, claim, args):
    try:
        sbp.verify_signature(fn, claim, *args)
    except sbp.SignatureError:
        return False
    return True


def test_signatures_read_as_people_write_them():
    assert [str(s) for s in sbp.signatures(lambda x, w: x @ w, X, W)] == [
        "S(0), B -> S(0)", "S(1), S(0) -> P", "B, S(1) -> S(1)", "B, B -> B", "B, P -> P",
        "P, B -> P",
    ]  # fmt: skip


def test_signatures_go_through_loops():
    def looped(x):
        return jax.lax.fori_loop(0, 2, lambda _, c: c + x, x)

    assert [str(s) for s in sbp.signatures(looped, X)] == [
        "S(0) -> S(0)", "S(1) -> S(1)", "B -> B", "P -> P",
    ]  # fmt: skip


def test_signatures_need_only_types():
    struct = jax.ShapeDtypeStruct((3, 6), jnp.bfloat16)
    assert [str(s) for s in sbp.signatures(jnp.sin, struct)] == ["S(1) -> S(1)", "B -> B"]
    assert [str(s) for s in sbp.signatures(jnp.sin, struct, num_devices=3)] == [
        "S(0) -> S(0)", "S(1) -> S(1)", "B -> B",
    ]  # fmt: skip


WRONG = {
    "S(0), B -> B": """\
signature 'S(0), B -> B' is wrong for result 0.
  the devices of axis 'axis' hold different arrays
Fix: claim only what sbp.signatures(fn, *args) lists""",
    "B, B -> S(0)": """\
signature 'B, B -> S(0)' is wrong for result 0.
  On devices its shape is (8, 2), the function's is (4, 2).
Fix: claim only what sbp.signatures(fn, *args) lists""",
    "B, B -> P": f"""\
signature 'B, B -> P' is wrong for result 0.
  At [0, 0] it gives {(X @ W)[0, 0] * 2} on devices, the function {(X @ W)[0, 0]}.
Fix: claim only what sbp.signatures(fn, *args) lists""",
    "S(0) -> P": """\
signature 'S(0) -> P' has 1 operands, 1 results.
  The function has 2 and 1.
Fix: name a word for each""",
    "S(0), B": """\
cannot read signature 'S(0), B'.
Fix: write 'S(0), B -> S(0)'""",
    "Q, B -> B": """\
'Q' is not a word.
  A word is S(dim), B, P, P.max or P.min.
Fix: write for example 'dp: S(0), tp: B'""",
}


@pytest.mark.parametrize("claim", WRONG)
def test_wrong_claims_are_refused(claim):
    with pytest.raises(sbp.SignatureError) as caught:
        sbp.verify_signature(lambda x, w: x @ w, claim, X, W)
    assert str(caught.value) == WRONG[claim]


def test_a_claim_under_which_the_function_does_not_run():
    with pytest.raises(sbp.SignatureError) as caught:
        sbp.verify_signature(jnp.matmul, "S(0), S(0) -> P", X, W)
    assert str(caught.value).startswith(
        "signature 'S(0), S(0) -> P' is wrong: the function does not run on local arrays.\n"
        "  Their shapes are (2, 6), (3, 2). TypeError: "
    )


def test_too_many_words_to_try():
    with pytest.raises(sbp.SbpError) as caught:
        sbp.signatures(lambda *xs: sum(xs[1:], xs[0]), *[X] * 6)
    assert (
        str(caught.value)
        == """\
24576 combinations of words are too many to try.
  At most 4096 are tried.
Fix: ask for a part of the function"""
    )


@pytest.mark.parametrize("number", [0, -1, 1.5, "2", True, None])
def test_a_number_of_devices_that_is_none(number):
    for ask in (
        lambda: sbp.signatures(jnp.tanh, np.ones(4, np.float32), num_devices=number),
        lambda: sbp.verify_signature(
            jnp.tanh, "B -> B", np.ones(4, np.float32), num_devices=number
        ),
    ):
        with pytest.raises(sbp.SbpError) as caught:
            ask()
        assert str(caught.value) == (
            f"num_devices={number!r} is not a number of devices.\n"
            "  It is the size of the one mesh axis that the signatures are of.\n"
            "Fix: num_devices=2 is the default"
        )
