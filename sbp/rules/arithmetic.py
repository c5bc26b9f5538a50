"""Elementwise primitives with laws of their own: sums, products, choices, converts."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from sbp.algebra import P_MAX, P_MIN, ArrayType, Partial
from sbp.factors import Call, Signature, is_bool, is_inexact, is_integer, linear
from sbp.rules.laws import (
    ORDERS,
    elementwise,
    is_float,
    moves,
    order,
    swapped_order,
)
from sbp.rules.rule import LocalRun, Rule


def add(call: Call) -> Iterator[Signature]:
    """Signatures of add and add_any.

    - `S(d), S(d) -> S(d)`
    - `P, P -> P`; not `P, B -> P`, which would count B once per device
    - floats: `P.max, B -> P.max`, `B, P.max -> P.max`, and of P.min; integers wrap around
    """
    yield from elementwise(call)
    yield from linear(call, 0, 1)
    if is_float(call.outputs[0]):
        yield from order(call, 0)
        yield from order(call, 1)


def sub(call: Call) -> Iterator[Signature]:
    """Signatures of sub.

    - `S(d), S(d) -> S(d)`
    - `P, P -> P`
    - floats: `P.max, B -> P.max`, `B, P.max -> P.min`, and of P.min
    """
    yield from elementwise(call)
    yield from linear(call, 0, 1)
    if is_float(call.outputs[0]):
        yield from order(call, 0)
        yield from swapped_order(call, 1)


def _guarded(operation: Callable[[Any, Any], Any]) -> Callable:
    """Runs add or sub of an ordered partial so that `inf - inf` of one part does not win.

    A part is often -inf, the neutral element of the maximum. Beside an infinite whole operand it
    would make a NaN that the logical result does not have; it gives the neutral element instead.
    The price: where the logical result is NaN because of `inf - inf`, it comes out infinite.
    """

    def run(run: LocalRun, operands: Sequence[Any]) -> Sequence[Any]:
        result = operation(*operands)
        words = [word for word in run.signature.outputs[0] if word in ORDERS]
        if not words:
            return [result]
        # Nested orders reduce the innermost axis first, so its neutral element is the one to give.
        neutral = -jnp.inf if words[-1] == P_MAX else jnp.inf
        from_nan = jnp.isnan(operands[0]) | jnp.isnan(operands[1])
        made_nan = jnp.isnan(result) & ~from_nan
        return [jnp.where(made_nan, jnp.array(neutral, result.dtype), result)]

    return run


def mul(call: Call) -> Iterator[Signature]:
    """Signatures of mul.

    - `S(d), S(d) -> S(d)`
    - `P, B -> P`, `B, P -> P`, unless `out_dtype` does not keep sums; not `P, P -> P`, which lacks
      the mixed products
    """
    yield from elementwise(call)
    if keeps_sum(call.inputs[0], call.outputs[0]):
        yield from linear(call, 0)
        yield from linear(call, 1)


def div(call: Call) -> Iterator[Signature]:
    """Signatures of div.

    - `S(d), S(d) -> S(d)`
    - floats and complex: `P, B -> P`; integer division rounds
    """
    yield from elementwise(call)
    if is_inexact(call.outputs[0]):
        yield from linear(call, 0)


def neg(call: Call) -> Iterator[Signature]:
    """Signatures of neg.

    - `S(d) -> S(d)`, `P -> P`
    - floats: `P.max -> P.min`, `P.min -> P.max`; the smallest integer is its own negative
    """
    yield from elementwise(call)
    yield from linear(call, 0)
    if is_float(call.outputs[0]):
        yield from swapped_order(call, 0)


def first_linear(call: Call) -> Iterator[Signature]:
    """Signatures of real, imag, conj and shift_left: `S(d) -> S(d)`, and P in the first operand."""
    yield from elementwise(call)
    yield from linear(call, 0)


def jointly_linear(call: Call) -> Iterator[Signature]:
    """Signatures of complex: `S(d), S(d) -> S(d)`, `P, P -> P`."""
    yield from elementwise(call)
    yield from linear(call, *range(len(call.inputs)))


def _lattice(call: Call, joint: Partial) -> Iterator[Signature]:
    yield from elementwise(call)
    yield from order(call, 0, 1, words=(joint,))
    yield from order(call, 0)
    yield from order(call, 1)


def maximum(call: Call) -> Iterator[Signature]:
    """Signatures of max.

    - `S(d), S(d) -> S(d)`
    - `P.max, P.max -> P.max`
    - with B: `P.max, B -> P.max`, `P.min, B -> P.min`, and the other way round
    """
    return _lattice(call, P_MAX)


def minimum(call: Call) -> Iterator[Signature]:
    """Signatures of min.

    - `S(d), S(d) -> S(d)`
    - `P.min, P.min -> P.min`
    - with B: `P.max, B -> P.max`, `P.min, B -> P.min`, and the other way round
    """
    return _lattice(call, P_MIN)


def logical_or(call: Call) -> Iterator[Signature]:
    """Signatures of or: those of max for booleans, splits for integers."""
    return maximum(call) if is_bool(call.outputs[0]) else elementwise(call)


def logical_and(call: Call) -> Iterator[Signature]:
    """Signatures of and: those of min for booleans, splits for integers."""
    return minimum(call) if is_bool(call.outputs[0]) else elementwise(call)


def clamp(call: Call) -> Iterator[Signature]:
    """Signatures of clamp.

    - `S(d), S(d), S(d) -> S(d)`, a scalar bound B
    - `B, P.max, B -> P.max`, `B, P.min, B -> P.min`
    """
    yield from elementwise(call)
    yield from order(call, 1)


def select_n(call: Call) -> Iterator[Signature]:
    """Signatures of select_n.

    - `S(d), .. -> S(d)`, a scalar predicate B
    - `B, P, P -> P`, `B, P.max, P.max -> P.max`, `B, P.min, P.min -> P.min`: the predicate is whole
    """
    yield from elementwise(call)
    yield from moves(call, *range(1, len(call.inputs)))


def convert_element_type(call: Call) -> Iterator[Signature]:
    """Signatures of convert_element_type.

    - `S(d) -> S(d)`
    - `P -> P` where the target holds every sum of the source: see `keeps_sum`
    - `P.max -> P.max`, `P.min -> P.min` where order is kept: see `keeps_order`
    """
    yield from elementwise(call)
    source, target = call.inputs[0], call.outputs[0]
    if keeps_sum(source, target):
        yield from linear(call, 0)
    if keeps_order(source, target):
        yield from order(call, 0)


def num_bits(array: ArrayType) -> int:
    """Width of an integer or float element."""
    finfo_or_iinfo = jnp.iinfo if is_integer(array) else jnp.finfo
    return finfo_or_iinfo(array.dtype).bits


def keeps_sum(source: ArrayType, target: ArrayType) -> bool:
    """Whether converting is additive.

    Yes: a float to one that holds all its values, float to complex, complex to real, integers to
    the same or fewer bits (they are numbers mod 2^k). No: integer to float or to more bits (a sum
    that wraps around does so no more), narrowing floats (each part would be rounded), booleans.
    """
    if source.dtype == target.dtype:
        return is_integer(source) or is_inexact(source)
    if is_integer(source) and is_integer(target):
        return num_bits(target) <= num_bits(source)
    if is_inexact(source) and is_inexact(target):
        narrow, wide = jnp.finfo(source.dtype), jnp.finfo(target.dtype)
        return narrow.nmant <= wide.nmant and float(narrow.max) <= float(wide.max)
    return False


_WITH_INFINITY = ("float16", "bfloat16", "float32", "float64")


def keeps_order(source: ArrayType, target: ArrayType) -> bool:
    """Whether converting never decreases and makes no number of NaN, no NaN of a number.

    Yes: booleans to numbers, integers to floats and to integers that hold all their values, floats
    to floats that have an infinity, unsigned integers to booleans (not zero). No: floats to
    integers, since max(NaN, 5) is NaN.
    """
    if is_bool(source):
        return is_bool(target) or is_integer(target) or str(target.dtype) in _WITH_INFINITY
    if is_bool(target):
        return is_integer(source) and jnp.iinfo(source.dtype).min == 0
    if is_integer(source) and is_integer(target):
        inner, outer = jnp.iinfo(source.dtype), jnp.iinfo(target.dtype)
        return outer.min <= inner.min and inner.max <= outer.max
    if is_integer(source) or is_float(source):
        return str(target.dtype) in _WITH_INFINITY
    return False


RULES: dict[str, Rule] = {
    "add": Rule(add, run=_guarded(lax.add), fusible=True),
    "add_any": Rule(add, run=_guarded(lax.add), fusible=True),
    "sub": Rule(sub, run=_guarded(lax.sub), fusible=True),
    "mul": Rule(mul, fusible=True),
    "div": Rule(div, fusible=True),
    "neg": Rule(neg, fusible=True),
    "real": Rule(first_linear, fusible=True),
    "imag": Rule(first_linear, fusible=True),
    "conj": Rule(first_linear, fusible=True),
    "shift_left": Rule(first_linear, fusible=True),
    "complex": Rule(jointly_linear, fusible=True),
    "max": Rule(maximum, fusible=True),
    "min": Rule(minimum, fusible=True),
    "or": Rule(logical_or, fusible=True),
    "and": Rule(logical_and, fusible=True),
    "clamp": Rule(clamp, fusible=True),
    "select_n": Rule(select_n, fusible=True),
    "convert_element_type": Rule(convert_element_type, fusible=True),
}
