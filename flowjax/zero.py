"""ZeRO and FSDP as pins: which of parameters and optimizer state are split over an axis of data.

In: a mesh axis, a stage. Out: words for `in_sbp` of `sbp.parallelize`, nothing more; what is
gathered and reduced for them, and when, the planner finds.

Source:
    Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, 2020.
"""

import math
from collections.abc import Mapping
from typing import Any

from sbp.algebra import ArrayType, B, NdSbp, Split
from sbp.api.requests import WordRule
from sbp.errors import SbpError

STAGES = (0, 1, 2, 3)


def fsdp(*axes: str) -> WordRule:
    """Words that split an array over mesh axes, along its largest dim that they divide.

    An array without such a dim, such as a scalar, is whole on them. Other axes stay free.

    Args:
        *axes: Names of mesh axes; `dp` if none are named. Those that the mesh lacks are an error.

    Returns:
        A rule that stands wherever words do: `in_sbp={"state": flowjax.fsdp("dp")}`.
    """
    names = axes or ("dp",)

    def words(array: ArrayType, sizes: Mapping[str, int]) -> NdSbp:
        count = math.prod(sizes.get(axis, 1) for axis in names)
        fits = [dim for dim, size in enumerate(array.shape) if size and size % count == 0]
        largest = max(fits, key=lambda dim: array.shape[dim], default=None)
        return NdSbp(dict.fromkeys(names, B if largest is None else Split(largest)))

    return WordRule(f"fsdp({', '.join(map(repr, names))})", words)


def zero(
    stage: int, axis: str = "dp", *, params: str = "*.params.*", opt_state: str = "*.opt_state.*"
) -> dict[str, Any]:
    """Pins of a stage of ZeRO: optimizer state split from stage 1 on, parameters in stage 3.

    Stages 1 and 2 differ in where gradients lie between the backward pass and the update. Both are
    inside of a step, where the planner reduces them into the words that the update wants.

    Args:
        stage: 0 to 3; 0 is data parallelism.
        axis: The mesh axis of data.
        params: Path pattern of the parameters.
        opt_state: Path pattern of the optimizer's state.

    Returns:
        Path pattern -> words: `in_sbp={"batch": "dp: S(0)", **flowjax.zero(1)}`.

    Raises:
        SbpError: There is no such stage.
    """
    if stage not in STAGES or isinstance(stage, bool):
        raise SbpError(
            f"zero({stage!r}) is no stage of ZeRO",
            why="Stage 1 splits the optimizer state, 2 gradients too, 3 parameters too; 0 nothing.",
            how=[f"zero({known})" for known in STAGES],
        )
    split, whole = fsdp(axis), NdSbp({axis: B})
    # Of several patterns the first that fits counts: states repeat the names of parameters.
    return {opt_state: split if stage else whole, params: split if stage == 3 else whole}
