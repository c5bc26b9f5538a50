"""The MLP and the convolutional network: shapes, learning, and words for every array."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flowjax.styles import STYLES
from models import conv_net, mlp

CASES = [
    pytest.param(mlp, mlp.MLPConfig(inputs=4, hidden=8, classes=3), "inputs", (4,), id="mlp"),
    pytest.param(
        conv_net,
        conv_net.ConvNetConfig(side=8, channels=(2, 4, 8), classes=3),
        "images",
        (8, 8, 2),
        id="conv_net",
    ),
]


@pytest.mark.parametrize(("model", "config", "name", "shape"), CASES)
def test_gradient_descent_lowers_the_loss(model, config, name, shape):
    rng = np.random.default_rng(0)
    batch = {
        name: jnp.asarray(rng.normal(size=(16, *shape)), jnp.float32),
        "labels": jnp.asarray(rng.integers(0, config.classes, 16), jnp.int32),
    }
    step = jax.jit(jax.value_and_grad(lambda params: model.loss(params, batch)))
    params = model.init(jax.random.key(0), config)
    assert model.apply(params, batch[name]).shape == (16, config.classes)
    first, _ = step(params)
    for _ in range(50):
        _, gradient = step(params)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)
    assert float(step(params)[0]) < 0.8 * float(first)


@pytest.mark.parametrize(("model", "config", "name", "shape"), CASES)
@pytest.mark.parametrize("style", STYLES)
def test_words_name_every_parameter(model, config, name, shape, style):
    paths = {f"*.{path}" for path in model.init(jax.random.key(0), config)}
    expected = set() if style == "free" else {"batch.*"} | paths
    assert set(model.words(style)) == expected


def test_max_pool_takes_the_largest_of_four():
    image = jnp.arange(16.0).reshape(1, 4, 4, 1)
    np.testing.assert_array_equal(conv_net._max_pool(image)[0, :, :, 0], [[5, 7], [13, 15]])
