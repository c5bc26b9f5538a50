"""Planning a mesh of many axes: two at a time, the others held.

Comes in: how to build the graph with some axes held. Goes out: a graph and its solution. The number
of words of a value grows exponentially with the axes, so on three or more the graph of all choices
is too large; it starts from B on all axes and re-plans every pair until none improves.
"""

import itertools
import logging
from collections.abc import Callable
from typing import Any

from sbp.cost_model import CostModel
from sbp.graph import BoxingGraph, Held, contraction_flops, is_kernel
from sbp.search import INTERRUPTED, Solution, solve_optimally

_LOG = logging.getLogger("sbp")


def plan_by_pairs(
    build: Callable[[Held], BoxingGraph],
    costs: CostModel,
    first: tuple[BoxingGraph, Solution] | None = None,
) -> tuple[BoxingGraph, Solution] | None:
    """Re-plans pairs of axes until no pair improves the whole.

    Args:
        build: The graph with choices held on some axes.
        costs: Prices, with the mesh.
        first: A plan to begin with, with its bound.

    Returns:
        The last graph and its solution; its bound is that of the first plan, or of even compute
        and no communication. None where no choice meets the pins.
    """
    axes = [axis for axis, size in enumerate(costs.sizes) if size > 1]
    pairs = list(itertools.combinations(axes, 2))
    best = first
    labels: tuple[Any, ...] | None = None if first is None else chosen_labels(*first)
    unimproved, interrupted = 0, False
    for pair in itertools.cycle(pairs):
        others = tuple(axis for axis in range(len(costs.sizes)) if axis not in pair)
        try:
            boxing = build(Held(others, labels))
            found = solve_optimally(boxing.problem, boxing.aspects, target_gap=1e-3, max_sweeps=60)
        except KeyboardInterrupt:
            if best is None:
                raise
            interrupted = True
            _LOG.warning("the search is interrupted: going on with the best plan so far")
            break
        if found is not None and (best is None or found.energy < best[1].energy):
            best, unimproved = (boxing, found), 1
            labels = chosen_labels(*best)
        else:
            unimproved += 1
        interrupted = found is not None and INTERRUPTED in found.method
        if interrupted or unimproved >= len(pairs):
            break
    if best is None:
        return None
    boxing, found = best
    bound = even_compute(boxing, costs) if first is None else first[1].bound
    bound = min(found.energy, bound)
    before = "" if first is None else f"{first[1].method}; "
    method = f"{before}axes in pairs, others held" + f" ({INTERRUPTED})" * interrupted
    return boxing, Solution(found.labels, found.energy, bound, method)


def chosen_labels(boxing: BoxingGraph, solution: Solution) -> tuple[Any, ...]:
    """What each node of the graph has chosen, in the order of its nodes."""
    pairs = zip(boxing.graph.nodes, boxing.place, strict=True)
    return tuple(node.domain.labels[solution.labels[place]] for node, place in pairs)


def even_compute(boxing: BoxingGraph, costs: CostModel) -> float:
    """A bound on any plan: all compute divided evenly, nothing communicated."""
    share = costs.num_devices
    total = 0.0
    for equation, role, _ in boxing.graph.nodes_of:
        if role != "call" or equation is None:
            continue
        node = boxing.graph.nodes[boxing.graph.nodes_of[equation, role, 0]]
        call = node.call
        assert call is not None
        traffic = boxing.graph.flow.memory_traffic(equation)
        arrays = (*call.inputs, *call.outputs)
        nbytes = sum(a.nbytes for a, counted in zip(arrays, traffic, strict=True) if counted)
        dtype = str(call.inputs[0].dtype) if call.inputs else ""
        seconds = costs.call_seconds(
            contraction_flops(call) / share, dtype, nbytes / share, is_kernel=is_kernel(equation)
        )
        # Prices are rounded; a bound is rounded down.
        total += max(0.0, costs.call_price(seconds, 0.0) - 1.0) * node.count
    return total
