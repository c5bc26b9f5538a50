"""Stages of ZeRO are words, and the planner makes of them what their authors describe."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import flowjax
import sbp

MESH = flowjax.make_mesh("dp=8")
OPTIMIZER = optax.adam(1e-2)


class State(NamedTuple):
    """What a step hands on."""

    params: dict
    opt_state: tuple


def loss_of(params, batch):
    x, y = batch
    return jnp.mean((jnp.tanh(x @ params["w"] + params["b"][None]) @ params["v"] - y) ** 2)


def train_step(state, batch):
    loss, grads = jax.value_and_grad(loss_of)(state.params, batch)
    updates, opt_state = OPTIMIZER.update(grads, state.opt_state, state.params)
    return State(optax.apply_updates(state.params, updates), opt_state), loss


def example():
    numbers = np.random.default_rng(0)
    shapes = {"w": (32, 256), "b": (256,), "v": (256, 3)}
    params = {k: numbers.normal(size=s).astype(np.float32) / 16 for k, s in shapes.items()}
    batch = tuple(numbers.normal(size=(64, n)).astype(np.float32) for n in (32, 3))
    return State(params, OPTIMIZER.init(params)), batch


def planned(stage):
    with jax.numpy_dtype_promotion("standard"):
        state, batch = example()
        words = {"batch": "dp: S(0)", **flowjax.zero(stage)}
        step = sbp.parallelize(
            train_step, mesh=MESH, in_sbp=words, donate_argnums=0, objective="bytes"
        )
        plan = step.plan(state, batch)
        expected, _ = jax.jit(train_step)(state, batch)
        got, _ = step(state, batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got, expected)
    return plan


def words_of(plan, *ends):
    return {str(w) for path, w in plan.arguments if path.endswith(ends)}


@pytest.mark.parametrize(
    ("stage", "params", "moments"),
    [(0, "B", "B"), (1, "B", "S(0)"), (2, "B", "S(0)"), (3, "S(0)", "S(0)")],
)
def test_stages_say_where_parameters_and_moments_lie(stage, params, moments):
    plan = planned(stage)
    assert words_of(plan, "params.v") == {f"(dp: {params})"}
    assert words_of(plan, "mu.v", "nu.b") == {f"(dp: {moments})"}
    assert words_of(plan, "mu.w") == {f"(dp: {moments.replace('0', '1')})"}
    # No stage sends more than an all-reduce of the gradients does.
    num_parameters = 32 * 256 + 256 + 256 * 3
    assert plan.wire_nbytes <= 1.02 * 2 * 7 / 8 * 4 * num_parameters
    assert not stage or "all-gather" in {row.collective for row in plan.boxings}


def test_each_stage_holds_less():
    held = [planned(stage).memory_nbytes for stage in (0, 1, 3)]
    assert held[0] > held[1] > held[2]


def test_fsdp_splits_the_largest_dim_that_divides():
    rule = flowjax.fsdp("dp", "tp")

    def words(*shape):
        array = jax.ShapeDtypeStruct(shape, jnp.float32)
        return str(rule.words(array, {"dp": 2, "tp": 4, "pp": 3}))

    assert words(8, 64, 16) == "(dp: S(1), tp: S(1))"
    assert words(16, 63) == "(dp: S(0), tp: S(0))"
    assert words(7) == words() == words(0) == "(dp: B, tp: B)"


def test_rules_stand_in_trees_tables_and_results():
    x = np.ones((16, 8), np.float32)
    step = sbp.parallelize(
        lambda tree: {"y": tree["a"] + 1, "z": tree["b"]}, mesh=MESH,
        in_sbp=({"a": flowjax.fsdp(), "b": "dp: B"},), out_sbp={"y": flowjax.fsdp("dp")},
    )  # fmt: skip
    plan = step.plan({"a": x, "b": x})
    assert words_of(plan, "tree.a") == {"(dp: S(0))"}
    table = {"tree": [("a", flowjax.fsdp()), ("*", None)]}
    assert words_of(sbp.parallelize(lambda tree: tree["a"], mesh=MESH, in_sbp=table).plan(
        {"a": x, "b": x}), "tree.a") == {"(dp: S(0))"}  # fmt: skip


def test_what_is_no_stage_and_no_axis():
    with pytest.raises(sbp.SbpError, match=r"zero\(4\) is no stage of ZeRO"):
        flowjax.zero(4)
    with pytest.raises(sbp.SignatureError, match="names an axis that the mesh does not have"):
        sbp.parallelize(lambda x: x, mesh=MESH, in_sbp=flowjax.fsdp("data")).plan(np.ones(8))
