"""What we know of one primitive: a `Rule`.

A rule states the signatures of a call on one mesh axis, the parameters of the local call, how to
run it where running the primitive itself on local arrays is not enough, and what it costs.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from sbp.algebra import Split, Words
from sbp.factors import Call, Localize, NdSignature, OneAxisRule, keep_params, localize_call


@dataclass(frozen=True, slots=True)
class LocalRun:
    """One device's share of a call.

    Attributes:
        call: The logical call.
        local: The call on local arrays; its params are already localized.
        signature: Words of operands and results.
        sizes: Number of devices of each mesh axis.
        axis_index: This device's position on a mesh axis, by axis number: traced inside a lowered
            program, a plain int in the oracle.
    """

    call: Call
    local: Call
    signature: NdSignature
    sizes: tuple[int, ...]
    axis_index: Callable[[int], Any]

    def block_index(self, words: Words, dim: int) -> Any:
        """Number of this device's block of `dim` under `words`; 0 if the dim is whole."""
        index: Any = 0
        for axis, (word, size) in enumerate(zip(words, self.sizes, strict=True)):
            if word == Split(dim):
                index = index * size + self.axis_index(axis)
        return index

    def num_blocks(self, words: Words, dim: int) -> int:
        """Into how many blocks `words` split `dim`."""
        return math.prod(
            size for word, size in zip(words, self.sizes, strict=True) if word == Split(dim)
        )


Run = Callable[[LocalRun, Sequence[Any]], Sequence[Any]]


def num_output_elements(call: Call) -> int:
    """Flops of an elementwise call: one for each element of its results."""
    return sum(array.size for array in call.outputs)


def no_flops(call: Call) -> int:
    """Flops of a call that only moves data."""
    return 0


@dataclass(frozen=True, slots=True)
class Rule:
    """Everything the compiler knows of one primitive.

    Attributes:
        signatures: Signatures of a call on one axis, besides all-B, which always holds. Those whose
            split dims do not divide are dropped by the caller.
        localize: Parameters of the local call, from those of the call and the local types.
        run: Runs the call on local arrays; None binds the primitive with the local parameters.
        flops: Floating-point operations of a call, logical or local.
        fusible: XLA fuses it with its neighbours: it reads and writes memory only where a chain of
            fusible calls begins or ends.
        aspect: What of a call's parameters its signatures and costs depend on; None says all.
    """

    signatures: OneAxisRule
    localize: Localize = keep_params
    run: Run | None = None
    flops: Callable[[Call], int] = num_output_elements
    fusible: bool = False
    aspect: Callable[[Call], Hashable] | None = None


def local_call(call: Call, signature: NdSignature, sizes: Sequence[int], rule: Rule) -> Call:
    """The call each device makes under a signature on a whole mesh."""
    local = call
    for axis, size in enumerate(sizes):
        inner = localize_call(local, signature.axis(axis), size, rule.localize)
        assert inner is not None, (call, signature)
        local = inner
    return local
