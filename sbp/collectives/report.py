"""`audit` and what it returns: the collectives as a table, and the verdict on the plan.

Comes in: a compiled program and its plan. Goes out: an `Audit`. This is the last stage of all, and
it trusts nothing but the compiled text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

from jax.sharding import AbstractMesh, Mesh

from sbp.collectives.comparison import Difference, PlannedCollective, compare, place_name
from sbp.collectives.hlo_text import parse_module
from sbp.collectives.program import COLLECTIVE_KINDS, Collective, find_collectives
from sbp.errors import SbpError

_HEADINGS = ("collective", "over", "dtype", "ops", "bytes", "times", "bytes per call", "source")
_LEFT = {"collective", "over", "dtype", "source"}


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
        return sum(row.nbytes * row.count for row in self.collectives if row.charged)

    def __str__(self) -> str:
        """One line per kind, place, dtype and loop count; the verdict below."""
        lines = [*_table(self.collectives), *_verdict(self)]
        for title in ("unplanned", "missing", "merged"):
            lines += [f"  {title}: {difference}" for difference in getattr(self, title)]
        return "\n".join(lines)


def audit(
    compiled: CompiledProgram | str,
    plan: PlannedProgram | None = None,
    *,
    mesh: Mesh | AbstractMesh | Mapping[str, int] | None = None,
) -> Audit:
    """Lists the collectives of a compiled program and compares them with a plan.

    Args:
        compiled: What `jax.jit(f).lower(...).compile()` returns, or its text.
        plan: The plan the program was lowered from. Rows that are no collective are ignored. All
            branches of a conditional are compared, so the plan has to list them all.
        mesh: The mesh, or its axis sizes, to name device groups by; default: the plan's.

    Raises:
        SbpError: The text is not compiled HLO, or it was compiled for another number of devices.
    """
    if not isinstance(compiled, str) and not hasattr(compiled, "as_text"):
        raise SbpError(
            f"audit is given a {type(compiled).__name__}",
            why="It reads compiled programs.",
            how="sbp.audit(step.lower(...).compile(), step.plan(...))",
        )
    text = compiled if isinstance(compiled, str) else compiled.as_text() or ""
    given = plan.mesh_sizes if mesh is None and plan is not None else mesh
    if given is not None and not isinstance(given, Mapping):
        given = given.shape
    sizes = given and {str(axis): int(size) for axis, size in given.items()}
    module = parse_module(text)
    found = find_collectives(module, sizes)
    if found and sizes is not None and prod(sizes.values()) != module.num_devices:
        raise SbpError(
            f"the program was compiled for {module.num_devices} devices, "
            f"the mesh has {prod(sizes.values())}",
            how="pass the mesh that the program was compiled for",
        )
    if plan is None:
        return Audit(found)
    rows = [row for row in plan.boxings if row.collective in COLLECTIVE_KINDS]
    return Audit(found, *compare(found, rows, plan.mesh_sizes), checked=True)


def _table(collectives: Sequence[Collective]) -> list[str]:
    """Equal collectives in one row, dearest first."""
    groups: dict[tuple[object, ...], list[Collective]] = {}
    for row in collectives:
        key = row.kind, place_name(row), row.dtype, row.count, row.count_known, row.charged
        groups.setdefault(key, []).append(row)

    def total(rows: Sequence[Collective]) -> float:
        return sum(row.nbytes * row.count for row in rows if row.charged)

    lines: list[tuple[str, ...]] = [_HEADINGS] if groups else []
    for rows in sorted(groups.values(), key=total, reverse=True):
        first = rows[0]
        sources = dict.fromkeys(row.source or row.op_name for row in rows)
        source = next(iter(sources))
        lines.append(
            (
                first.kind,
                place_name(first),
                first.dtype,
                str(len(rows)),
                f"{sum(row.nbytes for row in rows):,.0f}",
                str(first.count) + "?" * (not first.count_known),
                f"{total(rows):,.0f}" if first.charged else "other branch",
                "/".join(source.split("/")[-2:]) + ", ..." * (len(sources) > 1),
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if heading in _LEFT else cell.rjust(width)
            for cell, width, heading in zip(line, widths, _HEADINGS, strict=True)
        ).rstrip()
        for line in lines
    ]


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
