"""Meshes by name and size: the text `dp=2,tp=4` becomes a `jax.sharding.Mesh` of devices."""

import math
import re
from collections.abc import Mapping, Sequence

import jax
from jax.sharding import AxisType, Mesh

from sbp.errors import SbpError

_ITEM = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(-?\d+)\s*")


def parse_mesh(text: str) -> dict[str, int]:
    """Axis sizes by name, outer axis first, from text such as `dp=2,tp=4`.

    Raises:
        SbpError: The text has another form, an axis occurs twice, or a size is below 1.
    """
    axes: dict[str, int] = {}
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise SbpError(
                f"mesh {text!r} has the item {item.strip()!r}",
                where="make_mesh",
                why="A mesh is a list of axes, each a name, '=' and a whole number.",
                how="write it like 'dp=2,tp=4'",
            )
        name, size = match[1], int(match[2])
        if name in axes:
            raise SbpError(
                f"mesh {text!r} names axis {name!r} twice",
                where="make_mesh",
                why="An axis has one size.",
                how=("different names", f"one axis of both: '{name}={axes[name] * size}'"),
            )
        axes[name] = size
    _check_sizes(axes)
    return axes


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
        SbpError: The axes are malformed, or larger than the number of devices.
    """
    sizes = parse_mesh(axes) if isinstance(axes, str) else dict(axes)
    _check_sizes(sizes)
    available = jax.devices() if devices is None else list(devices)
    needed = math.prod(sizes.values())
    if needed > len(available):
        raise SbpError(
            f"mesh {_text(sizes)!r} needs {needed} devices, there are {len(available)}",
            where="make_mesh",
            why="Each point of a mesh is a device of its own.",
            how=(
                "a smaller mesh",
                f"simulate them on the CPU, before JAX is first used: "
                f"jax.config.update('jax_num_cpu_devices', {needed}), "
                f"or XLA_FLAGS=--xla_force_host_platform_device_count={needed}",
            ),
        )
    types = (axis_types,) * len(sizes) if isinstance(axis_types, AxisType) else tuple(axis_types)
    return jax.make_mesh(
        tuple(sizes.values()), tuple(sizes), axis_types=types, devices=available[:needed]
    )


def _check_sizes(axes: Mapping[str, int]) -> None:
    if not axes:
        raise SbpError(
            "the mesh has no axes",
            where="make_mesh",
            why="Words are said per mesh axis.",
            how="one axis of one device: 'dp=1'",
        )
    for name, size in axes.items():
        if size < 1:
            raise SbpError(
                f"mesh {_text(axes)!r} gives axis {name!r} the size {size}",
                where="make_mesh",
                why="An axis has at least one device.",
                how=f"leave {name!r} out",
            )


def _text(axes: Mapping[str, int]) -> str:
    return ",".join(f"{name}={size}" for name, size in axes.items())
