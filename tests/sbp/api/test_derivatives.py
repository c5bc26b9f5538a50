"""Derivatives taken outside a step are those of the function itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp
from tests.one_device import MESH, assert_same, whole

X, W = whole(8, 4), whole(4, 6, seed=1)
N = np.arange(8, dtype=np.int32) % 3


@jax.custom_vjp
def rounded(x):
    return jnp.round(x)


def rounded_forward(x):
    return jnp.round(x), None


def rounded_backward(_, cotangent):
    return (cotangent,)


rounded.defvjp(rounded_forward, rounded_backward)


def loss(w, x, n):
    """A scalar, by way of a custom rule, a recomputation, a loop and an index."""
    y = jax.checkpoint(lambda w: rounded(x @ w))(w)
    return jax.lax.scan(lambda c, z: (c + jnp.sum(z * z), None), jnp.sum(w[n % 4]), y)[0]


def smooth(w, x, n):
    """A scalar without a custom reverse rule, which has no forward derivative."""
    return jnp.sum(jnp.maximum(x @ w, 0) ** 2) + jnp.sum(w[n % 4])


def make_step(fn, lowering="manual"):
    return sbp.parallelize(
        fn, mesh=MESH, lowering=lowering, in_sbp={"x": "dp: S(0)", "w": "tp: S(0)"}
    )


TRANSFORMS = {
    "grad": lambda f: jax.grad(f)(W, X, N),
    "jitted value and grad of two": lambda f: jax.jit(jax.value_and_grad(f, argnums=(0, 1)))(
        W, X, N
    ),
    "vjp": lambda f: jax.vjp(lambda w: f(w, X, N), W)[1](jnp.float32(3)),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(lambda w: f(w, X, N)))(W),
    "vmap": lambda f: jax.vmap(f, (0, None, None))(jnp.stack([W, 2 * W]), X, N),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f), (0, None, 0))(
        jnp.stack([W, 2 * W]), X, jnp.stack([N, N[::-1]])
    ),
    "value and grad of scan": lambda f: jax.value_and_grad(
        lambda w: jax.lax.scan(lambda c, x: (c + f(w, x, N), 0), 0.0, jnp.stack([X, X]))[0]
    )(W),
    "cond": lambda f: jax.lax.cond(W[0, 0] > 9, lambda w: f(w, X, N), lambda w: w[0, 0], W),
    "eval_shape": lambda f: jnp.zeros(jax.eval_shape(f, W, X, N).shape),
}


FORWARD = {
    "linearize": lambda f: jax.linearize(lambda w: f(w, X, N), W)[1](W),
    "jvp": lambda f: jax.jvp(lambda w, x: f(w, x, N), (W, X), (W, X)),
    "hessian": lambda f: jax.hessian(f)(W[:, :1], X[:2], N[:2]),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transformed_steps_are_transformed_functions(name):
    expected = jax.jit(lambda: TRANSFORMS[name](loss))()
    assert_same(TRANSFORMS[name](make_step(loss)), expected)


@pytest.mark.parametrize("name", FORWARD)
def test_forward_derivatives_are_those_of_the_function(name):
    expected = jax.jit(lambda: FORWARD[name](smooth))()
    assert_same(FORWARD[name](make_step(smooth)), expected)


def test_derivatives_under_the_auto_lowering():
    assert_same(jax.grad(make_step(loss, "auto"))(W, X, N), jax.grad(loss)(W, X, N))


def test_integers_and_typed_keys_have_no_derivative():
    def noisy(w, key, n):
        noise = (jax.random.key_data(key)[1] % 5).astype(w.dtype)
        return jnp.sum(w * noise) * n.astype(w.dtype)

    keys, n = jax.random.split(jax.random.key(0), 3), np.int32(2)
    step = sbp.parallelize(noisy, mesh=MESH, in_sbp={"w": "dp: S(0)"})
    over_keys = (None, 0, None)
    assert_same(
        jax.vmap(jax.grad(step), over_keys)(W, keys, n),
        jax.vmap(jax.grad(noisy), over_keys)(W, keys, n),
    )


def test_a_custom_rule_inside_is_kept():
    # A straight-through estimator: round has the gradient 0, `rounded` says 1.
    step = sbp.parallelize(lambda x: jnp.sum(rounded(x)), mesh=MESH)
    assert_same(jax.grad(step)(X / 4), np.ones_like(X))

    def trained(x):
        return x - jax.grad(lambda y: jnp.sum(rounded(y) * 2))(x)

    step = sbp.parallelize(trained, mesh=MESH, in_sbp={"x": "dp: S(0)"})
    assert_same(step(X), X - 2)


def test_derivatives_of_donated_state():
    def update(state, x):
        return state - x, jnp.sum(state * x)

    step = sbp.parallelize(update, mesh=MESH, donate_argnums=0)
    gradient = jax.grad(lambda s: step(s, X)[1])(jnp.asarray(X))
    assert_same(gradient, X)


def test_it_is_said_once_that_such_derivatives_are_not_planned(caplog):
    step = sbp.parallelize(lambda x: jnp.sum(x * x), mesh=MESH)
    step(X)
    assert not caplog.messages
    for _ in range(2):
        jax.grad(step)(X)
    assert caplog.messages == [
        "<lambda>: differentiated from outside; the derivative is right but not planned. "
        "Parallelize the function that takes the gradient."
    ]


def test_a_step_still_runs_after_it_was_transformed():
    step = sbp.parallelize(lambda x: jnp.sum(x * x), mesh=MESH)
    assert_same(jax.grad(step)(X), 2 * X)
    assert_same(step(X), np.sum(X * X))
    assert_same(jax.vmap(step)(jnp.stack([X, X])), np.array([np.sum(X * X)] * 2))
    assert_same(step(X), np.sum(X * X))
