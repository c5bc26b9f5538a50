"""The search as a whole, held against trying every choice."""

import functools
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp.errors import PlanError
from sbp.problem import Problem
from sbp.search import optimal, solve_exhaustively, solve_greedily, solve_optimally
from sbp.search.elimination import eliminate
from tests.sbp.search.problems import (
    all_labels,
    least_energy,
    problems,
    random_aspects,
    table,
)

# Messages are shares of whole costs, so a bound has the rounding of a few hundred float64 sums.
ROUNDING = 1e-9


def by_messages_alone(problem, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimal, "EXACT_TABLE", 1.0)
        patch.setattr(optimal, "polish", lambda problem, labels, aspects, **_: labels)
        patch.setattr(optimal, "eliminate", functools.partial(eliminate, max_degree=0))
        return solve_optimally(problem, random_aspects(problem, 1), **options)


@given(problems(max_nodes=6))
def test_optimal_is_exhaustive(problem):
    found, optimum = solve_optimally(problem, random_aspects(problem, 2)), least_energy(problem)
    assert (found is None) == math.isinf(optimum)
    if found:
        assert found.energy == found.bound == optimum == problem.energy(found.labels)


def test_on_a_thousand_random_graphs_it_is_the_optimum():
    for seed in range(1000):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(1, 5, rng.integers(2, 8))
        share = rng.choice([0.0, 0.3])
        pairs = [p for p in itertools.combinations(range(len(sizes)), 2) if rng.random() < 0.6]
        problem = Problem(
            tuple(table(rng, (size,), share / 3) for size in sizes),
            {(u, v): table(rng, (sizes[u], sizes[v]), share) for u, v in pairs},
        )
        found, optimum = solve_optimally(problem, random_aspects(problem, 2)), least_energy(problem)
        assert (math.inf if found is None else found.energy) == optimum, seed


@given(problems(max_nodes=6, density=1.0), st.sampled_from([1.0, 8.0, 27.0]))
def test_without_exact_tables_the_bound_still_holds(problem, limit):
    aspects, optimum = random_aspects(problem, 2), least_energy(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimal, "EXACT_TABLE", limit)
        found = solve_optimally(problem, aspects)
        again = solve_optimally(problem, aspects)
    assert found == again
    assert (found is None) == math.isinf(optimum)
    if found:
        assert found.bound <= optimum == found.energy == problem.energy(found.labels)


@given(problems(max_nodes=7, density=1.0))
def test_with_message_passing_alone_the_bound_still_holds(problem):
    optimum = least_energy(problem)
    found = by_messages_alone(problem)
    if found is None:
        # Without polishing, a labelling that is allowed may not be met.
        assert any(np.isinf(table).any() for table in (*problem.costs, *problem.edges.values()))
    else:
        assert found.bound <= optimum + ROUNDING
        assert optimum <= found.energy == problem.energy(found.labels)


def test_a_problem_that_is_consistent_edge_by_edge_may_still_have_no_answer():
    differ = np.where(np.eye(2), np.inf, 0.0)
    odd = Problem((np.zeros(2),) * 3, {(0, 1): differ, (0, 2): differ, (1, 2): differ})
    for limit in (optimal.EXACT_TABLE, 1.0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(optimal, "EXACT_TABLE", limit)
            assert solve_optimally(odd, random_aspects(odd, 1)) is None


def test_what_is_forbidden_is_dearer_than_what_is_known():
    costs = np.array([0.0, 10.0])
    pair = Problem((costs, costs), {(0, 1): np.array([[np.inf, 0.0], [0.0, 0.0]])})
    for incumbents in ([], [(1, 1)]):
        found = by_messages_alone(pair, incumbents=incumbents)
        assert found is not None
        assert found.bound <= found.energy == 10.0


def test_a_gap_that_is_not_closed_is_not_called_closed():
    # Three nodes that all want to differ, with two labels: half of each label is free.
    same = np.eye(2)
    frustrated = Problem((np.zeros(2),) * 3, {(0, 1): same, (0, 2): same, (1, 2): same})
    found = by_messages_alone(frustrated)
    assert found is not None
    assert found.energy == 1.0
    assert found.bound < 0.5


@given(problems(max_nodes=6, density=1.0), st.integers(0, 2**16))
def test_an_incumbent_is_never_lost(problem, seed):
    rng = np.random.default_rng(seed)
    incumbent = [int(rng.integers(len(cost))) for cost in problem.costs]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimal, "EXACT_TABLE", 1.0)
        found = solve_optimally(
            problem, random_aspects(problem, 2), [incumbent], max_sweeps=1, target_gap=1.0
        )
    energy = problem.energy(incumbent)
    assert found.energy <= energy if found else math.isinf(energy)


