"""Signatures, and how they follow from index notation and linearity.

Comes in: a `Call`, one primitive with the types of its operands and results. Goes out: the
signatures under which running it on local arrays is right with no communication. A rule states
facts about one mesh axis; `nd_signatures` composes them over a mesh, axis by axis, each axis seeing
the local shapes that the axes before it left.
"""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sbp.algebra import ArrayType, B, P, Partial, Split, Word, Words, local_type


@dataclass(frozen=True, slots=True)
class Call:
    """One primitive applied to arrays of known types, logical or local.

    Attributes:
        primitive: Name of the primitive, as in a jaxpr.
        inputs: Types of the operands.
        outputs: Types of the results.
        params: The primitive's parameters, right for these types.
    """

    primitive: str
    inputs: tuple[ArrayType, ...]
    outputs: tuple[ArrayType, ...]
    params: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False, compare=False)


@dataclass(frozen=True, slots=True)
class Signature:
    """Words of the operands and results of one call on one mesh axis."""

    inputs: tuple[Word, ...]
    outputs: tuple[Word, ...]

    def __str__(self) -> str:
        words = (", ".join(map(str, side)) for side in (self.inputs, self.outputs))
        return " -> ".join(words).strip()


@dataclass(frozen=True, slots=True)
class NdSignature:
    """Words of the operands and results of one call on every mesh axis, in mesh order."""

    inputs: tuple[Words, ...]
    outputs: tuple[Words, ...]

    def axis(self, index: int) -> Signature:
        """The signature on mesh axis number `index`."""
        return Signature(
            tuple(words[index] for words in self.inputs),
            tuple(words[index] for words in self.outputs),
        )


@dataclass(frozen=True, slots=True)
class Factor:
    """One index of an operation: the dim it is in each operand and each result.

    Splitting a factor splits every array that has it. An operand without it is B; a result without
    it is partial under `reduction`, and with no reduction the factor cannot be split.
    """

    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    reduction: Partial | None = None

    def signature(self) -> Signature | None:
        """The signature that splits this factor, or None if there is none."""
        if self.reduction is None and None in self.outputs:
            return None
        reduced: Word = self.reduction or B
        return Signature(
            tuple(B if dim is None else Split(dim) for dim in self.inputs),
            tuple(reduced if dim is None else Split(dim) for dim in self.outputs),
        )


def split_signatures(factors: Iterable[Factor]) -> Iterator[Signature]:
    """The signatures that split one factor each."""
    for factor in factors:
        signature = factor.signature()
        if signature is not None:
            yield signature


def parse_factors(notation: str, reduction: Partial | None = P) -> tuple[Factor, ...]:
    """Reads index notation such as `b m k, b k n -> b m n`.

    Args:
        notation: One name per dim, arrays separated by commas, `->` before the results.
        reduction: The reduction of an index that a result lacks; None forbids splitting it.
    """
    left, right = notation.split("->")
    inputs, outputs = (
        [part.split() for part in side.split(",")] if side.strip() else [] for side in (left, right)
    )
    names = dict.fromkeys(name for array in (*inputs, *outputs) for name in array)
    return tuple(
        Factor(
            tuple(array.index(name) if name in array else None for array in inputs),
            tuple(array.index(name) if name in array else None for array in outputs),
            reduction,
        )
        for name in names
    )


_dtype_name = functools.cache(str)  # numpy takes ten microseconds to make one


def is_bool(array: ArrayType) -> bool:
    """Whether the elements are booleans."""
    return _dtype_name(array.dtype) == "bool"


def is_inexact(array: ArrayType) -> bool:
    """Whether the elements are floats or complex numbers."""
    return _dtype_name(array.dtype).startswith(("float", "bfloat", "complex"))


def is_integer(array: ArrayType) -> bool:
    """Whether the elements are integers, signed or not."""
    return _dtype_name(array.dtype).startswith(("int", "uint"))


def has_sum(array: ArrayType) -> bool:
    """Whether adding parts is meaningful: numbers yes; booleans and random keys no."""
    return is_inexact(array) or is_integer(array)


def linear(call: Call, *operands: int, word: Partial = P) -> Iterator[Signature]:
    """The signature of a call that is linear in `operands` together, the others being B.

    Every result becomes partial. Yields nothing if an array involved has no sum.
    """
    involved = [call.inputs[k] for k in operands] + list(call.outputs)
    if word != P or all(map(has_sum, involved)):
        yield Signature(
            tuple(word if k in operands else B for k in range(len(call.inputs))),
            tuple(word for _ in call.outputs),
        )


