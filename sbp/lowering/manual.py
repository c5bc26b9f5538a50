"""The manual lowering: one `shard_map`, equation by equation, with the plan's collectives only.

Comes in: a program with its assignment, a mesh. Goes out: a function of global arrays. Inside,
every array is what one device holds; nothing communicates but the steps of the plan.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from sbp import _compat
from sbp.algebra import Words
from sbp.factors import Call, NdSignature, keep_params
from sbp.graph import call_of
from sbp.lowering.buckets import Load, run_bucket
from sbp.lowering.evaluation import Evaluator, Scope, writers_of
from sbp.lowering.loops import Step, scan_over
from sbp.lowering.moves import run_path, run_step
from sbp.plan.assignment import Assignment
from sbp.plan.ordering import order_block, overwritten
from sbp.plan.scheduling import Need
from sbp.program import Block, Constant, Equation, Traced, Value
from sbp.rules import find_rule
from sbp.rules.rule import LocalRun, local_call

GPUS = frozenset(["cuda", "gpu", "rocm"])
"""What jax calls the platforms for which XLA's GPU compiler compiles."""


def lower_manually(
    traced: Traced, assignment: Assignment, mesh: Any, in_specs: Sequence[PartitionSpec],
    out_specs: Sequence[PartitionSpec],
) -> Callable[..., Sequence[Any]]:  # fmt: skip
    """The program on global arrays: the arguments, then the closed-over arrays.

    Args:
        traced: The program.
        assignment: Its choices.
        mesh: A jax mesh with the plan's axes.
        in_specs: Shardings of arguments and closed-over arrays.
        out_specs: Shardings of results.
    """
    on_gpu = mesh.devices.flat[0].platform in GPUS
    evaluator = ManualEvaluator(assignment, on_gpu=on_gpu)
    wanted = [assignment.label(None, "result", k) for k in range(len(traced.block.outputs))]

    def local(*arrays: Any) -> tuple[Any, ...]:
        return tuple(evaluator.run(traced.block, arrays, wanted, Scope()))

    return jax.shard_map(
        local, mesh=mesh, in_specs=tuple(in_specs), out_specs=tuple(out_specs), check_vma=False
    )


class ManualEvaluator(Evaluator):
    """Runs blocks on local arrays inside a `shard_map` over all axes."""

    def __init__(self, assignment: Assignment, *, on_gpu: bool) -> None:
        """Takes the choices to run under, and whether XLA's GPU compiler compiles it."""
        super().__init__(assignment)
        self.on_gpu = on_gpu
        mesh = assignment.boxing.graph.mesh
        self.axes, self.sizes = mesh.axes, mesh.sizes
        self._local_calls: dict[tuple[Call, NdSignature, int], Call] = {}

    def order(self, block: Block, wanted: Sequence[Words], scope: Scope) -> Iterator[Equation]:
        """Runs collectives between equations, those together that can travel together."""
        turns = order_block(self.assignment, block, wanted, lambda *at: scope.find(*at) is not None)
        writers = writers_of(block)
        halfway: dict[Need, Load] = {}
        for turn in turns:
            if isinstance(turn, Equation):
                yield turn
            else:
                need = turn.needs[0]
                reader = need.equation and need.equation.equation
                with _compat.equation_context(reader or writers.get(need.value)):
                    self._launch(turn.needs, scope, halfway)

    def run_loop(
        self, step: Step, carry: Sequence[Any], xs: Sequence[Any], block: Block, equation: Equation
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Runs a scan, with what it stacks written over what it reads, as far as that goes."""
        over = overwritten(self.assignment, block, equation)
        if not over:
            return super().run_loop(step, carry, xs, block, equation)
        scan = equation.params["scan"]
        return scan_over(step, carry, xs, scan, over, a_turn_later=not self.on_gpu)

    def _launch(self, needs: Sequence[Need], scope: Scope, halfway: dict[Need, Load]) -> None:
        """Runs the next collective of some boxings, with the local steps around it."""
        loads = []
        for need in needs:
            load = halfway.pop(need, None)
            if load is None:
                load = Load(scope.find(need.value, need.src), need.steps, need.value.type)
            loads.append(self._run_local_steps(load))
        for need, load in zip(needs, run_bucket(loads, self.axes, self.sizes), strict=True):
            if all(step.is_local for step in load.steps):
                scope.hold(need.value, need.dst, self._run_local_steps(load).x)
            else:
                halfway[need] = load

    def _run_local_steps(self, load: Load) -> Load:
        x, steps = load.x, load.steps
        while steps and steps[0].is_local:
            x, steps = run_step(x, steps[0], load.array, self.axes, self.sizes), steps[1:]
        return Load(x, steps, load.array)

    def move(self, array: Any, value: Value, src: Words, dst: Words) -> Any:
        """Runs the collectives from `src` to `dst`."""
        path = self.assignment.path(value, src, dst)
        return run_path(array, path, value.type, self.axes, self.sizes)

    def constant(self, constant: Constant, words: Words) -> Any:
        """The number, sliced or masked to its words."""
        if words == self.whole:
            return constant.value
        array = jnp.asarray(constant.value, constant.type.dtype)
        path = self.assignment.constant_path(constant, words)
        return run_path(array, path, constant.type, self.axes, self.sizes)

    def call(self, equation: Equation, args: Sequence[Any]) -> Sequence[Any]:
        """Runs a primitive on local arrays, by its rule where the rule says how."""
        signature = self.assignment.signature(equation)
        call, rule = call_of(equation), find_rule(equation.name)
        primitive = equation.equation.primitive
        if rule is None or (rule.run is None and rule.localize is keep_params):
            return _compat.bind(primitive, args, dict(equation.params))
        local = local_call(call, signature, self.sizes, rule)
        if rule.run is None:
            return _compat.bind(primitive, args, dict(local.params))
        run = LocalRun(
            call, local, signature, self.sizes, lambda axis: lax.axis_index(self.axes[axis])
        )
        return rule.run(run, args)

    def effect(self, equation: Equation, args: Sequence[Any]) -> Sequence[Any]:
        """Runs an effect on the first device only, or every device would."""
        primitive = equation.equation.primitive

        def run(*operands: Any) -> None:
            _compat.bind(primitive, operands, dict(equation.params))

        lax.cond(lax.axis_index(self.axes) == 0, run, lambda *_: None, *args)
        return []

    def settle(self, array: Any, value: Value, words: Words) -> Any:
        """Nothing to do: a local array has the words it has."""
        return array
