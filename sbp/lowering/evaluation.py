"""Evaluating a block under a plan: what both lowerings share.

Comes in: a block, an assignment, arrays. Goes out: the block's results in the words that are asked
for. `Evaluator` walks equations and rebuilds loops and branches; how an array is brought into other
words and how a call is run is what `manual` and `auto` fill in.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from sbp import _compat
from sbp.algebra import Words
from sbp.lowering.loops import Step
from sbp.plan.assignment import Assignment
from sbp.plan.ordering import operand_words
from sbp.program import Atom, Block, Constant, Equation, Value


def writers_of(block: Block) -> dict[Atom, Any]:
    """The equation of jax that computes each value: the user's line where no equation reads it."""
    return {value: e.equation for e in block.equations for value in e.outputs}


class Scope:
    """Arrays at hand, by value and words. Those of an enclosing scope can be read, not added to."""

    def __init__(self, outer: "Scope | None" = None) -> None:
        """Starts empty inside `outer`."""
        self._outer = outer
        self._held: dict[Value, dict[Words, Any]] = {}

    def find(self, value: Value, words: Words) -> Any:
        """The array of a value in some words, or None."""
        found = self._held.get(value, {}).get(words)
        return self._outer.find(value, words) if found is None and self._outer else found

    def hold(self, value: Value, words: Words, array: Any) -> None:
        """Keeps the array of a value in some words."""
        self._held.setdefault(value, {})[words] = array


