"""Laws of every plan, on random programs: never dearer than others, bounds hold, pins are obeyed."""

import os
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import sbp
from sbp.search import optimal
from tests.sbp.random_programs import Case, cases, pins

TOLERANCE = 0.01
"""By how much a plan that is not proven cheapest may be dearer than another."""


def is_proven(plan: sbp.Plan) -> bool:
    return plan.cost == plan.lower_bound


def greedy(case: Case, **asked) -> sbp.Plan | None:
    """The greedy plan; None where greed finds none."""
    try:
        return case.plan("greedy", **asked)
    except sbp.PlanError as error:
        assert "the greedy search found no plan" in str(error)
        return None


@given(cases())
def test_no_plan_is_dearer_than_the_greedy_one(case):
    plan, rival = case.plan(), greedy(case)
    assert plan.lower_bound <= plan.cost
    if rival is not None:
        assert plan.cost <= rival.cost
        assert max(plan.lower_bound, rival.lower_bound) <= rival.cost


@given(st.data())
def test_no_plan_is_dearer_than_one_with_pins(data):
    case = data.draw(cases())
    arguments, results = data.draw(pins(case))
    free = case.plan()
    pinned = case.plan(in_sbp=arguments, out_sbp=results)
    assert free.lower_bound <= pinned.cost
    assert free.cost <= pinned.cost * (1.0 if is_proven(free) else 1 + TOLERANCE)


@given(st.data())
def test_pins_are_obeyed(data):
    case = data.draw(cases())
    arguments, results = data.draw(pins(case))
    for search in ("optimal", "greedy"):
        try:
            plan = case.plan(search, in_sbp=arguments, out_sbp=results)
        except sbp.PlanError:
            assert search == "greedy"
            continue
        for pinned, found in (arguments, plan.arguments), (results, plan.results):
            words = dict(found)
            for path, text in pinned.items():
                assert sbp.NdSbp.parse(text).items() <= words[path].items()
        for result, argument in plan.ties:
            assert dict(plan.results)[result] == dict(plan.arguments)[argument]


@given(cases())
def test_a_plan_pinned_to_what_it_chose_costs_the_same(case):
    plan = case.plan()
    again = case.plan(in_sbp=dict(plan.arguments))
    assert plan.lower_bound <= again.cost
    assert again.cost <= plan.cost * (1.0 if is_proven(again) else 1 + TOLERANCE)
