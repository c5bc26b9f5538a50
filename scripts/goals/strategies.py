"""Our plans of the benchmark's train step beside the known strategies, on meshes of 8 devices.

In: a mesh, a model, a number of rounds. Out: a `Row` for each strategy, and their table. Strategies
in which every axis carries data are the same program on every mesh of 8; they are compiled once and
run beside the others on each.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
FIRST_ROUNDS = 3
WITHIN_REACH = 1.1
"""Of the least time of the first rounds; one and the same program differs by 3 % on quiet cores."""
FEWEST_IN_REACH = 3
"""Of ours and of the peers': on loaded cores one lucky round makes the others look slow."""
AXES = ("dp", "tp")
COLUMNS = "{:<22}{:>7}{:>5}{:>5}{:>9}{:>7}{:>7}{:>7}"
HEADINGS = ("strategy", "MB", "ops", "runs", "MB held", "ms", "ratio", "rounds")
PLANNED = "{:>8}{:>11}{:>11}{:>7}{:>9}{:>7}{:>6}{:>9}"
PLANNED_HEADINGS = ("plan s", "cost", "bound", "gap", "MB plan", "flops", "unpl.", "MB pred.")
ON_H100 = "{:>9}{:>5}{:>5}{:>9}{:>6}"
ON_H100_HEADINGS = ("H100: MB", "ops", "runs", "MB held", "unpl.")


UNOPTIMIZED: dict[str, Any] = {"xla_backend_optimization_level": 0}
"""Code that is generated sooner, of the same operations and buffers."""


class Ours(NamedTuple):
    """One way to ask for a plan.

    Attributes:
        name: In the table.
        objective: What the plan is best at.
        hardware: What it is priced for.
        style: Words that are given; none are for `free`; `zero1` are those of `dp` for parameters
            and those of `fsdp` for the optimizer's moments.
        memory_limit: Most bytes a device may hold, by the plan; None sets no limit.
    """

    name: str
    objective: str
    hardware: str = "h100"
    style: str = "free"
    memory_limit: int | None = None


FREE = (
    Ours("sbp bytes", "bytes"),
    Ours("sbp time", "time"),
    Ours("sbp time on CPU", "time", hardware="cpu"),
)
STYLED = (
    Ours("sbp DP words", "time", style="dp"),
    Ours("sbp ZeRO-1 words", "time", style="zero1"),
    Ours("sbp FSDP words", "time", style="fsdp"),
)


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
    here = [make(mesh_of(sizes), config) for make in makers.values()]
    there = [] if target is None else [
        make(h100_mesh(axes_of(sizes), target), config) for make in makers.values()
    ]  # fmt: skip
    built = _compiled([(peer.lower(*structs), peer.mesh, None) for peer in (*here, *there)])
    rows = [
        Row(name, figures, program, peer.place)
        for name, peer, (program, figures) in zip(makers, here, built, strict=False)
    ]
    return _with_h100(rows, built[len(here) :])


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
    mesh = mesh_of(sizes)
    lowered, steps, plans, seconds = [], [], [], []
    for ours in asked:
        began = time.perf_counter()
        step, structs = planned(ours, mesh, config)
        plan = step.plan(*structs)
        seconds.append(time.perf_counter() - began)
        lowered.append((step.lower(*structs), mesh, plan))
        steps.append(step)
        plans.append(plan)
    if target is not None:
        there = h100_mesh(axes_of(sizes), target)
        for ours, plan in zip(asked, plans, strict=True):
            step, structs = planned(ours, there, config, plan)
            lowered.append((step.lower(*structs), there, plan))
    built = _compiled(lowered)
    rows = [
        Row(ours.name, figures, program, step.place, None, plan, spent)
        for ours, step, plan, spent, (program, figures) in zip(
            asked, steps, plans, seconds, built, strict=False
        )
    ]
    return _with_h100(rows, built[len(asked) :])


def _compiled(
    lowered: Sequence[tuple[Any, Mesh, sbp.Plan | None]],
) -> list[tuple[Any, Figures]]:
    """Compiles several programs at a time, as XLA lets go of Python's lock, and audits them."""

    def compiled(each: tuple[Any, Mesh, sbp.Plan | None]) -> Any:
        # What is not run need not be fast; what it sends and holds is the same.
        runs = each[1].devices.flat[0].platform == "cpu"
        return each[0].compile(None if runs else UNOPTIMIZED)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        programs = list(pool.map(compiled, lowered))
    return [
        (program, figures_of(program, mesh, plan))
        for program, (_, mesh, plan) in zip(programs, lowered, strict=True)
    ]


def _with_h100(rows: list[Row], built: Sequence[tuple[Any, Figures]]) -> list[Row]:
    if not built:
        return rows
    return [row._replace(h100=figures) for row, (_, figures) in zip(rows, built, strict=True)]


def planned(
    ours: Ours, mesh: Mesh, config: gpt.GPTConfig, plan: sbp.Plan | None = None,
    batch: int = BATCH,
) -> tuple[sbp.Step, Any]:  # fmt: skip
    """A step, and the types of its arguments.

    Args:
        ours: What to ask for.
        mesh: The mesh.
        config: The model.
        plan: A plan to run as it is.
        batch: Sequences.
    """
    function, structs = gpt.example(batch, config)
    step = sbp.parallelize(
        function, mesh=mesh, hardware=ours.hardware, objective=ours.objective, donate_argnums=0,
        in_sbp=_words(ours.style, mesh, config), memory_limit=ours.memory_limit, plan=plan,
    )  # fmt: skip
    return step, structs


