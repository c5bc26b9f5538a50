"""A step takes and gives what its function does: any tree, any holder of numbers, any call."""

import copy
import dataclasses
import functools
import gc
import inspect
import pickle
import weakref
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import sbp
from tests.one_device import MESH, assert_same, check, whole

X = whole(8, 16)
W = whole(16, 12, seed=1)


class Pair(NamedTuple):
    """Two arrays."""

    first: jax.Array
    second: jax.Array


@functools.partial(jax.tree_util.register_dataclass, data_fields=["w", "b"], meta_fields=["name"])
@dataclasses.dataclass(frozen=True)
class Layer:
    """Arrays, and a name that is no array."""

    w: jax.Array
    b: jax.Array
    name: str


TREES = {
    "nothing": (),
    "empty": {},
    "a dict with None": {"a": X, "none": None, "deep": {"b": [X, (X,)]}},
    "a named tuple": Pair(X, X[:4]),
    "a dataclass": Layer(W, W[0], "layer"),
    "Python numbers": {"f": 2.0, "i": 3, "b": True, "c": 1j},
    "numpy scalars": [np.float32(2), np.int32(3), np.bool_(True)],
    "an array twice": (X, X),
    "an optimizer's state": optax.adam(1e-3).init({"w": jnp.asarray(W)}),
    "a list longer than ten": [whole(4, seed=k) for k in range(11)],
}


@pytest.mark.parametrize("name", TREES)
def test_any_tree_goes_in_and_comes_out(name):
    check(lambda tree: jax.tree.map(lambda x: jnp.add(x, x), tree), TREES[name])


def test_none_stands_for_no_leaf():
    check(lambda x, mask: x if mask is None else x * mask, X, None)
    check(lambda x: (x, None, {}), X)