OneAxisRule = Callable[[Call], Iterable[Signature]]
Localize = Callable[[Call, tuple[ArrayType, ...], tuple[ArrayType, ...]], Mapping[str, Any] | None]


def keep_params(
    call: Call, inputs: tuple[ArrayType, ...], outputs: tuple[ArrayType, ...]
) -> Mapping[str, Any]:
    """The parameters of a primitive that hold no sizes."""
    return call.params


def localize_call(call: Call, signature: Signature, size: int, localize: Localize) -> Call | None:
    """The call that each device makes under a signature on one axis of `size` devices.

    Returns:
        None where a split dim does not divide by `size`, or `localize` finds no parameters.
    """
    if not _divides(call, signature, size):
        return None
    inputs = tuple(
        local_type(array, (word,), (size,))
        for array, word in zip(call.inputs, signature.inputs, strict=True)
    )
    outputs = tuple(
        local_type(array, (word,), (size,))
        for array, word in zip(call.outputs, signature.outputs, strict=True)
    )
    params = localize(call, inputs, outputs)
    return None if params is None else Call(call.primitive, inputs, outputs, params)


def _divides(call: Call, signature: Signature, size: int) -> bool:
    return all(
        not isinstance(word, Split)
        or (0 <= word.dim < array.ndim and array.shape[word.dim] % size == 0)
        for array, word in zip(
            (*call.inputs, *call.outputs), (*signature.inputs, *signature.outputs), strict=True
        )
    )


def replicated(call: Call) -> Signature:
    """Everything B: always right, so every program has a plan."""
    return Signature((B,) * len(call.inputs), (B,) * len(call.outputs))


def nd_signatures(
    call: Call,
    sizes: Sequence[int],
    rule: OneAxisRule,
    localize: Localize = keep_params,
    only: Mapping[int, Signature] | None = None,
    exchangeable: Collection[int] = (),
) -> tuple[NdSignature, ...]:
    """All signatures of a call on a mesh.

    Axes are taken in mesh order. The signatures of axis k are those of the *local* call left by the
    axes before it, so a reshape may split one dim over two axes although neither could alone.

    Args:
        call: The logical call.
        sizes: Number of devices of each mesh axis.
        rule: The signatures of a call on one axis.
        localize: The parameters of the local call.
        only: Axes on which no other signature is wanted.
        exchangeable: Axes of equal size. Of signatures that differ in the order of these axes only,
            one is enough.
    """
    only = only or {}
    numbers: dict[Signature, int] = {}
    found: dict[tuple[int, ...], None] = {}
    known: dict[tuple[int, Any], dict[int, Call]] = {}

    def options(local: Call, axis: int) -> dict[int, Call]:
        """Numbers of the signatures on an axis, each with the call that it leaves to one device."""
        key = (axis, local if localize is keep_params else id(local))  # equal types, equal call
        if key not in known:
            whole, wanted = replicated(local), only.get(axis)
            alone = sizes[axis] == 1 or wanted == whole
            allowed = (whole,) if alone else (whole, *rule(local))
            # Nobody asks what the call of one device is.
            ends = axis == len(sizes) - 1 and localize is keep_params
            known[key] = {
                numbers.setdefault(signature, len(numbers)): inner
                for signature in dict.fromkeys(allowed)
                if wanted in (None, signature)
                and (inner := _call_left(local, signature, sizes[axis], None if ends else localize))
            }
        return known[key]

    def extend(local: Call, chosen: tuple[int, ...], before: dict[int, Call]) -> None:
        axis = len(chosen)
        if axis == len(sizes):
            found[chosen] = None
            return
        here = options(local, axis)
        pair = axis in exchangeable and axis - 1 in exchangeable
        for number, inner in here.items():
            # In the other order the two leave the same local call, and are found there.
            swapped = before.get(number) if pair and number < chosen[-1] else None
            if swapped is None or chosen[-1] not in options(swapped, axis):
                extend(inner, (*chosen, number), here)

    extend(call, (), {})
    signatures = list(numbers)
    return tuple(_transpose(call, [signatures[k] for k in each]) for each in found)


def _call_left(
    local: Call, signature: Signature, size: int, localize: Localize | None
) -> Call | None:
    if localize is None:
        return local if _divides(local, signature, size) else None
    return localize_call(local, signature, size, localize)


def _transpose(call: Call, chosen: Sequence[Signature]) -> NdSignature:
    return NdSignature(
        tuple(tuple(s.inputs[k] for s in chosen) for k in range(len(call.inputs))),
        tuple(tuple(s.outputs[k] for s in chosen) for k in range(len(call.outputs))),
    )
