"""Models of flax and optimizers of optax, taken as they are, give one device's numbers."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

import flowjax
import sbp

MESH = flowjax.make_mesh("dp=2,tp=4")
IDS = np.arange(8 * 16).reshape(8, 16) % 32
IMAGES = np.random.default_rng(0).normal(size=(8, 8, 8, 3)).astype(np.float32)
LABELS = np.arange(8) % 4


@pytest.fixture(autouse=True)
def _promotion():
    """As users have it: optax adds numbers of several dtypes."""
    with jax.numpy_dtype_promotion("standard"):
        yield


class MLP(nn.Module):
    """Two layers."""

    @nn.compact
    def __call__(self, x):
        """Logits."""
        return nn.Dense(4)(nn.relu(nn.Dense(16)(x.reshape(x.shape[0], -1))))


class CNN(nn.Module):
    """Convolutions, pooling and batch norm without running statistics."""

    @nn.compact
    def __call__(self, x):
        """Logits."""
        x = nn.relu(nn.GroupNorm(num_groups=4)(nn.Conv(8, (3, 3))(x)))
        x = nn.avg_pool(x, (2, 2), (2, 2))
        x = nn.relu(nn.Conv(16, (3, 3))(x)).mean((1, 2))
        return nn.Dense(4)(x)


class Transformer(nn.Module):
    """A block with flax's own attention."""

    @nn.compact
    def __call__(self, ids):
        """Logits."""
        x = nn.Embed(32, 16)(ids) + nn.Embed(16, 16)(jnp.arange(ids.shape[1]))[None]
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=4)(y, mask=nn.make_causal_mask(ids))
        y = nn.LayerNorm()(x)
        return nn.Dense(32)(x + nn.Dense(16)(nn.gelu(nn.Dense(64)(y))))


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


LINEN = {
    "mlp": (MLP(), IMAGES, LABELS), "cnn": (CNN(), IMAGES, LABELS),
    "transformer": (Transformer(), IDS, np.roll(IDS, -1, 1)),
}  # fmt: skip
OPTIMIZERS = {
    # The gradient of a key's bias is zero but for rounding, which a small eps would blow up.
    "adamw": lambda: optax.adamw(1e-2, eps=1e-3),
    "lion": lambda: optax.lion(1e-2),
    "adafactor": lambda: optax.adafactor(1e-2, min_dim_size_to_factor=8),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2)),
    "every second step": lambda: optax.MultiSteps(optax.sgd(1e-1, momentum=0.9), 2),
}


def check_training(train_step, state, batch, in_sbp, steps=2):
    """Runs some steps; all numbers are those of one device, all that is sent was planned."""
    planned = sbp.parallelize(train_step, mesh=MESH, in_sbp=in_sbp)
    ours, expected = state, state
    alone = jax.jit(train_step)
    for _ in range(steps):
        (ours, loss), (expected, wanted) = planned(ours, batch), alone(expected, batch)
        np.testing.assert_allclose(loss, wanted, rtol=1e-4)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4),
                     ours, expected)  # fmt: skip
    audited = sbp.audit(planned.lower(state, batch).compile(), planned.plan(state, batch))
    assert not audited.unplanned, audited
    return planned.plan(state, batch)


def linen_step(model, optimizer):
    def train_step(state, batch):
        params, opt_state = state
        inputs, labels = batch
        loss, grads = jax.value_and_grad(lambda p: cross_entropy(model.apply(p, inputs), labels))(
            params
        )
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    return train_step


@pytest.mark.slow
@pytest.mark.parametrize("name", LINEN)
def test_linen_models(name):
    model, inputs, labels = LINEN[name]
    params = model.init(jax.random.key(0), inputs)
    transform = OPTIMIZERS["adamw"]()
    step = linen_step(model, transform)
    check_training(step, (params, transform.init(params)), (inputs, labels),
                   {"batch": "dp: S(0)"})  # fmt: skip


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers(optimizer):
    model, inputs, labels = LINEN["mlp"]
    params = model.init(jax.random.key(0), inputs)
    transform = OPTIMIZERS[optimizer]()
    words = {"batch": "dp: S(0)", "state.0.*.Dense_0.kernel": "tp: S(1)"}
    check_training(linen_step(model, transform), (params, transform.init(params)),
                   (inputs, labels), words, steps=3)  # fmt: skip


