"""What a node of the graph may choose from: words of a value, signatures of a call.

Comes in: types, the mesh, pins. Goes out: domains, with the part that each choice has on each mesh
axis. Equal calls share one domain, so that planning does not grow with what is equal.
"""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sbp.algebra import (
    ArrayType,
    B,
    NdSbp,
    Partial,
    Split,
    Word,
    Words,
    format_type,
    local_shape,
)
from sbp.boxing import legal_words, why_illegal
from sbp.errors import SignatureError
from sbp.factors import Call, NdSignature, Signature, is_inexact, linear, nd_signatures, replicated
from sbp.rules import find_rule


@dataclass(frozen=True, slots=True)
class Mesh:
    """Names and sizes of the mesh axes, outermost first."""

    axes: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def num_devices(self) -> int:
        """Number of devices."""
        return int(np.prod(self.sizes, dtype=np.int64))

    def __str__(self) -> str:
        return ", ".join(f"{a}={n}" for a, n in zip(self.axes, self.sizes, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Domain:
    """The choices of one node.

    Attributes:
        labels: Words of a value, or signatures of a call.
        aspects: A row a label, a column a mesh axis; equal entries mean the same, on
            whichever axis.
    """

    labels: tuple[Any, ...]
    aspects: NDArray[np.intp]


_PARTIAL_CODES = {"sum": 1, "max": 2, "min": 3}
CODE_BASE = 64
"""Codes of words are below this, as no array has so many dims."""


def code_of(word: Word) -> int:
    """A small number for a word: 0 for B, 1 to 3 for partial words, 4 + d for S(d)."""
    match word:
        case Split(dim):
            return 4 + dim
        case Partial(kind):
            return _PARTIAL_CODES[kind]
        case _:
            return 0


def word_codes(words: Sequence[Words], num_axes: int) -> NDArray[np.intp]:
    """Codes of words: a row for each, a column a mesh axis."""
    codes = [[code_of(word) for word in label] for label in words]
    return np.array(codes, np.intp).reshape(len(words), num_axes)


def words_domain(words: Sequence[Words], num_axes: int) -> Domain:
    """A domain of words."""
    return Domain(tuple(words), word_codes(words, num_axes))


def signatures_domain(labels: Sequence[NdSignature], num_axes: int) -> Domain:
    """A domain of signatures."""
    sides = [(*s.inputs, *s.outputs) for s in labels]
    # One row for each label and axis: equal numbers are one signature, on whichever axis.
    by_axis = [
        [code_of(words[axis]) for words in side] for side in sides for axis in range(num_axes)
    ]
    aspects = np.zeros((len(labels), num_axes), np.intp)
    if any(by_axis):
        numbers = np.unique(np.array(by_axis, np.intp), axis=0, return_inverse=True)[1]
        aspects = numbers.reshape(len(labels), num_axes)
    return Domain(tuple(labels), aspects)


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Choices kept on some axes while the others are planned.

    Attributes:
        axes: Numbers of the axes that are kept.
        labels: The label of every node, in the order in which a graph makes them; None keeps B.
    """

    axes: tuple[int, ...]
    labels: tuple[Any, ...] | None = None

    def label(self, node: int) -> Any:
        """The label a node has, None where B is kept."""
        return self.labels[node] if self.labels else None

    def words(self, node: int, choices: list[Words]) -> list[Words]:
        """The choices of a value node that agree; all where pins leave none."""
        kept = self.label(node)
        agreeing = [
            words
            for words in choices
            if all(words[k] == (kept[k] if kept else B) for k in self.axes)
        ]
        return agreeing or choices

    def signatures(self, call: Call, label: NdSignature | None) -> dict[int, Signature]:
        """The signature of a call with some label on each axis that is kept."""
        if label is None:
            return dict.fromkeys(self.axes, replicated(call))
        return {axis: label.axis(axis) for axis in self.axes}


def call_domain(
    call: Call,
    mesh: Mesh,
    reduce_dtype: str | None = None,
    only: Mapping[int, Signature] | None = None,
    exchangeable: Collection[int] = (),
) -> Domain:
    """The signatures of a call; one alone, all-B, where the primitive has no rule.

    Args:
        call: The logical call.
        mesh: The mesh.
        reduce_dtype: A float dtype to which partial sums may be narrowed before they are added.
        only: Axes on which no other signature is wanted.
        exchangeable: Axes whose order does not matter; see `nd_signatures`.
    """
    rule = find_rule(call.primitive)
    if rule is None:
        whole = (B,) * len(mesh.sizes)
        labels: tuple[NdSignature, ...] = (
            NdSignature((whole,) * len(call.inputs), (whole,) * len(call.outputs)),
        )
    else:
        narrows = reduce_dtype is not None and _narrows_to(call, reduce_dtype)

        def on_one_axis(call: Call) -> Iterator[Signature]:
            yield from rule.signatures(call)
            if narrows:
                yield from linear(call, 0)

        live = [axis for axis, size in enumerate(mesh.sizes) if size > 1]
        found = nd_signatures(
            call,
            [mesh.sizes[axis] for axis in live],
            on_one_axis,
            rule.localize,
            {k: only[axis] for k, axis in enumerate(live) if only and axis in only},
            [k for k, axis in enumerate(live) if axis in exchangeable],
        )
        if len(live) < len(mesh.sizes):
            found = [_on_all_axes(signature, live, mesh) for signature in found]
        labels = tuple(s for s in found if not any(map(_mixed, (*s.inputs, *s.outputs))))
    return signatures_domain(labels, len(mesh.sizes))


def _on_all_axes(signature: NdSignature, live: Sequence[int], mesh: Mesh) -> NdSignature:
    """The signature with B on axes of one device, on which all words mean the same."""

    def spread(words: Words) -> Words:
        by_axis = dict(zip(live, words, strict=True))
        return tuple(by_axis.get(axis, B) for axis in range(len(mesh.sizes)))

    return NdSignature(*(tuple(map(spread, s)) for s in (signature.inputs, signature.outputs)))


def _narrows_to(call: Call, dtype: str) -> bool:
    return (
        call.primitive == "convert_element_type"
        and is_inexact(call.inputs[0])
        and str(call.outputs[0].dtype) == dtype
    )


def _mixed(words: Words) -> bool:
    """Partial by two reductions: a maximum of sums is not a sum of maxima."""
    return len({word for word in words if isinstance(word, Partial)}) > 1


def freeze(params: Mapping[str, Any]) -> Hashable:
    """The parameters of a primitive as a key."""
    items = tuple(sorted(params.items(), key=lambda item: item[0]))
    try:
        hash(items)
    except TypeError:
        return repr(items)
    return items


def check_words(words: NdSbp, array: ArrayType, mesh: Mesh, where: str, *, what: str) -> NdSbp:
    """Checks words that a user asks for against the array and the mesh.

    Args:
        words: The request; an axis that is not named stays free.
        array: The logical array.
        mesh: The mesh.
        where: Path or source line of the array.
        what: What makes the request, such as `in_sbp` or `pin`.

    Returns:
        The request with negative dims counted from the front.

    Raises:
        SignatureError: An axis is not in the mesh, a dim does not exist or does not divide, or the
            array cannot be partial.
    """
    normal: dict[str, Any] = {}
    for axis, word in words.items():
        if axis not in mesh.axes:
            raise SignatureError(
                f"{what} '{axis}: {word}' names an axis that the mesh does not have",
                where=where,
                why=f"The mesh has {mesh}.",
                how=[f"use one of {', '.join(mesh.axes)}", f"make a mesh with an axis {axis!r}"],
            )
        if isinstance(word, Split):
            dim = word.dim + array.ndim if word.dim < 0 else word.dim
            if not 0 <= dim < array.ndim:
                raise SignatureError(
                    f"{what} '{axis}: {word}' splits a dim that does not exist",
                    where=where,
                    why=f"{format_type(array)} has {array.ndim} dims"
                    + (f", numbered 0 to {array.ndim - 1}." if array.ndim else "."),
                    how=_other_dims(NdSbp(normal), array, mesh, axis, what),
                )
            word = Split(dim)
        normal[axis] = word
    request = NdSbp(normal)
    if local_shape(array.shape, request.on(mesh.axes), mesh.sizes) is None:
        raise _uneven(request, array, mesh, where, what)
    reason = why_illegal(array, request.on(mesh.axes), mesh.sizes, mesh.axes)
    if reason is not None:
        raise SignatureError(
            f"{what} '{str(request)[1:-1]}' cannot hold",
            where=where,
            why=f"{format_type(array)}: {reason}",
            how=f"{what} B, or S of a dim, instead of P",
        )
    return request


def _other_dims(words: NdSbp, array: ArrayType, mesh: Mesh, axis: str, what: str) -> list[str]:
    """Words for one axis that hold beside those of the other axes; each is tried."""
    size = mesh.sizes[mesh.axes.index(axis)]
    others = NdSbp({name: word for name, word in words.items() if name != axis})
    rest = local_shape(array.shape, others.on(mesh.axes), mesh.sizes)
    found: list[str] = []
    for dim, extent in enumerate(rest or ()):
        tried = NdSbp({**others, axis: Split(dim)}).on(mesh.axes)
        if extent and local_shape(array.shape, tried, mesh.sizes) is not None:
            found.append(f"{what} '{axis}: S({dim})' ({extent} = {size} x {extent // size})")
    return found or [f"{what} '{axis}: B'"]


def _uneven(words: NdSbp, array: ArrayType, mesh: Mesh, where: str, what: str) -> SignatureError:
    left = list(array.shape)
    for axis, size in zip(mesh.axes, mesh.sizes, strict=True):
        word = words.get(axis)
        if not isinstance(word, Split):
            continue
        extent = left[word.dim]
        if extent % size:
            outer = [a for a in mesh.axes[: mesh.axes.index(axis)] if words.get(a) == word]
            split = f"{extent} elements" + (f" left by {', '.join(outer)}" if outer else "")
            fits = [n for n in range(2, extent + 1) if extent % n == 0][:3]
            how = _other_dims(words, array, mesh, axis, what)
            if fits:
                how.append(f"a mesh with {axis}={' or '.join(map(str, fits))}")
            how.append(f"leave {axis} free: the planner then picks")
            return SignatureError(
                f"{what} '{axis}: {word}' cannot hold",
                where=where,
                why=f"{format_type(array)}: dim {word.dim} has {split}, "
                f"axis {axis!r} has {size} devices.\n"
                f"Split needs equal slices; {extent} is not a multiple of {size}.",
                how=how,
            )
        left[word.dim] //= size
    raise AssertionError((words, array, mesh))


def allowed_words(
    array: ArrayType, mesh: Mesh, pinned: NdSbp | None, *, partial: bool
) -> list[Words]:
    """The words a value node may choose from.

    Args:
        array: The logical array.
        mesh: The mesh.
        pinned: Words that must hold on the axes it names; a named P is allowed even if `partial`
            is not set.
        partial: Whether partial sums are among the choices.
    """
    kinds = {word for word in (pinned or {}).values() if isinstance(word, Partial)}
    choices = legal_words(array, mesh.sizes, frozenset(kinds | ({Partial()} if partial else set())))

    asked = [pinned.get(axis) if pinned else None for axis in mesh.axes]

    def fits(words: Words) -> bool:
        for size, word, wanted in zip(mesh.sizes, words, asked, strict=True):
            if size == 1:
                continue
            if wanted is not None and wanted != word:
                return False
            if wanted is None and isinstance(word, Partial) and not partial:
                return False
        return True

    def spelled(words: Words) -> Words:
        """On an axis of one device B stands for all words, except for one that is asked for."""
        return tuple(
            word if size > 1 or wanted is None else wanted
            for size, word, wanted in zip(mesh.sizes, words, asked, strict=True)
        )

    return [spelled(words) for words in choices if fits(words)]
