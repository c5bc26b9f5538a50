"""Boxings become edges: from the node that writes a value to the nodes that read it.

Comes in: a `Graph`. Goes out: the `Problem` of the search, and how to read a solution back. A value
that several nodes read may be boxed once for all of them: a *hub* node chooses the words it was
written in together with the words it is boxed to, and each reader takes the nearer of the two. So a
shared boxing is paid once, and a reader that wants the written words pays nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sbp.algebra import ArrayType, Partial, Split, Words
from sbp.boxing import BoxingTable, MergedTable, Step
from sbp.cost_model import CostModel
from sbp.graph.choices import Axes, Graph, Port
from sbp.graph.domains import CODE_BASE, code_of, word_codes
from sbp.problem import Memo, Nearest, Problem, add, transpose
from sbp.program import Value

Prices = BoxingTable | MergedTable

# A hub's labels are pairs of words; beyond this many, the least useful kinds of pairs are left out.
MAX_HUB_LABELS = 800


@dataclass(frozen=True, slots=True, eq=False)
class Hub:
    """The shared boxing of one value.

    Attributes:
        node: Its number in the problem.
        pairs: By label, the words written and the words boxed to; equal where nothing is shared.
        is_limited: Whether there are more pairs, too many to choose from.
    """

    node: int
    pairs: tuple[tuple[Words, Words], ...]
    is_limited: bool


@dataclass(slots=True, eq=False)
class BoxingGraph:
    """The problem, and what its parts mean.

    Attributes:
        graph: The choices it is about.
        problem: Costs and edges, in program order: a hub stands behind the writer of its value.
        aspects: Each label's part on each mesh axis of more than one device.
        place: The problem's number of each of the graph's nodes.
        hubs: The hub of each value that has one.
        tables: Prices of boxings, to read a solution back.
    """

    graph: Graph
    problem: Problem
    aspects: list[NDArray[np.intp]]
    place: list[int]
    hubs: dict[Value, Hub]
    tables: "Tables"

    @property
    def limits(self) -> str:
        """What a bound leaves out, to be put behind how it was found; nothing where it is empty."""
        count = sum(hub.is_limited for hub in self.hubs.values())
        return f"; readers of {count} values share simple boxings only" if count else ""


class Tables:
    """Boxing tables, one for each distinct array type, set of partial words and kind of price."""

    def __init__(self, costs: CostModel) -> None:
        """Starts without tables."""
        self.costs = costs
        self._tables: dict[tuple[ArrayType, frozenset[Partial], int], BoxingTable] = {}
        self._merged: dict[tuple[ArrayType, frozenset[Partial], int, Axes], MergedTable] = {}
        self._wires: dict[tuple[ArrayType, frozenset[Partial]], BoxingTable] = {}
        # By identity, as hashing thousands of words takes longer than what it saves.
        self._ports: dict[int, _Distinct] = {}
        self._matrices: dict[tuple[Any, ...], NDArray[np.float64]] = {}
        self._shared: dict[tuple[Any, ...], _Shared] = {}

    def table(self, array: ArrayType, partials: frozenset[Partial], bucket: int) -> BoxingTable:
        """The table that prices boxings of an array."""
        key = (array, partials, bucket)
        if key not in self._tables:
            price = self._price(bucket)
            self._tables[key] = BoxingTable(array, self.costs.sizes, partials, price)
        return self._tables[key]

    def merged(
        self, array: ArrayType, partials: frozenset[Partial], bucket: int, axes: Axes
    ) -> MergedTable:
        """The table that prices boxings of an array up to the order of axes."""
        key = (array, partials, bucket, axes)
        if key not in self._merged:
            price = self._price(bucket)
            self._merged[key] = MergedTable(array, self.costs.sizes, partials, price, axes)
        return self._merged[key]

    def _price(self, bucket: int) -> Callable[[Step], int]:
        return lambda step: int(self.costs.step_price(step, bucket=bucket))

    def wire(self, array: ArrayType, partials: frozenset[Partial]) -> BoxingTable:
        """The table that tells which boxings send nothing."""
        key = (array, partials)
        if key not in self._wires:
            self._wires[key] = BoxingTable(
                array, self.costs.sizes, partials, lambda step: step.nbytes
            )
        return self._wires[key]

    def distinct(self, words: tuple[Words, ...]) -> "_Distinct":
        """The distinct words among the labels of a port."""
        if id(words) not in self._ports:
            self._ports[id(words)] = _Distinct(words)
        return self._ports[id(words)]

    def partials(self, writer: Port, readers: Sequence[Port]) -> frozenset[Partial]:
        """The partial words that a value may be written or read in."""
        written = self.distinct(writer.words).partials
        return written.union(*(self.distinct(port.words).partials for port in readers))

    def matrix(self, table: Prices, writer: Port, reader: Port) -> NDArray[np.float64]:
        """Prices from all words of a writer to all of a reader; equal requests share it."""
        sealed = _sealed(writer, reader)
        key = (id(table), id(writer.words), id(reader.words), reader.count, sealed)
        if key not in self._matrices:
            rows = self.distinct(writer.words).rows(table)
            columns = self.distinct(reader.words).rows(table)
            costs = _sealed_costs(table, columns, sealed)[rows]
            self._matrices[key] = costs * reader.count
        return self._matrices[key]

    def shared(
        self, table: Prices, writer: Port, readers: Sequence[Port], offered: Words | None
    ) -> "_Shared":
        """The hub of a value; equal requests share it."""
        ports = (writer, *readers)
        key = (id(table), offered, *((id(p.words), p.count, p.sealed) for p in ports))
        if key not in self._shared:
            self._shared[key] = _share(self, table, writer, readers, offered)
        return self._shared[key]


class _Distinct:
    """What the labels of one port mean, each word once."""

    def __init__(self, words: tuple[Words, ...]) -> None:
        numbers: dict[Words, int] = {}
        self.inverse = np.array([numbers.setdefault(w, len(numbers)) for w in words], np.intp)
        self.labels = words  # kept, so that no other labels can take their identity
        self.words = tuple(numbers)
        self.partials = frozenset(w for label in numbers for w in label if isinstance(w, Partial))

    def rows(self, table: Prices) -> NDArray[np.intp]:
        """The row in a table of each label."""
        return np.array([table.index[words] for words in self.words], np.intp)[self.inverse]


@dataclass(frozen=True, slots=True, eq=False)
class _Shared:
    """A hub with its edges: to the writer first, then to each reader; the hub's labels are rows."""

    costs: NDArray[np.float64]
    aspects: NDArray[np.intp]
    pairs: tuple[tuple[Words, Words], ...]
    is_limited: bool
    edges: tuple[Nearest, ...]


