"""Makers of inputs for the oracle: tame ones are small whole numbers, wild ones are everything."""

from typing import Any

import jax
import numpy as np

from tests.oracle import Maker


def floats(*shape: int, dtype: Any = "float32") -> Maker:
    """Wild: fractions, huge, tiny, NaN, infinities, both zeros. Tame: quarters, not zero."""

    def make(rng: np.random.Generator, tame: bool) -> Any:
        whole = rng.integers(1, 5, shape) * rng.choice([-1, 1], shape)
        if tame:
            quarters = whole / 4 if np.dtype(dtype).itemsize >= 4 else whole
            return quarters.astype(dtype)
        special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, -1e-30, 0.3, -0.7])
        pick = rng.random(shape)
        value = np.where(pick < 0.5, whole, rng.choice(special, shape))
        return np.where(pick > 0.9, rng.normal(size=shape), value).astype(dtype)

    return make


def whole_floats(*shape: int, dtype: Any = "float32") -> Maker:
    """Small whole numbers; wild: with NaN and infinities. Sums are exact in any order."""

    def make(rng: np.random.Generator, tame: bool) -> Any:
        whole = rng.integers(-4, 5, shape)
        if tame:
            return whole.astype(dtype)
        special = rng.choice([np.nan, np.inf, -np.inf, -0.0], shape)
        return np.where(rng.random(shape) < 0.9, whole, special).astype(dtype)

    return make


def finite_floats(*shape: int, low: float = -3.0, high: float = 3.0) -> Maker:
    """Finite fractions, for functions whose wild values are not defined (or slow)."""

    def make(rng: np.random.Generator, tame: bool) -> Any:
        return rng.uniform(low, high, shape).astype("float32")

    return make


def ints(
    *shape: int, dtype: Any = "int32", low: int | None = None, high: int | None = None
) -> Maker:
    """Integers of the whole range, extremes included, or of `low` to `high` inclusive."""
    info = np.iinfo(dtype)

    def make(rng: np.random.Generator, tame: bool) -> Any:
        least, most = info.min if low is None else low, info.max if high is None else high
        value = rng.integers(least, most, shape, dtype, endpoint=True)
        extreme = rng.choice(np.array([least, most, max(least, min(most, 0))], dtype), shape)
        return np.where(rng.random(shape) < 0.3, extreme, value).astype(dtype)

    return make


def bools(*shape: int) -> Maker:
    """Booleans."""
    return lambda rng, tame: rng.random(shape) < 0.5


def complexes(*shape: int) -> Maker:
    """Complex numbers with whole parts."""

    def make(rng: np.random.Generator, tame: bool) -> Any:
        real, imag = rng.integers(-4, 5, (2, *shape))
        return (real + 1j * imag).astype("complex64")

    return make


def constant(value: Any, dtype: Any = "float32") -> Maker:
    """Always the same."""
    return lambda rng, tame: np.asarray(value, dtype)


def key_data(*shape: int) -> Maker:
    """The words of threefry keys, to be wrapped in the function."""
    return lambda rng, tame: rng.integers(0, 2**32, (*shape, 2), "uint32")


def keys(data: Any) -> Any:
    """Typed keys of `key_data`."""
    return jax.random.wrap_key_data(data)


def tame(maker: Maker) -> Maker:
    """Small whole numbers only, for operations that spread NaN over all results."""
    return lambda rng, _: maker(rng, True)
