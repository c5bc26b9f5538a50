"""`audit` and what it returns: the collectives as a table, and the verdict on the plan.

Comes in: a compiled program and its plan. Goes out: an `Audit`. This is the last stage of all, and
it trusts nothing but the compiled text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

from jax.sharding import AbstractMesh, Mesh

from sbp.axis_sizes import axis_sizes, format_axes
from sbp.collectives.comparison import (
    Difference,
    PlannedCollective,
    compare,
    place_name,
    short_source,
)
from sbp.collectives.hlo_text import HloModule, parse_module
from sbp.collectives.program import COLLECTIVE_KINDS, Collective, find_collectives
from sbp.errors import SbpError

_HEADINGS = ("collective", "over", "dtype", "ops", "bytes", "times", "bytes per call", "source")
_LEFT = {"plan", "collective", "over", "dtype", "source"}


class CompiledProgram(Protocol):
    """Anything with the `as_text` of jax.stages.Compiled."""

    def as_text(self) -> str | None:
        """The optimised HLO."""
        ...


class PlannedProgram(Protocol):
    """What an audit needs of a plan."""

    @property
    def boxings(self) -> Sequence[PlannedCollective]:
        """The rows of the plan, local steps among them."""
        ...

    @property
    def mesh_sizes(self) -> Mapping[str, int]:
        """Axis name -> size, in mesh order."""
        ...


@dataclass(frozen=True, slots=True)
class Audit:
    """The collectives of a compiled program, and how they differ from the plan.

    Attributes:
        collectives: Every collective, callees in place of their calls.
        unplanned: Where the program moves more than the plan says. Empty without a plan.
        missing: Where the plan has communication and the program has none.
        merged: Where the program does what the plan says with fewer or smaller operations.
        checked: Whether there was a plan.
    """

    collectives: tuple[Collective, ...]
    unplanned: tuple[Difference, ...] = ()
    missing: tuple[Difference, ...] = ()
    merged: tuple[Difference, ...] = ()
    checked: bool = False

    @property
    def total_nbytes(self) -> float:
        """Bytes the busiest device sends in one call, by the ring formulas."""
        return _charged_nbytes(self.collectives)

    def __str__(self) -> str:
        """One line per kind, place, dtype and loop count, unplanned first; the verdict below."""
        lines = [*_table(self), *_verdict(self)]
        lines += [f"  unplanned: {found}{_at(found.sources)}" for found in self.unplanned]
        for title in ("missing", "merged"):
            lines += [f"  {title}: {difference}" for difference in getattr(self, title)]
        return "\n".join(lines)


def audit(
    compiled: CompiledProgram | str,
    plan: PlannedProgram | None = None,
    *,
    mesh: Mesh | AbstractMesh | Mapping[str, int] | str | None = None,
) -> Audit:
    """Lists the collectives of a compiled program and compares them with a plan.

    Args:
        compiled: What `jax.jit(f).lower(...).compile()` returns, or its text.
        plan: The plan the program was lowered from. Rows that are no collective are ignored. All
            branches of a conditional are compared, so the plan has to list them all.
        mesh: The mesh, its axis sizes or their text (`dp=2,tp=4`), to name device groups by; the
            plan's by default.

    Raises:
        SbpError: The text is not compiled HLO, `plan` or `mesh` is none, or the program was
            compiled for another number of devices, or `mesh` is not that of the plan.
    """
    if not isinstance(compiled, str) and not hasattr(compiled, "as_text"):
        raise SbpError(
            f"audit is given a {type(compiled).__name__}",
            why="It reads compiled programs.",
            how="sbp.audit(step.lower(...).compile(), step.plan(...))",
        )
    text = compiled if isinstance(compiled, str) else compiled.as_text() or ""
    if plan is not None and not (hasattr(plan, "boxings") and hasattr(plan, "mesh_sizes")):
        raise SbpError(
            f"audit is given {plan!r} as a plan",
            why="It is an sbp.Plan: from step.plan(...), or read from a file.",
            how=["sbp.audit(compiled, sbp.Plan.load(path))", "sbp.audit(compiled, mesh=mesh)"],
        )
    sizes = None if mesh is None else axis_sizes(mesh, "audit")
    module = parse_module(text)
    if plan is not None:
        _check_devices(module, plan.mesh_sizes, "the plan's mesh")
        sizes = dict(plan.mesh_sizes) if sizes is None else sizes
    if sizes is not None:
        _check_devices(module, sizes, "the mesh")
        if plan is not None:
            _check_same_mesh(sizes, plan.mesh_sizes)
    try:
        found = find_collectives(module, sizes)
    except KeyError as error:
        raise SbpError(
            f"this text is not all of a compiled HLO module: it has no {error.args[0]!r}",
            why="Its instructions name one that is not there.",
            how="write the whole text again: compiled.as_text()",
        ) from error
    if plan is None:
        return Audit(found)
    rows = [row for row in plan.boxings if row.collective in COLLECTIVE_KINDS]
    return Audit(found, *compare(found, rows, plan.mesh_sizes), checked=True)


def _check_devices(module: HloModule, sizes: Mapping[str, int], whose: str) -> None:
    needed, found = prod(sizes.values()), module.num_devices
    if needed != found:
        devices = f"{found} device{'s' * (found != 1)}"
        raise SbpError(
            f"the program was compiled for {devices}, {whose} has {needed}",
            why="The header of a program says for how many it is: num_partitions=, replica_count=.",
            how="pass the mesh, and the plan, that the program was compiled for",
        )


def _check_same_mesh(given: Mapping[str, int], planned: Mapping[str, int]) -> None:
    """An axis of one device names no device groups, so that it may be in one of them only."""
    one, other = ([(a, n) for a, n in sizes.items() if n > 1] for sizes in (given, planned))
    if one != other:
        raise SbpError(
            f"mesh={format_axes(given)!r} contradicts the plan, whose mesh is "
            f"{format_axes(planned)!r}",
            where="audit",
            why="Program and plan are compared axis by axis, so that both are of one mesh.",
            how=["leave out mesh= and name groups by the plan's mesh", "the plan of this mesh"],
        )


def _table(audited: Audit) -> list[str]:
    """Equal collectives in one row: what is not planned first, then the dearest."""
    groups: dict[tuple[object, ...], list[Collective]] = {}
    for row in audited.collectives:
        key = row.kind, place_name(row), row.dtype, row.count, row.count_known, row.charged
        groups.setdefault(key, []).append(row)
    unplanned = {(found.kind, found.where, found.count) for found in audited.unplanned}

    def is_planned(rows: Sequence[Collective]) -> bool:
        return (rows[0].kind, place_name(rows[0]), rows[0].count) not in unplanned

    ranked = sorted(groups.values(), key=lambda rows: (is_planned(rows), -_charged_nbytes(rows)))
    headings = ("plan",) * audited.checked + _HEADINGS
    lines: list[tuple[str, ...]] = [headings] if groups else []
    for rows in ranked:
        status = "planned" if is_planned(rows) else "unplanned"
        lines.append((status,) * audited.checked + _cells(rows))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if heading in _LEFT else cell.rjust(width)
            for cell, width, heading in zip(line, widths, headings, strict=True)
        ).rstrip()
        for line in lines
    ]


def _at(sources: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(map(short_source, sources[:most])) + ", ..." * (len(sources) > most)
    return f", at {shown}" if sources else ""


def _charged_nbytes(rows: Sequence[Collective]) -> float:
    return sum(row.nbytes * row.count for row in rows if row.charged)


def _cells(rows: Sequence[Collective]) -> tuple[str, ...]:
    first = rows[0]
    sources = dict.fromkeys(row.source or row.op_name for row in rows)
    return (
        first.kind,
        place_name(first),
        first.dtype,
        str(len(rows)),
        f"{sum(row.nbytes for row in rows):,.0f}",
        str(first.count) + "?" * (not first.count_known),
        f"{_charged_nbytes(rows):,.0f}" if first.charged else "other branch",
        short_source(next(iter(sources))) + ", ..." * (len(sources) > 1),
    )


def _verdict(audited: Audit) -> list[str]:
    number = len(audited.collectives)
    lines = [
        f"{number} collective{'s' * (number != 1)}, "
        f"{audited.total_nbytes:,.0f} bytes per device and call"
    ]
    if not all(row.count_known for row in audited.collectives):
        lines[0] += "; what runs an unknown number of times (?) counts once"
    if audited.checked:
        counts = len(audited.unplanned), len(audited.missing), len(audited.merged)
        lines.append("against the plan: {} unplanned, {} missing, {} merged".format(*counts))
    return lines
