"""Matrix decompositions and transforms: only dims of the batch are split."""

from collections.abc import Iterator

from sbp.algebra import B, Split
from sbp.factors import Call, Signature, linear
from sbp.rules.rule import Rule

# Flops of a decomposition of an n x n matrix, in units of n^3; orders of magnitude are enough.
_CUBIC = 4


def batched(call: Call, num_mixed: int = 2) -> Iterator[Signature]:
    """Signatures of a decomposition: `S(d), .. -> S(d), ..` for the dims of the batch."""
    for dim in range(call.inputs[0].ndim - num_mixed):
        yield Signature(
            (Split(dim),) * len(call.inputs),
            (Split(dim),) * len(call.outputs),
        )


def pivots(call: Call) -> Iterator[Signature]:
    """Signatures of lu_pivots_to_permutation: `S(d) -> S(d)` for the dims of the batch."""
    return batched(call, 1)


def fft(call: Call) -> Iterator[Signature]:
    """Signatures of fft: `S(d) -> S(d)` for the dims not transformed, `P -> P`."""
    yield from batched(call, len(call.params["fft_lengths"]))
    yield from linear(call, 0)


def triangular_solve(call: Call) -> Iterator[Signature]:
    """Signatures of triangular_solve, matrix and right-hand side.

    - `S(d), S(d) -> S(d)` for the dims of the batch
    - `B, S(d) -> S(d)` for the dim that counts right-hand sides
    - `B, P -> P`
    """
    yield from batched(call)
    side = call.inputs[1].ndim - (1 if call.params["left_side"] else 2)
    yield Signature((B, Split(side)), (Split(side),))
    yield from linear(call, 1)


def cubic_flops(call: Call) -> int:
    """About a decomposition: a multiple of the matrix's elements times its rows."""
    matrix = call.inputs[0]
    return _CUBIC * matrix.size * matrix.shape[-2]


def transform_flops(call: Call) -> int:
    """About a fast Fourier transform: 5 n log2 n."""
    lengths = call.params["fft_lengths"]
    return 5 * call.inputs[0].size * sum(max(n, 1).bit_length() for n in lengths)


RULES: dict[str, Rule] = {
    **{
        name: Rule(batched, flops=cubic_flops)
        for name in ("cholesky", "eigh", "eig", "svd", "qr", "lu")
    },
    "triangular_solve": Rule(triangular_solve, flops=cubic_flops),
    "lu_pivots_to_permutation": Rule(pivots),
    "fft": Rule(fft, flops=transform_flops),
}
