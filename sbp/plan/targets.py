"""What a question about a plan is about: an argument, a result, or a value that a line computes.

Comes in: a path or a line, as people write them. Goes out: `Target`, or an error that lists what
could have been meant.
"""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sbp.algebra import (
    ArrayType,
    Broadcast,
    NdSbp,
    Partial,
    Split,
    Word,
    Words,
    format_type,
    parse_word,
)
from sbp.errors import SbpError
from sbp.graph import Boundary, Mesh, check_words, result_name
from sbp.plan.assignment import Assignment
from sbp.program import Block, Equation, Traced, Value

MAX_VALUES = 20
"""Values of a line that are listed."""


@dataclass(frozen=True, slots=True)
class Target:
    """An array of a planned program.

    Attributes:
        name: What it is called in answers.
        kind: Where it stands.
        position: Its number among the arguments or results.
        array: Its logical type.
        words: The words that it has in the plan.
        value: The value, where it is inside.
        primitive: What computes it, where it is inside.
    """

    name: str
    kind: Literal["argument", "result", "value"]
    position: int
    array: ArrayType
    words: Words
    value: Value | None = None
    primitive: str = ""


def find_target(
    traced: Traced, boundary: Boundary, assignment: Assignment, asked: Any, which: int | str | None
) -> Target:
    """The array that a question means.

    Args:
        traced: The program.
        boundary: Paths of its ends.
        assignment: The choices of the plan.
        asked: A path, with or without `argument` or `result` in front, or a line `file.py:12`.
        which: Of several values of a line, a number or a part of its description.

    Raises:
        SbpError: There is no such array, or there are several.
    """
    if not isinstance(asked, str):
        raise SbpError(
            f"{asked!r} does not name a value",
            why="A value is named by its path or by the line that computes it.",
            how=["plan.why('params.w1', 'tp: S(0)')", "plan.why('train.py:12', 'tp: S(0)')"],
        )
    ends = [*_arguments(traced, boundary, assignment), *_results(traced, boundary, assignment)]
    wanted = asked.strip()
    named = [end for end in ends if wanted in _names(end, boundary)]
    if named:
        if which is not None:
            raise SbpError(
                f"which={which!r} has nothing to choose from",
                where=named[0].name,
                why="A path names one array; only a line computes several.",
                how="leave which out",
            )
        return named[0]
    values = list(_values(traced, assignment))
    lines = {source for source, _ in values}
    at_line = [target for source, target in values if _is_line(source, wanted)]
    if not at_line:
        raise _unknown(wanted, ends, boundary, sorted(lines))
    return _one_of(wanted, at_line, which)


def _names(end: Target, boundary: Boundary) -> tuple[str, ...]:
    if end.kind == "argument":
        path = boundary.argument_paths[end.position]
        return path, f"argument {path}"
    path = boundary.result_paths[end.position]
    return (path, f"result {path}") if path else ("result", "the result")


def _arguments(traced: Traced, boundary: Boundary, assignment: Assignment) -> Iterator[Target]:
    for k, path in enumerate(boundary.argument_paths):
        words = assignment.label(None, "argument", k)
        array = traced.block.inputs[k].type
        yield Target(f"argument {path}", "argument", k, array, words)


def _results(traced: Traced, boundary: Boundary, assignment: Assignment) -> Iterator[Target]:
    for k, path in enumerate(boundary.result_paths):
        words = assignment.label(None, "result", k)
        yield Target(result_name(path), "result", k, traced.block.outputs[k].type, words)


def _values(traced: Traced, assignment: Assignment) -> Iterator[tuple[str, Target]]:
    """Every value that an equation writes, with its line; for a pinned one stands the pin."""
    graph = assignment.boxing.graph
    pinned = {equation.inputs[0] for equation in _equations(traced.block) if equation.name == "pin"}
    axes = graph.mesh.axes
    for equation in _equations(traced.block):
        for value in equation.outputs:
            if value not in graph.writers or (value in pinned and equation.name != "pin"):
                continue
            words = assignment.written(value)
            name = f"{equation.name} {format_type(value.type, axes, words)} at {equation.source}"
            yield equation.source, Target(
                name, "value", 0, value.type, words, value, equation.name
            )  # fmt: skip


