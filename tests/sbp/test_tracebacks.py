"""Tracebacks of errors hold the user's lines, and all lines where jax's option asks for them."""

import traceback

import jax
import numpy as np
import pytest

import sbp
from tests.one_device import MESH

X = np.ones((8, 16), np.float32)


@sbp.signature(tp="S(1) -> S(0)")
def wrong(x):
    return x * 2


def loss(x):
    return wrong(x)


CALLS = {
    "a call": lambda: sbp.parallelize(loss, mesh=MESH)(X),
    "a plan": lambda: sbp.parallelize(loss, mesh=MESH).plan(X),
    "words": lambda: sbp.parallelize(loss, mesh=MESH, in_sbp="dp: S(5)").plan(X),
    "an option": lambda: sbp.parallelize(loss, mesh=MESH, objective="speed"),
    "a pin": lambda: sbp.pin(X, dp="S(7)"),
    "box": lambda: sbp.box(X, "dp: S(7)", MESH),
    "a claim": lambda: sbp.signature(tp="Q -> B")(loss),
}


def frames_of(call):
    with pytest.raises(sbp.SbpError) as raised:
        call()
    return traceback.extract_tb(raised.value.__traceback__)


@pytest.mark.parametrize("name", CALLS)
def test_only_the_users_lines_are_shown(name):
    frames = frames_of(CALLS[name])
    assert {frame.filename for frame in frames} == {__file__}
    if name in ("a call", "a plan"):
        assert "loss" in [frame.name for frame in frames]


@pytest.fixture
def jax_traceback_filtering_off():
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    yield
    jax.config.update("jax_traceback_filtering", before)


@pytest.mark.usefixtures("jax_traceback_filtering_off")
def test_jaxs_own_option_shows_all():
    files = {frame.filename for frame in frames_of(CALLS["a plan"])}
    assert len([file for file in files if "/sbp/" in file and file != __file__]) > 3


def test_errors_of_the_users_own_code_are_left_alone():
    def broken(x):
        raise ZeroDivisionError(x.shape)

    with pytest.raises(ZeroDivisionError) as raised:
        sbp.parallelize(broken, mesh=MESH).plan(X)
    assert "broken" in [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
