"""Meshes by name and size: the text `dp=2,tp=4` becomes a `jax.sharding.Mesh` of devices."""

import collections
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from sbp.axis_sizes import axis_sizes, format_axes
from sbp.errors import SbpError


def parse_mesh(text: str) -> dict[str, int]:
    """Axis sizes by name, outer axis first, from text such as `dp=2,tp=4`.

    Raises:
        SbpError: The text has another form, an axis occurs twice, or a size is below 1.
    """
    return axis_sizes(text, "parse_mesh")


def make_mesh(
    axes: str | Mapping[str, int],
    devices: Sequence[jax.Device] | None = None,  # pyright: ignore[reportInvalidTypeForm]
    *,
    axis_types: AxisType | Sequence[AxisType] = AxisType.Auto,
) -> Mesh:
    """A mesh over the first devices, as many as its axes need.

    Args:
        axes: Sizes by axis name, outer axis first, or their text (see `parse_mesh`).
        devices: Devices to use, in order; all devices of the default backend when None.
        axis_types: One type for all axes, or one for each.

    Raises:
        SbpError: The axes are malformed, or larger than the number of devices; what is in
            `devices` are not devices, or one of them twice; `axis_types` are not types of axes.
    """
    sizes = axis_sizes(axes, "make_mesh")
    available = jax.devices() if devices is None else _checked(devices)
    needed = math.prod(sizes.values())
    if needed > len(available):
        raise SbpError(
            f"mesh {format_axes(sizes)!r} needs {needed} devices, there are {len(available)}",
            where="make_mesh",
            why="Each point of a mesh is a device of its own.",
            how=(
                "a smaller mesh",
                f"simulate them on the CPU, before JAX is first used: "
                f"jax.config.update('jax_num_cpu_devices', {needed}), "
                f"or XLA_FLAGS=--xla_force_host_platform_device_count={needed}",
            ),
        )
    types = _axis_types(axis_types, len(sizes))
    return jax.make_mesh(
        tuple(sizes.values()), tuple(sizes), axis_types=types, devices=available[:needed]
    )


def _checked(devices: Any) -> list[Any]:
    """The devices of a sequence or an array; each must be one, and another one."""
    found = list(np.asarray(devices, dtype=object).flat)
    for device in found:
        if not isinstance(device, jax.Device):
            raise SbpError(
                f"devices has {device!r}, which is no device",
                where="make_mesh",
                why="Devices are objects of jax, not their numbers.",
                how=["devices=jax.devices()", "leave out devices: all are used, as far as needed"],
            )
    for device, count in collections.Counter(found).items():
        if count > 1:
            raise SbpError(
                f"devices has {device!r} {count} times",
                where="make_mesh",
                why="Each point of a mesh is a device of its own.",
                how="name each device once: devices=jax.devices()",
            )
    return found


def _axis_types(given: Any, num_axes: int) -> tuple[AxisType, ...]:
    types = (given,) * num_axes if isinstance(given, AxisType) else given
    if (
        not isinstance(types, tuple | list)
        or len(types) != num_axes
        or not all(isinstance(kind, AxisType) for kind in types)
    ):
        raise SbpError(
            f"axis_types={given!r} are not the types of {num_axes} axes",
            where="make_mesh",
            why="It is one jax.sharding.AxisType for all axes, or one for each.",
            how="axis_types=jax.sharding.AxisType.Explicit",
        )
    return tuple(types)
