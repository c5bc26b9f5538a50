"""The devices that take part in a collective: printed groups to ids, ids to mesh axes.

Comes in: a `replica_groups` or `source_target_pairs` attribute as XLA prints it, and the sizes of
the mesh axes. Goes out: tuples of device ids (positions in `mesh.devices.flatten()`), and the names
of the mesh axes along which they lie.
"""

import re
from collections.abc import Mapping
from functools import cache
from itertools import combinations
from math import prod

import numpy as np

from sbp.errors import SbpError

Groups = tuple[tuple[int, ...], ...]

_IOTA = re.compile(r"\[([\d,]+)\](?:<=\[([\d,]+)\])?(?:T\(([\d,]+)\))?")
_MESH = re.compile(r"mesh\[(.*?)\](?:,\s*device_ids=\((.*)\))?\s*\{(.*)\}$")
_MESH_AXIS = re.compile(r"(?:'([^']*)'|([\w.\-]+))=(\d+)")
_AXIS_REF = re.compile(r"(?:'([^']*)'|([\w.\-]+))(?::\((\d+)\)(\d+))?")


def expand_replica_groups(text: str, num_devices: int) -> Groups:
    """Turns any printed form of `replica_groups` into lists of device ids.

    Args:
        text: `{{0,1},{2,3}}`, `{}` (all devices), `[2,4]<=[8]`, `[4,2]<=[2,4]T(1,0)`, or the mesh
            form `mesh['a'=2,'b'=4], device_ids=([2,4]T(1,0)) {'b','a':(1)2}`, in which
            `'a':(pre)size` is the sub-axis of `a` of that size with `pre` devices before it.
        num_devices: Devices in the program.

    Raises:
        SbpError: The form is unknown; better than to count wrong bytes.
    """
    text = text.strip()
    if text.startswith("{"):
        return listed_groups(text) or (tuple(range(num_devices)),)
    if found := re.fullmatch(r"maximal_mesh\[device_id=(\d+)\].*", text):
        return ((int(found.group(1)),),)
    if found := _MESH.match(text):
        return _expand_mesh(*found.groups())
    if _IOTA.fullmatch(text):
        return _rows(_expand_iota(text))
    raise SbpError(f"cannot read replica_groups={text}", how="report this jaxlib version")


def listed_groups(text: str) -> Groups:
    """`{{0,1},{2,3}}` as tuples; also the form of `source_target_pairs`."""
    return tuple(_ints(group) for group in re.findall(r"\{([\d,\s]+)\}", text))


def axes_of_groups(groups: Groups, mesh_sizes: Mapping[str, int]) -> tuple[str, ...] | None:
    """The axes along which the devices of every group differ, in mesh order.

    Returns:
        None if `groups` are not exactly the groups of a set of mesh axes. Axes of size 1 are left
        out, so that the answer is unique.
    """
    sizes = tuple((axis, size) for axis, size in mesh_sizes.items() if size > 1)
    wanted = frozenset(frozenset(group) for group in groups)
    for number in range(1, len(sizes) + 1):
        for axes in combinations(sizes, number):
            if prod(size for _, size in axes) == len(groups[0]):
                names = tuple(axis for axis, _ in axes)
                if _groups_of_axes(sizes, names) == wanted:
                    return names
    return None


def axes_of_pairs(pairs: Groups, mesh_sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The axes along which some (source, target) pair moves, in mesh order."""
    shape = tuple(mesh_sizes.values())
    places = [np.array(np.unravel_index(ids, shape)) for ids in zip(*pairs, strict=True)]
    moved = (places[0] != places[1]).any(axis=1)
    return tuple(axis for axis, moves in zip(mesh_sizes, moved, strict=True) if moves)


@cache
def _groups_of_axes(
    sizes: tuple[tuple[str, int], ...], axes: tuple[str, ...]
) -> frozenset[frozenset[int]]:
    names = [axis for axis, _ in sizes]
    ids = np.arange(prod(size for _, size in sizes)).reshape([size for _, size in sizes])
    ids = np.moveaxis(ids, [names.index(axis) for axis in axes], range(-len(axes), 0))
    group_size = prod(size for axis, size in sizes if axis in axes)
    return frozenset(map(frozenset, ids.reshape(-1, group_size).tolist()))


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.strip())


def _rows(ids: np.ndarray) -> Groups:
    return tuple(tuple(row) for row in ids.tolist())


def _expand_iota(text: str) -> np.ndarray:
    """`[4,2]<=[2,4]T(1,0)`: count up over the inner dims, transpose, read as the outer dims.

    `[2,4]T(1,0)` (no `<=`, device ids of a mesh) is the same without the last step.
    """
    found = _IOTA.fullmatch(text.strip())
    if found is None:
        raise SbpError(f"cannot read the device list {text}", how="report this jaxlib version")
    outer, inner, order = found.groups()
    dims = _ints(inner or outer)
    ids = np.arange(prod(dims)).reshape(dims)
    ids = ids.transpose(_ints(order)) if order else ids
    return ids.reshape(_ints(outer)) if inner else ids


def _expand_mesh(axes: str, device_ids: str | None, axis_refs: str) -> Groups:
    sizes = {quoted or bare: int(size) for quoted, bare, size in _MESH_AXIS.findall(axes)}
    if device_ids is None:
        ids = np.arange(prod(sizes.values()))
    elif "[" in device_ids:
        ids = _expand_iota(device_ids)
    else:
        ids = np.array(_ints(device_ids))
    # The bounds of every named part of an axis cut the axis; each part is then one array dim.
    refs = []
    cuts: dict[str, set[int]] = {axis: {1, size} for axis, size in sizes.items()}
    for quoted, bare, before, size in _AXIS_REF.findall(axis_refs):
        axis = quoted or bare
        first = int(before) if before else 1
        last = first * int(size) if size else sizes[axis]
        cuts[axis] |= {first, last}
        refs.append((axis, first, last))
    dims = [
        (axis, low, high)
        for axis in sizes
        for low, high in zip(sorted(cuts[axis]), sorted(cuts[axis])[1:], strict=False)
    ]
    grouped = [
        place
        for axis, first, last in refs
        for place, (name, low, high) in enumerate(dims)
        if name == axis and first <= low and high <= last
    ]
    shape = [high // low for _, low, high in dims]
    order = [place for place in range(len(dims)) if place not in grouped] + grouped
    group_size = prod(shape[place] for place in grouped)
    return _rows(ids.reshape(shape).transpose(order).reshape(-1, group_size))
