"""The auto lowering: the user's program under `jax.jit`, with shardings and a few constraints.

Comes in: a program with its assignment, a mesh with Auto axes. Goes out: a function of global
arrays. XLA's partitioner chooses the communication; the plan only says how contractions' results,
loop carries and pinned values lie. It gives the same numbers as the manual lowering, not the plan's
bytes, as Auto axes have no word for Partial.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from sbp import _compat
from sbp.algebra import Broadcast, Partial, Words
from sbp.lowering.evaluation import Evaluator, Scope
from sbp.plan.assignment import Assignment
from sbp.program import Constant, Equation, Traced, Value
from sbp.specs import spec_of

CONTRACTIONS = ("dot_general", "conv_general_dilated")


def lower_automatically(
    traced: Traced, assignment: Assignment, mesh: Any
) -> Callable[..., Sequence[Any]]:
    """The program on global arrays: the arguments, then the closed-over arrays.

    Args:
        traced: The program.
        assignment: Its choices.
        mesh: A jax mesh with the plan's axes, all Auto.
    """
    evaluator = AutoEvaluator(assignment, mesh)
    wanted = [assignment.label(None, "result", k) for k in range(len(traced.block.outputs))]

    def program(*arrays: Any) -> Sequence[Any]:
        results = evaluator.run(traced.block, arrays, wanted, Scope())
        return [jax.numpy.asarray(x) if not hasattr(x, "dtype") else x for x in results]

    return program


class AutoEvaluator(Evaluator):
    """Runs blocks on global arrays."""

    def __init__(self, assignment: Assignment, mesh: Any) -> None:
        """Takes the choices to run under, and the mesh."""
        super().__init__(assignment)
        self.mesh = mesh

    def move(self, array: Any, value: Value, src: Words, dst: Words) -> Any:
        """The same array: XLA moves it when it must."""
        return array

    def constant(self, constant: Constant, words: Words) -> Any:
        """The number."""
        return constant.value

    def call(self, equation: Equation, args: Sequence[Any]) -> Sequence[Any]:
        """Binds the primitive, and constrains the result of a contraction."""
        results = _compat.bind(equation.equation.primitive, args, dict(equation.params))
        if equation.name not in CONTRACTIONS:
            return results
        words = self.assignment.signature(equation).outputs
        triples = zip(results, equation.outputs, words, strict=True)
        return [self.settle(*triple) for triple in triples]

    def effect(self, equation: Equation, args: Sequence[Any]) -> Sequence[Any]:
        """Binds the primitive: a program of global arrays runs it once."""
        return _compat.bind(equation.equation.primitive, args, dict(equation.params))

    def settle(self, array: Any, value: Value, words: Words) -> Any:
        """Constrains an array to its words, unless they say nothing or are partial."""
        if any(isinstance(w, Partial) for w in words):
            return array
        if all(isinstance(w, Broadcast) for w in words):
            return array
        spec = spec_of(self.mesh.axis_names, words, len(value.type.shape))
        return jax.lax.with_sharding_constraint(array, NamedSharding(self.mesh, spec))
