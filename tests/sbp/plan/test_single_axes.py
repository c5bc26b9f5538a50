"""Axes of one device: they change nothing, cost nothing, and what is asked of them holds."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowjax
import sbp
from sbp.cost_model import CostModel
from sbp.graph import Boundary, Mesh, Tables, axes_alike, build_graph, connect
from sbp.hardware import H100_NODE
from sbp.tracing import trace
from tests.one_device import assert_same, whole
from tests.sbp.random_programs import cases

X, W = whole(8, 16), whole(16, 16, seed=1)


@given(st.data())
def test_an_axis_of_one_device_changes_nothing(data):
    case = data.draw(cases())
    sizes = list(case.sizes)
    for _ in range(data.draw(st.integers(1, 2))):
        sizes.insert(data.draw(st.integers(0, len(sizes))), 1)
    plan, other = case.plan(), dataclasses.replace(case, sizes=tuple(sizes)).plan()
    assert (other.cost, other.lower_bound) == (plan.cost, plan.lower_bound)
    assert (other.wire_nbytes, other.memory_nbytes) == (plan.wire_nbytes, plan.memory_nbytes)
    assert [row.nbytes for row in other.boxings] == [row.nbytes for row in plan.boxings]


def convolve(x, w):
    y = jax.lax.conv(x, w, (1, 1), "SAME")
    return jax.nn.relu(y).sum(1), y.max((2, 3))


def labels_and_prices(sizes):
    """Numbers of labels of the graph's nodes, of all its kinds, and of prices in its tables."""
    structs = [jax.ShapeDtypeStruct(s, np.float32) for s in ((8, 4, 16, 16), (8, 4, 3, 3))]
    mesh, costs = Mesh(tuple("abcdef"[: len(sizes)]), sizes), CostModel(H100_NODE, sizes)
    boundary = Boundary(("x", "w"), ("y", "z"), (None, None), (None, None))
    found = []
    for exchangeable in ((), axes_alike(costs)):
        program = trace(convolve, structs), mesh, costs, boundary
        graph, tables = build_graph(*program, exchangeable=exchangeable), Tables(costs)
        boxing = connect(graph, tables)
        found += [len(node.domain.labels) for node in graph.nodes]
        found += [matrix.size for matrix in boxing.problem.edges.values()]
        found += [fold.table.size for fold in boxing.problem.nearest.values()]
    return found


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("count", [1, 3])
def test_an_axis_of_one_device_adds_no_work(place, count):
    sizes = (2, 2, 2)
    more = (*sizes[:place], *[1] * count, *sizes[place:])
    assert labels_and_prices(more) == labels_and_prices(sizes)


def test_one_device_has_nothing_to_choose():
    assert set(labels_and_prices((1, 1, 1))) == {1}


ASKED = [
    ({"x": "one: S(1)"}, "one: S(0)"),
    ({"x": "dp: S(0), one: S(0)", "w": "one: B"}, "dp: S(0)"),
    ({"x": "dp: S(0), one: S(0), tp: S(0)"}, "one: S(1), tp: S(1)"),
]


@pytest.mark.parametrize("search", ["optimal", "greedy"])
@pytest.mark.parametrize("into", [{}, {"one": "S(1)"}, {"one": "P"}], ids=str)
@pytest.mark.parametrize(("arguments", "result"), ASKED, ids=str)
def test_words_asked_on_an_axis_of_one_device_hold_and_are_shown(arguments, result, into, search):
    def fn(x, w):
        y = sbp.pin(jnp.abs(x @ w), **into) if into else jnp.abs(x @ w)
        return y @ w + y + x

    mesh = jax.make_mesh((2, 1, 4), ("dp", "one", "tp"))
    step = sbp.parallelize(fn, mesh=mesh, in_sbp=arguments, out_sbp=result, search=search)
    plan = step.plan(X, W)
    words, (shown,) = dict(plan.arguments), dict(plan.results).values()
    for path, text in arguments.items():
        assert sbp.NdSbp.parse(text).items() <= words[path].items()
    assert sbp.NdSbp.parse(result).items() <= shown.items()
    word = f"(one: {into['one']})" if into else "(one: "
    assert any(word in row.dst and not row.nbytes for row in plan.boxings)
    assert_same(step(X, W), fn(X, W))


ONE = flowjax.make_mesh("dp=1,tp=8")
V = whole(16, 8, seed=1)


def pinned(x, w):
    return sbp.pin(x @ w, dp="S(0)") * 2


def test_another_word_on_an_axis_of_one_device_costs_nothing_and_takes_no_memory():
    words = {"x": "dp: S(1), tp: B", "w": "tp: S(1)"}
    step = sbp.parallelize(pinned, mesh=ONE, in_sbp=words)
    plan = step.plan(X, V)
    assert {(row.collective, row.nbytes, row.seconds) for row in plan.boxings} == {
        ("relabel", 0, 0)
    }
    assert "boxed copies" not in dict(plan.memory_parts)
    assert_same(step(X, V), X @ V * 2)
    why = str(plan.why("x", "dp: S(0)"))
    assert why.endswith("; on dp, of one device, all words are the same")


def test_tied_ends_may_have_other_words_on_an_axis_of_one_device():
    step = sbp.parallelize(
        lambda x: x + 1, mesh=ONE, in_sbp={"x": "dp: S(0)"}, out_sbp="dp: S(1)", donate_argnums=0
    )
    assert_same(step(X), X + 1)
    with pytest.raises(sbp.PlanError, match="contradict"):
        sbp.parallelize(
            lambda x: x + 1, mesh=ONE, in_sbp={"x": "tp: S(0)"}, out_sbp="tp: S(1)",
            donate_argnums=0,
        ).plan(X)  # fmt: skip
