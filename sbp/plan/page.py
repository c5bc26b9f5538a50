"""A plan as HTML: tiles, a timeline, memory over time, and the table of `explain`.

Comes in: a `Plan`. Goes out: a page that needs nothing from anywhere, or a piece of one for a
notebook, which needs no script either.
"""

import html
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import TYPE_CHECKING

from sbp.boxing import format_nbytes
from sbp.plan.charts import kind_of, memory_chart, timeline
from sbp.plan.explain import (
    HEADINGS,
    bound_text,
    cells,
    flop_share,
    format_seconds,
    format_wire,
    gap_text,
    overlap_text,
    table,
    time_parts,
)
from sbp.plan.lines import Line, program_lines, select

if TYPE_CHECKING:
    from sbp.plan.record import Plan

PAGE_LINES = 2500
"""Lines of the table of a page; of a longer plan it shows the dearest."""
NOTEBOOK_LINES = 100
"""The same in a notebook."""
ENDS = 60
"""Arguments and results that are listed."""

_NUMBERS = {"/device": "nbytes", "times": "count", "time": "seconds"}


def whole(plan: "Plan") -> str:
    """The page that `Plan.write_html` writes."""
    title = html.escape(f"Plan of {plan.name} on {_mesh(plan)}")
    program = program_lines(plan)
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>html {{ color-scheme: light dark; }} body {{ margin: 0; }}",
        f"{_style()}</style></head>",
        f'<body class="sbp-plan"><main><h1>{title}</h1>',
        *_charts(plan, program),
        "<h2>Program</h2>",
        '<div class="filter"><label>Filter <input type="search" placeholder="text in any column">'
        "</label><output></output></div>",
        *_table(plan, program, PAGE_LINES),
        "<h2>Arguments and results</h2>",
        *_ends(plan),
        f"</main><script>{_resource('page.js')}</script></body></html>\n",
    ]
    return "\n".join(parts)


def embedded(plan: "Plan") -> str:
    """The piece that a notebook shows: styled by itself, without ids and scripts."""
    title = html.escape(f"Plan of {plan.name} on {_mesh(plan)}")
    program = program_lines(plan)
    parts = [
        f'<div class="sbp-plan"><style>{_style()}</style><h1>{title}</h1>',
        *_charts(plan, program),
        "<details><summary>Program</summary>",
        *_table(plan, program, NOTEBOOK_LINES),
        "</details><details><summary>Arguments and results</summary>",
        *_ends(plan),
        "</details></div>",
    ]
    return "\n".join(parts)


def _style() -> str:
    """The style sheet; its dark colours count where the reader's system or notebook is dark."""
    light, rest = _resource("page.css").split("DARK {")
    dark, rest = rest.split("}", 1)
    notebooks = (
        'body[data-jp-theme-light="false"] .sbp-plan, body.vscode-dark .sbp-plan, '
        "html[theme=dark] .sbp-plan"
    )
    light_only = 'body[data-jp-theme-light="true"] .sbp-plan, body.vscode-light .sbp-plan'
    colours = light[light.index("{") :]
    return (
        f"{light}@media (prefers-color-scheme: dark) {{ .sbp-plan {{{dark}}} }}\n"
        f"{light_only} {colours}{notebooks} {{{dark}}}{rest}"
    )


def _resource(name: str) -> str:
    return (resources.files("sbp.plan") / name).read_text(encoding="utf-8")


def _mesh(plan: "Plan") -> str:
    mesh = ", ".join(f"{axis}={size}" for axis, size in plan.mesh_sizes.items())
    return f"mesh {mesh} ({plan.cluster})"


