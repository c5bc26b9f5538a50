"""Meshes of many axes, planned two axes at a time: never better than the best, and right."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import flowjax
import sbp
from sbp.hardware import CPU
from sbp.plan import by_pairs, planning
from tests.one_device import assert_same, whole

CUBE = flowjax.make_mesh("dp=2,tp=2,pp=2")
X, W = whole(8, 8), whole(8, 8, seed=1)


def layer(x, w):
    return jnp.maximum(x @ w, 0) % 5


def layers(x, w):
    return jax.lax.scan(lambda c, row: (layer(c, w), jnp.sum(c * row[None])), x, x)


PROGRAMS = {"layer": layer, "layers": layers}


def plan_of(fn, monkeypatch, most, **options):
    monkeypatch.setattr(planning, "MAX_EQUATIONS_AT_ONCE", most)
    monkeypatch.setattr(planning, "axes_alike", lambda costs: ())
    step = sbp.parallelize(fn, mesh=CUBE, **options)
    return step.plan(X, W), step


@pytest.mark.parametrize("pins", [{}, {"x": "dp: S(0)"}, {"x": "tp: S(1)", "w": "pp: S(0), dp: B"}])
@pytest.mark.parametrize("name", PROGRAMS)
def test_pairs_of_axes_come_near_the_best_of_all(name, pins, monkeypatch):
    fn = PROGRAMS[name]
    best, _ = plan_of(fn, monkeypatch, 99, in_sbp=pins)
    paired, step = plan_of(fn, monkeypatch, 0, in_sbp=pins)
    assert paired.method == "axes in pairs, others held"
    assert paired.lower_bound <= best.lower_bound <= best.cost <= paired.cost
    assert paired.cost <= 1.2 * best.cost
    words = dict(paired.arguments)
    for path, text in pins.items():
        assert sbp.NdSbp.parse(text).items() <= words[path].items()
    if pins:
        assert_same(step(X, W), fn(X, W))


@pytest.mark.parametrize("during", ["build_graph", "solve_optimally"])
def test_ctrl_c_keeps_the_best_so_far(during, monkeypatch, caplog):
    module = planning if during == "build_graph" else by_pairs
    work, calls = getattr(module, during), []

    def interrupted(*args, **options):
        calls.append(args)
        if len(calls) == stop:
            raise KeyboardInterrupt
        return work(*args, **options)

    monkeypatch.setattr(module, during, interrupted)
    stop = 2
    plan, step = plan_of(layers, monkeypatch, 0)
    assert plan.method == "axes in pairs, others held (interrupted)"
    assert len(calls) == 2
    assert "going on with the best plan so far" in caplog.text
    assert_same(step(X, W), layers(X, W))
    stop = len(calls) + 1
    with pytest.raises(KeyboardInterrupt):
        plan_of(layers, monkeypatch, 0)


def test_an_interrupted_pair_is_the_last(monkeypatch):
    solve, calls = by_pairs.solve_optimally, []

    def interrupted(*args, **options):
        calls.append(args)
        found = solve(*args, **options)
        return dataclasses.replace(found, method="5 sweeps (interrupted)")

    monkeypatch.setattr(by_pairs, "solve_optimally", interrupted)
    plan, _ = plan_of(layers, monkeypatch, 0)
    assert plan.method == "axes in pairs, others held (interrupted)"
    assert len(calls) == 1


def test_the_bound_counts_the_floor_of_every_kernel(monkeypatch):
    device = dataclasses.replace(CPU.device, kernel_floor_seconds=1)
    slow = dataclasses.replace(CPU, device=device)
    plan, _ = plan_of(layers, monkeypatch, 0, hardware=slow)
    assert round(plan.lower_bound_seconds) == round(plan.cost_seconds) == 2 * 8


def test_a_plan_by_pairs_is_saved_and_runs_again(tmp_path, monkeypatch):
    plan, _ = plan_of(layers, monkeypatch, 0)
    plan.save(tmp_path / "plan.json")
    loaded = sbp.Plan.load(tmp_path / "plan.json")
    again, step = plan_of(layers, monkeypatch, 0, plan=loaded)
    assert again == loaded == plan
    assert_same(step(X, W), layers(X, W))


def test_pins_inside_hold_on_every_pair(monkeypatch):
    def pinned(x, w):
        return sbp.pin(x @ w, dp=sbp.S(0), tp=sbp.S(0), pp=sbp.S(1)) + 1

    plan, step = plan_of(pinned, monkeypatch, 0)
    (_, add) = plan.equations
    assert add.operands[0] == "f32[8@(dp,tp),8@pp]"
    assert_same(step(X, W), X @ W + 1)


def test_deeper_programs_count_the_equations_of_their_loops():
    def program(x, w):
        def body(c, _):
            return layer(layer(layer(layer(c, w), w), w), w), None

        return jax.lax.scan(body, x, None, length=2)[0] @ w

    plan = sbp.parallelize(program, mesh=CUBE).plan(X, W)
    assert plan.method.startswith("equal axes in any order")
    plan = sbp.parallelize(layer, mesh=CUBE).plan(X, W)
    assert plan.method.startswith("elimination")
