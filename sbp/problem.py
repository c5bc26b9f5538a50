"""The search problem: choose one label for each node, at the least sum of node and edge costs.

Comes in: cost vectors of nodes and cost matrices of edges, exact integers held in float64, infinite
where a choice is forbidden. Goes out: the same problem, smaller, and labels for it. Known elsewhere
as MAP inference in a pairwise graphical model, or a weighted constraint problem.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]
Edges = Mapping[tuple[int, int], Costs]
Labels = tuple[int, ...]


class Memo:
    """Pure functions of arrays, computed once for the same arrays.

    Equal layers of a program share their tables; what is made of shared tables is shared again, so
    that a deep program takes the memory and time of one layer.
    """

    def __init__(self) -> None:
        """Starts with nothing known."""
        self._known: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def __call__(self, make: Callable[..., Any], *arrays: Any, key: tuple[Any, ...] = ()) -> Any:
        """`make(*key, *arrays)`.

        Args:
            make: A function that is the same object for the same work.
            *arrays: Arguments told apart by identity.
            key: Arguments told apart by value.
        """
        known = (make, key, *map(id, arrays))
        if known not in self._known:
            # The arrays are kept, so that none can take the identity of another.
            self._known[known] = (arrays, make(*key, *arrays))
        return self._known[known][1]


def add(first: Costs, second: Costs) -> Costs:
    """Elementwise sum."""
    return first + second


def transpose(matrix: Costs) -> Costs:
    """The matrix with rows and columns exchanged, contiguous."""
    return np.ascontiguousarray(matrix.T)


@dataclass(frozen=True, eq=False)
class Nearest:
    """A matrix of which each row is the elementwise lesser of two rows of a smaller table.

    Attributes:
        table: The smaller table.
        first: For each row of the matrix, a row of the table.
        second: The other.
    """

    table: Costs
    first: NDArray[np.intp]
    second: NDArray[np.intp]

    def matrix(self) -> Costs:
        """The matrix itself."""
        return np.minimum(self.table[self.first], self.table[self.second])

    def lowest_column(self, rows: Costs) -> Costs:
        """The least of `rows` plus the matrix in each column."""
        members, starts, table = self._by_row
        return np.minimum.reduce(table + np.minimum.reduceat(rows[members], starts)[:, None])

    def lowest_row(self, columns: Costs) -> Costs:
        """The least of `columns` plus the matrix in each row."""
        lowest = np.minimum.reduce(self._transposed + columns[:, None])
        return np.minimum(lowest[self.first], lowest[self.second])

    @functools.cached_property
    def _transposed(self) -> Costs:
        return transpose(self.table)

    @functools.cached_property
    def _by_row(self) -> tuple[NDArray[np.intp], NDArray[np.intp], Costs]:
        """Rows of the matrix sorted by row of the table, where each begins, and those rows."""
        both = np.concatenate([self.first, self.second])
        order = np.argsort(both, kind="stable")
        used, starts = np.unique(both[order], return_index=True)
        return order % len(self.first), starts, self.table[used]


@dataclass(frozen=True, eq=False)
class Problem:
    """Nodes and edges.

    Attributes:
        costs: One vector a node, an entry a label.
        edges: For `(u, v)` with u < v, a matrix: rows are labels of u, columns labels of v.
        nearest: For `(u, v)`, in either order, how the matrix from u to v is made of a smaller
            one, where it is.
    """

    costs: tuple[Costs, ...]
    edges: Edges
    nearest: Mapping[tuple[int, int], Nearest] = field(
        default_factory=dict[tuple[int, int], Nearest]
    )

    def energy(self, labels: Sequence[int]) -> float:
        """Cost of a choice of one label a node."""
        nodes = sum(float(cost[x]) for cost, x in zip(self.costs, labels, strict=True))
        return nodes + sum(
            float(matrix[labels[u], labels[v]]) for (u, v), matrix in self.edges.items()
        )

    @functools.cached_property
    def neighbours(self) -> list[dict[int, Costs]]:
        """For each node its neighbours, with the matrix that has the node's labels as rows."""
        around: list[dict[int, Costs]] = [{} for _ in self.costs]
        for (u, v), matrix in self.edges.items():
            around[u][v] = matrix
            around[v][u] = matrix.T
        return around

    def restricted(self, kept: Sequence[NDArray[np.intp]]) -> "Problem":
        """The problem with only some labels of each node, in the order given."""
        memo = Memo()
        return Problem(
            tuple(memo(_pick, cost, keep) for cost, keep in zip(self.costs, kept, strict=True)),
            {(u, v): memo(_pick, m, kept[u], kept[v]) for (u, v), m in self.edges.items()},
            {
                (u, v): memo(_pick_nearest, fold, kept[u], kept[v])
                for (u, v), fold in self.nearest.items()
            },
        )

    def conditioned(self, free: Iterable[int], labels: Sequence[int]) -> "Problem":
        """The problem over `free` nodes alone, in their order, all others held at `labels`."""
        nodes = list(free)
        index = {node: k for k, node in enumerate(nodes)}
        costs: list[Costs] = []
        edges: dict[tuple[int, int], Costs] = {}
        for a, node in enumerate(nodes):
            cost = self.costs[node]
            for other, matrix in self.neighbours[node].items():
                b = index.get(other)
                if b is None:
                    cost = cost + matrix[:, labels[other]]
                elif a < b:
                    edges[a, b] = matrix
            costs.append(cost)
        return Problem(tuple(costs), edges)


def _pick(table: Costs, *kept: NDArray[np.intp]) -> Costs:
    return table[np.ix_(*kept)]


def _pick_nearest(fold: Nearest, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> Nearest:
    return Nearest(fold.table[:, columns], fold.first[rows], fold.second[rows])


def _finite(matrix: Costs) -> NDArray[np.bool_] | None:
    """Where a matrix is finite; None where it is everywhere."""
    mask = np.isfinite(matrix)
    return None if mask.all() else mask


def consistent_labels(problem: Problem) -> list[NDArray[np.intp]]:
    """Labels that can be part of a finite choice as far as single edges tell (arc consistency).

    Returns:
        For each node the labels that stay, equal ones as one array; an empty array says that no
        finite choice exists.
    """
    alive = [np.isfinite(cost) for cost in problem.costs]
    memo = Memo()
    around: list[list[tuple[int, NDArray[np.bool_]]]] = [[] for _ in problem.costs]
    for (u, v), matrix in problem.edges.items():
        mask = memo(_finite, matrix)
        if mask is not None:
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
    distinct: dict[bytes, NDArray[np.intp]] = {}
    return [distinct.setdefault(mask.tobytes(), np.flatnonzero(mask)) for mask in alive]