def _charts(plan: "Plan", program: Sequence[Line]) -> Iterator[str]:
    yield f'<dl class="tiles">{"".join(_tiles(plan))}</dl>'
    if plan.notes:
        yield f"<ul>{''.join(f'<li>{html.escape(note)}</li>' for note in plan.notes)}</ul>"
    yield "<h2>One call</h2>"
    yield f'<div class="legend">{"".join(_legend(plan))}</div>'
    yield timeline(plan, program)
    chart = memory_chart(plan, program)
    if chart:
        yield "<h2>Memory of one device</h2>"
        parts = "".join(
            f"<span>{html.escape(part)} {format_nbytes(nbytes)}</span>"
            for part, nbytes in plan.memory_parts
        )
        keys = '<span><i class="k-base"></i>held throughout</span><span><i class="k-rest"></i>'
        at = f", {html.escape(plan.memory_source)}" if plan.memory_source else ""
        yield f'<div class="legend">{keys}made on the way</span></div>'
        yield chart
        yield f'<div class="legend"><span>At the peak{at}:</span>{parts}</div>'


def _tiles(plan: "Plan") -> Iterator[str]:
    sent = sum(row.count for row in plan.boxings if not row.is_local)
    total = plan.cost_seconds
    share = f"{plan.communication_seconds / total:.0%} of the time" if total else ""
    for name, value, detail in (
        ("time of a call", format_seconds(total), f"predicted, {overlap_text(plan)}"),
        ("compute", format_seconds(plan.compute_seconds), f"{flop_share(plan):.3f} of even flops"),
        ("boxing", format_seconds(plan.communication_seconds), share),
        ("sent by a device", format_wire(plan.wire_nbytes), f"in {sent} collectives"),
        ("memory at the peak", format_nbytes(plan.memory_nbytes), "of one device, predicted"),
        ("gap", gap_text(plan), bound_text(plan)),
    ):
        texts = map(html.escape, (name, value, detail))
        yield "<div><dt>{}</dt><dd>{}<small>{}</small></dd></div>".format(*texts)


def _legend(plan: "Plan") -> Iterator[str]:
    for name, (seconds, nbytes, count) in time_parts(plan).items():
        kind = "local" if name == "words changed in place" else name.split(" on ")[0]
        sent = f", {format_nbytes(nbytes)} in {count}" if nbytes else ""
        text = html.escape(f"{name} {format_seconds(seconds)}{sent}")
        yield f'<span><i class="k-{kind}"></i>{text}</span>'


def _table(plan: "Plan", program: Sequence[Line], most: int) -> Iterator[str]:
    lines = select(plan, program, most, None)
    number = len(program)
    if len(lines) < number:
        shown = sum(line.seconds for line in lines)
        share = f", {shown / plan.cost_seconds:.0%} of the time" if plan.cost_seconds else ""
        yield f"<p>The {len(lines)} dearest of {number} lines{share}.</p>"
    headings = "".join(
        f'<th scope="col"{_class(name)}>{html.escape(name)}</th>' for name in HEADINGS
    )
    yield f'<div class="scroll"><table><thead><tr>{headings}</tr></thead><tbody>'
    yield from map(_row, lines)
    yield "</tbody></table></div>"


def _class(name: str) -> str:
    return ' class="n"' if name in _NUMBERS else ""


def _row(line: Line) -> str:
    texts = []
    for name, text in zip(HEADINGS, cells(line), strict=True):
        marks = _class(name)
        if name in _NUMBERS:
            marks += f' data-v="{getattr(line, _NUMBERS[name])!r}"'
        key = ""
        if name == "operation" and line.kind == "boxing":
            key = f'<i class="k-{kind_of(line)}"></i>'
        texts.append(f"<td{marks}>{key}{html.escape(text.strip())}</td>")
    return f'<tr class="{line.kind}">{"".join(texts)}</tr>'


def _ends(plan: "Plan") -> Iterator[str]:
    rows: Sequence[tuple[str, str, str]] = [
        *(("argument", path, str(words)) for path, words in plan.arguments),
        *(("result", path, str(words)) for path, words in plan.results),
    ]
    if len(rows) > ENDS:
        yield f"<p>The first {ENDS} of {len(rows)}; Plan.arguments and Plan.results list all.</p>"
    yield f"<pre>{html.escape(table(('', 'path', 'words'), rows[:ENDS]))}</pre>"
