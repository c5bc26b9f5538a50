"""Memory of one device over a call: how much is alive while each equation runs, and what it is.

Comes in: an assignment and the program's block. Goes out: `Memory`: the peak, its parts and where
it is. Values that XLA keeps inside a fused kernel take no memory. Boxed copies live as long as the
value they come from.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sbp.algebra import local_type
from sbp.plan.assignment import Assignment
from sbp.tracing import Block, Equation, Value

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
    """

    parts: tuple[tuple[str, int], ...]
    source: str
    live: tuple[int, ...]

    @property
    def peak_nbytes(self) -> int:
        """Bytes at the worst moment."""
        return sum(nbytes for _, nbytes in self.parts)


def find_memory(assignment: Assignment, block: Block, num_arguments: int) -> Memory:
    """Follows every stored value from birth to last use.

    Args:
        assignment: The choices.
        block: The program.
        num_arguments: How many of its inputs are arguments; the rest is closed over.
    """
    liveness = _Liveness(assignment)
    results = (atom for atom in block.outputs if isinstance(atom, Value))
    liveness.kinds.update(dict.fromkeys(results, RESULTS))
    liveness.kinds.update(dict.fromkeys(block.inputs, CLOSURES))
    liveness.kinds.update(dict.fromkeys(block.inputs[:num_arguments], ARGUMENTS))
    liveness.walk(block)
    peak = zip(PARTS, liveness.peak, strict=True)
    return Memory(
        tuple((part, nbytes) for part, nbytes in peak if nbytes),
        liveness.source,
        liveness.rows(),
    )


class _Liveness:
    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.graph = assignment.boxing.graph
        self.kinds: dict[Value, str] = {}
        self.now = [0] * len(PARTS)
        self.peak: Sequence[int] = tuple(self.now)
        self.source = ""
        self.depth = 0
        self.live: list[int] = []
        self.unreported = 0

    def rows(self) -> tuple[int, ...]:
        """Bytes by row; what comes after the last row counts there."""
        if self.live:
            self.live[-1] = max(self.live[-1], self.unreported)
        return tuple(self.live)

    def held(self, value: Value) -> tuple[int, int]:
        """Bytes of a value as it is written, and of its boxed copies."""
        if value not in self.graph.writers:
            return 0, 0
        if value in self.graph.flow.fused and value not in self.graph.flow.stored:
            return 0, 0
        written = self.assignment.written(value)
        readers = list(self.graph.readers.get(value, ()))
        if value in self.graph.pinned:
            readers += self.graph.readers.get(self.graph.pinned[value], ())
        others = {*map(self.assignment.words_at, readers)} - {written}
        sizes = self.graph.mesh.sizes
        copies = sum(local_type(value.type, words, sizes).nbytes for words in others)
        return local_type(value.type, written, sizes).nbytes, copies

    def add(self, values: Sequence[Value] | set[Value], sign: int = 1) -> None:
        for value in values:
            written, copies = self.held(value)
            kind = BODIES if self.depth else self.kinds.get(value, INTERMEDIATE)
            self.now[PARTS.index(kind)] += sign * written
            self.now[PARTS.index(BODIES if self.depth else COPIES)] += sign * copies

    def look(self, source: str) -> None:
        total = sum(self.now)
        self.unreported = max(self.unreported, total)
        if total > sum(self.peak):
            self.peak, self.source = tuple(self.now), source

    def walk(self, block: Block) -> None:
        last: dict[Value, int] = {}
        for position, equation in enumerate(block.equations):
            for atom in equation.inputs:
                if isinstance(atom, Value):
                    last[atom] = position
        end = len(block.equations)
        last.update({atom: end for atom in block.outputs if isinstance(atom, Value)})
        self.add(block.inputs)
        self.look("")
        for position, equation in enumerate(block.equations):
            self.run(equation)
            ended = {a for a in equation.inputs if isinstance(a, Value) and last[a] == position}
            ended |= {value for value in equation.outputs if value not in last}
            self.add(ended - set(block.inputs), -1)

    def run(self, equation: Equation) -> None:
        self.add(equation.outputs)
        self.look(equation.source)
        for body in equation.bodies:
            before = list(self.now)
            self.depth += 1
            self.walk(body)
            self.depth -= 1
            self.now = before
        if (equation, "call", 0) in self.graph.nodes_of:
            self.live.append(self.unreported)
            self.unreported = 0
