"""A plan that is run again: it need not be searched for, and it need not say the same words."""

import pytest
from jax.sharding import AxisType

import flowjax
import sbp
from tests.one_device import MESH, assert_same
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


def plan_of(name, plan=None, **options):
    fn, args, asked = STEPS[name]
    return sbp.parallelize(fn, mesh=MESH, plan=plan, **{**asked, **options}).plan(*args)


MADE = {
    "objective": [("time", "bytes"), ("bytes", "time"), ("wire", "bytes")],
    "search": [("optimal", "greedy"), ("greedy", "optimal"), ("optimal", "exhaustive")],
}


@pytest.mark.parametrize(("option", "made", "other"), [(k, *v) for k in MADE for v in MADE[k]])
def test_an_option_of_the_search_has_no_effect_on_a_plan_that_is_run(option, made, other):
    plan = plan_of("mlp", **{option: made})
    # Unless it is what the plan was made with, or not given.
    assert plan_of("mlp", plan, **{option: made}) == plan_of("mlp", plan) == plan
    with pytest.raises(sbp.SbpError) as caught:
        plan_of("mlp", plan, **{option: other})
    assert (
        str(caught.value)
        == f"""\
{option}={other!r} has no effect with plan=.
  A plan runs as it is, and this one was made with {option}={made!r}.
Fix one of: leave out {option}= | leave out plan= to make a new plan"""
    )
    with pytest.raises(sbp.SbpError, match=f"{option}='best' is not an option"):
        plan_of("mlp", plan, **{option: "best"})


def test_a_plan_with_overlap_keeps_it_and_its_proof():
    plan = plan_of("data parallel", overlap=0.5)
    assert plan_of("data parallel", plan) == plan


def proof(text):
    return next(line for line in text.splitlines() if line.startswith("  proof"))


@pytest.mark.parametrize("options", [{}, {"objective": "bytes"}, {"search": "greedy"}])
def test_a_plan_that_is_run_again_is_as_proven_as_it_was(options, tmp_path):
    plan = plan_of("mlp", **options)
    plan.save(tmp_path / "plan.json")
    loaded = sbp.Plan.load(tmp_path / "plan.json")
    lines = {proof(p.summary()) for p in (plan, loaded, plan_of("mlp", loaded))}
    assert len(lines) == 1
    assert "not proven" not in lines.pop()


def test_nothing_is_proven_at_other_prices():
    plan = plan_of("mlp", hardware="h100")
    again = plan_of("mlp", plan, hardware="a100")
    third = plan_of("mlp", again, hardware="b200")
    for other in (again, third):
        assert proof(other.summary()) == (
            "  proof   not proven: no lower bound is known (elimination, run at other prices)"
        )
        assert ">not proven<" in other._repr_html_()
        assert "100.00%" not in other.summary()
    assert plan_of("mlp", plan, hardware="h100").gap == 0
