"""A plan for people: a summary, then what is computed and sent, line by line.

Comes in: a `Plan`. Goes out: text, or a piece of HTML for notebooks.
"""

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sbp.boxing import format_nbytes
from sbp.plan.rows import BoxingRow

if TYPE_CHECKING:
    from sbp.plan.record import Plan


def format_seconds(seconds: float) -> str:
    """A time for reading: `12.3 us`, `4.56 ms`, `1.2 s`."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns" if seconds else "0 s"


def explain(plan: "Plan", *, top: int | None = None) -> str:
    """The plan as text; see `Plan.explain`."""
    parts = [summary(plan), "", _boundary(plan)]
    if plan.ties:
        pairs = ", ".join(f"{r or 'the result'} = {a}" for r, a in plan.ties[:4])
        more = f" and {len(plan.ties) - 4} more" if len(plan.ties) > 4 else ""
        parts += ["", f"tied, result = argument: {pairs}{more}"]
    parts += ["", _communication(plan, top), "", _equations(plan, top)]
    if plan.notes:
        parts += ["", *(f"note: {note}" for note in plan.notes)]
    return "\n".join(parts)


def summary(plan: "Plan") -> str:
    """The head of a plan; see `Plan.summary`."""
    mesh = ", ".join(f"{axis}={size}" for axis, size in plan.mesh_sizes.items())
    sent = [row for row in plan.boxings if not row.is_local]
    num_devices = 1
    for size in plan.mesh_sizes.values():
        num_devices *= size
    share = plan.flops_per_device * num_devices / plan.total_flops if plan.total_flops else 1.0
    if plan.objective == "time":
        bound = f"no plan takes less than {format_seconds(plan.lower_bound_seconds)}"
    else:
        bound = "wire bytes first, see Plan.cost"
    return "\n".join(
        [
            f"{plan.name} on mesh {mesh} ({plan.cluster}), objective {plan.objective}",
            f"  time    {format_seconds(plan.cost_seconds)} a call: "
            f"{format_seconds(plan.compute_seconds)} compute, "
            f"{format_seconds(plan.communication_seconds)} boxing, {_overlap(plan.overlap)}",
            f"  proof   gap {plan.gap:.2%}: {bound} ({plan.method})",
            f"  wire    {_wire(plan.wire_nbytes)}/device in "
            f"{sum(row.count for row in sent)} collectives",
            f"  flops   {plan.flops_per_device:.4g}/device, {share:.3f} of an even share",
            f"  memory  {format_nbytes(plan.memory_nbytes)}/device at the peak, predicted",
        ]
    )


def _overlap(share: float) -> str:
    if not share:
        return "nothing overlapped"
    return f"{share:.0%} of gradient reductions and weight gathers assumed hidden"


def _wire(nbytes: int) -> str:
    return f"{nbytes / 1e6:.3f} MB" if nbytes >= 10_000 else f"{nbytes} B"


def _boundary(plan: "Plan") -> str:
    rows = [("argument", path, str(words)) for path, words in plan.arguments]
    rows += [("result", path, str(words)) for path, words in plan.results]
    return table(("", "path", "words"), rows)


def _communication(plan: "Plan", top: int | None) -> str:
    rows = [row for row in plan.boxings if not row.is_local]
    shown = _dearest(rows, top, lambda row: row.seconds * row.count)
    lines = [
        (
            row.source,
            row.value_type,
            f"{_words(row.src)} -> {_words(row.dst)}",
            row.collective,
            ", ".join(row.axes),
            format_nbytes(row.nbytes),
            f"x{row.count}",
            format_seconds(row.seconds * row.count),
        )
        for row in shown
    ]
    headings = ("boxing at", "array", "words", "collective", "axes", "/device", "times", "time")
    return table(headings, lines) if lines else "no communication"


def _words(text: str) -> str:
    return text[1:-1]


def _equations(plan: "Plan", top: int | None) -> str:
    shown = _dearest(plan.equations, top, lambda row: row.seconds * row.count)
    lines = [
        (
            row.source,
            row.primitive,
            "  ".join(row.operands),
            "  ".join(row.results),
            f"x{row.count}",
            format_seconds(row.seconds * row.count),
        )
        for row in shown
    ]
    return table(("equation at", "primitive", "operands", "results", "times", "time"), lines)


def _dearest(rows: Sequence, top: int | None, price) -> Sequence:
    if top is None or len(rows) <= top:
        return rows
    kept = set(sorted(range(len(rows)), key=lambda k: -price(rows[k]))[:top])
    return [row for k, row in enumerate(rows) if k in kept]


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns set in line, without trailing blanks."""
    lines = [tuple(headings), *map(tuple, rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(headings))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def diff(plan: "Plan", other: "Plan") -> str:
    """What `other` does differently; see `Plan.diff`."""
    lines = []
    for label, old, new in (
        ("time", format_seconds(plan.cost_seconds), format_seconds(other.cost_seconds)),
        ("wire/device", _wire(plan.wire_nbytes), _wire(other.wire_nbytes)),
        ("memory", format_nbytes(plan.memory_nbytes), format_nbytes(other.memory_nbytes)),
    ):
        if old != new:
            lines.append(f"{label}: {old} -> {new}")
    for kind, old_rows, new_rows in (
        ("argument", plan.arguments, other.arguments),
        ("result", plan.results, other.results),
    ):
        new_words = dict(new_rows)
        for path, words in old_rows:
            if path in new_words and words != new_words[path]:
                name = f"{kind} {path}" if path else f"the {kind}"
                lines.append(f"{name}: {words} -> {new_words[path]}")
    lines += _diff_boxings(plan.boxings, other.boxings)
    return "\n".join(lines) if lines else "no difference"


def _diff_boxings(old: Sequence[BoxingRow], new: Sequence[BoxingRow]) -> list[str]:
    def described(rows: Sequence[BoxingRow]) -> dict[str, int]:
        found: dict[str, int] = {}
        for row in rows:
            if not row.is_local:
                axes = ", ".join(row.axes)
                text = f"{row.collective} over {axes} of {row.value_type} at {row.source}"
                found[text] = found.get(text, 0) + row.nbytes * row.count
        return found

    before, after = described(old), described(new)
    lines = [f"- {text}, {format_nbytes(n)}" for text, n in before.items() if text not in after]
    return lines + [
        f"+ {text}, {format_nbytes(n)}" for text, n in after.items() if text not in before
    ]


def to_html(plan: "Plan") -> str:
    """The plan for a notebook: the text, as it is."""
    return f"<pre>{html.escape(explain(plan, top=40))}</pre>"
