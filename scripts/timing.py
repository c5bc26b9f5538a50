"""Times of programs on a device, without what a call costs besides.

Comes in: the body of a loop or the link of a chain. Goes out: seconds that one more of it takes.
Every call is waited for: many pending collectives on simulated devices can exhaust the threads they
wait in and abort.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax


def loop_seconds(body: Callable[[jax.Array], jax.Array], x: jax.Array, rounds: int) -> float:
    """Time of one turn of a loop, which XLA can neither fuse with the next nor leave out."""
    step = jax.jit(lambda turns, x: lax.fori_loop(0, turns, lambda _, x: body(x), x))
    return _slope([lambda k=k: step(k, x) for k in (2, 8)], (2, 8), rounds)


def chain_seconds(
    body: Callable[[Any], Any], x: Any, rounds: int, *, lengths: tuple[int, int] = (1, 5),
    wrap: Callable[[Callable[[Any], Any]], Callable[[Any], Any]] = lambda fn: fn,
) -> float:  # fmt: skip
    """Time of one link of a chain, without a loop around it.

    Args:
        body: A link; takes what it returns.
        x: Where it starts.
        rounds: Times each chain runs.
        lengths: Of the two chains that are subtracted.
        wrap: Makes a program of many devices of a chain.
    """

    def chain(length: int) -> Callable[[Any], Any]:
        def run(x: Any) -> Any:
            for _ in range(length):
                x = body(x)
            return x

        return jax.jit(wrap(run))

    chains = [chain(length) for length in lengths]
    return _slope([lambda run=run: run(x) for run in chains], lengths, rounds)


def _slope(calls: Sequence[Callable[[], Any]], lengths: tuple[int, int], rounds: int) -> float:
    """Seconds one more unit of length takes; the average of the long one where noise hides it."""
    best = [float("inf")] * len(calls)
    for call in calls:
        jax.block_until_ready(call())
    for _ in range(rounds):
        for place, call in enumerate(calls):
            start = time.perf_counter()
            jax.block_until_ready(call())
            best[place] = min(best[place], time.perf_counter() - start)
    slope = (best[1] - best[0]) / (lengths[1] - lengths[0])
    return slope if slope > 0 else best[1] / lengths[1]
