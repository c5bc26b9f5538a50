"""Boxing steps, run: one step of a path is one collective on local arrays.

Comes in: the local array that a device holds inside `jax.shard_map(..., check_vma=False)`, and the
`Step`s of `sbp.boxing`. Goes out: the local array under the words after. What a step means is
defined by `sbp.reference`; the tests hold every step of every mesh against it.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sbp.algebra import ArrayType, Broadcast, P, Partial, Split, Word, local_shape
from sbp.boxing import Step, permutation, permuted_axes


def run_path(
    x: jax.Array,
    steps: Sequence[Step],
    array: ArrayType,
    axis_names: Sequence[str],
    sizes: Sequence[int],
) -> jax.Array:
    """Runs the steps of a path one after the other; arguments as of `run_step`."""
    for step in steps:
        x = run_step(x, step, array, axis_names, sizes)
    return x


def run_step(
    x: jax.Array,
    step: Step,
    array: ArrayType,
    axis_names: Sequence[str],
    sizes: Sequence[int],
) -> jax.Array:
    """Runs one step inside a `shard_map` over all axes of the mesh.

    Args:
        x: The local array under `step.src`.
        step: What to do.
        array: The logical array.
        axis_names: Names of the mesh axes.
        sizes: Number of devices of each mesh axis.

    Returns:
        The local array under `step.dst`.
    """
    if step.kind == "relabel":
        return x
    shape = local_shape(array.shape, step.dst, sizes)
    assert shape is not None, (array, step)
    if array.size == 0:
        # There is nothing to send, and XLA refuses collectives on empty dims.
        return x.reshape(shape)
    names = tuple(axis_names[axis] for axis in step.axes)
    if step.kind == "collective-permute":
        return _permute(x, step, array, axis_names, tuple(sizes))
    num_devices = math.prod(sizes[axis] for axis in step.axes)
    old, new = step.src[step.axes[0]], step.dst[step.axes[0]]
    return _change_word(x, old, new, names, num_devices)


def _change_word(
    x: jax.Array, old: Word, new: Word, names: tuple[str, ...], num_devices: int
) -> jax.Array:
    """Runs a step in which all axes `names` change from one word to another."""
    match old, new:
        case Split(dim), Broadcast():
            return lax.all_gather(x, names, axis=dim, tiled=True)
        case Split(dim), Split(new_dim):
            return lax.all_to_all(x, names, split_axis=new_dim, concat_axis=dim, tiled=True)
        case Split(dim), Partial():
            return _place(x, dim, new, names, num_devices)
        case Broadcast(), Split(dim):
            extent = x.shape[dim] // num_devices
            return lax.dynamic_slice_in_dim(x, lax.axis_index(names) * extent, extent, dim)
        case Broadcast(), Partial():
            # zeros_like would ask a constant where it lies.
            zeros = jnp.zeros(x.shape, x.dtype)
            return lax.select(lax.axis_index(names) == 0, x, zeros)
        case Partial("sum"), Broadcast():
            return lax.psum(x, names)
        case Partial("sum"), Split(dim):
            return lax.psum_scatter(x, names, scatter_dimension=dim, tiled=True)
        case Partial(), Broadcast():
            return _all_reduce_extremum(x, old, names)
        case Partial(), Split(dim):
            return _reduce_scatter_extremum(x, dim, old, names, num_devices)
        case _:
            raise AssertionError(f"no step from {old} to {new}")


def _place(
    x: jax.Array, dim: int, word: Partial, names: tuple[str, ...], num_devices: int
) -> jax.Array:
    extent = x.shape[dim]
    shape = (*x.shape[:dim], extent * num_devices, *x.shape[dim + 1 :])
    whole = jnp.full(shape, _identity(word, x.dtype))
    return lax.dynamic_update_slice_in_dim(whole, x, lax.axis_index(names) * extent, dim)


def _identity(word: Partial, dtype: Any) -> Any:
    """The value that the reduction of `word` ignores."""
    if word == P:
        return np.zeros((), dtype)
    if dtype == jnp.bool_:
        return np.array(word.kind == "min")
    if jnp.issubdtype(dtype, jnp.integer):
        bounds = jnp.iinfo(dtype)
        return np.array(bounds.min if word.kind == "max" else bounds.max, dtype)
    return np.array(-np.inf if word.kind == "max" else np.inf, dtype)


def _all_reduce_extremum(x: jax.Array, word: Partial, names: tuple[str, ...]) -> jax.Array:
    reduce = lax.pmax if word.kind == "max" else lax.pmin
    if x.dtype == jnp.bool_:
        return reduce(x.astype(jnp.uint8), names).astype(jnp.bool_)
    if jnp.issubdtype(x.dtype, jnp.integer):
        return reduce(x, names)
    return _from_ordered_bits(reduce(_to_ordered_bits(x, word), names), x.dtype)


def _to_ordered_bits(x: jax.Array, word: Partial) -> jax.Array:
    """Integers in the order of the floats, with NaN where the reduction of `word` finds it.

    XLA's all-reduce drops NaN on CPU: the maximum over devices of 1, 1, NaN is 1.
    """
    integer = jnp.dtype(f"int{8 * x.dtype.itemsize}")
    bounds = jnp.iinfo(integer)
    ordered = _flip_negatives(lax.bitcast_convert_type(x, integer))
    nan = jnp.full(ordered.shape, bounds.max if word.kind == "max" else bounds.min, ordered.dtype)
    return lax.select(jnp.isnan(x), nan, ordered)


def _from_ordered_bits(bits: jax.Array, dtype: Any) -> jax.Array:
    # Both ends of the integers are bit patterns of NaN.
    return lax.bitcast_convert_type(_flip_negatives(bits), dtype)


def _flip_negatives(bits: jax.Array) -> jax.Array:
    # Negative floats grow in magnitude with their bits; the sign bit stays.
    all_but_sign = jnp.full(bits.shape, jnp.iinfo(bits.dtype).max, bits.dtype)
    return lax.select(bits < 0, bits ^ all_but_sign, bits)


def _reduce_scatter_extremum(
    x: jax.Array, dim: int, word: Partial, names: tuple[str, ...], num_devices: int
) -> jax.Array:
    x = lax.all_to_all(x, names, split_axis=dim, concat_axis=dim, tiled=True)
    extent = x.shape[dim] // num_devices
    parts = x.reshape(*x.shape[:dim], num_devices, extent, *x.shape[dim + 1 :])
    if x.dtype == jnp.bool_:
        return (lax.reduce_or if word.kind == "max" else lax.reduce_and)(parts, (dim,))
    return (lax.reduce_max if word.kind == "max" else lax.reduce_min)(parts, (dim,))


def _permute(
    x: jax.Array,
    step: Step,
    array: ArrayType,
    axis_names: Sequence[str],
    sizes: tuple[int, ...],
) -> jax.Array:
    axes = permuted_axes(step)
    pairs, _ = permutation(axes, step.src, step.dst, array.ndim, sizes)
    part = part_to_send(x, step, array, axis_names, sizes)
    return lax.ppermute(part, tuple(axis_names[axis] for axis in axes), pairs)


def part_to_send(
    x: jax.Array,
    step: Step,
    array: ArrayType,
    axis_names: Sequence[str],
    sizes: tuple[int, ...],
) -> jax.Array:
    """What a device sends in a permute, of what it holds; arguments as of `run_step`."""
    shape = local_shape(array.shape, step.dst, sizes)
    assert shape is not None, (array, step)
    if x.shape == shape:
        return x
    axes = permuted_axes(step)
    _, blocks = permutation(axes, step.src, step.dst, array.ndim, sizes)
    starts = jnp.asarray(np.array(blocks, np.int32) * np.array(shape, np.int32))
    place = lax.axis_index(tuple(axis_names[axis] for axis in axes))
    return lax.dynamic_slice(x, list(starts[place]), shape)
