"""A traced program: equations in blocks, every array a `Value` of its own.

`sbp.tracing` makes it, the graph is built of it, and the lowering runs it. Also here: which part
of a block what is wanted of it needs.
"""

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sbp.algebra import ArrayType, format_type


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Value:
    """One array of the program: an argument, a constant, or the result of an equation.

    Attributes:
        type: Logical shape and dtype.
    """

    type: ArrayType


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Constant:
    """A value written into the program.

    Attributes:
        type: Its shape and dtype.
        value: The number itself.
    """

    type: ArrayType
    value: Any


Atom = Value | Constant


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Equation:
    """One primitive applied to values.

    Attributes:
        name: The primitive's name; `pin` and `barrier` are our own.
        inputs: Operands.
        outputs: Results.
        params: The primitive's parameters; of a pin, `words`; of a scan, `scan`.
        source: The user's `file:line`.
        bodies: Blocks of a loop or branch; empty otherwise.
        equation: jax's equation, None where there is none.
        has_effects: Whether it must run although nothing may use its results.
        sealed_reads: Mesh axes on which it reads as they are what is written sealed on them.
        sealed_writes: Mesh axes on which what it writes is sealed.
    """

    name: str
    inputs: tuple[Atom, ...]
    outputs: tuple[Value, ...]
    params: Mapping[str, Any]
    source: str
    bodies: tuple["Block", ...] = ()
    equation: Any = None
    has_effects: bool = False
    sealed_reads: frozenset[str] = frozenset()
    sealed_writes: frozenset[str] = frozenset()

    @property
    def is_sealed(self) -> bool:
        """Whether it, or an equation in its bodies, reads anything as it is."""
        inside = (inner for body in self.bodies for inner in body.equations)
        return bool(self.sealed_reads) or any(e.is_sealed for e in inside)

    def sealed(self, reads: Iterable[str], writes: Iterable[str]) -> "Equation":
        """The same equation, sealed on more axes; on all of them in its bodies."""
        reads, writes = self.sealed_reads.union(reads), self.sealed_writes.union(writes)
        bodies = (
            dataclasses.replace(b, equations=tuple(e.sealed(reads, reads) for e in b.equations))
            for b in self.bodies
        )
        return dataclasses.replace(
            self, bodies=tuple(bodies), sealed_reads=reads, sealed_writes=writes
        )


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Block:
    """Equations in order, with what flows in and out."""

    inputs: tuple[Value, ...]
    outputs: tuple[Atom, ...]
    equations: tuple[Equation, ...]


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Traced:
    """A function as one block.

    Attributes:
        block: The program; its inputs are the arguments, then the closed-over arrays.
        num_arguments: How many of the inputs are arguments.
        consts: The closed-over arrays.
        notes: What the user should know of how the function was read.
    """

    block: Block
    num_arguments: int
    consts: tuple[Any, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(_print_block(self.block, {}, ""))

    @property
    def fingerprint(self) -> str:
        """A digest of the program, equal in every process that traces the same function."""
        return hashlib.sha256(str(self).encode()).hexdigest()[:16]


def has_effects(equation: Equation) -> bool:
    """Whether an equation, or one in its bodies, must run although nothing may use its results."""
    inside = (inner for body in equation.bodies for inner in body.equations)
    return equation.has_effects or any(map(has_effects, inside))


def needed_part(block: Block, wanted: Sequence[bool]) -> tuple[Block, list[bool]]:
    """The equations that some results of a block need, and which of its inputs they need.

    What a while loop carries for nobody, jax keeps and XLA drops; here it goes too. Inputs stay.

    Args:
        block: Equations.
        wanted: Whether each result is wanted; of the others, only equations are dropped.
    """
    live = {atom for atom, is_wanted in zip(block.outputs, wanted, strict=True) if is_wanted}
    kept: list[Equation] = []
    for equation in reversed(block.equations):
        if live.isdisjoint(equation.outputs) and not has_effects(equation):
            continue
        if equation.name == "while":
            equation = _needed_carry(equation, [value in live for value in equation.outputs])
        elif equation.bodies:
            bodies = (needed_part(b, [True] * len(b.outputs))[0] for b in equation.bodies)
            equation = dataclasses.replace(equation, bodies=tuple(bodies))
        live.update(equation.inputs)
        kept.append(equation)
    needed = [value in live for value in block.inputs]
    return dataclasses.replace(block, equations=tuple(reversed(kept))), needed


def _needed_carry(equation: Equation, wanted: Sequence[bool]) -> Equation:
    """A while loop without what it carries for nobody."""
    condition, body = equation.bodies
    num_cond, num_body = equation.params["cond_nconsts"], equation.params["body_nconsts"]
    condition, in_condition = needed_part(condition, [True])
    carried = [x or y for x, y in zip(wanted, in_condition[num_cond:], strict=True)]
    while True:
        live_body, in_body = needed_part(body, carried)
        more = [x or y for x, y in zip(carried, in_body[num_body:], strict=True)]
        if more == carried:
            break
        carried = more
    keep_cond, keep_body = in_condition[:num_cond], in_body[:num_body]
    counts = {"cond_nconsts": sum(keep_cond), "body_nconsts": sum(keep_body)}

    def keep(values: Sequence[Any], flags: Sequence[bool]) -> tuple[Any, ...]:
        return tuple(value for value, flag in zip(values, flags, strict=True) if flag)

    def inner(block: Block, consts: Sequence[bool], outputs: Sequence[bool]) -> Block:
        inputs = keep(block.inputs, [*consts, *carried])
        return Block(inputs, keep(block.outputs, outputs), block.equations)

    return dataclasses.replace(
        equation,
        inputs=keep(equation.inputs, [*keep_cond, *keep_body, *carried]),
        outputs=keep(equation.outputs, carried),
        params={**equation.params, **counts},
        bodies=(inner(condition, keep_cond, [True]), inner(live_body, keep_body, carried)),
    )


def _print_block(block: Block, names: dict[Value, str], indent: str) -> Iterator[str]:
    def name(atom: Atom) -> str:
        if isinstance(atom, Constant):
            return f"{atom.value}:{format_type(atom.type)}"
        return names.setdefault(atom, f"v{len(names)}")

    def typed(values: Sequence[Value]) -> str:
        return " ".join(f"{name(value)}:{format_type(value.type)}" for value in values)

    yield f"{indent}in {typed(block.inputs)}"
    for equation in block.equations:
        shown = sorted(
            (key, _ADDRESS.sub("", str(value)))
            for key, value in equation.params.items()
            if not equation.bodies
        )
        params = f"[{', '.join(f'{key}={value}' for key, value in shown)}]" if shown else ""
        if equation.name == "scan":
            scan = equation.params["scan"]
            params = f"[length={scan.length}, reverse={scan.reverse}]"
        if equation.sealed_reads:
            params += f"[sealed on {', '.join(sorted(equation.sealed_reads))}]"
        operands = " ".join(map(name, equation.inputs))
        yield f"{indent}{typed(equation.outputs)} = {equation.name}{params} {operands}"
        for body in equation.bodies:
            yield from _print_block(body, names, indent + "  ")
    yield f"{indent}out {' '.join(map(name, block.outputs))}"


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
