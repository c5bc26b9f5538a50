"""Random numbers do not depend on the mesh, nor on where keys, data and results lie on it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowjax
import sbp
from tests.one_device import assert_same, whole

SHAPE = (16, 8)
LOGITS = whole(16, 8)


def samples(key, x):
    normal, row = jax.random.normal, jax.random.split(key, 16)
    return {
        "normal": normal(key, SHAPE),
        "uniform": jax.random.uniform(key, SHAPE, minval=-1, maxval=3),
        "bernoulli": jax.random.bernoulli(key, 0.3, SHAPE),
        "integers": jax.random.randint(key, SHAPE, 0, 100),
        "categorical": jax.random.categorical(key, x, axis=-1),
        "gumbel": jax.random.gumbel(key, SHAPE),
        "truncated": jax.random.truncated_normal(key, -1.0, 1.0, SHAPE),
        "permutation": jax.random.permutation(key, 16),
        "rows permuted": jax.random.permutation(key, x, axis=0),
        "dropout": jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x * 2, 0.0),
        "split": jax.vmap(lambda k: normal(k, (8,)))(row),
        "folded": normal(jax.random.fold_in(key, 7), SHAPE),
    }


KEYS = {
    "typed": lambda: jax.random.key(3),
    "raw": lambda: jax.random.PRNGKey(3),
}
MESHES = ("dp=8", "dp=2,tp=4", "dp=4,tp=2", "dp=1,tp=8")


@pytest.mark.parametrize("words", ["dp: S(0)", "dp: B"])
@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("axes", MESHES)
def test_numbers_are_those_of_one_device(axes, kind, words):
    key = KEYS[kind]()
    mesh = flowjax.make_mesh(axes)
    step = sbp.parallelize(samples, mesh=mesh, in_sbp={"x": words}, out_sbp=words)
    assert_same(step(key, LOGITS), jax.jit(samples)(key, LOGITS))
    plan = step.plan(key, LOGITS)
    draws = [row for row in plan.equations if "random" in row.primitive]
    assert draws


def test_a_whole_key_on_split_data_draws_each_devices_own_block():
    def masked(key, x):
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)

    step = sbp.parallelize(masked, mesh=flowjax.make_mesh("dp=8"), in_sbp={"x": "dp: S(0)"})
    x = np.ones((64, 16), np.float32)
    plan = step.plan(jax.random.key(0), x)
    assert not [row for row in plan.boxings if not row.is_local]
    blocks = np.asarray(step(jax.random.key(0), x)).reshape(8, -1)
    assert len(np.unique(blocks, axis=0)) == 8


def test_the_mesh_may_change_between_two_steps_of_training():
    def walk(state, key):
        return state + jax.random.normal(key, state.shape)

    x = np.zeros(SHAPE, np.float32)
    keys = jax.random.split(jax.random.key(1), 2)
    first, second = (
        sbp.parallelize(walk, mesh=flowjax.make_mesh(axes), in_sbp={"state": "dp: S(0)"})
        for axes in ("dp=8", "dp=2,tp=4")
    )
    got = second(np.asarray(first(x, keys[0])), keys[1])
    expected = jax.jit(walk)(jax.jit(walk)(x, keys[0]), keys[1])
    np.testing.assert_array_equal(got, expected)
