"""Memory of one device over a call: how much is alive while each equation runs, and what it is.

Comes in: an assignment and the program's block. Goes out: `Memory`: the peak, its parts and where
it is. The program is followed as the lowering runs it, every array from birth to last use:

- A kernel's result is in memory if something that cannot be fused reads it (a contraction, a
  collective, a loop), or if several kernels do and XLA would not rather compute it again.
- What is not in memory is computed by those that read it, so what it is made of lives until then.
- A collective holds its operands beside its results; arrays that travel together are packed on
  both sides, and unpacked when first read, gathered ones at once unless on the CPU.
- A loop holds its stacked operands and results whole, and what it carries; its body's peak adds to
  that. What is carried on and needed nowhere else is not copied. Some results are written over
  operands, slice by slice.
- Arguments stay to the end. A result tied to a donated argument takes its place; one that is an
  argument itself is copied.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sbp.graph import is_fusible
from sbp.plan.assignment import Assignment
from sbp.plan.buffers import Buffer, Event, Tape
from sbp.plan.recording import record
from sbp.program import Block, Equation

PARTS = (
    "arguments", "closed-over arrays", "results", "intermediate arrays", "boxed copies",
    "loop bodies",
)  # fmt: skip
ARGUMENTS, CLOSURES, RESULTS, INTERMEDIATE, COPIES, BODIES = PARTS


@dataclass(frozen=True, slots=True)
class Memory:
    """What one device holds.

    Attributes:
        parts: Bytes at the peak by kind of array, in the order of `PARTS`; kinds that hold none
            are left out.
        source: The user's line that runs at the peak; empty where the arguments are all there is.
        live: Most bytes held while each equation that chooses a signature runs, in program order.
        at_peak: What is in memory at the peak, largest first.
    """

    parts: tuple[tuple[str, int], ...]
    source: str
    live: tuple[int, ...]
    at_peak: tuple[Buffer, ...]

    @property
    def peak_nbytes(self) -> int:
        """Bytes at the worst moment."""
        return sum(nbytes for _, nbytes in self.parts)


def find_memory(
    assignment: Assignment, block: Block, num_arguments: int, replacing: Iterable[int] = (),
    *, on_cpu: bool = False,
) -> Memory:  # fmt: skip
    """Follows every array in memory from birth to last use.

    Args:
        assignment: The choices.
        block: The program.
        num_arguments: How many of its inputs are arguments; the rest is closed over.
        replacing: Positions of results that take the place of a donated argument.
        on_cpu: Whether XLA's CPU backend compiles it.
    """
    wanted = [assignment.label(None, "result", k) for k in range(len(block.outputs))]
    tape, buffers = record(assignment, block, wanted, on_cpu=on_cpu)
    replacing = set(replacing)
    for end in tape.ends:
        end.forced = True
    for position, end in enumerate(tape.ends):
        if position in replacing:
            end.in_place = end not in tape.held
    tape.ends = tuple(
        _copy(end, tape, buffers)
        if position not in replacing and (end in tape.held or end in tape.ends[:position])
        else end
        for position, end in enumerate(tape.ends)
    )
    kinds = dict.fromkeys(tape.ends, RESULTS)
    kinds |= dict.fromkeys(tape.held, CLOSURES)
    kinds |= dict.fromkeys(tape.held[:num_arguments], ARGUMENTS)
    life = _Life(buffers)
    life.follow(tape)
    walk = _Walk(assignment, life, kinds)
    walk.measure(tape)
    sums: dict[str, int] = dict.fromkeys(PARTS, 0)
    for buffer in walk.at_peak:
        sums[walk.kind(buffer)] += buffer.nbytes
    return Memory(
        tuple((part, nbytes) for part, nbytes in sums.items() if nbytes),
        walk.source,
        walk.rows(block),
        tuple(sorted(walk.at_peak, key=lambda buffer: -buffer.nbytes)),
    )


def _copy(end: Buffer, tape: Tape, buffers: list[Buffer]) -> Buffer:
    """A result that is an argument, or another result too, has a place of its own."""
    new = Buffer(end.nbytes, tape.number, end.value, end.words, made=len(tape.events))
    buffers.append(new)
    tape.events.append(Event("", reads=(end,), writes=(new,)))
    return new


class _Life:
    """Which buffers are in memory, and from when to when on their tape."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self.stored: set[Buffer] = set()
        self.first: dict[Buffer, int] = {}
        self.last: dict[Buffer, int] = {}
        self._behind: dict[Buffer, tuple[Buffer, ...]] = {}
        self._of_tape: dict[int, list[Buffer]] = {}
        kernels: dict[Buffer, set[Buffer]] = {}
        for buffer in reversed(buffers):
            around: set[Buffer] = set()
            for reader in buffer.readers:
                around |= {reader} if reader in self.stored else kernels[reader]
                if len(around) > 1:
                    break
            kernels[buffer] = around
            ends_call = buffer.spread and len(buffer.inputs[0].readers) == 1
            is_kept = len(around) > 1 and not buffer.again
            if not buffer.fused or buffer.forced or ends_call or is_kept:
                self.stored.add(buffer)
                self._of_tape.setdefault(buffer.tape, []).append(buffer)
        for buffer in buffers:
            self._behind[buffer] = (buffer,) if buffer in self.stored else tuple(
                dict.fromkeys(x for source in buffer.inputs for x in self._behind[source])
            )  # fmt: skip

    def follow(self, tape: Tape, path: dict[int, int] | None = None) -> None:
        """Notes the uses of what a tape reads."""
        path = dict(path or {})
        for position, event in enumerate(tape.events):
            path[tape.number] = position
            for body in event.bodies:
                self.follow(body, path)
            # A part of a kernel reads nothing by itself: the kernel that it ends in does.
            if not event.writes or not self.stored.isdisjoint(event.writes) or event.bodies:
                self.use(event.reads, path)
        path[tape.number] = len(tape.events)
        self.use(tape.ends, path)
        for one, _ in tape.stacked:
            # A slice is written into the stacked array as soon as it is there.
            made = one.made if one.tape == tape.number else len(tape.events)
            path[tape.number] = made
            self.use((one,), path)

    def use(self, buffers: Sequence[Buffer], path: dict[int, int]) -> None:
        """Notes that buffers are read now."""
        for buffer in buffers:
            for source in self._behind[buffer]:
                now = path[source.tape]
                if source not in self.first:
                    made = {} if source.lazy else {source.tape: source.made}
                    self.use(source.inputs, {**path, **made})
                self.last[source] = max(self.last.get(source, now), now)
                self.first[source] = min(self.first.get(source, now), now)

    def ends_of(self, tape: Tape) -> tuple[dict[int, list[Buffer]], dict[int, list[Buffer]]]:
        """What becomes alive, and what ends, with each event of a tape."""
        opening: dict[int, list[Buffer]] = {}
        ending: dict[int, list[Buffer]] = {}
        for buffer in self._of_tape.get(tape.number, ()):
            born = self.first.get(buffer, buffer.made) if buffer.lazy else buffer.made
            opening.setdefault(born, []).append(buffer)
            ending.setdefault(self.last.get(buffer, born), []).append(buffer)
        return opening, ending

    def behind(self, buffers: Sequence[Buffer]) -> set[Buffer]:
        """What is in memory of what buffers are computed from."""
        return {source for buffer in buffers for source in self._behind[buffer]}


