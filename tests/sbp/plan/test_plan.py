"""A plan: what it sums up, prints, keeps on disk, and refuses to run."""

import dataclasses
import gc
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding

import flowjax
import sbp
from sbp.plan.explain import format_seconds, table
from scripts.parity_cases import Case, find_model, make_step
from tests.one_device import MESH, assert_same, whole

X, W1, W2 = whole(16, 8), whole(8, 32, seed=1), whole(32, 8, seed=2)
MEGATRON = {"x": "dp: S(0), tp: B", "w1": "tp: S(1), dp: B", "w2": "tp: S(0), dp: B"}


def mlp(x, w1, w2):
    return jnp.maximum(x @ w1, 0) @ w2


def train(params, x):
    def loss(params):
        h = jax.lax.scan(lambda h, w: (jnp.maximum(h @ w, 0) % 5, None), x, params["w"])[0]
        return jnp.sum(h * params["v"][None])

    value, gradient = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - g, params, gradient), value


PARAMS = {"w": whole(3, 8, 8, seed=3), "v": whole(8, seed=4)}


def read_twice(x):
    # Neither runs on slices of its only dim, and order matters to both.
    return jnp.sort(x[:, 0]), jax.lax.cumsum(jnp.sin(x[:, 0])) * 0, x


STEPS = {
    "read twice": (read_twice, (X,), {"in_sbp": "dp: S(0), tp: S(0)", "out_sbp": "dp: B, tp: B"}),
    "mlp": (mlp, (X, W1, W2), {}),
    "megatron": (mlp, (X, W1, W2), {"in_sbp": MEGATRON, "out_sbp": "dp: S(0), tp: B"}),
    "data parallel": (train, (PARAMS, X), {"donate_argnums": 0, "in_sbp": {
        "params": "dp: B, tp: B", "x": "dp: S(0), tp: B"}}),
    "sharded": (train, (PARAMS, X), {"donate_argnums": 0, "in_sbp": {
        "params.w": "dp: S(1), tp: S(2)", "x": "dp: S(0), tp: B"}}),
}  # fmt: skip


def step_of(name, mesh=MESH, **options):
    fn, args, asked = STEPS[name]
    return sbp.parallelize(fn, mesh=mesh, **{**asked, **options}), args


def plan_of(name, **options):
    step, args = step_of(name, **options)
    return step.plan(*args)


@pytest.mark.parametrize("objective", ["time", "bytes"])
@pytest.mark.parametrize("name", STEPS)
def test_sums_are_sums_of_the_rows(name, objective):
    plan = plan_of(name, objective=objective)
    rows, equations = plan.boxings, plan.equations
    assert plan.wire_nbytes == sum(row.nbytes * row.count for row in rows)
    assert plan.flops_per_device == sum(row.flops * row.count for row in equations)
    assert plan.compute_seconds == pytest.approx(sum(r.seconds * r.count for r in equations))
    assert plan.communication_seconds == pytest.approx(sum(r.seconds * r.count for r in rows))
    assert all(row.nbytes == 0 for row in rows if row.is_local)
    assert 0 <= plan.gap <= 1
    assert 0 <= plan.lower_bound <= plan.cost
    assert plan.flops_per_device * 8 >= plan.total_flops
    assert plan.memory_nbytes > 0


@pytest.mark.parametrize("name", STEPS)
def test_what_was_searched_is_what_is_printed(name):
    plan = plan_of(name)
    # Prices are whole picoseconds: each row is off by half of one at most, each time it happens.
    times = sum(row.count for row in (*plan.boxings, *plan.equations))
    assert abs(plan.cost - plan.cost_seconds * 1e12) <= times
    assert plan.lower_bound_seconds <= plan.cost_seconds


@pytest.mark.parametrize("name", STEPS)
def test_the_compiled_program_sends_what_the_plan_says(name):
    step, args = step_of(name)
    found = sbp.audit(step.lower(*args).compile(), step.plan(*args))
    assert not found.unplanned
    assert not found.missing
    assert found.total_nbytes <= step.plan(*args).wire_nbytes


@pytest.mark.parametrize("name", STEPS)
def test_the_bytes_objective_sends_no_more(name):
    assert plan_of(name, objective="bytes").wire_nbytes <= plan_of(name).wire_nbytes


