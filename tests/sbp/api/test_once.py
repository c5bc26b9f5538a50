"""Nothing is traced, planned or compiled twice, wherever the numbers of a call come from."""

import collections
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import sbp
from sbp.api import preparation
from tests.one_device import MESH, assert_same, whole

X = whole(8, 16)
EVENTS = collections.Counter()


def count_compilation(event, duration, **details):
    if event.endswith("backend_compile_duration"):
        EVENTS[details.get("fun_name", "")] += 1


jax.monitoring.register_event_duration_secs_listener(count_compilation)


class Counted:
    """A step with counts of what happens to it."""

    def __init__(self, fn, monkeypatch, **options):
        """Makes the step."""
        self.traces = self.plans = 0

        def counted_once(*args):
            self.traces += 1
            return fn(*args)

        def make_plan(*args):
            self.plans += 1
            return plan(*args)

        plan = preparation.make_plan
        monkeypatch.setattr(preparation, "make_plan", make_plan)
        self.fn = fn
        self.step = sbp.parallelize(counted_once, mesh=MESH, **options)
        EVENTS.clear()

    def __call__(self, *args):
        """Runs the step; holds it against the function."""
        expected = self.fn(*args)
        results = self.step(*args)
        assert_same(results, expected)
        return results

    @property
    def compilations(self):
        """How often a program of the step was compiled."""
        return sum(n for name, n in EVENTS.items() if "counted_once" in name)

    def counts(self):
        """What happened so far."""
        return self.traces, self.plans, self.compilations


def on_mesh(x):
    return jax.device_put(x, NamedSharding(MESH, PartitionSpec("dp")))


HOLDERS = [
    np.asarray,
    jnp.asarray,
    on_mesh,
    lambda x: jax.device_put(x, jax.devices()[1]),
    lambda x: jax.device_put(x, NamedSharding(MESH, PartitionSpec(None, "tp"))),
]


@pytest.mark.parametrize("first", range(len(HOLDERS)))
def test_arrays_from_anywhere(first, monkeypatch):
    counted = Counted(lambda x: x * 2, monkeypatch, in_sbp="dp: S(0), tp: B")
    for holder in HOLDERS[first:] + HOLDERS[:first]:
        counted(holder(X))
    assert counted.counts() == (1, 1, 1)


@pytest.mark.parametrize("donate", [(), (0,)])
@pytest.mark.parametrize("holder", [0, 1, 2])
def test_own_results_fed_back(holder, donate, monkeypatch):
    counted = Counted(lambda s, g: (s - g, jnp.sum(g)), monkeypatch, donate_argnums=donate)
    state = HOLDERS[holder](X)
    for _ in range(3):
        expected = np.asarray(state) - X
        state, total = counted.step(state, X)
        assert_same((state, total), (expected, np.sum(X)))
    assert counted.counts() == (1, 1, 1)


def test_python_numbers_and_arrays_of_one_number(monkeypatch):
    counted = Counted(lambda x, s: x * s, monkeypatch)
    for number in (2.0, 3.0, np.float32(2), jnp.float32(3), np.array(2, np.float32), 2.0):
        counted(X, number)
    # A Python number has a weak type, and jax traces for it anew.
    assert counted.counts() == (2, 2, 2)


def test_a_counter_that_starts_as_a_python_number(monkeypatch):
    counted = Counted(lambda n: jax.lax.fori_loop(0, 3, lambda _, k: k + 1, n), monkeypatch)
    number = 0
    for _ in range(3):
        number = counted.step(number)
    assert int(number) == 9
    assert counted.counts() == (1, 1, 1)


def test_planning_lowering_and_placing_before_the_first_call(monkeypatch):
    counted = Counted(lambda x: x * 2, monkeypatch, in_sbp="dp: S(0)")
    struct = jax.ShapeDtypeStruct(X.shape, np.float32)
    plan = counted.step.plan(struct)
    counted.step.lower(struct).compile()
    counted(counted.step.place(X))
    assert counted.step.plan(X) is plan
    assert counted.counts() == (1, 1, 1)


def test_other_shapes_and_back(monkeypatch):
    counted = Counted(lambda x: x * 2, monkeypatch, in_sbp="dp: S(0), tp: B", out_sbp="tp: B")
    for rows in (8, 4, 8, 4, 8):
        counted(X[:rows])
    assert counted.counts() == (2, 2, 2)


def test_static_values_and_back(monkeypatch):
    counted = Counted(lambda x, n: x * n, monkeypatch, static_argnums=1)
    for n in (2.0, 3.0, 2.0, 3.0):
        counted(X, n)
    assert counted.counts() == (2, 2, 2)


def test_closed_over_arrays(monkeypatch):
    held, traced_on = whole(16, seed=1), jnp.asarray(whole(16, seed=2))
    counted = Counted(lambda x: x * held[None] + traced_on[None], monkeypatch)
    for holder in HOLDERS[:3]:
        counted(holder(X))
    assert counted.counts() == (1, 1, 1)


def test_a_mesh_that_comes_and_goes(monkeypatch):
    counted = Counted(lambda x: x * 2, monkeypatch)
    explicit = jax.make_mesh((2, 4), ("dp", "tp"))
    for _ in range(2):
        counted(X)
        with jax.set_mesh(MESH):
            counted(X)
        with jax.set_mesh(explicit):
            assert_same(counted.step(X), X * 2)
    # One program for each kind of axes.
    assert counted.counts() == (1, 1, 2)


def test_calls_like_one_before_do_not_enter_python():
    step = sbp.parallelize(lambda x: x * 2, mesh=MESH, in_sbp="dp: S(0), tp: B")
    once, many = (on_mesh(x) for x in (X, whole(16, 16)))
    for x in (once, many):
        assert_same(step(x), x * 2)
    names = {code.co_name for code in code_run_by(lambda: [step(x) for x in (once, many, once)])}
    assert not names & {"find", "cache_miss", "_find", "_results", "_settle"}


def test_what_runs_without_python_still_checks(caplog):
    step = sbp.parallelize(lambda x: x * 2, mesh=MESH, in_sbp="dp: S(0), tp: B")
    for _ in range(3):
        assert_same(step(on_mesh(X)), X * 2)
    elsewhere = jax.device_put(X, NamedSharding(MESH, PartitionSpec(None, "tp")))
    assert_same(step(elsewhere), X * 2)
    assert "moved x" in caplog.text
    with jax.disable_jit(), pytest.raises(sbp.SbpError, match="disable_jit"):
        step(on_mesh(X))
    with pytest.raises(sbp.SbpError, match="cannot be called so"):
        step(z=on_mesh(X))


def code_run_by(call):
    """The code objects of the Python functions that a call enters."""
    seen = []
    sys.setprofile(lambda frame, event, _: event == "call" and seen.append(frame.f_code))
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen
