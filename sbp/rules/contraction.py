"""Products summed over an index: dot_general and convolution."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from sbp.algebra import ArrayType, P
from sbp.factors import Call, Factor, Signature, has_sum, is_inexact, linear, split_signatures
from sbp.rules.arithmetic import keeps_sum
from sbp.rules.rule import Rule


def _sums_products(call: Call) -> bool:
    """Whether sums of products over blocks add up: not if each sum is rounded to fewer bits."""
    result = call.outputs[0]
    rounded = is_inexact(result) and not all(
        keeps_sum(operand, result) for operand in call.inputs if is_inexact(operand)
    )
    return has_sum(result) and not rounded


def _linear_operands(call: Call) -> Iterator[Signature]:
    """`P, B -> P` and `B, P -> P` where sums survive the change of dtype to the result."""
    for operand in (0, 1):
        if keeps_sum(call.inputs[operand], call.outputs[0]):
            yield from linear(call, operand)


def dot_factors(call: Call) -> Iterator[Factor]:
    """Factors of dot_general: batch dims, free dims of either operand, contracted dims."""
    (left_contract, right_contract), (left_batch, right_batch) = call.params["dimension_numbers"]
    left, right = call.inputs
    dims = iter(range(call.outputs[0].ndim))
    for i, j in zip(left_batch, right_batch, strict=True):
        yield Factor((i, j), (next(dims),))
    for i in range(left.ndim):
        if i not in left_contract and i not in left_batch:
            yield Factor((i, None), (next(dims),))
    for j in range(right.ndim):
        if j not in right_contract and j not in right_batch:
            yield Factor((None, j), (next(dims),))
    reduction = P if _sums_products(call) else None
    for i, j in zip(left_contract, right_contract, strict=True):
        yield Factor((i, j), (None,), reduction)


def dot_general(call: Call) -> Iterator[Signature]:
    """Signatures of dot_general, here of a matrix product `i k, k j -> i j`.

    - `S(0), B -> S(0)`, `B, S(1) -> S(1)`, batch dims `S(b), S(b) -> S(b)`
    - `S(1), S(0) -> P`, unless the result is rounded to fewer bits than the operands have
    - `P, B -> P`, `B, P -> P`; not of integers that get more bits in the result
    """
    yield from split_signatures(dot_factors(call))
    yield from _linear_operands(call)


def dot_flops(call: Call) -> int:
    """Two for each product: 2 m n k times the batch."""
    (contract, _), _ = call.params["dimension_numbers"]
    return 2 * call.outputs[0].size * math.prod(call.inputs[0].shape[dim] for dim in contract)


def conv_factors(call: Call) -> Iterator[Factor]:
    """Factors of conv_general_dilated: batch, features, groups, and spatial dims left alone."""
    params = call.params
    numbers = params["dimension_numbers"]
    (batch, feature, *spatial), (out, depth, *window), (out_batch, out_feature, *out_spatial) = (
        numbers.lhs_spec,
        numbers.rhs_spec,
        numbers.out_spec,
    )
    feature_groups, batch_groups = params["feature_group_count"], params["batch_group_count"]
    if batch_groups == 1:
        yield Factor((batch, None), (out_batch,))
    else:
        yield Factor((batch, out), (out_feature,))
    if feature_groups > 1:
        yield Factor((feature, out), (out_feature,))
    else:
        if batch_groups == 1:
            yield Factor((None, out), (out_feature,))
        yield Factor((feature, depth), (None,), P if _sums_products(call) else None)
    for k, dim in enumerate(spatial):
        alone = (
            call.inputs[1].shape[window[k]] == params["window_strides"][k] == 1
            and tuple(params["padding"][k]) == (0, 0)
            and params["lhs_dilation"][k] == 1
        )
        if alone:
            yield Factor((dim, None), (out_spatial[k],))


def conv_general_dilated(call: Call) -> Iterator[Signature]:
    """Signatures of conv_general_dilated, by the names of the dims.

    - `S(batch), B -> S(batch)`; `B, S(out feature) -> S(feature)`
    - `S(feature), S(in feature) -> P`, with the condition of dot_general
    - grouped: `S(feature), S(out feature) -> S(feature)`, whole groups on each device; with
      batch groups `S(batch), S(out feature) -> S(feature)`
    - a spatial dim whose window is 1, without stride, padding or dilation: `S(dim), B -> S(dim)`
    - `P, B -> P`, `B, P -> P`, with the condition of dot_general
    """
    yield from split_signatures(conv_factors(call))
    yield from _linear_operands(call)


def conv_local(
    call: Call, inputs: tuple[ArrayType, ...], outputs: tuple[ArrayType, ...]
) -> Mapping[str, Any] | None:
    """The local group counts; None where a group would lie on two devices."""
    params = dict(call.params)
    numbers = params["dimension_numbers"]
    for name, dim in (
        ("feature_group_count", numbers.lhs_spec[1]),
        ("batch_group_count", numbers.lhs_spec[0]),
    ):
        count, whole, local = params[name], call.inputs[0].shape[dim], inputs[0].shape[dim]
        if count > 1 and local != whole:
            parts = whole // local
            if count % parts:
                return None
            params[name] = count // parts
    return params


def conv_flops(call: Call) -> int:
    """Two for each product of a weight and an element under the window."""
    weights = call.inputs[1]
    out = weights.shape[call.params["dimension_numbers"].rhs_spec[0]]
    return 2 * call.outputs[0].size * weights.size // max(out, 1)


RULES: dict[str, Rule] = {
    "dot_general": Rule(dot_general, flops=dot_flops),
    "conv_general_dilated": Rule(conv_general_dilated, localize=conv_local, flops=conv_flops),
}
