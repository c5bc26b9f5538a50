"""The steps between words: what one collective, or one local operation, can change.

Comes in: the shape of an array and the sizes of the mesh axes. Goes out: all words the array can
have, and every single step between two of them (`StepGraph`). The rules are the table of the
package; that they are right is not argued here but executed, against the meaning of the words.
"""

import functools
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np
import numpy.typing as npt

from sbp.algebra import (
    P_MAX,
    P_MIN,
    ArrayType,
    B,
    Broadcast,
    P,
    Partial,
    Split,
    Word,
    Words,
    format_dtype,
    local_shape,
)
from sbp.factors import has_sum

Kind = Literal[
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "slice",
    "mask",
    "place",
    "relabel",
]

LOCAL_KINDS: frozenset[Kind] = frozenset({"slice", "mask", "place", "relabel"})
"""The kinds of step for which no device sends anything."""


@dataclass(frozen=True, slots=True)
class Step:
    """One collective, or one local operation, that changes the words of an array.

    Attributes:
        kind: Name of the collective as XLA spells it, or a local operation: `slice` (B -> S),
            `mask` (B -> P: the first device keeps its values), `place` (S -> P: padded with what
            the reduction ignores), `relabel` (nothing to do: B -> P.max, B -> P.min, any change
            on an axis of one device). From P.max and P.min to S it is `all-to-all`, followed by
            a local reduction.
        axes: Numbers of the mesh axes it runs over, in mesh order. A `collective-permute` may
            change the words of further axes from B to S: the blocks are sliced before they move.
        src: Words before, one for each mesh axis.
        dst: Words after.
        nbytes: Bytes that a device sends.
        local_nbytes: Bytes that a device writes to its own memory.
    """

    kind: Kind
    axes: tuple[int, ...]
    src: Words
    dst: Words
    nbytes: int
    local_nbytes: int

    @property
    def is_local(self) -> bool:
        """Whether no device sends anything."""
        return self.kind in LOCAL_KINDS


def legal_words(
    array: ArrayType, sizes: Sequence[int], partials: Collection[Partial] = ()
) -> tuple[Words, ...]:
    """The words an array can have on a mesh; everything B comes first.

    On an axis of one device all words mean the same; B stands for them.

    Partials of two kinds are never mixed: no operation makes such an array, and its meaning would
    depend on the order of the axes.

    Args:
        array: The logical array.
        sizes: Number of devices of each mesh axis.
        partials: The Partial words wanted. Those that the dtype does not have are left out.
    """
    return step_graph(array, sizes, partials).words


def why_illegal(
    array: ArrayType, words: Words, sizes: Sequence[int], axes: Sequence[str] = ()
) -> str | None:
    """The law that forbids the array these words, or None.

    Args:
        array: The logical array.
        words: One word for each mesh axis.
        sizes: Number of devices of each mesh axis.
        axes: Names of the mesh axes.
    """
    names = axes or [f"axis{number}" for number in range(len(sizes))]
    if len(words) != len(sizes):
        return f"A mesh of {len(sizes)} axes needs {len(sizes)} words; these are {len(words)}."
    left = list(array.shape)
    for name, word, size in zip(names, words, sizes, strict=True):
        if isinstance(word, Partial) and not _has_partial(array, word):
            verb = "added" if word == P else "compared"
            return f"{word} on {name!r}: elements of {format_dtype(array.dtype)} cannot be {verb}."
        if not isinstance(word, Split):
            continue
        if not 0 <= word.dim < array.ndim:
            return f"{word} on {name!r}: the array has {array.ndim} dims, counted from 0."
        if left[word.dim] % size:
            return (
                f"{word} on {name!r}: the axis has {size} devices, and the dim has size "
                f"{left[word.dim]}{'' if left[word.dim] == array.shape[word.dim] else ' left'}.\n"
                f"Split needs equal slices; {left[word.dim]} is not a multiple of {size}."
            )
        left[word.dim] //= size
    kinds = _partial_kinds(words, sizes)
    if len(kinds) > 1:
        return f"{' and '.join(map(str, kinds))} of one array: partials of two kinds do not mix."
    return None


