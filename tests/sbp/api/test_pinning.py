"""Pins hold in a plan, change no number, and outside a plan speak jax's own language."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import flowjax
import sbp
from sbp.tracing import trace
from tests.one_device import MESH, assert_same, check, whole

X, W = whole(8, 16), whole(16, 16, seed=1)
SPLIT = PartitionSpec("dp")
EXPLICIT = flowjax.make_mesh("dp=2,tp=4", axis_types=AxisType.Explicit)


def pinned_words(fn, *args):
    """Words of the pins that sbp reads in a function."""
    structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in args]
    found = []

    def visit(block):
        for equation in block.equations:
            if equation.name == "pin":
                found.append(str(equation.params["words"]))
            for body in equation.bodies:
                visit(body)

    visit(trace(lambda *xs: jax.tree.leaves(fn(*xs)), structs, MESH).block)
    return found


@pytest.mark.parametrize(
    "pin",
    [
        lambda x: sbp.pin(x, dp=sbp.S(0)),
        lambda x: sbp.pin(x, "dp: S(0)"),
        lambda x: sbp.pin(x, sbp.NdSbp(dp=sbp.S(0))),
        lambda x: sbp.pin(x, dp="S(0)"),
        lambda x: sbp.pin(x, dp=sbp.S(-2)),
        lambda x: jax.lax.with_sharding_constraint(x, SPLIT),
        lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(MESH, SPLIT)),
        lambda x: jax.sharding.reshard(x, NamedSharding(EXPLICIT, SPLIT)),
        lambda x: jax.sharding.reshard(x, SPLIT),
        lambda x: jnp.einsum("ab,bc->ac", x, np.eye(16, dtype=np.float32), out_sharding=SPLIT),
    ],
)
def test_every_way_to_pin_is_one_pin(pin):
    assert pinned_words(lambda x: pin(x) * 2, X) == ["(dp: S(0))"]
    for lowering in ("manual", "auto"):
        step = sbp.parallelize(lambda x: pin(x * 2), mesh=MESH, lowering=lowering)
        assert_same(step(X), X * 2)
        assert "8@dp" in step.plan(X).equations[-1].results[0].replace("(", "")
    assert_same(step(X), X * 2)


def test_a_pin_of_nothing_is_nothing():
    assert sbp.pin(X) is X
    assert pinned_words(lambda x: sbp.pin(x), X) == []


@pytest.mark.parametrize("dim", [0, 1])
def test_pins_decide_between_equal_plans(dim):
    plan = sbp.parallelize(lambda x: sbp.pin(x * 2, tp=sbp.S(dim)), mesh=MESH).plan(X)
    assert plan.arguments[0][1]["tp"] == plan.results[0][1]["tp"] == sbp.S(dim)
    assert plan.wire_nbytes == 0


def test_a_pin_to_partial_puts_off_the_sum():
    def fn(x, w, v):
        return sbp.pin(x @ w, tp=sbp.P) + x @ v

    step = check(fn, X, W, W, in_sbp={"x": "tp: S(1)", "w": "tp: S(0)", "v": "tp: S(0)"})
    sent = [row for row in step.plan(X, W, W).boxings if not row.is_local]
    assert len(sent) == 1


def test_pins_inside_loops_and_branches():
    def fn(x, w):
        def body(c, row):
            return sbp.pin(c + row, tp=sbp.S(0)), sbp.pin(row, dp=sbp.S(0))

        y = jax.lax.scan(body, w[0], x)
        return jax.lax.cond(x[0, 0] > 0, lambda: sbp.pin(y[1], dp=sbp.S(1)), lambda: y[1] * 2), y[0]

    assert pinned_words(fn, X, W) == ["(tp: S(0))", "(dp: S(0))", "(dp: S(1))"]
    check(fn, X, W)


@pytest.mark.parametrize(
    ("in_axis", "words"), [(0, "(dp: S(2))"), (1, "(dp: S(2))"), (2, "(dp: S(1))")]
)
def test_a_mapped_pin_counts_dims_past_the_new_one(in_axis, words):
    def fn(x):
        return jax.vmap(lambda y: sbp.pin(y, dp=sbp.S(1)), in_axis, in_axis)(x)

    x = whole(4, 4, 4)
    assert pinned_words(fn, x) == [words]
    check(fn, x)


def test_a_pin_holds_for_the_derivative_too():
    def fn(x):
        return jax.grad(lambda y: jnp.sum(sbp.pin(y * y, dp=sbp.S(0)) * y))(x)

    assert set(pinned_words(fn, X)) == {"(dp: S(0))"}
    check(fn, X)
    tangent = jax.jvp(lambda y: sbp.pin(y * y, dp=sbp.S(0)), (X,), (X,))[1]
    assert_same(tangent, 2 * X * X)


def test_outside_a_plan_a_pin_is_the_identity():
    def fn(x):
        return sbp.pin(x, dp=sbp.S(0), tp=sbp.P) * 2

    assert_same(fn(X), X * 2)
    assert_same(jax.jit(fn)(X), X * 2)
    assert_same(jax.vmap(fn)(X[:, :, None]), X[:, :, None] * 2)
    assert_same(jax.jit(jax.grad(lambda x: jnp.sum(fn(x))))(X), np.full_like(X, 2))


@pytest.mark.parametrize("mesh", [MESH, EXPLICIT], ids=["auto", "explicit"])
def test_under_plain_jit_a_pin_is_a_sharding(mesh):
    @jax.jit
    def fn(x):
        return sbp.pin(x * 2, dp=sbp.S(1), ep=sbp.S(0))

    with jax.set_mesh(mesh):
        for x in (X, jax.device_put(X, NamedSharding(mesh, PartitionSpec("tp")))):
            y = fn(x)
            assert_same(y, X * 2)
            assert sbp.words(y)["dp"] == sbp.S(1)


def test_on_explicit_axes_a_pin_leaves_the_other_axes_as_they_are():
    mixed = flowjax.make_mesh("dp=2,tp=4", axis_types=(AxisType.Explicit, AxisType.Auto))
    for mesh, spec in [(EXPLICIT, PartitionSpec("dp", "tp")), (mixed, SPLIT)]:
        x = jax.device_put(X, NamedSharding(mesh, spec))
        with jax.set_mesh(mesh):
            y = jax.jit(lambda x: sbp.pin(x, tp=sbp.S(0)))(x)
        assert str(sbp.words(y)) == "(dp: S(0), tp: S(0))"
        assert_same(y, X)


def test_a_mesh_that_is_set_pins_nothing_twice():
    def fn(x):
        return sbp.pin(x * 2, dp=sbp.S(0))

    for mesh in (MESH, EXPLICIT):
        with jax.set_mesh(mesh):
            assert pinned_words(fn, X) == ["(dp: S(0))"]
