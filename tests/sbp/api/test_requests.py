"""Words that do not fit the tree of arrays: what is said of the two trees."""

import numpy as np
import pytest

import flowjax
import sbp

MESH = flowjax.make_mesh("dp=2,tp=4")
X = np.ones((8, 16), np.float32)


@pytest.mark.parametrize(
    ("given", "shown", "fix"),
    [
        (["dp: B"], "a list of 1 entry", "without the list: 'dp: B'"),
        (("dp: B",), "a tuple of 1 entry", "without the tuple: 'dp: B'"),
        (["dp: B", None], "a list of 2 entries", None),
        ([], "a list of 0 entries", None),
    ],
)
def test_a_list_of_words_for_one_array(given, shown, fix):
    step = sbp.parallelize(lambda x: x, mesh=MESH, out_sbp=given)
    with pytest.raises(sbp.SignatureError) as caught:
        step.plan(X)
    tree = "one text for a whole subtree | path patterns: {'state.params.*': 'dp: S(0)'}"
    assert (
        str(caught.value)
        == f"""\
the tree of words is not a prefix of the tree of arrays (out_sbp).
  The words are {shown}, the arrays are one array f32[8,16].
{f"Fix: {fix}" if fix else f"Fix one of: {tree}"}"""
    )


@pytest.mark.parametrize("asked", ["foo", {"": "foo"}])
def test_words_of_the_one_result_have_no_path(asked):
    step = sbp.parallelize(lambda x: x, mesh=MESH, out_sbp=asked)
    with pytest.raises(sbp.SignatureError) as caught:
        step.plan(X)
    assert str(caught.value) == (
        "cannot read 'foo' (out_sbp).\n"
        "  Words are written 'axis: word', separated by commas.\n"
        "Fix: write for example 'dp: S(0), tp: B'"
    )
