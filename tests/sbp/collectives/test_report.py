"""What an audit refuses: programs for another number of devices, and things that are none."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import flowjax
import sbp
from sbp.errors import SbpError

X = jax.ShapeDtypeStruct((8, 16), jnp.float32)
STEP = sbp.parallelize(jnp.tanh, mesh=flowjax.make_mesh("dp=2,tp=4"))
H100_STEP = (Path(__file__).parents[2] / "data" / "h100_step.hlo.txt").read_text()


@dataclass(frozen=True)
class EmptyPlan:
    """A plan without communication."""

    mesh_sizes: Mapping[str, int]
    boxings: tuple[()] = ()


def refusal(*args, **options):
    with pytest.raises(SbpError) as caught:
        sbp.audit(*args, **options)
    return str(caught.value)


def another_number(found, whose):
    return f"""\
the program was compiled for {found}, {whose}.
  The header of a program says for how many it is: num_partitions=, replica_count=.
Fix: pass the mesh, and the plan, that the program was compiled for"""


def test_another_number_of_devices_is_refused_with_collectives_or_without():
    one = jax.jit(jnp.tanh).lower(X).compile()
    eight = STEP.lower(X).compile()
    assert not sbp.audit(eight).collectives
    plan = EmptyPlan({"dp": 2, "tp": 4})
    assert refusal(one, plan) == another_number("1 device", "the plan's mesh has 8")
    assert refusal(one.as_text(), plan) == another_number("1 device", "the plan's mesh has 8")
    assert refusal(eight, mesh={"dp": 3}) == another_number("8 devices", "the mesh has 3")
    assert refusal(eight, plan, mesh={"dp": 3}) == another_number("8 devices", "the mesh has 3")
    assert refusal(H100_STEP, mesh={"a": 2}) == another_number("8 devices", "the mesh has 2")
    assert sbp.audit(eight, STEP.plan(X)).checked
    assert sbp.audit(one, EmptyPlan({"dp": 1})).checked


@pytest.mark.parametrize("mesh", ["dp=4,tp=2", "tp=4,dp=2", "a=2,b=4", "dp=8"])
def test_a_mesh_that_contradicts_the_plan_is_refused(mesh):
    assert refusal(H100_STEP, EmptyPlan({"dp": 2, "tp": 4}), mesh=mesh) == (
        f"mesh={mesh!r} contradicts the plan, whose mesh is 'dp=2,tp=4' (audit).\n"
        "  Program and plan are compared axis by axis, so that both are of one mesh.\n"
        "Fix one of: leave out mesh= and name groups by the plan's mesh | the plan of this mesh"
    )


def test_a_mesh_that_is_the_plans_is_no_contradiction():
    plan = EmptyPlan({"dp": 2, "one": 1, "tp": 4})
    found = str(sbp.audit(H100_STEP, plan))
    for mesh in ("dp=2,tp=4", "dp=2,one=1,tp=4", "other=1,dp=2,tp=4"):
        assert str(sbp.audit(H100_STEP, plan, mesh=mesh)) == found


def test_replicas_are_devices_too():
    text = "HloModule f, replica_count=4, num_partitions=2\n\nENTRY %f (x: f32[]) -> f32[] {\n}\n"
    assert sbp.audit(text, mesh={"dp": 8}).collectives == ()
    assert refusal(text, mesh={"dp": 2}) == another_number("8 devices", "the mesh has 2")


@pytest.mark.parametrize(
    "mesh", ["dp=2,tp=4", {"dp": 2, "tp": 4}, AbstractMesh((2, 4), ("dp", "tp"))], ids=str
)
def test_a_mesh_is_given_in_any_form(mesh):
    rows = sbp.audit(H100_STEP, mesh=mesh).collectives
    assert {row.axes for row in rows} >= {("dp", "tp")}


@pytest.mark.parametrize("mesh", [3, [2, 4], {}, {"dp": "x"}, {1: 8}, {"dp": 0}, "dp"], ids=str)
def test_what_is_no_mesh_is_refused(mesh):
    assert " (audit).\n" in refusal(H100_STEP, mesh=mesh)


@pytest.mark.parametrize("plan", [3, "plan.json", {"dp": 8}], ids=str)
def test_what_is_no_plan_is_refused(plan):
    assert refusal(H100_STEP, plan) == (
        f"audit is given {plan!r} as a plan.\n"
        "  It is an sbp.Plan: from step.plan(...), or read from a file.\n"
        "Fix one of: sbp.audit(compiled, sbp.Plan.load(path)) | sbp.audit(compiled, mesh=mesh)"
    )


def test_a_text_with_a_hole_is_refused():
    start = H100_STEP.index("%fused_add")
    whole = H100_STEP[start : H100_STEP.index("}\n\n", start) + 3]
    assert refusal(H100_STEP.replace(whole, "")).startswith(
        "this text is not all of a compiled HLO module: it has no 'fused_add"
    )
