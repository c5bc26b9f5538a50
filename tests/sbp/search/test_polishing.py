"""Polishing: moves keep what they hold, are the best of their kind, and never make it worse."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sbp.problem import Problem
from sbp.search.polishing import polish, replan_axis, replan_windows
from tests.sbp.search.problems import all_labels, least_energy, problems, random_aspects


def start_of(problem, seed):
    rng = np.random.default_rng(seed)
    return [int(rng.integers(len(cost))) for cost in problem.costs]


def parts_besides(aspects, labels, axis):
    return [tuple(np.delete(p[x], axis)) for p, x in zip(aspects, labels, strict=True)]


@given(problems(), st.integers(0, 2**16), st.integers(0, 1))
def test_replanning_an_axis_is_the_best_change_of_that_axis_alone(problem, seed, axis):
    aspects, start = random_aspects(problem, 2, seed), start_of(problem, seed)
    found = replan_axis(problem, start, aspects, axis)
    assert found is not None
    held = parts_besides(aspects, start, axis)
    assert parts_besides(aspects, found, axis) == held
    rivals = (x for x in all_labels(problem) if parts_besides(aspects, x, axis) == held)
    assert problem.energy(found) == min(map(problem.energy, rivals))


@given(problems(max_nodes=6), st.integers(0, 2**16), st.integers(1, 4))
def test_replanning_windows_never_makes_it_worse(problem, seed, size):
    start = start_of(problem, seed)
    found = replan_windows(problem, start, size)
    assert problem.energy(found) <= problem.energy(start)


@given(problems(max_nodes=6), st.integers(0, 2**16))
def test_a_window_over_all_nodes_is_exact(problem, seed):
    # Nodes in one component: a window grows along edges.
    count = len(problem.costs)
    chain = {
        (k, k + 1): np.zeros((len(problem.costs[k]), len(problem.costs[k + 1])))
        for k in range(count - 1)
    }
    joined = Problem(problem.costs, {**chain, **problem.edges})
    found = replan_windows(joined, start_of(joined, seed), count)
    assert joined.energy(found) == least_energy(joined)


@given(problems(max_nodes=6), st.integers(0, 2**16))
def test_polishing_never_makes_it_worse_and_is_deterministic(problem, seed):
    aspects, start = random_aspects(problem, 2, seed), start_of(problem, seed)
    found = polish(problem, start, aspects, window=3)
    assert problem.energy(found) <= problem.energy(start)
    assert found == polish(problem, start, aspects, window=3)


def test_a_window_that_is_too_dear_shrinks(monkeypatch):
    monkeypatch.setattr("sbp.search.polishing.WINDOW_TABLE", 9)
    rng = np.random.default_rng(0)
    pairs = [(u, v) for v in range(5) for u in range(v)]
    clique = Problem(
        tuple(rng.integers(0, 9, 3) * 1.0 for _ in range(5)),
        {pair: rng.integers(0, 9, (3, 3)) * 1.0 for pair in pairs},
    )
    found = replan_windows(clique, [0] * 5, 5)
    assert clique.energy(found) <= clique.energy([0] * 5)


def test_an_axis_that_is_too_dear_is_left(monkeypatch):
    monkeypatch.setattr("sbp.search.polishing.AXIS_TABLE", 1)
    pair = Problem((np.array([1.0, 0.0]),) * 2, {(0, 1): np.zeros((2, 2))})
    aspects = [np.array([[0], [1]])] * 2
    assert replan_axis(pair, [0, 0], aspects, 0) is None
    assert polish(pair, [0, 0], aspects) == [1, 1]
