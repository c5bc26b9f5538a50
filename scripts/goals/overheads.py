"""What planning costs before and beside a step: seconds to plan, to compile, and to call.

In: a number of rounds. Out: tables, and the goals on planning time, dispatch and compile time.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh

import flowjax
import sbp
from models import gpt
from scripts import bench_compile, bench_dispatch
from scripts.goals.goal import Goal, at_most

DEPTHS = (4, 48)
MOST_SECONDS = {4: 0.5, 48: 5.0}
MOST_EXPONENT = 1.1
MOST_DISPATCH = 1.02
MOST_COMPILE = 1.15


def measure_planning(repeats: int = 1, depths: Sequence[int] = DEPTHS) -> list[Goal]:
    """Seconds from a traced step to its plan, unrolled, on a mesh of 8 and one of 2 by 4.

    Args:
        repeats: Plans of each; the least time counts.
        depths: Numbers of layers, two of them.
    """
    goals = []
    for sizes in ((8,), (2, 4)):
        mesh = ",".join(map(str, sizes))
        times, equations = {}, {}
        for layers in depths:
            config = dataclasses.replace(gpt.BENCHMARK, num_layers=layers, scan_layers=False)
            times[layers], equations[layers] = _planning(config, sizes, repeats)
            print(f"planning {layers} layers unrolled on mesh {mesh}: {times[layers]:.2f} s, "
                  f"{equations[layers]} equations", flush=True)  # fmt: skip
            goals.append(
                at_most("G5", f"mesh {mesh}, {layers} layers unrolled", times[layers],
                        MOST_SECONDS[layers], "s")
            )  # fmt: skip
        few, many = depths
        exponent = math.log(times[many] / times[few]) / math.log(equations[many] / equations[few])
        goals.append(
            at_most("G5", f"mesh {mesh}, growth with equations, exponent", exponent, MOST_EXPONENT)
        )
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


def _planning(config: gpt.GPTConfig, sizes: tuple[int, ...], repeats: int) -> tuple[float, int]:
    """Least seconds to plan, tracing aside, and the number of equations."""
    function, structs = gpt.example(16, config)
    mesh: Any = AbstractMesh(sizes, ("dp", "tp")[: len(sizes)])
    found, plan = [], None
    for _ in range(repeats):
        step = sbp.parallelize(function, mesh=mesh, hardware="h100", donate_argnums=0)
        tracing = bench_compile.seconds(lambda: jax.make_jaxpr(function)(*structs))
        found.append(bench_compile.seconds(lambda step=step: step.plan(*structs)) - tracing)
        plan = step.plan(*structs)
    assert plan is not None
    return min(found), len(plan.equations)
