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


TREE = {"block": {"w": X, "b": X[0], "scale": X[:1]}, "head": X}


def words_of(request, **options):
    step = sbp.parallelize(lambda params: params, mesh=MESH, in_sbp=request, **options)
    return {path: str(words) for path, words in step.plan(TREE).arguments}


def test_a_table_gives_each_leaf_the_words_of_the_first_rule_that_fits():
    table = [
        ("block.w", "dp: S(0), tp: S(1)"), ("block.*", "dp: B, tp: B"), ("*", "dp: S(1), tp: B"),
    ]  # fmt: skip
    assert words_of({"params": table}) == {
        "params.block.b": "(dp: B, tp: B)", "params.block.scale": "(dp: B, tp: B)",
        "params.block.w": "(dp: S(0), tp: S(1))", "params.head": "(dp: S(1), tp: B)",
    }  # fmt: skip


def test_a_table_may_leave_leaves_free_and_stand_beside_patterns():
    table = [("w", "tp: S(1)"), ("*", None)]
    found = words_of({"params.block": table, "params.head": "dp: S(1), tp: S(0)"})
    assert found["params.block.w"].endswith("tp: S(1))")
    assert found["params.head"] == "(dp: S(1), tp: S(0))"


def test_leaves_without_a_rule_and_rules_without_a_leaf_are_listed():
    table = [("block.w", "tp: S(1)"), ("block.weight", "tp: S(0)"), ("*.w", "tp: S(0)")]
    with pytest.raises(sbp.SignatureError) as caught:
        words_of({"params": table})
    assert str(caught.value) == (
        "the table has no rule for 3 of 4 leaves, and 2 of 3 rules have no leaf (in_sbp params).\n"
        "  The first rule that fits a leaf counts; a leaf without one, or a rule without a leaf, "
        "is a spelling mistake.\n"
        "  Without a rule: block.b, block.scale, head\n"
        "  Rules without a leaf: 'block.weight', '*.w'\n"
        "Fix one of: end with ('*', None), which leaves the rest free | remove the rule, or put it "
        "before one that takes its leaves"
    )
