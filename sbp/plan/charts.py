"""Charts of a plan as SVG: who works when during a call, and how much memory is held.

Comes in: a `Plan` and its lines. Goes out: HTML text. Time runs as the plan prices it, nothing
overlapped; what a loop repeats is drawn as one bar of all its trips. Bars too narrow to see are
drawn together.
"""

import html
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbp.boxing import format_nbytes
from sbp.plan.explain import format_seconds
from sbp.plan.lines import Line
from sbp.plan.memory import ARGUMENTS, CLOSURES

if TYPE_CHECKING:
    from sbp.plan.record import Plan

RESOLUTION = 1 / 800
"""The narrowest bar of its own, as a part of the whole time."""
COLUMNS = 400
"""Points of the memory chart."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A piece of time on a lane.

    Attributes:
        start: Seconds from the start of the call.
        stop: Seconds at its end.
        kind: Collective, `compute` or `local`.
        title: What a reader sees when pointing at it.
    """

    start: float
    stop: float
    kind: str
    title: str

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.stop - self.start


def kind_of(line: Line) -> str:
    """What a line is drawn as."""
    if line.kind != "boxing":
        return "compute"
    return "local" if line.is_local else line.operation


def in_order(program: Sequence[Line]) -> list[Line]:
    """The lines that take time, as they run: a boxing before the equation that needs it."""
    lines = [line for line in program if line.kind != "reader"]
    return sorted(lines, key=lambda line: (line.equation, line.kind == "equation"))


def timeline(plan: "Plan", program: Sequence[Line]) -> str:
    """A lane for the devices' own work, and one for each mesh axis with what is sent over it."""
    lanes: dict[str, list[Bar]] = {"compute": [], **{axis: [] for axis in plan.mesh_sizes}}
    now = 0.0
    for line in in_order(program):
        bar = Bar(now, now + line.seconds, kind_of(line), _title(line))
        now = bar.stop
        for lane in ("compute",) if line.is_local else line.axes:
            lanes[lane].append(bar)
    if not now:
        return "<p>Nothing in this plan takes time.</p>"
    parts = ['<div class="lanes">']
    for name, bars in lanes.items():
        drawn = "".join(_rect(bar, now) for bar in merged(bars, now * RESOLUTION))
        busy = sum(bar.seconds for bar in bars) / now
        label = "compute" if name == "compute" else f"{name}={plan.mesh_sizes[name]}"
        parts.append(
            f'<div class="lane">{html.escape(label)}</div>'
            f'<svg height="26" role="img" aria-label="{html.escape(label)}: busy {busy:.0%} of the '
            f'call">{drawn}</svg>'
        )
    parts.append(f"<div></div>{_ticks(now)}</div>")
    return "".join(parts)


def _title(line: Line) -> str:
    if line.kind == "equation":
        text = f"{line.operation} -> {', '.join(line.results)}"
    else:
        text = f"{line.operation} {line.operands[0]}, {line.words}"
        text += f", {format_nbytes(line.nbytes)}/device" if line.nbytes else ""
    times = f", x{line.count}" if line.count > 1 else ""
    return f"{text}\n{line.source}\n{format_seconds(line.seconds)}{times}"


def merged(bars: Iterable[Bar], narrowest: float) -> Iterator[Bar]:
    """Bars in order; runs of narrow ones as one, of the kind that takes most of it."""
    run: list[Bar] = []
    for bar in bars:
        if run and (bar.seconds >= narrowest or bar.stop - run[0].start > 4 * narrowest):
            yield _together(run)
            run = []
        if bar.seconds >= narrowest:
            yield bar
        else:
            run.append(bar)
    if run:
        yield _together(run)


def _together(run: Sequence[Bar]) -> Bar:
    if len(run) == 1:
        return run[0]
    kinds: Counter[str] = Counter()
    for bar in run:
        kinds[bar.kind] += bar.seconds  # type: ignore[assignment]
    title = f"{len(run)} lines, {format_seconds(sum(bar.seconds for bar in run))}"
    return Bar(run[0].start, run[-1].stop, max(kinds, key=kinds.__getitem__), title)


def _rect(bar: Bar, total: float) -> str:
    if not bar.seconds:
        return ""
    x, width = 100 * bar.start / total, max(100 * bar.seconds / total, 0.08)
    return (
        f'<rect class="k-{bar.kind}" x="{x:.3f}%" width="{width:.3f}%" y="3" height="20">'
        f"<title>{html.escape(bar.title)}</title></rect>"
    )


def _ticks(total: float) -> str:
    marks = (f"<span>{format_seconds(total * k / 4)}</span>" for k in range(5))
    return f'<div class="ticks">{"".join(marks)}</div>'


def memory_chart(plan: "Plan", program: Sequence[Line]) -> str:
    """Bytes held by a device over the call, on the time scale of the timeline."""
    held = _columns(plan, program)
    if not held:
        return ""
    top = max(plan.memory_nbytes, *held)
    fixed = sum(nbytes for part, nbytes in plan.memory_parts if part in (ARGUMENTS, CLOSURES))
    label = (
        f"memory of a device over a call: {format_nbytes(fixed)} throughout, "
        f"{format_nbytes(top)} at the peak"
    )
    shape = " ".join(
        f"{1000 * (k + side) / len(held):.1f},{100 - 96 * nbytes / top:.2f}"
        for k, nbytes in enumerate(held)
        for side in (0, 1)
    )
    base = 96 * fixed / top
    return (
        f'<div class="lanes"><div class="lane scale"><span>{format_nbytes(top)}</span>'
        f"<span>0 B</span></div>"
        f'<svg height="120" viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" '
        f'aria-label="{html.escape(label)}"><title>{html.escape(label)}</title>'
        f'<polygon class="k-rest" points="0,100 {shape} 1000,100"/>'
        f'<rect class="k-base" x="0" width="1000" y="{100 - base:.2f}" height="{base:.2f}"/></svg>'
        f"<div></div>{_ticks(plan.cost_seconds)}</div>"
    )


def _columns(plan: "Plan", program: Sequence[Line]) -> list[int]:
    """Most bytes held in each of some equal parts of a call."""
    order = in_order(program)
    total = sum(line.seconds for line in order)
    if not total or not plan.equations:
        return []
    held = [0] * COLUMNS
    now = 0.0
    last = len(plan.equations) - 1
    for line in order:
        first = min(int(COLUMNS * now / total), COLUMNS - 1)
        now += line.seconds
        stop = min(int(COLUMNS * now / total), COLUMNS - 1)
        live = plan.equations[min(line.equation, last)].live_nbytes
        for column in range(first, stop + 1):
            held[column] = max(held[column], live)
    return held
