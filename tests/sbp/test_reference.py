"""The meaning of words: scatter, gather, and what they refuse."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp.algebra import P_MAX, P_MIN, B, NdSbp, P, Split, local_shape
from sbp.errors import SignatureError
from sbp.reference import gather, same, scatter

DTYPES = ("int8", "uint8", "int32", "uint32", "float16", "float32", "bool", "complex64", "bfloat16")
MESHES = ({"a": 2}, {"a": 4}, {"a": 2, "b": 2}, {"a": 2, "b": 4}, {"a": 2, "b": 2, "c": 2})
WORDS = (B, Split(0), Split(1), P, P_MAX, P_MIN)


def make(rng, dtype, shape):
    """An array with everything its dtype has."""
    dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind == "c":
        return (rng.normal(size=shape) + 1j * rng.integers(-9, 9, shape)).astype(dtype)
    pool = np.array([np.nan, np.inf, -np.inf, 0.3, -2.5, 1e4, 7.0, -0.0])
    return rng.choice(pool, shape).astype(dtype)


def is_legal(word, dtype):
    """Whether an array of the dtype can have the word."""
    if word == P:
        return dtype != "bool"
    return word not in (P_MAX, P_MIN) or dtype != "complex64"


@given(st.data(), st.sampled_from(DTYPES), st.sampled_from(MESHES), st.integers(0, 2**32 - 1))
def test_scatter_then_gather_is_identity(data, dtype, mesh, seed):
    rng = np.random.default_rng(seed)
    array = make(rng, dtype, data.draw(st.sampled_from([(8, 8), (8, 0), (16, 8), (0, 8)])))
    words = [w for w in WORDS if is_legal(w, dtype)]
    ndsbp = NdSbp({axis: data.draw(st.sampled_from(words)) for axis in mesh})
    locals_ = scatter(array, ndsbp, mesh, rng)
    assert locals_.shape == tuple(mesh.values())
    local = local_shape(array.shape, ndsbp.on(tuple(mesh)), tuple(mesh.values()))
    assert {part.shape for part in locals_.ravel()} == {local}
    assert {part.dtype for part in locals_.ravel()} == {array.dtype}
    assert same(gather(locals_, ndsbp, mesh), array)


def test_several_axes_split_one_dim_outer_first():
    locals_ = scatter(np.arange(8), NdSbp(a=Split(0), b=Split(0)), {"a": 2, "b": 2})
    assert [list(part) for part in locals_.ravel()] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_parts_of_a_sum_are_not_the_array():
    array = np.arange(1, 9, dtype="float32")
    parts = scatter(array, NdSbp(a=P), {"a": 4})
    assert not any(same(part, array) for part in parts)
    integers = scatter(np.full(8, 2**31 - 1, "int32"), NdSbp(a=P), {"a": 2})
    assert any(part.min() < 0 for part in integers)


def test_one_device_holds_what_cannot_be_cut_exactly():
    array = np.array([np.nan, np.inf, 0.1, 1e30], "float32")
    parts = np.stack(list(scatter(array, NdSbp(a=P), {"a": 4})))
    assert ((parts != 0).sum(0) == 1).all()


def test_parts_of_a_maximum_do_not_exceed_it():
    array = np.arange(8, dtype="int32")
    parts = np.stack(list(scatter(array, NdSbp(a=P_MAX), {"a": 4})))
    assert (parts <= array).all()
    assert (parts == np.iinfo("int32").min).any()


def test_inner_axes_are_reduced_first():
    """P.max of sums is not a sum of P.max."""
    locals_ = np.empty((2, 2), object)
    for index, value in zip(np.ndindex(2, 2), (1, 2, 5, -9), strict=True):
        locals_[index] = np.array(value)
    assert gather(locals_, NdSbp(a=P_MAX, b=P), {"a": 2, "b": 2}) == 3
    assert gather(locals_, NdSbp(a=P, b=P_MAX), {"a": 2, "b": 2}) == 7


def test_copies_must_agree():
    locals_ = np.empty((2,), object)
    locals_[:] = [np.array([1.0, np.nan]), np.array([1.0, np.nan])]
    assert same(gather(locals_, NdSbp(), {"a": 2}), locals_[0])
    locals_[1] = np.array([1.0, 2.0])
    with pytest.raises(SignatureError) as error:
        gather(locals_, NdSbp(a=B), {"a": 2})
    assert str(error.value) == (
        "the devices of axis 'a' hold different arrays.\n"
        "  B means that every device of the axis holds the same array.\n"
        "Fix: if the arrays are parts of a sum, the word is P; if blocks, S(dim)"
    )


REFUSED = {
    "uneven": (
        np.zeros((6, 3)), NdSbp(a=Split(0)),
        "dim 0 has size 6, axis 'a' has 4 devices (array of shape (6, 3)).\n"
        "  Split needs equal slices; 6 is not a multiple of 4.\n"
        "Fix one of: pad dim 0 to a multiple of 4 | split another dim | use B",
    ),
    "no such dim": (
        np.zeros((8, 8)), NdSbp(a=Split(2)),
        "word S(2) on axis 'a', but the array has 2 dims (array of shape (8, 8)).\n"
        "  S(d) splits dim d, counted from 0.\n"
        "Fix: use S(0) to S(1)",
    ),
    "scalar": (
        np.zeros(()), NdSbp(a=Split(0)),
        "word S(0) on axis 'a', but the array has 0 dims (array of shape ()).\n"
        "  S(d) splits dim d, counted from 0.\n"
        "Fix: use B: it is a scalar",
    ),
    "no such axis": (
        np.zeros(4), NdSbp(tp=Split(0)),
        "the mesh has no axis 'tp' (words (tp: S(0))).\n"
        "  The mesh is a=4.\n"
        "Fix: use one of the axes a",
    ),
    "no sum": (
        np.zeros(4, bool), NdSbp(a=P),
        "word P on axis 'a' of an array of bool.\n"
        "  Its elements have no sum.\n"
        "Fix: use B or a split",
    ),
    "no order": (
        np.zeros(4, "complex64"), NdSbp(a=P_MAX),
        "word P.max on axis 'a' of an array of complex64.\n"
        "  Its elements have no order.\n"
        "Fix: use B or a split",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_impossible_words_are_refused(name):
    array, ndsbp, text = REFUSED[name]
    with pytest.raises(SignatureError) as error:
        scatter(array, ndsbp, {"a": 4})
    assert str(error.value) == text
