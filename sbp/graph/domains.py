"""What a node of the graph may choose from: words of a value, signatures of a call.

Comes in: types, the mesh, pins. Goes out: domains, with the part that each choice has on each mesh
axis. Equal calls share one domain, so that planning does not grow with what is equal.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sbp.algebra import ArrayType, B, NdSbp, Partial, Split, Words, format_type, local_shape
from sbp.boxing import legal_words
from sbp.errors import SignatureError
from sbp.factors import Call, NdSignature, Signature, is_inexact, linear, nd_signatures
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
        aspects: A row a label, a column a mesh axis; equal entries mean the same on that axis.
    """

    labels: tuple[Any, ...]
    aspects: NDArray[np.intp]


def words_domain(words: Sequence[Words], num_axes: int) -> Domain:
    """A domain of words."""
    return Domain(tuple(words), number_parts([tuple(label) for label in words], num_axes))


def number_parts(parts: Sequence[Sequence[Hashable]], num_axes: int) -> NDArray[np.intp]:
    """Numbers the parts of labels, axis by axis, in order of appearance."""
    aspects = np.zeros((len(parts), num_axes), np.intp)
    for axis in range(num_axes):
        numbers: dict[Hashable, int] = {}
        for row, label in enumerate(parts):
            aspects[row, axis] = numbers.setdefault(label[axis], len(numbers))
    return aspects


def call_domain(call: Call, mesh: Mesh, reduce_dtype: str | None = None) -> Domain:
    """The signatures of a call; one alone, all-B, where the primitive has no rule.

    Args:
        call: The logical call.
        mesh: The mesh.
        reduce_dtype: A float dtype to which partial sums may be narrowed before they are added.
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

        found = nd_signatures(call, mesh.sizes, on_one_axis, rule.localize)
        labels = tuple(s for s in found if not any(map(_mixed, (*s.inputs, *s.outputs))))
    axes = range(len(mesh.sizes))
    return Domain(labels, number_parts([[s.axis(k) for k in axes] for s in labels], len(axes)))


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
        SignatureError: An axis is not in the mesh, a dim does not exist, or does not divide.
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
                    how=_other_dims(array, mesh, axis, what) or f"{what} '{axis}: B'",
                )
            word = Split(dim)
        normal[axis] = word
    request = NdSbp(normal)
    if local_shape(array.shape, request.on(mesh.axes), mesh.sizes) is None:
        raise _uneven(request, array, mesh, where, what)
    return request


def _other_dims(array: ArrayType, mesh: Mesh, axis: str, what: str) -> list[str]:
    size = mesh.sizes[mesh.axes.index(axis)]
    return [
        f"{what} '{axis}: S({dim})' ({extent} = {size} x {extent // size})"
        for dim, extent in enumerate(array.shape)
        if extent and extent % size == 0
    ]


def _uneven(words: NdSbp, array: ArrayType, mesh: Mesh, where: str, what: str) -> SignatureError:
    left = list(array.shape)
    for axis, size in zip(mesh.axes, mesh.sizes, strict=True):
        word = words.get(axis)
        if not isinstance(word, Split):
            continue
        if left[word.dim] % size:
            extent = left[word.dim]
            fits = [n for n in range(2, extent + 1) if extent % n == 0][:3]
            how = _other_dims(array, mesh, axis, what)
            if fits:
                how.append(f"a mesh with {axis}={' or '.join(map(str, fits))}")
            how.append(f"leave {axis} free: the planner then picks")
            return SignatureError(
                f"{what} '{axis}: {word}' cannot hold",
                where=where,
                why=f"{format_type(array)}: dim {word.dim} has {extent} elements to split, "
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

    def fits(words: Words) -> bool:
        for axis, word in zip(mesh.axes, words, strict=True):
            wanted = pinned.get(axis) if pinned else None
            if wanted is not None and wanted != word:
                return False
            if wanted is None and isinstance(word, Partial) and not partial:
                return False
        return True

    return [words for words in choices if fits(words)]
