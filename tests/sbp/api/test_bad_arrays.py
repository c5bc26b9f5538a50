"""Numbers and numpy arrays that jax refuses: what is wrong with them is said, and where."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp
from tests.sbp.api.test_bad_input import MESH, X, refusal


def update(state, gradient):
    return state - gradient["w"]


CASES = {
    "a number beyond int32": (
        2**40,
        """1099511627776, which is too large for int32.
  A Python int becomes int32, which holds -2147483648 to 2147483647.
Fix one of: a smaller number | jax.config.update('jax_enable_x64', True), which makes it int64 | \
a float: float(1099511627776)""",
    ),
    "a number beyond int32 only": (
        2**31,
        """2147483648, which is too large for int32.
  A Python int becomes int32, which holds -2147483648 to 2147483647.
Fix one of: a smaller number | jax.config.update('jax_enable_x64', True), which makes it int64 | \
numpy.uint32(2147483648)""",
    ),
    "a number beyond int64": (
        -(2**70),
        """-1180591620717411303424, which is too large for int32.
  A Python int becomes int32, which holds -2147483648 to 2147483647.
Fix one of: a smaller number | a float: float(-1180591620717411303424)""",
    ),
    "another order of bytes": (
        X.astype(">f4"),
        """of dtype >f4, with its bytes in another order than this machine's.
  Jax takes arrays in the machine's order of bytes.
Fix: convert it: .astype('float32')""",
    ),
    "a masked array": (
        np.ma.masked_array(X, mask=X > 0),
        """a masked array.
  Jax has no masks: the function would see what lies under them.
Fix: fill it: .filled(0)""",
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("use", ["__call__", "plan", "place", "lower"])
def test_arguments_say_what_is_wrong_with_them(case, use):
    value, text = CASES[case]
    step = sbp.parallelize(update, mesh=MESH)
    assert refusal(lambda: getattr(step, use)(X, {"w": value})) == f"argument gradient.w is {text}"


@pytest.mark.parametrize("case", CASES)
def test_results_say_what_is_wrong_with_them(case):
    value, text = CASES[case]
    step = sbp.parallelize(lambda x: (x, value), mesh=MESH)
    assert refusal(lambda: step.plan(X)) == f"result 1 of <lambda> is {text}"


@pytest.mark.parametrize("use", ["words", "show", "box", "signatures"])
@pytest.mark.parametrize("case", CASES)
def test_single_arrays_say_what_is_wrong_with_them(case, use):
    value, text = CASES[case]
    calls = {
        "words": lambda: sbp.words(value),
        "show": lambda: sbp.show(value),
        "box": lambda: sbp.box(value, "", MESH),
        "signatures": lambda: sbp.signatures(jnp.tanh, value),
    }
    assert refusal(calls[use]) == f"the array given to sbp.{use} is {text}"


def test_a_shape_with_another_order_of_bytes():
    step = sbp.parallelize(update, mesh=MESH)
    struct = jax.ShapeDtypeStruct(X.shape, ">f4")
    _, text = CASES["another order of bytes"]
    assert refusal(lambda: step.plan(X, {"w": struct})) == f"argument gradient.w is {text}"


def test_the_remedies_work():
    step = sbp.parallelize(lambda x, n: x.sum() + jnp.float32(n), mesh=MESH)
    for n in (np.uint32(2**31), float(2**40), float(-(2**70))):
        assert step(X, n) == np.float32(128) + np.float32(n)
    step = sbp.parallelize(jnp.negative, mesh=MESH)
    np.testing.assert_array_equal(step(X.astype(">f4").astype("float32")), -X)
    np.testing.assert_array_equal(step(np.ma.masked_array(X, mask=X > 0).filled(0)), 0 * X)
    with jax.enable_x64(True):
        step = sbp.parallelize(lambda x, n: n + 1, mesh=MESH)
        assert int(step(X, 2**40)) == 2**40 + 1
        assert "too large for int64" in refusal(lambda: step.plan(X, 2**70))
