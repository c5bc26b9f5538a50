"""What words mean, in numpy: cut an array into what each device holds, and put it together again.

Comes in: an array and its words. Goes out: the local arrays in a numpy array of the mesh's shape,
or the logical array back. Everything that claims to be right is tested against these functions.
Axes nest in mesh order: the first axis cuts the array, the second cuts what a device of the first
holds. Where kinds of P meet, the inner axis is therefore reduced first.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from sbp.algebra import B, Broadcast, NdSbp, Partial, Split
from sbp.errors import SignatureError

Array = np.ndarray[Any, Any]

_WIDE_FLOATS = (2**18, 4)
_NARROW_FLOATS = (2**6, 1)
"""Limit and steps of 1: multiples of 1/4, of 16 bits whole numbers, have exact random parts."""


def scatter(
    array: Any,
    ndsbp: NdSbp,
    mesh_shape: Mapping[str, int],
    rng: np.random.Generator | None = None,
) -> Array:
    """Cuts an array into local arrays.

    Parts of a P array are random, and add up exactly: integers mod 2^k; small round floats. Any
    other float, NaN and infinities included, stays whole on one random device beside zeros. Parts
    of P.max are random up to the maximum, which one random device holds.

    Args:
        array: The logical array.
        ndsbp: Its words; an axis not named is B.
        mesh_shape: Size of each mesh axis, in mesh order.
        rng: Where the parts of P come from; a fixed seed by default.

    Returns:
        An object array of the mesh's shape whose entries are the local arrays.

    Raises:
        SignatureError: A word is on an axis or dim that does not exist, a split dim does not
            divide, or the dtype has no sum or no order.
    """
    _check_axes(ndsbp, mesh_shape)
    rng = np.random.default_rng(0) if rng is None else rng
    locals_ = np.empty(tuple(mesh_shape.values()), dtype=object)
    for index, local in _cut(np.asarray(array), ndsbp, list(mesh_shape.items()), rng):
        locals_[index] = local
    return locals_


def gather(locals_: Array, ndsbp: NdSbp, mesh_shape: Mapping[str, int]) -> Array:
    """Puts local arrays together again.

    Args:
        locals_: Object array of the mesh's shape, as from `scatter`.
        ndsbp: The words; an axis not named is B.
        mesh_shape: Size of each mesh axis, in mesh order.

    Raises:
        SignatureError: Devices of a B axis hold different arrays, or a word is not possible.
    """
    _check_axes(ndsbp, mesh_shape)

    def join(index: tuple[int, ...], axes: list[tuple[str, int]]) -> Array:
        if not axes:
            return np.asarray(locals_[index])
        (axis, size), *inner = axes
        word = ndsbp.get(axis, B)
        if isinstance(word, Broadcast):
            return join((*index, 0), inner)
        return _join([join((*index, k), inner) for k in range(size)], word)

    for position, axis in enumerate(mesh_shape):
        if ndsbp.get(axis, B) == B:
            _check_copies(np.moveaxis(locals_, position, 0), axis)
    return join((), list(mesh_shape.items()))


def _check_copies(locals_: Array, axis: str) -> None:
    first, *others = locals_.reshape(len(locals_), -1)
    for copy in others:
        if not all(map(same, first, copy)):
            raise SignatureError(
                f"the devices of axis {axis!r} hold different arrays",
                why="B means that every device of the axis holds the same array.",
                how="if the arrays are parts of a sum, the word is P; if blocks, S(dim)",
            )


def _check_axes(ndsbp: NdSbp, mesh_shape: Mapping[str, int]) -> None:
    for axis in ndsbp:
        if axis not in mesh_shape:
            mesh = ", ".join(f"{name}={size}" for name, size in mesh_shape.items())
            raise SignatureError(
                f"the mesh has no axis {axis!r}",
                where=f"words {ndsbp}",
                why=f"The mesh is {mesh}.",
                how=f"use one of the axes {', '.join(mesh_shape)}",
            )


def _cut(
    array: Array, ndsbp: NdSbp, axes: list[tuple[str, int]], rng: np.random.Generator
) -> Iterator[tuple[tuple[int, ...], Array]]:
    if not axes:
        yield (), array
        return
    (axis, size), *inner = axes
    word = ndsbp.get(axis, B)
    if isinstance(word, Broadcast):  # cut once, so that the devices of the axis hold the same parts
        for index, local in _cut(array, ndsbp, inner, rng):
            for k in range(size):
                yield (k, *index), local.copy()
        return
    for k, part in enumerate(_parts(array, axis, word, size, rng)):
        for index, local in _cut(part, ndsbp, inner, rng):
            yield (k, *index), local


def _parts(
    array: Array, axis: str, word: Split | Partial, size: int, rng: np.random.Generator
) -> list[Array]:
    match word:
        case Split(dim):
            return _blocks(array, axis, dim, size)
        case Partial("sum"):
            return _sum_parts(array, axis, size, rng)
        case Partial():
            return _extremum_parts(array, axis, word, size, rng)


def _blocks(array: Array, axis: str, dim: int, size: int) -> list[Array]:
    if not 0 <= dim < array.ndim:
        raise SignatureError(
            f"word S({dim}) on axis {axis!r}, but the array has {array.ndim} dims",
            where=f"array of shape {array.shape}",
            why="S(d) splits dim d, counted from 0.",
            how=f"use S(0) to S({array.ndim - 1})" if array.ndim else "use B: it is a scalar",
        )
    if array.shape[dim] % size:
        raise SignatureError(
            f"dim {dim} has size {array.shape[dim]}, axis {axis!r} has {size} devices",
            where=f"array of shape {array.shape}",
            why=f"Split needs equal slices; {array.shape[dim]} is not a multiple of {size}.",
            how=(f"pad dim {dim} to a multiple of {size}", "split another dim", "use B"),
        )
    return [block.copy() for block in np.split(array, size, dim)]


def _no_word(array: Array, axis: str, word: Partial, lacks: str) -> SignatureError:
    return SignatureError(
        f"word {word} on axis {axis!r} of an array of {array.dtype}",
        why=f"Its elements have no {lacks}.",
        how="use B or a split",
    )


def _sum_parts(array: Array, axis: str, size: int, rng: np.random.Generator) -> list[Array]:
    if array.dtype.kind == "c":
        real, imag = (_sum_parts(part, axis, size, rng) for part in (array.real, array.imag))
        return [(a + 1j * b).astype(array.dtype) for a, b in zip(real, imag, strict=True)]
    if array.dtype.kind in "iu":
        low, high = np.iinfo(array.dtype).min, np.iinfo(array.dtype).max
        shape, dtype = array.shape, array.dtype
        draws = range(size - 1)
        parts: list[Array] = [rng.integers(low, high, shape, dtype, endpoint=True) for _ in draws]
        return [*parts, _fold(np.subtract, [array, *parts])]
    if array.dtype.kind == "b" or not _is_float(array):
        raise _no_word(array, axis, Partial(), "sum")
    shape: tuple[int, ...] = array.shape
    limit, steps = _WIDE_FLOATS if array.dtype.itemsize >= 4 else _NARROW_FLOATS
    random: Array = rng.integers(-4 * steps, 4 * steps + 1, (size - 1, *shape)) / steps
    drawn: list[Array] = [part.astype(array.dtype) for part in random]
    counted = array.astype(np.float64) * steps
    whole = (np.abs(counted) < limit * steps) & (counted == np.round(counted))
    parts = [*drawn, _fold(np.subtract, [array, *drawn])]
    owner: Array = rng.integers(0, size, shape)
    zero = np.zeros((), array.dtype)
    return [
        np.where(whole, part, np.where(owner == k, array, zero)) for k, part in enumerate(parts)
    ]


def _is_float(array: Array) -> bool:
    # Narrow floats such as bfloat16 are of numpy's kind "V".
    return array.dtype.kind == "f" or "float" in array.dtype.name


def _extremum_parts(
    array: Array, axis: str, word: Partial, size: int, rng: np.random.Generator
) -> list[Array]:
    if array.dtype.kind == "b":
        lowest, highest = False, True
    elif array.dtype.kind in "iu":
        lowest, highest = np.iinfo(array.dtype).min, np.iinfo(array.dtype).max
    elif _is_float(array):
        lowest, highest = -np.inf, np.inf
    else:
        raise _no_word(array, axis, word, "order")
    neutral = np.full_like(array, lowest if word.kind == "max" else highest)
    shape: tuple[int, ...] = array.shape
    owner: Array = rng.integers(0, size, shape)
    parts: list[Array] = []
    for k in range(size):
        other = rng.permutation(array.ravel()).reshape(array.shape)
        with np.errstate(invalid="ignore"):
            not_above = other <= array if word.kind == "max" else other >= array
            # Beside a NaN any part is allowed, since NaN is on top.
            allowed = not_above | (array != array)
        kept: Array = rng.random(shape) < 0.7
        random = np.where(allowed & kept, other, neutral)
        parts.append(np.where(owner == k, array, random))
    return parts


def _fold(function: Callable[[Array, Array], Array], parts: list[Array]) -> Array:
    total = parts[0]
    with np.errstate(all="ignore"):
        for part in parts[1:]:
            total = np.asarray(function(total, part), dtype=total.dtype)
    return total


def same(a: Array, b: Array) -> bool:
    """Whether two arrays are equal in shape, dtype and every element; NaN equals NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    with np.errstate(all="ignore"):
        return bool(np.all((a == b) | ((a != a) & (b != b))))


def _join(parts: list[Array], word: Split | Partial) -> Array:
    match word:
        case Split(dim):
            return np.concatenate(parts, dim)
        case Partial("sum"):
            return _fold(np.add, parts)
        case Partial("max"):
            return _fold(np.maximum, parts)
        case Partial():
            return _fold(np.minimum, parts)
