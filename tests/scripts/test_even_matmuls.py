"""The least bytes of a matmul with free ends are known, and plans are held against them."""

from types import SimpleNamespace

import pytest

import sbp
from scripts.goals import even_matmuls
from scripts.goals.even_matmuls import Matmul, bound_elements, case_of, least_elements
from scripts.goals.matmuls import Best, best_of

SQUARE = Matmul("square", 64, 64, 64)
WIDE = Matmul("wide", 32, 16, 256)
DECODE = Matmul("decode", 8, 64, 64)


def test_there_are_18_matmuls_each_once():
    assert len(set(even_matmuls.SUITE)) == 18
    assert {sizes for _, sizes in even_matmuls.SUITE} == {(8,), (2, 4), (4, 2), (2, 2, 2)}


@pytest.mark.parametrize(
    ("shape", "sizes", "least", "roles"),
    [
        (WIDE, (8,), 7 * 32 * 16 // 8, "n"),  # the small operand is gathered
        (WIDE, (4, 2), 7 * 32 * 16 // 8, "nn"),
        (SQUARE, (8,), 7 * 64 * 64 // 8, "m"),
        (SQUARE, (2, 2, 2), 3 * (64 * 64 // 4 - 64 * 64 // 8), "mkn"),
        (DECODE, (8,), 7 * 8 * 64 // 8, "k"),  # X is had by k for free, Y is scattered
    ],
)
def test_the_least_is_that_of_the_best_roles(shape, sizes, least, roles):
    assert least_elements(shape, sizes) == (least, roles)


@pytest.mark.parametrize("shape", [SQUARE, WIDE, DECODE, *even_matmuls.SHAPES])
def test_no_mesh_goes_below_the_bound_and_the_finest_comes_near(shape):
    bound = bound_elements(shape, 8)
    least = [least_elements(shape, sizes)[0] for sizes in ((8,), (2, 4), (4, 2), (2, 2, 2))]
    assert bound <= min(least) * (1 + 1e-9)
    assert least[-1] == min(least)
    assert least[-1] <= 1.1 * bound


def test_the_bound_is_reached_in_each_of_its_three_regimes():
    for m, k, n in ((1024, 16, 16), (64, 64, 16), (64, 64, 64)):
        shape = Matmul("", m, k, n)
        devices = 64 if m == 1024 else 4 if k > n else 8
        sizes = (2,) * (devices.bit_length() - 1)
        assert bound_elements(shape, devices) == pytest.approx(least_elements(shape, sizes)[0])


@pytest.mark.parametrize("sizes", [(8,), (2, 4), (2, 2, 2)])
def test_plans_send_the_least(sizes):
    least, _ = least_elements(DECODE, sizes)
    best = best_of(case_of(DECODE, sizes, least))
    assert best.plan.wire_nbytes == best.audit.total_nbytes == 4 * least
    for _, words in (*best.plan.arguments, *best.plan.results):
        assert all(isinstance(word, sbp.S) for word in words.values())


def verdicts(planned, compiled, unplanned=()):
    """Of the goals on one square matmul on (2, 2, 2), in the order in which they are named."""
    best = Best(
        None, (), SimpleNamespace(wire_nbytes=planned),
        SimpleNamespace(total_nbytes=compiled, unplanned=unplanned),
    )  # fmt: skip
    found = [(SQUARE, (2, 2, 2), 4 * least_elements(SQUARE, (2, 2, 2))[0], best)]
    return [goal.met for goal in even_matmuls._goals(found)]


def test_a_worse_figure_fails_its_goal_only():
    least = 4 * least_elements(SQUARE, (2, 2, 2))[0]
    assert verdicts(least, least) == [True, True, True]
    assert verdicts(1.05 * least, 1.05 * least) == [False, True, True]
    assert verdicts(1.2 * least, 1.2 * least) == [False, False, True]
    assert verdicts(least, 1.02 * least) == [True, True, False]
    assert verdicts(least, least, ("all-gather",)) == [True, True, False]
