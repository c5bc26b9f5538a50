"""What planning costs before and beside a step: seconds to plan, to compile, and to call.

In: a number of rounds. Out: tables, and the goals on planning time, dispatch and compile time.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh

import flowjax
import sbp
from models import gpt
from scripts import bench_compile, bench_dispatch
from scripts.goals.goal import Goal, at_most

AXES = ("dp", "tp", "pp")
TIMES = 3
MOST_EXPONENT = 1.1
MOST_GROWTH_OF_A_LOOP = 1.2
MOST_DISPATCH = 1.02
MOST_COMPILE = 1.15


class Planned(NamedTuple):
    """A train step to plan, without a device.

    Attributes:
        config: The model.
        sizes: Devices of each mesh axis.
        most_seconds: How long that may take.
        most_gap: How far above the bound the plan may be.
        batch: Sequences.
    """

    config: gpt.GPTConfig
    sizes: tuple[int, ...]
    most_seconds: float
    most_gap: float = 0.01
    batch: int = 16

    @property
    def name(self) -> str:
        """Mesh, depth, and whether it is a loop."""
        kind = "scan" if self.config.scan_layers else "unrolled"
        return f"mesh {','.join(map(str, self.sizes))}, {self.config.num_layers} layers {kind}"


def _deep(layers: int, *, scan: bool = False) -> gpt.GPTConfig:
    return dataclasses.replace(gpt.BENCHMARK, num_layers=layers, scan_layers=scan)


UNROLLED = (Planned(_deep(4), (2, 4), 3.0), Planned(_deep(48), (2, 4), 10.0))
# A stack of 8 layers can be split as one of 48 can; one of 4 cannot be over 8 devices.
LOOPS = (
    Planned(_deep(8, scan=True), (2, 4), 3.0), Planned(_deep(48, scan=True), (2, 4), 3.0),
)  # fmt: skip
OTHERS = (
    Planned(_deep(4), (8,), 1.0), Planned(_deep(4), (2, 2, 2), 6.0),
    Planned(gpt.GPT3, (64, 8), 15.0, 0.02, 512),
)  # fmt: skip


def measure_planning(
    unrolled: Sequence[Planned] = UNROLLED,
    loops: Sequence[Planned] = LOOPS,
    others: Sequence[Planned] = OTHERS,
) -> list[Goal]:
    """Seconds from a traced step to its plan, the best of `TIMES`, and its gap, priced for H100.

    Args:
        unrolled: A shallow and a deep step, between which time may grow with the equations.
        loops: A shallow and a deep step, between which it may not grow.
        others: More steps.
    """
    goals = []
    times, equations = {}, {}
    for case in (*others, *unrolled, *loops):
        seconds, equations[case], gap = _planning(case)
        times[case] = min(seconds)
        print(f"planning {case.name}: {times[case]:.2f} s, the first time {seconds[0]:.2f}, "
              f"gap {gap:.2%}, {equations[case]} equations", flush=True)  # fmt: skip
        goals.append(at_most("G5", case.name, times[case], case.most_seconds, "s"))
        goals.append(at_most("G5", f"{case.name}, gap", 100 * gap, 100 * case.most_gap, "%"))
    few, many = unrolled
    exponent = math.log(times[many] / times[few]) / math.log(equations[many] / equations[few])
    goals.append(at_most("G5", "growth with equations, exponent", exponent, MOST_EXPONENT))
    few, many = loops
    grown = times[many] / times[few]
    goals.append(at_most("G5", "growth of a loop with layers", grown, MOST_GROWTH_OF_A_LOOP))
    print()
    return goals


def measure_dispatch(rounds: int = 200, calls: int = 50) -> list[Goal]:
    """Microseconds of a call of a step beside a call of `jax.jit`, for 1 and for 35 leaves."""
    goals = []
    for case in bench_dispatch.CASES[:2]:
        mesh = flowjax.make_mesh({"dp": case.num_devices})
        steps = [bench_dispatch.bare(case, mesh), bench_dispatch.planned(case, mesh)]
        times = bench_dispatch.microseconds(
            steps, bench_dispatch.leaves(case, mesh), rounds, calls, blocking=False
        )
        bare, ours = map(min, zip(*times, strict=True))
        print(f"a call, {case.name}: jit {bare:.2f} us, sbp {ours:.2f} us")
        goals.append(at_most("G7", f"{case.name}, least time over jit's", ours / bare,
                             MOST_DISPATCH))  # fmt: skip
    print()
    return goals


def measure_compile(rounds: int = 5) -> list[Goal]:
    """Seconds to a compiled program over those of the same program by hand."""
    config, mesh = gpt.BENCHMARK, flowjax.make_mesh("dp=8")
    ratio, with_planning = bench_compile.ratios(config, mesh, rounds)
    print()
    return [
        at_most("G8", "data parallelism, planning aside", ratio, MOST_COMPILE),
        at_most("G8", "data parallelism, with planning", with_planning, MOST_COMPILE),
    ]


def _planning(case: Planned) -> tuple[list[float], int, float]:
    """Seconds to plan each time, tracing aside, the number of equations, and the gap."""
    function, structs = gpt.example(case.batch, case.config)
    mesh: Any = AbstractMesh(case.sizes, AXES[: len(case.sizes)])
    jax.make_jaxpr(function)(*structs)  # so that what jax remembers of it helps both
    steps = [
        sbp.parallelize(function, mesh=mesh, hardware="h100", donate_argnums=0)
        for _ in range(TIMES)
    ]
    times: list[float] = []
    for step in steps:
        tracing = bench_compile.seconds(lambda: jax.make_jaxpr(function)(*structs))
        times.append(bench_compile.seconds(lambda step=step: step.plan(*structs)) - tracing)
    plan = steps[0].plan(*structs)
    return times, len(plan.equations), plan.gap
