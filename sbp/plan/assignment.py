"""A solved graph, read back: which words each value has, and how it gets from some to others.

Comes in: the graph and one label a node. Goes out: `Assignment`, which answers the lowering
(what does this equation want, where is it boxed from) and the reader of a plan (which boxings
happen, how often).
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from sbp.algebra import ArrayType, B, Partial, Words
from sbp.boxing import BoxingTable, Step
from sbp.factors import NdSignature
from sbp.graph import BoxingGraph, Port
from sbp.program import Constant, Equation, Value


@dataclass(frozen=True, slots=True, eq=False)
class Boxing:
    """One change of words of one value.

    Attributes:
        value: What is boxed.
        src: Words it has.
        dst: Words it gets.
        steps: The collectives and local steps, in order.
        count: How many times it happens.
        source: Line or path that asks for it.
        bucket: Bytes with which it can travel; 0 if it travels alone.
        reader: Number of the node that asks for it.
    """

    value: Value
    src: Words
    dst: Words
    steps: tuple[Step, ...]
    count: int
    source: str
    bucket: int
    reader: int


@dataclass(slots=True, eq=False)
class Assignment:
    """The choices of a plan.

    Attributes:
        boxing: The graph with its boxings.
        labels: One label for each node of the problem.
    """

    boxing: BoxingGraph
    labels: tuple[int, ...]
    _paths: dict[tuple[ArrayType, Words, Words, int], tuple[Step, ...]] = field(
        default_factory=dict
    )

    @property
    def whole(self) -> Words:
        """B on every axis."""
        return (B,) * len(self.boxing.graph.mesh.sizes)

    def label(self, equation: Equation | None, role: str, position: int = 0) -> Words:
        """Words chosen by a node that hands a value on; `equation` None is the program itself."""
        node = self.boxing.graph.nodes_of[equation, role, position]
        words: Words = self._chosen(node)
        return words

    def signature(self, equation: Equation) -> NdSignature:
        """The signature of an equation."""
        signature: NdSignature = self._chosen(self.boxing.graph.nodes_of[equation, "call", 0])
        return signature

    def _chosen(self, node: int) -> Any:
        domain = self.boxing.graph.nodes[node].domain
        return domain.labels[self.labels[self.boxing.place[node]]]

    def words_at(self, port: Port) -> Words:
        """The words of a value at one of its ends."""
        return port.words[self.labels[self.boxing.place[port.node]]]

    def written(self, value: Value) -> Words:
        """Words in which a value comes to be."""
        return self.words_at(self.boxing.graph.writers[value])

    def shared(self, value: Value) -> Words:
        """Words a value is boxed to once for several readers; the written ones where none are."""
        hub = self.boxing.hubs.get(value)
        return hub.pairs[self.labels[hub.node]][1] if hub else self.written(value)

    def source(self, value: Value, wanted: Words) -> Words:
        """Words from which a reader boxes: the written or the shared ones, whichever is nearer."""
        written, shared = self.written(value), self.shared(value)
        table = self._table(value)
        prices = [table.cost[table.index[w], table.index[wanted]] for w in (written, shared)]
        sealed = {a for port in self.boxing.graph.readers[value] for a in port.sealed}
        sealed.intersection_update(self.boxing.graph.writers[value].sealed)
        is_open = all(written[axis] == shared[axis] for axis in sealed)
        return shared if prices[1] < prices[0] and is_open else written

    def route(self, value: Value, wanted: Words) -> tuple[tuple[Words, Words], ...]:
        """The changes of words, one after the other, that bring a value to a reader."""
        behind = self.boxing.graph.pinned.get(value)
        if behind is None:
            return self._changes(value, wanted)
        pinned = self.written(behind)
        return (*self._changes(value, pinned), *self._changes(behind, wanted))

    def _changes(self, value: Value, wanted: Words) -> tuple[tuple[Words, Words], ...]:
        written = self.written(value)
        if wanted == written:
            return ()
        stops = dict.fromkeys((written, self.source(value, wanted), wanted))
        return tuple(itertools.pairwise(stops))

    def path(self, value: Value, src: Words, dst: Words) -> tuple[Step, ...]:
        """The steps from some words of a value to others."""
        bucket = self.boxing.graph.flow.bucketed.get(value, 0)
        key = (value.type, src, dst, bucket)
        if key not in self._paths:
            self._paths[key] = self._table(value).path(src, dst) if src != dst else ()
        return self._paths[key]

    def constant_path(self, constant: Constant, dst: Words) -> tuple[Step, ...]:
        """The local steps from a number that every device knows to some words."""
        partials = frozenset(word for word in dst if isinstance(word, Partial))
        table = self.boxing.tables.table(constant.type, partials, 0)
        return table.path((B,) * len(dst), dst)

    def _table(self, value: Value) -> BoxingTable:
        graph = self.boxing.graph
        partials = self.boxing.tables.partials(graph.writers[value], graph.readers[value])
        return self.boxing.tables.table(value.type, partials, graph.flow.bucketed.get(value, 0))

    def boxings(self) -> Iterator[Boxing]:
        """Every change of words that happens, once for each pair of words of a value.

        What sends nothing is a part of each reader's kernel: it happens as often as it is read.
        """
        graph = self.boxing.graph
        for value, readers in graph.readers.items():
            writer = graph.writers[value]
            written, shared = self.written(value), self.shared(value)
            wanted: dict[Words, Port] = {}
            reads: dict[Words, int] = {}
            for port in readers:
                words = self.words_at(port)
                wanted.setdefault(words, port)
                reads[words] = reads.get(words, 0) + port.count
            wanted.pop(written, None)
            sources = {words: self.source(value, words) for words in wanted}
            if shared != written and shared in sources.values():
                first = next(p for w, p in wanted.items() if sources[w] == shared)
                wanted.pop(shared, None)
                yield self._boxing(value, written, shared, writer.count, first)
            for words, port in wanted.items():
                boxing = self._boxing(value, sources[words], words, port.count, port)
                if not any(step.nbytes for step in boxing.steps):
                    boxing = replace(boxing, count=reads[words])
                yield boxing

    def _boxing(self, value: Value, src: Words, dst: Words, count: int, port: Port) -> Boxing:
        graph = self.boxing.graph
        node = graph.nodes[port.node]
        return Boxing(
            value, src, dst, self.path(value, src, dst), count, node.source or node.name,
            graph.flow.bucketed.get(value, 0), port.node,
        )  # fmt: skip
