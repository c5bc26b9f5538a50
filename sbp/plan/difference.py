"""Two plans side by side: what the second does differently.

Comes in: two plans, of one function and mesh or of several. Goes out: text, a line a difference,
none wider than those of `explain`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sbp.algebra import NdSbp
from sbp.boxing import format_nbytes
from sbp.errors import SbpError
from sbp.plan.explain import MAX_COLUMNS, format_apart, format_seconds, format_wire, shortened
from sbp.plan.rows import BoxingRow

if TYPE_CHECKING:
    from sbp.plan.record import Plan

NO_DIFFERENCE = "no difference"
Ends = Sequence[tuple[str, NdSbp]]


def not_a_plan(other: Any) -> SbpError:
    """What to say where something else stands for the other plan."""
    return SbpError(
        f"diff was given {other!r}, which is not a plan",
        why="It compares two plans.",
        how=["plan.diff(step.plan(...))", "plan.diff(sbp.Plan.load(path))"],
    )


def diff(plan: "Plan", other: "Plan") -> str:
    """What `other` does differently; see `Plan.diff`."""
    lines = [*_frames(plan, other), *_sums(plan, other)]
    lines += _ends("argument", plan.arguments, other.arguments)
    lines += _ends("result", plan.results, other.results)
    lines += _boxings(plan.boxings, other.boxings)
    return "\n".join(shortened(line, MAX_COLUMNS) for line in lines) or NO_DIFFERENCE


def _frames(plan: "Plan", other: "Plan") -> Iterator[str]:
    if plan.name != other.name:
        yield f"function: {plan.name} -> {other.name}"
    elif plan.fingerprint != other.fingerprint:
        yield f"function: {plan.name} has other code or other shapes"
    meshes = tuple(
        ", ".join(f"{axis}={size}" for axis, size in p.mesh_sizes.items()) for p in (plan, other)
    )
    for label, old, new in (
        ("mesh", *meshes),
        ("hardware", plan.cluster, other.cluster),
        ("objective", plan.objective, other.objective),
    ):
        if old != new:
            yield f"{label}: {old} -> {new}"


def _sums(plan: "Plan", other: "Plan") -> Iterator[str]:
    for label, old, new in (
        ("time", format_seconds(plan.cost_seconds), format_seconds(other.cost_seconds)),
        ("wire/device", format_wire(plan.wire_nbytes), format_wire(other.wire_nbytes)),
        ("flops/device", f"{plan.flops_per_device:.4g}", f"{other.flops_per_device:.4g}"),
        ("memory", *format_apart(plan.memory_nbytes, other.memory_nbytes)),
    ):
        if old != new:
            yield f"{label}: {old} -> {new}"


def _ends(kind: str, old: Ends, new: Ends) -> Iterator[str]:
    before, after = dict(old), dict(new)
    for path, words in before.items():
        name = f"{kind} {path}" if path else f"the {kind}"
        if path not in after:
            yield f"{name}: {words} -> not there"
        elif words != after[path]:
            yield f"{name}: {words} -> {after[path]}"
    for path, words in after.items():
        if path not in before:
            yield f"{kind} {path}: not there -> {words}" if path else f"the {kind}: {words}"


def _boxings(old: Sequence[BoxingRow], new: Sequence[BoxingRow]) -> Iterator[str]:
    before, after = _described(old), _described(new)
    for text, nbytes in before.items():
        if text not in after:
            yield f"- {text}, {format_nbytes(nbytes)}"
    for text, nbytes in after.items():
        if text not in before:
            yield f"+ {text}, {format_nbytes(nbytes)}"
        elif nbytes != before[text]:
            yield "{}: {} -> {}".format(text, *format_apart(before[text], nbytes))


def _described(rows: Sequence[BoxingRow]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        if not row.is_local:
            axes = ", ".join(row.axes)
            text = f"{row.collective} over {axes} of {row.value_type} at {row.source}"
            found[text] = found.get(text, 0) + row.nbytes * row.count
    return found
