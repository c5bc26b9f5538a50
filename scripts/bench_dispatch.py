"""What a call of a parallelised function costs beside a call of the bare `jax.jit` object.

Usage:
    python scripts/bench_dispatch.py                     all cases, about a minute
    python scripts/bench_dispatch.py --rounds 1000       steadier medians

One row per case: the least microseconds per call over many rounds, for the same function as
`jax.jit(f)` (on 8 devices `jax.jit(jax.shard_map(f), in_shardings=...)`), as a second copy of it,
and as `sbp.parallelize(f)`. Rounds take the three in turn, in changing order. `over` is what sbp
adds to the mean of the two copies, the median of the rounds' own differences, as the machine's
speed drifts; `noise` is the same between the two copies. The devices are simulated: the numbers are
host time and say nothing about the speed of a step.
"""

import argparse
import contextlib
import gc
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import flowjax
import sbp

NUM_DEVICES = 8
SHAPE = (NUM_DEVICES, 4)

# A tree of arrays in, a tree of arrays out.
Step = Callable[[Any], Any]


class Case(NamedTuple):
    """One row of the table.

    Attributes:
        num_leaves: Arrays in the argument, and in the result.
        num_devices: Devices in the mesh.
        reduces: Whether the function sums over the split dim, so that the program communicates.
    """

    num_leaves: int
    num_devices: int
    reduces: bool = False

    @property
    def name(self) -> str:
        """The case in words."""
        leaves = "1 leaf" if self.num_leaves == 1 else f"{self.num_leaves} leaves"
        devices = "1 device" if self.num_devices == 1 else f"{self.num_devices} devices"
        return f"{leaves}, {devices}" + ", all-reduce" * self.reduces


CASES = (
    Case(1, 1),
    Case(35, 1),
    Case(1, NUM_DEVICES),
    Case(35, NUM_DEVICES),
    Case(1, NUM_DEVICES, reduces=True),
    Case(35, NUM_DEVICES, reduces=True),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures every case and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=400,
        help="with 35 leaves or 8 devices a tenth (default: %(default)s)",
    )
    parser.add_argument(
        "--calls",
        type=int,
        default=100,
        help="per round; a quarter on 8 devices (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if min(options.rounds, options.calls) < 1:
        parser.error("--rounds and --calls must be at least 1")
    with contextlib.suppress(RuntimeError):  # JAX has its devices already
        jax.config.update("jax_num_cpu_devices", NUM_DEVICES)
    version = f"jax {jax.__version__}, Python {sys.version.split()[0]}"
    print(f"microseconds per call, up to {options.rounds} rounds; {version}")
    print(f"{'case':<32}{'jit':>9}{'again':>9}{'sbp':>9}{'noise':>9}{'over':>9}")
    for case in CASES:
        mesh = flowjax.make_mesh({"dp": case.num_devices})
        steps = [bare(case, mesh), bare(case, mesh), planned(case, mesh)]
        calls = options.calls if case.num_devices == 1 else math.ceil(options.calls / 4)
        quick = case.num_leaves == case.num_devices == 1
        rounds = options.rounds if quick else math.ceil(options.rounds / 10)
        times = microseconds(steps, leaves(case, mesh), rounds, calls, blocking=case.reduces)
        jit, again, ours = map(min, zip(*times, strict=True))
        noise = statistics.median(second - first for first, second, _ in times)
        over = statistics.median(x - (first + second) / 2 for first, second, x in times)
        print(f"{case.name:<32}{jit:9.2f}{again:9.2f}{ours:9.2f}{noise:+9.2f}{over:+9.2f}")


def leaves(case: Case, mesh: Mesh) -> Any:
    """The argument, split over the mesh: one array, or a list of them."""
    array = jax.device_put(jnp.ones(SHAPE, jnp.float32), NamedSharding(mesh, PartitionSpec("dp")))
    copies = [array + place for place in range(case.num_leaves)]
    return copies[0] if case.num_leaves == 1 else copies


def bare(case: Case, mesh: Mesh) -> Step:
    """A new `jax.jit` object of the function, written by hand for the mesh."""
    split, whole = PartitionSpec("dp"), PartitionSpec()

    def fn(x: Any) -> Any:
        if case.reduces:
            return jax.tree.map(lambda leaf: jax.lax.psum(leaf.sum(0), "dp"), x)
        return jax.tree.map(lambda leaf: leaf + 1, x)

    if case.num_devices == 1:
        return jax.jit(fn)
    mapped = jax.shard_map(
        fn, mesh=mesh, in_specs=split, out_specs=whole if case.reduces else split
    )
    return jax.jit(mapped, in_shardings=NamedSharding(mesh, split))


def planned(case: Case, mesh: Mesh) -> Step:
    """The function parallelised, with the same words at its boundary."""

    def fn(x: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf.sum(0) if case.reduces else leaf + 1, x)

    out = "dp: B" if case.reduces else "dp: S(0)"
    return sbp.parallelize(fn, mesh=mesh, in_sbp={"x": "dp: S(0)"}, out_sbp=out)


def microseconds(
    steps: Sequence[Step], argument: Any, rounds: int, calls: int, *, blocking: bool
) -> list[list[float]]:
    """Time per call of each step in each round, in microseconds.

    Args:
        steps: What to call.
        argument: What with.
        rounds: Batches per step.
        calls: Calls per batch.
        blocking: Wait for every result. Needed where the program communicates: many pending
            collectives on simulated devices can exhaust the threads they wait in and abort.
    """
    for step in steps:
        jax.block_until_ready(step(argument))
        jax.block_until_ready(step(argument))
    times: list[list[float]] = []
    orders = itertools.cycle(itertools.permutations(range(len(steps))))
    collecting = gc.isenabled()
    gc.disable()
    try:
        for order in itertools.islice(orders, rounds):
            times.append([0.0] * len(steps))
            for place in order:
                seconds = _batch_seconds(steps[place], argument, calls, blocking=blocking)
                times[-1][place] = seconds / calls * 1e6
    finally:
        if collecting:
            gc.enable()
    return times


def _batch_seconds(step: Step, argument: Any, calls: int, *, blocking: bool) -> float:
    result = None
    start = time.perf_counter()
    if blocking:
        for _ in range(calls):
            jax.block_until_ready(step(argument))
        return time.perf_counter() - start
    for _ in range(calls):
        result = step(argument)
    seconds = time.perf_counter() - start
    jax.block_until_ready(result)
    return seconds


if __name__ == "__main__":
    main()
