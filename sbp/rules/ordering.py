"""Operations along one dim: cumulative sums and their kind, sort, top_k."""

from collections.abc import Iterator

from sbp.algebra import P_MAX, P_MIN, Partial
from sbp.factors import Call, Signature, linear
from sbp.rules.laws import order, unmixed
from sbp.rules.reduction import num_input_elements
from sbp.rules.rule import Rule, no_flops


def cumulative(call: Call) -> Iterator[Signature]:
    """Signatures of cumprod and cumlogsumexp: `S(d) -> S(d)` for the other dims."""
    return unmixed(call, {call.params["axis"] % max(call.inputs[0].ndim, 1)})


def cumsum(call: Call) -> Iterator[Signature]:
    """Signatures of cumsum: `S(d) -> S(d)` for the other dims, `P -> P`."""
    yield from cumulative(call)
    yield from linear(call, 0)


def _extremum(call: Call, word: Partial) -> Iterator[Signature]:
    yield from cumulative(call)
    yield from order(call, 0, words=(word,))


def cummax(call: Call) -> Iterator[Signature]:
    """Signatures of cummax: `S(d) -> S(d)` for the other dims, `P.max -> P.max`."""
    return _extremum(call, P_MAX)


def cummin(call: Call) -> Iterator[Signature]:
    """Signatures of cummin: `S(d) -> S(d)` for the other dims, `P.min -> P.min`."""
    return _extremum(call, P_MIN)


def sort(call: Call) -> Iterator[Signature]:
    """Signatures of sort: `S(d), .. -> S(d), ..` for the other dims."""
    return unmixed(call, {call.params["dimension"] % max(call.inputs[0].ndim, 1)})


def top_k(call: Call) -> Iterator[Signature]:
    """Signatures of top_k: `S(d) -> S(d), S(d)` for the other dims."""
    ndim = call.inputs[0].ndim
    return unmixed(call, {call.params.get("axis", -1) % ndim})


RULES: dict[str, Rule] = {
    "cumsum": Rule(cumsum, flops=num_input_elements),
    "cumprod": Rule(cumulative, flops=num_input_elements),
    "cumlogsumexp": Rule(cumulative, flops=num_input_elements),
    "cummax": Rule(cummax, flops=num_input_elements),
    "cummin": Rule(cummin, flops=num_input_elements),
    "sort": Rule(sort, flops=no_flops),
    "top_k": Rule(top_k, flops=no_flops),
}
