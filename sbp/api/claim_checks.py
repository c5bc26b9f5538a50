"""Whether a function keeps the words that its author claims on one axis; if not, what it would.

Comes in: a traced function, an axis, and the words claimed for arguments and results. Goes out:
nothing, or a `SignatureError` whose repairs were tried.
"""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from sbp.algebra import ArrayType, B, NdSbp, P, Split, Word, format_type
from sbp.boxing import boxing_path, format_nbytes
from sbp.cost_model import CostModel
from sbp.errors import SbpError, SignatureError
from sbp.graph import Boundary, Graph, Mesh, build_graph, result_name
from sbp.hardware import CPU
from sbp.plan.planning import Conditions, make_plan
from sbp.problem import Problem
from sbp.program import Traced
from sbp.search import solve_optimally

MOST_REPAIRS = 2
"""Claims that hold, named in an error beside `strict=False`."""

MOST_TRIED = 512
"""Claims tried to find them."""

Side = tuple[Word | None, ...]
"""A word for each leaf; None where it is inferred."""
Choice = tuple[int, Word | None]
"""A word, and the bytes of boxing what has it to the word claimed, or the other way."""


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """What is claimed of a function on one axis.

    Attributes:
        function: Its name.
        axis: The mesh axis.
        given: The claim as its author gave it.
        where: The user's line that calls the function.
        argument_paths: Names of the arguments' leaves.
        result_paths: Names of the results' leaves.
        arguments: Words claimed for the arguments.
        results: Words claimed for the results.
        spell: Words as their author would write them.
    """

    function: str
    axis: str
    given: Any
    where: str
    argument_paths: tuple[str, ...]
    result_paths: tuple[str, ...]
    arguments: Side
    results: Side
    spell: Callable[[Side, Side], Any]

    def boundary(self) -> Boundary:
        """The words as a plan's ends."""
        return Boundary(
            self.argument_paths, self.result_paths, self._words(self.arguments),
            self._words(self.results),
        )  # fmt: skip

    def _words(self, side: Side) -> tuple[NdSbp | None, ...]:
        return tuple(None if word is None else NdSbp({self.axis: word}) for word in side)


def check_claim(claim: Claim, traced: Traced, mesh: Mesh) -> None:
    """Refuses a claim that does not hold.

    Args:
        claim: The claim.
        traced: The function.
        mesh: The mesh; other axes than that of the claim play no part.

    Raises:
        SignatureError: On the axis something would have to be boxed inside.
    """
    number = mesh.axes.index(claim.axis)
    alone = Mesh(mesh.axes, tuple(n if k == number else 1 for k, n in enumerate(mesh.sizes)))
    if mesh.sizes[number] > 1 and not _holds(claim, traced, alone):
        raise _refusal(claim, traced, alone, mesh.sizes[number])


def holds_without_boxing(graph: Graph) -> bool:
    """Whether some choice changes the words of no array."""
    live = [axis for axis, size in enumerate(graph.mesh.sizes) if size > 1]
    costs = [np.zeros(len(node.domain.labels)) for node in graph.nodes]
    edges: dict[tuple[int, int], Any] = {}
    for value, readers in graph.readers.items():
        writer = graph.writers[value]
        for reader in readers:
            written, read = ([[w[a] for a in live] for w in p.words] for p in (writer, reader))
            same = np.array([[a == b for b in read] for a in written])
            matrix = np.where(same, 0.0, np.inf)
            u, v = writer.node, reader.node
            if u == v:
                costs[u] = costs[u] + np.diagonal(matrix)
            elif u < v:
                edges[u, v] = edges.get((u, v), 0.0) + matrix
            else:
                edges[v, u] = edges.get((v, u), 0.0) + matrix.T
    aspects = [node.domain.aspects for node in graph.nodes]
    return solve_optimally(Problem(tuple(costs), edges), aspects) is not None


def word_choices(shape: Sequence[int], size: int) -> list[Word]:
    """Words that an array can have at the ends of a function, on an axis of a size."""
    return [Split(d) for d, n in enumerate(shape) if n and n % size == 0] + [B, P]


def _holds(claim: Claim, traced: Traced, alone: Mesh) -> bool:
    # A result that is inferred may be partial.
    open_results: list[tuple[Word | None, ...]] = [
        (word,) if word is not None else (None, P) for word in claim.results
    ]
    for results in itertools.product(*open_results):
        tried = dataclasses.replace(claim, results=results)
        try:
            graph = build_graph(traced, alone, CostModel(CPU, alone.sizes), tried.boundary())
        except SbpError:
            continue
        if holds_without_boxing(graph):
            return True
    return False


