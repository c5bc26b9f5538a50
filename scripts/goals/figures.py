"""What a compiled program sends and holds, and how long programs take beside each other.

In: programs. Out: `Figures` of each, and seconds by round.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

import sbp


class Figures(NamedTuple):
    """Read from a compiled program.

    Attributes:
        sent_nbytes: Bytes a device sends in a call, by the ring formulas.
        num_collectives: Operations in the program.
        num_executed: Operations a call runs: those in loops as often as the loops turn.
        num_unplanned: Differences from the plan; 0 without one.
        memory_nbytes: Most memory of a device.
        temporary_nbytes: What XLA sets aside beside arguments and results.
    """

    sent_nbytes: float
    num_collectives: int
    num_executed: int
    num_unplanned: int
    memory_nbytes: int
    temporary_nbytes: int = 0


def figures_of(compiled: Any, mesh: Any, plan: sbp.Plan | None = None) -> Figures:
    """Audits a compiled program.

    Args:
        compiled: A `jax.stages.Compiled`.
        mesh: The mesh it was compiled for.
        plan: The plan it was lowered from, if any.
    """
    report = sbp.audit(compiled, plan, mesh=mesh)
    counts = {row.instruction: row.count for row in report.collectives}
    return Figures(
        report.total_nbytes, len(counts), sum(counts.values()), len(report.unplanned),
        memory_nbytes(compiled, on_cpu=mesh.devices.flat[0].platform == "cpu"),
        compiled.memory_analysis().temp_size_in_bytes,
    )  # fmt: skip


def memory_nbytes(compiled: Any, *, on_cpu: bool = True) -> int:
    """Most memory of a device; XLA's own peak has little but the arguments in it on the CPU."""
    memory = compiled.memory_analysis()
    if not on_cpu:
        return memory.peak_memory_in_bytes
    return (
        memory.argument_size_in_bytes + memory.output_size_in_bytes
        + memory.temp_size_in_bytes - memory.alias_size_in_bytes
    )  # fmt: skip


def seconds_by_round(
    steps: Sequence[Callable[..., Any]], arguments: Sequence[tuple[Any, Any]], rounds: int
) -> list[list[float]]:
    """Seconds of a step of each program, in rounds in which each runs once.

    Args:
        steps: Take state and batch, return state and loss; the state is donated.
        arguments: Where each program starts.
        rounds: How many; every other one runs backwards. One more round before warms up.
    """
    states = [state for state, _ in arguments]
    times = []
    for number in range(rounds + 1):
        times.append([0.0] * len(steps))
        order = range(len(steps))
        for place in order if number % 2 else reversed(order):
            start = time.perf_counter()
            # Waited for: simulated devices cannot run two programs with collectives at a time.
            states[place], _ = jax.block_until_ready(
                steps[place](states[place], arguments[place][1])
            )
            times[-1][place] = time.perf_counter() - start
    return times[1:]