@dataclass(slots=True, eq=False)
class _Assembly:
    costs: list[NDArray[np.float64]]
    aspects: list[NDArray[np.intp]]
    memo: Memo
    edges: dict[tuple[int, int], NDArray[np.float64]] = field(default_factory=dict)
    nearest: dict[tuple[int, int], Nearest] = field(default_factory=dict)

    def join(self, u: int, v: int, matrix: NDArray[np.float64]) -> None:
        if u == v:
            diagonal = self.memo(np.diagonal, matrix)
            self.costs[u] = self.memo(add, self.costs[u], diagonal)
            return
        if u > v:
            u, v, matrix = v, u, self.memo(transpose, matrix)
        known = self.edges.get((u, v))
        self.edges[u, v] = matrix if known is None else self.memo(add, known, matrix)

    def add_hub(self, shared: _Shared, writer: Port, readers: Sequence[Port]) -> Hub:
        number = len(self.costs)
        self.costs.append(shared.costs)
        self.aspects.append(shared.aspects)
        times: dict[int, int] = {}
        for port, fold in zip((writer, *readers), shared.edges, strict=True):
            self.join(number, port.node, self.memo(Nearest.matrix, fold))
            times[port.node] = times.get(port.node, 0) + 1
            if times[port.node] == 1:
                self.nearest[number, port.node] = fold
            else:  # the matrix is a sum now
                self.nearest.pop((number, port.node), None)
        return Hub(number, shared.pairs, shared.is_limited)


def connect(graph: Graph, tables: Tables, offered: Sequence[Words] = ()) -> BoxingGraph:
    """Prices every way a value can take from its writer to its readers.

    Args:
        graph: The choices.
        tables: Prices of boxings, shared between graphs of one mesh.
        offered: For each hub, in order, words that it must be able to box to whether or not a
            reader wants just these; none where empty.
    """
    memo = Memo()
    costs, aspects = [n.costs for n in graph.nodes], [n.domain.aspects for n in graph.nodes]
    parts = _Assembly(costs, aspects, memo)
    hubs: dict[Value, Hub] = {}
    for value, readers in graph.readers.items():
        writer = graph.writers[value]
        extra = offered[len(hubs)] if len(readers) > 1 and len(hubs) < len(offered) else None
        partials = tables.partials(writer, readers).union(
            word for word in extra or () if isinstance(word, Partial)
        )
        array = (value.type, partials, graph.flow.bucketed.get(value, 0))
        axes = graph.exchangeable
        table = tables.merged(*array, axes) if axes else tables.table(*array)
        if len(readers) == 1:
            (reader,) = readers
            parts.join(writer.node, reader.node, tables.matrix(table, writer, reader))
        else:
            hubs[value] = parts.add_hub(
                tables.shared(table, writer, readers, extra), writer, readers
            )
    live = [axis for axis, size in enumerate(graph.mesh.sizes) if size > 1]
    place = _program_order(graph, hubs, len(parts.costs))
    ordered = sorted(range(len(place)), key=place.__getitem__)
    edges = {
        (place[u], place[v]) if place[u] < place[v] else (place[v], place[u]): (
            matrix if place[u] < place[v] else memo(transpose, matrix)
        )
        for (u, v), matrix in parts.edges.items()
    }
    return BoxingGraph(
        graph,
        Problem(
            tuple(parts.costs[n] for n in ordered),
            edges,
            {(place[u], place[v]): fold for (u, v), fold in parts.nearest.items()},
        ),
        [parts.aspects[n][:, live] for n in ordered],
        place[: len(graph.nodes)],
        {value: replace(hub, node=place[hub.node]) for value, hub in hubs.items()},
        tables,
    )


