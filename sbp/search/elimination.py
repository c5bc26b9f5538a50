"""Exact elimination: nodes leave the problem one by one, each minimised out of its neighbourhood.

Comes in: a `Problem`. Goes out: the same problem without the nodes whose neighbourhood is small, a
constant, and the way back from labels of the rest to labels of all (bucket elimination, Dechter
1999). Where every node can leave, the answer is the optimum.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sbp.problem import Costs, Memo, Problem, add

Factor = tuple[tuple[int, ...], Costs]

LARGE, SLICE = 100_000, 4096
"""Entries from which on a table is made a slice at a time, and entries that a slice has then."""


@dataclass(frozen=True, slots=True, eq=False)
class _Departure:
    """A node that left, with its costs and the tables it shared with its neighbours then."""

    node: int
    costs: Costs
    factors: tuple[Factor, ...]

    def best(self, chosen: Mapping[int, int]) -> int:
        """The node's cheapest label beside labels of its neighbours."""
        total = self.costs
        for scope, table in self.factors:
            total = total + table[tuple(
                slice(None) if node == self.node else chosen[node] for node in scope
            )]  # fmt: skip
        return int(total.argmin())


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
            chosen[gone.node] = gone.best(chosen)
        return [chosen[node] for node in range(len(chosen))]


class _Working:
    """The factors alive during elimination, by node."""

    def __init__(self, problem: Problem) -> None:
        self.sizes = [len(cost) for cost in problem.costs]
        self.costs = list(problem.costs)
        self.factors: list[dict[tuple[int, ...], Costs]] = [{} for _ in self.costs]
        self.memo = Memo()
        for scope, matrix in problem.edges.items():
            self.add(scope, matrix)

    def add(self, scope: tuple[int, ...], table: Costs) -> None:
        if len(scope) == 1:
            self.costs[scope[0]] = self.memo(add, self.costs[scope[0]], table)
            return
        known = self.factors[scope[0]].get(scope)
        total = table if known is None else self.memo(add, known, table)
        for node in scope:
            self.factors[node][scope] = total

    def neighbours(self, node: int) -> tuple[int, ...]:
        return tuple(sorted({n for scope in self.factors[node] for n in scope} - {node}))

    def take_out(self, node: int) -> tuple[_Departure, tuple[int, ...], Costs]:
        """Takes a node out.

        Returns:
            The node, its neighbours, and the least cost for each choice of their labels.
        """
        around = self.neighbours(node)
        position = {n: k for k, n in enumerate((*around, node))}
        sizes = tuple(self.sizes[n] for n in position)
        factors = tuple(self.factors[node].items())
        for scope, _ in factors:
            for other in scope:
                del self.factors[other][scope]
        places = tuple(tuple(position[n] for n in scope) for scope, _ in factors)
        tables = (table for _, table in factors)
        least = self.memo(_minimise, self.costs[node], *tables, key=(sizes, places))
        return _Departure(node, self.costs[node], factors), around, least


def _minimise(
    sizes: tuple[int, ...], places: tuple[tuple[int, ...], ...], cost: Costs, *factors: Costs
) -> Costs:
    """Sums tables over the axes at `places` and minimises the last axis out, which has `cost`."""
    parts: list[Costs] = []
    for axes, factor in zip(places, factors, strict=True):
        order = sorted(range(len(axes)), key=axes.__getitem__)
        shape = [1] * len(sizes)
        for k in order:
            shape[axes[k]] = sizes[axes[k]]
        parts.append(factor.transpose(order).reshape(shape))
    own = cost.reshape((1,) * (len(sizes) - 1) + (-1,))
    if math.prod(sizes) >= LARGE and math.prod(sizes[:-1]) >= SLICE:
        return _minimise_in_slices(sizes[:-1], [parts[0] + own, *parts[1:]])
    table = sum(parts, own)
    return np.minimum.reduce(np.broadcast_to(table, sizes), axis=-1)


def _minimise_in_slices(sizes: tuple[int, ...], parts: Sequence[Costs]) -> Costs:
    """The same label by label: a slice stays in the processor's cache, the whole would not."""
    least, table = np.full(sizes, np.inf), np.empty(sizes)
    for slices in zip(*(np.ascontiguousarray(np.moveaxis(p, -1, 0)) for p in parts), strict=True):
        total = slices[0]
        for part in slices[1:]:
            total = np.add(total, part, out=table)
        np.minimum(least, total, out=least)
    return least


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
    problem: Problem, *, max_table: float = 4e6, max_degree: int | None = 2,
    order: Sequence[int] | None = None,
) -> Elimination:  # fmt: skip
    """Takes out every node whose table stays within the limits.

    Args:
        problem: Any problem.
        max_table: Most entries of a table that a departing node may need.
        max_degree: Most neighbours of a departing node; 2 keeps what is left pairwise, None sets
            no limit and then all nodes must be able to leave.
        order: Who leaves, in order, where that is known already.
    """
    if order is None:
        order, _ = elimination_order(problem, max_table, max_degree)
    working = _Working(problem)
    departures: list[_Departure] = []
    constant = 0.0
    for node in order:
        departure, around, least = working.take_out(node)
        departures.append(departure)
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
    nearest = {
        (index[u], index[v]): fold
        for (u, v), fold in problem.nearest.items()
        if u in index
        and v in index
        # What has left may have added to the matrix.
        and working.factors[u][min(u, v), max(u, v)] is problem.edges[min(u, v), max(u, v)]
    }
    rest = Problem(tuple(working.costs[node] for node in stayed), edges, nearest)
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
    found = eliminate(problem, order=order).complete(())
    for node, label in zip(open_nodes, found, strict=True):
        labels[node] = label
    return labels
