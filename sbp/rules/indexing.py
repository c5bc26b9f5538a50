"""Slices and windows at positions known at run time: gather, scatter, dynamic slices.

A dim that is indexed may itself be split (a table split over the vocabulary). Each device then
brings the indices into the global range as the mode says, subtracts the start of its block, and
looks up or writes only what it owns.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from sbp.algebra import P_MAX, P_MIN, ArrayType, B, P, Partial, Split
from sbp.factors import Call, Factor, Signature, has_sum, linear, split_signatures
from sbp.rules.laws import moves, order, partial_in, sum_word
from sbp.rules.rule import LocalRun, Rule, no_flops

Types = tuple[ArrayType, ...]
FILL_OR_DROP = lax.GatherScatterMode.FILL_OR_DROP
PROMISE_IN_BOUNDS = lax.GatherScatterMode.PROMISE_IN_BOUNDS
CLIP = lax.GatherScatterMode.CLIP


def signed_indices(indices: Any) -> Any:
    """Indices in a dtype that can be shifted: int32, or int64 for 64-bit indices.

    Narrow and unsigned dtypes would wrap around. An unsigned index too large for the signed dtype
    becomes its largest number, which is out of range as well.
    """
    wide = jnp.int64 if indices.dtype.itemsize == 8 else jnp.int32
    if jnp.issubdtype(indices.dtype, jnp.unsignedinteger) and indices.dtype.itemsize >= 4:
        indices = lax.min(indices, jnp.full_like(indices, jnp.iinfo(wide).max))
    return indices.astype(wide)


def _row(values: Sequence[int], like: Any) -> Any:
    """One number for each component of the index vectors, in the shape of the indices."""
    return lax.broadcast_in_dim(jnp.array(values, like.dtype), like.shape, (like.ndim - 1,))


# ---------------------------------------------------------------------------------------- gather


def gather_factors(call: Call) -> Iterator[Factor]:
    """Factors of gather: batch dims of the indices, whole dims of slices, split indexed dims."""
    numbers, sizes = call.params["dimension_numbers"], call.params["slice_sizes"]
    operand = call.inputs[0]
    (result,) = call.outputs
    batching = dict(
        zip(numbers.start_indices_batching_dims, numbers.operand_batching_dims, strict=True)
    )
    batch = [dim for dim in range(result.ndim) if dim not in numbers.offset_dims]
    # The index vector is the last dim of the indices, so batch dim k is dim k of the indices.
    for k, dim in enumerate(batch):
        yield Factor((batching.get(k), k), (dim,))
    for dim, source in zip(numbers.offset_dims, _window_dims(call), strict=True):
        if sizes[source] == operand.shape[source]:
            yield Factor((source, None), (dim,))
    for source in numbers.start_index_map:
        if source in numbers.collapsed_slice_dims:
            yield Factor((source, None), (None,), sum_word(result))


def _window_dims(call: Call) -> list[int]:
    numbers = call.params["dimension_numbers"]
    gone = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    return [dim for dim in range(call.inputs[0].ndim) if dim not in gone]


def gather(call: Call) -> Iterator[Signature]:
    """Signatures of gather.

    - `B, S(k) -> S(d)` for batch dims of the indices; `S(b), S(k) -> S(d)` for batching dims
    - `S(w), B -> S(d)` for dims that a slice takes whole
    - `S(i), B -> P` for an indexed dim of which a slice takes one element (P.max for booleans)
    - any partial word of the operand to itself, the indices B
    """
    yield from split_signatures(gather_factors(call))
    yield from moves(call, 0)


def gather_local(call: Call, inputs: Types, outputs: Types) -> Mapping[str, Any]:
    """Slice sizes of the local gather: those of whole dims follow the local operand."""
    window = _window_dims(call)
    sizes = tuple(
        inputs[0].shape[dim] if dim in window and size == call.inputs[0].shape[dim] else size
        for dim, size in enumerate(call.params["slice_sizes"])
    )
    return {**call.params, "slice_sizes": sizes}


def _default_fill(dtype: Any) -> Any:
    """What `lax.gather` fills with when no value is given."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.nan
    if dtype == jnp.bool_:
        return True
    signed = jnp.issubdtype(dtype, jnp.signedinteger)
    return jnp.iinfo(dtype).min if signed else jnp.iinfo(dtype).max


