"""Laws of problems: a matrix made of a smaller one is that matrix, and equal work is shared."""

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sbp.problem import Memo, Nearest, Problem, add
from sbp.search.elimination import eliminate
from sbp.search.message_passing import MessagePassing
from tests.sbp.search.problems import table


@st.composite
def foldings(draw):
    """A small table, and which two of its rows make each row of the matrix."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, columns, labels = (draw(st.integers(1, 6)) for _ in range(3))
    small = table(rng, (rows, columns), 0.0)
    return Nearest(small, *(rng.integers(0, rows, labels) for _ in range(2)))


def whole(fold):
    return np.minimum(fold.table[fold.first], fold.table[fold.second])


@given(foldings(), st.integers(0, 2**32 - 1))
def test_the_least_of_a_folded_matrix_is_that_of_the_matrix(fold, seed):
    rng, matrix = np.random.default_rng(seed), whole(fold)
    rows, columns = table(rng, matrix.shape[:1], 0.0), table(rng, matrix.shape[1:], 0.0)
    np.testing.assert_array_equal(fold.lowest_column(rows), (matrix + rows[:, None]).min(axis=0))
    np.testing.assert_array_equal(fold.lowest_row(columns), (matrix + columns[None, :]).min(axis=1))


@st.composite
def hubs(draw):
    """A hub with readers on either side of it, and the same without what its matrices are of."""
    folds = draw(st.lists(foldings(), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    labels = len(folds[0].first)
    folds = [
        Nearest(f.table, *(rng.integers(0, len(f.table), labels) for _ in range(2))) for f in folds
    ]
    hub = draw(st.integers(0, len(folds)))
    others = [node for node in range(len(folds) + 1) if node != hub]
    sizes = {hub: labels} | {n: f.table.shape[1] for n, f in zip(others, folds, strict=True)}
    edges = {
        (min(hub, n), max(hub, n)): whole(f) if hub < n else whole(f).T
        for n, f in zip(others, folds, strict=True)
    }
    costs = tuple(table(rng, (sizes[n],), 0.0) for n in range(len(sizes)))
    nearest = {(hub, n): f for n, f in zip(others, folds, strict=True)}
    return Problem(costs, edges, nearest)


@given(hubs())
def test_messages_through_small_tables_are_those_through_the_matrices(problem):
    plain = dataclasses.replace(problem, nearest={})
    passing, other = MessagePassing(problem), MessagePassing(plain)
    for _ in range(3):
        assert passing.sweep() == other.sweep()
        assert passing.bound == other.bound


@given(hubs(), st.integers(0, 2**32 - 1))
def test_fewer_labels_keep_what_matrices_are_made_of(problem, seed):
    rng = np.random.default_rng(seed)
    kept = [np.flatnonzero(rng.random(len(c)) < 0.7) for c in problem.costs]
    kept = [keep if len(keep) else np.array([0]) for keep in kept]
    for small in (problem.restricted(kept), eliminate(problem, max_degree=1, max_table=8).rest):
        for (u, v), fold in small.nearest.items():
            matrix = small.edges[u, v] if u < v else small.edges[v, u].T
            np.testing.assert_array_equal(whole(fold), matrix)


def test_what_is_added_to_a_matrix_is_not_left_out():
    # Node 1 goes, and what it leaves joins the edge of the hub 0 and its reader 2.
    fold = Nearest(np.arange(6.0).reshape(2, 3), np.array([0, 1, 1]), np.array([0, 0, 1]))
    costs = (np.zeros(3), np.zeros(2), np.zeros(3))
    edges = {(0, 1): np.ones((3, 2)), (1, 2): np.ones((2, 3)), (0, 2): whole(fold)}
    problem = Problem(costs, edges, {(0, 2): fold})
    assert eliminate(problem, order=[1]).rest.nearest == {}


def test_equal_work_on_the_same_arrays_is_done_once():
    memo, calls = Memo(), []

    def half(power, array):
        calls.append(power)
        return array / 2**power

    one, other = np.ones(3), np.ones(3)
    assert memo(half, one, key=(1,)) is memo(half, one, key=(1,))
    assert memo(half, other, key=(1,)) is not memo(half, one, key=(1,))
    assert memo(half, one, key=(2,))[0] == 0.25
    assert calls == [1, 1, 2]
    assert memo(add, one, other) is memo(add, one, other)


def test_arrays_that_are_gone_are_not_mistaken_for_new_ones():
    memo = Memo()
    for value in range(50):  # each array could take the place of the one before in memory
        assert memo(add, np.full(3, value), np.zeros(3))[0] == value
