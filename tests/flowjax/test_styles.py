"""Styles as words: which axes split what."""

import pytest

from flowjax.styles import Placement, style_words
from sbp.errors import SbpError

TABLE = {"up": Placement(fsdp=0, tp=1), "gain": Placement(fsdp=0)}


@pytest.mark.parametrize(
    ("style", "words"),
    [
        ("free", {}),
        ("dp", {"x": "dp: S(0), tp: S(0)", "*.up": "dp: B, tp: B", "*.gain": "dp: B, tp: B"}),
        ("megatron", {"x": "dp: S(0), tp: B", "*.up": "dp: B, tp: S(1)", "*.gain": "dp: B, tp: B"}),
        (
            "fsdp",
            {
                "x": "dp: S(0), tp: S(0)",
                "*.up": "dp: S(0), tp: S(0)",
                "*.gain": "dp: S(0), tp: S(0)",
            },
        ),
    ],
)
def test_style_says_every_axis_of_every_array(style, words):
    assert style_words(style, ("dp", "tp"), batch="x", parameters=TABLE) == words


def test_unknown_style_is_refused():
    with pytest.raises(SbpError) as caught:
        style_words("zero", ("dp",), batch="x", parameters=TABLE)
    assert str(caught.value) == (
        "there is no style 'zero' (style_words).\n"
        "  A style is a known way to lay out batch and parameters.\n"
        "Fix one of: 'free' | 'dp' | 'megatron' | 'fsdp'"
    )


def test_megatron_needs_its_axis():
    with pytest.raises(SbpError) as caught:
        style_words("megatron", ("dp", "ep"), batch="x", parameters=TABLE)
    assert str(caught.value) == (
        "style 'megatron' on a mesh with axes dp, ep (style_words).\n"
        "  The style splits parameters over the axis 'tp'.\n"
        "Fix one of: a mesh with an axis 'tp' | style 'dp' or 'fsdp'"
    )
