"""A plan that is run again: it need not be searched for, and it need not say the same words."""

import pytest
from jax.sharding import AxisType

import flowjax
import sbp
from tests.one_device import assert_same
from tests.sbp.plan.test_plan import STEPS

ONE = flowjax.make_mesh("dp=2,one=1,tp=4")
"""A mesh with an axis of one device, on which all words mean the same."""


def added(words, more):
    """Words for everything, or by pattern, with one more axis."""
    if isinstance(words, dict):
        return {pattern: f"{text}, {more}" for pattern, text in words.items()}
    return f"{words}, {more}" if words else more


def step_on_one(name, word=None, **options):
    fn, args, asked = STEPS[name]
    pins = {} if word is None else {"in_sbp": added(asked.get("in_sbp"), f"one: {word}")}
    return sbp.parallelize(fn, mesh=ONE, **{**asked, **pins, **options}), args


@pytest.mark.parametrize("words", [("S(0)", None), (None, "S(0)"), ("S(0)", "S(-1)")])
@pytest.mark.parametrize("name", STEPS)
def test_words_on_an_axis_of_one_device_are_all_the_same(name, words, tmp_path):
    before, after = words
    step, args = step_on_one(name, before)
    plan = step.plan(*args)
    plan.save(tmp_path / "plan.json")
    expected = STEPS[name][0](*args)
    for saved in (plan, sbp.Plan.load(tmp_path / "plan.json")):
        again, _ = step_on_one(name, after, plan=saved)
        rerun = again.plan(*args)
        assert (rerun.cost, rerun.lower_bound) == (plan.cost, plan.lower_bound)
        sent = [[r for r in p.boxings if not r.is_local] for p in (plan, rerun)]
        assert [r.nbytes for r in sent[1]] == [r.nbytes for r in sent[0]]
        assert_same(again(*args), expected)
    audited = sbp.audit(again.lower(*args).compile(), plan)
    assert not audited.unplanned
    assert not audited.missing


def test_a_sum_on_an_axis_of_one_device_is_any_word():
    mesh = flowjax.make_mesh("one=1,dp=8", axis_types=AxisType.Explicit)
    fn, args, _ = STEPS["mlp"]
    plan = sbp.parallelize(fn, mesh=mesh, out_sbp="one: P").plan(*args)
    assert plan.results[0][1]["one"] == sbp.P
    for words in ("one: B", "one: S(0)", None):
        again = sbp.parallelize(fn, mesh=mesh, out_sbp=words, plan=plan)
        assert_same(again(*args), fn(*args))


def test_words_on_an_axis_of_several_devices_are_not_the_same():
    step, args = step_on_one("mlp", "B")
    words = step.plan(*args).arguments[1][1]["dp"]
    other = next(f"dp: {word}" for word in (sbp.S(0), sbp.B) if word != words)
    again, _ = step_on_one("mlp", in_sbp={"w1": other}, plan=step.plan(*args))
    with pytest.raises(sbp.PlanError, match="pins or options forbid what it chose for argument w1"):
        again.plan(*args)
