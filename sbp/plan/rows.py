"""The lines of a plan: what is computed where, what is sent over which axis.

Comes in: an assignment and the prices. Goes out: frozen rows of plain values, which a plan prints,
saves, and holds against the compiled program.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sbp.algebra import ArrayType, NdSbp, Words, format_type, local_type
from sbp.boxing import LOCAL_KINDS, Step
from sbp.cost_model import CostModel, num_parts
from sbp.graph import Mesh, call_of, contraction_flops, is_kernel
from sbp.plan.assignment import Assignment
from sbp.rules import find_rule
from sbp.tracing import Block, Value


@dataclass(frozen=True, slots=True)
class BoxingRow:
    """One step of a boxing.

    Attributes:
        source: The user's line, or the path of the result, that asks for it.
        value_type: The array as it was, in jax's notation.
        src: Words before.
        dst: Words after.
        collective: The collective; or the local step, which sends nothing.
        axes: Mesh axes it runs over; those of one device are left out.
        dtype: Name of the dtype sent.
        nbytes: Bytes a device sends, each time.
        count: How many times it happens in one call.
        seconds: Time of one.
    """

    source: str
    value_type: str
    src: str
    dst: str
    collective: str
    axes: tuple[str, ...]
    dtype: str
    nbytes: int
    count: int
    seconds: float

    @property
    def is_local(self) -> bool:
        """Whether it sends nothing."""
        return self.collective in LOCAL_KINDS or not self.axes


@dataclass(frozen=True, slots=True)
class EquationRow:
    """One equation.

    Attributes:
        source: The user's line.
        primitive: Its name.
        signature: Words of operands and results, axis by axis.
        operands: The operands in jax's notation.
        results: The results.
        flops: Operations on one device, each time.
        seconds: Time of one.
        count: How many times it happens in one call.
    """

    source: str
    primitive: str
    signature: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    flops: int
    seconds: float
    count: int


def boxing_rows(assignment: Assignment, costs: CostModel) -> Iterator[BoxingRow]:
    """Every step of every boxing, in program order."""
    mesh = assignment.boxing.graph.mesh
    for boxing in assignment.boxings():
        for step in boxing.steps:
            yield BoxingRow(
                boxing.source,
                format_type(boxing.value.type, mesh.axes, step.src),
                str(_changed(mesh, step, step.src)),
                str(_changed(mesh, step, step.dst)),
                step.kind,
                tuple(mesh.axes[axis] for axis in step.axes if mesh.sizes[axis] > 1),
                str(boxing.value.type.dtype),
                step.nbytes,
                boxing.count,
                costs.step_seconds(step, bucketed=boxing.bucketed),
            )


def _changed(mesh: Mesh, step: Step, words: Words) -> NdSbp:
    pairs = zip(mesh.axes, words, step.src, step.dst, strict=True)
    return NdSbp({axis: word for axis, word, old, new in pairs if old != new})


def equation_rows(assignment: Assignment, costs: CostModel, block: Block) -> Iterator[EquationRow]:
    """Every equation that chooses a signature, in program order, bodies included."""
    graph = assignment.boxing.graph
    for equation in block.equations:
        for body in equation.bodies:
            yield from equation_rows(assignment, costs, body)
        if (equation, "call", 0) not in graph.nodes_of:
            continue
        node = graph.nodes[graph.nodes_of[equation, "call", 0]]
        signature, call, mesh = assignment.signature(equation), call_of(equation), graph.mesh
        rule = find_rule(equation.name)
        parts = num_parts(signature, mesh.sizes)
        traffic = graph.flow.memory_traffic(equation)
        yield EquationRow(
            equation.source,
            equation.name,
            "; ".join(f"{a}: {signature.axis(k)}" for k, a in enumerate(mesh.axes)),
            _typed(call.inputs, mesh, signature.inputs),
            _typed(call.outputs, mesh, signature.outputs),
            round((rule.flops(call) if rule else 0) / parts),
            costs.signature_seconds(
                call, signature, traffic, contraction_flops(call), is_kernel=is_kernel(equation)
            ),
            node.count,
        )


def _typed(arrays: tuple[ArrayType, ...], mesh: Mesh, words: tuple[Words, ...]) -> tuple[str, ...]:
    pairs = zip(arrays, words, strict=True)
    return tuple(format_type(array, mesh.axes, word) for array, word in pairs)


def peak_nbytes(assignment: Assignment, block: Block) -> int:
    """Bytes one device holds at the worst moment: every stored value from birth to last use.

    Values that XLA keeps inside a fused kernel take no memory. Boxed copies live as long as the
    value they come from.
    """
    return _Liveness(assignment).peak(block)


class _Liveness:
    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.graph = assignment.boxing.graph

    def held(self, value: Value) -> int:
        if value not in self.graph.writers:
            return 0
        if value in self.graph.flow.fused and value not in self.graph.flow.stored:
            return 0
        written = self.assignment.written(value)
        words = {written, *map(self.assignment.words_at, self.graph.readers.get(value, ()))}
        sizes = self.graph.mesh.sizes
        return sum(local_type(value.type, w, sizes).nbytes for w in words)

    def peak(self, block: Block) -> int:
        last: dict[Value, int] = {}
        for position, equation in enumerate(block.equations):
            for atom in equation.inputs:
                if isinstance(atom, Value):
                    last[atom] = position
        end = len(block.equations)
        last.update({atom: end for atom in block.outputs if isinstance(atom, Value)})
        total = peak = sum(map(self.held, block.inputs))
        for position, equation in enumerate(block.equations):
            total += sum(map(self.held, equation.outputs))
            inner = max((self.peak(body) for body in equation.bodies), default=0)
            peak = max(peak, total + inner)
            ended = {a for a in equation.inputs if isinstance(a, Value) and last[a] == position}
            ended |= {value for value in equation.outputs if value not in last}
            total -= sum(self.held(value) for value in ended - set(block.inputs))
        return peak
