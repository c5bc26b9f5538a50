"""Cases of random keys and bits, and of matrix decompositions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import threefry2x32_p

from tests.oracle import Case
from tests.values import finite_floats, ints, key_data, keys, whole_floats


def random_cases():
    """Keys and bits."""
    bits = lambda data: jax.random.bits(keys(data), (4, 3, 4))  # noqa: E731
    yield Case("random_bits", bits, (key_data(),))
    for width in (8, 16):
        fn = lambda data, width=width: jax.random.bits(keys(data), (4,), f"uint{width}")  # noqa: E731
        yield Case("random_bits", fn, (key_data(),), label=f"{width}")
    many = jax.vmap(functools.partial(jax.random.bits, shape=(4,)))
    yield Case("random_bits", lambda data: many(keys(data)), (key_data(4),), label="many keys")
    yield Case("random_bits", lambda data: jax.random.bits(keys(data), (0, 4)), (key_data(),),
               label="empty")  # fmt: skip
    other = lambda data: jax.random.bits(  # noqa: E731
        jax.random.wrap_key_data(jnp.tile(data, 2), impl="rbg"), (4, 4)
    )
    yield Case("random_bits", other, (key_data(),), label="rbg")
    yield Case("random_wrap", keys, (key_data(4),))
    yield Case("random_unwrap", lambda data: jax.random.key_data(keys(data)), (key_data(4),))
    yield Case("random_split", lambda data: jax.random.split(keys(data), 4), (key_data(),))
    split = jax.vmap(functools.partial(jax.random.split, num=2))
    yield Case("random_split", lambda data: split(keys(data)), (key_data(4),), label="many keys")
    fold = jax.vmap(jax.random.fold_in)
    number = ints(8, dtype="uint32")
    yield Case("random_fold_in", lambda data, x: fold(keys(data), x), (key_data(8), number))
    yield Case("random_seed", jax.vmap(jax.random.key), (ints(8),))
    yield Case("random_clone", lambda data: jax.random.clone(keys(data)), (key_data(4),))
    words = (ints(4, 4, dtype="uint32"),) * 2
    scalars = (ints(dtype="uint32"),) * 2
    yield Case("threefry2x32", _threefry, (*scalars, *words))


def _threefry(*words):
    return threefry2x32_p.bind(*words)


def linalg_cases():
    """Decompositions, solves, transforms."""
    square = finite_floats(4, 2, 2)
    positive = lambda x: x @ x.mT + 8 * jnp.eye(2)[None]  # noqa: E731
    yield Case("cholesky", lambda x: lax.linalg.cholesky(positive(x)), (square,), 1e-4)
    yield Case("eigh", lambda x: lax.linalg.eigh(positive(x)), (square,), 1e-4)
    yield Case("eig", lax.linalg.eig, (square,), 1e-4)
    yield Case("svd", lax.linalg.svd, (square,), 1e-4)
    yield Case("qr", lax.linalg.qr, (square,), 1e-4)
    yield Case("lu", lax.linalg.lu, (square,), 1e-4)
    yield Case("lu_pivots_to_permutation", _permutation, (ints(4, 2, low=1, high=1),))
    lower = functools.partial(lax.linalg.triangular_solve, lower=True, left_side=True)
    units = lambda rng, tame: np.tile(np.tril(rng.integers(1, 2, (4, 4))), (4, 1, 1)).astype("f")  # noqa: E731
    yield Case("triangular_solve", lower, (units, whole_floats(4, 4, 4)), 1e-5)
    right = functools.partial(lax.linalg.triangular_solve, lower=True, left_side=False)
    yield Case("triangular_solve", right, (units, whole_floats(4, 2, 4)), 1e-5, label="right side")
    for kind in ("FFT", "IFFT"):
        fn = functools.partial(lax.fft, fft_type=kind, fft_lengths=(4,))
        complex_ = lambda x, fn=fn: fn(lax.complex(x, x))  # noqa: E731
        yield Case("fft", complex_, (finite_floats(4, 4),), 1e-4, label=kind)
    real = functools.partial(lax.fft, fft_type="RFFT", fft_lengths=(4,))
    yield Case("fft", real, (whole_floats(4, 4),), 1e-4, label="RFFT")


def _permutation(pivots):
    return lax.linalg.lu_pivots_to_permutation(pivots, 2)


CASES = (*random_cases(), *linalg_cases())