def _is_first(run: LocalRun) -> Any:
    """Whether this device is the first on every axis on which the result is a sum of parts."""
    first: Any = True
    for axis, word in enumerate(run.signature.outputs[0]):
        adds = word == P or (word == P_MAX and run.signature.inputs[0][axis] != P_MAX)
        if adds:
            first = jnp.logical_and(first, run.axis_index(axis) == 0)
    return first


def run_gather(run: LocalRun, operands: Sequence[Any]) -> Sequence[Any]:
    """Looks up what this device owns; one device adds the fill value of indices out of range."""
    operand, indices = operands
    params, logical = run.local.params, run.call.inputs[0]
    numbers, words = params["dimension_numbers"], run.signature.inputs[0]
    owned_dims = [
        dim
        for dim in numbers.start_index_map
        if dim in numbers.collapsed_slice_dims and run.num_blocks(words, dim) > 1
    ]
    fills = params["mode"] == FILL_OR_DROP and P in run.signature.outputs[0]
    if not numbers.start_index_map or not (owned_dims or fills):
        return [lax.gather(operand, indices, **_gather_options(params))]
    indices = signed_indices(indices)
    map_ = numbers.start_index_map
    last = _row([logical.shape[d] - run.call.params["slice_sizes"][d] for d in map_], indices)
    zero = jnp.zeros_like(indices)
    valid = jnp.all((zero <= indices) & (indices <= last), axis=-1)
    blocks = [operand.shape[d] if d in owned_dims else 0 for d in map_]
    starts = [run.block_index(words, d) * operand.shape[d] if d in owned_dims else 0 for d in map_]
    shifted = lax.clamp(zero, indices, last) - _dynamic_row(starts, indices)
    is_mine = (zero <= shifted) & (shifted < _row(blocks, indices))
    mine = jnp.all(is_mine | (_row(blocks, indices) == 0), axis=-1)
    options = _gather_options(params) | {
        "mode": CLIP, "fill_value": None, "unique_indices": False, "indices_are_sorted": False
    }  # fmt: skip
    found = lax.gather(operand, shifted, **options)
    batch = tuple(d for d in range(found.ndim) if d not in numbers.offset_dims)

    def spread(mask: Any) -> Any:
        return lax.broadcast_in_dim(mask, found.shape, batch)

    result = jnp.where(spread(mine), found, jnp.zeros_like(found))
    if params["mode"] == FILL_OR_DROP:
        value = params["fill_value"]
        value = _default_fill(found.dtype) if value is None else value
        zeros = jnp.zeros_like(found)
        fill = jnp.where(_is_first(run), jnp.full_like(found, value), zeros)
        result = jnp.where(spread(valid), result, fill)
    return [result]


def _dynamic_row(values: Sequence[Any], like: Any) -> Any:
    row = jnp.stack([jnp.asarray(value, like.dtype) for value in values])
    return lax.broadcast_in_dim(row, like.shape, (like.ndim - 1,))


def _gather_options(params: Mapping[str, Any]) -> dict[str, Any]:
    names = "dimension_numbers slice_sizes unique_indices indices_are_sorted mode fill_value"
    return {name: params[name] for name in names.split()}


# --------------------------------------------------------------------------------------- scatter


def scatter_factors(call: Call) -> Iterator[Factor]:
    """Factors of scatter: batching dims, whole dims of the windows, split indexed dims."""
    numbers = call.params["dimension_numbers"]
    operand, _, updates = call.inputs
    scattered = _scattered_dims(call)
    batching = zip(
        numbers.scatter_indices_batching_dims, numbers.operand_batching_dims, strict=True
    )
    for k, dim in batching:
        yield Factor((dim, k, scattered[k]), (dim,))
    gone = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    window = [dim for dim in range(operand.ndim) if dim not in gone]
    for source, dim in zip(numbers.update_window_dims, window, strict=True):
        if updates.shape[source] == operand.shape[dim]:
            yield Factor((dim, None, source), (dim,))
    for dim in numbers.scatter_dims_to_operand_dims:
        if dim in numbers.inserted_window_dims:
            yield Factor((dim, None, None), (dim,))


