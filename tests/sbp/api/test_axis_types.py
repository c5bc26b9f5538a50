"""A step runs on Auto and Explicit axes, under any mesh that is set, on arrays of either kind."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import flowjax
import sbp
from tests.one_device import MESH, assert_same, whole

X, W = whole(8, 16), whole(16, 12, seed=1)
EXPLICIT = flowjax.make_mesh("dp=2,tp=4", axis_types=AxisType.Explicit)
MIXED = flowjax.make_mesh("dp=2,tp=4", axis_types=(AxisType.Explicit, AxisType.Auto))
MESHES = {"auto": MESH, "explicit": EXPLICIT, "mixed": MIXED}
CONTEXTS = {
    "no mesh": contextlib.nullcontext,
    **{name: lambda mesh=mesh: jax.set_mesh(mesh) for name, mesh in MESHES.items()},
}


def held(x, kind):
    if kind == "numpy":
        return x
    if kind == "uncommitted":
        return jnp.asarray(x)
    if kind == "one device":
        return jax.device_put(x, jax.devices()[2])
    mesh, spec = kind
    return jax.device_put(x, NamedSharding(MESHES[mesh], PartitionSpec(*spec)))


HOLDERS = [
    "numpy", "uncommitted", "one device",
    ("auto", ("dp",)), ("auto", (None, "tp")), ("explicit", ("dp",)), ("explicit", (None, "tp")),
]  # fmt: skip


def layer(x, w):
    y = jnp.maximum(x @ w, 0)
    return y, jnp.tril(y + jnp.zeros_like(y))


@pytest.mark.parametrize("lowering", ["manual", "auto"])
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("mesh", MESHES)
def test_any_mesh_under_any_mesh_on_arrays_of_any_kind(mesh, context, lowering):
    step = sbp.parallelize(
        layer, mesh=MESHES[mesh], lowering=lowering, in_sbp={"x": "dp: S(0)", "w": "tp: S(1)"}
    )
    expected = layer(X, W)
    with CONTEXTS[context]():
        for kind in HOLDERS:
            results = step(held(X, kind), held(W, kind))
            assert_same(results, expected)
        types = MESHES.get(context, MESH).axis_types
        assert results[0].sharding.mesh.axis_types == types
        # What a step returns can go on in its context.
        assert_same(jnp.sum(results[0] * 2), 2 * np.sum(np.asarray(expected[0])))
    assert len(step._executables) == 1


def test_a_step_follows_the_mesh_that_is_set():
    step = sbp.parallelize(layer, mesh=MESH)
    for context in ("no mesh", "explicit", "auto", "explicit", "no mesh"):
        with CONTEXTS[context]():
            results = step(X, W)
            assert_same(results, layer(X, W))
        assert results[0].sharding.mesh.axis_types == MESHES.get(context, MESH).axis_types
    assert len(step._executables) == 2


def test_the_plan_does_not_depend_on_the_mesh_that_is_set():
    plans = []
    for context in CONTEXTS.values():
        with context():
            plans.append(sbp.parallelize(layer, mesh=MESH).plan(X, W))
    assert all(plan == plans[0] for plan in plans)


PARTIAL = {
    "mesh": EXPLICIT, "in_sbp": {"x": "tp: S(1), dp: B", "w": "tp: S(0), dp: B"},
    "out_sbp": "tp: P, dp: B",
}  # fmt: skip


def test_a_result_may_be_partial_and_go_in_again():
    product = sbp.parallelize(lambda x, w: x @ w, **PARTIAL)
    y = product(X, W)
    assert str(sbp.words(y)) == "(dp: B, tp: P)"
    assert product.plan(X, W).wire_nbytes == 0
    np.testing.assert_array_equal(np.asarray(sbp.box(y, "tp: S(0)")), X @ W)

    doubled = sbp.parallelize(
        lambda y: y * 2, mesh=EXPLICIT, in_sbp="tp: P, dp: B", out_sbp="tp: P, dp: B",
        donate_argnums=0,
    )  # fmt: skip
    for _ in range(2):
        y = doubled(y)
    assert str(sbp.words(y)) == "(dp: B, tp: P)"
    assert sbp.show(y).startswith("f32[8,12]{U:tp} (dp: B, tp: P)\n")
    np.testing.assert_array_equal(np.asarray(sbp.box(y, "")), 4 * (X @ W))


@pytest.mark.parametrize("kind", HOLDERS)
def test_a_partial_argument_may_come_from_anywhere(kind):
    step = sbp.parallelize(lambda y: y + 1, mesh=EXPLICIT, in_sbp="tp: P, dp: B")
    partial = sbp.box(X, "tp: P", EXPLICIT)
    for x in (partial, held(X, kind), partial, held(X, kind), step.place(held(X, kind))):
        assert_same(step(x), X + 1)
    with jax.set_mesh(EXPLICIT):
        assert_same(step(held(X, kind)), X + 1)


def test_partial_ends_need_explicit_axes_and_the_manual_lowering():
    step = sbp.parallelize(lambda x, w: x @ w, **PARTIAL)
    step.plan(X, W)
    with jax.set_mesh(MESH), pytest.raises(sbp.PlanError) as caught:
        step(X, W)
    assert (
        str(caught.value)
        == """\
<lambda> has partial arrays at its ends, jax.set_mesh has set a mesh with Auto axes.
  jax's unreduced arrays exist on Explicit axes only.
Fix one of: leave the context | set the mesh with axis_types=AxisType.Explicit"""
    )
    with pytest.raises(sbp.SignatureError) as caught:
        sbp.parallelize(lambda x, w: x @ w, lowering="auto", **PARTIAL).plan(X, W)
    assert (
        str(caught.value)
        == """\
out_sbp 'tp: P' asks for a partial array with lowering='auto' (the result).
  XLA's partitioner works on Auto axes, which have no word for Partial.
Fix one of: out_sbp 'tp: B', or S of a dim | lowering='manual'"""
    )


def test_a_step_is_not_for_the_inside_of_a_shard_map():
    step = sbp.parallelize(lambda x: x, mesh=MESH)
    mapped = jax.shard_map(step, mesh=MESH, in_specs=PartitionSpec(), out_specs=PartitionSpec())
    with pytest.raises(sbp.PlanError) as caught:
        mapped(X)
    assert (
        str(caught.value)
        == """\
<lambda> is called inside a jax.shard_map.
  A step takes whole arrays and has all axes of the mesh to itself.
Fix: call it outside the shard_map"""
    )


def test_a_mesh_of_other_sizes_is_not_the_same_mesh():
    step = sbp.parallelize(lambda x: x, mesh=MESH)
    with jax.set_mesh(flowjax.make_mesh("dp=4,tp=2")), pytest.raises(sbp.PlanError) as caught:
        step(X)
    assert "is for a mesh of dp=2, tp=4, jax.set_mesh has set one of dp=4, tp=2" in str(
        caught.value
    )


@pytest.mark.parametrize("lowering", ["manual", "auto"])
@pytest.mark.parametrize("kind", HOLDERS)
def test_closed_over_arrays_may_lie_anywhere(kind, lowering):
    w = held(W, kind)
    step = sbp.parallelize(lambda x: x @ jnp.asarray(w), mesh=MESH, lowering=lowering)
    for context in CONTEXTS:
        with CONTEXTS[context]():
            assert_same(step(X), X @ W)


def test_a_step_made_inside_jit_may_close_over_what_is_traced():
    @jax.jit
    def outer(x, w):
        return sbp.parallelize(lambda y: y @ w, mesh=MESH)(x * 2) + 1

    assert_same(outer(X, W), 2 * X @ W + 1)
