"""A plan as a file: JSON with a version, byte for byte the same for the same plan.

Comes in: a `Plan`, or the bytes of a file. Goes out: text, or the fields of a plan.
"""

import dataclasses
import json
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sbp.algebra import NdSbp, parse_word
from sbp.axis_sizes import axis_sizes
from sbp.errors import PlanError
from sbp.plan.rows import BoxingRow, EquationRow

if TYPE_CHECKING:
    from sbp.plan.record import Plan

FORMAT = 2
"""Version of the file; it changes with the fields of a plan or of its rows."""

NOT_SAVED = ("in_tree", "out_tree", "origin")


def encode(plan: "Plan") -> str:
    """The file that holds a plan."""
    data = {
        field.name: getattr(plan, field.name)
        for field in dataclasses.fields(plan)
        if field.name not in NOT_SAVED
    }
    data["boxings"] = [dataclasses.asdict(row) for row in plan.boxings]
    data["equations"] = [dataclasses.asdict(row) for row in plan.equations]
    data["arguments"] = [(path, str(words)) for path, words in plan.arguments]
    data["results"] = [(path, str(words)) for path, words in plan.results]
    data["mesh_sizes"] = dict(plan.mesh_sizes)
    return json.dumps({"format": FORMAT, **data}, indent=1) + "\n"


def decode(content: bytes, path: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the plan that a file holds.

    Args:
        content: What is in the file.
        path: Its path, for errors.
        fields: Names of the fields, with their types.

    Raises:
        PlanError: The file is not a plan, or of another format.
    """
    try:
        data = json.loads(content.decode("utf-8"))
    except ValueError as error:
        raise _unreadable(path, f"It is not JSON, or not all of it: {error}.") from error
    if not isinstance(data, dict) or "format" not in data:
        raise _unreadable(path, "Its JSON is not that of a plan.")
    if (found := data.pop("format")) != FORMAT:
        raise _unreadable(path, f"It is of format {found!r}: another version of sbp wrote it.")
    try:
        for name in fields.keys() ^ data.keys():
            raise KeyError(name)
        decoded = {
            **data,
            "boxings": _rows(BoxingRow, "boxings", data["boxings"]),
            "equations": _rows(EquationRow, "equations", data["equations"]),
            "arguments": _words("arguments", data["arguments"]),
            "results": _words("results", data["results"]),
            "ties": _tuples(data["ties"]),
            "notes": _tuples(data["notes"]),
            "memory_parts": _tuples(data["memory_parts"]),
            "choices": _tuples(data["choices"]),
            "shared": _tuples(data["shared"]),
        }
        _check(decoded, fields)
        return decoded
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unreadable(path, f"A field is missing or wrong: {error}.") from error


def _unreadable(path: str, why: str) -> PlanError:
    return PlanError(
        f"{path} does not hold a plan of format {FORMAT}",
        why=why,
        how="write it again with Plan.save of this version",
    )


def _words(name: str, data: Any) -> tuple[tuple[str, NdSbp], ...]:
    pairs: Any = _tuples(data)
    _check_type(name, pairs, tuple[tuple[str, str], ...])
    return tuple((path, NdSbp.parse(text)) for path, text in pairs)


def _tuples(data: Any) -> Any:
    return tuple(map(_tuples, data)) if isinstance(data, list) else data


def _rows(kind: Any, name: str, data: Any) -> tuple[Any, ...]:
    entries: Any = _tuples(data)
    _check_type(name, entries, tuple[dict[str, Any], ...])
    rows = tuple(kind(**{key: _tuples(x) for key, x in entry.items()}) for entry in entries)
    for row in rows:
        for field in dataclasses.fields(kind):
            _check_type(f"{field.name} in {name}", getattr(row, field.name), field.type)
    return rows


def _check(decoded: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    """Refuses fields that a plan cannot have."""
    for name, kind in fields.items():
        _check_type(name, decoded[name], kind)
    axes = axis_sizes(decoded["mesh_sizes"], "mesh_sizes")
    for path, words in (*decoded["arguments"], *decoded["results"]):
        if set(words) != set(axes):
            raise ValueError(f"the words {words} of {path!r} are not those of a mesh of {axes}")
    for label in (*decoded["choices"], *decoded["shared"]):
        if not _is_label(label, len(axes)):
            raise ValueError(f"{label!r} is not a choice on {len(axes)} axes")


def _check_type(name: str, value: Any, kind: Any) -> None:
    if not _is_of(value, kind):
        raise TypeError(f"{name} is {value!r}"[:200])


def _is_of(value: Any, kind: Any) -> bool:
    """Whether a decoded value is of the type that a field of a plan or a row has."""
    if kind is Any:
        return True
    of = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        kinds = of[:1] * len(value) if of[-1] is Ellipsis and isinstance(value, tuple) else of
        return (
            isinstance(value, tuple) and len(value) == len(kinds) and all(map(_is_of, value, kinds))
        )
    if of:
        return isinstance(value, dict) and all(
            _is_of(key, of[0]) and _is_of(entry, of[1]) for key, entry in value.items()
        )
    if kind in (int, float):
        numbers = (int, float) if kind is float else int
        return isinstance(value, numbers) and not isinstance(value, bool)
    return isinstance(value, kind)


def _is_label(label: Any, num_axes: int) -> bool:
    """Whether it is the words of one array, or those of the operands and results of an equation."""
    if not isinstance(label, tuple):
        return False
    if all(isinstance(word, str) for word in label):
        return len([parse_word(word) for word in label]) == num_axes
    return len(label) == 2 and all(
        isinstance(side, tuple) and all(map(_is_words, side, [num_axes] * len(side)))
        for side in label
    )


def _is_words(label: Any, num_axes: int) -> bool:
    is_text = isinstance(label, tuple) and all(isinstance(word, str) for word in label)
    return is_text and _is_label(label, num_axes)