DTYPES = ["float32", "bfloat16", "float16", "int32", "int8", "uint32", "bool", "complex64"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_dtype(dtype):
    x = jnp.asarray(whole(8, 8) % 2).astype(dtype)

    def fn(x, y):
        y = jnp.swapaxes(y, 0, 1)
        return (x ^ y, jnp.any(x, 0)) if x.dtype == bool else (x * y, jnp.sum(x, 0, dtype=x.dtype))

    check(fn, x, x, in_sbp={"x": "dp: S(0)", "y": "tp: S(0)"})


@pytest.mark.parametrize("shape", [(), (0,), (0, 8), (1,), (1, 1, 8), (3, 5)])
def test_any_shape(shape):
    x = whole(*shape)
    check(lambda x: (x + x, jnp.sum(x), jnp.reshape(x, (-1,))), x)


def test_results_need_not_depend_on_arguments():
    check(lambda: (jnp.zeros((8, 2)), 3, 2.5, np.float32(1), np.arange(4, dtype=np.int32)))
    check(lambda x: (jnp.ones(8), x), X)


def test_results_may_be_arguments_and_may_repeat():
    check(lambda x, w: (x, w, x, x + 1), X, W, in_sbp={"x": "dp: S(0)", "w": "tp: S(1)"})

    def repeated(x):
        y = x * 2
        return y, y, jnp.transpose(y)

    check(repeated, X, out_sbp=("dp: S(0)", "dp: S(1)", "tp: S(0)"))


HOLDERS = {
    "numpy": lambda x: x,
    "float64 numpy": lambda x: x.astype(np.float64),
    "uncommitted": jnp.asarray,
    "one device": lambda x: jax.device_put(x, jax.devices()[3]),
    "split otherwise": lambda x: jax.device_put(x, NamedSharding(MESH, PartitionSpec("tp"))),
    "already there": lambda x: jax.device_put(x, NamedSharding(MESH, PartitionSpec("dp"))),
}


@pytest.mark.parametrize("first", HOLDERS)
@pytest.mark.parametrize("second", ["numpy", "one device", "already there"])
def test_numbers_may_come_from_anywhere_at_any_time(first, second):
    step = sbp.parallelize(lambda x: x * 2, mesh=MESH, in_sbp={"x": "dp: S(0), tp: B"})
    for holder in (first, second, first):
        assert_same(step(HOLDERS[holder](X)), X * 2)
    assert len(step._executables) == 1


def test_an_array_that_has_to_move_is_named_once(caplog):
    step = sbp.parallelize(lambda tree: tree["x"] * 2, mesh=MESH, in_sbp="dp: S(0), tp: B")
    tree = {"x": HOLDERS["split otherwise"](X)}
    for _ in range(3):
        step(tree)
    (message,) = caplog.messages
    assert message == (
        "<lambda>: moved tree.x (512 bytes) to where the plan wants it; "
        "step.place does this ahead of time"
    )
    caplog.clear()
    step(step.place(tree))
    step({"x": X})
    assert not caplog.messages


def test_place_puts_arguments_where_the_plan_wants_them():
    step = sbp.parallelize(
        lambda x, w, n: x @ w * n, mesh=MESH, static_argnums=2,
        in_sbp={"x": "dp: S(0), tp: B", "w": "tp: S(1), dp: B"},
    )  # fmt: skip
    x, w, n = step.place(X, W, 2.0)
    assert str(sbp.words(x)) == "(dp: S(0), tp: B)"
    assert str(sbp.words(w)) == "(dp: B, tp: S(1))"
    assert n == 2.0
    assert_same(step(x, w, n), X @ W * 2)
    assert_same(sbp.parallelize(lambda x: x, mesh=MESH).place(X), X)


def test_init_runs_straight_into_the_planned_words():
    def init(key, scale):
        w = scale * jax.random.randint(key, (16, 12), -3, 4).astype(jnp.float32)
        return {"w": w, "step": jnp.zeros((), jnp.int32)}

    def forward(x, params):
        return x @ params["w"]

    step = sbp.parallelize(forward, mesh=MESH, in_sbp={"params.w": "tp: S(1), dp: S(0)"})
    key = jax.random.key(0)
    step.plan(X, jax.eval_shape(init, key, 2.0))
    params = step.init(init, key, 2.0)
    assert str(sbp.words(params["w"])) == "(dp: S(0), tp: S(1))"
    assert_same(params, init(key, 2.0))


def test_lowered_programs_compile_once_for_all_who_ask():
    step = sbp.parallelize(lambda x: x @ W, mesh=MESH, in_sbp={"x": "dp: S(0)"})
    compiled = step.lower(X).compile()
    assert "dot" in compiled.as_text()
    assert_same(compiled(X), X @ W)
    assert_same(step(X), X @ W)


def test_arguments_by_name_and_by_default():
    def fn(x, w=W, scale=1.0, shift=0.0):
        return x @ w * scale + shift

    step = sbp.parallelize(fn, mesh=MESH)
    assert_same(step(X), X @ W)
    for names in ({"w": W}, {"scale": 2.0}, {"shift": 3.0, "w": W}):
        step = sbp.parallelize(fn, mesh=MESH)
        assert_same(step(X, **names), fn(X, **names))
        assert_same(step(X, **names), fn(X, **names))
    assert step.plan(shift=1.0, w=W, x=X) is step.plan(X, W, shift=1.0)
    step = sbp.parallelize(fn, mesh=MESH)
    assert step.plan(X, w=W) is step.plan(X, W)


def test_any_number_of_arguments():
    step = check(lambda *xs: sum(xs[1:], xs[0]), X, X, X, in_sbp={"xs.1": "dp: S(0)"})
    assert [path for path, _ in step.plan(X, X, X).arguments] == ["xs.0", "xs.1", "xs.2"]


def test_static_arguments_plan_anew_for_each_value_and_kind_of_value():
    def fn(x, mode, n):
        return jnp.full((8,), n) if mode == "full" else x[:, 0] * n

    step = sbp.parallelize(fn, mesh=MESH, static_argnames=("mode", "n"))
    for mode, n in [("full", 2), ("full", 2.0), ("scale", 3.0), ("full", 2), ("scale", 3.0)]:
        assert_same(step(X, mode, n), fn(X, mode, n))
        assert_same(step(X, mode, n=n), fn(X, mode, n))
    assert len(step._executables) == 3


def update(state, gradient):
    new = jax.tree.map(lambda s, g: s - g, state, gradient)
    return new, jax.tree.reduce(lambda a, b: a + b, jax.tree.map(jnp.sum, gradient))


def test_donated_memory_is_given_and_its_words_are_kept():
    state, gradient = {"a": X, "b": W}, {"a": X * 2, "b": W}
    expected = update(update(state, gradient)[0], gradient)
    step = sbp.parallelize(
        update, mesh=MESH, donate_argnums=0, in_sbp={"state.a": "dp: S(0)", "gradient": "dp: S(1)"}
    )
    placed = step.place(state, gradient)[0]
    new, total = step(placed, gradient)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(placed))
    assert jax.tree.map(sbp.words, new) == step.plan(state, gradient).in_sbp[0]
    assert step.plan(state, gradient).ties == (("0.a", "state.a"), ("0.b", "state.b"))
    assert_same(step(new, gradient), expected)
    assert total.shape == ()