class _Walk:
    """Adds up what is alive, event by event."""

    def __init__(self, assignment: Assignment, life: _Life, kinds: dict[Buffer, str]) -> None:
        self.graph = assignment.boxing.graph
        self.assignment = assignment
        self.life, self.kinds = life, kinds
        self.alive: dict[Buffer, None] = {}
        self.now = 0
        self.peak, self.source, self.is_open = -1, "", False
        self.at_peak: tuple[Buffer, ...] = ()
        self.pending = 0
        self.latest: Equation | None = None
        self.live: dict[Equation, int] = {}

    def kind(self, buffer: Buffer) -> str:
        """The part of memory to which a buffer belongs."""
        if buffer.tape:
            return BODIES
        if buffer in self.kinds:
            return self.kinds[buffer]
        value = buffer.value
        is_written = value is not None and buffer.words == self.assignment.written(value)
        return INTERMEDIATE if is_written else COPIES

    def rows(self, block: Block) -> tuple[int, ...]:
        """Most bytes by equation that chooses a signature, bodies first."""
        rows: list[int] = []
        for equation in block.equations:
            for body in equation.bodies:
                rows += self.rows(body)
            if (equation, "call", 0) in self.graph.nodes_of:
                rows.append(self.live.get(equation, 0))
        return tuple(rows)

    def add(self, buffers: Iterable[Buffer]) -> None:
        for buffer in buffers:
            if buffer in self.life.stored and buffer not in self.alive and not buffer.in_place:
                self.alive[buffer] = None
                self.now += buffer.nbytes

    def drop(self, buffers: Iterable[Buffer]) -> None:
        for buffer in buffers:
            if buffer in self.alive:
                del self.alive[buffer]
                self.now -= buffer.nbytes

    def look(self, event: Event | None) -> None:
        if self.now > self.peak:
            self.peak, self.at_peak = self.now, tuple(self.alive)
            self.source, self.is_open = event.source if event else "", True
        self.pending = max(self.pending, self.now)
        equation = event.equation if event else None
        if equation is not None and (equation, "call", 0) in self.graph.nodes_of:
            self.report(equation)

    def report(self, equation: Equation) -> None:
        """What was held since the equation before, collectives included, counts for this one."""
        self.live[equation] = max(self.live.get(equation, 0), self.pending)
        self.latest, self.pending = equation, 0
        if self.is_open:
            self.source, self.is_open = equation.source, False

    def measure(self, tape: Tape) -> None:
        """Runs a tape."""
        opening, ending = self.life.ends_of(tape)
        if tape.number == 0:
            self.add(tape.held)
            self.look(None)
            self.is_open = False
            for ended in ending.values():
                ended[:] = [buffer for buffer in ended if buffer not in tape.held]
        for position, event in enumerate(tape.events):
            born, ended = opening.get(position, []), ending.get(position, [])
            if event.bodies:
                self.run_bodies(event, born, ended)
            elif event.equation is not None and is_fusible(event.equation):
                # XLA writes the result of such a kernel over an operand that ends with it.
                self.drop(ended)
                self.add(buffer for buffer in born if buffer not in ended)
                self.look(event)
            else:
                self.add(born)
                self.look(event)
                self.drop(ended)
        self.add(opening.get(len(tape.events), []))
        self.look(None)
        if tape.number == 0 and self.latest is not None:
            self.report(self.latest)

    def run_bodies(self, event: Event, born: Sequence[Buffer], ended: Sequence[Buffer]) -> None:
        """A loop, or the branches of a choice."""
        moved = self.life.behind(event.moved)
        self.drop(buffer for buffer in ended if buffer in moved)
        self.add(buffer for buffer in born if buffer not in event.writes)
        self.look(event)
        outside, now = dict(self.alive), self.now
        for body in event.bodies:
            self.measure(body)
            self.alive, self.now = dict(outside), now
        self.drop(ended)
        self.add(event.writes)
        self.look(event)
