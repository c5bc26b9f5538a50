"""Every signature of every rule is proved by the oracle."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp import rules
from tests.oracle import MESHES, prove_case
from tests.sbp.rules.cases import ALL, FAMILIES

NOT_IN_THIS_JAX = {
    name for name in ("log2", "one_minus_square", "polynomial") if jax.__version_info__ < (0, 11)
}
"""Primitives of newer versions of jax."""

TWO_BY_FOUR = ((2, 4), (4, 2))


@pytest.mark.parametrize("case", ALL, ids=str)
def test_every_signature_is_right(case):
    assert prove_case(case, rules.RULES[case.primitive], MESHES)


@settings(max_examples=20)
@given(data=st.data(), mesh=st.sampled_from(TWO_BY_FOUR), seed=st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__.split(".")[-1])
def test_signatures_hold_for_any_values_on_larger_meshes(family, data, mesh, seed):
    """The product of signatures on 2 x 4 devices is long: a few are drawn at a time."""
    case = data.draw(st.sampled_from(family.CASES))
    pick = np.random.default_rng(seed)

    def choose(signatures):
        return [signatures[k] for k in pick.integers(0, len(signatures), 4)]

    prove_case(case, rules.RULES[case.primitive], (mesh,), seed, choose)


def test_every_rule_has_a_case():
    assert set(rules.RULES) - {case.primitive for case in ALL} == NOT_IN_THIS_JAX


def test_every_case_has_a_name_of_its_own():
    names = [str(case) for case in ALL]
    assert sorted(set(names)) == sorted(names)


def test_an_unknown_primitive_has_no_rule():
    assert rules.find_rule("no such primitive") is None
    assert rules.find_rule("add") is rules.RULES["add"]
