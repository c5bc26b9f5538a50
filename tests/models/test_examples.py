"""Every model has an example that plans: a step and the types of its arguments."""

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh

import sbp
from models import conv_net, gpt, mlp

SMALL = gpt.GPTConfig(vocab=32, sequence=8, num_layers=2, num_heads=2, d_model=16)
EXAMPLES = {
    "mlp": (mlp.example, {}),
    "conv_net": (conv_net.example, {}),
    "gpt": (gpt.example, {"config": SMALL}),
}


@pytest.fixture(autouse=True)
def promotion():
    # optax's bias correction raises a float to an int32 array
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize("model", EXAMPLES)
def test_the_batch_size_is_that_of_every_batch_array(model):
    example, options = EXAMPLES[model]
    for size in (None, 8):
        _, (_, batch) = example(**options) if size is None else example(batch=size, **options)
        expected = size or {"gpt": 16}.get(model, 64)
        assert {leaf.shape[0] for leaf in jax.tree.leaves(batch)} == {expected}


@pytest.mark.parametrize("model", EXAMPLES)
def test_the_step_learns_and_keeps_the_types_of_its_state(model):
    example, options = EXAMPLES[model]
    step, (state, batch) = example(batch=4, **options)
    after, loss = jax.eval_shape(step, state, batch)
    assert after == state
    assert loss.shape == ()
    rng = np.random.default_rng(0)

    def filled(leaf):
        if np.issubdtype(leaf.dtype, np.integer):
            return np.zeros(leaf.shape, leaf.dtype)
        return rng.normal(size=leaf.shape, scale=0.1).astype(leaf.dtype)

    current = jax.tree.map(filled, state._replace(moments=None))
    current = current._replace(moments=jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), state[1]))
    data, losses = jax.tree.map(filled, batch), []
    for _ in range(5):
        current, loss = jax.jit(step)(current, data)
        losses.append(float(loss))
    assert losses[-1] < losses[0]


def test_the_example_of_the_gpt_is_the_benchmark():
    _, (state, _) = gpt.example()
    assert sum(leaf.size for leaf in jax.tree.leaves(state.params)) == 3_448_064


def test_an_example_plans_without_devices():
    step, arguments = gpt.example(config=SMALL)
    mesh = AbstractMesh((2, 2), ("dp", "tp"))
    plan = sbp.parallelize(step, mesh=mesh, donate_argnames="state").plan(*arguments)
    assert len(plan.ties) == len(jax.tree.leaves(arguments[0]))