class Evaluator(ABC):
    """Runs blocks under one assignment."""

    def __init__(self, assignment: Assignment) -> None:
        """Takes the choices to run under."""
        self.assignment = assignment
        self.whole = assignment.whole

    @abstractmethod
    def move(self, array: Any, value: Value, src: Words, dst: Words) -> Any:
        """The array of a value in other words."""

    @abstractmethod
    def constant(self, constant: Constant, words: Words) -> Any:
        """A number written into the program, in some words."""

    @abstractmethod
    def call(self, equation: Equation, args: Sequence[Any]) -> Sequence[Any]:
        """Runs one primitive on arrays in the words of its signature."""

    @abstractmethod
    def effect(self, equation: Equation, args: Sequence[Any]) -> Sequence[Any]:
        """Runs a primitive with effects once, on whole arrays."""

    @abstractmethod
    def settle(self, array: Any, value: Value, words: Words) -> Any:
        """Called on what a loop carries or a pin hands on, once it is in its words."""

    def order(self, block: Block, wanted: Sequence[Words], scope: Scope) -> Iterable[Equation]:
        """The equations of a block in the order in which to run them.

        Args:
            block: Equations.
            wanted: Words of its results.
            scope: Holds its inputs.
        """
        return block.equations

    def run_loop(
        self, step: Step, carry: Sequence[Any], xs: Sequence[Any], block: Block, equation: Equation
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Runs a scan.

        Args:
            step: Its body.
            carry: What the first turn takes.
            xs: Stacked operands.
            block: The block that it is in.
            equation: The scan.
        """
        scan = equation.params["scan"]
        return lax.scan(step, carry, xs, scan.length, scan.reverse, scan.unroll)

    def read(self, scope: Scope, atom: Atom, words: Words) -> Any:
        """An operand in some words, boxed if it is not at hand."""
        if isinstance(atom, Constant):
            return self.constant(atom, words)
        found = scope.find(atom, words)
        if found is not None:
            return found
        for src, dst in self.assignment.route(atom, words):
            if scope.find(atom, dst) is None:
                scope.hold(atom, dst, self.move(scope.find(atom, src), atom, src, dst))
        return scope.find(atom, words)

    def write(self, scope: Scope, value: Value, array: Any) -> None:
        """Keeps a result in the words in which it is written."""
        scope.hold(value, self.assignment.written(value), array)

    def run(
        self, block: Block, args: Sequence[Any], wanted: Sequence[Words], outer: Scope
    ) -> list[Any]:
        """Runs a block.

        Args:
            block: Equations.
            args: Its inputs, in the words in which they are written.
            wanted: Words of its results.
            outer: The enclosing scope.
        """
        scope = Scope(outer)
        for value, array in zip(block.inputs, args, strict=True):
            self.write(scope, value, array)
        for equation in self.order(block, wanted, scope):
            # Boxings too are made under the user's line: the compiled program can be read back.
            with _compat.equation_context(equation.equation):
                self._run_equation(block, equation, scope)
        writers = writers_of(block)
        results = []
        for atom, words in zip(block.outputs, wanted, strict=True):
            with _compat.equation_context(writers.get(atom)):
                results.append(self.read(scope, atom, words))
        return [
            jnp.asarray(array) if isinstance(atom, Constant) else array
            for array, atom in zip(results, block.outputs, strict=True)
        ]

    def _run_equation(self, block: Block, equation: Equation, scope: Scope) -> None:
        args = [
            self.read(scope, atom, words)
            for atom, words in operand_words(self.assignment, equation)
        ]
        match equation.name:
            case "pin":
                words = self.assignment.label(equation, "pin")
                results: Sequence[Any] = [self.settle(args[0], equation.outputs[0], words)]
            case "barrier":
                results = lax.optimization_barrier(args) if args else []
            case "scan":
                results = self._run_scan(block, equation, args, scope)
            case "while":
                results = self._run_while(equation, args, scope)
            case "cond":
                results = self._run_cond(equation, args, scope)
            case _:
                run = self.effect if equation.has_effects else self.call
                results = run(equation, args)
        for value, array in zip(equation.outputs, results, strict=True):
            self.write(scope, value, array)

    def _labels(self, equation: Equation, role: str, count: int) -> list[Words]:
        return [self.assignment.label(equation, role, k) for k in range(count)]

    def _run_scan(
        self, block: Block, equation: Equation, args: Sequence[Any], scope: Scope
    ) -> Sequence[Any]:
        scan, body = equation.params["scan"], equation.bodies[0]
        num_carry, num_consts = scan.num_carry, scan.num_consts
        carries = self._labels(equation, "carry", num_carry)
        stacks = self._labels(equation, "stack", len(equation.outputs) - num_carry)
        held, carry, xs = (
            args[:num_consts],
            args[num_consts : num_consts + num_carry],
            args[num_consts + num_carry :],
        )
        settled = body.inputs[num_consts : num_consts + num_carry]

        def step(carry: Sequence[Any], xs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            carry = [
                self.settle(array, value, words)
                for array, value, words in zip(carry, settled, carries, strict=True)
            ]
            results = self.run(body, [*held, *carry, *xs], [*carries, *stacks], scope)
            return results[:num_carry], results[num_carry:]

        carry, ys = self.run_loop(step, carry, xs, block, equation)
        return [*carry, *ys]

    def _run_while(self, equation: Equation, args: Sequence[Any], scope: Scope) -> Sequence[Any]:
        condition, body = equation.bodies
        num_cond, num_body = equation.params["cond_nconsts"], equation.params["body_nconsts"]
        carries = self._labels(equation, "carry", len(equation.outputs))
        cond_held, body_held = args[:num_cond], args[num_cond : num_cond + num_body]

        def go_on(carry: Sequence[Any]) -> Any:
            return self.run(condition, [*cond_held, *carry], [self.whole], scope)[0]

        def step(carry: Sequence[Any]) -> list[Any]:
            return self.run(body, [*body_held, *carry], carries, scope)

        start = args[num_cond + num_body :]
        return lax.while_loop(go_on, step, start)

    def _run_cond(self, equation: Equation, args: Sequence[Any], scope: Scope) -> Sequence[Any]:
        joins = self._labels(equation, "join", len(equation.outputs))

        def branch_of(block: Block) -> Any:
            return lambda *operands: self.run(block, operands, joins, scope)

        return lax.switch(args[0], [branch_of(block) for block in equation.bodies], *args[1:])
