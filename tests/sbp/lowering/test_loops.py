"""Loops that write what they stack over what they read, held against `lax.scan`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import flowjax
import sbp
from sbp._compat import Scan
from sbp.lowering.loops import scan_over
from tests.one_device import whole

LENGTH, SIZE = 6, 64
WEIGHTS = whole(LENGTH, SIZE, SIZE)


def backward(carry, slices):
    """As behind a layer: the gradient of a weight does not depend on it, what goes on does."""
    weight, offset = slices
    gradient = jnp.outer(carry, carry)
    carry = jnp.clip(carry @ weight, -3, 3) + offset
    return carry, [gradient, jnp.sum(carry), offset * 2]


def scan(reverse=False, unroll=1):
    return Scan(None, 0, 1, LENGTH, reverse, unroll)


def run(weights, how):
    xs = [weights, jnp.arange(LENGTH, dtype=jnp.float32)]
    return how(backward, jnp.ones(SIZE), xs)


def written_over(places, given, *, a_turn_later):
    """`scan_over` in place of `lax.scan`, for one array that is carried."""

    def how(step, carry, xs):
        def on_list(carry, slices):
            carry, ys = step(carry[0], slices)
            return [carry], ys

        carry, ys = scan_over(on_list, [carry], xs, given, places, a_turn_later=a_turn_later)
        return carry[0], ys

    return how


@pytest.mark.parametrize("a_turn_later", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("unroll", [1, 4])
def test_what_is_written_over_is_what_would_be_stacked(a_turn_later, reverse, unroll):
    over = written_over({0: 0, 2: 1}, scan(reverse, unroll), a_turn_later=a_turn_later)
    expected = run(WEIGHTS, lambda *args: lax.scan(*args, reverse=reverse, unroll=unroll))
    jax.tree.map(np.testing.assert_array_equal, run(WEIGHTS, over), expected)


def test_a_stack_is_held_once_and_never_copied():
    def temporary_nbytes(how):
        step = jax.jit(lambda x: jnp.sum(run(jnp.tanh(x), how)[1][0], axis=0))
        return step.lower(WEIGHTS).compile().memory_analysis().temp_size_in_bytes

    beside = temporary_nbytes(lax.scan)
    instead = temporary_nbytes(written_over({0: 0}, scan(), a_turn_later=True))
    # A slice is held until the next turn writes it.
    assert instead <= beside - WEIGHTS.nbytes * (LENGTH - 2) / LENGTH


def train(weights):
    """Gathered weights are read by a loop that stacks their gradients."""

    def layer(x, w):
        return jnp.tanh(x @ w), None

    def loss(weights):
        return jnp.sum(lax.scan(layer, jnp.ones((8, SIZE)), weights)[0])

    return weights - jax.grad(loss)(weights)


@pytest.mark.parametrize("words", ["dp: S(1)", "dp: B"])
def test_gradients_take_the_place_of_weights_that_were_gathered_only(words, monkeypatch):
    written = []

    def note(step, carry, xs, scan, over, *, a_turn_later):
        written.extend(over)
        return scan_over(step, carry, xs, scan, over, a_turn_later=a_turn_later)

    monkeypatch.setattr("sbp.lowering.manual.scan_over", note)
    mesh = flowjax.make_mesh("dp=8")
    step = sbp.parallelize(train, mesh=mesh, in_sbp={"weights": words}, out_sbp=words)
    np.testing.assert_allclose(step(WEIGHTS), train(WEIGHTS), rtol=1e-5, atol=1e-5)
    assert len(written) == (words != "dp: B")
