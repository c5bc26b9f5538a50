"""The order of a block: all of it, nothing too early, and as few launches as there can be."""

import itertools
import operator
from unittest import mock

import hypothesis
import hypothesis.strategies as st
import numpy as np

from sbp.algebra import ArrayType, B, P, Split
from sbp.boxing import Step
from sbp.plan import scheduling
from sbp.plan.scheduling import Launch, Need, Reading, Scheduler
from sbp.program import Equation, Value

NBYTES = 64
GATHER = Step("all-gather", (0,), (Split(0),), (B,), 56, 64)
REDUCE = Step("all-reduce", (0,), (P,), (B,), 112, 64)
SCATTER = Step("reduce-scatter", (0,), (P,), (Split(0),), 56, 8)
MASK = Step("mask", (0,), (B,), (P,), 0, 64)


def room_for(count):
    """At most so many arrays in a launch, whatever its kind."""
    names = "BUCKET_NBYTES", "ALL_REDUCE_NBYTES"
    return mock.patch.multiple(scheduling, **dict.fromkeys(names, count * NBYTES))


def value():
    return Value(ArrayType((16,), np.dtype("float32")))


class Chain:
    """Equations each of which reads the one before, and what boxings bring it.

    The boxing of `(written, read)` starts from the result of equation `written` and is read by
    equation `read`.
    """

    def __init__(self, length, boxings, steps=(GATHER,)):
        """Makes the equations, whose results are all in the words before `steps`."""
        ends = [value() for _ in range(length)]
        self.equations = [
            Equation("add", (), (ends[k], *[value() for _ in boxings]), {}, "")
            for k in range(length)
        ]
        src, dst = steps[0].src, steps[-1].dst
        boxings = sorted(boxings, key=operator.itemgetter(1))
        self.needs = [
            Need(self.equations[start].outputs[1 + k], src, dst, steps, self.equations[stop])
            for k, (start, stop) in enumerate(boxings)
        ]
        self.readings = [
            Reading(
                equation,
                frozenset(
                    [(ends[k - 1], src)] * (k > 0)
                    + [
                        (need.value, dst)
                        for need, (_, stop) in zip(self.needs, boxings, strict=True)
                        if stop == k
                    ]
                ),
                tuple((output, src) for output in equation.outputs),
            )
            for k, equation in enumerate(self.equations)
        ]

    def order(self, key_of=lambda step, array: step.kind):
        """Everything in order."""
        scheduler = Scheduler(self.readings, self.needs, key_of, lambda array, words: NBYTES)
        return list(scheduler.run(lambda at: False))


@st.composite
def intervals(draw):
    length = draw(st.integers(2, 8))
    ends = st.lists(st.integers(0, length - 1), min_size=2, max_size=2, unique=True)
    return length, [tuple(sorted(pair)) for pair in draw(st.lists(ends, max_size=8))]


def fewest_launches(boxings):
    """Least number of moments such that each interval has one in it."""
    moments = range(1, 1 + max((stop for _, stop in boxings), default=0))
    return next(
        count
        for count in itertools.count()
        for chosen in itertools.combinations(moments, count)
        if all(any(start < at <= stop for at in chosen) for start, stop in boxings)
    )


@hypothesis.given(intervals())
def test_launches_are_as_few_as_there_can_be(case):
    order = Chain(*case).order()
    assert sum(isinstance(turn, Launch) for turn in order) == fewest_launches(case[1])


@hypothesis.given(intervals(), st.booleans(), st.integers(1, 4))
def test_everything_runs_once_and_after_what_it_reads(case, reduces, room):
    steps = (REDUCE, MASK, REDUCE) if reduces else (GATHER,)
    chain = Chain(*case, steps)
    with room_for(room):
        order = chain.order()
    run = [turn for turn in order if isinstance(turn, Equation)]
    assert run == chain.equations
    there, left = set(), {need: len(need.collectives) for need in chain.needs}
    readings = {reading.equation: reading for reading in chain.readings}
    for turn in order:
        if isinstance(turn, Equation):
            assert readings[turn].reads <= there
            there.update(readings[turn].writes)
            continue
        assert len(turn.needs) <= room
        for need in turn.needs:
            assert (need.value, need.src) in there
            left[need] -= 1
            if not left[need]:
                there.add((need.value, need.dst))
    assert not any(left.values())


@hypothesis.given(intervals(), st.integers(1, 4))
@hypothesis.example((8, [(0, 1), (1, 2), (2, 3), (0, 7), (0, 7), (0, 7)]), 2)
def test_little_is_boxed_ahead_of_its_need(case, room):
    chain = Chain(*case)
    with room_for(room):
        order = chain.order()
    waiting = set()
    for turn in order:
        if isinstance(turn, Launch):
            waiting.update(turn.needs[1:])
            assert len(waiting) <= room
        else:
            waiting -= {need for need in chain.needs if need.equation is turn}


def test_what_travels_alone_is_launched_alone():
    order = Chain(2, [(0, 1)] * 3).order(key_of=lambda step, array: None)
    assert [len(turn.needs) for turn in order if isinstance(turn, Launch)] == [1, 1, 1]


def test_reductions_do_not_wait_once_they_fill_a_launch():
    chain = Chain(6, [(k, 5) for k in range(5)], (REDUCE,))
    with room_for(2):
        order = chain.order()
    places = [k for k, turn in enumerate(order) if isinstance(turn, Launch)]
    assert [len(order[place].needs) for place in places] == [2, 2, 1]
    assert places == [3, 6, 7]


def test_all_reduces_fill_a_larger_launch():
    steps = {"reduce-scatter": SCATTER, "all-reduce": REDUCE}
    sizes = {"BUCKET_NBYTES": 2 * NBYTES, "ALL_REDUCE_NBYTES": 4 * NBYTES}
    for kind, launches in ("reduce-scatter", [2, 2, 1]), ("all-reduce", [4, 1]):
        chain = Chain(6, [(k, 5) for k in range(5)], (steps[kind],))
        with mock.patch.multiple(scheduling, **sizes):
            order = chain.order()
        assert [len(turn.needs) for turn in order if isinstance(turn, Launch)] == launches


def test_a_reduction_that_few_wait_for_lets_others_go_first():
    """Equation 1 reads a sum that ends there; all that follows waits for the gather of 2."""
    chain = Chain(1, [])
    first, side, last = (Equation("add", (), (value(), value()), {}, "") for _ in range(3))
    summed = Need(first.outputs[0], (P,), (B,), (REDUCE,), side)
    gathered = Need(first.outputs[1], (Split(0),), (B,), (GATHER,), last)
    again = Need(last.outputs[0], (P,), (B,), (REDUCE,), None)
    chain.needs = [summed, gathered, again]
    chain.readings = [
        Reading(first, frozenset(), ((first.outputs[0], (P,)), (first.outputs[1], (Split(0),)))),
        Reading(side, frozenset([(summed.value, (B,))]), ()),
        Reading(last, frozenset([(gathered.value, (B,))]), ((last.outputs[0], (P,)),)),
        Reading(None, frozenset([(again.value, (B,))]), ()),
    ]
    launches = [turn.needs for turn in chain.order() if isinstance(turn, Launch)]
    assert launches == [(gathered,), (summed, again)]
