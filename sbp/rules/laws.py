"""Laws that many rules share: which words an elementwise or a data-moving call lets through.

In: a `Call`. Out: signatures on one mesh axis. Splitting follows from index notation (`factors`);
what is here is what index notation cannot say: how sums and orders pass.

Sum-partial words are proved over finite numbers: `0 * inf` is NaN, so an infinity in the whole
operand of a product whose other operand is partial gives NaN where one device gives infinity.
"""

from collections.abc import Iterator

from sbp.algebra import P_MAX, P_MIN, ArrayType, B, P, Partial, Split, Word
from sbp.factors import (
    Call,
    Factor,
    Signature,
    has_sum,
    is_bool,
    is_integer,
    linear,
    split_signatures,
)

ORDERS = (P_MAX, P_MIN)


def is_float(array: ArrayType) -> bool:
    """Whether the elements are real floats."""
    return str(array.dtype).startswith(("float", "bfloat"))


def is_ordered(array: ArrayType) -> bool:
    """Whether the elements have a maximum: booleans, integers, floats."""
    return is_bool(array) or is_integer(array) or is_float(array)


def opposite(word: Partial) -> Partial:
    """P.min for P.max and the other way round."""
    return P_MIN if word == P_MAX else P_MAX


def elementwise_factors(call: Call) -> Iterator[Factor]:
    """One factor for each dim; a scalar operand lacks it, and so does a repeated dim of size 1."""
    result = call.outputs[0]
    for dim, size in enumerate(result.shape):
        yield Factor(
            tuple(
                dim if array.ndim == result.ndim and array.shape[dim] == size else None
                for array in call.inputs
            ),
            (dim,) * len(call.outputs),
        )


def elementwise(call: Call) -> Iterator[Signature]:
    """`S(d), .. -> S(d)` for each dim d."""
    return split_signatures(elementwise_factors(call))


def partial_in(call: Call, operands: tuple[int, ...], word: Word, result: Word) -> Signature:
    """The signature with `word` in the given operands, B in the others, `result` in all results."""
    return Signature(
        tuple(word if k in operands else B for k in range(len(call.inputs))),
        (result,) * len(call.outputs),
    )


def order(call: Call, *operands: int, words: tuple[Partial, ...] = ORDERS) -> Iterator[Signature]:
    """P.max to P.max and P.min to P.min, for a call that does not decrease in `operands`."""
    involved = [call.inputs[k] for k in operands] + list(call.outputs)
    if all(map(is_ordered, involved)):
        for word in words:
            yield partial_in(call, operands, word, word)


def swapped_order(call: Call, *operands: int) -> Iterator[Signature]:
    """P.max to P.min and P.min to P.max, for a call that does not increase in `operands`."""
    involved = [call.inputs[k] for k in operands] + list(call.outputs)
    if all(map(is_ordered, involved)):
        for word in ORDERS:
            yield partial_in(call, operands, word, opposite(word))


def moves(call: Call, *operands: int) -> Iterator[Signature]:
    """Every partial word, for a call whose results are elements of `operands`, moved."""
    yield from linear(call, *operands)
    yield from order(call, *operands)


def unmixed(call: Call, mixed: set[int]) -> Iterator[Signature]:
    """`S(d), .. -> S(d)` for the dims that an operation on equal-ranked arrays does not mix."""
    ndim = max((array.ndim for array in call.inputs), default=0)
    for dim in range(ndim):
        if dim not in mixed:
            yield Signature(
                tuple(Split(dim) if array.ndim == ndim else B for array in call.inputs),
                (Split(dim),) * len(call.outputs),
            )


def sum_word(array: ArrayType) -> Partial | None:
    """The word under which disjoint contributions, zero elsewhere, make up an array.

    P for numbers, P.max (or) for booleans, none for random keys.
    """
    if has_sum(array):
        return P
    return P_MAX if is_bool(array) else None
