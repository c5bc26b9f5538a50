"""Vmapped loops, and functions that scatter applies: each gives what one device gives."""

import jax
import jax.numpy as jnp
import pytest

from tests.one_device import check, whole

X = whole(8, 8)


BATCHED_LOOPS = {
    "while": jax.vmap(lambda x: jax.lax.while_loop(lambda c: c < 50, lambda c: c * 2 + 1, x)),
    "fori": jax.vmap(lambda x: jax.lax.fori_loop(0, x.astype(int) % 5, lambda i, c: c * 2 + 1, x)),
    "vmap of vmap": jax.vmap(
        jax.vmap(
            lambda x: jax.lax.while_loop(
                lambda c: c[0] < 50, lambda c: (c[0] * 2 + 1, c[1] + 1), (x, 0)
            )
        )
    ),
    "keys": jax.vmap(
        lambda x: jax.lax.while_loop(
            lambda c: c[0] < 50,
            lambda c: (c[0] * 2 + 1, jax.random.split(c[1])[0]),
            (x, jax.random.key(1)),
        )
    ),
}


@pytest.mark.parametrize("name", BATCHED_LOOPS)
def test_each_row_of_a_vmapped_loop_stops_on_its_own(name):
    # Below zero, twice and one more never gets to 50.
    x = abs(whole(8, 4) if name == "vmap of vmap" else whole(16))
    check(BATCHED_LOOPS[name], x, in_sbp=("dp: S(0)",))
    check(BATCHED_LOOPS[name], x)


def twice_and_one(x):
    return jnp.asarray(x).at[jnp.array([0, 3, 3])].apply(lambda row: row * 2 + 1)


@pytest.mark.parametrize("words", ["dp: S(0)", "tp: S(1)", "dp: B, tp: B"])
def test_a_function_is_applied_where_a_scatter_points(words):
    check(twice_and_one, X, in_sbp=(words,))
