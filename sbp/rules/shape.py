"""Primitives that move elements without computing: every partial word passes them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from sbp.algebra import ArrayType, B, Split
from sbp.factors import Call, Factor, Signature, is_integer, keep_params, split_signatures
from sbp.rules.laws import moves
from sbp.rules.rule import LocalRun, Rule, no_flops

Types = tuple[ArrayType, ...]


def _shape_param(name: str):
    """Localizes the parameter that holds the result's shape."""

    def localize(call: Call, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        return {**call.params, name: outputs[0].shape}

    return localize


def broadcast_in_dim(call: Call) -> Iterator[Signature]:
    """Signatures of broadcast_in_dim.

    - `S(d) -> S(d')` for the operand's dims, `B -> S(d)` for new and repeated dims
    - any partial word to itself
    """
    (operand, *dynamic), (result,) = call.inputs, call.outputs
    if dynamic:
        return
    source = {
        dim: k
        for k, dim in enumerate(call.params["broadcast_dimensions"])
        if operand.shape[k] == result.shape[dim]
    }
    yield from split_signatures(Factor((source.get(d),), (d,)) for d in range(result.ndim))
    yield from moves(call, 0)


def reshape_factors(operand: Sequence[int], result: Sequence[int]) -> Iterator[Factor]:
    """The leading dims of each smallest group of dims with equal products; sizes 1 do not count.

    A split of the leading dim of a group cuts the group in equal runs of elements on either side.
    An inner dim can be split once the dims before it in its group are 1 in the local shapes.
    """
    rows = [dim for dim, size in enumerate(operand) if size != 1]
    columns = [dim for dim, size in enumerate(result) if size != 1]
    while rows and columns:
        row, column = rows.pop(0), columns.pop(0)
        yield Factor((row,), (column,))
        left, right = operand[row], result[column]
        while left != right:
            if left < right:
                left *= operand[rows.pop(0)]
            else:
                right *= result[columns.pop(0)]


def reshape(call: Call) -> Iterator[Signature]:
    """Signatures of reshape.

    - `S(d) -> S(d')` for the leading dims of each group of dims with equal products
    - any partial word to itself
    """
    (operand, *dynamic), (result,) = call.inputs, call.outputs
    if dynamic or call.params.get("dimensions") is not None:
        return
    if operand.size:  # an empty array has no groups
        yield from split_signatures(reshape_factors(operand.shape, result.shape))
    yield from moves(call, 0)


def transpose(call: Call) -> Iterator[Signature]:
    """Signatures of transpose: `S(permutation[d]) -> S(d)`, any partial word to itself."""
    permutation = call.params["permutation"]
    yield from split_signatures(Factor((source,), (d,)) for d, source in enumerate(permutation))
    yield from moves(call, 0)


def squeeze(call: Call) -> Iterator[Signature]:
    """Signatures of squeeze: `S(d) -> S(d')` for dims that stay, any partial word to itself."""
    ndim = call.inputs[0].ndim
    gone = {dim % ndim for dim in call.params["dimensions"]}
    kept = [dim for dim in range(ndim) if dim not in gone]
    yield from split_signatures(Factor((source,), (d,)) for d, source in enumerate(kept))
    yield from moves(call, 0)


def _whole_dims(call: Call) -> tuple[int, ...]:
    """The dims that a slice leaves as they are."""
    params, shape = call.params, call.inputs[0].shape
    strides = params["strides"] or (1,) * len(shape)
    return tuple(
        dim
        for dim, size in enumerate(shape)
        if (params["start_indices"][dim], params["limit_indices"][dim], strides[dim])
        == (0, size, 1)
    )


def slice_(call: Call) -> Iterator[Signature]:
    """Signatures of slice: `S(d) -> S(d)` for dims taken whole, any partial word to itself."""
    yield from split_signatures(Factor((d,), (d,)) for d in _whole_dims(call))
    yield from moves(call, 0)


def slice_local(call: Call, inputs: Types, outputs: Types) -> Mapping[str, Any]:
    """Limits of the local slice."""
    whole = _whole_dims(call)
    limits = tuple(
        inputs[0].shape[dim] if dim in whole else limit
        for dim, limit in enumerate(call.params["limit_indices"])
    )
    return {**call.params, "limit_indices": limits}


def _unpadded_dims(call: Call) -> tuple[int, ...]:
    config = call.params["padding_config"]
    return tuple(dim for dim, edges in enumerate(config) if tuple(edges) == (0, 0, 0))


def pad(call: Call) -> Iterator[Signature]:
    """Signatures of pad.

    - `S(d), B -> S(d)` for dims without padding
    - `P, P -> P`, `P.max, P.max -> P.max`, `P.min, P.min -> P.min`
    """
    yield from split_signatures(Factor((d, None), (d,)) for d in _unpadded_dims(call))
    yield from moves(call, 0, 1)


def concatenate(call: Call) -> Iterator[Signature]:
    """Signatures of concatenate: `S(d), .. -> S(d)` for the other dims, partial words in all."""
    count = len(call.inputs)
    for dim in range(call.outputs[0].ndim):
        if dim != call.params["dimension"]:
            yield Signature((Split(dim),) * count, (Split(dim),))
    yield from moves(call, *range(count))


def stack(call: Call) -> Iterator[Signature]:
    """Signatures of stack: `S(d), .. -> S(d')`, d' after the new dim, partial words in all."""
    count, axis = len(call.inputs), call.params["axis"] % call.outputs[0].ndim
    for dim in range(call.inputs[0].ndim):
        yield Signature((Split(dim),) * count, (Split(dim + (dim >= axis)),))
    yield from moves(call, *range(count))


def unstack(call: Call) -> Iterator[Signature]:
    """Signatures of unstack: `S(d) -> S(d'), ..` for the dims that stay, any partial word."""
    count, axis = len(call.outputs), call.params["axis"] % call.inputs[0].ndim
    for dim in range(call.inputs[0].ndim):
        if dim != axis:
            yield Signature((Split(dim),), (Split(dim - (dim > axis)),) * count)
    yield from moves(call, 0)


def split(call: Call) -> Iterator[Signature]:
    """Signatures of split: `S(d) -> S(d), ..` for the other dims, any partial word to itself."""
    for dim in range(call.inputs[0].ndim):
        if dim != call.params["axis"]:
            yield Signature((Split(dim),), (Split(dim),) * len(call.outputs))
    yield from moves(call, 0)


def tile(call: Call) -> Iterator[Signature]:
    """Signatures of tile: `S(d) -> S(d)` for dims not repeated, any partial word to itself."""
    alone = [dim for dim, count in enumerate(call.params["reps"]) if count == 1]
    if call.inputs[0].ndim == call.outputs[0].ndim:
        yield from split_signatures(Factor((d,), (d,)) for d in alone)
    yield from moves(call, 0)


def rev(call: Call) -> Iterator[Signature]:
    """Signatures of rev: `S(d) -> S(d)` for dims not reversed, any partial word to itself."""
    alone = [dim for dim in range(call.inputs[0].ndim) if dim not in call.params["dimensions"]]
    yield from split_signatures(Factor((d,), (d,)) for d in alone)
    yield from moves(call, 0)


def iota(call: Call) -> Iterator[Signature]:
    """Signatures of iota: `-> S(d)` for each dim."""
    words = (B,) * len(call.inputs)
    for dim in range(call.outputs[0].ndim):
        yield Signature(words, (Split(dim),))


def run_iota(run: LocalRun, operands: Sequence[Any]) -> Sequence[Any]:
    """Counts from the first index of this device's block."""
    params, result = run.local.params, run.local.outputs[0]
    dim, words = params["dimension"], run.signature.outputs[0]
    first = run.block_index(words, dim) * result.shape[dim]
    if run.num_blocks(words, dim) == 1:
        return [lax.broadcasted_iota(result.dtype, result.shape, dim)]
    if is_integer(result):
        # Small dtypes wrap around on one device too, and so does this sum.
        block = lax.broadcasted_iota(result.dtype, result.shape, dim)
        return [block + jnp.asarray(first, jnp.int32).astype(result.dtype)]
    # Floats round the whole index, not the block's index and its start.
    block = lax.broadcasted_iota(jnp.int32, result.shape, dim) + jnp.asarray(first, jnp.int32)
    return [block.astype(result.dtype)]


def _view(signatures, localize=keep_params, run=None, aspect=None) -> Rule:
    return Rule(signatures, localize, run, no_flops, fusible=True, aspect=aspect)


RULES: dict[str, Rule] = {
    "broadcast_in_dim": _view(broadcast_in_dim, _shape_param("shape")),
    "reshape": _view(reshape, _shape_param("new_sizes")),
    "transpose": _view(transpose),
    "squeeze": _view(squeeze),
    "slice": _view(slice_, slice_local, aspect=_whole_dims),
    "pad": _view(pad, aspect=_unpadded_dims),
    "concatenate": _view(concatenate),
    "stack": _view(stack),
    "unstack": _view(unstack),
    "split": _view(split),
    "tile": _view(tile),
    "rev": _view(rev),
    "iota": _view(iota, _shape_param("shape"), run_iota),
}
