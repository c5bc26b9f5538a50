"""A plan as text: a summary, the words at the ends, then what is computed and sent, line by line.

Comes in: a `Plan`. Goes out: text of at most 200 columns.
"""

import itertools
import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from sbp.boxing import format_nbytes
from sbp.cost_model import BYTE_PRICE, EXCESS_FLOP_BYTES
from sbp.plan.lines import Line, abbreviated, matches, program_lines, select

if TYPE_CHECKING:
    from sbp.plan.record import Plan


MAX_TIES = 90
"""Columns of the list of ties."""

INDENT = 10
"""Of the lines of the summary that split a figure into parts."""

MAX_COLUMNS = 200
"""Of a line; what is longer is shortened, notes go on on the next line."""


def format_seconds(seconds: float) -> str:
    """A time for reading: `12.3 us`, `4.56 ms`, `1.2 s`."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns" if seconds else "0 s"


def format_apart(one: int, other: int) -> tuple[str, str]:
    """Two sizes in bytes for reading: exactly, where rounding would make them equal."""
    texts = format_nbytes(one), format_nbytes(other)
    return (f"{one:,} B", f"{other:,} B") if one != other and texts[0] == texts[1] else texts


def shortened(text: str, width: int, *, start: float = 1 / 3) -> str:
    """A text of at most so many columns: its start, as a share of them, then its end."""
    if len(text) <= width:
        return text
    head = int((width - 3) * start)
    return f"{text[:head]}...{text[len(text) - (width - 3 - head) :]}"


def explain(plan: "Plan", *, top: int | None = None, where: str | None = None) -> str:
    """The plan as text; see `Plan.explain`."""
    program = program_lines(plan)
    lines = select(plan, program, top, where)
    parts = [summary(plan)]
    if boundary := _boundary(plan, where):
        parts += ["", boundary]
    if plan.ties and where is None:
        pairs = [f"{result or 'the result'} = {argument}" for result, argument in plan.ties]
        many = "results have the words of the arguments they are tied to"
        what = f"{len(pairs)} {many}" if len(pairs) > 1 else "tied to an argument, with its words"
        parts += ["", shortened(f"{what}: {abbreviated(pairs, MAX_TIES, ', ')}", MAX_COLUMNS)]
    if lines:
        parts += ["", table(HEADINGS, map(cells, lines))]
    if len(lines) < len(program):
        shown = sum(line.seconds for line in lines)
        share = shown / plan.cost_seconds if plan.cost_seconds else 1.0
        parts += ["", f"{len(lines)} of {len(program)} lines, {share:.0%} of the time"]
    if plan.notes:
        notes = (textwrap.wrap(f"note: {note}", MAX_COLUMNS) for note in plan.notes)
        parts += ["", *itertools.chain.from_iterable(notes)]
    return "\n".join(parts)


def summary(plan: "Plan") -> str:
    """The head of a plan; see `Plan.summary`."""
    mesh = ", ".join(f"{axis}={size}" for axis, size in plan.mesh_sizes.items())
    sent = [row for row in plan.boxings if not row.is_local]
    return "\n".join(
        shortened(line, MAX_COLUMNS)
        for line in [
            f"{plan.name} on mesh {mesh} ({plan.cluster}), objective {plan.objective}",
            f"  time    {format_seconds(plan.cost_seconds)} a call: "
            f"{format_seconds(plan.compute_seconds)} compute, "
            f"{format_seconds(plan.communication_seconds)} boxing, {overlap_text(plan)}",
            *(" " * INDENT + line for line in _time_parts(plan)),
            f"  proof   {_proof(plan)} ({plan.method})",
            f"  wire    {format_wire(plan.wire_nbytes)}/device in "
            f"{sum(row.count for row in sent)} collectives",
            f"  flops   {plan.flops_per_device:.4g}/device, "
            f"{flop_share(plan):.3f} of an even share",
            f"  memory  {format_nbytes(plan.memory_nbytes)}/device at the peak"
            f"{plan.memory_source and f', at {plan.memory_source}'}, predicted",
            *(" " * INDENT + line for line in _memory_parts(plan)),
        ]
    )


def overlap_text(plan: "Plan") -> str:
    """What is assumed to happen at the same time."""
    if not plan.overlap:
        return "nothing overlapped"
    return f"{plan.overlap:.0%} of gradient reductions and weight gathers assumed hidden"


def gap_text(plan: "Plan") -> str:
    """How far the plan may be from the best, where anything is proven of the best."""
    return f"{plan.gap:.2%}" if plan.gap < 1 else "not proven"


def _proof(plan: "Plan") -> str:
    gap = gap_text(plan)
    return f"gap {gap}: {bound_text(plan)}" if plan.gap < 1 else f"{gap}: {bound_text(plan)}"


def bound_text(plan: "Plan") -> str:
    """What is proven of other plans."""
    if plan.gap >= 1:
        return "no lower bound is known"
    if plan.objective == "time":
        return f"no plan takes less than {format_seconds(plan.lower_bound_seconds)}"
    least = format_wire(math.floor(plan.lower_bound / BYTE_PRICE))
    twice = f", {EXCESS_FLOP_BYTES} B an operation done twice" if plan.objective == "bytes" else ""
    return f"no plan sends less than {least}{twice}"


def flop_share(plan: "Plan") -> float:
    """Operations of a device, relative to an even share of those of the one-device function."""
    num_devices = 1
    for size in plan.mesh_sizes.values():
        num_devices *= size
    return plan.flops_per_device * num_devices / plan.total_flops if plan.total_flops else 1.0


def format_wire(nbytes: int) -> str:
    """Bytes sent in a call, in powers of ten as links are rated."""
    return f"{nbytes / 1e6:.3f} MB" if nbytes >= 10_000 else f"{nbytes} B"


def time_parts(plan: "Plan") -> dict[str, tuple[float, int, int]]:
    """What the time of a call goes to: compute, then each kind of collective and its axes.

    Returns:
        Seconds, bytes sent by a device, and how often it happens, by name; dearest first.
    """
    found: dict[str, tuple[float, int, int]] = {}
    for row in plan.boxings:
        name = f"{row.collective} on {', '.join(row.axes)}"
        if row.is_local:
            name = "words changed in place"
        seconds, nbytes, count = found.get(name, (0.0, 0, 0))
        total = seconds + row.seconds * row.count
        found[name] = (total, nbytes + row.nbytes * row.count, count + row.count)
    count = sum(row.count for row in plan.equations)
    ordered = sorted(found.items(), key=lambda part: -part[1][0])
    return {"compute": (plan.compute_seconds, 0, count), **dict(ordered)}


def _time_parts(plan: "Plan") -> list[str]:
    rows: list[tuple[str, ...]] = []
    for name, (seconds, nbytes, count) in time_parts(plan).items():
        share = f"{seconds / plan.cost_seconds:.0%}" if plan.cost_seconds else "-"
        times = f"{count} equation{'s' * (count != 1)}" if name == "compute" else f"x{count}"
        sent = f"{format_nbytes(nbytes)}/device" if nbytes else ""
        rows.append((name, format_seconds(seconds), share, times, sent))
    return _aligned(rows, MAX_COLUMNS - INDENT)


def _memory_parts(plan: "Plan") -> list[str]:
    total = plan.memory_nbytes
    return _aligned(
        [
            (part, format_nbytes(nbytes), f"{nbytes / total:.0%}" if total else "-")
            for part, nbytes in plan.memory_parts
        ],
        MAX_COLUMNS - INDENT,
    )


def _boundary(plan: "Plan", where: str | None) -> str:
    rows = [("argument", path, str(words)) for path, words in plan.arguments]
    rows += [("result", path, str(words)) for path, words in plan.results]
    if where is None:
        tied = {("result", path) for path, _ in plan.ties}
        rows = [row for row in rows if row[:2] not in tied]
    else:
        rows = [row for row in rows if matches(where, (row[1], f"{row[0]} {row[1]}"))]
    return table(("", "path", "words"), rows) if rows else ""


HEADINGS = (
    "at", "operation", "operands", "result", "boxing", "axes", "/device", "times", "time",
)  # fmt: skip


def cells(line: Line) -> tuple[str, ...]:
    """A line as the cells of `HEADINGS`."""
    boxed = line.kind == "boxing"
    sent = format_nbytes(line.nbytes) if line.nbytes else "-" if boxed else ""
    return (
        line.source,
        f"  {line.operation}" if boxed else line.operation,
        abbreviated(line.operands),
        abbreviated(line.results),
        line.words,
        ", ".join(line.axes),
        sent,
        "" if line.kind == "reader" else f"x{line.count}",
        "" if line.kind == "reader" else format_seconds(line.seconds),
    )


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns set in line, without trailing blanks."""
    return "\n".join(_aligned([tuple(headings), *map(tuple, rows)]))


def _aligned(rows: Sequence[Sequence[str]], most: int = MAX_COLUMNS) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    while sum(widths) + 2 * (len(widths) - 1) > most:
        widths[widths.index(max(widths))] -= 1
    return list(_padded(rows, widths))


def _padded(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    for row in rows:
        # The end of a path or of a type says the most.
        cells = (shortened(c, n, start=0).ljust(n) for c, n in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
