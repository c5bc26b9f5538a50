"""Loops that write what they stack over what they read.

`lax.scan` gives each stacked result memory of its own, beside the stacks that it takes apart, all
of them whole. Where a result has the type of such a stack, a gradient that of its weight, the loop
can write each slice of the one over that of the other, which it has just read.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax import lax

from sbp._compat import Scan

Step = Callable[[Sequence[Any], Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]]


def scan_over(
    step: Step, carry: Sequence[Any], xs: Sequence[Any], scan: Scan, over: Mapping[int, int],
    *, a_turn_later: bool,
) -> tuple[Sequence[Any], list[Any]]:  # fmt: skip
    """`lax.scan`, with some of its stacked results written over stacked operands.

    Args:
        step: Carry and slices to the next carry and the slices that are stacked.
        carry: What the first turn takes.
        xs: Stacked operands.
        scan: Length and direction.
        over: Position of a result -> position of an operand of the same type, for at least one.
        a_turn_later: Whether a slice is written before the next ones are read, so that nothing else
            reads the stack that is written to. XLA's CPU compiler copies the whole stack in each
            turn if a read and the write could run in any order; its GPU compiler orders them.

    Returns:
        The last carry, and the stacked results.
    """
    first, last = (scan.length - 1, 0) if scan.reverse else (0, scan.length - 1)
    stacks = {result: xs[operand] for result, operand in over.items()}
    rest = [None if place in over.values() else x for place, x in enumerate(xs)]
    # What is written before the first slice is read is that slice.
    ready = {result: stack[first] for result, stack in stacks.items()} if a_turn_later else {}

    def turn(state: Any, slices: Sequence[Any]) -> tuple[Any, list[Any]]:
        index, before, carry, stacks, ready = state
        stacks = _write(stacks, ready, before)
        slices = list(slices)
        for result, operand in over.items():
            slices[operand] = lax.dynamic_index_in_dim(stacks[result], index, keepdims=False)
        carry, ys = step(carry, slices)
        made = {result: ys[result] for result in over}
        if not a_turn_later:
            stacks, made = _write(stacks, made, index), {}
        ys = [None if place in over else y for place, y in enumerate(ys)]
        return (index + (-1 if scan.reverse else 1), index, carry, stacks, made), ys

    start = (jax.numpy.int32(first), jax.numpy.int32(first), list(carry), stacks, ready)
    (_, _, carry, stacks, ready), ys = lax.scan(
        turn, start, rest, scan.length, scan.reverse, scan.unroll
    )
    stacks = _write(stacks, ready, last)
    return carry, [stacks.get(place, y) for place, y in enumerate(ys)]


def _write(stacks: dict[int, Any], slices: dict[int, Any], index: Any) -> dict[int, Any]:
    """The stacks with one slice each written over, where there is one."""
    written = {
        place: lax.dynamic_update_index_in_dim(stacks[place], x, index, 0)
        for place, x in slices.items()
    }
    return stacks | written