def _program_order(graph: Graph, hubs: dict[Value, Hub], count: int) -> list[int]:
    """The place of each node when every hub stands right behind the writer of its value."""
    after = {hub.node: graph.writers[value].node for value, hub in hubs.items()}
    ordered = sorted(range(count), key=lambda n: (after.get(n, n), n in after, n))
    place = [0] * count
    for position, node in enumerate(ordered):
        place[node] = position
    return place


def _share(
    tables: Tables, table: Prices, writer: Port, readers: Sequence[Port],
    offered: Words | None,
) -> _Shared:  # fmt: skip
    rows = tables.distinct(writer.words).rows(table)
    columns = [tables.distinct(port.words).rows(table) for port in readers]
    if isinstance(table, BoxingTable):
        partials = frozenset(w for words in table.words for w in words if isinstance(w, Partial))
        wire = tables.wire(table.array, partials)
    else:
        wire = table  # a bound may leave out only what is free
    extra = [np.array([table.index[offered]])] if offered and offered in table.index else []
    sources, targets, is_limited = _hub_pairs(
        _first_seen([rows]), _first_seen(columns + extra), table, wire
    )
    codes = word_codes(table.words, len(table.sizes))
    # On an axis of one device the writer's words stay.
    kept = writer.words[0]
    names = [
        tuple(w if n > 1 else k for n, w, k in zip(table.sizes, words, kept, strict=True))
        for words in table.words
    ]
    pairs = zip(sources.tolist(), targets.tolist(), strict=True)
    everything = np.arange(len(table.words))
    return _Shared(
        table.cost[sources, targets] * writer.count,
        codes[sources] * CODE_BASE + codes[targets],
        tuple((names[a], names[b]) for a, b in pairs),
        is_limited,
        (
            Nearest(np.where(everything[:, None] == rows, 0.0, np.inf), sources, sources),
            *(
                Nearest(
                    _sealed_costs(table, wanted, _sealed(writer, port)) * port.count, sources,
                    # What is boxed on a sealed axis is for others.
                    np.where(
                        _differ(codes[sources], codes[targets], _sealed(writer, port)), sources,
                        targets,
                    ),
                )
                for port, wanted in zip(readers, columns, strict=True)
            ),
        ),
    )  # fmt: skip


def _sealed(writer: Port, reader: Port) -> Axes:
    """Axes on which the reader takes what is written as it is."""
    return tuple(axis for axis in reader.sealed if axis in writer.sealed)


def _differ(one: NDArray[np.intp], other: NDArray[np.intp], axes: Axes) -> NDArray[np.bool_]:
    """Whether words, given by their codes, differ on any of some axes."""
    return (one[..., list(axes)] != other[..., list(axes)]).any(axis=-1)


def _sealed_costs(table: Prices, columns: NDArray[np.intp], axes: Axes) -> NDArray[np.float64]:
    """The price from each words of a table to some of them; infinite if they differ on axes."""
    costs = table.cost[:, columns]
    if not axes:
        return costs
    codes = word_codes(table.words, len(table.sizes))
    return np.where(_differ(codes[:, None], codes[columns], axes), np.inf, costs)


def _first_seen(rows: Sequence[NDArray[np.intp]]) -> NDArray[np.intp]:
    return np.array(list(dict.fromkeys(np.concatenate(rows).tolist())), np.intp)


def _hub_pairs(
    written: NDArray[np.intp], wanted: NDArray[np.intp], table: Prices, wire: Prices
) -> tuple[NDArray[np.intp], NDArray[np.intp], bool]:
    """Pairs worth choosing from: what costs nothing to box need not be shared.

    Returns:
        Rows of the table for the words written and for the words boxed to, and whether there are
        more, too many to choose from.
    """
    costs = wire.cost[np.ix_(written, wanted)]
    rows, columns = np.nonzero((costs > 0) & np.isfinite(costs))
    sources, targets = written[rows], wanted[columns]
    codes = word_codes(table.words, len(table.sizes))
    before, after = codes[sources], codes[targets]
    changes = before != after
    exchanges = changes & (before >= code_of(Split(0))) & (after >= code_of(Split(0)))
    kinds = np.where(changes, before * CODE_BASE + after, -1)
    uniform = ((kinds == kinds.max(axis=1, keepdims=True)) | ~changes).all(axis=1)
    no_exchange = ~exchanges.any(axis=1)
    for keep in (np.ones(len(sources), bool), no_exchange, no_exchange & uniform):
        if keep.sum() + len(written) <= MAX_HUB_LABELS:
            break
    return (
        np.concatenate([written, sources[keep]]),
        np.concatenate([written, targets[keep]]),
        not keep.all(),
    )
