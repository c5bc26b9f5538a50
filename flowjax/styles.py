"""Well-known parallel styles as SBP words: from a table of splittable dims to `in_sbp` patterns.

In: for every parameter of a model, the dim that tensor parallelism splits and the dim that fully
sharded data parallelism splits. Out: the `{path pattern: words}` that `sbp.parallelize` takes. The
mesh axis called `tp` is the tensor axis; every other axis of the mesh is a data axis.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sbp.errors import SbpError

STYLES = ("free", "dp", "megatron", "fsdp")


@dataclass(frozen=True, slots=True)
class Placement:
    """The dims of one parameter that the styles split.

    Attributes:
        fsdp: Dim split over all axes by style `fsdp`.
        tp: Dim split over the axis `tp` by style `megatron`; None keeps the parameter whole.
    """

    fsdp: int
    tp: int | None = None


def style_words(
    style: str,
    axis_names: Sequence[str],
    *,
    batch: str,
    parameters: Mapping[str, Placement],
) -> dict[str, str]:
    """Words of the batch and of every parameter in a style.

    Args:
        style: One of `STYLES`. `free` says nothing: the planner chooses everything. `dp` splits
            the batch over all axes and keeps parameters whole. `megatron` splits the batch over the
            data axes and parameters over `tp`. `fsdp` splits both over all axes.
        axis_names: Mesh axes, outer first.
        batch: Path pattern of the batch arrays; their dim 0 is the batch dim.
        parameters: Placement by dotted path inside the parameter tree. Its patterns, `*.path`, meet
            optimizer moments too: they repeat the parameters' paths.

    Returns:
        Path pattern -> words in text form, for example `{"*.blocks.wup": "dp: B, tp: S(2)"}`.

    Raises:
        SbpError: `style` is not one of `STYLES`, or is `megatron` on a mesh without `tp`.
    """
    if style not in STYLES:
        raise SbpError(
            f"there is no style {style!r}",
            where="style_words",
            why="A style is a known way to lay out batch and parameters.",
            how=[repr(known) for known in STYLES],
        )
    if style == "megatron" and "tp" not in axis_names:
        raise SbpError(
            f"style 'megatron' on a mesh with axes {', '.join(axis_names)}",
            where="style_words",
            why="The style splits parameters over the axis 'tp'.",
            how=("a mesh with an axis 'tp'", "style 'dp' or 'fsdp'"),
        )
    if style == "free":
        return {}
    batch_axes = [name for name in axis_names if style != "megatron" or name != "tp"]
    words = {batch: _text(axis_names, dict.fromkeys(batch_axes, 0))}
    for path, placement in parameters.items():
        split: dict[str, int] = {}
        if style == "fsdp":
            split = dict.fromkeys(axis_names, placement.fsdp)
        elif style == "megatron" and placement.tp is not None:
            split = {"tp": placement.tp}
        words[f"*.{path}"] = _text(axis_names, split)
    return words


def _text(axis_names: Sequence[str], split: Mapping[str, int]) -> str:
    words = (f"{name}: S({split[name]})" if name in split else f"{name}: B" for name in axis_names)
    return ", ".join(words)
