"""Cases of the primitives that move elements."""

import functools

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.oracle import Case
from tests.values import bools, complexes, constant, floats, ints

RESHAPES = (
    ((16,), (2, 8)), ((2, 8), (16,)), ((4, 3), (6, 2)), ((8, 1, 2), (4, 1, 4)), ((4, 4), (1, 16)),
    ((4,), (4, 1)), ((1, 1), ()), ((0, 4), (2, 0)), ((2, 2, 4), (4, 2, 2)),
)  # fmt: skip


def cases_of(name, fn, *makers, label=""):
    """A case of each kind of element: float, integer, boolean."""
    for kind, maker in (("", floats), ("int", ints), ("bool", bools)):
        shapes = [maker(*shape) for shape in makers]
        yield Case(name, fn, tuple(shapes), label=f"{label} {kind}".strip())


def view_cases():
    """Views: every element once."""
    for source, target in RESHAPES:
        fn = functools.partial(jnp.reshape, shape=target)
        yield Case("reshape", fn, (floats(*source),), label=f"{source} to {target}")
    yield Case("reshape", lambda x: x.reshape(8), (bools(2, 4),), label="bool")
    transpose = functools.partial(lax.transpose, permutation=(2, 0, 1))
    yield from cases_of("transpose", transpose, (2, 4, 2))
    yield Case("transpose", lambda x: x.T, (complexes(4, 4),), label="complex")
    squeeze = functools.partial(lax.squeeze, dimensions=(0, 2))
    yield from cases_of("squeeze", squeeze, (1, 4, 1, 4))
    yield from cases_of("rev", lambda x: lax.rev(x, (1,)), (4, 4))


def repeat_cases():
    """Elements repeated or filled in."""
    broadcast = functools.partial(
        lax.broadcast_in_dim, shape=(4, 4, 2), broadcast_dimensions=(0, 1)
    )
    yield from cases_of("broadcast_in_dim", broadcast, (1, 4))
    scalar = functools.partial(lax.broadcast, sizes=(4, 0))
    yield Case("broadcast_in_dim", scalar, (floats(),), label="empty")
    yield from cases_of("tile", lambda x: jnp.tile(x, (2, 1)), (4, 4))
    pad = functools.partial(lax.pad, padding_config=((0, 0, 0), (1, -1, 1)))
    yield from cases_of("pad", pad, (4, 4), ())
    for dtype, size in (("int32", 8), ("float32", 8), ("uint8", 8), ("bfloat16", 1024)):
        fn = functools.partial(lax.broadcasted_iota, jnp.dtype(dtype), (size, 4))
        yield Case("iota", lambda fn=fn: fn(0), (), label=dtype)
        yield Case("iota", lambda fn=fn: fn(1), (), label=f"{dtype} dim 1")
    yield Case("iota", lambda: lax.broadcasted_iota(jnp.uint8, (1024,), 0), (), label="wraps")


def part_cases():
    """Elements cut out and put together."""
    cut = functools.partial(lax.slice, start_indices=(0, 1), limit_indices=(4, 4), strides=(1, 2))
    yield from cases_of("slice", cut, (4, 4))
    plain = functools.partial(lax.slice, start_indices=(0, 1), limit_indices=(4, 3))
    yield Case("slice", plain, (floats(4, 4),), label="no strides")
    yield from cases_of("split", lambda x: lax.split(x, (1, 3), 1), (4, 4))
    join = lambda x, y: lax.concatenate((x, y), 0)  # noqa: E731
    yield from cases_of("concatenate", join, (2, 4), (4, 4))
    yield Case("concatenate", join, (floats(0, 4), floats(4, 4)), label="empty")
    yield from cases_of("stack", lambda x, y: jnp.stack([x, y], 1), (4, 4), (4, 4))
    yield from cases_of("unstack", lambda x: jnp.unstack(x, axis=1), (4, 2, 4))


def start():
    """A start that may be out of range."""
    return ints(low=-6, high=6)


def dynamic_cases():
    """Slices at positions known at run time."""
    cut = lambda x, i, j: lax.dynamic_slice(x, (i, j), (4, 2))  # noqa: E731
    yield Case("dynamic_slice", cut, (floats(4, 4), start(), start()))
    yield Case("dynamic_slice", cut, (bools(4, 4), start(), start()), label="bool")
    small = ints(dtype="uint8")
    yield Case("dynamic_slice", cut, (ints(4, 4), small, small), label="uint8")
    put = lambda x, y, i, j: lax.dynamic_update_slice(x, y, (i, j))  # noqa: E731
    yield Case("dynamic_update_slice", put, (floats(4, 4), floats(4, 2), start(), start()))
    yield Case(
        "dynamic_update_slice", put, (bools(4, 4), bools(4, 2), start(), start()), label="bool"
    )
    yield Case("dynamic_slice", cut, (floats(4, 4), constant(0, np.int32), start()), label="zero")


CASES = (*view_cases(), *repeat_cases(), *part_cases(), *dynamic_cases())
