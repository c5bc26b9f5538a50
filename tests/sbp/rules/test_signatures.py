"""Every signature of every rule is proved by the oracle."""

import os

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from sbp import rules
from sbp.algebra import P_MAX, P_MIN, B
from sbp.factors import NdSignature
from tests.oracle import MESHES, Case, prove, prove_case, trace
from tests.sbp.rules.cases import ALL, FAMILIES

NOT_IN_THIS_JAX = {
    name for name in ("log2", "one_minus_square", "polynomial") if jax.__version_info__ < (0, 11)
}
"""Primitives of newer versions of jax."""

TWO_BY_FOUR = ((2, 4), (4, 2))
THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "long"


def few(seed, count):
    """Draws some of the signatures of a mesh: their product over the axes is long."""
    pick = np.random.default_rng(seed)
    return lambda found: [found[k] for k in pick.choice(len(found), min(count, len(found)), False)]


@pytest.mark.parametrize("case", ALL, ids=str)
def test_every_signature_is_right(case):
    """On all meshes for the first case of a primitive; of other cases some on the larger ones."""
    rule, (smallest, *others) = rules.RULES[case.primitive], MESHES
    assert prove_case(case, rule, (smallest,))
    choose = few(0, 4) if case.label and not THOROUGH else tuple
    assert prove_case(case, rule, others, choose=choose)


@settings(max_examples=12)
@given(data=st.data(), mesh=st.sampled_from(TWO_BY_FOUR), seed=st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__.split(".")[-1])
def test_signatures_hold_for_any_values_on_larger_meshes(family, data, mesh, seed):
    case = data.draw(st.sampled_from(family.CASES))
    prove_case(case, rules.RULES[case.primitive], (mesh,), seed, few(seed, 4))


def test_every_rule_has_a_case():
    assert set(rules.RULES) - {case.primitive for case in ALL} == NOT_IN_THIS_JAX


def test_every_case_has_a_name_of_its_own():
    names = [str(case) for case in ALL]
    assert sorted(set(names)) == sorted(names)


def test_an_unknown_primitive_has_no_rule():
    assert rules.find_rule("no such primitive") is None
    assert rules.find_rule("add") is rules.RULES["add"]


@pytest.mark.parametrize(("operation", "word"), [("add", P_MAX), ("add", P_MIN), ("sub", P_MAX)])
def test_an_infinite_operand_beside_an_ordered_partial_makes_no_new_nan(operation, word):
    """A part -inf plus an infinite B is NaN; the logical sum of 5 and that B is not."""
    values = np.array([5.0, np.inf, -np.inf, np.nan], "float32")
    x, b = (part.ravel() for part in np.meshgrid(values, values))
    case = Case(operation, getattr(lax, operation), (lambda *_: x, lambda *_: b))
    equation = trace(case, np.random.default_rng(0))
    with np.errstate(invalid="ignore"):
        neutral = np.float32(-np.inf if word == P_MAX else np.inf)
        added = b if operation == "add" else -b
        expected = np.where(np.isinf(b) & (added == -x), neutral, x + added)  # not NaN
    signature = NdSignature(((word,), (B,)), ((word,),))
    for seed in range(8):
        rng = np.random.default_rng(seed)
        prove(equation, rules.RULES[operation], signature, (4,), [expected], rng)