def _equations(block: Block) -> Iterator[Equation]:
    for equation in block.equations:
        for body in equation.bodies:
            yield from _equations(body)
        yield equation


def _is_line(source: str, wanted: str) -> bool:
    return bool(wanted) and (source == wanted or source.endswith(f"/{wanted}"))


def _one_of(line: str, found: Sequence[Target], which: int | str | None) -> Target:
    if which is None and len(found) == 1:
        return found[0]
    texts = [target.name.rsplit(" at ", 1)[0] for target in found]
    if isinstance(which, int) and not isinstance(which, bool) and 0 <= which < len(found):
        return found[which]
    if isinstance(which, str):
        plain = [f"{t.primitive} {format_type(t.array)}" for t in found]
        chosen = [k for k, text in enumerate(texts) if which in text or which in plain[k]]
        if len(chosen) == 1:
            return found[chosen[0]]
    if which is None:
        what = f"{line} computes {len(found)} values"
    else:
        what = f"which={which!r} does not say which value of {line}"
    listed = "\n".join(f"{k}  {text}" for k, text in enumerate(texts[:MAX_VALUES]))
    more = f"\nand {len(texts) - MAX_VALUES} more" if len(texts) > MAX_VALUES else ""
    unique = [text for text in texts if sum(text in other for other in texts) == 1]
    raise SbpError(
        what,
        why=f"By number:\n{listed}{more}",
        how=[f"which={len(found) - 1}", *(f"which={text!r}" for text in unique[-1:])],
    )


def _unknown(
    wanted: str, ends: Sequence[Target], boundary: Boundary, lines: Sequence[str]
) -> SbpError:
    known = [name for end in ends for name in _names(end, boundary)] + list(lines)
    close = difflib.get_close_matches(wanted, known, n=3, cutoff=0.5)
    shown = [end.name for end in ends]
    more = f" and {len(shown) - 8} more" if len(shown) > 8 else ""
    return SbpError(
        f"{wanted!r} is neither an argument, a result, nor a line that computes a value",
        why=f"The arguments and results are {', '.join(shown[:8])}{more}.",
        how=[*map(repr, close), "a line as explain() prints it"],
    )


def requested_words(word: Any, mesh: Mesh, target: Target) -> NdSbp:
    """The words asked about; a lone word is for the one axis that has several devices."""
    if isinstance(word, NdSbp):
        request = word
    elif isinstance(word, Split | Broadcast | Partial):
        request = _lone(word, mesh)
    elif isinstance(word, str):
        alone = word.strip() and ":" not in word
        request = _lone(parse_word(word.strip()), mesh) if alone else NdSbp.parse(word)
    else:
        raise SbpError(
            f"{word!r} is not words",
            where=target.name,
            why="Words are text, NdSbp, or one of sbp.S(dim), sbp.B and sbp.P.",
            how=f"why(..., '{mesh.axes[0]}: B')",
        )
    for axis, one in request.items():
        if axis not in mesh.axes:
            # Not an answer: the question is wrong.
            check_words(NdSbp({axis: one}), target.array, mesh, target.name, what="why")
    if not request:
        raise SbpError(
            "why was asked about no words",
            where=target.name,
            why="It compares the words of a value with others.",
            how=f"why(..., '{mesh.axes[0]}: B')",
        )
    return request


def _lone(word: Word, mesh: Mesh) -> NdSbp:
    axes = [a for a, size in zip(mesh.axes, mesh.sizes, strict=True) if size > 1] or mesh.axes
    if len(axes) != 1:
        raise SbpError(
            f"why was asked about {word} without an axis",
            why=f"The mesh has {mesh}.",
            how=[f"why(..., '{axis}: {word}')" for axis in axes],
        )
    return NdSbp({axes[0]: word})
