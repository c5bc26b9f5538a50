"""Planning a mesh whose axes are all alike: kinds of choices first, their orders after.

Comes in: a graph with one choice of each kind. Goes out: a graph of choices and its solution, with
a bound on any plan. Two choices are of a kind if they differ only in the order of the axes; on
three equal axes there are six times fewer kinds than choices, and boxing is priced as if axes
could be exchanged on the way for nothing. That plan's cost is a bound; a plan that runs has each
chosen kind in an order of its own.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from sbp.factors import NdSignature
from sbp.graph import BoxingGraph, Graph, all_of_a_kind, call_domain, one_of_each_kind
from sbp.search import Solution, solve_optimally


def plan_by_kinds(
    graph: Graph, join: Callable[[Graph], BoxingGraph], reduce_dtype: str | None
) -> tuple[BoxingGraph, Solution] | None:
    """Chooses a kind for each node, then an order of the axes for each kind.

    Args:
        graph: At least one choice of each kind.
        join: Prices the boxings of a graph.
        reduce_dtype: As of `build_graph`.

    Returns:
        None where no choice meets the pins, or none of the kinds that were chosen does.
    """

    def is_legal(number: int, label: Any) -> bool:
        node = graph.nodes[number]
        if node.call is None:
            return label in node.domain.labels
        assert isinstance(label, NdSignature)
        only = {axis: label.axis(axis) for axis in range(len(graph.mesh.sizes))}
        return label in call_domain(node.call, graph.mesh, reduce_dtype, only).labels

    kinds = one_of_each_kind(graph)
    boxing = join(kinds)
    chosen = solve_optimally(boxing.problem, boxing.aspects)
    if chosen is None:
        return None
    labels = [chosen.labels[place] for place in boxing.place]
    ordered = join(all_of_a_kind(kinds, labels, is_legal))
    found = solve_optimally(ordered.problem, ordered.aspects, max_sweeps=60)
    if found is None:
        return None
    method = f"equal axes in any order: {chosen.method}{boxing.limits}"
    bound = min(chosen.bound, found.energy)
    return ordered, dataclasses.replace(found, bound=bound, method=method)
