"""The oracle rejects wrong rules: signatures and local runs that a tired author writes."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from sbp.algebra import P_MAX, P_MIN, B, P, Split
from sbp.factors import Signature
from sbp.rules import RULES
from tests.oracle import Case, WrongSignature, prove_case, trace
from tests.sbp.rules.contraction_cases import MATMUL
from tests.sbp.rules.indexing_cases import put_rows, rows, wild
from tests.values import bools, floats, ints, key_data, keys, whole_floats

ROW, COLUMN = Split(0), Split(1)


def case(name, fn, *makers):
    """A case of the planted rule."""
    return Case(name, fn, makers)


def convert(dtype):
    """A conversion."""
    return functools.partial(lax.convert_element_type, new_dtype=jnp.dtype(dtype))


SQUARE = floats(4, 4)
WRONG_SIGNATURES = {
    "P + B": (case("add", lax.add, SQUARE, SQUARE), (P, B), P),
    "P * P": (case("mul", lax.mul, SQUARE, SQUARE), (P, P), P),
    "P times P": (case("dot_general", MATMUL, SQUARE, SQUARE), (P, P), P),
    "a contracted dim is S": (case("dot_general", MATMUL, SQUARE, SQUARE), (COLUMN, ROW), ROW),
    "relu of P": (case("max", lax.max, SQUARE, lambda *_: np.float32(0)), (P, B), P),
    "abs of P": (case("abs", lax.abs, SQUARE), (P,), P),
    "square of P": (case("square", lax.square, SQUARE), (P,), P),
    "B / P": (case("div", lax.div, SQUARE, SQUARE), (B, P), P),
    "int P / B": (case("div", lax.div, ints(4, 4), ints(4, 4, low=2, high=5)), (P, B), P),
    "int P to float": (case("convert_element_type", convert("float32"), ints(4, 4)), (P,), P),
    "int8 P to int32": (
        case("convert_element_type", convert("int32"), ints(4, 4, dtype="int8")), (P,), P
    ),
    "float P to int": (case("convert_element_type", convert("int32"), SQUARE), (P,), P),
    "log of P.max": (case("log", lax.log, SQUARE), (P_MAX,), P_MAX),
    "sqrt of P.max": (case("sqrt", lax.sqrt, SQUARE), (P_MAX,), P_MAX),
    "neg of P.max": (case("neg", lax.neg, SQUARE), (P_MAX,), P_MAX),
    "neg of int P.max": (case("neg", lax.neg, ints(4, 4)), (P_MAX,), P_MIN),
    "B - P.max": (case("sub", lax.sub, SQUARE, SQUARE), (B, P_MAX), P_MAX),
    "P.max + P.max": (case("add", lax.add, SQUARE, SQUARE), (P_MAX, P_MAX), P_MAX),
    "P.max + B of integers": (case("add", lax.add, ints(8, 8), ints(8, 8)), (P_MAX, B), P_MAX),
    "min(P.max, P.max)": (case("min", lax.min, SQUARE, SQUARE), (P_MAX, P_MAX), P_MAX),
    "P.max * B": (case("mul", lax.mul, SQUARE, SQUARE), (P_MAX, B), P_MAX),
    "float P.max >= B": (case("ge", lax.ge, floats(16, 16), floats(16, 16)), (P_MAX, B), P_MAX),
    "P.max to int": (
        case("convert_element_type", convert("int32"), floats(16, 16)), (P_MAX,), P_MAX
    ),
    "xor of P.max": (case("xor", lax.bitwise_xor, bools(4, 4), bools(4, 4)), (P_MAX, B), P_MAX),
    "integer or of P.max": (case("or", lax.bitwise_or, ints(4, 4), ints(4, 4)), (P_MAX, B), P_MAX),
    "a predicate is P.max": (
        case("select_n", lax.select_n, bools(4, 4), SQUARE, SQUARE), (P_MAX, B, B), B
    ),
    "sum of P.max": (case("reduce_sum", lambda x: x.sum(0), SQUARE), (P_MAX,), P_MAX),
    "a reduced max is P": (case("reduce_max", lambda x: x.max(0), SQUARE), (ROW,), P),
    "a product is P": (case("reduce_prod", lambda x: x.prod(0), SQUARE), (ROW,), P),
    "cumsum along the split dim": (
        case("cumsum", functools.partial(lax.cumsum, axis=0), SQUARE), (ROW,), ROW
    ),
    "sort along the split dim": (
        case("sort", functools.partial(lax.sort, dimension=0), SQUARE), (ROW,), ROW
    ),
    "rev of the split dim": (case("rev", lambda x: lax.rev(x, (0,)), SQUARE), (ROW,), ROW),
    "reshape moves the inner dim": (
        case("reshape", lambda x: x.reshape(16), SQUARE), (COLUMN,), ROW
    ),
    "transpose keeps the dim": (case("transpose", lambda x: x.T, SQUARE), (ROW,), ROW),
    "updates split, operand whole": (
        case("scatter-add", put_rows(lax.scatter_add, "fill"),
             whole_floats(8, 2), wild(4, 1), whole_floats(4, 2)),
        (B, ROW, ROW), P,
    ),
    "overwriting with split updates": (
        case("scatter", put_rows(lax.scatter, "fill"),
             whole_floats(8, 2), wild(4, 1), whole_floats(4, 2)),
        (P, ROW, ROW), P,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_SIGNATURES)
def test_wrong_signature_is_rejected(name):
    planted, inputs, output = WRONG_SIGNATURES[name]
    right = RULES[planted.primitive]
    run = None if planted.primitive == "add" else right.run  # it is made for floats
    wrong = dataclasses.replace(right, signatures=lambda _: [Signature(inputs, (output,))], run=run)
    with pytest.raises((WrongSignature, TypeError)):
        prove_case(planted, wrong, ((2,), (4,)))


@pytest.mark.parametrize("name", WRONG_SIGNATURES)
def test_wrong_signature_is_not_in_the_rule(name):
    planted, inputs, output = WRONG_SIGNATURES[name]
    call = trace(planted, np.random.default_rng(0)).call
    assert Signature(inputs, (output,)) not in RULES[planted.primitive].signatures(call)


def unshifted_iota(run, operands):
    """Counts from 0 on every device."""
    return [lax.broadcasted_iota(jnp.int32, run.local.outputs[0].shape, 0)]


def misshifted_gather(run, operands):
    """Forgets the mask: a row of another device is looked up at the edge of this one's block."""
    table, index = operands
    if run.num_blocks(run.signature.inputs[0], 0) == 1:
        return RULES["gather"].run(run, operands)
    start = run.block_index(run.signature.inputs[0], 0) * table.shape[0]
    return [rows("clip")(table, index - start)]


