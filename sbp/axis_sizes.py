"""Sizes of mesh axes, as users write them: text, a mapping, or a mesh of jax.

Comes in: what a user gave. Goes out: sizes by axis name, outermost first, or an error that says
what is wrong with it.
"""

import operator
import re
from collections.abc import Mapping
from typing import Any, cast

from sbp.errors import SbpError

_ITEM = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(-?\d{1,18})\s*")
_MOST_SHOWN = 60
"""Characters of what a user wrote that an error repeats."""


def axis_sizes(mesh: object, where: str) -> dict[str, int]:
    """Sizes by axis name.

    Args:
        mesh: Text such as `dp=2,tp=4`, sizes by axis name, or a mesh of jax.
        where: What it was given to, for errors.

    Raises:
        SbpError: It is none of these, has no axes, or an axis or a size cannot be.
    """
    if isinstance(mesh, str):
        return parse_axes(mesh, where)
    shape: Any = getattr(mesh, "shape", mesh)
    if not isinstance(shape, Mapping):
        raise SbpError(
            f"{mesh!r} is not a mesh",
            where=where,
            why="A mesh is text, sizes by axis name, or a mesh of jax.",
            how=["'dp=2,tp=4'", "{'dp': 2, 'tp': 4}"],
        )
    sizes = dict(cast("Mapping[Any, Any]", shape))
    _check(sizes, where)
    return {name: operator.index(size) for name, size in sizes.items()}


def parse_axes(text: str, where: str) -> dict[str, int]:
    """Sizes by axis name, from text such as `dp=2,tp=4`; arguments as of `axis_sizes`."""
    axes: dict[str, int] = {}
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            shown, wrong = (_shortened(t) for t in (text, item.strip()))
            raise SbpError(
                f"mesh {shown!r} has the item {wrong!r}",
                where=where,
                why="A mesh is a list of axes, each a name, '=' and a whole number.",
                how="write it like 'dp=2,tp=4'",
            )
        name, size = match[1], int(match[2])
        if name in axes:
            raise SbpError(
                f"mesh {text!r} names axis {name!r} twice",
                where=where,
                why="An axis has one size.",
                how=("different names", f"one axis of both: '{name}={axes[name] * size}'"),
            )
        axes[name] = size
    _check(axes, where)
    return axes


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def format_axes(sizes: Mapping[Any, Any]) -> str:
    """The text that `parse_axes` reads."""
    return ",".join(f"{name}={size}" for name, size in sizes.items())


def _is_whole(size: Any) -> bool:
    try:
        operator.index(size)
    except TypeError:
        return False
    return not isinstance(size, bool)


def _check(sizes: Mapping[Any, Any], where: str) -> None:
    if not sizes:
        raise SbpError(
            "the mesh has no axes",
            where=where,
            why="Words are said per mesh axis.",
            how="one axis of one device: 'dp=1'",
        )
    for name, size in sizes.items():
        if not isinstance(name, str) or not name:
            raise SbpError(
                f"mesh {sizes!r} has an axis called {name!r}",
                where=where,
                why="Words name axes, so the name of an axis is text.",
                how="{'dp': 2, 'tp': 4}",
            )
        if not _is_whole(size):
            raise SbpError(
                f"mesh {sizes!r} gives axis {name!r} the size {size!r}",
                where=where,
                why="A size is a whole number.",
                how="{'dp': 2, 'tp': 4}",
            )
        if size < 1:
            raise SbpError(
                f"mesh {format_axes(sizes)!r} gives axis {name!r} the size {size}",
                where=where,
                why="An axis has at least one device.",
                how=f"leave {name!r} out" if len(sizes) > 1 else f"'{name}=1'",
            )
