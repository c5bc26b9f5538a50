"""Our plans of the benchmark's train step beside the known strategies, on meshes of 8 devices.

In: a mesh, a model, a number of rounds. Out: a `Row` for each strategy, and their table. Strategies
in which every axis carries data are the same program on every mesh of 8; they are compiled once and
run beside the others on each.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jax.sharding import Mesh

import flowjax
import sbp
from models import gpt
from sbp.cost_model import BYTE_PRICE
from sbp.plan.explain import flop_share
from scripts import peers
from scripts.goals.figures import Figures, figures_of, seconds_by_round
from scripts.h100 import h100_mesh

BATCH = 16
AXES = ("dp", "tp")
COLUMNS = "{:<20}{:>8}{:>5}{:>5}{:>9}{:>8}{:>7}"
HEADINGS = ("strategy", "MB", "ops", "runs", "MB held", "ms", "ratio")
PLANNED = "{:>8}{:>11}{:>11}{:>7}{:>9}{:>7}{:>6}{:>9}"
PLANNED_HEADINGS = ("plan s", "cost", "bound", "gap", "MB plan", "flops", "unpl.", "MB pred.")
ON_H100 = "{:>9}{:>5}{:>5}{:>9}{:>6}"
ON_H100_HEADINGS = ("H100: MB", "ops", "runs", "MB held", "unpl.")


class Ours(NamedTuple):
    """One way to ask for a plan.

    Attributes:
        name: In the table.
        objective: What the plan is best at.
        hardware: What it is priced for.
        style: Words that are given; none are for `free`.
    """

    name: str
    objective: str
    hardware: str = "h100"
    style: str = "free"


FREE = (
    Ours("sbp bytes", "bytes"),
    Ours("sbp time", "time"),
    Ours("sbp time on CPU", "time", hardware="cpu"),
)
STYLED = (Ours("sbp DP words", "time", style="dp"), Ours("sbp FSDP words", "time", style="fsdp"))


class Row(NamedTuple):
    """A strategy on a mesh.

    Attributes:
        name: The strategy.
        cpu: Figures of the program compiled for simulated devices.
        run: That program, to be called.
        place: Brings arguments where it wants them.
        h100: Figures of the program compiled for H100, if it was.
        plan: Ours only.
        plan_seconds: Time to trace and plan.
        seconds: Of a step, by round.
    """

    name: str
    cpu: Figures
    run: Callable[..., Any]
    place: Callable[..., Any]
    h100: Figures | None = None
    plan: sbp.Plan | None = None
    plan_seconds: float = 0.0
    seconds: tuple[float, ...] = ()

    @property
    def is_ours(self) -> bool:
        """Whether it was planned."""
        return self.plan is not None


def peer_rows(
    sizes: tuple[int, ...],
    makers: Mapping[str, peers.Maker],
    config: gpt.GPTConfig = gpt.BENCHMARK,
    target: Path | None = None,
) -> list[Row]:
    """Compiles known strategies.

    Args:
        sizes: Of the mesh.
        makers: Name -> maker.
        config: The model.
        target: XLA's description of H100, to compile for it too.
    """
    _, structs = gpt.example(BATCH, config)
    rows = []
    for name, make in makers.items():
        peer = make(mesh_of(sizes), config)
        compiled = peer.lower(*structs).compile()
        h100 = None
        if target is not None:
            there = make(h100_mesh(_axes(sizes), target), config)
            h100 = figures_of(there.lower(*structs).compile(), there.mesh)
        rows.append(Row(name, figures_of(compiled, peer.mesh), compiled, peer.place, h100))
    return rows


def our_rows(
    sizes: tuple[int, ...],
    asked: Sequence[Ours],
    config: gpt.GPTConfig = gpt.BENCHMARK,
    target: Path | None = None,
) -> list[Row]:
    """Plans and compiles; for H100 the plan that was made for simulated devices.

    Args:
        sizes: Of the mesh.
        asked: What to plan.
        config: The model.
        target: XLA's description of H100, to compile for it too.
    """
    rows = []
    for ours in asked:
        mesh = mesh_of(sizes)
        began = time.perf_counter()
        step, structs = planned(ours, mesh, config)
        plan = step.plan(*structs)
        seconds = time.perf_counter() - began
        compiled = step.lower(*structs).compile()
        h100 = None
        if target is not None:
            there = h100_mesh(_axes(sizes), target)
            again, _ = planned(ours, there, config, plan)
            h100 = figures_of(again.lower(*structs).compile(), there, plan)
        figures = figures_of(compiled, mesh, plan)
        rows.append(Row(ours.name, figures, compiled, step.place, h100, plan, seconds))
    return rows


def planned(
    ours: Ours, mesh: Mesh, config: gpt.GPTConfig, plan: sbp.Plan | None = None
) -> tuple[sbp.Step, Any]:
    """A step, and the types of its arguments.

    Args:
        ours: What to ask for.
        mesh: The mesh.
        config: The model.
        plan: A plan to run as it is.
    """
    function, structs = gpt.example(BATCH, config)
    step = sbp.parallelize(
        function, mesh=mesh, hardware=ours.hardware, objective=ours.objective, donate_argnums=0,
        in_sbp=gpt.words(config, ours.style, mesh.axis_names), plan=plan,
    )  # fmt: skip
    return step, structs


def timed(rows: Sequence[Row], rounds: int, config: gpt.GPTConfig = gpt.BENCHMARK) -> list[Row]:
    """The rows with the time of a step, which all of them take in turn."""
    first = peers.initial_arguments(config, BATCH)
    times = seconds_by_round([row.run for row in rows], [row.place(*first) for row in rows], rounds)
    columns = zip(*times, strict=True)
    return [row._replace(seconds=tuple(column)) for row, column in zip(rows, columns, strict=True)]


def table(sizes: tuple[int, ...], rows: Sequence[Row]) -> str:
    """One line for each row; `ratio` is the least time over that of the fastest peer."""
    fastest = min(min(row.seconds) for row in rows if not row.is_ours)
    on_h100 = any(row.h100 for row in rows)
    lines = [
        f"mesh {','.join(map(str, sizes))}",
        COLUMNS.format(*HEADINGS)
        + PLANNED.format(*PLANNED_HEADINGS)
        + (ON_H100.format(*ON_H100_HEADINGS) if on_h100 else ""),
    ]
    for row in rows:
        sent, ops, runs, unplanned, held = row.cpu
        least = min(row.seconds)
        line = COLUMNS.format(
            row.name, f"{sent / 1e6:.3f}", ops, runs, f"{held / 1e6:.1f}",
            f"{least * 1e3:.0f}", f"{least / fastest:.2f}",
        ) + _planned_cells(row, unplanned)  # fmt: skip
        if row.h100:
            sent, ops, runs, unplanned, held = row.h100
            cells = f"{sent / 1e6:.3f}", ops, runs, f"{held / 1e6:.1f}"
            line += ON_H100.format(*cells, unplanned if row.is_ours else "")
        lines.append(line.rstrip())
    return "\n".join(lines)


def _planned_cells(row: Row, unplanned: int) -> str:
    plan = row.plan
    if plan is None:
        return PLANNED.format(*[""] * len(PLANNED_HEADINGS))
    if plan.objective == "time":
        cost, bound = (f"{x * 1e3:.3f} ms" for x in (plan.cost_seconds, plan.lower_bound_seconds))
    else:
        cost, bound = (f"{x / BYTE_PRICE / 1e6:.3f} MB" for x in (plan.cost, plan.lower_bound))
    return PLANNED.format(
        f"{row.plan_seconds:.2f}", cost, bound, f"{plan.gap:.2%}", f"{plan.wire_nbytes / 1e6:.3f}",
        f"{flop_share(plan):.3f}", unplanned, f"{plan.memory_nbytes / 1e6:.1f}",
    )  # fmt: skip


def mesh_of(sizes: tuple[int, ...]) -> Mesh:
    """A mesh of simulated devices."""
    return flowjax.make_mesh(_axes(sizes))


def _axes(sizes: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(AXES, sizes, strict=False))
