"""Ctrl-C during the search: the best so far comes out, and its bound holds; progress is told."""

import functools
import logging
import math

import numpy as np
import pytest

from sbp.problem import Problem
from sbp.search import optimal, solve_optimally
from sbp.search.elimination import eliminate
from sbp.search.message_passing import MessagePassing
from tests.sbp.search.problems import least_energy, random_aspects

SIZE = 5


def frustrated():
    """Nodes that all want to differ from one another, with too few labels: no bound is tight."""
    rng = np.random.default_rng(0)
    costs = tuple(rng.integers(0, 3, 3).astype(float) for _ in range(SIZE))
    edges = {(u, v): 5 * np.eye(3) for u in range(SIZE) for v in range(u + 1, SIZE)}
    return Problem(costs, edges)


@pytest.fixture(autouse=True)
def by_messages(monkeypatch):
    monkeypatch.setattr(optimal, "EXACT_TABLE", 1.0)


def interrupt(monkeypatch, call):
    """Makes the given call of message passing one during which the user presses Ctrl-C."""
    run, calls = MessagePassing.run, []

    def interrupted(*args, **options):
        calls.append(call)
        if len(calls) == call:
            raise KeyboardInterrupt
        return run(*args, **options)

    monkeypatch.setattr(MessagePassing, "run", interrupted)


@pytest.mark.parametrize("call", [1, 2])
def test_the_best_so_far_comes_out_with_a_bound_that_holds(monkeypatch, caplog, call):
    problem = frustrated()
    interrupt(monkeypatch, call)
    found = solve_optimally(problem, random_aspects(problem, 1))
    assert found is not None
    assert f"{5 * (call - 1)} sweeps (interrupted)" in found.method
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [
        "the search is interrupted: going on with the best plan so far"
    ]
    assert math.isfinite(found.bound)
    assert found.bound <= least_energy(problem) <= found.energy == problem.energy(found.labels)


def test_without_an_allowed_choice_the_interrupt_goes_on(monkeypatch):
    # Greedy takes the cheap first label, which leaves the last two nodes nothing.
    ring = np.array([[np.inf, np.inf], [np.inf, 0.0]])
    costs = (np.array([0.0, 1.0]),) * 3
    problem = Problem(costs, {(0, 1): np.zeros((2, 2)), (0, 2): np.zeros((2, 2)), (1, 2): ring})
    monkeypatch.setattr(optimal, "consistent_labels", lambda p: [np.arange(2)] * 3)
    monkeypatch.setattr(optimal, "solve_greedily", lambda p: [0] * len(p.costs))
    monkeypatch.setattr(optimal, "eliminate", functools.partial(eliminate, max_degree=0))
    interrupt(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        solve_optimally(problem, random_aspects(problem, 1))


def test_progress_is_told_to_the_log(caplog):
    problem = frustrated()
    with caplog.at_level(logging.INFO, logger="sbp"):
        found = solve_optimally(problem, random_aspects(problem, 1))
    assert found is not None
    assert caplog.records
    last = caplog.records[-1]
    assert last.cost == pytest.approx(found.energy)
    assert last.gap == pytest.approx((found.energy - found.bound) / found.energy)
    assert last.getMessage().startswith(f"{5 * len(caplog.records)} sweeps, cost ")
