"""Options of `parallelize`: which machine a plan is priced for."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh

import flowjax
import sbp
from sbp.api.options import find_cluster, parse_nbytes
from sbp.hardware import BY_NAME, CPU, H100_NODE, H200_NODE

X = np.ones((64, 64), np.float32)
ABSTRACT = AbstractMesh((8,), ("dp",))


def mesh_of(kind):
    return SimpleNamespace(devices=np.array([SimpleNamespace(device_kind=kind)]))


def plan_of(**options) -> sbp.Plan:
    step = sbp.parallelize(
        jnp.matmul, mesh=ABSTRACT, in_sbp={"a": "dp: S(1)", "b": "dp: S(0)"}, **options
    )
    return step.plan(X, X)


def test_a_plan_is_priced_for_the_devices_of_its_mesh():
    assert find_cluster(None, flowjax.make_mesh("dp=8")) == CPU
    assert find_cluster(None, mesh_of("NVIDIA H200")) == H200_NODE
    assert find_cluster(None, ABSTRACT) == H100_NODE


def test_devices_that_nobody_knows_are_one_clear_error():
    with pytest.raises(sbp.SbpError) as caught:
        find_cluster(None, mesh_of("NVIDIA GeForce RTX 4090"))
    text = str(caught.value)
    assert text.startswith("no cluster of 'NVIDIA GeForce RTX 4090' is known.")
    assert all(name in text for name in BY_NAME)


@pytest.mark.parametrize("name", BY_NAME)
def test_every_cluster_plans_by_its_name(name):
    plan = plan_of(hardware=name)
    assert plan.cluster == name
    assert plan.gap == 0


def test_a_hardware_file_prices_as_the_cluster_it_holds(tmp_path):
    path = tmp_path / "machine.json"
    BY_NAME["b200"].save(path)
    plans = [plan_of(hardware=given) for given in ("b200", path, str(path), BY_NAME["b200"])]
    assert all(plan == plans[0] for plan in plans)
    assert plan_of(hardware="a100").cost_seconds > plans[0].cost_seconds


@pytest.mark.parametrize("other", [{"hardware": "a100"}, {"overlap": 0.5}])
def test_a_proof_holds_at_the_prices_it_was_made_for(other):
    plan = plan_of()
    assert plan_of(plan=plan) == plan
    priced_anew = plan_of(plan=plan, **other)
    assert priced_anew.choices == plan.choices
    assert priced_anew.cost == plan_of(**other).cost != plan.cost
    assert (plan.gap, priced_anew.gap) == (0, 1)


def test_overlap_is_an_assumption_that_the_plan_prints(tmp_path):
    exposed, hidden = plan_of(), plan_of(overlap=0.5)
    assert exposed.overlap == 0
    assert "boxing, nothing overlapped" in exposed.summary()
    assert hidden.overlap == 0.5
    assert "50% of gradient reductions and weight gathers assumed hidden" in hidden.summary()
    assert hidden.compute_seconds == exposed.compute_seconds
    # What it takes to lay them end to end with others is not hidden.
    assert hidden.communication_seconds < 0.7 * exposed.communication_seconds
    assert hidden.wire_nbytes == exposed.wire_nbytes > 0
    hidden.save(tmp_path / "plan.json")
    assert sbp.Plan.load(tmp_path / "plan.json") == hidden


@pytest.mark.parametrize("size", [1.5, "1.5 B", True, float("nan"), float("inf"), "1e400 B", [1]])
def test_a_size_is_a_whole_number_of_bytes(size):
    for option in ("memory_limit", "max_nbytes"):
        with pytest.raises(sbp.SbpError) as caught:
            sbp.parallelize(jnp.matmul, mesh=ABSTRACT, **{option: size})
        assert str(caught.value).startswith(
            f"{option}={size!r} is not a size.\n  A size is a whole number of bytes, "
        )


@pytest.mark.parametrize("size", [7, 7.0, np.int64(7), np.float32(7), "7 B"])
def test_a_whole_number_may_be_of_any_kind(size):
    assert parse_nbytes("memory_limit", size) == 7


def test_a_mesh_with_a_device_twice_is_refused():
    mesh = Mesh(np.array([jax.devices()[0]] * 2), ("dp",))
    for use in (
        lambda: sbp.parallelize(jnp.matmul, mesh=mesh), lambda: sbp.box(X, "dp: S(0)", mesh)
    ):  # fmt: skip
        with pytest.raises(sbp.PlanError) as caught:
            use()
        assert str(caught.value) == (
            "the mesh has 2 points, but different devices: 1.\n"
            "  Each point of a mesh is a device of its own.\n"
            "Fix one of: name each device once | jax.make_mesh, which chooses the devices"
        )
