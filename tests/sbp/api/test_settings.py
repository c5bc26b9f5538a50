"""A step runs the program of this call: its types, jax's settings now, whichever thread calls."""

import concurrent.futures
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowjax
import sbp
from tests.one_device import MESH, assert_same, whole

X = whole(8, 16)


@pytest.fixture
def standard_promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize("first", [0, 1])
def test_numbers_with_and_without_a_dtype(first):
    """A Python number takes the dtype of what it meets."""
    step, fn = sbp.parallelize(jnp.multiply, mesh=MESH), jax.jit(jnp.multiply)
    narrow = np.full((8, 8), 10000, np.int16)
    numbers = [jnp.int32(3), 3]
    for number in [numbers[first], numbers[1 - first]] * 2:
        assert step(narrow, number).dtype == fn(narrow, number).dtype
        np.testing.assert_array_equal(step(narrow, number), fn(narrow, number))
        assert step.lower(narrow, number).out_info.dtype == fn(narrow, number).dtype


def arrays_of_default_types(x):
    return x.sum() + jnp.arange(3).sum(), jnp.arange(3), x.astype(float) * jnp.asarray(2.5)


@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")
@pytest.mark.parametrize("turns", [[False, True, False], [True, False, True]], ids=str)
def test_sixty_four_bits(turns):
    step, fn = sbp.parallelize(arrays_of_default_types, mesh=MESH), jax.jit(arrays_of_default_types)
    for wide in turns:
        with jax.enable_x64(wide):
            results, expected = step(X), fn(X)
            assert [r.dtype for r in results] == [r.dtype for r in expected]
            jax.tree.map(np.testing.assert_array_equal, results, expected)


def test_precision_of_matmuls():
    step = sbp.parallelize(jnp.matmul, mesh=MESH)
    step(X, X.T)
    assert "HIGHEST" not in step.lower(X, X.T).as_text()
    with jax.default_matmul_precision("highest"):
        step(X, X.T)
        assert "HIGHEST" in step.lower(X, X.T).as_text()
    assert len(step._executables) == 2


def test_random_numbers_of_either_kind():
    def normal(seed):
        return jax.random.normal(jax.random.key(seed), (8,))

    step, fn = sbp.parallelize(normal, mesh=MESH), jax.jit(normal)
    found = []
    for partitionable in (True, False, True):
        with jax.threefry_partitionable(partitionable):
            found.append(np.asarray(step(0)))
            np.testing.assert_array_equal(found[-1], fn(0))
    assert not np.array_equal(found[0], found[1])


def test_the_mesh_of_the_context_is_no_such_setting():
    step = sbp.parallelize(lambda x: x * 2, mesh=MESH)
    assert_same(step(X), X * 2)
    with jax.set_mesh(MESH):
        assert_same(step(X), X * 2)
    assert len(step._prepared) == 1


def test_an_array_wider_than_the_settings_allow():
    with jax.enable_x64(True):
        wide = jnp.asarray(X, np.float64)
    step = sbp.parallelize(lambda x: x * 2, mesh=MESH, in_sbp="dp: S(0)")
    for _ in range(2):
        assert step(wide).dtype == np.float32
        assert_same(step(wide), X * 2)


@pytest.mark.parametrize("by_name", [False, True])
def test_nan_is_found_where_it_comes_from(by_name, capsys):
    def root(x):
        return jnp.log(x)

    step = sbp.parallelize(root, mesh=MESH)
    call = (lambda x: step(x=x)) if by_name else step
    with jax.debug_nans(True):
        for _ in range(2):
            with pytest.raises(FloatingPointError, match=r"nan.* encountered in log"):
                call(-1 - abs(X))
            assert np.isfinite(call(1 + abs(X))).all()
    assert np.isnan(call(-1 - abs(X))).all()
    assert "nan" in capsys.readouterr().out


def test_threads_that_call_one_step_in_turn():
    """Threads meet between finding a program and running it."""
    mesh = flowjax.make_mesh("dp=2")
    static = sbp.parallelize(lambda x, n: x * n, mesh=mesh, static_argnums=1)
    shaped = sbp.parallelize(lambda x: x + 1, mesh=mesh)
    arrays = [np.full((2 * k, 4), k, dtype) for k in (1, 2, 3) for dtype in (np.float32, np.int32)]

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(60):
            number, x = int(rng.integers(1, 4)), arrays[rng.integers(len(arrays))]
            np.testing.assert_array_equal(static(arrays[0], number), arrays[0] * number)
            np.testing.assert_array_equal(static(arrays[0], n=number), arrays[0] * number)
            np.testing.assert_array_equal(shaped(x), x + 1)
            np.testing.assert_array_equal(shaped(x=x), x + 1)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(work, seed) for seed in range(4)]:
                done.result(timeout=120)
    finally:
        sys.setswitchinterval(interval)
    assert len(shaped._prepared) == len(arrays)


def test_a_step_that_belongs_to_a_class_is_a_method():
    class Scale:
        def __init__(self, factor):
            self.factor = factor

        step = sbp.parallelize(lambda self, x: x * self.factor, mesh=MESH, static_argnums=0)

    two, three = Scale(2), Scale(3)
    for scale in (two, three, two):
        assert_same(scale.step(X), X * scale.factor)
    assert isinstance(Scale.step, sbp.Step)