class Partitioned(nn.Module):
    """Annotated as flax's users do."""

    @nn.compact
    def __call__(self, x):
        """Logits."""
        x = x.reshape(x.shape[0], -1)
        init = nn.initializers.lecun_normal()
        x = nn.relu(nn.Dense(16, kernel_init=nn.with_partitioning(init, (None, "tp")))(x))
        return nn.Dense(4, kernel_init=nn.with_partitioning(init, ("tp", None)))(x)


class Logical(nn.Module):
    """Annotated with logical axes."""

    @nn.compact
    def __call__(self, x):
        """Logits."""
        x = x.reshape(x.shape[0], -1)
        init = nn.initializers.lecun_normal()
        x = nn.relu(
            nn.Dense(16, kernel_init=nn.with_logical_partitioning(init, ("embed", "hidden")))(x)
        )
        return nn.Dense(4, kernel_init=nn.with_logical_partitioning(init, ("hidden", "classes")))(x)


@pytest.mark.parametrize("model", [Partitioned(), Logical()], ids=["mesh axes", "logical axes"])
def test_metadata_of_linen_are_words(model):
    boxed = model.init(jax.random.key(0), IMAGES)
    specs = nn.get_partition_spec(boxed)
    if isinstance(model, Logical):
        specs = nn.logical_to_mesh(specs, (("hidden", "tp"), ("embed", None), ("classes", None)))
    params = nn.meta.unbox(boxed)
    transform = optax.adamw(1e-2)
    plan = check_training(
        linen_step(model, transform), (params, transform.init(params)), (IMAGES, LABELS),
        {"state": (specs, None), "batch": "dp: S(0)"},
    )  # fmt: skip
    words = {path: str(w) for path, w in plan.arguments}
    assert words["state.0.params.Dense_0.kernel"] == "(dp: B, tp: S(1))"
    assert words["state.0.params.Dense_1.kernel"] == "(dp: B, tp: S(0))"


class Attentive(nnx.Module):
    """A block with nnx's own attention."""

    def __init__(self, rngs):
        """Makes the layers."""
        self.embed = nnx.Embed(32, 16, rngs=rngs)
        self.norm = nnx.LayerNorm(16, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, 16, decode=False, rngs=rngs)
        self.out = nnx.Linear(16, 32, rngs=rngs)

    def __call__(self, ids):
        """Logits."""
        x = self.embed(ids)
        return self.out(x + self.attention(self.norm(x)))


def test_nnx_models():
    graph, params = nnx.split(Attentive(nnx.Rngs(0)))
    transform = OPTIMIZERS["adamw"]()

    def train_step(state, batch):
        params, opt_state = state
        inputs, labels = batch
        loss, grads = jax.value_and_grad(
            lambda p: cross_entropy(nnx.merge(graph, p)(inputs), labels)
        )(params)
        updates, opt_state = transform.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    check_training(train_step, (params, transform.init(params)), (IDS, np.roll(IDS, -1, 1)),
                   {"batch": "dp: S(0)"})  # fmt: skip


def test_metadata_of_nnx_are_words():
    init = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, "tp"))
    with jax.sharding.set_mesh(MESH):
        graph, params = nnx.split(nnx.Linear(16, 8, kernel_init=init, rngs=nnx.Rngs(0)))
    specs = nnx.get_partition_spec(params)

    def apply(params, x):
        return nnx.merge(graph, params)(x)

    x = np.ones((8, 16), np.float32)
    step = sbp.parallelize(apply, mesh=MESH, in_sbp=(specs, "dp: S(0)"))
    np.testing.assert_allclose(step(params, x), jax.jit(apply)(params, x), rtol=1e-5)
    words = {path: str(w) for path, w in step.plan(params, x).arguments}
    assert [w for path, w in words.items() if "kernel" in path] == ["(dp: B, tp: S(1))"]


def test_partition_specs_stand_wherever_words_do():
    spec = PartitionSpec("dp", "tp")
    step = sbp.parallelize(lambda x: {"y": x * 2}, mesh=MESH, in_sbp=spec, out_sbp={"y": spec})
    x = np.ones((8, 16), np.float32)
    assert sbp.words(step(x)["y"]) == sbp.NdSbp(dp=sbp.S(0), tp=sbp.S(1))
