"""Reductions over dims, and windowed reductions."""

from collections.abc import Callable, Iterator

from sbp.algebra import P_MAX, P_MIN, B, P, Partial, Split
from sbp.factors import Call, Factor, Signature, has_sum, is_bool, linear, split_signatures
from sbp.rules.laws import is_ordered, order, unmixed
from sbp.rules.rule import Rule


def reduction_factors(
    call: Call, axes: tuple[int, ...], reduction: Partial | None
) -> Iterator[Factor]:
    """Factors of a reduction of equal-shaped operands (scalars beside them: initial values)."""
    ndim = call.inputs[0].ndim
    dims = iter(range(ndim))
    for dim in range(ndim):
        inputs = tuple(dim if array.ndim == ndim else None for array in call.inputs)
        result = None if dim in axes else next(dims)
        yield Factor(inputs, (result,) * len(call.outputs), reduction)


def reduce_sum(call: Call) -> Iterator[Signature]:
    """Signatures of reduce_sum.

    - `S(d) -> S(d')` for dims that stay, `S(d) -> P` for reduced dims
    - `P -> P`
    """
    reduction = P if has_sum(call.outputs[0]) else None
    yield from split_signatures(reduction_factors(call, call.params["axes"], reduction))
    yield from linear(call, 0)


def _extremum(call: Call, word: Partial) -> Iterator[Signature]:
    reduction = word if is_ordered(call.outputs[0]) else None
    yield from split_signatures(reduction_factors(call, call.params["axes"], reduction))
    yield from order(call, 0, words=(word,))


def reduce_max(call: Call) -> Iterator[Signature]:
    """Signatures of reduce_max.

    - `S(d) -> S(d')` for dims that stay, `S(d) -> P.max` for reduced dims
    - `P.max -> P.max`
    """
    return _extremum(call, P_MAX)


def reduce_min(call: Call) -> Iterator[Signature]:
    """Signatures of reduce_min.

    - `S(d) -> S(d')` for dims that stay, `S(d) -> P.min` for reduced dims
    - `P.min -> P.min`
    """
    return _extremum(call, P_MIN)


def stays(call: Call) -> Iterator[Signature]:
    """Signatures of reduce_prod, reduce_xor, argmax, argmin: `S(d) -> S(d')` for dims that stay."""
    return split_signatures(reduction_factors(call, call.params["axes"], None))


def reduce_or(call: Call) -> Iterator[Signature]:
    """Signatures of reduce_or: as reduce_max for booleans; for integers only dims that stay."""
    return reduce_max(call) if is_bool(call.outputs[0]) else stays(call)


def reduce_and(call: Call) -> Iterator[Signature]:
    """Signatures of reduce_and: as reduce_min for booleans; for integers only dims that stay."""
    return reduce_min(call) if is_bool(call.outputs[0]) else stays(call)


def reduce(call: Call) -> Iterator[Signature]:
    """Signatures of reduce with any function: `S(d), .. -> S(d')` for dims that stay."""
    count = len(call.inputs) // 2
    operands = call.inputs[:count]
    dims = iter(range(operands[0].ndim))
    for dim in range(operands[0].ndim):
        if dim not in call.params["dimensions"]:
            words = (Split(dim),) * count + (B,) * count
            yield Signature(words, (Split(next(dims)),) * len(call.outputs))


def window_mixes(call: Call) -> set[int]:
    """Dims of a windowed reduction on which the window reaches or steps over several elements."""
    params = call.params
    ndim = len(params["window_dimensions"])
    dilation = params.get("base_dilation") or (1,) * ndim
    return {
        dim
        for dim in range(ndim)
        if not (
            params["window_dimensions"][dim] == params["window_strides"][dim] == 1
            and tuple(params["padding"][dim]) == (0, 0)
            and dilation[dim] == 1
        )
    }


def window(call: Call) -> Iterator[Signature]:
    """Signatures of a windowed reduction: `S(d), .. -> S(d)` on dims with a window of 1."""
    return unmixed(call, window_mixes(call))


def window_sum(call: Call) -> Iterator[Signature]:
    """Signatures of reduce_window_sum: those of a window, and `P -> P`."""
    yield from window(call)
    yield from linear(call, 0)


def window_max(call: Call) -> Iterator[Signature]:
    """Signatures of reduce_window_max: those of a window, and `P.max -> P.max`."""
    yield from window(call)
    yield from order(call, 0, words=(P_MAX,))


def window_min(call: Call) -> Iterator[Signature]:
    """Signatures of reduce_window_min: those of a window, and `P.min -> P.min`."""
    yield from window(call)
    yield from order(call, 0, words=(P_MIN,))


def first_summed(call: Call) -> Iterator[Signature]:
    """Signatures of select_and_scatter_add and select_and_gather_add.

    - `S(d), S(d) -> S(d)` on dims with a window of 1
    - `P, B -> P`: the second operand chooses, the first is added up or picked
    """
    yield from window(call)
    yield from linear(call, 0)


def num_input_elements(call: Call) -> int:
    """Flops of a reduction: one for each element of its operands."""
    return sum(array.size for array in call.inputs)


def _rule(signatures: Callable[[Call], Iterator[Signature]]) -> Rule:
    return Rule(signatures, flops=num_input_elements)


RULES: dict[str, Rule] = {
    "reduce_sum": _rule(reduce_sum),
    "reduce_max": _rule(reduce_max),
    "reduce_min": _rule(reduce_min),
    "reduce_prod": _rule(stays),
    "reduce_xor": _rule(stays),
    "argmax": _rule(stays),
    "argmin": _rule(stays),
    "reduce_or": _rule(reduce_or),
    "reduce_and": _rule(reduce_and),
    "reduce": _rule(reduce),
    "reduce_window": _rule(window),
    "reduce_window_sum": _rule(window_sum),
    "reduce_window_max": _rule(window_max),
    "reduce_window_min": _rule(window_min),
    "select_and_scatter_add": _rule(first_summed),
    "select_and_gather_add": _rule(first_summed),
}