def unclamped_gather(run, operands):
    """Shifts before it clamps: an index out of range is no device's row."""
    table, index = operands
    if run.num_blocks(run.signature.inputs[0], 0) == 1:
        return RULES["gather"].run(run, operands)
    start = run.block_index(run.signature.inputs[0], 0) * table.shape[0]
    return [rows("fill", fill_value=0.0)(table, index - start)]


def filled_on_every_device(run, operands):
    """Adds the fill value once per device."""
    table, index = operands
    if run.num_blocks(run.signature.inputs[0], 0) == 1:
        return [rows("fill", fill_value=7.0)(table, index)]
    (found,) = RULES["gather"].run(run, operands)
    valid = (index >= 0) & (index < run.call.inputs[0].shape[0])
    return [jnp.where(valid, found, 7.0)]


def overflowing_scatter(run, operands):
    """Shifts indices in their own narrow dtype."""
    table, index, updates = operands
    if run.num_blocks(run.signature.inputs[0], 0) == 1:
        return RULES["scatter-add"].run(run, operands)
    start = run.block_index(run.signature.inputs[0], 0) * table.shape[0]
    shifted = index - jnp.asarray(start).astype(index.dtype)
    return [put_rows(lax.scatter_add, "fill")(table, shifted, updates)]


def bits_of_the_block_alone(run, operands):
    """Each device starts counting at 0."""
    return [RULES["random_bits"].run(dataclasses.replace(run, axis_index=lambda _: 0), operands)[0]]


ROWS_FILLED = rows("fill", fill_value=7.0)
WRONG_RUNS = {
    "iota": (
        case("iota", lambda: lax.broadcasted_iota(jnp.int32, (8, 4), 0)), unshifted_iota
    ),
    "gather without mask": (
        case("gather", rows("clip"), floats(8, 2), wild(4, 1)), misshifted_gather
    ),
    "gather shifts first": (
        case("gather", rows("clip"), floats(8, 2), wild(16, 1)), unclamped_gather
    ),
    "gather fills everywhere": (
        case("gather", ROWS_FILLED, floats(8, 2), wild(4, 1)), filled_on_every_device
    ),
    "scatter overflows": (
        case("scatter-add", put_rows(lax.scatter_add, "fill"), whole_floats(512, 1),
             ints(4, 1, dtype="uint8"), whole_floats(4, 1)),
        overflowing_scatter,
    ),
    "random bits": (
        case("random_bits", lambda data: lax.reshape(_bits(data), (4, 2)), key_data()),
        bits_of_the_block_alone,
    ),
}  # fmt: skip


def _bits(data):
    return jax.random.bits(keys(data), (4, 2))


@pytest.mark.parametrize("name", WRONG_RUNS)
def test_wrong_local_run_is_rejected(name):
    planted, run = WRONG_RUNS[name]
    right = RULES[planted.primitive]
    prove_case(planted, right, ((2,), (4,)))
    with pytest.raises(WrongSignature):
        prove_case(planted, dataclasses.replace(right, run=run), ((2,), (4,)))


def test_wrong_local_parameters_are_rejected():
    whole = Case("reshape", lambda x: x.reshape(2, 8), (floats(4, 4),))
    wrong = dataclasses.replace(RULES["reshape"], localize=lambda call, *_: call.params)
    with pytest.raises((WrongSignature, TypeError, ValueError)):
        prove_case(whole, wrong, ((2,),))
