"""In which order a block runs, and which of its boxings travel together.

Comes in: a block and what its equations read. Goes out: its equations, each once, and between them
`Launch`es, each of which is one collective. Nothing is run here: the order is the same on every
device, and in every process.

Equations that wait for no boxing run first, in program order. When all that are left wait, the
boxings behind which most others stand in line go next, with all that can share their collective.
So each collective is made when nothing can do without it any longer, and takes along all that is
ready by then: on values with a first and a last moment this is the least number of collectives.

Memory stays near that of boxings made one by one. A launch holds at most `BUCKET_NBYTES`, of
all-reduces `ALL_REDUCE_NBYTES`; of others as much at most is boxed ahead of its need, and
reductions, which free memory, wait only until they fill a launch.
"""

import heapq
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from sbp.algebra import ArrayType, Partial, Words
from sbp.boxing import Step
from sbp.program import Equation, Value

At = tuple[Value, Words]
"""A value in some words: what equations wait for."""

BUCKET_NBYTES = 8 * 2**20
"""Enough for latency to be a small part; XLA's GPU compiler merges further, as memory allows."""

ALL_REDUCE_NBYTES = 30 * 2**20
"""An all-reduce is not packed and gives back as much memory as it takes: up to where XLA merges."""


@dataclass(frozen=True, slots=True, eq=False)
class Need:
    """A boxing that a block needs, with at least one collective.

    Attributes:
        value: What is boxed.
        src: Words in which it starts.
        dst: Words that are needed.
        steps: Its steps, local ones included.
        equation: What first waits for it; None if only the results of the block do.
    """

    value: Value
    src: Words
    dst: Words
    steps: tuple[Step, ...]
    equation: Equation | None

    @property
    def collectives(self) -> tuple[Step, ...]:
        """The steps that send anything."""
        return tuple(step for step in self.steps if not step.is_local)


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """The next collective of several boxings, made as one.

    Attributes:
        needs: The boxings.
    """

    needs: tuple[Need, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """An equation, and what it waits for.

    Attributes:
        equation: The equation; None for the results of the block.
        reads: Values in words in which they are written, or to which a `Need` brings them.
        writes: What it makes.
    """

    equation: Equation | None
    reads: frozenset[At]
    writes: tuple[At, ...]


class Scheduler:
    """Orders one block."""

    def __init__(
        self, readings: Sequence[Reading], needs: Sequence[Need],
        key_of: Callable[[Step, ArrayType], Hashable | None],
        nbytes_of: Callable[[ArrayType, Words], int],
    ) -> None:  # fmt: skip
        """Takes what is to be ordered.

        Args:
            readings: The block, in program order.
            needs: Its boxings, in order of first need.
            key_of: What a step can share its collective with; None if it travels alone.
            nbytes_of: Bytes a device holds of an array in some words.
        """
        self._readings = readings
        self._key_of, self._nbytes_of = key_of, nbytes_of
        self._place = {need: place for place, need in enumerate(needs)}
        self._by_end = {(need.value, need.dst): need for need in needs}
        self._rounds = self._count_rounds()
        self._num_done = dict.fromkeys(needs, 0)
        self._missing = [len(reading.reads) for reading in readings]
        self._ready = [place for place, count in enumerate(self._missing) if not count]
        self._readers: dict[At, list[int]] = {}
        for place, reading in enumerate(readings):
            for at in reading.reads:
                self._readers.setdefault(at, []).append(place)
        self._starting: dict[At, list[Need]] = {}
        for need in needs:
            self._starting.setdefault((need.value, need.src), []).append(need)
        self._queues: dict[Hashable, list[Need]] = {}
        self._ahead: dict[Need, int] = {}

    def run(self, is_at_hand: Callable[[At], bool]) -> Iterator[Equation | Launch]:
        """The order.

        Args:
            is_at_hand: Whether a value is there, in some words, before the block starts.
        """
        for at in filter(is_at_hand, [*self._readers, *self._starting]):
            yield from self._arrive(at)
        while True:
            if self._ready:
                reading = self._readings[heapq.heappop(self._ready)]
                if reading.equation is not None:
                    yield reading.equation
                for at in reading.reads & self._by_end.keys():
                    self._ahead.pop(self._by_end[at], None)
                for at in reading.writes:
                    yield from self._arrive(at)
            elif any(self._queues.values()):
                yield from self._launch(self._next_bucket())
            else:
                return

    def _count_rounds(self) -> dict[At, int]:
        """How many collectives, one after the other, follow on a value in some words."""
        rounds: dict[At, int] = {}
        for reading in reversed(self._readings):
            after = max((rounds.get(at, 0) for at in reading.writes), default=0)
            for at in reading.reads:
                count = after
                rounds[at] = max(rounds.get(at, 0), count)
                while at in self._by_end:
                    need = self._by_end[at]
                    at, count = (need.value, need.src), count + len(need.collectives)
                    rounds[at] = max(rounds.get(at, 0), count)
        return rounds

    def _arrive(self, at: At) -> Iterator[Launch]:
        """A value is there in some words: what waits for it moves on."""
        for place in self._readers.pop(at, ()):
            self._missing[place] -= 1
            if not self._missing[place]:
                heapq.heappush(self._ready, place)
        for need in self._starting.pop(at, ()):
            yield from self._enqueue(need)

    def _enqueue(self, need: Need) -> Iterator[Launch]:
        key = self._key_of(self._step(need), need.value.type)
        queue = self._queues.setdefault(need if key is None else key, [])
        if self._reduces(need):
            # What is launched may come back, for another reduction of the same kind.
            while queue and sum(map(self._nbytes, [*queue, need])) > self._room(need):
                yield from self._launch(tuple(queue))
        queue.append(need)

    def _next_bucket(self) -> tuple[Need, ...]:
        """The boxing behind which most collectives wait, and what can go along: soonest first."""

        def urgency(need: Need) -> tuple[int, int]:
            left = len(need.collectives) - self._num_done[need]
            return self._rounds[need.value, need.dst] + left, -self._place[need]

        queue = max(filter(None, self._queues.values()), key=lambda queue: max(map(urgency, queue)))
        first = max(queue, key=urgency)
        members, room = [first], self._room(first) - self._nbytes(first)
        for need in sorted(queue, key=self._place.__getitem__):
            nbytes = self._nbytes(need)
            ahead = 0 if self._reduces(need) else nbytes
            fits = nbytes <= room and sum(self._ahead.values()) + ahead <= BUCKET_NBYTES
            if need is not first and fits:
                members.append(need)
                room -= nbytes
                self._ahead[need] = ahead
        return tuple(members)

    def _launch(self, needs: tuple[Need, ...]) -> Iterator[Launch]:
        if needs:
            yield Launch(needs)
        for queue in self._queues.values():
            queue[:] = [need for need in queue if need not in needs]
        for need in needs:
            self._num_done[need] += 1
            if self._num_done[need] == len(need.collectives):
                yield from self._arrive((need.value, need.dst))
            else:
                yield from self._enqueue(need)

    def _step(self, need: Need) -> Step:
        return need.collectives[self._num_done[need]]

    def _reduces(self, need: Need) -> bool:
        step = self._step(need)
        return isinstance(step.src[step.axes[0]], Partial)

    def _room(self, need: Need) -> int:
        """Most bytes of a launch in which the next collective may travel."""
        return ALL_REDUCE_NBYTES if self._step(need).kind == "all-reduce" else BUCKET_NBYTES

    def _nbytes(self, need: Need) -> int:
        """Bytes at either end of the next collective, whichever are more."""
        step = self._step(need)
        return max(self._nbytes_of(need.value.type, words) for words in (step.src, step.dst))
