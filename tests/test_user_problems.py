"""Programs that hurt users of JAX sharding give one device's numbers here, or a clear error.

Each is named after the public thread that it is a miniature of, or after what goes wrong there.
Whatever is sent was planned: the compiled program is audited.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import flowjax
import sbp
from tests.one_device import assert_same, whole

MESH = flowjax.make_mesh("x=8")
X, W, V = whole(16, 8), whole(8, 16, seed=1), whole(16, 8, seed=2)
LABELS = np.arange(16) % 8


def run(fn, *args, in_sbp=None, out_sbp=None, exact=True, **options):
    """The plan of a function that gives what one device gives and sends what was planned."""
    step = sbp.parallelize(fn, mesh=MESH, in_sbp=in_sbp, out_sbp=out_sbp, **options)
    expected = jax.jit(fn)(*args)
    if exact:
        assert_same(step(*args), expected)
    else:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), step(*args),
            expected,
        )  # fmt: skip
    plan = step.plan(*args)
    audited = sbp.audit(step.lower(*args).compile(), plan)
    assert not audited.unplanned, audited
    return plan


def sent(plan):
    return [(row.collective, row.count) for row in plan.boxings if not row.is_local]


SPLIT = {"x": "x: S(0)"}
NOTHING_SENT = {
    "jax#15680 fft of a split batch": (lambda x: jnp.abs(jnp.fft.fft(x, axis=1)), (X,), SPLIT),
    "jax#20683 vmapped solves": (
        lambda x: jax.vmap(lambda m: jnp.linalg.inv(m @ m.T + 9 * jnp.eye(4)))(x),
        (whole(16, 4, 4),), SPLIT,
    ),
    "jax cholesky of a split batch": (
        lambda x: jnp.linalg.cholesky(x @ x.transpose(0, 2, 1) + 9 * jnp.eye(4)[None]),
        (whole(16, 4, 4),), SPLIT,
    ),
    "xla#47945 grouped convolution": (
        lambda x, w: lax.conv_general_dilated(
            x, w, (1, 1), "SAME", feature_group_count=2,
            dimension_numbers=("NHWC", "HWIO", "NHWC")),
        (whole(16, 4, 4, 4), whole(3, 3, 2, 4, seed=3)), SPLIT,
    ),
    "top_k of a split batch": (lambda x: lax.top_k(x, 2)[0], (X,), SPLIT),
    "jax#20381 rows shuffled": (
        lambda x: jax.vmap(lambda r, k: jax.random.permutation(k, r))(
            x, jax.random.split(jax.random.key(0), 16)),
        (X,), SPLIT,
    ),
    "jax#28542 embedding of split indices": (
        lambda x, w: w[x], (np.arange(16) % 8, W), {"x": "x: S(0)", "w": "x: B"}),
    "jax#33226 heads repeated": (
        lambda x: jnp.repeat(x, 2, axis=1), (whole(4, 8, 2),), {"x": "x: S(1)"}),
    "jax#39309 dims of size 1": (lambda x: x.reshape(16, 1, 8)[:, 0], (X,), SPLIT),
    "argmax within rows": (lambda x: jnp.argmax(x, axis=1), (X,), SPLIT),
    "jax#29195 map in batches": (
        lambda x: lax.map(lambda r: r * 2, x, batch_size=4), (X,), {"x": "x: S(1)"}),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTHING_SENT)
def test_what_needs_no_communication_has_none(name):
    fn, args, words = NOTHING_SENT[name]
    assert sent(run(fn, *args, in_sbp=words, exact=False)) == []


def losses(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


SENT = {
    "optax's cross-entropy of a split vocabulary": (
        losses, (X * 1.0, LABELS), {"logits": "x: S(1)"}),
    "its gradient": (
        lambda logits, labels: jax.grad(lambda z: losses(z, labels).mean())(logits),
        (X * 1.0, LABELS), {"logits": "x: S(1)"},
    ),
    "embedding of a split table": (
        lambda w, ids: w[ids], (whole(16, 4), LABELS), {"w": "x: S(0)"}),
    "xla#42481 gradient of an embedding": (
        lambda w, ids: jax.grad(lambda t: jnp.sum(t[ids] ** 2))(w), (whole(16, 4), LABELS),
        {"w": "x: S(0)", "ids": "x: S(0)"},
    ),
    "take_along_axis": (
        lambda x, i: jnp.take_along_axis(x, i, axis=1), (X, LABELS[:, None] % 8),
        {"x": "x: S(1)"},
    ),
    "a slice of a split dim": (lambda x: x[:8] + x[8:], (X,), SPLIT),
    "joined and turned": (lambda x: jnp.concatenate([x[::-1], x]), (X,), SPLIT),
    "padded": (lambda x: jnp.pad(x, ((1, 7), (0, 0))), (X,), SPLIT),
    "jax#21403 running sums": (lambda x: jnp.cumsum(x, axis=0), (X,), SPLIT),
    "softmax over a split dim": (lambda x: jax.nn.softmax(x, axis=0), (X,), SPLIT),
    "jax#28334 argmax over a split dim": (lambda x: jnp.argmax(x, axis=0), (X,), SPLIT),
    "rotate_half of a split head": (
        lambda x: jnp.concatenate([-x[..., 4:], x[..., :4]], -1), (X,), {"x": "x: S(1)"}),
    "jax#39301 rolls forth and back": (
        lambda x: jax.grad(lambda v: jnp.sum(jnp.roll(jnp.roll(v, 1), -1) ** 2))(x),
        (whole(8),), SPLIT,
    ),
    "both sides of a contraction": (
        lambda x, w: x @ w, (X, W), {"x": "x: S(1)", "w": "x: S(0)"}),
    "one side of it": (lambda x, w: x @ w, (X, W), {"x": "x: S(1)", "w": "x: B"}),
    "jax#29881 random choice": (
        lambda x: jax.random.choice(jax.random.key(1), x, (8,), replace=False), (X,), SPLIT),
}  # fmt: skip


@pytest.mark.parametrize("name", SENT)
def test_what_is_sent_was_planned(name):
    fn, args, words = SENT[name]
    run(fn, *args, in_sbp=words, exact=False)


LINEAR = {
    "scaled": lambda p, b: p * 2.0,
    "times a whole array": lambda p, b: p * b,
    "contracted": lambda p, b: p @ b.T,
    "added": lambda p, b: p + p * 3,
    "sliced": lambda p, b: p[:8],
    "summed": lambda p, b: jnp.sum(p, axis=0),
    "divided": lambda p, b: p / 4.0,
    "carried": lambda p, b: lax.scan(lambda c, _: (c + p, None), p, None, length=3)[0],
}


@pytest.mark.parametrize("name", LINEAR)
def test_partial_arrays_stay_partial_under_what_is_linear(name):
    def fn(x, w, b):
        partial = sbp.pin(x @ w, x="P")
        return LINEAR[name](partial, b)

    words = {"x": "x: S(1)", "w": "x: S(0)", "b": "x: B"}
    plan = run(fn, X, W, whole(16, 16, seed=3), in_sbp=words, out_sbp="x: B")
    assert len(sent(plan)) == 1
    assert plan.boxings[-1].src == "(x: P)"


@pytest.mark.parametrize("fn", [
    lambda p, b: p + b, lambda p, b: jax.nn.relu(p), lambda p, b: p * p, lambda p, b: jnp.max(p),
])  # fmt: skip
def test_what_is_not_linear_gives_the_sum_its_due(fn):
    def whole_step(x, w, b):
        return fn(x @ w, b)

    words = {"x": "x: S(1)", "w": "x: S(0)", "b": "x: B"}
    plan = run(whole_step, X, W, whole(16, 16, seed=3), in_sbp=words, out_sbp="x: B")
    assert sent(plan)


def model(params, x):
    return jnp.tanh(x @ params["w"] + params["b"][None])


def loss(params, batch):
    x, y = batch
    return jnp.mean((model(params, x) - y) ** 2)


PARAMS = {"w": W / 8, "b": W[0] / 8}
BATCH = X, whole(16, 16, seed=5)


@pytest.mark.parametrize("style", ["B", "S(0)"])
def test_gradients_are_summed_once(style):
    def gradient(params, batch):
        return jax.value_and_grad(loss)(params, batch)

    words = {"params.w": f"x: {style}", "batch": "x: S(0)"}
    run(gradient, PARAMS, BATCH, in_sbp=words, exact=False)


@pytest.mark.parametrize("name", ["psum", "pmean", "all_gather", "axis_index"])
def test_collectives_by_hand_are_refused(name):
    """jax#3970, jax#36886: where they are summed by hand gradients come out 8 times too large."""

    def gradient(params, batch):
        collective = getattr(lax, name)
        reduced = collective("x") if name == "axis_index" else collective(loss(params, batch), "x")
        return jnp.sum(reduced)

    with pytest.raises(sbp.SbpError, match=r"collective|axis"):
        sbp.parallelize(jax.grad(gradient), mesh=MESH).plan(PARAMS, BATCH)


