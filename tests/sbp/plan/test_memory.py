"""Memory of a plan: its parts, where the peak is, and how much is held at each equation."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import sbp
from sbp.plan.memory import PARTS
from tests.one_device import MESH
from tests.sbp.plan.test_plan import STEPS, W1, W2, X, plan_of

WHOLE = "dp: B, tp: B"


@pytest.mark.parametrize("name", STEPS)
def test_parts_add_up_to_the_peak_which_some_equation_holds(name):
    plan = plan_of(name)
    assert sum(nbytes for _, nbytes in plan.memory_parts) == plan.memory_nbytes
    assert max(row.live_nbytes for row in plan.equations) == plan.memory_nbytes
    assert [part for part, _ in plan.memory_parts] == [
        part for part in PARTS if part in dict(plan.memory_parts)
    ]
    peak = next(row for row in plan.equations if row.live_nbytes == plan.memory_nbytes)
    assert plan.memory_source == peak.source


def test_every_array_is_counted_once_under_its_kind():
    table = jnp.ones((4, 4), jnp.float32)

    def twice_sorted(x, w):
        return jnp.sort(jnp.sort(x @ w) @ table)

    structs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in [(8, 4), (4, 4)]]
    plan = sbp.parallelize(twice_sorted, mesh=AbstractMesh((1,), ("dp",))).plan(*structs)
    arguments, closed_over, inside = 4 * (8 * 4 + 4 * 4), 4 * 4 * 4, 4 * 8 * 4
    assert plan.memory_parts == (
        ("arguments", arguments),
        ("closed-over arrays", closed_over),
        ("intermediate arrays", 2 * inside),
    )
    assert [row.live_nbytes for row in plan.equations] == [
        arguments + closed_over + inside * alive for alive in (1, 2, 2, 2)
    ]


def test_a_result_is_held_to_the_end():
    def both(x):
        first = jnp.sort(x)
        return first, jnp.sort(jnp.sort(first))

    x = jax.ShapeDtypeStruct((8,), jnp.float32)
    plan = sbp.parallelize(both, mesh=AbstractMesh((1,), ("dp",))).plan(x)
    assert [row.live_nbytes for row in plan.equations] == [64, 96, 128]
    assert plan.memory_parts == (("arguments", 32), ("results", 64), ("intermediate arrays", 32))


def test_a_boxed_copy_is_beside_its_original():
    plan = sbp.parallelize(jnp.sort, mesh=MESH, in_sbp="dp: S(0)", out_sbp="dp: S(0)").plan(X[:, 0])
    parts = dict(plan.memory_parts)
    assert parts["arguments"] == 16 * 4 // 2
    assert parts["boxed copies"] >= 16 * 4


def test_a_loop_holds_its_body_beside_what_is_outside():
    parts = dict(plan_of("sharded").memory_parts)
    assert parts["loop bodies"] > 0


def test_what_a_loop_without_equations_holds_counts_for_the_next_one():
    def copied(x):
        return jnp.max(jax.lax.scan(lambda c, row: (c, sbp.pin(row, "dp: B")), 0.0, x)[1])

    x = jax.ShapeDtypeStruct((4, 8), jnp.float32)
    plan = sbp.parallelize(copied, mesh=AbstractMesh((1,), ("dp",))).plan(x)
    assert dict(plan.memory_parts)["loop bodies"] >= 4 * 8
    assert [row.live_nbytes for row in plan.equations] == [plan.memory_nbytes]


def test_less_is_held_where_arguments_are_split():
    whole = plan_of("mlp", in_sbp=WHOLE, out_sbp=WHOLE)
    split = plan_of("megatron")
    assert dict(whole.memory_parts)["arguments"] == 4 * (X.size + W1.size + W2.size)
    assert dict(split.memory_parts)["arguments"] < dict(whole.memory_parts)["arguments"]