@given(problems(max_nodes=5))
def test_greedy_is_never_better_than_optimal(problem):
    assert problem.energy(solve_greedily(problem)) >= least_energy(problem)


@given(problems(max_nodes=5))
def test_greedy_takes_the_least_that_those_before_leave(problem):
    labels = solve_greedily(problem)
    for node in range(len(labels)):
        first = problem.conditioned(range(node + 1), [0] * len(labels))
        part = Problem(problem.costs[: node + 1], {
            (u, v): m for (u, v), m in problem.edges.items() if v <= node
        })  # fmt: skip
        assert len(first.costs) == node + 1
        rivals = [part.energy([*labels[:node], x]) for x in range(len(problem.costs[node]))]
        assert part.energy(labels[: node + 1]) == min(rivals)


@given(problems(max_nodes=5))
def test_exhaustive_is_the_first_of_the_cheapest(problem):
    labels = tuple(solve_exhaustively(problem))
    energies = {x: problem.energy(x) for x in all_labels(problem)}
    assert labels == min(x for x, energy in energies.items() if energy == min(energies.values()))


def test_exhaustive_refuses_what_takes_for_ever():
    large = Problem((np.zeros(10),) * 7, {})
    with pytest.raises(PlanError) as caught:
        solve_exhaustively(large)
    assert (
        str(caught.value)
        == """\
10,000,000 choices are too many to try them all.
  search='exhaustive' tries at most 2,000,000.
Fix: use search='optimal', which proves its result without trying all"""
    )


def test_labels_that_nothing_supports_end_the_search():
    forbidden = Problem((np.zeros(2), np.zeros(2)), {(0, 1): np.full((2, 2), np.inf)})
    assert solve_optimally(forbidden, random_aspects(forbidden, 1)) is None


def test_a_problem_without_nodes_costs_nothing():
    found = solve_optimally(Problem((), {}), [])
    assert found is not None
    assert (found.labels, found.energy, found.bound) == ((), 0.0, 0.0)


def test_equal_optima_are_chosen_alike_in_every_run():
    ties = Problem((np.zeros(3),) * 4, {(k, k + 1): np.zeros((3, 3)) for k in range(3)})
    found = {solve_optimally(ties, random_aspects(ties, 1)) for _ in range(3)}
    assert len(found) == 1


@pytest.mark.parametrize("seed", range(8))
def test_what_is_far_from_its_bound_is_polished_too(seed, monkeypatch):
    # A cut of a complete graph: each pair of nodes wants to differ, which no bound of pairs sees.
    monkeypatch.setattr(optimal, "EXACT_TABLE", 1.0)
    weights = np.random.default_rng(seed).integers(1, 100, (10, 10))
    pairs = [(u, v) for v in range(10) for u in range(v)]
    problem = Problem(
        tuple(np.zeros(2) for _ in range(10)),
        {(u, v): np.eye(2) * float(weights[u, v]) for u, v in pairs},
    )
    aspects = [np.arange(2)[:, None]] * 10
    found = solve_optimally(problem, aspects)
    assert found.gap > optimal.NEAR
    assert found.energy == problem.energy(solve_exhaustively(problem))
