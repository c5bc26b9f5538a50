"""Memory limits: plans that meet them, what they cost, and what is said where none does."""

import functools
import random
import re

import jax
import jax.numpy as jnp
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AbstractMesh

import sbp
from sbp.plan import limits
from tests.sbp.random_programs import Case, cases

MESH = AbstractMesh((8,), ("dp",))
WIDTH, HIDDEN, BATCH = 256, 1024, 64


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def adamw_step(state, batch):
    """One step of a perceptron, data parallel."""
    optimizer = optax.adamw(1e-3)

    def loss(weights):
        hidden = jax.nn.relu(sbp.pin(batch, "dp: S(0)") @ weights["up"])
        return jnp.mean((sbp.pin(hidden, "dp: S(0)") @ weights["down"]) ** 2)

    weights, moments = state
    gradients = jax.grad(loss)(weights)
    updates, moments = optimizer.update(gradients, moments, weights)
    return optax.apply_updates(weights, updates), moments


@functools.cache
def plan(memory_limit=None, pins=(), **options) -> sbp.Plan:
    weights = {"up": floats(WIDTH, HIDDEN), "down": floats(HIDDEN, WIDTH)}
    moments = jax.eval_shape(optax.adamw(1e-3).init, weights)
    options = {"hardware": "h100", "donate_argnums": 0, "in_sbp": dict(pins) or None, **options}
    with jax.numpy_dtype_promotion("standard"):
        step = sbp.parallelize(adamw_step, mesh=MESH, memory_limit=memory_limit, **options)
        return step.plan((weights, moments), floats(BATCH, WIDTH))


def words(found: sbp.Plan, path: str) -> set[str]:
    """Words of the arguments whose path has some text in it."""
    return {str(w["dp"]) for name, w in found.arguments if re.search(path, name)}


@functools.cache
def least() -> int:
    """The nearest limit that works, as the error says."""
    with pytest.raises(sbp.PlanError) as caught:
        plan(1)
    found = re.search(r"memory_limit=(\d+)", str(caught.value))
    assert found
    return int(found[1])


def test_the_nearest_limit_works_and_one_byte_less_does_not():
    assert least() < 0.85 * plan().memory_nbytes
    assert plan(least()).memory_nbytes <= least()
    with pytest.raises(sbp.PlanError, match=f"memory_limit={least()}"):
        plan(least() - 1)


def test_random_limits_are_met_and_no_plan_beats_the_bound():
    free = plan()
    draw = random.Random(0)
    for _ in range(12):
        limit = draw.randint(least(), free.memory_nbytes)
        found = plan(limit)
        assert found.memory_nbytes <= limit
        assert free.lower_bound <= found.lower_bound <= found.cost
        assert found.cost >= free.cost


@given(cases(most_steps=4), st.floats(0, 1))
@settings(max_examples=30, deadline=None)
def test_limits_of_random_programs_are_met_down_to_the_nearest(case: Case, share: float):
    free = case.plan().memory_nbytes
    with pytest.raises(sbp.PlanError) as caught:
        case.plan(memory_limit=1)
    found = re.search(r"memory_limit=(\d+)", str(caught.value))
    assert found
    least = int(found[1])
    assert least <= free
    for limit in (least, least + int(share * (free - least))):
        assert case.plan(memory_limit=limit).memory_nbytes <= limit


def test_a_limit_that_is_met_anyway_changes_nothing():
    assert plan(plan().memory_nbytes) == plan()


