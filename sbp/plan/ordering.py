"""What each equation of a block reads under a plan, and in which order a block runs.

Comes in: a block and an assignment. Goes out: the order of its equations and collectives, the same
for the lowering, which runs it, and for the prediction of memory.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

import jax
import jax.numpy as jnp

from sbp.algebra import ArrayType, P, Partial, Words, local_type
from sbp.boxing import Step, permutation, permuted_axes
from sbp.graph import stacked
from sbp.plan.assignment import Assignment
from sbp.plan.scheduling import At, Launch, Need, Reading, Scheduler
from sbp.program import Atom, Block, Equation, Value

Pairs = tuple[tuple[int, int], ...]


def bucket_key(step: Step, array: ArrayType, sizes: Sequence[int]) -> Hashable | None:
    """Steps with equal keys can share a collective; None for one that travels alone.

    Alone go empty arrays, which send nothing; maxima and minima, which are reduced as bit patterns;
    and extended dtypes, which cannot be laid end to end.

    Args:
        step: A step that is not local.
        array: The logical array.
        sizes: Number of devices of each mesh axis.
    """
    word = step.src[step.axes[0]]
    if array.size == 0 or jnp.issubdtype(array.dtype, jax.dtypes.extended):
        return None
    if isinstance(word, Partial) and word != P:
        return None
    key = (step.kind, step.axes, str(array.dtype))
    if step.kind == "collective-permute":
        return (*key, bucket_permutation(step, array, tuple(sizes)))
    return key


def bucket_permutation(
    step: Step, array: ArrayType, sizes: tuple[int, ...]
) -> tuple[tuple[int, ...], Pairs]:
    """The axes over which devices are numbered, and who sends to whom."""
    axes = permuted_axes(step)
    return axes, permutation(axes, step.src, step.dst, array.ndim, sizes)[0]


def operand_words(assignment: Assignment, equation: Equation) -> list[tuple[Atom, Words]]:
    """What an equation reads, and in which words."""
    inputs = equation.inputs

    def labels(role: str, count: int) -> list[Words]:
        return [assignment.label(equation, role, k) for k in range(count)]

    match equation.name:
        case "pin":
            words = labels("pin", 1)
        case "barrier":
            words = labels("barrier", len(inputs))
        case "scan":
            scan = equation.params["scan"]
            num_slices = len(inputs) - scan.num_consts - scan.num_carry
            words = [
                *labels("const", scan.num_consts),
                *labels("carry", scan.num_carry),
                *map(stacked, labels("slice", num_slices)),
            ]
        case "while":
            words = [
                *labels("cond_const", equation.params["cond_nconsts"]),
                *labels("body_const", equation.params["body_nconsts"]),
                *labels("carry", len(equation.outputs)),
            ]
        case "cond":
            words = [assignment.whole, *labels("operand", len(inputs) - 1)]
        case _:
            words = list(assignment.signature(equation).inputs)
    return list(zip(inputs, words, strict=True))


def overwritten(assignment: Assignment, block: Block, equation: Equation) -> dict[int, int]:
    """Which stacked results a loop writes over stacked operands: position -> position, of stacks.

    So a gradient takes the place of its weight, slice by slice. Left alone are operands that the
    block was given, such as arguments: to write over them they would be copied.

    Args:
        assignment: The choices.
        block: The block that the loop is in.
        equation: The loop, a scan.
    """
    scan, sizes = equation.params["scan"], assignment.boxing.graph.mesh.sizes
    free: dict[ArrayType, list[int]] = {}
    if scan.length > 1:
        operands = operand_words(assignment, equation)[scan.num_consts + scan.num_carry :]
        for place, (atom, words) in enumerate(operands):
            is_given = atom in block.inputs and words == assignment.written(atom)
            if isinstance(atom, Value) and not is_given:
                free.setdefault(local_type(atom.type, words, sizes), []).append(place)
    over: dict[int, int] = {}
    for place, value in enumerate(equation.outputs[scan.num_carry :]):
        same = free.get(local_type(value.type, assignment.written(value), sizes))
        if same:
            over[place] = same.pop(0)
    return over


def order_block(
    assignment: Assignment, block: Block, wanted: Sequence[Words],
    is_at_hand: Callable[[Value, Words], bool],
) -> Iterator[Equation | Launch]:  # fmt: skip
    """The order in which a block runs, those collectives together that can travel together.

    Args:
        assignment: The choices.
        block: Equations.
        wanted: Words of its results.
        is_at_hand: Whether a value is there, in some words, before the block starts.
    """
    sizes = assignment.boxing.graph.mesh.sizes
    readings, needs = _waits(assignment, block, wanted, is_at_hand)
    scheduler = Scheduler(
        readings,
        needs,
        lambda step, array: bucket_key(step, array, sizes),
        lambda array, words: local_type(array, words, sizes).nbytes,
    )
    return scheduler.run(lambda at: is_at_hand(*at))


def _waits(
    assignment: Assignment, block: Block, wanted: Sequence[Words],
    is_at_hand: Callable[[Value, Words], bool],
) -> tuple[list[Reading], list[Need]]:  # fmt: skip
    """What each equation of a block waits for, and the boxings that it takes."""
    needs: dict[At, Need] = {}

    def wait(equation: Equation | None, value: Value, words: Words) -> At:
        at = assignment.written(value)
        steps: tuple[Step, ...] = ()
        for src, dst in assignment.route(value, words):
            steps += assignment.path(value, src, dst)
            if not all(step.is_local for step in steps):
                if not is_at_hand(value, dst):
                    needs.setdefault((value, dst), Need(value, at, dst, steps, equation))
                at, steps = dst, ()
        return value, at

    def reading(equation: Equation | None, operands: Iterable[tuple[Atom, Words]]) -> Reading:
        reads = [wait(equation, a, words) for a, words in operands if isinstance(a, Value)]
        outputs = equation.outputs if equation else ()
        writes = tuple((value, assignment.written(value)) for value in outputs)
        return Reading(equation, frozenset(reads), writes)

    readings = [reading(e, operand_words(assignment, e)) for e in block.equations]
    readings.append(reading(None, zip(block.outputs, wanted, strict=True)))
    return readings, list(needs.values())
