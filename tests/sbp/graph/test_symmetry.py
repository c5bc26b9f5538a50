"""Kinds of choices: one of each, and all of one, as the full graph has them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbp.cost_model import CostModel
from sbp.factors import NdSignature
from sbp.graph import (
    Boundary,
    Mesh,
    all_of_a_kind,
    axes_alike,
    build_graph,
    call_domain,
    one_of_each_kind,
)
from sbp.hardware import CPU, H100_NODE
from sbp.tracing import trace

MESH = Mesh(("a", "b", "c"), (2, 2, 2))
COSTS = CostModel(CPU, MESH.sizes)


def blocks(x, w):
    """Reshapes that no one axis can split alone."""
    y = (x @ w).reshape(2, 4, 16)
    return [jnp.sin(y.sum(1)).reshape(4, 8), y.max(2).reshape(8)]


def looped(x, w):
    return list(jax.lax.scan(lambda c, row: (c @ w, c.sum(0) * row), x, w))


def graphs(fn):
    """All choices, and at least one of each kind."""
    structs = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((8, 16), (16, 16))]
    traced = trace(fn, structs)
    boundary = Boundary(("x", "w"), ("y", "z"), (None, None), (None, None))
    return [
        build_graph(traced, MESH, COSTS, boundary, exchangeable=axes) for axes in ((), (0, 1, 2))
    ]


def axis_of(label, axis):
    return label.axis(axis) if isinstance(label, NdSignature) else label[axis]


def kind_of(label):
    return tuple(sorted(str(axis_of(label, axis)) for axis in range(3)))


@pytest.mark.parametrize("fn", [blocks, looped])
def test_kinds_of_a_graph(fn):
    full, few = graphs(fn)
    one = one_of_each_kind(few)
    assert one.exchangeable == (0, 1, 2)

    def is_legal(number, label):
        node = few.nodes[number]
        if node.call is None:
            return label in node.domain.labels
        only = {axis: label.axis(axis) for axis in range(3)}
        return label in call_domain(node.call, MESH, None, only).labels

    sizes = [len(node.domain.labels) for node in one.nodes]
    ordered, most = 0, 0
    for turn in range(max(sizes)):
        labels = [turn % size for size in sizes]
        members = all_of_a_kind(one, labels, is_legal)
        assert members.exchangeable == ()
        for number, node in enumerate(members.nodes):
            kind = kind_of(one.nodes[number].domain.labels[labels[number]])
            same = {x for x in full.nodes[number].domain.labels if kind_of(x) == kind}
            assert set(node.domain.labels) == same
            price = one.nodes[number].costs[labels[number]]
            np.testing.assert_array_equal(node.costs, [price] * len(same))
            check_aspects(node.domain)
            ordered += len(same) > 1
            most = max(most, len(same))
        for ports, own in ((members.readers, full.readers), (members.writers, full.writers)):
            assert len(ports) == len(own)
        for port in members.writers.values():
            assert len(port.words) == len(members.nodes[port.node].domain.labels)
    assert ordered
    assert most == 6
    for number, node in enumerate(one.nodes):
        kinds = [kind_of(label) for label in node.domain.labels]
        assert len(set(kinds)) == len(kinds)
        assert set(kinds) == {kind_of(label) for label in full.nodes[number].domain.labels}


def check_aspects(domain):
    """Aspects are equal where words are, on whichever axis."""
    cells = [(k, axis) for k in range(len(domain.labels)) for axis in range(3)]
    words = [str(axis_of(domain.labels[k], axis)) for k, axis in cells]
    numbers = [int(domain.aspects[cell]) for cell in cells]
    assert len(set(zip(words, numbers, strict=True))) == len(set(words)) == len(set(numbers))


def test_words_of_a_port_follow_the_order_of_its_label():
    _, few = graphs(looped)
    one = one_of_each_kind(few)
    members = all_of_a_kind(one, [len(n.domain.labels) // 2 for n in one.nodes], lambda *_: True)
    checked = 0
    for value, port in members.writers.items():
        node = members.nodes[port.node]
        if node.call is None:
            continue
        for label, words in zip(node.domain.labels, port.words, strict=True):
            assert words in label.outputs
            checked += 1
        for reader in members.readers.get(value, ()):
            reading = members.nodes[reader.node]
            if reading.call is not None:
                for label, words in zip(reading.domain.labels, reader.words, strict=True):
                    assert words in label.inputs
    assert checked > len(members.writers) / 2


@pytest.mark.parametrize(
    ("cluster", "sizes", "expected"),
    [
        (CPU, (2, 2, 2), (0, 1, 2)),
        (CPU, (2, 1, 2), (0, 2)),
        (CPU, (2, 4), ()),
        (CPU, (1, 1), ()),
        (H100_NODE, (2, 2, 2), (0, 1, 2)),
        (H100_NODE, (2, 2, 2, 2), ()),
    ],
)
def test_axes_are_alike_in_size_and_link(cluster, sizes, expected):
    assert axes_alike(CostModel(cluster, sizes)) == expected