@dataclass(frozen=True, slots=True)
class StepGroup:
    """Steps that differ only in their words: one kind, one set of axes, equal bytes.

    Attributes:
        number: Position in `StepGraph.groups`.
        kind: As of `Step`.
        axes: As of `Step`.
        num_devices: Number of devices over `axes`.
        before: Into how many blocks the array is split before.
        after: Into how many after.
        reduces: Whether the words before are Partial.
        example: Number of one such step.
    """

    number: int
    kind: Kind
    axes: tuple[int, ...]
    num_devices: int
    before: int
    after: int
    reduces: bool
    example: int

    def nbytes(self, array_nbytes: int) -> tuple[int, int]:
        """Bytes that a device sends, and bytes that it writes."""
        n, src, dst = self.num_devices, array_nbytes // self.before, array_nbytes // self.after
        match self.kind:
            case "all-gather":
                return (n - 1) * src, dst
            case "reduce-scatter":
                return (n - 1) * dst, dst
            case "all-reduce":
                return math.ceil(2 * (n - 1) * src / n), dst
            case "all-to-all" if self.reduces:
                return (n - 1) * dst, src + dst
            case "all-to-all":
                return (n - 1) * src // n, dst
            case "collective-permute":
                return dst, dst
            case "relabel":
                return 0, 0
            case _:
                return 0, dst


class Positions(dict[Words, int]):
    """A number for words; those that differ on axes of one device only have the same.

    Keys have B on these axes, of which the numbers are `single`.
    """

    def __init__(self, numbers: Mapping[Words, int], single: tuple[int, ...]) -> None:
        """Takes over the numbers."""
        super().__init__(numbers)
        self.single = single

    def __missing__(self, words: Words) -> int:
        """The number of words that have others than B on axes of one device."""
        plain = replace_words(words, self.single, B)
        if plain == words:
            raise KeyError(words)
        return self[plain]

    def __contains__(self, words: object) -> bool:
        """Whether the words have a number."""
        known = super().__contains__
        if known(words) or not self.single:
            return known(words)
        return known(replace_words(cast(Words, words), self.single, B))


@dataclass(frozen=True, slots=True, eq=False)
class StepGraph:
    """All words of arrays that split alike, and all steps between two of them.

    On an axis of one device all words mean the same; B stands for them.

    Steps are sorted by the words after, then by the words before.

    Attributes:
        words: The words; everything B comes first.
        index: Position of words in `words`.
        src: For each step the position of the words before.
        dst: For each step the position of the words after.
        first: For each of the words the first step that leads to them, and at the end the number
            of all steps.
        group: For each step its position in `groups`.
        groups: Steps that cost the same.
    """

    words: tuple[Words, ...]
    index: Positions
    src: npt.NDArray[np.intp]
    dst: npt.NDArray[np.intp]
    first: npt.NDArray[np.intp]
    group: npt.NDArray[np.intp]
    groups: tuple[StepGroup, ...]


_Edge = tuple[int, int, Kind, tuple[int, ...]]
"""A step: the positions of the words after and before, its kind and its axes."""


def _has_partial(array: ArrayType, word: Partial) -> bool:
    name = str(array.dtype)
    return has_sum(array) if word == P else not name.startswith(("complex", "key"))


def _partial_kinds(words: Words, sizes: Sequence[int]) -> list[Partial]:
    found = (w for w, n in zip(words, sizes, strict=True) if isinstance(w, Partial) and n > 1)
    return list(dict.fromkeys(found))


def step_graph(
    array: ArrayType, sizes: Sequence[int], partials: Collection[Partial] = ()
) -> StepGraph:
    """The words of an array and the steps between them; arguments as of `legal_words`.

    Which splits are even depends only on the common divisors with the mesh, so arrays of other
    sizes and other dtypes share the graph.
    """
    num_devices = math.prod(sizes)
    return _renamed_graph(
        tuple(math.gcd(extent, num_devices) for extent in array.shape),
        tuple(sizes),
        tuple(word for word in (P, P_MAX, P_MIN) if word in partials and _has_partial(array, word)),
    )


