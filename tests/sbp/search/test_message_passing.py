"""Message passing: the bound never passes the optimum and never falls; labels are worth a try."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sbp.problem import Problem
from sbp.search.message_passing import MessagePassing
from tests.sbp.search.problems import all_labels, least_energy, problems

# Messages are shares of whole costs, so a bound has the rounding of a few hundred float64 sums.
ROUNDING = 1e-9


@given(problems(forbidden=False))
def test_the_bound_grows_up_to_the_optimum_at_most(problem):
    passing, optimum = MessagePassing(problem), least_energy(problem)
    before = -np.inf
    for _ in range(8):
        labels = passing.sweep()
        assert problem.energy(labels) >= optimum
        assert before <= passing.bound <= optimum + ROUNDING
        before = passing.bound


@given(problems(forbidden=False, density=0.0), st.integers(0, 2**16))
def test_on_a_tree_the_bound_is_the_optimum(problem, seed):
    rng = np.random.default_rng(seed)
    sizes = [len(cost) for cost in problem.costs]
    parents = [(int(rng.integers(v)), v) for v in range(1, len(sizes))]
    edges = {(u, v): rng.integers(0, 9, (sizes[u], sizes[v])) * 1.0 for u, v in parents}
    tree = Problem(problem.costs, edges)
    found = MessagePassing(tree).run([0] * len(sizes), num_sweeps=30, target_gap=0.0)
    assert abs(found.bound - least_energy(tree)) < ROUNDING


@given(problems(forbidden=False), st.integers(0, 2**16))
def test_the_result_is_never_worse_than_what_it_started_from(problem, seed):
    rng = np.random.default_rng(seed)
    start = [int(rng.integers(len(cost))) for cost in problem.costs]
    found = MessagePassing(problem).run(start, num_sweeps=5, target_gap=0.0)
    assert found.energy == problem.energy(found.labels) <= problem.energy(start)
    assert found.num_sweeps <= 5
    assert found.bound <= found.energy + ROUNDING


def test_it_stops_when_the_gap_is_closed():
    chain = Problem((np.array([0.0, 3.0]),) * 3, {(0, 1): np.eye(2), (1, 2): np.eye(2)})
    found = MessagePassing(chain).run([0, 0, 0], num_sweeps=500, target_gap=0.0)
    assert found.energy == found.bound == 2.0
    assert found.num_sweeps < 5


@given(problems(forbidden=False), st.integers(0, 2**16), st.integers(1, 4))
def test_no_label_of_a_better_choice_is_dropped(problem, seed, num_sweeps):
    rng = np.random.default_rng(seed)
    start = [int(rng.integers(len(cost))) for cost in problem.costs]
    energy = problem.energy(start)
    passing = MessagePassing(problem)
    for _ in range(num_sweeps):
        passing.sweep()
    hopeful = passing.hopeful(energy)
    for labels in all_labels(problem):
        if problem.energy(labels) <= energy:
            assert all(x in kept for x, kept in zip(labels, hopeful, strict=True))


@given(problems(forbidden=False))
def test_fewer_labels_keep_the_bound_and_let_it_grow(problem):
    passing, optimum = MessagePassing(problem), least_energy(problem)
    passing.sweep()
    fewer = passing.restricted(passing.hopeful(optimum))
    before = fewer.bound
    assert before == passing.bound
    fewer.sweep()
    assert before - ROUNDING <= fewer.bound <= optimum + ROUNDING


def test_labels_that_cannot_win_are_dropped():
    chain = Problem((np.array([0.0, 5.0]),) * 3, {(0, 1): np.eye(2), (1, 2): np.eye(2)})
    passing = MessagePassing(chain)
    passing.sweep()
    passing.sweep()
    assert [len(kept) for kept in passing.hopeful(2.0)] == [1, 1, 1]


def test_a_long_sum_takes_no_more_sweeps_than_a_short_one():
    """Terms that are paid for together at the end of a chain of additions."""
    for terms in (4, 40):
        sums = range(terms, 2 * terms)
        costs = [np.array([0.0, 10.0])] * terms + [np.zeros(2)] * terms
        # To be partial is free for a term and an addition; what is partial at the end is reduced.
        costs[-1] = np.array([8.0 * terms, 0.0])
        agree = np.array([[0.0, 12.0], [12.0, 0.0]])
        edges = dict.fromkeys(enumerate(sums), agree)
        edges |= {(node, node + 1): agree * terms for node in sums[:-1]}
        passing = MessagePassing(Problem(tuple(costs), edges))
        for _ in range(3):
            passing.sweep()
        assert passing.bound > 0.99 * 8 * terms
