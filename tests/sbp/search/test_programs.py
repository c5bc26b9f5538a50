"""The search on graphs of small programs, held against all choices and integer programming.

The integer program is the textbook one: a binary for each label of a node and for each pair of
labels of an edge, tied by their marginals.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from sbp.algebra import NdSbp
from sbp.cost_model import CostModel
from sbp.graph import Boundary, Mesh, Tables, build_graph, connect
from sbp.hardware import CPU, H100_NODE
from sbp.search import optimal, solve_exhaustively, solve_greedily, solve_optimally
from sbp.search.exhaustive import MAX_CHOICES
from sbp.tracing import trace

SHAPE = jax.ShapeDtypeStruct((8, 8), np.float32)
BATCH = jax.ShapeDtypeStruct((64, 8), np.float32)


def mlp(x, w1, w2):
    return [jnp.maximum(x @ w1, 0) @ w2]


def loss(x, w):
    return [jnp.sum(jnp.square(x @ w - x))]


def read_twice(x, w):
    y = x @ w
    return [y @ w, y + x]


def looped(x, w):
    return [jax.lax.scan(lambda c, row: (c @ w, c + row), x, jnp.stack([x, x]))[0]]


def update(w, g):
    return [w - g, jnp.sum(g)]


def reduced(x):
    return [jnp.max(x, 0), jnp.sum(x, 0)]


PROGRAMS = {
    "mlp": (mlp, [BATCH, SHAPE, SHAPE], {}),
    "mlp with a split batch": (mlp, [BATCH, SHAPE, SHAPE], {"pins": {0: "a: S(0)"}}),
    "loss": (loss, [SHAPE, SHAPE], {}),
    "read twice": (read_twice, [SHAPE, SHAPE], {"pins": {0: "a: S(1)"}}),
    "looped": (looped, [SHAPE, SHAPE], {"pins": {1: "a: S(0)"}}),
    "tied update": (update, [SHAPE, SHAPE], {"ties": {0: 0}, "pins": {1: "a: S(1)"}}),
    "reduced": (reduced, [SHAPE], {"pins": {0: "a: S(0)"}}),
}
CASES = [
    pytest.param(name, sizes, objective, id=f"{name} {sizes} {objective}")
    for name in PROGRAMS
    for sizes in [(2,), (2, 2)]
    for objective in ("time", "bytes")
]


def graph_of(name, sizes, objective):
    fn, structs, asked = PROGRAMS[name]
    traced = trace(fn, structs)
    pins, count = asked.get("pins", {}), len(traced.block.outputs)
    boundary = Boundary(
        tuple(f"x{k}" for k in range(len(structs))),
        tuple(f"y{k}" for k in range(count)),
        tuple(NdSbp.parse(pins[k]) if k in pins else None for k in range(len(structs))),
        (None,) * count,
        asked.get("ties", {}),
    )
    mesh = Mesh(("a", "b")[: len(sizes)], sizes)
    costs = CostModel(H100_NODE if objective == "time" else CPU, sizes, objective)
    return connect(build_graph(traced, mesh, costs, boundary), Tables(costs))


def least_by_integer_programming(problem):
    """The optimum, from HiGHS. Forbidden labels and pairs have no variable."""
    offsets, number = [], 0
    for cost in problem.costs:
        offsets.append(number)
        number += len(cost)
    prices = list(np.concatenate(problem.costs))
    rows, columns, values, sides, row = [], [], [], [], 0
    for start, cost in zip(offsets, problem.costs, strict=True):
        rows += [row] * len(cost)
        columns += range(start, start + len(cost))
        values += [1.0] * len(cost)
        sides.append(1.0)
        row += 1
    for (u, v), matrix in problem.edges.items():
        for end, node in enumerate((u, v)):
            for label in range(matrix.shape[end]):
                pairs = np.arange(matrix.size).reshape(matrix.shape).take(label, axis=end)
                rows += [row] * (len(pairs) + 1)
                columns += [*(len(prices) + pairs), offsets[node] + label]
                values += [*([1.0] * len(pairs)), -1.0]
                sides.append(0.0)
                row += 1
        prices += list(matrix.ravel())
    allowed = np.isfinite(prices)
    integral = np.arange(len(prices)) < number
    table = coo_array((values, (rows, columns)), shape=(row, len(prices)))
    found = milp(
        np.where(allowed, prices, 0.0),
        constraints=LinearConstraint(table, sides, sides),
        bounds=Bounds(0, allowed.astype(float)),
        integrality=integral.astype(int),
        options={"mip_rel_gap": 0.0},
    )
    return round(found.fun)


@pytest.mark.parametrize(("name", "sizes", "objective"), CASES)
def test_the_plan_of_a_program_is_the_cheapest(name, sizes, objective):
    boxing = graph_of(name, sizes, objective)
    found = solve_optimally(boxing.problem, boxing.aspects)
    assert found is not None
    assert found.energy == found.bound == boxing.problem.energy(found.labels)
    assert found.energy == least_by_integer_programming(boxing.problem)
    assert boxing.problem.energy(solve_greedily(boxing.problem)) >= found.energy


@pytest.mark.parametrize(("name", "sizes", "objective"), CASES)
def test_the_plan_without_exact_tables_is_as_good(name, sizes, objective, monkeypatch):
    boxing = graph_of(name, sizes, objective)
    exact = solve_optimally(boxing.problem, boxing.aspects)
    monkeypatch.setattr(optimal, "EXACT_TABLE", 1.0)
    passed = solve_optimally(boxing.problem, boxing.aspects)
    assert exact is not None
    assert passed is not None
    assert passed.bound <= exact.energy == passed.energy


def test_exhaustive_search_agrees_where_it_can_try_everything():
    tried = 0
    for name in PROGRAMS:
        problem = graph_of(name, (2,), "time").problem
        if math.prod(len(cost) for cost in problem.costs) > MAX_CHOICES // 50:
            continue
        tried += 1
        best = solve_optimally(problem, graph_of(name, (2,), "time").aspects)
        assert best is not None
        assert problem.energy(solve_exhaustively(problem)) == best.energy
    assert tried >= 2