@functools.lru_cache(maxsize=256)
def _renamed_graph(
    shape: tuple[int, ...], sizes: tuple[int, ...], partials: tuple[Partial, ...]
) -> StepGraph:
    """The graph of the same dims in descending order, without what cannot be split.

    Those are dims that no axis divides, and axes of one device.
    """
    live = [axis for axis, size in enumerate(sizes) if size > 1]
    dims = sorted(
        (dim for dim, extent in enumerate(shape) if extent > 1), key=lambda dim: -shape[dim]
    )
    graph = _step_graph(
        tuple(shape[dim] for dim in dims), tuple(sizes[axis] for axis in live), partials
    )
    if dims == list(range(len(dims))) and len(live) == len(sizes):
        return graph

    def renamed(words: Words) -> Words:
        named: list[Word] = [B] * len(sizes)
        for axis, word in zip(live, words, strict=True):
            named[axis] = Split(dims[word.dim]) if isinstance(word, Split) else word
        return tuple(named)

    words = tuple(map(renamed, graph.words))
    single = tuple(axis for axis, size in enumerate(sizes) if size == 1)
    groups = (replace(g, axes=tuple(live[axis] for axis in g.axes)) for g in graph.groups)
    index = Positions({w: number for number, w in enumerate(words)}, single)
    return replace(graph, words=words, index=index, groups=tuple(groups))


@functools.lru_cache(maxsize=256)
def _step_graph(
    shape: tuple[int, ...], sizes: tuple[int, ...], partials: tuple[Partial, ...]
) -> StepGraph:
    options: tuple[Word, ...] = (B, *map(Split, range(len(shape))), *partials)
    words = tuple(
        candidate
        for candidate in itertools.product(options, repeat=len(sizes))
        if local_shape(shape, candidate, sizes) is not None
        and len({word for word in candidate if isinstance(word, Partial)}) <= 1
    )
    blocks = [_num_blocks(candidate, sizes) for candidate in words]
    # Numbers take the place of words here: they are compared and found much faster.
    numbered = {option: number for number, option in enumerate(options)}
    codes = [[numbered[word] for word in candidate] for candidate in words]
    table = np.array(codes, np.intp).reshape(len(words), len(sizes))
    splits = [number for number, option in enumerate(options) if isinstance(option, Split)]
    found = sorted((*_uniform_steps(table, options), *_permutes(codes, splits, sizes)))
    groups: dict[tuple[object, ...], StepGroup] = {}
    numbers: list[int] = []
    for number, (dst, src, kind, axes) in enumerate(found):
        before, after = blocks[src], blocks[dst]
        reduces = isinstance(words[src][axes[0]], Partial)
        key = (kind, axes, before, after, reduces)
        if key not in groups:
            num_devices = math.prod(sizes[axis] for axis in axes)
            groups[key] = StepGroup(
                len(groups), kind, axes, num_devices, before, after, reduces, number
            )
        numbers.append(groups[key].number)
    dst_numbers = np.array([edge[0] for edge in found], np.intp)
    return StepGraph(
        words,
        Positions({candidate: number for number, candidate in enumerate(words)}, ()),
        np.array([edge[1] for edge in found], np.intp),
        dst_numbers,
        np.searchsorted(dst_numbers, np.arange(len(words) + 1)),
        np.array(numbers, np.intp),
        tuple(groups.values()),
    )


def _num_blocks(words: Words, sizes: Sequence[int]) -> int:
    return math.prod(n for word, n in zip(words, sizes, strict=True) if isinstance(word, Split))


def replace_words(words: Words, axes: Collection[int], new: Word) -> Words:
    """The words with those of `axes` changed to `new`."""
    return tuple(new if axis in axes else word for axis, word in enumerate(words))


def _uniform_steps(codes: npt.NDArray[np.intp], options: Sequence[Word]) -> Iterator[_Edge]:
    """Steps in which every axis of a set changes from one word to another.

    Args:
        codes: Numbers of the options: a row for all words of an array, a column a mesh axis.
        options: The words that an axis may have.
    """
    num_axes = codes.shape[1]
    digits = [len(options) ** axis for axis in range(num_axes)]
    keys: npt.NDArray[np.intp] = (codes * np.array(digits, np.intp)).sum(axis=1)
    position = np.full(len(options) ** num_axes, -1)
    position[keys] = np.arange(len(codes))
    changes: list[tuple[int, int, Kind]] = [
        (old, new, kind)
        for old, new in itertools.permutations(range(len(options)), 2)
        if (kind := _uniform_kind(options[old], options[new])) is not None
    ]
    sets = (itertools.combinations(range(num_axes), k) for k in range(1, num_axes + 1))
    for axes in itertools.chain.from_iterable(sets):
        # A split further in by an axis that stays would cut across the blocks of this step.
        inner = [axis for axis in range(axes[0], num_axes) if axis not in axes]
        free = [
            ~(codes[:, inner] == number).any(axis=1) | (not isinstance(option, Split))
            for number, option in enumerate(options)
        ]
        having = [(codes[:, axes] == number).all(axis=1) for number in range(len(options))]
        for old, new, kind in changes:
            src = np.flatnonzero(having[old] & free[old] & free[new])
            dst = position[keys[src] + (new - old) * sum(digits[axis] for axis in axes)]
            for before, after in zip(src.tolist(), dst.tolist(), strict=True):
                if after >= 0:
                    yield after, before, kind, axes


