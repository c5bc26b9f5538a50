"""Elementwise primitives that are not linear: splits on every dim, and order where it is kept."""

from collections.abc import Callable, Iterator

from sbp.algebra import P_MAX, P_MIN, B, Split
from sbp.factors import (
    Call,
    Factor,
    OneAxisRule,
    Signature,
    is_bool,
    is_integer,
    split_signatures,
)
from sbp.rules.laws import (
    elementwise,
    is_float,
    is_ordered,
    moves,
    order,
    partial_in,
    swapped_order,
)
from sbp.rules.rule import Rule, no_flops, num_output_elements

# Not decreasing on the whole range of the floats, and NaN only from NaN.
INCREASING = (
    "asinh, atan, cbrt, ceil, erf, exp, exp2, expm1, floor, logistic, reduce_precision, round, "
    "sinh, tanh"
)

DECREASING = "erfc"

# log, sqrt and their like do not decrease where they are defined, but max(4, -1) = 4 while
# sqrt(-1) = NaN; the others are not monotone, or have several operands.
SPLIT_ONLY = (
    "abs, acos, acosh, asin, atan2, atanh, bessel_i0e, bessel_i1e, clz, cos, cosh, digamma, eq, "
    "eq_to, erf_inv, igamma, igamma_grad_a, igammac, is_finite, le_to, lgamma, log, log1p, log2, "
    "lt_to, mulhi, ne, nextafter, one_minus_square, polygamma, polynomial, population_count, pow, "
    "regularized_incomplete_beta, rem, rsqrt, shift_right_arithmetic, "
    "shift_right_logical, sin, sqrt, square, tan, xor, zeta"
)

IDENTITY = "copy, name, stop_gradient"


def increasing(call: Call) -> Iterator[Signature]:
    """Signatures of an increasing function.

    - `S(d) -> S(d)`
    - floats: `P.max -> P.max`, `P.min -> P.min`
    """
    yield from elementwise(call)
    if is_float(call.inputs[0]):
        yield from order(call, 0)


def decreasing(call: Call) -> Iterator[Signature]:
    """Signatures of a decreasing function.

    - `S(d) -> S(d)`
    - floats: `P.max -> P.min`, `P.min -> P.max`
    """
    yield from elementwise(call)
    if is_float(call.inputs[0]):
        yield from swapped_order(call, 0)


def sign(call: Call) -> Iterator[Signature]:
    """Signatures of sign.

    - `S(d) -> S(d)`
    - integers and floats: `P.max -> P.max`, `P.min -> P.min`
    """
    yield from elementwise(call)
    yield from order(call, 0)


def bitwise_not(call: Call) -> Iterator[Signature]:
    """Signatures of not.

    - `S(d) -> S(d)`
    - `P.max -> P.min`, `P.min -> P.max`: `~x` is `-1 - x`, or the largest unsigned number - x
    """
    yield from elementwise(call)
    yield from swapped_order(call, 0)


def integer_pow(call: Call) -> Iterator[Signature]:
    """Signatures of integer_pow.

    - `S(d) -> S(d)`
    - odd positive powers of floats: `P.max -> P.max`, `P.min -> P.min`; integers wrap around
    """
    yield from elementwise(call)
    power = call.params["y"]
    if power > 0 and power % 2 and is_float(call.inputs[0]):
        yield from order(call, 0)


def identity(call: Call) -> Iterator[Signature]:
    """Signatures of a copy: any word to itself."""
    yield from elementwise(call)
    yield from moves(call, 0)


def at_least(call: Call) -> Iterator[Signature]:
    """Signatures of `x >= y` and `x > y`; those of `le` and `lt` are the mirror image.

    - `S(d), S(d) -> S(d)`
    - `P.min, B -> P.min` and `B, P.max -> P.min`: true if it is true of every part
    - integers and booleans: `P.max, B -> P.max` and `B, P.min -> P.max`: true if it is of any part.
      Not of floats: max(NaN, 5) is NaN, of which nothing is true.
    """
    return _compare(call, larger=0)


def at_most(call: Call) -> Iterator[Signature]:
    """Signatures of `x <= y` and `x < y`: those of `ge` and `gt` with the operands exchanged."""
    return _compare(call, larger=1)


def _compare(call: Call, larger: int) -> Iterator[Signature]:
    yield from elementwise(call)
    if not is_ordered(call.inputs[0]):
        return
    smaller = 1 - larger
    yield partial_in(call, (larger,), P_MIN, P_MIN)
    yield partial_in(call, (smaller,), P_MAX, P_MIN)
    if is_integer(call.inputs[0]) or is_bool(call.inputs[0]):
        yield partial_in(call, (larger,), P_MAX, P_MAX)
        yield partial_in(call, (smaller,), P_MIN, P_MAX)


def bitcast_convert_type(call: Call) -> Iterator[Signature]:
    """Signatures of bitcast_convert_type: `S(d) -> S(d)` but for a last dim made or used up."""
    kept = min(call.inputs[0].ndim, call.outputs[0].ndim)
    return split_signatures(Factor((dim,), (dim,)) for dim in range(kept))


def optimization_barrier(call: Call) -> Iterator[Signature]:
    """Signatures of optimization_barrier: all operands `S(d)` (B where there is no dim d), or P."""
    for dim in range(max((array.ndim for array in call.inputs), default=0)):
        words = tuple(Split(dim) if dim < array.ndim else B for array in call.inputs)
        yield Signature(words, words)
    if call.inputs:
        yield from moves(call, *range(len(call.inputs)))


def _rules(
    names: str, signatures: OneAxisRule, flops: Callable[[Call], int] = num_output_elements
) -> dict[str, Rule]:
    return {name: Rule(signatures, flops=flops, fusible=True) for name in names.split(", ")}


RULES: dict[str, Rule] = {
    **_rules(INCREASING, increasing),
    **_rules(DECREASING, decreasing),
    **_rules(SPLIT_ONLY, elementwise),
    **_rules(IDENTITY, identity, no_flops),
    "sign": Rule(sign, fusible=True),
    "not": Rule(bitwise_not, fusible=True),
    "integer_pow": Rule(integer_pow, fusible=True),
    **_rules("ge, gt", at_least),
    **_rules("le, lt", at_most),
    "bitcast_convert_type": Rule(bitcast_convert_type, flops=no_flops, fusible=True),
    "optimization_barrier": Rule(optimization_barrier, flops=no_flops, fusible=True),
}