def _words(style: str, mesh: Mesh, config: gpt.GPTConfig) -> dict[str, str]:
    if style != "zero1":
        return gpt.words(config, style, mesh.axis_names)
    whole, split = (gpt.words(config, each, mesh.axis_names) for each in ("dp", "fsdp"))
    return {
        path.replace("*.", f"state.{part}", 1): asked
        for part, words in (("params.", whole), ("moments.*.", split))
        for path, asked in words.items()
    }


def timed(
    rows: Sequence[Row], rounds: int, config: gpt.GPTConfig = gpt.BENCHMARK,
    always: Sequence[str] = (),
) -> list[Row]:  # fmt: skip
    """The rows with the time of a step, which all of them take in turn.

    After a few rounds only those go on that may still be the fastest of ours or of the peers'.

    Args:
        rows: All strategies on a mesh.
        rounds: How many those run that go on.
        config: The model.
        always: Strategies that run in all rounds.
    """
    first = peers.initial_arguments(config, BATCH)

    def run(some: Sequence[Row], rounds: int) -> list[Row]:
        arguments = [row.place(*first) for row in some]
        times = seconds_by_round([row.run for row in some], arguments, rounds)
        columns = zip(*times, strict=True)
        return [
            row._replace(seconds=(*row.seconds, *column))
            for row, column in zip(some, columns, strict=True)
        ]

    rows = run(rows, min(rounds, FIRST_ROUNDS))
    if rounds <= FIRST_ROUNDS:
        return rows
    going_on = [row for row in rows if row.name in always or may_be_fastest(row, rows)]
    again = {row.name: row for row in run(going_on, rounds - FIRST_ROUNDS)}
    return [again.get(row.name, row) for row in rows]


def may_be_fastest(row: Row, rows: Sequence[Row]) -> bool:
    """Whether a row is within reach of the fastest of its kind, ours or the peers'.

    Args:
        row: One of the rows.
        rows: With the times of some rounds.
    """
    least = sorted(min(other.seconds) for other in rows if other.is_ours == row.is_ours)
    reach = max(WITHIN_REACH * least[0], *least[:FEWEST_IN_REACH])
    return min(row.seconds) <= reach


def table(sizes: tuple[int, ...], rows: Sequence[Row]) -> str:
    """One line for each row; `ratio` is the least time over that of the fastest peer.

    Args:
        sizes: Of the mesh.
        rows: With times, where they were run.
    """
    fastest = min((min(row.seconds) for row in rows if row.seconds and not row.is_ours), default=0)
    on_h100 = any(row.h100 for row in rows)
    lines = [
        f"mesh {','.join(map(str, sizes))}",
        COLUMNS.format(*HEADINGS)
        + PLANNED.format(*PLANNED_HEADINGS)
        + (ON_H100.format(*ON_H100_HEADINGS) if on_h100 else ""),
    ]
    for row in rows:
        line = COLUMNS.format(row.name, *_cells(row.cpu), *_time_cells(row, fastest))
        line += _planned_cells(row)
        if row.h100:
            line += ON_H100.format(*_cells(row.h100), row.h100.num_unplanned if row.plan else "")
        lines.append(line.rstrip())
    return "\n".join(lines)


def _cells(figures: Figures) -> tuple[str, int, int, str]:
    return (
        f"{figures.sent_nbytes / 1e6:.3f}", figures.num_collectives, figures.num_executed,
        f"{figures.memory_nbytes / 1e6:.1f}",
    )  # fmt: skip


def _time_cells(row: Row, fastest: float) -> tuple[str, str, int | str]:
    if not row.seconds:
        return "", "", ""
    least = min(row.seconds)
    return f"{least * 1e3:.0f}", f"{least / fastest:.2f}", len(row.seconds)


def _planned_cells(row: Row) -> str:
    plan = row.plan
    if plan is None:
        return PLANNED.format(*[""] * len(PLANNED_HEADINGS))
    if plan.objective == "time":
        cost, bound = (f"{x * 1e3:.3f} ms" for x in (plan.cost_seconds, plan.lower_bound_seconds))
    else:
        cost, bound = (f"{x / BYTE_PRICE / 1e6:.3f} MB" for x in (plan.cost, plan.lower_bound))
    return PLANNED.format(
        f"{row.plan_seconds:.2f}", cost, bound, f"{plan.gap:.2%}", f"{plan.wire_nbytes / 1e6:.3f}",
        f"{flop_share(plan):.3f}", row.cpu.num_unplanned, f"{plan.memory_nbytes / 1e6:.1f}",
    )  # fmt: skip


def mesh_of(sizes: tuple[int, ...]) -> Mesh:
    """A mesh of simulated devices."""
    return flowjax.make_mesh(axes_of(sizes))


def axes_of(sizes: tuple[int, ...]) -> dict[str, int]:
    """Axis name -> size."""
    return dict(zip(AXES, sizes, strict=False))