def contract_all(x, w):
    return (x @ w).sum()


def test_a_plan_that_sends_too_much_gives_way_to_one_of_least_bytes(tmp_path):
    args = [jax.ShapeDtypeStruct((1024, 1024), jnp.float32)] * 2
    asked = {"mesh": AbstractMesh((8,), ("a",)), "in_sbp": "a: B", "hardware": "cpu"}
    plan = sbp.parallelize(contract_all, **asked, max_nbytes=0).plan(*args)
    assert (plan.objective, plan.wire_nbytes) == ("wire", 0)
    assert plan.notes[-1] == (
        "planned for least bytes: the plan by time sends 7 bytes a device, max_nbytes is 0"
    )
    assert "proof   gap 0.00%: no plan sends less than 0 B (elimination)" in plan.explain()
    plan.save(tmp_path / "plan.json")
    again = sbp.parallelize(contract_all, **asked, plan=sbp.Plan.load(tmp_path / "plan.json"))
    assert again.plan(*args) == plan
    one_more = sbp.parallelize(contract_all, **asked, max_nbytes=7).plan(*args)
    assert (one_more.objective, one_more.wire_nbytes, one_more.notes) == ("time", 7, ())


@pytest.mark.parametrize("name", STEPS)
def test_a_saved_plan_is_the_same_plan_and_runs(name, tmp_path):
    step, args = step_of(name)
    plan = step.plan(*args)
    plan.save(tmp_path / "plan.json")
    loaded = sbp.Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    assert loaded.explain() == plan.explain()
    again, _ = step_of(name, plan=loaded)
    rerun = again.plan(*args)
    assert rerun == loaded
    assert_same(again(*args), STEPS[name][0](*args))


def test_a_saved_plan_runs_under_other_options_of_search(tmp_path):
    greedy = plan_of("mlp", search="greedy")
    assert greedy.method == "greedy"
    assert plan_of("mlp", plan=greedy).boxings == greedy.boxings


MISFITS = {
    "function": (
        lambda plan: sbp.parallelize(lambda x, w1, w2: mlp(x, w1, w2) + 1, mesh=MESH, plan=plan),
        (X, W1, W2),
        "the function or the shapes of its arguments have changed",
    ),
    "shapes": (
        lambda plan: sbp.parallelize(mlp, mesh=MESH, plan=plan),
        (X[:8], W1, W2),
        "the function or the shapes of its arguments have changed",
    ),
    "mesh": (
        lambda plan: sbp.parallelize(mlp, mesh=flowjax.make_mesh("dp=4,tp=2"), plan=plan),
        (X, W1, W2),
        "it was made for mesh {'dp': 2, 'tp': 4}, this is {'dp': 4, 'tp': 2}",
    ),
    "order of axes": (
        lambda plan: sbp.parallelize(mlp, mesh=flowjax.make_mesh("tp=4,dp=2"), plan=plan),
        (X, W1, W2),
        "it was made for mesh {'dp': 2, 'tp': 4}, this is {'tp': 4, 'dp': 2}",
    ),
    "pins": (
        lambda plan: sbp.parallelize(mlp, mesh=MESH, plan=plan, in_sbp={"x": "tp: S(0)"}),
        (X, W1, W2),
        "pins or options forbid what it chose for argument x",
    ),
}


@pytest.mark.parametrize("what", MISFITS)
def test_a_saved_plan_runs_only_what_it_was_made_for(what):
    make, args, reason = MISFITS[what]
    with pytest.raises(sbp.PlanError) as caught:
        make(plan_of("megatron"))(*args)
    assert (
        str(caught.value)
        == f"""\
the saved plan of mlp does not fit.
  A plan runs only what it was made for; {reason}.
Fix one of: make a new plan | call with the function, shapes and mesh of the saved one"""
    )


CHANGED_CHOICES = {
    "one is missing": lambda choices: choices[:3] + choices[4:],
    "all are in another order": lambda choices: choices[::-1],
    "all are of one kind": lambda choices: (choices[0],) * len(choices),
    "one has too few operands": lambda choices: tuple(
        (label[0][:1], label[1]) if isinstance(label[0], tuple) else label for label in choices
    ),
}


