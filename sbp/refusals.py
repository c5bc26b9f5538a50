"""What a function may not do: communicate, place arrays, or have effects in order.

Comes in: equations of jax, and errors of jax. Goes out: nothing, or one error that names the user's
line and what to do instead.
"""

import re
from collections.abc import Mapping
from typing import Any

import jax

from sbp import _compat
from sbp.errors import SbpError

_COLLECTIVES = frozenset(
    [
        "psum",
        "psum2",
        "psum_invariant",
        "pmax",
        "pmin",
        "ppermute",
        "all_gather",
        "pcast",
        "all_gather_invariant",
        "all_to_all",
        "reduce_scatter",
        "psum_scatter",
        "axis_index",
        "pbroadcast",
        "pgather",
        "ragged_all_to_all",
    ]
)
# fmt: on


def refuse(eqn: Any, source: str, *, is_entered: bool) -> None:
    """Refuses an equation that no plan can run.

    Args:
        eqn: An equation of jax.
        source: The user's line.
        is_entered: Whether it holds other equations, which are read one by one.

    Raises:
        SbpError: It communicates, places arrays, or has effects that a plan cannot keep.
    """
    name = eqn.primitive.name
    if name == "shard_map" or (name in _COLLECTIVES and _names_an_axis(eqn.params)):
        raise collective_error(name, source)
    if _compat.has_ordered_effects(eqn.effects):
        raise SbpError(
            f"{name} must run in order with other effects",
            where=source,
            why="Ordered effects thread one token through the program; "
            "devices of an SPMD program share none.",
            how=("pass ordered=False", "call it outside the parallelized function"),
        )
    if name == "device_put" and any(place is not None for place in eqn.params["devices"]):
        raise _placement_error("device_put", source)
    shardings = (*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ()))
    if any(isinstance(sharding, jax.sharding.Sharding) for sharding in shardings):
        raise _placement_error("jax.jit with shardings", source)
    if eqn.effects and eqn.outvars and not is_entered:
        raise SbpError(
            f"{name} has a side effect and returns values",
            where=source,
            why="The effect must happen once, but its values are needed on every device.",
            how=("use jax.pure_callback if there is no side effect",
                 "return nothing from the callback"),
        )  # fmt: skip


def _placement_error(name: str, where: str) -> SbpError:
    return SbpError(
        f"the function places an array itself: {name}",
        where=where,
        why="A parallelized function is written for one device; the plan says where arrays lie.",
        how=("pin the array: sbp.pin(x, dp=sbp.S(0))", "place it before the call: step.place"),
    )


def _names_an_axis(params: Mapping[str, Any]) -> bool:
    """Whether a collective is over a mesh axis; over dims, as `vmap` makes it, it is arithmetic."""
    axes = params.get("axes", params.get("axis_name"))
    return any(isinstance(axis, str) for axis in (axes if isinstance(axes, tuple) else (axes,)))


def collective_refused_by_jax(message: str) -> str | None:
    """The collective that an error of jax is about, which found no mesh to run on."""
    if "passed to shard_map" in message:
        return "shard_map"
    found = re.search(r"unbound axis name: (\w+)(?:.* call (\w+) under)?", message)
    return f"{found[2] or 'a collective'} over {found[1]!r}" if found else None


def collective_error(name: str, where: str) -> SbpError:
    """The error for a collective in the user's function."""
    return SbpError(
        f"the function communicates by itself: {name}",
        where=where,
        why="A parallelized function is written for one device; the plan owns all communication.",
        how=(
            "remove the collective and let the plan insert it",
            "call jax.shard_map outside the parallelized function",
        ),
    )
