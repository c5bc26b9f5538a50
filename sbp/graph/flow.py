"""Static facts of how values flow through a program, before any word is chosen.

Comes in: a block. Goes out: which values XLA will keep inside a fused kernel, and which ones lie a
few elementwise steps from an argument or a result, where collectives can travel together.
"""

from dataclasses import dataclass, field

import jax.numpy as jnp

from sbp.cost_model import BUCKET_NBYTES
from sbp.program import Atom, Block, Constant, Equation, Value
from sbp.rules import find_rule

BARRIERS = ("barrier", "optimization_barrier")


@dataclass(slots=True)
class Flow:
    """Facts about values.

    Attributes:
        fused: Produced by an equation that fuses with its readers.
        stored: Must be in memory: read by something that does not fuse, or leaves its block.
        bucketed: Boxings of it can travel together with others: it is an argument or a result up
            to elementwise steps (a weight on its way in, a gradient on its way out). These are the
            ones that `CostModel.overlap` may assume hidden behind compute. With how many bytes they
            travel at most: in a loop, with what enters or leaves it in a turn.
    """

    fused: set[Value] = field(default_factory=set)
    stored: set[Value] = field(default_factory=set)
    bucketed: dict[Value, int] = field(default_factory=dict)

    def memory_traffic(self, equation: Equation) -> tuple[bool, ...]:
        """Which operands, then which results, of an equation go through memory."""
        reads = (isinstance(a, Value) and a not in self.fused for a in equation.inputs)
        return (*reads, *(value in self.stored for value in equation.outputs))

    def repeat(self, value: Value, behind: Value) -> None:
        """Says of one value what is known of another."""
        for facts in (self.fused, self.stored):
            if value in facts:
                facts.add(behind)
        if value in self.bucketed:
            self.bucketed[behind] = self.bucketed[value]


def is_fusible(equation: Equation) -> bool:
    """Whether an equation reads and writes memory only at the ends of a fused chain."""
    if equation.name in ("pin", "barrier"):
        return True
    rule = find_rule(equation.name)
    return rule is not None and rule.fusible


def is_kernel(equation: Equation) -> bool:
    """Whether an equation is a kernel of its own, which takes the floor of one at least."""
    return not is_fusible(equation) and not equation.bodies


def reads_fused(equation: Equation) -> bool:
    """Whether an equation can read its operands out of the kernel that computes them."""
    return is_fusible(equation) or equation.name.startswith("reduce_")


def analyse(block: Block) -> Flow:
    """Facts about every value of a program, bodies included."""
    flow = Flow()
    _note_memory(block, flow)
    for find, ends in (_from_arguments, set(block.inputs)), (_to_results, _values(block.outputs)):
        for value, nbytes in find(block, ends, BUCKET_NBYTES).items():
            flow.bucketed[value] = max(nbytes, flow.bucketed.get(value, 0))
    return flow


def _values(atoms: tuple[Atom, ...]) -> set[Value]:
    return {atom for atom in atoms if isinstance(atom, Value)}


def _note_memory(block: Block, flow: Flow) -> None:
    flow.stored |= _values(block.outputs)
    for equation in block.equations:
        # A pin is nothing at all; no kernel goes through a barrier.
        if equation.name == "pin":
            flow.fused |= set(equation.outputs) if equation.inputs[0] in flow.fused else set()
        elif equation.name not in BARRIERS and is_fusible(equation):
            flow.fused |= set(equation.outputs)
        if equation.name in BARRIERS or not reads_fused(equation):
            flow.stored |= _values(equation.inputs)
        for body in equation.bodies:
            _note_memory(body, flow)
    for equation in reversed(block.equations):
        if equation.name == "pin" and equation.outputs[0] in flow.stored:
            flow.stored |= _values(equation.inputs)


def _in_a_turn(values: set[Value]) -> int:
    """Bytes that a loop's collectives can share in one turn; an empty array sends nothing."""
    return min(BUCKET_NBYTES, max(1, sum(value.type.nbytes for value in values)))


def _from_arguments(block: Block, ends: set[Value], bucket: int) -> dict[Value, int]:
    near = dict.fromkeys(ends, bucket)
    for equation in block.equations:
        if equation.name == "scan":
            body = equation.bodies[0]
            pairs = zip(equation.inputs, body.inputs, strict=True)
            carried = set(body.inputs[slice(*carry_range(equation))])
            start = {v for outer, v in pairs if outer in near and v not in carried}
            near |= _from_arguments(body, start, _in_a_turn(start))
        elif is_fusible(equation) and equation.inputs:
            sources = _values(equation.inputs)
            if sources and sources <= near.keys():
                near |= dict.fromkeys(equation.outputs, bucket)
    return near


def _to_results(block: Block, ends: set[Value], bucket: int) -> dict[Value, int]:
    near = dict.fromkeys(ends, bucket)
    for equation in reversed(block.equations):
        if near.keys().isdisjoint(equation.outputs):
            continue
        if equation.name == "scan":
            body = equation.bodies[0]
            start, stop = carry_range(equation)
            stacked = zip(
                equation.outputs[stop - start :], body.outputs[stop - start :], strict=True
            )
            leaving = _values(tuple(v for outer, v in stacked if outer in near))
            near |= _to_results(body, leaving, _in_a_turn(leaving))
        elif is_fusible(equation):
            near |= dict.fromkeys(_values(equation.inputs), bucket)
    return near


def trip_count(equation: Equation) -> int | None:
    """How often a while loop runs, if it counts in equal steps from one number to another.

    That is what XLA finds out too. None where the number of trips depends on data.
    """
    condition, body = equation.bodies
    num_cond, num_body = equation.params["cond_nconsts"], equation.params["body_nconsts"]
    if len(condition.equations) != 1 or condition.outputs[0] not in condition.equations[0].outputs:
        return None
    (test,) = condition.equations
    carried = condition.inputs[num_cond:]
    place = next((k for k, value in enumerate(carried) if value is test.inputs[0]), None)
    if place is None or test.name not in _STOPS:
        return None
    counter = body.inputs[num_body + place]
    steps = [e for e in body.equations if body.outputs[place] in e.outputs and e.name == "add"]
    if not steps or counter not in steps[0].inputs:
        return None
    (step, *_) = (atom for atom in steps[0].inputs if atom is not counter)
    numbers = (equation.inputs[num_cond + num_body + place], step, test.inputs[1])
    if not all(
        isinstance(x, Constant) and jnp.issubdtype(x.type.dtype, jnp.integer) for x in numbers
    ):
        return None
    first, by, last = (int(x.value) for x in numbers if isinstance(x, Constant))
    if test.name == "ne":
        return (
            (last - first) // by if by and (last - first) % by == 0 <= (last - first) * by else None
        )
    direction, beyond = _STOPS[test.name]
    return len(range(first, last + beyond, by)) if by * direction > 0 else None


_STOPS = {"lt": (1, 0), "le": (1, 1), "gt": (-1, 0), "ge": (-1, -1), "ne": (0, 0)}
"""By comparison: in which direction a loop counts that ends, and how far beyond the number."""


def carry_range(equation: Equation) -> tuple[int, int]:
    """Positions of the carry among a scan's operands."""
    scan = equation.params["scan"]
    return scan.num_consts, scan.num_consts + scan.num_carry