def test_gradients_of_single_rows_are_those_of_rows():
    """jax#36886: through closed-over parameters they came back summed over devices."""
    w = jnp.asarray(W / 8)

    def rows(x):
        return jax.vmap(jax.grad(lambda r: jnp.sum(jnp.tanh(r @ w))))(x)

    assert sent(run(rows, X, in_sbp=SPLIT, exact=False)) == []


def test_a_mean_over_what_counts_is_a_sum_over_a_count():
    def masked(x, mask):
        return jnp.sum(x * mask[:, None]) / jnp.sum(mask)

    mask = (np.arange(16) < 3).astype(np.float32)
    run(masked, X, mask, in_sbp="x: S(0)", exact=False)
    means = lambda x, mask: jnp.mean(x, where=mask[:, None] > 0)  # noqa: E731
    run(means, X, mask, in_sbp="x: S(0)", exact=False)


def accumulated(params, batches):
    def add(total, batch):
        value, gradient = jax.value_and_grad(loss)(params, batch)
        return jax.tree.map(jnp.add, total, (value, gradient)), None

    zero = jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)
    total, _ = lax.scan(add, zero, batches)
    return jax.tree.map(lambda t: t / 4, total)


BATCHES = jax.tree.map(lambda a: a.reshape(4, 4, *a.shape[1:]).repeat(2, 1), BATCH)


