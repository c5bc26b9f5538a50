"""`suggest_mesh`: every mesh that differs, once, ranked by what `parallelize` says of it."""

import logging
import math
import time

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import sbp
from sbp.api import meshes
from sbp.errors import PlanError, SbpError


def struct(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def mlp(x, w1, w2):
    return jax.nn.relu(x @ w1) @ w2


ARGUMENTS = struct(1024, 1024), struct(1024, 4096), struct(4096, 1024)


def sizes_of(ranking):
    return {tuple(plan.mesh_sizes.values()) for plan in ranking.plans}


def test_each_mesh_is_planned_as_parallelize_plans_it():
    ranking = sbp.suggest_mesh(mlp, *ARGUMENTS, devices=8, cluster="a100", out_sbp="x: S(0)")
    assert sizes_of(ranking) == {(8,), (2, 4)}
    for plan in ranking.plans:
        mesh = AbstractMesh(tuple(plan.mesh_sizes.values()), tuple(plan.mesh_sizes))
        step = sbp.parallelize(mlp, mesh=mesh, hardware="a100", out_sbp="x: S(0)")
        assert step.plan(*ARGUMENTS) == plan
    assert [plan.cost for plan in ranking.plans] == sorted(plan.cost for plan in ranking.plans)
    assert ranking.best is ranking.plans[0]
    assert ranking.mesh_sizes == dict(ranking.best.mesh_sizes)


def test_a_finer_mesh_beats_one_axis():
    # 1024 rows of x: two axes split rows and columns and send less than one axis.
    ranking = sbp.suggest_mesh(mlp, *ARGUMENTS, devices=8)
    assert ranking.mesh_sizes == {"x": 2, "y": 4}
    assert ranking.plans[0].cost < ranking.plans[1].cost


@pytest.mark.parametrize(
    ("devices", "max_axes", "expected"),
    [
        (1, 2, {(1,)}),
        (7, 2, {(7,)}),
        (8, 1, {(8,)}),
        (8, 2, {(8,), (2, 4)}),
        (8, 3, {(8,), (2, 4), (2, 2, 2)}),
        # Beyond one node of eight, the outer axis is on another link.
        (16, 2, {(16,), (2, 8), (4, 4), (8, 2)}),
        # An axis inside a node divides it: the 4 of (3, 4), not the 3 of (4, 3).
        (12, 2, {(12,), (2, 6), (3, 4), (4, 3), (6, 2)}),
        (16, 3, {(16,), (2, 8), (4, 4), (8, 2), (2, 2, 4), (4, 2, 2)}),
    ],
)
def test_meshes_that_differ_in_axes_of_equal_links_only_come_once(devices, max_axes, expected):
    found = [
        mesh.axis_sizes
        for mesh in meshes._meshes(devices, sbp.hardware.H100_NODE, max_axes, axes=None)
    ]
    assert set(found) == expected
    assert len(found) == len(expected)
    assert all(math.prod(sizes) == devices for sizes in found)


def test_axes_that_are_spoken_of_keep_their_names_and_may_have_size_one():
    ranking = sbp.suggest_mesh(
        mlp, *ARGUMENTS, devices=8, axes=("dp", "tp"), in_sbp={"x": "dp: S(0)", "w1": "tp: S(1)"}
    )
    assert sizes_of(ranking) == {(1, 8), (2, 4), (4, 2), (8, 1)}
    for plan in ranking.plans:
        words = dict(plan.arguments)
        assert words["x"]["dp"] == sbp.S(0)
        assert words["w1"]["tp"] == sbp.S(1)


def test_a_mesh_without_a_plan_is_left_out_and_says_why():
    words = {"x": "dp: S(0)"}  # six rows can be split two ways, not four
    ranking = sbp.suggest_mesh(
        mlp, struct(6, 64), struct(64, 64), struct(64, 8), devices=8, axes=("dp", "tp"),
        in_sbp=words,
    )  # fmt: skip
    assert sizes_of(ranking) == {(1, 8), (2, 4)}
    assert [mesh for mesh, _ in ranking.skipped] == ["dp=4, tp=2", "dp=8, tp=1"]
    assert str(ranking).splitlines()[-2:] == [f"no plan on {m}: {w}" for m, w in ranking.skipped]
    assert all(why for _, why in ranking.skipped)


def test_the_printed_ranking():
    ranking = sbp.suggest_mesh(mlp, *ARGUMENTS, devices=16)
    lines = str(ranking).splitlines()
    assert lines[:3] == [
        "mlp on 16 devices (h100), objective time: 4 meshes, cheapest first",
        "",
        "mesh      links            time     best possible  gap    sent      memory",
    ]
    assert [line.split("  ")[0] for line in lines[3:]] == [
        "x=4, y=4",
        "x=8, y=2",
        "x=2, y=8",
        "x=16",
    ]
    assert "outside, inside" in lines[3]
    by_bytes = sbp.suggest_mesh(mlp, *ARGUMENTS, devices=2, objective="bytes")
    assert str(by_bytes).splitlines()[-1].split()[4] == "-"


def test_progress_is_told_to_the_log(caplog):
    with caplog.at_level(logging.INFO, logger="sbp"):
        sbp.suggest_mesh(mlp, *ARGUMENTS, devices=8)
    told = [record.getMessage() for record in caplog.records]
    assert [text for text in told if text.startswith("mesh")] == [
        "mesh x=8, 1 of 2",
        "mesh x=2, y=4, 2 of 2",
    ]


def test_ctrl_c_keeps_the_meshes_planned_so_far(monkeypatch):
    parallelize, calls = meshes.parallelize, []

    def interrupted(*args, **options):
        calls.append(options)
        if len(calls) == stop:
            raise KeyboardInterrupt
        return parallelize(*args, **options)

    monkeypatch.setattr(meshes, "parallelize", interrupted)
    stop = 2
    ranking = sbp.suggest_mesh(mlp, *ARGUMENTS, devices=16)
    assert sizes_of(ranking) == {(16,)}
    assert [why for _, why in ranking.skipped] == ["interrupted"] * 3
    assert len(calls) == 2
    stop = len(calls) + 1
    with pytest.raises(KeyboardInterrupt):
        sbp.suggest_mesh(mlp, *ARGUMENTS, devices=16)


def test_no_mesh_at_all():
    with pytest.raises(PlanError) as caught:
        sbp.suggest_mesh(
            mlp, struct(6, 64), struct(64, 64), struct(64, 8), devices=4, axes=("dp", "tp"),
            in_sbp={"x": "dp: S(0), tp: S(0)"},
        )  # fmt: skip
    assert str(caught.value) == (
        "mlp has a plan on no mesh of 4 devices.\n"
        "  dp=1, tp=4 | dp=2, tp=2: in_sbp 'tp: S(0)' cannot hold.\n"
        "  dp=4, tp=1: in_sbp 'dp: S(0)' cannot hold.\n"
        "Fix one of: looser options or fewer pins | another number of devices"
    )


def test_what_is_wrong_on_every_mesh_is_said_once():
    with pytest.raises(SbpError) as caught:
        sbp.suggest_mesh(mlp, *ARGUMENTS, devices=8, objective="speed")
    assert str(caught.value).startswith("objective='speed' is not an option.\n")


WRONG = {
    "a list of devices": (
        {"devices": [1, 2]},
        "devices=[1, 2] is not a number of devices.\n"
        "  It says how many devices there are to arrange.\n"
        "Fix: devices=8",
    ),
    "no devices": (
        {"devices": 0},
        "devices=0 is not a number of devices.\n"
        "  It says how many devices there are to arrange.\n"
        "Fix: devices=8",
    ),
    "many axes": (
        {"devices": 8, "max_axes": 4},
        "max_axes=4 is not an option.\n"
        "  A mesh of at most 3 axes is searched.\n"
        "Fix: max_axes=2 is the default",
    ),
    "axes and their number": (
        {"devices": 8, "axes": ("dp", "tp"), "max_axes": 2},
        "axes= and max_axes= are both given.\n"
        "  A mesh has as many axes as axes= names; they may have size 1.\n"
        "Fix: leave out max_axes=",
    ),
    "one text for the axes": (
        {"devices": 8, "axes": "dp,tp"},
        "axes='dp,tp' are not names of axes.\n"
        "  They are one to 3 different names, outermost axis first.\n"
        "Fix: axes=('dp', 'tp')",
    ),
    "the same axis twice": (
        {"devices": 8, "axes": ("dp", "dp")},
        "axes=('dp', 'dp') are not names of axes.\n"
        "  They are one to 3 different names, outermost axis first.\n"
        "Fix: axes=('dp', 'tp')",
    ),
    "a mesh": (
        {"devices": 8, "mesh": None},
        "suggest_mesh does not take mesh=.\n"
        "  It chooses the mesh, and makes the plans.\n"
        "Fix: devices=",
    ),
    "a cluster that nobody knows": (
        {"devices": 8, "cluster": "nope"},
        "cluster='nope' is not known.\n"
        "  It prices the plan: the name of a cluster that sbp knows, a cluster or a file.\n"
        f"  The names are {', '.join(sbp.hardware.BY_NAME)}.\n"
        "Fix one of: cluster='h100' | pass an sbp.Cluster | cluster='machine.json', measured by "
        "scripts/calibrate.py --out machine.json",
    ),
    "more devices than there are": (
        {"devices": 10**12},
        "devices=1000000000000 is more than any machine has.\n"
        "  Meshes of at most 1048576 devices are searched.\n"
        "Fix: devices=1048576, or fewer",
    ),
    "axes that are a number": (
        {"devices": 8, "axes": 3},
        "axes=3 are not names of axes.\n"
        "  They are one to 3 different names, outermost axis first.\n"
        "Fix: axes=('dp', 'tp')",
    ),
    "an option that nobody knows": (
        {"devices": 8, "objectiv": "time"},
        "suggest_mesh does not take objectiv=.\n"
        "  By name it takes the options of parallelize; arguments of the function go by position.\n"
        "Fix: objective=",
    ),
    "an argument by name": (
        {"devices": 8, "w2": None},
        "suggest_mesh does not take w2=.\n"
        "  By name it takes the options of parallelize; arguments of the function go by position.\n"
        "Fix: sbp.suggest_mesh(mlp, w2, devices=...)",
    ),
    "hardware": (
        {"devices": 8, "hardware": "h100"},
        "suggest_mesh does not take hardware=.\n"
        "  It chooses the mesh, and makes the plans.\n"
        "Fix: cluster=",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(case):
    options, text = WRONG[case]
    with pytest.raises(SbpError) as caught:
        sbp.suggest_mesh(mlp, *ARGUMENTS, **options)
    assert str(caught.value) == text


def test_what_cannot_be_called_is_no_function():
    with pytest.raises(SbpError) as caught:
        sbp.suggest_mesh(3, devices=8)
    assert str(caught.value) == (
        "suggest_mesh was given 3, which cannot be called.\n"
        "  It takes a pure function of arrays and plans it on several meshes.\n"
        "Fix: sbp.suggest_mesh(train_step, *arguments, devices=8)"
    )


@pytest.mark.parametrize("devices", [1, 12, 97, 4096, 720720])
def test_divisors_of_a_number(devices):
    assert meshes._divisors(devices) == [k for k in range(1, devices + 1) if devices % k == 0]


def test_factors_are_found_without_trying_every_number():
    started = time.perf_counter()
    assert len(list(meshes._factorisations(10**9, 2, least=2))) == 98
    assert time.perf_counter() - started < 5  # trying every number takes a minute
