"""Meshes of equal axes: kinds of choices give a bound on every plan, and plans that run."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

import sbp
from sbp.plan import axis_orders, planning
from tests.one_device import assert_same
from tests.sbp.plan.test_by_pairs import CUBE, W, X, layer, layers


def blocks(x, w):
    """A reshape that no one axis can split alone, and a dim of four parts."""
    y = (x @ w).reshape(2, 4, 2, 4)
    return jnp.sin(y.sum(1)).reshape(2, 8), y.max(3)


def shared(x, w):
    y = x @ w
    return y @ w, y.T @ x, jnp.sum(y, 0)


PROGRAMS = {"layer": layer, "layers": layers, "blocks": blocks, "shared": shared}
PINS = [{}, {"x": "dp: S(0)"}, {"x": "tp: S(1)", "w": "pp: S(0), dp: B"}]


def plan_of(fn, monkeypatch, most=0, mesh=CUBE, **options):
    monkeypatch.setattr(planning, "MAX_EQUATIONS_AT_ONCE", most)
    monkeypatch.setattr(planning, "MAX_EQUATIONS_WITHOUT_KINDS", most)
    step = sbp.parallelize(fn, mesh=mesh, **options)
    return step.plan(X, W), step


@pytest.mark.parametrize("objective", ["time", "bytes"])
@pytest.mark.parametrize("pins", PINS, ids=["free", "one axis", "three axes"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_bound_holds_for_all_plans_and_the_plan_is_near_it(name, pins, objective, monkeypatch):
    fn, options = PROGRAMS[name], {"in_sbp": pins, "objective": objective}
    best, _ = plan_of(fn, monkeypatch, 99, **options)
    ordered, step = plan_of(fn, monkeypatch, **options)
    assert ordered.method.startswith("equal axes in any order")
    # Neither search is exact here.
    assert max(ordered.lower_bound, best.lower_bound) <= min(ordered.cost, best.cost)
    # Pins that differ between axes make equal axes differ: then the plan is a local optimum.
    assert ordered.cost <= (1.5 if len(pins) > 1 else 1.05) * best.cost
    words = dict(ordered.arguments)
    for path, text in pins.items():
        assert sbp.NdSbp.parse(text).items() <= words[path].items()
    if objective == "bytes":
        results, expected = (jax.tree.map(np.asarray, f(X, W)) for f in (step, fn))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), results, expected)


def test_without_pins_the_bound_is_the_cost(monkeypatch):
    plan, _ = plan_of(layers, monkeypatch, hardware="h100")
    assert plan.gap <= 0.01


def test_a_plan_far_from_its_bound_is_improved_in_pairs(monkeypatch):
    monkeypatch.setattr(planning, "GAP_OF_KINDS", -1.0)
    pairs = planning.plan_by_pairs
    begun = []

    def spied(build, costs, first):
        begun.append(first[1])
        return pairs(build, costs, first)

    monkeypatch.setattr(planning, "plan_by_pairs", spied)
    plan, step = plan_of(layers, monkeypatch)
    (first,) = begun
    assert plan.method == f"{first.method}; axes in pairs, others held"
    assert plan.cost <= first.energy
    assert plan.lower_bound == first.bound
    assert_same(step(X, W), layers(X, W))


def test_four_axes(monkeypatch):
    mesh = AbstractMesh((2, 2, 2, 2), ("a", "b", "c", "d"))
    plan, _ = plan_of(layers, monkeypatch, mesh=mesh, hardware="cpu")
    assert plan.method.startswith("equal axes in any order")
    assert plan.gap <= 0.05


@pytest.mark.parametrize("sizes", [(2, 2, 4), (2, 1, 4)])
def test_axes_of_several_sizes_are_not_alike(sizes, monkeypatch):
    plan, _ = plan_of(layers, monkeypatch, mesh=AbstractMesh(sizes, tuple("abcd")[: len(sizes)]))
    assert not plan.method.startswith("equal axes")


def test_axes_of_one_device_do_not_count(monkeypatch):
    mesh = AbstractMesh((2, 1, 2, 2), ("a", "b", "c", "d"))
    with_one, _ = plan_of(layers, monkeypatch, mesh=mesh, hardware="cpu")
    without, _ = plan_of(layers, monkeypatch, hardware="cpu")
    assert with_one.method.startswith("equal axes in any order")
    assert (with_one.cost, with_one.lower_bound) == (without.cost, without.lower_bound)


def test_a_memory_limit_is_met(monkeypatch):
    free, _ = plan_of(shared, monkeypatch)
    step = sbp.parallelize(shared, mesh=CUBE, memory_limit=free.memory_nbytes - 1)
    plan = step.plan(X, W)
    assert plan.memory_nbytes < free.memory_nbytes
    assert plan.lower_bound <= free.cost <= plan.cost
    assert_same(step(X, W), shared(X, W))


def test_the_plan_is_saved_and_runs_again(tmp_path, monkeypatch):
    plan, _ = plan_of(layers, monkeypatch)
    plan.save(tmp_path / "plan.json")
    loaded = sbp.Plan.load(tmp_path / "plan.json")
    again, step = plan_of(layers, monkeypatch, plan=loaded)
    assert again == loaded == plan
    assert_same(step(X, W), layers(X, W))


def test_pins_that_nothing_meets(monkeypatch):
    def pinned(x, w):
        return sbp.pin(x, dp=sbp.S(0)) @ sbp.pin(w, dp=sbp.S(1)), jnp.sin(x)

    _, step = plan_of(pinned, monkeypatch)
    assert_same(step(X, W)[0], pinned(X, W)[0])
    monkeypatch.setattr(axis_orders, "solve_optimally", lambda *args, **options: None)
    monkeypatch.setattr(planning, "plan_by_pairs", lambda *args: None)
    with pytest.raises(sbp.PlanError, match="no plan meets the pins"):
        plan_of(pinned, monkeypatch)


def test_ctrl_c_among_kinds_keeps_the_best_so_far(monkeypatch):
    solve, calls = axis_orders.solve_optimally, itertools.count()

    def interrupted(*args, **options):
        found = solve(*args, **options)
        if next(calls) > 0:
            return found
        return dataclasses.replace(found, bound=0.0, method="5 sweeps (interrupted)")

    monkeypatch.setattr(axis_orders, "solve_optimally", interrupted)
    plan, step = plan_of(layers, monkeypatch)
    assert plan.method == "equal axes in any order: 5 sweeps (interrupted)"
    assert next(calls) == 2
    assert_same(step(X, W), layers(X, W))