def test_accumulated_gradients_are_reduced_once_behind_the_loop():
    """pytorch/xla#5760, maxtext#5099."""
    words = {"params": "x: B", "batches": "x: S(1)"}
    plan = run(accumulated, PARAMS, BATCHES, in_sbp=words, out_sbp="x: B", exact=False)
    assert {count for _, count in sent(plan)} == {1}
    assert "x4" not in [f"x{count}" for _, count in sent(plan)]


def test_what_is_sent_in_a_loop_is_told():
    """maxtext#5056: it came back with no word."""

    def pinned(params, batches):
        def add(total, batch):
            batch = jax.tree.map(lambda b: sbp.pin(b, x="S(0)"), batch)
            gradient = jax.grad(loss)(jax.tree.map(lambda p: sbp.pin(p, x="B"), params), batch)["w"]
            return total + sbp.pin(gradient, x="B"), None

        return lax.scan(add, jnp.zeros_like(params["w"]), batches)[0]

    words = {"params": "x: B", "batches": "x: S(1)"}
    plan = run(pinned, PARAMS, BATCHES, in_sbp=words, exact=False)
    assert {count for _, count in sent(plan)} == {4}
    assert "x4" in plan.explain()


@pytest.mark.parametrize("words", ["x: S(0)", "x: S(1)", "x: B"])
def test_random_numbers_do_not_depend_on_where_they_lie(words):
    """jax#40232, jax#21232."""

    def init(key):
        return jax.random.normal(key, (16, 8)), jax.random.bernoulli(key, 0.5, (16, 8))

    run(init, jax.random.key(3), out_sbp=words)


def test_dropout_differs_between_shards():
    def dropped(x, key):
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)

    ones = np.ones((16, 8), np.float32)
    run(dropped, ones, jax.random.key(0), in_sbp={"x": "x: S(0)"})
    step = sbp.parallelize(dropped, mesh=MESH, in_sbp={"x": "x: S(0)"})
    blocks = np.asarray(step(ones, jax.random.key(0))).reshape(8, 16)
    assert len(np.unique(blocks, axis=0)) == 8


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "lion"])
def test_optimizer_states_lie_as_their_parameters(optimizer):
    """jax#15600, optax#548: they came back whole, on one device."""
    init = getattr(optax, optimizer)(1e-3).init
    plan = run(init, PARAMS, in_sbp={"params.w": "x: S(0)", "params.b": "x: S(0)"},
               out_sbp=None, objective="bytes")  # fmt: skip
    for path, words in plan.results:
        if path.endswith((".w", ".b")):
            assert words["x"] == sbp.S(0), path


def test_single_device_arrays_and_numbers_are_whole_everywhere():
    """orbax#3164: one such array, touched under a mesh, was an error."""
    scale = jax.device_put(jnp.float32(3), jax.devices()[1])
    step = sbp.parallelize(lambda x, s, n: x * s + n, mesh=MESH, in_sbp={"x": "x: S(0)"})
    with jax.sharding.set_mesh(MESH):
        np.testing.assert_array_equal(step(X, scale, 2), X * 3 + 2)


def test_a_dim_that_does_not_divide_is_an_error():
    """jax#27808; a constraint inside jit silently gave a whole array."""
    five = whole(5, 8)
    with pytest.raises(sbp.SignatureError, match="5"):
        sbp.parallelize(lambda x: x * 2, mesh=MESH, in_sbp="x: S(0)").plan(five)
    with pytest.raises(sbp.SignatureError, match="5"):
        sbp.parallelize(lambda x: sbp.pin(x * 2, x="S(0)"), mesh=MESH).plan(five)
