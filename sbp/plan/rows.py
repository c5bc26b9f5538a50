"""The lines of a plan: what is computed where, what is sent over which axis.

Comes in: an assignment and the prices. Goes out: frozen rows of plain values, which a plan prints,
saves, and holds against the compiled program.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sbp.algebra import ArrayType, NdSbp, Words, format_type
from sbp.boxing import LOCAL_KINDS, Step
from sbp.cost_model import CostModel, num_parts
from sbp.factors import NdSignature
from sbp.graph import (
    Boundary,
    Mesh,
    call_of,
    carry_range,
    contraction_flops,
    is_kernel,
    result_name,
)
from sbp.plan.assignment import Assignment, Boxing
from sbp.program import Atom, Block, Traced, Value
from sbp.rules import find_rule


@dataclass(frozen=True, slots=True)
class BoxingRow:
    """One step of a boxing.

    Attributes:
        source: The user's line, or the path of the result, that asks for it.
        value_type: The array as it was, in jax's notation.
        result_type: The array as it is after.
        src: Words before.
        dst: Words after.
        collective: The collective; or the local step, which sends nothing.
        axes: Mesh axes it runs over; those of one device are left out.
        dtype: Name of the dtype sent.
        nbytes: Bytes a device sends, each time.
        count: How many times it happens in one call.
        seconds: Time of one.
        equation: Number, in `Plan.equations`, of the equation that needs it; where none does, of
            the one before which it happens.
        reader: What needs it where no equation does: `loop carry`, `result loss`; else empty.
        array: Path of the argument or result that it moves; empty for other arrays.
    """

    source: str
    value_type: str
    result_type: str
    src: str
    dst: str
    collective: str
    axes: tuple[str, ...]
    dtype: str
    nbytes: int
    count: int
    seconds: float
    equation: int
    reader: str
    array: str

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
        arrays: Paths of the arguments that it reads and of the results that it writes.
        live_nbytes: Most bytes one device holds while it runs, arguments included.
    """

    source: str
    primitive: str
    signature: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    flops: int
    seconds: float
    count: int
    arrays: tuple[str, ...]
    live_nbytes: int


ROLES = {
    "const": "loop constant", "cond_const": "loop constant", "body_const": "loop constant",
    "carry": "loop carry", "slice": "loop input", "stack": "loop output",
    "operand": "branch operand", "join": "branch result",
}  # fmt: skip
"""Names, for people, of what hands a value on without computing."""


def boxing_rows(
    assignment: Assignment, costs: CostModel, boundary: Boundary, names: Mapping[Value, str]
) -> list[BoxingRow]:
    """Every step of every boxing, in program order.

    Args:
        assignment: The choices.
        costs: Prices.
        boundary: Paths of arguments and results.
        names: Paths of values, as of `array_names`.
    """
    mesh = assignment.boxing.graph.mesh
    readers = _Readers(assignment, boundary)
    rows: list[BoxingRow] = []
    for boxing in assignment.boxings():
        position, source, reader = readers.find(boxing)
        rows += [
            BoxingRow(
                source or boxing.source,
                format_type(boxing.value.type, mesh.axes, step.src),
                format_type(boxing.value.type, mesh.axes, step.dst),
                str(_changed(mesh, step, step.src)),
                str(_changed(mesh, step, step.dst)),
                step.kind,
                tuple(mesh.axes[axis] for axis in step.axes if mesh.sizes[axis] > 1),
                str(boxing.value.type.dtype),
                step.nbytes,
                boxing.count,
                costs.step_seconds(step, bucket=boxing.bucket),
                position,
                reader,
                names.get(boxing.value, ""),
            )
            for step in boxing.steps
        ]
    return sorted(rows, key=lambda row: row.equation)