def _uniform_kind(old: Word, new: Word) -> Kind | None:
    match old, new:
        case Split(), Broadcast():
            return "all-gather"
        case Split(), Split() if old != new:
            return "all-to-all"
        case Split(), Partial():
            return "place"
        case Broadcast(), Split():
            return "slice"
        case Broadcast(), Partial(kind):
            return "mask" if kind == "sum" else "relabel"
        case Partial(), Broadcast():
            return "all-reduce"
        case Partial(kind), Split():
            return "reduce-scatter" if kind == "sum" else "all-to-all"
        case _:
            return None


def _permutes(
    codes: Sequence[Sequence[int]], splits: Sequence[int], sizes: tuple[int, ...]
) -> Iterator[_Edge]:
    """Steps in which each device receives its new block from one device that holds all of it.

    Blocks of a dim are equal and contiguous, so a new block lies inside one old block exactly where
    the number of old blocks divides the number of new ones. Each old block is then held by as many
    devices as need a part of it: a permutation exists.

    Args:
        codes: Numbers of the words on each axis, for all words of an array.
        splits: The numbers that are splits.
        sizes: Number of devices of each mesh axis.
    """
    classes: dict[tuple[int, ...], list[tuple[int, list[tuple[int, ...]], list[int]]]] = {}
    for position, words in enumerate(codes):
        frame = tuple(0 if word in splits else word for word in words)
        over = [tuple(a for a, word in enumerate(words) if word == split) for split in splits]
        counts = [math.prod(sizes[axis] for axis in axes) for axes in over]
        classes.setdefault(frame, []).append((position, over, counts))
    for members in classes.values():
        for src, src_axes, src_counts in members:
            for dst, dst_axes, dst_counts in members:
                if any(map(int.__mod__, dst_counts, src_counts)):
                    continue
                moving: set[int] = set()
                involved: set[int] = set()
                for before, after in zip(src_axes, dst_axes, strict=True):
                    moves, involves = _permuted_axes(before, after, sizes)
                    moving |= moves
                    involved |= involves
                # What changes beside these axes is a slice, a step of its own.
                if moving and all(
                    axis in involved or codes[src][axis] == codes[dst][axis]
                    for axis in range(len(sizes))
                ):
                    yield dst, src, "collective-permute", tuple(sorted(moving))


@functools.lru_cache(maxsize=4096)
def _permuted_axes(
    src: tuple[int, ...], dst: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[frozenset[int], frozenset[int]]:
    """The axes along which blocks of a dim move, and with them those that slice what has moved.

    There are none where each device slices what it has.

    Args:
        src: The axes that split the dim before.
        dst: The axes that split it after.
        sizes: Number of devices of each mesh axis.
    """
    if dst[: len(src)] == src:
        return frozenset(), frozenset()
    before, after = _places(src, sizes), _places(dst, sizes)
    num_blocks = math.prod(sizes[axis] for axis in src)
    involved = {axis for axis in (*src, *dst) if before.get(axis) != after.get(axis)}
    moving = {axis for axis in involved if axis in before or after[axis] % num_blocks}
    return frozenset(moving), frozenset(involved)


def _places(axes: tuple[int, ...], sizes: tuple[int, ...]) -> dict[int, int]:
    """How many blocks of a dim the axes outside of each make.

    Where that stays, the blocks that differ by the device's number on the axis stay apart: none
    moves along it.
    """
    places: dict[int, int] = {}
    blocks = 1
    for axis in axes:
        places[axis] = blocks
        blocks *= sizes[axis]
    return places
