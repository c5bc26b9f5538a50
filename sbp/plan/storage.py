"""A plan as a file: JSON with a version, byte for byte the same for the same plan.

Comes in: a `Plan`, or the bytes of a file. Goes out: text, or the fields of a plan.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sbp.errors import PlanError, SbpError
from sbp.plan.fields import check, read_fields

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
    except RecursionError as error:
        raise _unreadable(path, "It is nested deeper than any plan.") from error
    if not isinstance(data, dict) or "format" not in data:
        raise _unreadable(path, "Its JSON is not that of a plan.")
    found = data.pop("format")
    if not isinstance(found, int) or found != FORMAT:
        shown = found if isinstance(found, int | str | None) else type(found).__name__
        raise _unreadable(path, f"It is of format {shown!r}: another version of sbp wrote it.")
    try:
        decoded = read_fields(fields, data)
        check(decoded)
    except (ValueError, RecursionError) as error:
        told = error.what if isinstance(error, SbpError) else str(error)
        raise _unreadable(path, f"A field is missing or wrong: {told}.") from error
    return decoded


def _unreadable(path: str, why: str) -> PlanError:
    return PlanError(
        f"{path} does not hold a plan of format {FORMAT}",
        why=why,
        how="write it again with Plan.save of this version",
    )
