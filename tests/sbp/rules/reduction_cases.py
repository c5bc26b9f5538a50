"""Cases of reductions, windowed reductions and operations along one dim."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.oracle import TRANSCENDENTAL, Case
from tests.values import bools, complexes, constant, floats, ints, whole_floats

REDUCE = {
    "reduce_sum": jnp.sum, "reduce_max": jnp.max, "reduce_min": jnp.min, "reduce_prod": jnp.prod,
}  # fmt: skip
SHAPE = (4, 1, 8)


def reduction_cases():
    """Reductions over dims."""
    for name, fn in REDUCE.items():
        yield Case(name, functools.partial(fn, axis=2), (whole_floats(*SHAPE),))
        yield Case(name, functools.partial(fn, axis=0), (ints(4, 4),), label="int")
        yield Case(name, fn, (whole_floats(4, 2),), label="all")
    for name in ("reduce_max", "reduce_min"):
        yield Case(name, functools.partial(REDUCE[name], axis=1), (floats(4, 4),), label="wild")
    yield Case(
        "reduce_sum", functools.partial(jnp.sum, axis=0), (complexes(4, 4),), label="complex"
    )
    yield Case("reduce_sum", functools.partial(jnp.sum, axis=0), (floats(0, 4),), label="empty")
    bf16 = whole_floats(4, 4, dtype=jnp.bfloat16)
    yield Case("reduce_max", functools.partial(jnp.max, axis=0), (bf16,), label="bf16")
    for name, fn in (("argmax", lax.argmax), ("argmin", lax.argmin)):
        yield Case(name, lambda x, fn=fn: fn(x, 1, np.int32), (floats(4, 4),))
    for name in ("reduce_and", "reduce_or", "reduce_xor"):
        fn = functools.partial(getattr(lax, name), axes=(1,))
        yield Case(name, fn, (bools(4, 4),), label="bool")
        yield Case(name, fn, (ints(4, 4),), label="int")

    def odd(x, y):
        return lax.reduce((x, y), (np.float32(0), np.int32(1)), _odd_monoid, (0,))

    yield Case("reduce", odd, (whole_floats(4, 8), ints(4, 8)))


def _odd_monoid(a, b):
    return a[0] + b[0], a[1] * b[1]


def window(operation, init, shape=(1, 2), strides=(1, 2), padding="VALID"):
    """A windowed reduction."""
    return lambda x: lax.reduce_window(x, init, operation, shape, strides, padding)


def window_cases():
    """Windowed reductions and their gradients."""
    by_name = {"sum": (lax.add, 0.0), "max": (lax.max, -np.inf), "min": (lax.min, np.inf)}
    for name, (operation, init) in by_name.items():
        case = f"reduce_window_{name}"
        yield Case(case, window(operation, init), (whole_floats(8, 4),))
        yield Case(case, window(operation, init, (2, 1), (1, 1), "SAME"), (whole_floats(4, 4),),
                   label="overlapping")  # fmt: skip
    yield Case("reduce_window", window(lambda a, b: a * b + a, 1.0), (whole_floats(4, 4),))
    pool = window(lax.max, -np.inf)
    gradient = lambda x, g: jax.vjp(pool, x)[1](g)  # noqa: E731
    yield Case("select_and_scatter_add", gradient, (whole_floats(4, 4), whole_floats(4, 2)))
    tangent = lambda x, t: jax.jvp(pool, (x,), (t,))[1]  # noqa: E731
    yield Case("select_and_gather_add", tangent, (floats(4, 4), floats(4, 4)))


def ordering_cases():
    """Cumulative sums and their kind, sort, top_k."""
    for name in ("cumsum", "cumprod", "cummax", "cummin"):
        fn = getattr(lax, name)
        yield Case(name, functools.partial(fn, axis=1, reverse=True), (whole_floats(4, 4),))
        yield Case(name, functools.partial(fn, axis=0), (ints(4, 4),), label="int")
    yield Case("cumlogsumexp", lax.cumlogsumexp, (floats(4, 4),), TRANSCENDENTAL)
    yield Case("cumsum", lax.cumsum, (floats(0, 4),), label="empty")
    both = lambda x, y: lax.sort((x, y), dimension=1, num_keys=1)  # noqa: E731
    yield Case("sort", both, (floats(8, 4), ints(8, 4)))
    yield Case("sort", functools.partial(lax.sort, dimension=0), (ints(4, 4),), label="int")
    yield Case("top_k", lambda x: lax.top_k(x, 2), (floats(4, 4),))
    yield Case("sort", lambda x: lax.sort(x), (constant([2.0, 1.0]),), label="vector")


CASES = (*reduction_cases(), *window_cases(), *ordering_cases())
