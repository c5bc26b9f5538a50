"""Sizes of axes in any form, and what cannot be one; the texts are tested where users meet them."""

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh

from sbp.axis_sizes import axis_sizes, format_axes
from sbp.errors import SbpError

SIZES = {"dp": 2, "tp": 4}
FORMS = [
    "dp=2,tp=4", " dp = 2 , tp = 4 ", SIZES, AbstractMesh((2, 4), ("dp", "tp")),
    jax.make_mesh((2, 4), ("dp", "tp")),
]  # fmt: skip


@pytest.mark.parametrize("mesh", FORMS, ids=str)
def test_every_form_says_the_same_in_the_same_order(mesh):
    assert list(axis_sizes(mesh, "here").items()) == list(SIZES.items())


def test_the_text_is_read_again():
    assert axis_sizes(format_axes(SIZES), "here") == SIZES


WRONG = [
    3, None, ["dp"], (("dp", 2),), {}, {"": 2}, {1: 2}, {None: 2}, {"dp": 0}, {"dp": -1},
    {"dp": 2.0}, {"dp": "2"}, {"dp": True}, {"dp": None}, {"dp": np.arange(2)}, "", "dp", "dp=",
    "dp=2;tp=4", "dp=0", "dp=2,dp=2", "2=2", AbstractMesh((), ()),
]  # fmt: skip


@pytest.mark.parametrize("mesh", WRONG, ids=str)
def test_what_is_none_is_refused_where_it_was_given(mesh):
    with pytest.raises(SbpError) as caught:
        axis_sizes(mesh, "here")
    assert caught.value.where == "here"
    assert caught.value.how


def test_what_is_too_long_to_be_a_number_is_not_repeated_whole():
    with pytest.raises(SbpError, match="has the item") as caught:
        axis_sizes("dp=" + "9" * 5000, "make_mesh")
    assert len(str(caught.value)) < 400