def _scattered_dims(call: Call) -> list[int]:
    """Dim of the updates for each batch dim of the indices."""
    window = call.params["dimension_numbers"].update_window_dims
    return [dim for dim in range(call.inputs[2].ndim) if dim not in window]


def _split_updates(call: Call, word: Partial) -> Iterator[Signature]:
    """`word, S(k), S(d) -> word`: each device applies its updates to its part of the operand."""
    batching = call.params["dimension_numbers"].scatter_indices_batching_dims
    for k, dim in enumerate(_scattered_dims(call)):
        if k not in batching:
            yield Signature((word, Split(k), Split(dim)), (word,))


def scatter_add(call: Call) -> Iterator[Signature]:
    """Signatures of scatter-add and scatter-sub.

    - `S(b), S(k), S(d) -> S(b)` for batching dims
    - `S(w), B, S(d) -> S(w)` for dims that a window takes whole
    - `S(i), B, B -> S(i)` for an indexed dim: updates that fall outside the block are dropped
    - `P, S(k), S(d) -> P`: split updates
    - `P, B, P -> P`
    """
    yield from split_signatures(scatter_factors(call))
    yield from linear(call, 0, 2)
    if has_sum(call.outputs[0]):
        yield from _split_updates(call, P)


def scatter_mul(call: Call) -> Iterator[Signature]:
    """Signatures of scatter-mul: splits as scatter-add, but not of the updates; `P, B, B -> P`."""
    yield from split_signatures(scatter_factors(call))
    yield from linear(call, 0)


def scatter_max(call: Call) -> Iterator[Signature]:
    """Signatures of scatter-max: those of scatter-add with P.max for P."""
    return _scatter_extremum(call, P_MAX)


def scatter_min(call: Call) -> Iterator[Signature]:
    """Signatures of scatter-min: those of scatter-add with P.min for P."""
    return _scatter_extremum(call, P_MIN)


def _scatter_extremum(call: Call, word: Partial) -> Iterator[Signature]:
    yield from split_signatures(scatter_factors(call))
    for _ in order(call, 0, 2, words=(word,)):
        yield partial_in(call, (0, 2), word, word)
        yield from _split_updates(call, word)


def scatter(call: Call) -> Iterator[Signature]:
    """Signatures of scatter, which overwrites, or applies the user's function to what is there.

    - the splits of scatter-add, but of the updates: a device does not know what others overwrite
    - `P, B, P -> P`, and of P.max and P.min, where no index occurs twice: each device might
      choose another of two updates; not with a function, of which nothing is known
    """
    yield from split_signatures(scatter_factors(call))
    if call.params.get("update_jaxpr") is not None:
        return
    indices = call.inputs[1]
    single = indices.size == (indices.shape[-1] if indices.ndim else 1)
    if call.params["unique_indices"] or single:
        yield from moves(call, 0, 2)


