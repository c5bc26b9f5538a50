"""The GPT: its size, causality, and the options that must not change the numbers."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flowjax.styles import STYLES
from models import gpt

TINY = gpt.GPTConfig(vocab=17, sequence=8, num_layers=2, num_heads=2, d_model=8)
RTOL = 1e-5  # float32, sums of at most a few hundred terms in another order


def batch_of(config: gpt.GPTConfig, *, seed: int = 0) -> jax.Array:
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.integers(0, config.vocab, (4, config.sequence + 1)), jnp.int32)


def value_and_grad(config: gpt.GPTConfig, key: jax.Array | None = None):
    params = gpt.init(jax.random.key(0), config)
    return jax.jit(jax.value_and_grad(lambda p: gpt.loss(p, batch_of(config), config, key)))(params)


def assert_same(left, right):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=RTOL, atol=1e-6), left, right)


def test_benchmark_has_the_size_of_the_byte_goals():
    params = jax.eval_shape(lambda: gpt.init(jax.random.key(0), gpt.BENCHMARK))
    sizes = {
        jax.tree_util.keystr(path): leaf.size for path, leaf in jax.tree.leaves_with_path(params)
    }
    small = 4 * (2 * 256 + 1024 + 256) + 256  # two gains and two MLP biases a layer, one last gain
    assert sum(sizes.values()) == 4 * 12 * 256**2 + (1024 + 128) * 256 + small == 3_448_064


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_later_tokens_do_not_change_earlier_logits(positions):
    config = replace(TINY, positions=positions)
    params = gpt.init(jax.random.key(0), config)
    tokens = batch_of(config)[:, :-1]
    changed = tokens.at[:, 5].set((tokens[:, 5] + 1) % config.vocab)
    logits = jax.jit(gpt.apply, static_argnames="config")
    before, after = (np.asarray(logits(params, t, config)) for t in (tokens, changed))
    np.testing.assert_array_equal(before[:, :5], after[:, :5])
    assert (before[:, 5:] != after[:, 5:]).any(axis=(0, 2)).all()


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_order_of_earlier_tokens_matters(positions):
    config = replace(TINY, positions=positions, num_layers=1)
    params = gpt.init(jax.random.key(0), config)
    tokens = jnp.asarray([[1, 2, 3], [2, 1, 3]], jnp.int32)
    logits = jax.jit(gpt.apply, static_argnames="config")(params, tokens, config)
    assert not np.array_equal(logits[0, -1], logits[1, -1])


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("change", [{"scan_layers": False}, {"remat": True}])
def test_scan_and_remat_do_not_change_loss_or_gradient(change, dropout):
    config = replace(TINY, dropout=dropout)
    key = jax.random.key(1)
    assert_same(value_and_grad(config, key), value_and_grad(replace(config, **change), key))


def test_dropout_needs_a_rate_and_a_key():
    config = replace(TINY, dropout=0.3)
    params, batch = gpt.init(jax.random.key(0), TINY), batch_of(TINY)
    keys = jax.random.split(jax.random.key(1))
    loss = jax.jit(gpt.loss, static_argnames="config")
    plain = loss(params, batch, TINY)
    assert loss(params, batch, TINY, keys[0]) == plain
    assert loss(params, batch, config) == plain
    assert len({float(plain), *(float(loss(params, batch, config, key)) for key in keys)}) == 3


def test_dropout_keeps_the_mean():
    dropped = gpt._dropout(jnp.ones((100, 100)), 0.25, jax.random.key(0), 0)
    assert set(np.unique(dropped)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs(float(jnp.mean(dropped)) - 1) < 0.03  # 5 standard deviations of 10,000 draws


def test_new_model_predicts_uniformly():
    value = gpt.loss(gpt.init(jax.random.key(0), TINY), batch_of(TINY), TINY)
    assert abs(float(value) - np.log(TINY.vocab)) < 0.02


@pytest.mark.parametrize("tied", [True, False])
def test_gradient_descent_lowers_the_loss(tied):
    config = replace(TINY, tied_embedding=tied)
    batch = batch_of(config)
    step = jax.jit(jax.value_and_grad(lambda params: gpt.loss(params, batch, config)))
    params = gpt.init(jax.random.key(0), config)
    first, _ = step(params)
    for _ in range(30):
        _, gradient = step(params)
        params = jax.tree.map(lambda p, g: p - 0.3 * g, params, gradient)
    assert float(step(params)[0]) < 0.9 * float(first)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("options", [{}, {"positions": "learned", "tied_embedding": False}])
def test_words_name_every_parameter(style, options):
    config = replace(TINY, **options)
    params = jax.eval_shape(lambda: gpt.init(jax.random.key(0), config))
    paths = {
        "*." + jax.tree_util.keystr(path, simple=True, separator=".")
        for path, _ in jax.tree.leaves_with_path(params)
    }
    expected = set() if style == "free" else {"batch"} | paths
    assert set(gpt.words(config, style)) == expected


def test_megatron_splits_heads_and_hidden():
    words = gpt.words(TINY, "megatron", ("dp", "tp"))
    assert words["batch"] == "dp: S(0), tp: B"
    assert words["*.blocks.wqkv"] == "dp: B, tp: S(3)"
    assert words["*.blocks.wproj"] == "dp: B, tp: S(1)"
    assert words["*.blocks.wdown"] == "dp: B, tp: S(1)"
    assert words["*.embedding"] == "dp: B, tp: B"
