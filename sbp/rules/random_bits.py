"""Random keys and bits: numbers that do not depend on the mesh.

A threefry key turns a 64-bit counter into bits, element by element (jax's partitionable form). A
device that holds a block of the result therefore counts as the whole array does and makes its block
alone. Any other generator makes all bits on every device and keeps its block.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sbp._compat import threefry_2x32
from sbp.algebra import ArrayType, B, Split
from sbp.factors import Call, Factor, Signature, split_signatures
from sbp.rules.laws import elementwise
from sbp.rules.rule import LocalRun, Rule, no_flops


def is_threefry(array: ArrayType) -> bool:
    """Whether an array holds keys of jax's default generator, made element by element."""
    return str(array.dtype) == "key<fry>"


def _leading(call: Call, ndim: int) -> Iterator[Signature]:
    """`S(d) -> S(d)` for the first `ndim` dims of the operand and the result."""
    return split_signatures(Factor((d,), (d,)) for d in range(ndim))


def random_wrap(call: Call) -> Iterator[Signature]:
    """Signatures of random_wrap: `S(d) -> S(d)` for the dims of the keys."""
    return _leading(call, call.outputs[0].ndim)


def random_unwrap(call: Call) -> Iterator[Signature]:
    """Signatures of random_unwrap: `S(d) -> S(d)` for the dims of the keys."""
    return _leading(call, call.inputs[0].ndim)


def random_split(call: Call) -> Iterator[Signature]:
    """Signatures of random_split: `S(d) -> S(d)` for the dims of the keys, not of the new keys."""
    if is_threefry(call.inputs[0]):
        yield from _leading(call, call.inputs[0].ndim)


def per_key(call: Call) -> Iterator[Signature]:
    """Signatures of random_fold_in, random_seed and random_clone: `S(d), .. -> S(d)`."""
    if is_threefry(call.outputs[0]):
        yield from elementwise(call)


def random_bits(call: Call) -> Iterator[Signature]:
    """Signatures of random_bits.

    - `S(d) -> S(d)` for the dims of threefry keys
    - `B -> S(d)` for the dims of each key's bits; of a single key for other generators
    """
    keys, bits = call.inputs[0], call.outputs[0]
    if is_threefry(keys):
        yield from _leading(call, keys.ndim)
    if is_threefry(keys) or keys.ndim == 0:
        for dim in range(keys.ndim, bits.ndim):
            yield Signature((B,), (Split(dim),))


def run_random_bits(run: LocalRun, operands: Sequence[Any]) -> Sequence[Any]:
    """Makes this device's block of the bits."""
    (keys,) = operands
    params, words, batch = run.call.params, run.signature.outputs[0], run.call.inputs[0].ndim
    width, shape = params["bit_width"], tuple(params["shape"])
    local = run.local.outputs[0].shape[batch:]
    if not any(isinstance(word, Split) and word.dim >= batch for word in words):
        return [_for_each_key(lambda key: jax.random.bits(key, shape, _dtype(width)), keys)]
    starts = [run.block_index(words, batch + d) * size for d, size in enumerate(local)]
    partitionable: bool = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
    if is_threefry(run.call.inputs[0]) and partitionable:

        def block(key: Any) -> Any:
            return threefry_block(jax.random.key_data(key), width, shape, local, starts)

    else:

        def block(key: Any) -> Any:
            return lax.dynamic_slice(jax.random.bits(key, shape, _dtype(width)), starts, local)

    return [_for_each_key(block, keys)]


def _dtype(width: int) -> Any:
    return jnp.dtype(f"uint{width}")


def _for_each_key(make: Any, keys: Any) -> Any:
    for _ in range(keys.ndim):
        make = jax.vmap(make)
    return make(keys)


@functools.partial(jax.jit, static_argnames=("width", "shape", "local"), inline=True)
def threefry_block(
    key: Any, width: int, shape: Sequence[int], local: Sequence[int], starts: Sequence[Any]
) -> Any:
    """The bits of one key in a block of an array.

    Args:
        key: The key's two words, uint32 [2].
        width: Bits of each element: 8, 16, 32 or 64.
        shape: Shape of the whole array.
        local: Shape of the block.
        starts: First index of the block on each dim.
    """
    high, low = counter_block(shape, local, starts)
    size = math.prod(local)
    bits = threefry_2x32((key[0], key[1]), jnp.concatenate([high.ravel(), low.ravel()]))
    first, second = bits[:size].reshape(local), bits[size:].reshape(local)
    dtype = _dtype(width)
    if width == 64:
        return lax.shift_left(first.astype(dtype), jnp.array(32, dtype)) | second.astype(dtype)
    return (first ^ second).astype(dtype)


def counter_block(
    shape: Sequence[int], local: Sequence[int], starts: Sequence[Any]
) -> tuple[Any, Any]:
    """Row-major positions of a block's elements in an array, as high and low 32-bit words."""
    high = low = jnp.zeros(tuple(local), jnp.uint32)
    stride = 1
    for dim in reversed(range(len(shape))):
        index = lax.broadcasted_iota(jnp.uint32, tuple(local), dim)
        index = index + jnp.asarray(starts[dim]).astype(jnp.uint32)
        term_high, term_low = _times(index, stride)
        total = low + term_low
        high = high + term_high + (total < low).astype(jnp.uint32)
        low = total
        stride *= shape[dim]
    return high, low


def _times(index: Any, stride: int) -> tuple[Any, Any]:
    """A 32-bit index times a 64-bit stride, mod 2^64, in 16-bit digits of the index."""
    high_word, low_word = (jnp.array(word, jnp.uint32) for word in divmod(stride % 2**64, 2**32))
    mask = jnp.array(0xFFFF, jnp.uint32)
    x1, x0 = index >> 16, index & mask
    y1, y0 = low_word >> 16, low_word & mask
    low, middle, cross = x0 * y0, x1 * y0, x0 * y1
    carry = (low >> 16) + (middle & mask) + (cross & mask)
    high = x1 * y1 + (middle >> 16) + (cross >> 16) + (carry >> 16)
    return high + index * high_word, index * low_word


def threefry2x32(call: Call) -> Iterator[Signature]:
    """Signatures of threefry2x32: `S(d), .. -> S(d), S(d)`."""
    return elementwise(call)


RULES: dict[str, Rule] = {
    "random_seed": Rule(per_key),
    "random_wrap": Rule(random_wrap, flops=no_flops, fusible=True),
    "random_unwrap": Rule(random_unwrap, flops=no_flops, fusible=True),
    "random_split": Rule(random_split),
    "random_fold_in": Rule(per_key),
    "random_clone": Rule(per_key, flops=no_flops, fusible=True),
    "random_bits": Rule(random_bits, run=run_random_bits, fusible=True),
    "threefry2x32": Rule(threefry2x32, fusible=True),
}