@pytest.mark.parametrize("what", CHANGED_CHOICES)
def test_a_saved_plan_whose_choices_are_not_those_of_the_program(what):
    plan = plan_of("megatron")
    changed = dataclasses.replace(plan, choices=CHANGED_CHOICES[what](plan.choices))
    step = sbp.parallelize(mlp, mesh=MESH, plan=changed)
    with pytest.raises(sbp.PlanError, match="the saved plan of mlp does not fit"):
        step(X, W1, W2)


def test_an_abstract_mesh_gives_the_same_plan():
    for name in STEPS:
        step, args = step_of(name, mesh=AbstractMesh((2, 4), ("dp", "tp")), hardware="cpu")
        structs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), args)
        assert step.plan(*structs) == plan_of(name)
    # Without devices to look at, prices are those of the big machine.
    assert sbp.parallelize(mlp, mesh=AbstractMesh((8,), ("dp",))).plan(X, W1, W2).cluster == "h100"


SCRIPT = """
import sys
sys.path[:0] = [{root!r}]
import jax
jax.config.update("jax_num_cpu_devices", 8)
from tests.sbp.plan.test_plan import STEPS, plan_of
for name in STEPS:
    plan = plan_of(name)
    print(plan.explain(), plan.cost, plan.lower_bound, plan.choices, plan.fingerprint)
"""


def test_every_process_finds_the_same_plan():
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
    seen = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT.format(root=root)], check=True, capture_output=True,
            text=True, cwd=root, env={**os.environ, "PYTHONHASHSEED": seed},
        )  # fmt: skip
        seen.add(done.stdout)
    (text,) = seen
    assert f"test_plan.py:{mlp.__code__.co_firstlineno + 1}" in text


def test_words_go_from_one_step_to_another(tmp_path):
    first = plan_of("sharded")
    second = sbp.parallelize(
        lambda params: jax.tree.map(jnp.sum, params), mesh=MESH, in_sbp=(first.in_sbp[0],)
    )
    assert second.plan(PARAMS).in_sbp[0] == first.in_sbp[0] == first.out_sbp[0]
    first.save(tmp_path / "plan.json")
    loaded = sbp.Plan.load(tmp_path / "plan.json")
    assert loaded.in_sbp == dict(first.arguments)
    third = sbp.parallelize(train, mesh=MESH, in_sbp=loaded.in_sbp)
    assert third.plan(PARAMS, X).in_sbp == first.in_sbp


def test_shardings_are_those_of_the_step():
    step, args = step_of("sharded")
    plan, placed = step.plan(*args), step.place(*args)
    shardings = plan.in_shardings(MESH)
    same = jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s, x.ndim), placed, shardings)
    assert all(jax.tree.leaves(same))
    assert isinstance(plan.out_shardings(MESH)[1], NamedSharding)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (2, "2 s"), (1.5e-3, "1.5 ms"), (2.25e-5, "22.5 us"), (3e-9, "3 ns")],
)
def test_times_are_readable(seconds, text):
    assert format_seconds(seconds) == text


def test_tables_are_set_in_line():
    assert table(("a", "bb"), [("xxx", "y"), ("z", "")]) == "a    bb\nxxx  y\nz"


@pytest.mark.parametrize("style", ["free", "megatron"])
def test_a_plan_is_run_as_it_is_where_a_value_is_boxed_to_what_no_reader_wants(style):
    # Here some values are shared in words on the way to those of their readers.
    case = Case("mlp", (2, 4), style, "manual")
    arguments = find_model("mlp").arguments
    plan = make_step(case).plan(*arguments)
    again = make_step(case, plan).plan(*arguments)
    assert again == plan


@pytest.mark.parametrize("before", [True, False])
def test_planning_leaves_the_garbage_collector_as_it_was(before):
    step = sbp.parallelize(mlp, mesh=MESH)
    (gc.enable if before else gc.disable)()
    try:
        step.plan(X, W1, W2)
        assert gc.isenabled() is before
        with pytest.raises(sbp.SbpError):
            sbp.parallelize(
                mlp, mesh=MESH, max_nbytes=0, in_sbp={"x": "dp: S(1)"}, out_sbp="dp: B"
            ).plan(X, W1, W2)
        assert gc.isenabled() is before
    finally:
        gc.enable()
