"""Elimination: what is left has the same optimum, and the way back finds it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp.problem import Problem, consistent_labels
from sbp.search.elimination import eliminate, elimination_order, solve_exactly
from tests.sbp.search.problems import all_labels, least_energy, problems


@given(problems(), st.sampled_from([1, 2, None]), st.sampled_from([4.0, 20.0, 1e6]))
def test_every_choice_of_the_rest_is_completed_at_the_cost_it_shows(problem, degree, limit):
    if degree is None:
        limit = 1e6
    thin = eliminate(problem, max_table=limit, max_degree=degree)
    assert least_energy(thin.rest) + thin.constant == least_energy(problem)
    for labels in all_labels(thin.rest):
        complete = thin.complete(labels)
        assert problem.energy(complete) == thin.rest.energy(labels) + thin.constant
        assert [complete[node] for node in thin.stayed] == list(labels)


@given(problems(max_nodes=6))
def test_eliminating_all_nodes_gives_the_optimum(problem):
    labels = solve_exactly(problem)
    assert labels is not None
    assert problem.energy(labels) == least_energy(problem)


@given(problems(), st.sampled_from([2.0, 8.0, 30.0]), st.sampled_from([0, 1, 2, None]))
def test_the_order_keeps_to_the_limits(problem, limit, degree):
    order, largest = elimination_order(problem, limit, degree)
    assert largest <= limit
    assert len(set(order)) == len(order)
    around = {n: set(near) for n, near in enumerate(problem.neighbours)}
    for node in order:
        assert degree is None or len(around[node]) <= degree
        entries = math.prod(len(problem.costs[n]) for n in (node, *around[node]))
        assert entries <= largest
        for other in around[node]:
            around[other] = (around[other] | around[node]) - {node, other}


def ring(size, labels):
    rng = np.random.default_rng(0)
    edges = {(k, k + 1): rng.integers(0, 9, (labels, labels)) * 1.0 for k in range(size - 1)}
    return Problem((np.zeros(labels),) * size, {**edges, (0, size - 1): np.eye(labels)})


def test_a_table_above_the_limit_is_not_built():
    assert solve_exactly(ring(5, 10), max_table=999) is None
    assert solve_exactly(ring(5, 10), max_table=1000) is not None


def test_a_ring_leaves_nothing_and_a_clique_stays():
    assert eliminate(ring(6, 3)).stayed == ()
    pairs = [(u, v) for v in range(5) for u in range(v)]
    clique = Problem((np.zeros(3),) * 5, dict.fromkeys(pairs, np.eye(3)))
    assert eliminate(clique).stayed == (0, 1, 2, 3, 4)


def test_any_number_of_neighbours_without_a_choice_is_no_burden():
    edges = {(0, leaf): np.array([[1.0], [0.0]]) for leaf in range(1, 100)}
    star = Problem((np.array([0.0, 98.0]), *(np.zeros(1),) * 99), edges)
    assert solve_exactly(star, max_table=2) == [1] + [0] * 99


@given(problems())
def test_consistent_labels_hold_every_finite_choice(problem):
    kept = consistent_labels(problem)
    for labels in all_labels(problem):
        if np.isfinite(problem.energy(labels)):
            assert all(label in keep for label, keep in zip(labels, kept, strict=True))


@given(problems(max_nodes=4, density=0.0))
def test_labels_of_unconnected_nodes_are_consistent_where_finite(problem):
    kept = consistent_labels(problem)
    for cost, keep in zip(problem.costs, kept, strict=True):
        assert list(keep) == list(np.flatnonzero(np.isfinite(cost)))


@given(problems())
def test_conditioning_keeps_the_differences_of_energy(problem):
    free = range(0, len(problem.costs), 2)
    rest = [0] * len(problem.costs)
    part = problem.conditioned(free, rest)
    offset = None
    for labels in all_labels(part):
        for node, label in zip(free, labels, strict=True):
            rest[node] = label
        whole, here = problem.energy(rest), part.energy(labels)
        assert np.isfinite(whole) <= np.isfinite(here)
        if np.isfinite(whole):
            offset = whole - here if offset is None else offset
            assert whole - here == offset


def test_an_infinite_problem_stays_infinite():
    forbidden = Problem((np.array([np.inf, np.inf]), np.zeros(2)), {(0, 1): np.zeros((2, 2))})
    labels = solve_exactly(forbidden)
    assert labels is not None
    assert forbidden.energy(labels) == pytest.approx(math.inf)
