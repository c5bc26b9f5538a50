"""A plan as a file: JSON with a version, byte for byte the same for the same plan.

Comes in: a `Plan`, or the bytes of a file. Goes out: text, or the fields of a plan.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sbp.algebra import NdSbp
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


def decode(content: bytes, path: str, fields: Mapping[str, type]) -> dict[str, Any]:
    """The fields of the plan that a file holds.

    Args:
        content: What is in the file.
        path: Its path, for errors.
        fields: Names of the fields, with their types where they hold one number or text.

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
        for name, kind in fields.items():
            if not isinstance(data[name], (int, float) if kind is float else kind):
                raise TypeError(f"{name} is {data[name]!r}")
        return {
            **data,
            "boxings": tuple(BoxingRow(**_tuples_in(row)) for row in data["boxings"]),
            "equations": tuple(EquationRow(**_tuples_in(row)) for row in data["equations"]),
            "arguments": _words(data["arguments"]),
            "results": _words(data["results"]),
            "ties": _tuples(data["ties"]),
            "notes": _tuples(data["notes"]),
            "memory_parts": _tuples(data["memory_parts"]),
            "choices": _tuples(data["choices"]),
            "shared": _tuples(data["shared"]),
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unreadable(path, f"A field is missing or wrong: {error}.") from error


def _unreadable(path: str, why: str) -> PlanError:
    return PlanError(
        f"{path} does not hold a plan of format {FORMAT}",
        why=why,
        how="write it again with Plan.save of this version",
    )


def _words(pairs: list[list[str]]) -> tuple[tuple[str, NdSbp], ...]:
    return tuple((path, NdSbp.parse(text)) for path, text in pairs)


def _tuples(data: Any) -> Any:
    return tuple(map(_tuples, data)) if isinstance(data, list) else data


def _tuples_in(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _tuples(value) for name, value in data.items()}
