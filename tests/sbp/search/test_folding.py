"""Folding: what is equal is counted as often as it is there, and depth does not count."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sbp.problem import Problem
from sbp.search import solve_optimally
from sbp.search.folding import fold
from tests.sbp.search.problems import all_labels, least_energy, random_aspects, table


@st.composite
def layered(draw, max_layers=4):
    """Layers of a few nodes with the same tables in each, joined one to the next."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    layers, width = draw(st.integers(1, max_layers)), draw(st.integers(1, 2))
    sizes = rng.integers(1, 4, width)
    costs = [table(rng, (size,), 0.0) for size in sizes]
    inside = {p: table(rng, sizes[list(p)], 0.1) for p in itertools.combinations(range(width), 2)}
    onward = {
        (u, v): table(rng, (sizes[u], sizes[v]), 0.1)
        for u in range(width)
        for v in range(width)
        if rng.random() < 0.5
    }
    edges = {}
    for layer in range(layers):
        start = layer * width
        edges |= {(start + u, start + v): matrix for (u, v), matrix in inside.items()}
        if layer + 1 < layers:
            edges |= {(start + u, start + width + v): m for (u, v), m in onward.items()}
    return Problem(tuple(costs * layers), edges)


@given(layered())
def test_a_folded_choice_costs_what_its_unfolding_costs(problem):
    folding = fold(problem)
    assert len(folding.classes) == len(problem.costs)
    assert [folding.classes[node] for node in folding.members] == list(range(len(folding.members)))
    for labels in itertools.islice(all_labels(folding.problem), 50):
        assert folding.problem.energy(labels) == problem.energy(folding.unfold(labels))


@given(layered())
def test_what_folding_finds_is_never_mistaken_for_the_optimum(problem):
    found, optimum = solve_optimally(problem, random_aspects(problem, 1)), least_energy(problem)
    assert (found is None) == np.isinf(optimum)
    if found:
        assert found.bound <= found.energy == optimum


def test_a_deep_chain_folds_to_its_ends_and_its_middle():
    rng = np.random.default_rng(0)
    cost, step = table(rng, (5,), 0.0), table(rng, (5, 5), 0.0)
    sizes = set()
    for depth in (4, 40):
        chain = Problem((cost,) * depth, {(k, k + 1): step for k in range(depth - 1)})
        folding = fold(chain)
        sizes.add(len(folding.members))
        assert folding.classes[0] != folding.classes[1] == folding.classes[2]
    assert sizes == {3}


def test_equal_numbers_in_other_tables_are_not_folded():
    costs = tuple(np.zeros(2) for _ in range(3))
    assert len(fold(Problem(costs, {})).members) == 3