def _refusal(claim: Claim, traced: Traced, alone: Mesh, size: int) -> SignatureError:
    costs = CostModel(CPU, alone.sizes, objective="bytes")
    # What may be boxed inside is planned as if nothing were claimed of what is in there.
    plan, _ = make_plan(
        claim.function, _unsealed(traced), alone, costs, claim.boundary(), Conditions()
    )
    row = next(row for row in plan.boxings if row.axes)
    repairs = itertools.islice(_repairs(claim, traced, alone, size), MOST_REPAIRS)
    inside = (plan.wire_nbytes, "strict=False, which boxes inside")
    ranked = sorted([*repairs, inside], key=lambda repair: repair[0])
    return SignatureError(
        f"{claim.function} does not keep {claim.axis}={claim.given!r} without boxing inside",
        where=claim.where,
        why=f"{_typed(claim, traced)}\nNo signatures inside lead from the one to the other on "
        f"{claim.axis}: {row.source or claim.function} needs {row.collective} of "
        f"{row.value_type}, {row.src} -> {row.dst}.",
        how=[f"{text}: {format_nbytes(nbytes)} a device" for nbytes, text in ranked],
    )


def _unsealed(traced: Traced) -> Traced:
    block = traced.block
    equations = tuple(dataclasses.replace(e, sealed_reads=frozenset()) for e in block.equations)
    return dataclasses.replace(traced, block=dataclasses.replace(block, equations=equations))


def _typed(claim: Claim, traced: Traced) -> str:
    """Arguments and results as types on the axis."""

    def side(paths: Sequence[str], atoms: Sequence[Any], words: Side) -> str:
        return ", ".join(
            f"{path} {format_type(atom.type, (claim.axis,), (word or B,))}"
            for path, atom, word in zip(paths, atoms, words, strict=True)
        )

    block = traced.block
    arguments = block.inputs[: traced.num_arguments]
    return (
        f"{side(claim.argument_paths, arguments, claim.arguments)} -> "
        f"{side([*map(result_name, claim.result_paths)], block.outputs, claim.results)}"
    )


def _repairs(claim: Claim, traced: Traced, alone: Mesh, size: int) -> Iterator[tuple[int, str]]:
    """Claims that hold, nearest first: bytes to box outside, and text."""
    arguments = [value.type for value in traced.block.inputs[: traced.num_arguments]]
    arrays = [*arguments, *(atom.type for atom in traced.block.outputs)]
    words = (*claim.arguments, *claim.results)
    choices = [
        list(_choices(word, array, size, is_result=place >= len(arguments)))
        for place, (word, array) in enumerate(zip(words, arrays, strict=True))
    ]
    if math.prod(map(len, choices)) <= MOST_TRIED:
        combinations = itertools.product(*choices)
    else:
        combinations = _changes_of_two([(0, word) for word in words], choices)
    ranked = sorted(
        ((sum(nbytes for nbytes, _ in each), tuple(word for _, word in each))
         for each in combinations),
        key=lambda each: each[0],
    )  # fmt: skip
    for nbytes, changed in ranked[:MOST_TRIED]:
        sides = changed[: len(arguments)], changed[len(arguments) :]
        other = dataclasses.replace(claim, arguments=sides[0], results=sides[1])
        if _holds(other, traced, alone):
            yield nbytes, f"{claim.axis}={claim.spell(*sides)!r}, boxed outside"


def _changes_of_two(
    words: Sequence[Choice], choices: Sequence[Sequence[Choice]]
) -> Iterator[tuple[Choice, ...]]:
    """Words with one changed, or two."""
    changes = [(place, choice) for place, each in enumerate(choices) for choice in each]
    for one, other in itertools.combinations_with_replacement(changes, 2):
        changed = dict([one, other])
        yield tuple(changed.get(place, word) for place, word in enumerate(words))


def _choices(
    word: Word | None, array: ArrayType, size: int, *, is_result: bool
) -> Iterator[Choice]:
    """A word that is claimed, and others, each with the bytes of boxing it from or to that."""
    yield 0, word
    for other in word_choices(array.shape, size):
        if word is None or other == word:
            continue
        src, dst = (other, word) if is_result else (word, other)
        # What nothing can be boxed to is no choice.
        with contextlib.suppress(SbpError):
            steps = boxing_path((src,), (dst,), array, (size,))
            yield sum(step.nbytes for step in steps), other
