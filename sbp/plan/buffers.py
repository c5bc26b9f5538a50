"""The arrays of one device over a call, and what happens to them.

A `Tape` is one run of a block: events in the order in which the lowering runs them, each with the
`Buffer`s that it reads and writes. `sbp.plan.recording` makes it; which buffers XLA keeps in
memory, and how long, is for `sbp.plan.memory` to say.
"""

from dataclasses import dataclass, field

from sbp.algebra import Words
from sbp.program import Equation, Value


@dataclass(slots=True, eq=False)
class Buffer:
    """A local array, or several packed end to end.

    Attributes:
        nbytes: Its size on one device.
        tape: Number of the tape on which it is made.
        value: What it holds; None where several arrays are packed.
        words: How that lies on the mesh.
        fused: Whether its kernel can be fused with those that read it.
        inputs: What a fused one is computed from.
        again: Whether XLA rather computes it again than keeps it for a second reader.
        lazy: Whether it is made when first read, such as a slice of a stacked array.
        forced: Whether something that cannot be fused reads it.
        spread: Whether it is a broadcast of what a library of XLA's CPU backend computes, which
            broadcasts that itself unless another reads it too.
        made: Number of the event, on its tape, that makes it.
        readers: What is made of it by kernels that can be fused with its own.
        in_place: Whether it takes the place of a donated argument.
    """

    nbytes: int
    tape: int
    value: Value | None = None
    words: Words = ()
    fused: bool = False
    inputs: tuple["Buffer", ...] = field(default=(), repr=False)
    again: bool = False
    lazy: bool = False
    forced: bool = False
    spread: bool = False
    made: int = 0
    readers: list["Buffer"] = field(default_factory=list, repr=False)
    in_place: bool = False


@dataclass(slots=True, eq=False)
class Event:
    """A kernel, a part of one, a collective, or a loop.

    Attributes:
        source: The user's line.
        equation: The equation, if it is one.
        reads: What it reads.
        writes: What it makes; of a loop, only what is not there before its bodies run.
        moved: What a loop carries on in place if nothing else needs it.
        bodies: What runs inside.
    """

    source: str
    equation: Equation | None = None
    reads: tuple[Buffer, ...] = ()
    writes: tuple[Buffer, ...] = ()
    moved: tuple[Buffer, ...] = ()
    bodies: tuple["Tape", ...] = ()


@dataclass(slots=True, eq=False)
class Tape:
    """One run of a block.

    Attributes:
        number: Its number; the program's is 0.
        events: What happens, in order.
        held: What is in memory when it starts and belongs to it.
        ends: What it returns.
        stacked: For each of `ends` that a loop stacks, the stacked array.
    """

    number: int
    events: list[Event] = field(default_factory=list)
    held: list[Buffer] = field(default_factory=list)
    ends: tuple[Buffer, ...] = ()
    stacked: tuple[tuple[Buffer, Buffer], ...] = ()


class Scope:
    """Buffers at hand, by value and words; those outside can be read, not added to."""

    def __init__(self, outer: "Scope | None" = None) -> None:
        """Starts empty inside `outer`."""
        self._outer = outer
        self._held: dict[tuple[Value, Words], Buffer] = {}

    def find(self, value: Value, words: Words) -> Buffer | None:
        """The buffer of a value in some words."""
        found = self._held.get((value, words))
        return self._outer.find(value, words) if found is None and self._outer else found

    def hold(self, value: Value, words: Words, buffer: Buffer) -> None:
        """Keeps a buffer."""
        self._held[value, words] = buffer
