"""Words and their notation."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp.algebra import (
    P_MAX,
    P_MIN,
    ArrayType,
    B,
    NdSbp,
    P,
    Partial,
    Split,
    format_dtype,
    format_type,
    local_shape,
    local_type,
    parse_word,
)
from sbp.errors import SbpError, SignatureError

words = st.one_of(st.sampled_from([B, P, P_MAX, P_MIN]), st.integers(0, 9).map(Split))
ndsbps = st.dictionaries(st.sampled_from(["dp", "fsdp", "tp", "_x1"]), words).map(NdSbp)


@given(words)
def test_a_word_reads_back(word):
    assert parse_word(str(word)) == word
    assert parse_word(f"  {word!r} ") == word


@given(ndsbps)
def test_words_by_axis_read_back(ndsbp):
    assert NdSbp.parse(repr(ndsbp)) == ndsbp
    assert NdSbp.parse(repr(ndsbp)[1:-1]) == ndsbp
    assert hash(NdSbp.parse(repr(ndsbp))) == hash(ndsbp)


def test_order_of_names_does_not_matter():
    one, other = NdSbp(dp=Split(0), tp=P), NdSbp.parse("tp: P, dp: S(0)")
    assert one == other
    assert hash(one) == hash(other)
    assert one != NdSbp(dp=Split(0))
    assert one != {"dp": Split(0), "tp": P}


def test_kinds_of_partial():
    assert Partial() == P
    assert (P.max, P.min) == (P_MAX, P_MIN)
    assert parse_word("P.sum") == P
    assert repr(NdSbp(a=P_MAX, b=Split(2))) == "(a: P.max, b: S(2))"


def test_words_in_mesh_order():
    ndsbp = NdSbp(tp=P, dp=Split(1))
    assert ndsbp.on(("dp", "pp", "tp")) == (Split(1), B, P)
    assert NdSbp.of(("dp", "tp"), (Split(1), P)) == ndsbp
    assert dict(ndsbp) == {"tp": P, "dp": Split(1)}
    assert len(ndsbp) == 2


REFUSED = {
    "s[0]": "'s[0]' is not a word.\n  A word is S(dim), B, P, P.max or P.min.\nFix: S(0)",
    "p.MAX": "'p.MAX' is not a word.\n  A word is S(dim), B, P, P.max or P.min.\nFix: P.max",
    "P.mean": (
        "'P.mean' is not a word.\n"
        "  A word is S(dim), B, P, P.max or P.min.\n"
        "Fix: write for example 'dp: S(0), tp: B'"
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_wrong_word_is_refused(text):
    with pytest.raises(SignatureError) as error:
        parse_word(text)
    assert str(error.value) == REFUSED[text]


def test_wrong_text_is_refused():
    with pytest.raises(SignatureError) as error:
        NdSbp.parse("dp S(0), tp: B")
    assert str(error.value) == (
        "cannot read 'dp S(0)' in 'dp S(0), tp: B'.\n"
        "  Words are written 'axis: word', separated by commas.\n"
        "Fix: write for example 'dp: S(0), tp: B'"
    )
    with pytest.raises(SignatureError) as error:
        NdSbp.parse("dp: B, dp: P")
    assert str(error.value) == (
        "axis 'dp' is given twice in 'dp: B, dp: P'.\nFix: name each axis once"
    )


def test_what_is_no_word_is_refused():
    with pytest.raises(SignatureError) as error:
        NdSbp(dp="S(0)")  # type: ignore[arg-type]
    assert str(error.value) == (
        "the word of axis 'dp' is 'S(0)'.\n"
        "  A word is sbp.S(dim), sbp.B, sbp.P, sbp.P.max or sbp.P.min.\n"
        "Fix: NdSbp(dp=sbp.S(0)), or text: NdSbp.parse('dp: S(0)')"
    )
    with pytest.raises(SignatureError, match="given twice"):
        NdSbp({"dp": B}, dp=B)


def test_an_error_has_four_parts():
    error = SbpError("it is wrong", where="here", why="a law\nof two lines", how=("a", "b"))
    assert str(error) == ("it is wrong (here).\n  a law\n  of two lines\nFix one of: a | b")
    assert isinstance(error, ValueError)
    assert str(SbpError("it is wrong")) == "it is wrong."


def test_local_shapes():
    assert local_shape((8, 6), (Split(0), Split(0)), (2, 4)) == (1, 6)
    assert local_shape((8, 6), (Split(1), P), (4, 2)) is None
    assert local_shape((8,), (Split(1),), (2,)) is None
    assert local_shape((0, 6), (Split(0), B), (4, 2)) == (0, 6)
    array = ArrayType((8, 6), np.dtype("float32"))
    assert local_type(array, (Split(0), Split(1)), (4, 2)) == ArrayType((2, 3), array.dtype)
    assert (array.ndim, array.size, array.nbytes) == (2, 48, 192)


def test_arrays_print_as_jax_prints_types():
    array = ArrayType((8, 16), np.dtype("float32"))
    axes = ("dp", "tp")
    assert format_type(array) == "f32[8,16]"
    assert format_type(array, axes, (Split(0), P)) == "f32[8@dp,16]{U:tp}"
    assert format_type(array, axes, (Split(1), Split(1))) == "f32[8,16@(dp,tp)]"
    assert format_type(array, axes, (P, P)) == "f32[8,16]{U:dp,tp}"
    assert format_type(array, axes, (P_MAX, P_MIN)) == "f32[8,16]{Umax:dp}{Umin:tp}"
    names = [np.dtype(name) for name in ("int8", "uint32", "complex64", "bool", ml_dtypes.bfloat16)]
    assert list(map(format_dtype, names)) == ["i8", "u32", "c64", "bool", "bf16"]
