"""The search problem: choose one label for each node, at the least sum of node and edge costs.

Comes in: cost vectors of nodes and cost matrices of edges, exact integers held in float64, infinite
where a choice is forbidden. Goes out: the same problem, smaller, and labels for it. Known elsewhere
as MAP inference in a pairwise graphical model, or a weighted constraint problem.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]
Edges = Mapping[tuple[int, int], Costs]
Labels = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Nodes and edges.

    Attributes:
        costs: One vector a node, an entry a label.
        edges: For `(u, v)` with u < v, a matrix: rows are labels of u, columns labels of v.
    """

    costs: tuple[Costs, ...]
    edges: Edges

    def energy(self, labels: Sequence[int]) -> float:
        """Cost of a choice of one label a node."""
        nodes = sum(float(cost[x]) for cost, x in zip(self.costs, labels, strict=True))
        return nodes + sum(
            float(matrix[labels[u], labels[v]]) for (u, v), matrix in self.edges.items()
        )

    def neighbours(self) -> list[dict[int, Costs]]:
        """For each node its neighbours, with the matrix that has the node's labels as rows."""
        around: list[dict[int, Costs]] = [{} for _ in self.costs]
        for (u, v), matrix in self.edges.items():
            around[u][v] = matrix
            around[v][u] = matrix.T
        return around

    def restricted(self, kept: Sequence[NDArray[np.intp]]) -> "Problem":
        """The problem with only some labels of each node, in the order given."""
        return Problem(
            tuple(cost[keep] for cost, keep in zip(self.costs, kept, strict=True)),
            {(u, v): matrix[np.ix_(kept[u], kept[v])] for (u, v), matrix in self.edges.items()},
        )

    def conditioned(self, free: Iterable[int], labels: Sequence[int]) -> "Problem":
        """The problem over `free` nodes alone, in their order, all others held at `labels`."""
        nodes = list(free)
        index = {node: k for k, node in enumerate(nodes)}
        costs = [self.costs[node] for node in nodes]
        edges: dict[tuple[int, int], Costs] = {}
        for (u, v), matrix in self.edges.items():
            if u in index and v in index:
                a, b = index[u], index[v]
                edges[min(a, b), max(a, b)] = matrix if a < b else matrix.T
            elif u in index:
                costs[index[u]] = costs[index[u]] + matrix[:, labels[v]]
            elif v in index:
                costs[index[v]] = costs[index[v]] + matrix[labels[u], :]
        return Problem(tuple(costs), edges)


def consistent_labels(problem: Problem) -> list[NDArray[np.intp]]:
    """Labels that can be part of a finite choice as far as single edges tell (arc consistency).

    Returns:
        For each node the labels that stay; an empty array says that no finite choice exists.
    """
    alive = [np.isfinite(cost) for cost in problem.costs]
    finite = {edge: np.isfinite(matrix) for edge, matrix in problem.edges.items()}
    around: list[list[tuple[int, NDArray[np.bool_]]]] = [[] for _ in problem.costs]
    for (u, v), mask in finite.items():
        if not mask.all():
            around[u].append((v, mask))
            around[v].append((u, mask.T))
    pending = [node for node in range(len(alive)) if around[node]]
    while pending:
        node = pending.pop()
        for other, mask in around[node]:
            supported = mask[alive[node]].any(axis=0) & alive[other]
            if supported.sum() < alive[other].sum():
                alive[other] = supported
                pending.append(other)
    return [np.flatnonzero(mask) for mask in alive]
