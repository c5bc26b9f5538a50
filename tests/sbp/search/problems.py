"""Random problems of the search, small enough to try every choice."""

import itertools
import math

import numpy as np
from hypothesis import strategies as st

from sbp.problem import Problem


@st.composite
def problems(draw, max_nodes=5, max_labels=4, forbidden=True, density=0.7):
    """Whole-number costs up to 20, some of them infinite."""
    count = draw(st.integers(1, max_nodes))
    sizes = [draw(st.integers(1, max_labels)) for _ in range(count)]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    share = draw(st.sampled_from([0.0, 0.2, 0.5])) if forbidden else 0.0
    edges = [pair for pair in itertools.combinations(range(count), 2) if rng.random() < density]
    return Problem(
        tuple(table(rng, (size,), share / 3) for size in sizes),
        {(u, v): table(rng, (sizes[u], sizes[v]), share) for u, v in edges},
    )


def table(rng, shape, share):
    """Whole numbers, a share of them infinite; equal ones are common."""
    costs = rng.integers(0, rng.choice([3, 21]), shape).astype(np.float64)
    costs[rng.random(shape) < share] = np.inf
    return costs


def random_aspects(problem, num_axes, seed=0):
    """Parts of labels on axes: two labels of a node differ in some part."""
    rng = np.random.default_rng(seed)
    aspects = []
    for cost in problem.costs:
        grid = itertools.product(range(math.ceil(len(cost) ** (1 / num_axes))), repeat=num_axes)
        rows = np.array(list(itertools.islice(grid, len(cost))))
        aspects.append(rng.permutation(rows))
    return aspects


def all_labels(problem):
    """Every choice."""
    return itertools.product(*(range(len(cost)) for cost in problem.costs))


def least_energy(problem):
    """The optimum, by adding all tables into one."""
    count = len(problem.costs)
    total = np.zeros([len(cost) for cost in problem.costs])
    for node, cost in enumerate(problem.costs):
        total = total + cost.reshape([-1 if k == node else 1 for k in range(count)])
    for (u, v), matrix in problem.edges.items():
        total = total + matrix.reshape(
            [matrix.shape[0] if k == u else matrix.shape[1] if k == v else 1 for k in range(count)]
        )
    return float(total.min())
