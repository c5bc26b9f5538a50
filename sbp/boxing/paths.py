"""The cheapest chain of steps between any two words of an array.

Comes in: an array, a mesh, and what a step costs. Goes out: the price of every change of words
(`BoxingTable.cost`, what the search reads) and the steps themselves (`BoxingTable.path`, what the
lowering runs). The words are the nodes of a graph, the steps its edges; boxing is a shortest path.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csgraph, csr_matrix  # pyright: ignore[reportMissingTypeStubs]

from sbp.algebra import ArrayType, B, Partial, Split, Word, Words, format_type
from sbp.boxing.steps import Positions, Step, StepGraph, replace_words, step_graph, why_illegal
from sbp.errors import BoxingError

Price = Callable[[Step], float]
"""What a step costs: a whole number, a function of its kind, axes, nbytes and local_nbytes."""


def wire_bytes_first(step: Step) -> int:
    """Price of a step: bytes sent, and far behind them bytes written."""
    return 1024 * step.nbytes + step.local_nbytes


class BoxingTable:
    """The prices of all changes of words of one array on one mesh.

    Attributes:
        array: The logical array.
        sizes: Number of devices of each mesh axis.
        words: All words the array can have; on an axis of one device B stands for all.
        index: Position of words in `words`, which is their row and column in `cost`.
        cost: Price of the cheapest chain from row to column: integers, held in float64.
    """

    __slots__ = ("_counts", "_graph", "_price", "array", "cost", "index", "sizes", "words")

    def __init__(
        self,
        array: ArrayType,
        sizes: Sequence[int],
        partials: Collection[Partial] = (),
        price: Price = wire_bytes_first,
    ) -> None:
        """Prices every step once and finds all shortest paths.

        Args:
            array: The logical array.
            sizes: Number of devices of each mesh axis.
            partials: The Partial words wanted; see `legal_words`.
            price: Cost of a step. Steps of kind `relabel` are free and not asked for.
        """
        graph = step_graph(array, sizes, partials)
        self.array = array
        self.sizes = tuple(sizes)
        self.words: tuple[Words, ...] = graph.words
        self.index = graph.index
        self._graph = graph
        self._price = _step_prices(graph, array, price)
        self.cost = _cheapest(len(self.words), graph.src, graph.dst, self._price)
        self._counts: dict[int, npt.NDArray[np.float64]] = {}

    def path(self, src: Words, dst: Words) -> tuple[Step, ...]:
        """The cheapest chain of steps; of equally cheap ones the one with the fewest steps.

        Raises:
            BoxingError: The array cannot have these words.
        """
        for words in (src, dst):
            if words not in self.index:
                raise BoxingError(
                    f"words {_format_words(words)} are not in the table of "
                    f"{format_type(self.array)} on a mesh of {self.sizes}",
                    why=why_illegal(self.array, words, self.sizes)
                    or "The table was built without this kind of Partial.",
                    how="box between the words listed in `table.words`",
                )
        graph, start, stop = self._graph, self.index[src], self.index[dst]
        cost, count = self.cost[start], self._fewest_steps(start)
        steps: list[Step] = []
        while stop != start:
            # The last step depends on start and stop alone: the paths of one source form a tree.
            last = slice(graph.first[stop], graph.first[stop + 1])
            before = graph.src[last]
            fits = (cost[before] + self._price[last] == cost[stop]) & (
                count[before] + 1 == count[stop]
            )
            edge = int(graph.first[stop] + np.argmax(fits))
            steps.append(self._step(edge))
            stop = int(graph.src[edge])
        return _spelled(steps[::-1], src, dst, self.index.single)

    def _fewest_steps(self, start: int) -> npt.NDArray[np.float64]:
        """For each of the words, the fewest steps of a cheapest chain from these words."""
        if start not in self._counts:
            graph, cost = self._graph, self.cost[start]
            is_cheapest = cost[graph.src] + self._price == cost[graph.dst]
            count = np.full(len(self.words), np.inf)
            count[start] = 0
            for num_steps in range(1, len(self.words)):
                before = np.where(is_cheapest, count[graph.src], np.inf)
                reached = np.minimum.reduceat(before, graph.first[:-1]) + 1 <= num_steps
                new = reached & np.isinf(count)
                if not new.any():
                    break
                count[new] = num_steps
            self._counts[start] = count
        return self._counts[start]

    def steps(self) -> Iterator[Step]:
        """Every single step there is between two words."""
        return map(self._step, range(len(self._graph.src)))

    def _step(self, edge: int) -> Step:
        return _step_of(self._graph, edge, self.array)


def _spelled(
    steps: Sequence[Step], src: Words, dst: Words, single: Sequence[int]
) -> tuple[Step, ...]:
    """The steps with the words asked for on axes of one device, which change before all else."""
    first: list[Step] = []
    for axis in single:
        if src[axis] != dst[axis]:
            changed = replace_words(src, (axis,), dst[axis])
            first.append(Step("relabel", (axis,), src, changed, 0, 0))
            src = changed

    def spelled(words: Words) -> Words:
        return tuple(dst[axis] if axis in single else word for axis, word in enumerate(words))

    if single:
        steps = [replace(s, src=spelled(s.src), dst=spelled(s.dst)) for s in steps]
    return (*first, *steps)


class MergedTable:
    """Prices of changes of words up to the order of some axes, which are alike.

    Words that differ only in that order are one kind. The price between two kinds is that of the
    cheapest chain of steps, where between two steps the axes may be exchanged at no price.

    Attributes:
        array: The logical array.
        sizes: Number of devices of each mesh axis.
        words: The first words of each kind.
        index: Row and column in `cost` of any words the array can have.
        cost: Price from row to column.
    """

    __slots__ = ("array", "cost", "index", "sizes", "words")

    def __init__(
        self,
        array: ArrayType,
        sizes: Sequence[int],
        partials: Collection[Partial],
        price: Price,
        axes: Sequence[int],
    ) -> None:
        """Takes all steps between words as steps between their kinds.

        Args:
            array: The logical array.
            sizes: Number of devices of each mesh axis.
            partials: The Partial words wanted; see `legal_words`.
            price: Cost of a step; equal for steps that differ only in the order of `axes`.
            axes: The axes that are alike.
        """
        graph = step_graph(array, sizes, partials)
        kinds: dict[Words, int] = {}
        kind = [kinds.setdefault(_ordered(words, axes), len(kinds)) for words in graph.words]
        first = {number: words for words, number in zip(graph.words[::-1], kind[::-1], strict=True)}
        self.array = array
        self.sizes = tuple(sizes)
        self.words: tuple[Words, ...] = tuple(first[number] for number in range(len(first)))
        numbers = dict(zip(graph.words, kind, strict=True))
        self.index = Positions(numbers, graph.index.single)
        src, dst = np.array(kind)[graph.src], np.array(kind)[graph.dst]
        self.cost = _cheapest(len(first), src, dst, _step_prices(graph, array, price))


def _ordered(words: Words, axes: Sequence[int]) -> Words:
    """The words with those of `axes` in one order of all."""
    inner = iter(sorted((words[axis] for axis in axes), key=str))
    return tuple(next(inner) if axis in axes else word for axis, word in enumerate(words))


def _step_of(graph: StepGraph, edge: int, array: ArrayType) -> Step:
    group = graph.groups[int(graph.group[edge])]
    nbytes, local_nbytes = group.nbytes(array.nbytes)
    src, dst = graph.words[int(graph.src[edge])], graph.words[int(graph.dst[edge])]
    return Step(group.kind, group.axes, src, dst, nbytes, local_nbytes)


def _step_prices(graph: StepGraph, array: ArrayType, price: Price) -> npt.NDArray[np.float64]:
    prices = [
        0 if group.kind == "relabel" else price(_step_of(graph, group.example, array))
        for group in graph.groups
    ]
    return np.array(prices, np.float64)[graph.group]


def boxing_path(
    src: Words,
    dst: Words,
    array: ArrayType,
    sizes: Sequence[int],
    *,
    price: Price = wire_bytes_first,
    axes: Sequence[str] = (),
) -> tuple[Step, ...]:
    """The cheapest chain of steps from `src` to `dst`.

    Args:
        src: Words the array has.
        dst: Words it shall have.
        array: The logical array.
        sizes: Number of devices of each mesh axis.
        price: Cost of a step.
        axes: Names of the mesh axes, for the message of an error.

    Raises:
        BoxingError: The array cannot have these words.
    """
    names = axes or [f"axis{number}" for number in range(len(sizes))]
    for words in (src, dst):
        reason = why_illegal(array, words, sizes, names)
        if reason is not None:
            raise BoxingError(
                f"{format_type(array)} cannot be {_format_words(words, names)}",
                why=reason,
                how=_remedies(array, words, sizes, names),
            )
    partials = {word for word in (*src, *dst) if isinstance(word, Partial)}
    return BoxingTable(array, sizes, partials, price).path(src, dst)


def format_steps(steps: Sequence[Step], axes: Sequence[str]) -> str:
    """One line for each step: `P -> B on tp: all-reduce, 48 KiB/device`."""
    return "\n".join(format_step(step, axes) for step in steps)


def format_step(step: Step, axes: Sequence[str]) -> str:
    """A step in one line; see `format_steps`."""
    changes = dict.fromkeys(zip(step.src, step.dst, strict=True))
    changed = [(old, new) for old, new in changes if old != new]
    if len(changed) == 1 and step.kind != "collective-permute":
        change = f"{changed[0][0]} -> {changed[0][1]}"
    else:
        moved = [axis for axis in range(len(step.src)) if step.src[axis] != step.dst[axis]]
        change = " -> ".join(
            ", ".join(str(words[axis]) for axis in moved) for words in (step.src, step.dst)
        )
    over = ", ".join(axes[axis] for axis in step.axes)
    cost = "" if step.is_local else f", {format_nbytes(step.nbytes)}/device"
    return f"{change} on {over}: {step.kind}{cost}"


def format_nbytes(nbytes: int) -> str:
    """A size in bytes for reading: `96 B`, `48 KiB`, `1.5 MiB`."""
    value, units = float(nbytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.4g} {units[0]}"


def _cheapest(
    num_words: int,
    src: npt.NDArray[np.intp],
    dst: npt.NDArray[np.intp],
    price: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """The cost of the cheapest chain of steps, from row to column.

    Args:
        num_words: Number of words.
        src: For each step the words before.
        dst: For each step the words after.
        price: For each step what it costs: whole numbers, whose sums are exact.
    """
    # Of steps between the same words the cheapest counts; a sparse matrix would add them up.
    order = np.lexsort((price, src, dst))
    src, dst, price = src[order], dst[order], price[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])
    edges = (price[is_first], (src[is_first], dst[is_first]))
    steps: Any = csr_matrix(edges, shape=(num_words, num_words))
    shortest: Any = getattr(csgraph, "dijkstra")  # noqa: B009 - scipy has no types
    costs: npt.NDArray[np.float64] = shortest(steps)
    return costs


def _format_words(words: Words, axes: Sequence[str] = ()) -> str:
    names = [f"{axis}: " for axis in axes] if len(axes) == len(words) else [""] * len(words)
    return f"({', '.join(f'{name}{word}' for name, word in zip(names, words, strict=True))})"


def _remedies(
    array: ArrayType, words: Words, sizes: Sequence[int], axes: Sequence[str]
) -> tuple[str, ...]:
    """Words that differ on one axis and are legal: each was tried."""
    options: tuple[Word, ...] = (*map(Split, range(array.ndim)), B)
    found = (
        f"'{axes[axis]}: {new}'"
        for axis in range(min(len(words), len(sizes)))
        for new in options
        if new != words[axis]
        and why_illegal(array, replace_words(words, (axis,), new), sizes) is None
    )
    return tuple(itertools.islice(found, 4))
