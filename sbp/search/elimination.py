"""Exact elimination: nodes leave the problem one by one, each minimised out of its neighbourhood.

Comes in: a `Problem`. Goes out: the same problem without the nodes whose neighbourhood is small, a
constant, and the way back from labels of the rest to labels of all (bucket elimination, Dechter
1999). Where every node can leave, the answer is the optimum.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sbp.problem import Costs, Problem

Factor = tuple[tuple[int, ...], Costs]


@dataclass(frozen=True, slots=True)
class _Departure:
    """A node that left: its best label for each choice of labels of its neighbours then."""

    node: int
    neighbours: tuple[int, ...]
    best: NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Elimination:
    """What is left after elimination.

    Attributes:
        rest: The problem over the nodes that stayed, in their old order.
        stayed: Their old numbers.
        constant: Cost of what left and no longer depends on anything.
        departures: Those who left, in order.
    """

    rest: Problem
    stayed: tuple[int, ...]
    constant: float
    departures: tuple[_Departure, ...]

    def complete(self, labels: Sequence[int]) -> list[int]:
        """Labels of all nodes, from labels of those that stayed."""
        chosen = dict(zip(self.stayed, labels, strict=True))
        for gone in reversed(self.departures):
            chosen[gone.node] = int(gone.best[tuple(chosen[n] for n in gone.neighbours)])
        return [chosen[node] for node in range(len(chosen))]


class _Working:
    """The factors alive during elimination, by node."""

    def __init__(self, problem: Problem) -> None:
        self.sizes = [len(cost) for cost in problem.costs]
        self.costs = list(problem.costs)
        self.factors: list[dict[tuple[int, ...], Costs]] = [{} for _ in self.costs]
        for scope, matrix in problem.edges.items():
            self.add(scope, matrix)

    def add(self, scope: tuple[int, ...], table: Costs) -> None:
        if len(scope) == 1:
            self.costs[scope[0]] = self.costs[scope[0]] + table
            return
        known = self.factors[scope[0]].get(scope)
        for node in scope:
            self.factors[node][scope] = table if known is None else known + table

    def neighbours(self, node: int) -> tuple[int, ...]:
        return tuple(sorted({n for scope in self.factors[node] for n in scope} - {node}))

    def take_out(self, node: int) -> tuple[tuple[int, ...], Costs]:
        """Sums all that involves a node into one table, the node's labels on the last axis."""
        around = self.neighbours(node)
        position = {n: k for k, n in enumerate((*around, node))}
        table = self.costs[node].reshape((1,) * len(around) + (-1,))
        for scope, factor in list(self.factors[node].items()):
            order = sorted(range(len(scope)), key=lambda k: position[scope[k]])
            shape = [1] * len(position)
            for k in order:
                shape[position[scope[k]]] = self.sizes[scope[k]]
            table = table + factor.transpose(order).reshape(shape)
            for other in scope:
                del self.factors[other][scope]
        full = (*(self.sizes[n] for n in around), self.sizes[node])
        return around, np.broadcast_to(table, full)


def elimination_order(
    problem: Problem, max_table: float, max_degree: int | None
) -> tuple[list[int], float]:
    """A cheap order by the least table first, stopping at the limits.

    Returns:
        The nodes that can leave, in order, and the largest table that this makes.
    """
    sizes = [len(cost) for cost in problem.costs]
    around: list[set[int]] = [set() for _ in sizes]
    for u, v in problem.edges:
        around[u].add(v)
        around[v].add(u)

    def table(node: int) -> float:
        return math.prod((float(sizes[n]) for n in around[node]), start=float(sizes[node]))

    heap = [(table(node), node) for node in range(len(sizes))]
    heapq.heapify(heap)
    gone: set[int] = set()
    order: list[int] = []
    largest = 0.0
    while heap:
        claimed, node = heapq.heappop(heap)
        if node in gone or claimed != table(node):
            continue
        if claimed > max_table or (max_degree is not None and len(around[node]) > max_degree):
            continue
        gone.add(node)
        order.append(node)
        largest = max(largest, claimed)
        for other in around[node]:
            around[other] |= around[node]
            around[other] -= {node, other}
        for other in around[node]:
            heapq.heappush(heap, (table(other), other))
    return order, largest


def eliminate(
    problem: Problem, *, max_table: float = 4e6, max_degree: int | None = 2
) -> Elimination:
    """Takes out every node whose table stays within the limits.

    Args:
        problem: Any problem.
        max_table: Most entries of a table that a departing node may need.
        max_degree: Most neighbours of a departing node; 2 keeps what is left pairwise, None sets
            no limit and then all nodes must be able to leave.
    """
    order, _ = elimination_order(problem, max_table, max_degree)
    working = _Working(problem)
    departures: list[_Departure] = []
    constant = 0.0
    for node in order:
        around, table = working.take_out(node)
        best = table.argmin(axis=-1)
        departures.append(_Departure(node, around, best))
        least = table.min(axis=-1)
        if around:
            working.add(around, least)
        else:
            constant += float(least)
    gone = set(order)
    stayed = [node for node in range(len(problem.costs)) if node not in gone]
    index = {node: k for k, node in enumerate(stayed)}
    edges = {
        (index[scope[0]], index[scope[1]]): table
        for node in stayed
        for scope, table in working.factors[node].items()
        if scope[0] == node
    }
    rest = Problem(tuple(working.costs[node] for node in stayed), edges)
    return Elimination(rest, tuple(stayed), constant, tuple(departures))


def solve_exactly(problem: Problem, *, max_table: float = 4e6) -> list[int] | None:
    """The optimum by elimination alone, or None where some table would pass `max_table`."""
    # Nodes without a choice are held: each would be a dim of size 1, and numpy has at most 64 dims.
    labels = [0] * len(problem.costs)
    open_nodes = [node for node, cost in enumerate(problem.costs) if len(cost) > 1]
    problem = problem.conditioned(open_nodes, labels)
    order, _ = elimination_order(problem, max_table, None)
    if len(order) < len(problem.costs):
        return None
    found = eliminate(problem, max_table=max_table, max_degree=None).complete(())
    for node, label in zip(open_nodes, found, strict=True):
        labels[node] = label
    return labels
