"""Plans under a memory limit, and of a step that computes activations again.

In: the rows of known strategies on a mesh. Out: rows of ours, and goals: the compiled program holds
no more than the limit, and activations that are computed again leave little else.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import sbp
from models import gpt
from scripts.goals.figures import Figures
from scripts.goals.goal import Goal
from scripts.goals.strategies import Ours, Row, our_rows

LEAST_MEMORY = "sbp least memory"
MESH = (8,)
MOST_TEMPORARY_MB = 16.5
"""Of a loop over blocks with `jax.checkpoint`; by hand, FSDP's temporaries are 16.3 MB."""
STATE_MB = 3 * 4 * 3_448_064 / 8 / 1e6
"""An eighth of parameters and moments."""


def limited(
    sizes: tuple[int, ...], rows: Sequence[Row], config: gpt.GPTConfig = gpt.BENCHMARK,
    target: Path | None = None,
) -> tuple[list[Row], list[Goal]]:  # fmt: skip
    """Plans by bytes under the limit of what the leanest peer holds, and whether they keep it.

    Args:
        sizes: Of the mesh.
        rows: The peers'.
        config: The model.
        target: XLA's description of H100, to compile for it too.
    """
    held = [figures.memory_nbytes for row in rows for figures in (row.cpu, row.h100) if figures]
    limit = min(held)
    where = f"mesh {','.join(map(str, sizes))}"
    found, goals = [], []
    for asked in least_memory(limit, target):
        try:
            (row,) = our_rows(sizes, (asked,), config, _target(asked, target))
        except sbp.PlanError as error:
            goals.append(no_plan(where, limit, error))
        else:
            found.append(row)
            goals.append(kept(where, limit, row, asked.hardware))
    return found, goals


def least_memory(limit: int, target: Path | None) -> list[Ours]:
    """Plans under a limit, each for the backend that shall keep it.

    Args:
        limit: In bytes.
        target: XLA's description of H100, if it is to be compiled for.
    """
    here = Ours(f"{LEAST_MEMORY} CPU", "bytes", "cpu", memory_limit=limit)
    there = Ours(LEAST_MEMORY, "bytes", memory_limit=limit)
    return [here, there] if target else [here]


def kept(where: str, limit: int, row: Row, hardware: str) -> Goal:
    """Whether the program of a row, for the machine that it was planned for, keeps to a limit.

    Args:
        where: The mesh.
        limit: In bytes.
        row: Planned under it.
        hardware: The machine.
    """
    assert row.plan is not None, "peers have no limit"
    backend, figures = _program(row, hardware)
    return Goal(
        "G6", f"{where}, {backend}, limit {limit / 1e6:.1f} MB",
        f"{figures.memory_nbytes / 1e6:.1f} MB; planned {row.plan.memory_nbytes / 1e6:.1f}, "
        f"sends {figures.sent_nbytes / 1e6:.3f}",
        "<= the limit", figures.memory_nbytes <= limit,
    )  # fmt: skip


def no_plan(where: str, limit: int, error: sbp.PlanError) -> Goal:
    """No plan was found under a limit, although the leanest peer shows that there is one.

    Args:
        where: The mesh.
        limit: In bytes.
        error: What the planner said.
    """
    where = f"{where}, limit {limit / 1e6:.1f} MB"
    return Goal("G6", where, error.what, "<= the limit", False)


def recomputed(
    target: Path | None = None, config: gpt.GPTConfig = gpt.BENCHMARK
) -> tuple[list[Row], list[Goal]]:
    """The step whose loop computes activations again, with as little memory as there is a plan for.

    Args:
        target: XLA's description of H100, to compile for it too.
        config: The model.
    """
    config = dataclasses.replace(config, scan_layers=True, remat=True)
    where = f"mesh {','.join(map(str, MESH))}, remat + scan"
    rows, goals = [], []
    for asked in least_memory(round((MOST_TEMPORARY_MB + STATE_MB) * 1e6), target):
        try:
            (row,) = our_rows(MESH, (asked,), config, _target(asked, target))
        except sbp.PlanError as error:
            nearest = int(error.how[0].removeprefix("memory_limit="))
            asked = asked._replace(memory_limit=nearest)
            (row,) = our_rows(MESH, (asked,), config, _target(asked, target))
        rows.append(row)
        goals.append(little_else(where, row, asked.hardware))
    return rows, goals


def little_else(where: str, row: Row, hardware: str) -> Goal:
    """Whether the temporaries of a row's program are few.

    Args:
        where: The mesh.
        row: Of a step that computes activations again.
        hardware: The machine that it was planned for.
    """
    backend, figures = _program(row, hardware)
    temporary = figures.temporary_nbytes / 1e6
    return Goal(
        "G6", f"{where}, {backend}, {row.name}",
        f"temporaries {temporary:.1f} MB of {figures.memory_nbytes / 1e6:.1f}, "
        f"sends {figures.sent_nbytes / 1e6:.3f}",
        f"<= {MOST_TEMPORARY_MB} MB", temporary <= MOST_TEMPORARY_MB,
    )  # fmt: skip


def _program(row: Row, hardware: str) -> tuple[str, Figures]:
    return ("H100", row.h100) if hardware == "h100" and row.h100 else ("CPU", row.cpu)


def _target(asked: Ours, target: Path | None) -> Path | None:
    """What is planned for the CPU need not be compiled for another machine."""
    return target if asked.hardware == "h100" else None
