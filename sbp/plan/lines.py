"""The lines of a program in order: equations, and below each the boxings that it needs.

Comes in: a `Plan`. Goes out: `Line`s, all or those that a reader asks for. Text and pages are made
of the same lines.
"""

import difflib
import fnmatch
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sbp.algebra import NdSbp
from sbp.errors import SbpError
from sbp.plan.rows import BoxingRow

if TYPE_CHECKING:
    from sbp.plan.record import Plan

MAX_WIDTH = 60
"""Columns of a cell of types; what is longer is cut between types."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table.

    Attributes:
        kind: `equation`, `boxing`, or `reader`: a result or a loop's end that only needs boxings.
        source: The user's line, or the path of a result.
        operation: Primitive, collective, or what a reader is.
        operands: Types of the operands in jax's notation.
        results: Types of the results.
        words: The change of words: `tp: P -> B`.
        axes: Mesh axes it runs over.
        nbytes: Bytes a device sends, each time.
        count: How many times it happens in one call.
        seconds: Time of all of them.
        arrays: Paths of the arguments and results it deals with.
        equation: Number of the equation it is, or stands at.
        is_local: Whether it sends nothing.
    """

    kind: Literal["equation", "boxing", "reader"]
    source: str
    operation: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    words: str
    axes: tuple[str, ...]
    nbytes: int
    count: int
    seconds: float
    arrays: tuple[str, ...]
    equation: int
    is_local: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """What a pattern is held against."""
        return (self.source, self.operation, *self.arrays)


def program_lines(plan: "Plan") -> list[Line]:
    """Every line of a plan, in program order."""
    below: dict[int, list[BoxingRow]] = {}
    for row in plan.boxings:
        below.setdefault(row.equation, []).append(row)
    lines: list[Line] = []
    for number in range(len(plan.equations) + 1):
        boxings = below.get(number, [])
        lines += _readers([row for row in boxings if row.reader], number)
        if number < len(plan.equations):
            row = plan.equations[number]
            lines.append(
                Line(
                    "equation", row.source, row.primitive, row.operands, row.results, "", (), 0,
                    row.count, row.seconds * row.count, row.arrays, number,
                )
            )  # fmt: skip
        lines += [_boxing(row) for row in boxings if not row.reader]
    return lines


def _readers(boxings: Sequence[BoxingRow], number: int) -> Iterator[Line]:
    last = None
    for row in boxings:
        if last != (row.source, row.reader):
            last = (row.source, row.reader)
            # A result is its own source.
            name = "return" if row.source == row.reader else row.reader
            yield Line("reader", row.source, name, (), (), "", (), 0, row.count, 0.0, (), number)
        yield _boxing(row)


def _boxing(row: BoxingRow) -> Line:
    named = row.array and row.array != row.source
    operand = f"{row.array} {row.value_type}" if named else row.value_type
    return Line(
        "boxing", row.source, row.collective, (operand,), (row.result_type,),
        _change(row.src, row.dst), row.axes, row.nbytes, row.count,
        row.seconds * row.count, (row.array,) if row.array else (), row.equation, row.is_local,
    )  # fmt: skip


@functools.lru_cache(4096)
def _change(src: str, dst: str) -> str:
    """The words that change, axes that change alike together: `dp, tp: P -> B`."""
    after = NdSbp.parse(dst)
    together: dict[str, list[str]] = {}
    for axis, word in NdSbp.parse(src).items():
        together.setdefault(f"{word} -> {after[axis]}", []).append(axis)
    return "; ".join(f"{', '.join(axes)}: {change}" for change, axes in together.items())


def abbreviated(items: Sequence[str], width: int = MAX_WIDTH, between: str = "  ") -> str:
    """A list in one cell; of more than fit, the first."""
    text = between.join(items)
    shown = len(items)
    while shown > 1 and len(text) > width:
        shown -= 1
        text = f"{between.join(items[:shown])}{between}and {len(items) - shown} more"
    return text


def select(
    plan: "Plan", lines: Sequence[Line], top: int | None, where: str | None
) -> Sequence[Line]:
    """The lines that are asked for; `top` and `where` as of `Plan.explain`.

    Raises:
        SbpError: `top` is no number of lines, or `where` matches nothing.
    """
    if top is not None and (not isinstance(top, int) or isinstance(top, bool) or top < 1):
        raise SbpError(
            f"top={top!r} is not a number of lines",
            why="explain shows the dearest so many lines.",
            how=["top=20", "top=None shows all"],
        )
    if where is not None:
        lines = _matching(plan, lines, where)
    if top is not None and len(lines) > top:
        order = sorted(range(len(lines)), key=lambda k: -lines[k].seconds)
        lines = [lines[k] for k in sorted(order[:top])]
    return lines


def matches(pattern: str, names: Sequence[str]) -> bool:
    """Whether a text is in one of the names, or one of them fits it as a pattern."""
    return any(pattern in name or fnmatch.fnmatchcase(name, pattern) for name in names)


def _matching(plan: "Plan", lines: Sequence[Line], where: str) -> list[Line]:
    if not isinstance(where, str):
        raise SbpError(
            f"where={where!r} is not text",
            why="It is a part of a source line, an operation or an array's path, or a pattern.",
            how="where='dot_general'",
        )
    found: list[Line] = []
    needed = False
    for line in lines:
        direct = matches(where, line.names)
        if line.kind != "boxing":
            # What an equation needs is shown with it.
            needed = direct
        if direct or (line.kind == "boxing" and needed):
            found.append(line)
    ends = [*plan.arguments, *(end for end in plan.results)]
    if not found and not any(matches(where, (path,)) for path, _ in ends):
        raise _unmatched(plan, lines, where)
    return found


def _unmatched(plan: "Plan", lines: Sequence[Line], where: str) -> SbpError:
    names = [path for path, _ in (*plan.arguments, *plan.results) if path]
    names += [name for line in lines for name in line.names]
    known = list(dict.fromkeys(names))
    operations = sorted({line.operation for line in lines})
    close = difflib.get_close_matches(where, known, n=3, cutoff=0.6)
    shown = ", ".join(operations[:12]) + (", ..." if len(operations) > 12 else "")
    return SbpError(
        f"where={where!r} matches nothing in the plan of {plan.name}",
        why="It is looked for in source lines, operations and paths of arrays.\n"
        f"The operations are {shown}.",
        how=[*(f"where={name!r}" for name in close), "leave where out"],
    )
