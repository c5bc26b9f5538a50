"""How long planning takes, how near the cheapest the plans are proven, and what they move.

Usage:
    python scripts/bench_plan.py                         the benchmark GPT on meshes of 8 devices
    python scripts/bench_plan.py --layers 4 8 --unrolled --meshes 8 2,4 --objectives time
    python scripts/bench_plan.py --audit                 also compiles each plan, and counts bytes
    python scripts/bench_plan.py --175b                  96 layers, 512 devices, none of them here
    python scripts/bench_plan.py --goals                 the goals, beside other strategies
    python scripts/bench_plan.py --goals matmuls compile some of the parts
    JAX_PLATFORMS=cpu python scripts/bench_plan.py --goals --h100 TARGET    H100's compiler too

One row per plan of an AdamW train step: equations, seconds to trace and to plan, the predicted time
of a step on H100, the proven gap, the megabytes a device sends. `--audit` adds what the program
compiled for simulated CPU devices sends, its collectives, those not planned, and its memory beside
the predicted one, in MiB.

`--goals` runs the parts that are named, or all: the train step under the known strategies and
under our plans on meshes of 8 simulated devices, compiled for 64 (`scale`), distributed matmuls,
and the time to plan, to call and to compile. Then it prints each goal with what was found. MB are
10^6 bytes a device; `ops` are the collectives in the program, `runs` those of a call; `ms` is the
least time of a step in rounds that strategies take in turn, `ratio` that over the fastest peer's;
after the first rounds only those go on that may still be the fastest. `--h100` compiles for H100s
besides, which need not be here (see `scripts/h100.py`). Devices are simulated: times say nothing of
the speed of a step on others.
"""

import argparse
import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh

import flowjax
import sbp
from models import gpt
from scripts.bench_compile import seconds
from scripts.goals import Goal, even_matmuls, matmuls, overheads, scale, steps, summary
from scripts.goals.figures import memory_nbytes
from scripts.h100 import h100_mesh

AXES = ("dp", "tp", "pp")
COLUMNS = "{:<20}{:>7}  {:<7}{:<7}{:>7}{:>7}{:>15}{:>8}{:>12}"
AUDITED = "{:>10}{:>6}{:>6}{:>9}{:>9}"


PARTS = ("steps", "scale", "matmuls", "planning", "dispatch", "compile")


class Case(NamedTuple):
    """One row: a model, its batch, a mesh and an objective."""

    config: gpt.GPTConfig
    batch: int
    sizes: tuple[int, ...]
    objective: str

    @property
    def name(self) -> str:
        """Depth, and whether it is a loop."""
        kind = "scan" if self.config.scan_layers else "unrolled"
        return f"{self.config.num_layers} layers {kind}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a row for each plan; 1 where a compiled program holds what was not planned."""
    options = _parse(arguments)
    with contextlib.suppress(RuntimeError):  # JAX has its devices already
        jax.config.update("jax_num_cpu_devices", 8)
    if options.goals is not None:
        print(summary(_goals(options)))
        return 0
    headings = COLUMNS.format(
        "program", "eqns", "mesh", "goal", "trace", "plan", "step", "gap", "MB"
    )
    if options.audit:
        headings += AUDITED.format("compiled", "coll.", "unpl.", "MiB pred", "compiled")
    print(headings)
    unplanned = 0
    for case in _cases(options):
        row, found = _run(case, audit=options.audit)
        print(row, flush=True)
        unplanned += found
    return int(unplanned > 0)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, nargs="+", default=[4])
    parser.add_argument("--meshes", nargs="+", type=_sizes, default=[(8,), (2, 4), (4, 2)])
    parser.add_argument("--objectives", nargs="+", default=["time", "bytes"])
    parser.add_argument("--unrolled", action="store_true", help="a Python loop over the layers")
    parser.add_argument("--audit", action="store_true", help="compile for simulated devices too")
    parser.add_argument("--175b", dest="gpt3", action="store_true", help="the 96 layers of GPT-3")
    parser.add_argument("--goals", nargs="*", choices=PARTS, help="all goals, or these parts")
    parser.add_argument("--rounds", type=int, default=15, help="of steps; default: %(default)s")
    parser.add_argument("--h100", type=Path, metavar="TARGET", help="XLA's description of H100")
    return parser.parse_args(arguments)


def _goals(options: argparse.Namespace) -> Iterator[Goal]:
    """Runs the parts that are asked for."""
    jax.config.update("jax_enable_compilation_cache", False)
    target = options.h100
    if target is not None:
        try:
            h100_mesh({"dp": 8}, target)
        except (OSError, RuntimeError) as error:
            print(f"H100's compiler is not run: {str(error).splitlines()[0]}\n")
            target = None
    measures = {
        "steps": lambda: steps.measure(options.rounds, target),
        "scale": lambda: scale.measure(target),
        "matmuls": lambda: [*matmuls.measure(), *even_matmuls.measure()],
        "planning": overheads.measure_planning,
        "dispatch": overheads.measure_dispatch,
        "compile": overheads.measure_compile,
    }
    for part in options.goals or PARTS:
        began = time.perf_counter()
        yield from measures[part]()
        print(f"({part}: {time.perf_counter() - began:.0f} s)\n", flush=True)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(","))


def _cases(options: argparse.Namespace) -> Iterator[Case]:
    if options.gpt3:
        yield Case(gpt.GPT3, 512, (64, 8), "time")
        return
    for layers in options.layers:
        config = dataclasses.replace(
            gpt.BENCHMARK, num_layers=layers, scan_layers=not options.unrolled
        )
        for sizes in options.meshes:
            for objective in options.objectives:
                yield Case(config, 16, sizes, objective)


def _run(case: Case, *, audit: bool) -> tuple[str, int]:
    """A row, and how many collectives were not planned."""
    function, structs = gpt.example(case.batch, case.config)
    axes = AXES[: len(case.sizes)]
    mesh: Any = AbstractMesh(case.sizes, axes)
    if audit:
        mesh = flowjax.make_mesh(dict(zip(axes, case.sizes, strict=True)))
    step = sbp.parallelize(
        function, mesh=mesh, hardware="h100", objective=case.objective, donate_argnums=0
    )
    tracing = seconds(lambda: jax.make_jaxpr(function)(*structs))
    planning = seconds(lambda: step.plan(*structs))
    plan = step.plan(*structs)
    row = COLUMNS.format(
        case.name,
        len(plan.equations),
        ",".join(map(str, case.sizes)),
        case.objective,
        f"{tracing:.2f}",
        f"{planning - tracing:.2f}",
        f"{plan.cost_seconds * 1e3:.3f} ms",
        f"{plan.gap:.2%}",
        f"{plan.wire_nbytes / 1e6:.3f}",
    )
    if not audit:
        return row, 0
    compiled = step.lower(*structs).compile()
    report = sbp.audit(compiled, plan)
    row += AUDITED.format(
        f"{report.total_nbytes / 1e6:.3f}",
        len(report.collectives),
        len(report.unplanned),
        f"{plan.memory_nbytes / 2**20:.1f}",
        f"{memory_nbytes(compiled) / 2**20:.1f}",
    )
    return row, len(report.unplanned)


if __name__ == "__main__":
    sys.exit(main())
