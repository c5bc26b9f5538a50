"""Planned and compiled bytes on 64 devices, in a process of its own, as this one simulates 8.

In: XLA's description of H100, if it is to compile too. Out: a table and goals. Nothing is run.

Usage, by `measure`:
    python -m scripts.goals.scale [TARGET]               a line of JSON for each program
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax

from models import gpt
from scripts.goals.figures import figures_of
from scripts.goals.goal import MOST_ERROR, Goal, not_measured
from scripts.goals.strategies import UNOPTIMIZED, Ours, axes_of, mesh_of, planned
from scripts.h100 import h100_mesh

NUM_DEVICES = 64
BATCH = 64
CASES = (
    ((64,), Ours("sbp bytes", "bytes")),
    ((8, 8), Ours("sbp bytes", "bytes")),
    ((8, 8), Ours("sbp time", "time")),
)
COLUMNS = "{:<7}{:<11}{:<9}{:>9}{:>10}{:>7}{:>5}{:>6}{:>9}{:>9}{:>8}{:>11}"
HEADINGS = (
    "mesh", "strategy", "backend", "MB plan", "compiled", "unpl.", "ops", "runs", "MB pred.",
    "MB held", "plan s", "compile s",
)  # fmt: skip


class Scaled(NamedTuple):
    """A plan of the benchmark's train step and the program compiled from it.

    Attributes:
        sizes: Of the mesh.
        name: The strategy.
        backend: `CPU` or `H100`.
        planned_nbytes: Bytes a device sends by the plan.
        sent_nbytes: The same by the compiled program.
        num_unplanned: Differences of its collectives from the plan.
        num_collectives: Operations in the program.
        num_executed: Operations a step runs.
        predicted_nbytes: Most memory of a device by the plan.
        memory_nbytes: The same by the compiled program.
        plan_seconds: Time to trace and plan.
        compile_seconds: Time to lower and compile.
    """

    sizes: tuple[int, ...]
    name: str
    backend: str
    planned_nbytes: int
    sent_nbytes: float
    num_unplanned: int
    num_collectives: int
    num_executed: int
    predicted_nbytes: int
    memory_nbytes: int
    plan_seconds: float
    compile_seconds: float


def measure(target: Path | None = None) -> list[Goal]:
    """Compiles in another process, and prints a table.

    Args:
        target: XLA's description of H100, to compile for it too.
    """
    command = [sys.executable, "-m", "scripts.goals.scale", *([str(target)] if target else [])]
    root = Path(__file__).parents[2]
    printed = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
    rows = [Scaled(*json.loads(line)) for line in printed.stdout.splitlines()]
    print(f"{NUM_DEVICES} devices, {BATCH} sequences")
    print(COLUMNS.format(*HEADINGS))
    for row in rows:
        print(_line(row))
    print()
    return list(goals_of(rows))


def goals_of(rows: Sequence[Scaled]) -> Iterator[Goal]:
    """What the programs of each backend say; not measured where there are none.

    Args:
        rows: Of all backends.
    """
    for backend in ("CPU", "H100"):
        found = [row for row in rows if row.backend == backend]
        where = f"{NUM_DEVICES} devices, {backend}"
        if not found:
            yield not_measured("G3", where)
            continue
        off = max(abs(row.planned_nbytes / row.sent_nbytes - 1) for row in found)
        unplanned = sum(row.num_unplanned for row in found)
        yield Goal(
            "G3", f"{where}, {len(found)} plans",
            f"off by {off:.2%} at most, {unplanned} unplanned", f"<= {MOST_ERROR:.0%}, 0",
            off <= MOST_ERROR and unplanned == 0,
        )  # fmt: skip


def scaled(
    sizes: tuple[int, ...], ours: Ours, target: Path | None = None,
    config: gpt.GPTConfig = gpt.BENCHMARK,
) -> Iterator[Scaled]:  # fmt: skip
    """Plans once, and compiles for each backend.

    Args:
        sizes: Of the mesh.
        ours: What to ask for.
        target: XLA's description of H100, to compile for it too.
        config: The model.
    """
    meshes = {"CPU": mesh_of(sizes)}
    if target is not None:
        meshes["H100"] = h100_mesh(axes_of(sizes), target)
    plan, plan_seconds = None, 0.0
    for backend, mesh in meshes.items():
        began = time.perf_counter()
        step, structs = planned(ours, mesh, config, plan, BATCH)
        if plan is None:
            plan = step.plan(*structs)
            plan_seconds = time.perf_counter() - began
            began = time.perf_counter()
        compiled = step.lower(*structs).compile(UNOPTIMIZED)
        seconds = time.perf_counter() - began
        found = figures_of(compiled, mesh, plan)
        yield Scaled(
            sizes, ours.name, backend, plan.wire_nbytes, found.sent_nbytes, found.num_unplanned,
            found.num_collectives, found.num_executed, plan.memory_nbytes, found.memory_nbytes,
            plan_seconds, seconds,
        )  # fmt: skip


def _line(row: Scaled) -> str:
    return COLUMNS.format(
        ",".join(map(str, row.sizes)), row.name, row.backend, f"{row.planned_nbytes / 1e6:.3f}",
        f"{row.sent_nbytes / 1e6:.3f}", row.num_unplanned, row.num_collectives, row.num_executed,
        f"{row.predicted_nbytes / 1e6:.1f}", f"{row.memory_nbytes / 1e6:.1f}",
        f"{row.plan_seconds:.2f}", f"{row.compile_seconds:.1f}",
    )  # fmt: skip


def main() -> None:
    """Prints a line for each program."""
    jax.config.update("jax_num_cpu_devices", NUM_DEVICES)
    jax.config.update("jax_enable_compilation_cache", False)
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    for sizes, ours in CASES:
        for row in scaled(sizes, ours, target):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