class _Readers:
    """Where, among the equations, each boxing happens and what asks for it."""

    def __init__(self, assignment: Assignment, boundary: Boundary) -> None:
        self.graph = assignment.boxing.graph
        calls = [int(node.call is not None) for node in self.graph.nodes]
        self.rows_before = [0, *itertools.accumulate(calls)]
        self.results = {
            self.graph.nodes_of[None, "result", k]: result_name(path)
            for k, path in enumerate(boundary.result_paths)
        }

    def find(self, boxing: Boxing) -> tuple[int, str, str]:
        """Number of the equation, source if it is not that of the boxing, name of the reader."""
        node = self.graph.nodes[boxing.reader]
        if boxing.reader in self.results:
            name = self.results[boxing.reader]
            return self.rows_before[-1], name, name
        if node.call is not None:
            return self.rows_before[boxing.reader], "", ""
        # What a loop carries is read by its node in front of the body, but written behind.
        written = self.rows_before[self.graph.writers[boxing.value].node + 1]
        position = max(self.rows_before[boxing.reader], written)
        return position, "", ROLES.get(node.name, node.name)


def array_names(traced: Traced, boundary: Boundary) -> dict[Value, str]:
    """Paths of arguments and results, also where loops, pins and barriers hand them on."""
    names: dict[Value, str] = {}
    for atom, path in zip(traced.block.outputs, boundary.result_paths, strict=True):
        if isinstance(atom, Value):
            names[atom] = result_name(path)
    for k, value in enumerate(traced.block.inputs[traced.num_arguments :]):
        names[value] = f"closed-over array {k}"
    names.update(zip(traced.block.inputs, boundary.argument_paths, strict=False))
    _name_inside(traced.block, names)
    return names


def _name_inside(block: Block, names: dict[Value, str]) -> None:
    for equation in block.equations:
        pairs: list[tuple[Atom, Value]] = []
        if equation.name in ("pin", "barrier"):
            pairs = list(zip(equation.inputs, equation.outputs, strict=True))
        elif equation.name == "scan":
            start, stop = carry_range(equation)
            inside = equation.bodies[0].inputs
            pairs = list(zip(equation.inputs[:start], inside[:start], strict=True))
            pairs += zip(equation.inputs[stop:], inside[stop:], strict=True)
        for outer, inner in pairs:
            if isinstance(outer, Value) and outer in names:
                names.setdefault(inner, names[outer])
        for body in equation.bodies:
            _name_inside(body, names)


def _changed(mesh: Mesh, step: Step, words: Words) -> NdSbp:
    pairs = zip(mesh.axes, words, step.src, step.dst, strict=True)
    return NdSbp({axis: word for axis, word, old, new in pairs if old != new})


def equation_rows(
    assignment: Assignment, costs: CostModel, block: Block, names: Mapping[Value, str],
    live: Iterator[int],
) -> Iterator[EquationRow]:  # fmt: skip
    """Every equation that chooses a signature, in program order, bodies included.

    Args:
        assignment: The choices.
        costs: Prices.
        block: The equations.
        names: Paths of values, as of `array_names`.
        live: Bytes held while each of them runs.
    """
    graph = assignment.boxing.graph
    for equation in block.equations:
        for body in equation.bodies:
            yield from equation_rows(assignment, costs, body, names, live)
        if (equation, "call", 0) not in graph.nodes_of:
            continue
        node = graph.nodes[graph.nodes_of[equation, "call", 0]]
        signature, call, mesh = assignment.signature(equation), call_of(equation), graph.mesh
        rule = find_rule(equation.name)
        parts = num_parts(signature, mesh.sizes)
        traffic = graph.flow.memory_traffic(equation)
        values = (a for a in (*equation.inputs, *equation.outputs) if isinstance(a, Value))
        yield EquationRow(
            equation.source,
            equation.name,
            _by_axis(signature, mesh),
            _typed(call.inputs, mesh, signature.inputs),
            _typed(call.outputs, mesh, signature.outputs),
            round((rule.flops(call) if rule else 0) / parts),
            costs.signature_seconds(
                call, signature, traffic, contraction_flops(call), is_kernel=is_kernel(equation)
            ),
            node.count,
            tuple(dict.fromkeys(names[value] for value in values if value in names)),
            next(live),
        )


@functools.lru_cache(maxsize=4096)
def _by_axis(signature: NdSignature, mesh: Mesh) -> str:
    return "; ".join(f"{a}: {signature.axis(k)}" for k, a in enumerate(mesh.axes))


@functools.lru_cache(maxsize=4096)
def _typed(arrays: tuple[ArrayType, ...], mesh: Mesh, words: tuple[Words, ...]) -> tuple[str, ...]:
    pairs = zip(arrays, words, strict=True)
    return tuple(format_type(array, mesh.axes, word) for array, word in pairs)