def test_static_arguments_do_not_shift_the_donated_ones():
    def scaled(n, x, state):
        return state * n - x

    step = sbp.parallelize(scaled, mesh=MESH, static_argnums=0, donate_argnames="state")
    assert step.plan(2.0, X, X).ties == (("", "state"),)
    _, x, state = step.place(2.0, X, X)
    assert_same(step(2.0, x, state), X)
    assert (x.is_deleted(), state.is_deleted()) == (False, True)


def test_equal_donated_arguments_are_replaced_in_order():
    def swap(a, b, c):
        return a + c, b - c

    step = sbp.parallelize(swap, mesh=MESH, donate_argnums=(0, 1))
    assert step.plan(X, X, X).ties == (("0", "a"), ("1", "b"))
    step = sbp.parallelize(swap, mesh=MESH, donate_argnums=(0, 1, 2))
    assert step.plan(X, X, X).ties == (("0", "a"), ("1", "b"))


def test_without_donation_or_tie_memory_and_words_are_free():
    asked = {"in_sbp": {"state": "dp: S(0), tp: B"}, "out_sbp": ("dp: B, tp: S(1)", None)}
    step = sbp.parallelize(update, mesh=MESH, donate_argnums=0, tie=None, **asked)
    assert step.plan(X, X).ties == ()
    step = sbp.parallelize(update, mesh=MESH, **asked)
    placed = step.place(X, X)
    new, _ = step(*placed)
    assert not placed[0].is_deleted()
    assert str(sbp.words(new)) == "(dp: B, tp: S(1))"


def test_ties_by_path():
    step = sbp.parallelize(
        update, mesh=MESH, tie={"0": "gradient"}, in_sbp={"gradient": "dp: S(1), tp: B"}
    )
    assert step.plan(X, X).ties == (("0", "gradient"),)
    assert str(sbp.words(step(X, X)[0])) == "(dp: S(1), tp: B)"


def test_other_shapes_plan_the_inside_anew_with_the_ends_kept():
    step = check(lambda x, w: x @ w, X, W, in_sbp={"x": "dp: S(0)"})
    first = step.plan(X, W)
    more = whole(16, 16)
    assert_same(step(more, W), more @ W)
    second = step.plan(more, W)
    assert second is not first
    assert (second.arguments, second.results) == (first.arguments, first.results)
    assert_same(step(X, W), X @ W)
    assert len(step._executables) == 2


def test_other_numbers_of_dims_have_the_same_words():
    split = "dp: S(0), tp: B"
    step = sbp.parallelize(lambda x: x * 2, mesh=MESH, in_sbp=split, out_sbp=split)
    for x in (X, X[:, 0], whole(4, 2, 2)):
        assert_same(step(x), x * 2)
        assert sbp.words(step(x))["dp"] == sbp.S(0)


def test_a_step_is_called_as_its_function():
    step = sbp.parallelize(update, mesh=MESH)
    assert (step.__name__, step.__wrapped__) == ("update", update)
    assert "sub" in str(step.trace(X, X))


def test_a_step_is_freed_with_its_programs():
    step = sbp.parallelize(update, mesh=MESH)
    step(X, X)
    freed = weakref.ref(step)
    del step
    gc.collect()
    assert freed() is None


def test_an_error_of_a_later_call_is_the_only_one_shown():
    step = sbp.parallelize(lambda *xs: sum(xs), mesh=MESH)
    step(X)
    with pytest.raises(sbp.PlanError, match="with other arguments") as caught:
        step(X, X)
    assert caught.value.__context__ is None


def test_a_copy_of_a_step_is_the_step():
    step = sbp.parallelize(update, mesh=MESH)
    assert copy.copy(step) is copy.deepcopy({"step": step})["step"] is step
    with pytest.raises(TypeError, match="update is a step and cannot be pickled"):
        pickle.dumps(step)


def test_a_step_has_the_signature_of_its_function():
    step = sbp.parallelize(update, mesh=MESH)
    assert inspect.signature(step) == inspect.signature(update)
    assert callable(step)