def test_less_memory_is_never_cheaper():
    free = plan()
    steps = [free.memory_nbytes - k * (free.memory_nbytes - least()) // 4 for k in range(5)]
    costs = [plan(limit).cost for limit in steps]
    assert costs == sorted(costs)


def test_short_of_memory_state_is_split_and_very_short_weights_too():
    weights = (("state.0.*", "dp: B"),)
    everything = plan(pins=(*weights, ("state.1.*", "dp: B")))
    assert words(everything, r"state.*(up|down)") == {"B"}
    zero = plan(everything.memory_nbytes - 1, pins=weights)
    assert words(zero, r"state\.0\.(up|down)") == {"B"}
    assert words(zero, r"state\.1.*\.(up|down)") <= {"S(0)", "S(1)"}
    assert words(plan(least()), r"state.*(up|down)") <= {"S(0)", "S(1)"}


def test_a_copy_that_only_one_of_two_readers_makes_is_priced():
    # Weights read by a loop and by its gradient, which compute again what they need: at the least
    # memory, neither loop gathers all layers of a weight.
    def loss(weights, x):
        def layer(x, weight):
            up, down = weight
            return x + jax.nn.relu(x @ up) @ down, None

        return jnp.mean(jax.lax.scan(jax.checkpoint(layer), x, weights)[0] ** 2)

    weights = floats(8, 1024, 4096), floats(8, 4096, 1024)
    options = {"in_sbp": {"x": "dp: S(0)"}, "memory_limit": 280 * 2**20}
    step = sbp.parallelize(jax.grad(loss), mesh=MESH, hardware="h100", **options)
    rows = step.plan(weights, floats(16384, 1024)).boxings
    gathers = [row for row in rows if row.collective == "all-gather"]
    assert [row.count for row in gathers] == [8] * 4


def test_layers_unrolled_get_by_with_as_little_as_a_loop():
    # At the highest prices a plan that is dear at one peak moves to another; the leanest is found
    # beside a middle price.
    def least_of(is_loop: bool) -> int:
        def loss(weights, x):
            def layer(x, weight):
                up, down = weight
                return x + jax.nn.relu(x @ up) @ down, None

            if is_loop:
                x, _ = jax.lax.scan(jax.checkpoint(layer), x, weights)
            else:
                for k in range(8):
                    x, _ = jax.checkpoint(layer)(x, (weights[0][k], weights[1][k]))
            return jnp.mean(x**2)

        options = {"in_sbp": {"x": "dp: S(0)"}, "memory_limit": 1}
        step = sbp.parallelize(jax.grad(loss), mesh=MESH, hardware="h100", **options)
        with pytest.raises(sbp.PlanError) as caught:
            step.plan((floats(8, 1024, 4096), floats(8, 4096, 1024)), floats(16384, 1024))
        found = re.search(r"memory_limit=(\d+)", str(caught.value))
        assert found
        return int(found[1])

    # Without a loop more can travel together, which is held at once.
    assert least_of(is_loop=False) <= 1.1 * least_of(is_loop=True)


def test_the_error_names_the_largest_arrays_and_the_nearest_limit():
    with pytest.raises(sbp.PlanError) as caught:
        plan(2**10)
    lines = re.sub(r"\(\S+:\d+\)", "(LINE)", str(caught.value)).splitlines()
    assert lines[0].startswith("adamw_step needs ")
    assert lines[0].endswith(" on a device, memory_limit is 1 KiB.")
    assert lines[1].endswith("needs less than this one. Its largest arrays on one device are:")
    assert len(lines) == 6
    assert lines[-1] == (
        f"Fix one of: memory_limit={least()} | pin the largest arrays to S | use more devices"
    )


def test_a_saved_plan_that_does_not_fit_is_not_searched_again():
    with pytest.raises(sbp.PlanError, match="The saved plan does not fit"):
        plan.__wrapped__(plan().memory_nbytes - 1, plan=plan())


def test_memory_without_a_price_changes_nothing():
    class Boxing:
        """Stands for a graph; nothing of it may be looked at."""

    boxing = Boxing()
    assert limits.priced(boxing, limits.Prices()) is boxing  # type: ignore[arg-type]


def test_a_limit_a_byte_too_low_is_not_printed_as_enough():
    x = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    mesh = AbstractMesh((2,), ("dp",))
    least = sbp.parallelize(jnp.sin, mesh=mesh, in_sbp="dp: B", out_sbp="dp: B").plan(x)
    limit = least.memory_nbytes - 1
    step = sbp.parallelize(jnp.sin, mesh=mesh, in_sbp="dp: B", out_sbp="dp: B", memory_limit=limit)
    with pytest.raises(sbp.PlanError) as caught:
        step.plan(x)
    head = str(caught.value).splitlines()[0]
    assert head == f"sin needs {limit + 1:,} B on a device, memory_limit is {limit:,} B."


def descend(weights, x):
    def loss(weights):
        return jnp.sum((jnp.tanh(x @ weights[0]) @ weights[1]) ** 2)

    return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))


def descent(**options) -> sbp.Plan:
    weights = [jax.ShapeDtypeStruct((32, 32), jnp.float32)] * 2
    x = jax.ShapeDtypeStruct((64, 32), jnp.float32)
    mesh = AbstractMesh((8,), ("a",))
    return sbp.parallelize(descend, mesh=mesh, hardware="cpu", **options).plan(weights, x)


@pytest.mark.parametrize("objective", ["time", "bytes", "wire"])
def test_a_limit_is_met_by_any_objective(objective):
    # A plan that sends nothing costs seconds only, next to nothing by bytes.
    limit = descent(objective="time").memory_nbytes
    assert descent(objective=objective, memory_limit=limit).memory_nbytes <= limit


def test_of_the_plans_within_a_budget_of_bytes_the_fastest_is_taken():
    free = descent()
    plans = [descent(objective=objective) for objective in ("bytes", "wire")]
    assert {plan.wire_nbytes < free.wire_nbytes for plan in plans} == {True}
    found = descent(max_nbytes=free.wire_nbytes - 1)
    assert found.cost_seconds == min(plan.cost_seconds for plan in plans)


def test_a_budget_that_no_plan_within_memory_keeps():
    limit = descent().memory_nbytes
    with pytest.raises(sbp.PlanError, match="a higher memory_limit") as caught:
        descent(memory_limit=limit, max_nbytes=0)
    budget = int(str(caught.value).split("Fix one of: max_nbytes=")[1].split()[0])
    plan = descent(memory_limit=limit, max_nbytes=budget)
    assert plan.memory_nbytes <= limit
    assert plan.wire_nbytes <= budget
