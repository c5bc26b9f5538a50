"""`diff`: what another plan does differently, of the same program or another."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import flowjax
import sbp
from tests.one_device import MESH
from tests.sbp.plan.test_plan import W1, W2, X, mlp, plan_of


def test_diff_says_what_the_other_does_differently():
    free, megatron = plan_of("mlp"), plan_of("megatron")
    assert megatron.diff(megatron) == "no difference"
    assert (
        free.diff(megatron)
        == """\
time: 2.24 us -> 2.4 us
wire/device: 64 B -> 384 B
memory: 1.625 KiB -> 1.25 KiB
argument x: (dp: B, tp: S(0)) -> (dp: S(0), tp: B)
argument w1: (dp: S(1), tp: B) -> (dp: B, tp: S(1))
argument w2: (dp: S(0), tp: B) -> (dp: B, tp: S(0))
the result: (dp: S(1), tp: S(0)) -> (dp: S(0), tp: B)
- reduce-scatter over dp of f32[16@tp,8]{U:dp} at the result, 64 B
+ all-reduce over tp of f32[16@dp,8]{U:tp} at the result, 384 B"""
    )


def test_plans_for_other_meshes_and_functions():
    free = plan_of("mlp", hardware="h100")
    elsewhere = sbp.parallelize(
        mlp, mesh=flowjax.make_mesh("dp=8"), hardware="cpu", objective="bytes"
    )
    text = free.diff(elsewhere.plan(X, W1, W2))
    assert text.startswith(
        "mesh: dp=2, tp=4 -> dp=8\nhardware: h100 -> cpu\nobjective: time -> bytes\ntime: "
    )
    text = free.diff(plan_of("sharded"))
    assert text.startswith("function: mlp -> train\nhardware: h100 -> cpu\ntime: ")
    assert "\nargument w1: (dp: S(1), tp: B) -> not there\n" in text
    assert "\nargument params.w: not there -> (dp: S(1), tp: S(2))\n" in text
    assert "\nthe result: (dp: S(1), tp: S(0)) -> not there\n" in text
    assert "\nresult 1: not there -> (dp: B, tp: B)\n" in text


def test_other_shapes_of_one_function():
    other = sbp.parallelize(mlp, mesh=flowjax.make_mesh("dp=2,tp=4")).plan(X[:8], W1, W2)
    text = plan_of("mlp").diff(other)
    assert text.startswith("function: mlp has other code or other shapes\n")


def test_the_same_boxing_of_more_bytes():
    plan = plan_of("sharded")
    row = next(row for row in plan.boxings if row.collective == "all-to-all")
    more = [dataclasses.replace(r, count=2) if r is row else r for r in plan.boxings]
    assert plan.diff(dataclasses.replace(plan, boxings=tuple(more))) == (
        f"all-to-all over {', '.join(row.axes)} of {row.value_type} at {row.source}: "
        f"{row.nbytes} B -> {2 * row.nbytes} B"
    )


@pytest.mark.parametrize("other", [None, "plan.json", 3])
def test_what_is_not_a_plan_is_refused(other):
    with pytest.raises(sbp.SbpError) as caught:
        plan_of("mlp").diff(other)
    assert str(caught.value) == (
        f"diff was given {other!r}, which is not a plan.\n"
        "  It compares two plans.\n"
        "Fix one of: plan.diff(step.plan(...)) | plan.diff(sbp.Plan.load(path))"
    )


def test_no_line_is_wider_than_those_of_explain():
    def long(x):
        return {"a_rather_long_name_" * 20: x * 2}

    x = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    plans = [
        sbp.parallelize(long, mesh=MESH, in_sbp=f"dp: S({dim})", out_sbp=f"dp: S({dim})").plan(x)
        for dim in (0, 1)
    ]
    lines = plans[0].diff(plans[1]).splitlines()
    assert max(map(len, lines)) == 200
    assert any("..." in line and line.endswith("-> (dp: S(1), tp: S(0))") for line in lines)
