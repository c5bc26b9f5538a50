"""Held against one device: a step gives exactly what its function gives, on whole numbers."""

from typing import Any

import jax
import numpy as np

import flowjax
import sbp

MESH = flowjax.make_mesh("dp=2,tp=4")


def whole(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    """Whole numbers from -3 to 3, whose sums and products are exact in any order."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def assert_same(got: Any, expected: Any) -> None:
    """Equal trees of equal arrays: structure, shape, dtype, weakness and every value."""
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        kinds = [(k.shape, k.dtype, k.weak_type) for k in map(jax.typeof, (one, other))]
        assert kinds[0] == kinds[1]
        if jax.numpy.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def check(fn: Any, *args: Any, mesh: Any = MESH, **options: Any) -> sbp.Step:
    """Runs a function as a step, twice, under both lowerings; returns the manual step."""
    expected = fn(*args)
    for lowering in ("auto", "manual"):
        step = sbp.parallelize(fn, mesh=mesh, lowering=lowering, **options)
        for _ in range(2):
            assert_same(step(*args), expected)
    return step
