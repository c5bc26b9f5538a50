"""How long planning takes, how near the cheapest the plans are proven, and what they move.

Usage:
    python scripts/bench_plan.py                         the benchmark GPT on meshes of 8 devices
    python scripts/bench_plan.py --layers 4 8 --unrolled --meshes 8 2,4 --objectives time
    python scripts/bench_plan.py --audit                 also compiles each plan, and counts bytes
    python scripts/bench_plan.py --175b                  96 layers, 512 devices, none of them here

One row per plan of an AdamW train step: equations, seconds to trace and to plan, the predicted time
of a step on H100, the proven gap, the megabytes a device sends. `--audit` adds what the program
compiled for simulated CPU devices sends, its collectives, those not planned, and its memory beside
the predicted one, in MiB.
"""

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh

import flowjax
import sbp
from models import gpt
from scripts.bench_compile import seconds

GPT3 = gpt.GPTConfig(
    vocab=50304, sequence=2048, num_layers=96, num_heads=96, d_model=12288, positions="learned"
)
"""Brown et al., Language Models are Few-Shot Learners, 2020, table 2.1: 175 billion parameters."""
AXES = ("dp", "tp", "pp")
COLUMNS = "{:<20}{:>7}  {:<7}{:<7}{:>7}{:>7}{:>15}{:>8}{:>12}"
AUDITED = "{:>10}{:>6}{:>6}{:>9}{:>9}"


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
    return parser.parse_args(arguments)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(","))


def _cases(options: argparse.Namespace) -> Iterator[Case]:
    if options.gpt3:
        yield Case(GPT3, 512, (64, 8), "time")
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
    memory = compiled.memory_analysis()
    held = (
        memory.argument_size_in_bytes + memory.output_size_in_bytes
        + memory.temp_size_in_bytes - memory.alias_size_in_bytes
    )  # fmt: skip
    row += AUDITED.format(
        f"{report.total_nbytes / 1e6:.3f}",
        len(report.collectives),
        len(report.unplanned),
        f"{plan.memory_nbytes / 2**20:.1f}",
        f"{held / 2**20:.1f}",
    )
    return row, len(report.unplanned)


if __name__ == "__main__":
    sys.exit(main())
