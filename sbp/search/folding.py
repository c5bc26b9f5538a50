"""Equal parts of a problem, such as the layers of a deep network, folded onto each other.

Comes in: a `Problem` whose equal tables are the same objects. Goes out: a smaller problem in which
all nodes that look alike make one choice, and the way back. What it finds is a labelling of the
whole; its bound is of labellings that treat equal nodes equally, not of all.
"""

import functools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sbp.problem import Costs, Nearest, Problem, add


@dataclass(frozen=True, slots=True, eq=False)
class Folding:
    """A problem and what of it is equal.

    Attributes:
        problem: The folded problem: a node a class, costs summed over its members.
        classes: The class of each node of the whole.
        members: One node of each class.
    """

    problem: Problem
    classes: tuple[int, ...]
    members: tuple[int, ...]

    def unfold(self, labels: Sequence[int]) -> list[int]:
        """The labels of the whole."""
        return [labels[number] for number in self.classes]


def fold(problem: Problem) -> Folding:
    """Folds nodes that have the same costs and the same matrices to the same kinds of nodes."""
    classes = _alike(problem)
    members = dict(zip(reversed(classes), reversed(range(len(classes))), strict=True))
    counts = np.bincount(classes, minlength=len(members)).tolist()
    costs = [problem.costs[members[k]] * counts[k] for k in range(len(members))]
    # How many times each matrix stands between two classes, as it is or transposed.
    counted: dict[tuple[int, int], dict[tuple[int, bool], int]] = {}
    matrices: dict[tuple[int, bool], Costs] = {}
    parts: dict[tuple[int, int], list[Nearest | None]] = {}
    for (u, v), matrix in problem.edges.items():
        a, b = classes[u], classes[v]
        if a == b:
            costs[a] = costs[a] + np.diagonal(matrix)
            continue
        turned = a > b
        if turned:
            u, v, a, b, matrix = v, u, b, a, matrix.T
        kind = id(problem.edges[min(u, v), max(u, v)]), turned
        matrices[kind] = matrix
        known = counted.setdefault((a, b), {})
        known[kind] = known.get(kind, 0) + 1
        for pair, made in (((a, b), (u, v)), ((b, a), (v, u))):
            parts.setdefault(pair, []).append(problem.nearest.get(made))
    edges = {
        pair: functools.reduce(add, (matrices[kind] * count for kind, count in known.items()))
        for pair, known in counted.items()
    }
    nearest = {pair: total for pair, folds in parts.items() if (total := _total(folds))}
    return Folding(
        Problem(tuple(costs), edges, nearest),
        tuple(classes),
        tuple(members[k] for k in range(len(members))),
    )


def _total(folds: Sequence[Nearest | None]) -> Nearest | None:
    """What the sum of matrices is made of, where all are one matrix."""
    first = folds[0]
    if first is None or any(fold is not first for fold in folds):
        return None
    return Nearest(first.table * len(folds), first.first, first.second)


def _alike(problem: Problem) -> list[int]:
    """A number for each node, the same for nodes that look alike, in order of first appearance."""
    kinds = _numbered([id(cost) for cost in problem.costs])
    around: list[set[Hashable]] = [set() for _ in kinds]
    for (u, v), matrix in problem.edges.items():
        around[u].add((id(matrix), 0, kinds[v]))
        around[v].add((id(matrix), 1, kinds[u]))
    return _numbered([(kind, frozenset(near)) for kind, near in zip(kinds, around, strict=True)])


def _numbered(keys: Sequence[Any]) -> list[int]:
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]