def _runs_scatter(operation: Callable[..., Any]) -> Callable[..., Sequence[Any]]:
    """Runs a scatter of which an indexed dim may be split."""

    def run(run: LocalRun, operands: Sequence[Any]) -> Sequence[Any]:
        operand, indices, updates = operands
        params, logical = run.local.params, run.call.inputs[0]
        numbers, words = params["dimension_numbers"], run.signature.inputs[0]
        names = ["dimension_numbers", "indices_are_sorted", "unique_indices", "mode"]
        if operation is _overwrite:
            names += ["update_jaxpr", "update_consts"]
        options = {name: params[name] for name in names}
        map_ = numbers.scatter_dims_to_operand_dims
        split = [
            dim
            for dim in map_
            if dim in numbers.inserted_window_dims and run.num_blocks(words, dim) > 1
        ]
        if not split:
            return [operation(operand, indices, updates, **options)]
        indices = signed_indices(indices)
        zero = jnp.zeros_like(indices)
        if params["mode"] == CLIP:
            sizes = _window_sizes(run.call)
            last = _row([logical.shape[d] - sizes[d] for d in map_], indices)
            indices = lax.clamp(zero, indices, last)
        starts = [run.block_index(words, d) * operand.shape[d] if d in split else 0 for d in map_]
        shifted = indices - _dynamic_row(starts, indices)
        # An index below the block must not be taken for one counted from the end, nor wrap around.
        below = indices < _dynamic_row(starts, indices)
        outside = _row([operand.shape[d] for d in map_], indices)
        is_split = _row([d in split for d in map_], indices) > 0
        shifted = jnp.where(is_split & below, outside, shifted)
        options |= {"mode": FILL_OR_DROP, "indices_are_sorted": False, "unique_indices": False}
        return [operation(operand, shifted, updates, **options)]

    return run


def _overwrite(operand: Any, indices: Any, updates: Any, **params: Any) -> Any:
    return lax.scatter_p.bind(operand, indices, updates, **params)


def _window_sizes(call: Call) -> list[int]:
    """Size of the update window on each dim of the operand."""
    numbers = call.params["dimension_numbers"]
    window = iter(numbers.update_window_dims)
    gone = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    ndim = call.inputs[0].ndim
    return [1 if dim in gone else call.inputs[2].shape[next(window)] for dim in range(ndim)]


def num_update_elements(call: Call) -> int:
    """Flops of a scatter that combines: one for each element of the updates."""
    return call.inputs[2].size


# -------------------------------------------------------------------------------- dynamic slices


def dynamic_slice(call: Call) -> Iterator[Signature]:
    """Signatures of dynamic_slice.

    - `S(d), B, .. -> S(d)` for dims taken whole: their start is clamped to 0
    - any partial word of the operand to itself, the starts B
    """
    operand, *starts = call.inputs
    for dim, size in enumerate(call.params["slice_sizes"]):
        if size == operand.shape[dim]:
            yield Signature((Split(dim), *(B for _ in starts)), (Split(dim),))
    yield from moves(call, 0)


def dynamic_slice_local(call: Call, inputs: Types, outputs: Types) -> Mapping[str, Any]:
    """Slice sizes of the local slice."""
    return {**call.params, "slice_sizes": outputs[0].shape}


def dynamic_update_slice(call: Call) -> Iterator[Signature]:
    """Signatures of dynamic_update_slice.

    - `S(d), S(d), B, .. -> S(d)` for dims updated whole
    - `P, P, B, .. -> P`, and of P.max and P.min
    """
    operand, update, *starts = call.inputs
    for dim, size in enumerate(update.shape):
        if size == operand.shape[dim]:
            yield Signature((Split(dim), Split(dim), *(B for _ in starts)), (Split(dim),))
    yield from moves(call, 0, 1)


RULES: dict[str, Rule] = {
    "gather": Rule(gather, localize=gather_local, run=run_gather, flops=no_flops),
    "scatter": Rule(scatter, run=_runs_scatter(_overwrite), flops=no_flops),
    "scatter-add": Rule(scatter_add, run=_runs_scatter(lax.scatter_add), flops=num_update_elements),
    "scatter-sub": Rule(scatter_add, run=_runs_scatter(lax.scatter_sub), flops=num_update_elements),
    "scatter-mul": Rule(scatter_mul, run=_runs_scatter(lax.scatter_mul), flops=num_update_elements),
    "scatter-max": Rule(scatter_max, run=_runs_scatter(lax.scatter_max), flops=num_update_elements),
    "scatter-min": Rule(scatter_min, run=_runs_scatter(lax.scatter_min), flops=num_update_elements),
    "dynamic_slice": Rule(
        dynamic_slice, localize=dynamic_slice_local, flops=no_flops, fusible=True
    ),
    "dynamic_update_slice": Rule(dynamic_update_slice, flops=no_flops, fusible=True),
}
