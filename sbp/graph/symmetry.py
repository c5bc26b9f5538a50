"""Mesh axes that are alike: choices that differ only in the order of such axes are of one kind.

Comes in: a graph of all choices. Goes out: the graph with one choice of each kind, and the graph
with all choices of some kinds. Boxings of the first are priced between kinds of words, so that it
costs no more than any choice of the whole: its bound is one for the whole.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sbp.algebra import Words
from sbp.cost_model import CostModel
from sbp.factors import NdSignature
from sbp.graph.choices import Axes, Graph, Node, Port
from sbp.graph.domains import Domain

Order = tuple[int, ...]
"""For each mesh axis, the axis that it takes its word from."""
Choices = tuple[tuple[int, Order], ...]
"""Labels of a node by position, each in an order of the axes."""


def axes_alike(costs: CostModel) -> Axes:
    """The axes of more than one device, if all have one size and one kind of link."""
    axes = tuple(axis for axis, size in enumerate(costs.sizes) if size > 1)
    kinds = {(costs.sizes[axis], costs.links[axis]) for axis in axes}
    return axes if len(kinds) == 1 else ()


def one_of_each_kind(graph: Graph) -> Graph:
    """The graph with one label of all that differ only in the order of exchangeable axes."""
    same: Order = tuple(range(len(graph.mesh.sizes)))
    known: dict[int, Choices] = {}

    def first(domain: Domain) -> Choices:
        if id(domain) not in known:
            ordered = domain.aspects.copy()
            axes = list(graph.exchangeable)
            ordered[:, axes] = np.sort(ordered[:, axes], axis=1)
            places = np.unique(ordered, axis=0, return_index=True)[1]
            known[id(domain)] = tuple((int(place), same) for place in np.sort(places))
        return known[id(domain)]

    return _select(graph, [first(node.domain) for node in graph.nodes])


def all_of_a_kind(
    graph: Graph, labels: Sequence[int], is_legal: Callable[[int, Any], bool]
) -> Graph:
    """The graph with one label of each node, in every legal order of exchangeable axes.

    Args:
        graph: One label of each kind.
        labels: The label of each node.
        is_legal: Whether a node, by its number, may have a label.
    """
    axes = graph.exchangeable
    orders: list[Order] = []
    for moved in itertools.permutations(axes):
        source = dict(zip(axes, moved, strict=True))
        orders.append(tuple(source.get(axis, axis) for axis in range(len(graph.mesh.sizes))))
    choices: list[Choices] = []
    known: dict[tuple[int, int], Choices] = {}
    for number, (node, place) in enumerate(zip(graph.nodes, labels, strict=True)):
        key = (id(node.domain), place)
        if key not in known:
            label = node.domain.labels[place]
            # The first order is that of the label, which is legal.
            made = {_reorder(label, order): order for order in reversed(orders)}
            known[key] = tuple(
                (place, order)
                for other, order in made.items()
                if other == label or is_legal(number, other)
            )
        choices.append(known[key])
    return replace(_select(graph, choices), exchangeable=())


def _reorder(label: Any, order: Order) -> Any:
    if isinstance(label, NdSignature):
        sides = (label.inputs, label.outputs)
        return NdSignature(*(tuple(_reorder(w, order) for w in side) for side in sides))
    words: Words = tuple(label[axis] for axis in order)
    return words


def _select(graph: Graph, choices: Sequence[Choices]) -> Graph:
    """The graph with other labels, made of its own; equal requests share what comes out."""
    domains: dict[tuple[int, Choices], Domain] = {}
    costs: dict[tuple[int, Choices], NDArray[np.float64]] = {}
    words: dict[tuple[int, Choices], tuple[Words, ...]] = {}

    def select_node(node: Node, chosen: Choices) -> Node:
        key, prices = (id(node.domain), chosen), (id(node.costs), chosen)
        if key not in domains:
            domains[key] = Domain(
                tuple(_reorder(node.domain.labels[k], order) for k, order in chosen),
                np.array([node.domain.aspects[k, list(order)] for k, order in chosen], np.intp),
            )
        if prices not in costs:
            costs[prices] = node.costs[[k for k, _ in chosen]]
        return replace(node, domain=domains[key], costs=costs[prices])

    def select_port(port: Port) -> Port:
        chosen = choices[port.node]
        key = (id(port.words), chosen)
        if key not in words:
            words[key] = tuple(_reorder(port.words[k], order) for k, order in chosen)
        return replace(port, words=words[key])

    return replace(
        graph,
        nodes=[select_node(*parts) for parts in zip(graph.nodes, choices, strict=True)],
        writers={value: select_port(port) for value, port in graph.writers.items()},
        readers={value: [*map(select_port, ports)] for value, ports in graph.readers.items()},
    )
