"""The search: exact where the problem is small or thin, message passing with polishing where not.

Comes in: a `Problem` and first labellings. Goes out: a `Solution` with a bound no choice can beat.
Ctrl-C ends it early once it knows a labelling: the best so far comes out, with its bound.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sbp.problem import Memo, Nearest, Problem, consistent_labels
from sbp.search.elimination import eliminate, solve_exactly
from sbp.search.folding import fold
from sbp.search.greedy import solve_greedily
from sbp.search.message_passing import MessagePassing
from sbp.search.polishing import Aspects, polish

_LOG = logging.getLogger("sbp")

INTERRUPTED = "interrupted"
"""What the method of a solution says where the user ended the search."""

EXACT_TABLE = 2e6
MOST_SWEEPS = 300
MOST_WORK = 200_000
"""Most sweeps times nodes: what a network of many unrolled layers may take, about half a minute."""
ROUND = 5
"""Sweeps after which progress is looked at."""
FOLDED = 0.7
"""Share of nodes that may be left for a first search among foldings to pay."""
FOLDED_SWEEPS = 60
"""Most sweeps of that search: it makes a plan to begin with, no proof."""
PATIENCE = 4
"""Rounds that must close a twentieth of the gap together, for the search to go on."""
POLISH_EVERY = 20
"""Sweeps between two attempts to polish."""
NARROWER = 0.85
"""Share of labels that may be left for a smaller problem to pay."""
NEAR = 0.5
"""Relative gap up to which polishing pays on the way: further off, sweeps find better labels."""


@dataclass(frozen=True, slots=True)
class Solution:
    """A labelling and what is proven about it.

    Attributes:
        labels: One label a node.
        energy: Its cost.
        bound: No labelling costs less.
        method: How it was found, for the reader of a plan.
    """

    labels: tuple[int, ...]
    energy: float
    bound: float
    method: str

    @property
    def gap(self) -> float:
        """How far the cost may be above the least, relative to it."""
        return (self.energy - self.bound) / abs(self.energy) if self.energy else 0.0


def solve_optimally(
    problem: Problem,
    aspects: Aspects,
    incumbents: Sequence[Sequence[int]] = (),
    *,
    target_gap: float = 2e-3,
    max_sweeps: int | None = None,
    polish_always: bool = False,
) -> Solution | None:
    """Finds the cheapest labelling, with proof as far as the sweeps go.

    Args:
        problem: Costs; infinite where forbidden.
        aspects: Each label's part on each mesh axis, for axis-wise moves.
        incumbents: Labellings known beforehand, best tried first.
        target_gap: Relative gap at which to stop.
        max_sweeps: Most sweeps of message passing; fewer for a larger problem if None.
        polish_always: Whether to polish what is within the target too, for what hardly shows in the
            gap: the seconds of plans that are priced by bytes.

    Returns:
        None where every labelling is forbidden.
    """
    kept = consistent_labels(problem)
    if any(len(labels) == 0 for labels in kept):
        return None
    small = problem.restricted(kept)
    exact = solve_exactly(small, max_table=EXACT_TABLE)
    if exact is not None:
        energy = small.energy(exact)
        if math.isinf(energy):
            return None
        return Solution(_widen(exact, kept), energy, energy, "elimination")
    thin = eliminate(small)
    if math.isinf(thin.constant) or not _is_open(thin.rest):
        return None
    positions = [_narrow(labels, kept) for labels in incumbents]
    folded = _solve_folded(small, [aspects[n][keep] for n, keep in enumerate(kept)], target_gap)
    if folded is not None:
        positions.append(list(folded.labels))
        if INTERRUPTED in folded.method:
            max_sweeps = ROUND
    starts = [[labels[n] for n in thin.stayed] for labels in positions if labels is not None]
    starts.append(solve_greedily(thin.rest))
    parts = [aspects[n][kept[n]] for n in thin.stayed]
    if max_sweeps is None:
        max_sweeps = min(MOST_SWEEPS, MOST_WORK // (1 + len(thin.stayed)))
    found = _pass_and_polish(
        thin.rest, parts, starts, target_gap, max_sweeps, thin.constant, polish_always
    )
    if found is None:
        return None
    labels, energy, bound, sweeps = found
    solution = Solution(
        _widen(thin.complete(labels), kept),
        energy + thin.constant,
        bound + thin.constant,
        f"elimination to {len(thin.stayed)} nodes, {sweeps}, polishing",
    )
    return solution if folded is None else _against_folded(solution, folded)


def _is_open(problem: Problem) -> bool:
    """Whether each node and each edge has a finite cost."""
    tables = {id(table): table for table in (*problem.costs, *problem.edges.values())}
    return all(np.isfinite(table).any() for table in tables.values())


def _against_folded(solution: Solution, folded: Solution) -> Solution:
    """Says how far the solution is from labellings that treat equal layers equally, if nearer."""
    equally = replace(solution, bound=min(folded.bound, solution.energy))
    if equally.gap >= solution.gap:
        return solution
    method = f"gap {equally.gap:.2%} if equal layers are treated equally; {solution.method}"
    return replace(solution, method=method)


def _solve_folded(problem: Problem, aspects: Aspects, target_gap: float) -> Solution | None:
    """A labelling of the whole that treats equal layers equally; None where few are equal."""
    folding = fold(problem)
    if len(folding.members) > FOLDED * len(folding.classes):
        return None
    parts = [aspects[node] for node in folding.members]
    found = solve_optimally(folding.problem, parts, target_gap=target_gap, max_sweeps=FOLDED_SWEEPS)
    return found and replace(found, labels=tuple(folding.unfold(found.labels)))


def _pass_and_polish(
    problem: Problem,
    aspects: Aspects,
    starts: Sequence[Sequence[int]],
    target_gap: float,
    max_sweeps: int,
    constant: float,
    polish_always: bool,
) -> tuple[Sequence[int], float, float, str] | None:
    """Labels, energy, bound, and the sweeps in words; progress is told with `constant` added."""
    best = min(starts, key=problem.energy)
    memo = Memo()
    least = sum(memo(_least, table) for table in (*problem.costs, *problem.edges.values()))
    ceiling = _forbidding(problem, problem.energy(best)) - least + 1.0
    state = _State(_replace_infinite(problem, ceiling), aspects, best)
    sweeps, ending = 0, ""
    past = [(math.inf, -math.inf)] * PATIENCE
    try:
        while sweeps < max_sweeps:
            sweeps += state.pass_messages(target_gap)
            gap, left = state.gap, state.energy - state.bound
            rising = state.bound - past[-1][1] > left / 4
            since = past[-PATIENCE]
            closed = since[0] - state.energy + state.bound - since[1]
            at_end = (closed <= left / 20 or sweeps >= max_sweeps) and not state.is_polished
            on_the_way = gap <= NEAR and sweeps % POLISH_EVERY == 0 and not rising
            if gap <= target_gap:
                at_end = on_the_way = polish_always and not state.is_polished
            if at_end or on_the_way:
                state.polish()
                left = state.energy - state.bound
                closed = since[0] - state.energy + state.bound - since[1]
            past.append((state.energy, state.bound))
            _tell(sweeps, state.energy + constant, state.bound + constant)
            if left <= target_gap * abs(state.energy) or closed <= left / 20 or state.narrow():
                break
    except KeyboardInterrupt:
        if math.isinf(problem.energy(state.best)):
            raise
        ending = f" ({INTERRUPTED})"
        _LOG.warning("the search is interrupted: going on with the best plan so far")
    energy = problem.energy(state.best)
    if math.isinf(energy):
        return None
    bound = max(state.bound, least)  # interrupted before the first sweep, there is no other
    return state.best, energy, min(bound, energy), f"{sweeps} sweeps{ending}"


class _State:
    """Message passing over the labels that may still be part of a better choice.

    Attributes:
        best: The best labelling known, in labels of the problem at the start.
        energy: Its cost.
    """

    def __init__(self, problem: Problem, aspects: Aspects, best: Sequence[int]) -> None:
        self.best = tuple(best)
        self.energy = problem.energy(best)
        self._passing = MessagePassing(problem)
        self._aspects = aspects
        self._kept = [np.arange(len(cost)) for cost in problem.costs]
        self._polished = math.inf

    @property
    def bound(self) -> float:
        """No choice costs less."""
        return self._passing.bound

    @property
    def gap(self) -> float:
        """How far the cost may be above the least, relative to it."""
        return (self.energy - self.bound) / abs(self.energy) if self.energy else 0.0

    @property
    def is_polished(self) -> bool:
        """Whether the best labelling is what polishing made of it."""
        return self.energy >= self._polished

    def _labels(self) -> list[int]:
        """The best labelling in the labels that are left, which have all of it."""
        labels = _narrow(self.best, self._kept)
        assert labels is not None
        return labels

    def _take(self, labels: Sequence[int], energy: float) -> None:
        if energy < self.energy:
            self.best, self.energy = _widen(labels, self._kept), energy

    def pass_messages(self, target_gap: float) -> int:
        """A round of sweeps; gives their number."""
        found = self._passing.run(self._labels(), num_sweeps=ROUND, target_gap=target_gap)
        self._take(found.labels, found.energy)
        return found.num_sweeps

    def polish(self) -> None:
        """Improves the best labelling, or the latest where the best has been polished already."""
        problem = self._passing.problem
        start = self._passing.decoded if self.is_polished else self._labels()
        tried = polish(problem, start, self._aspects, max_rounds=2)
        self._take(tried, problem.energy(tried))
        self._polished = self.energy

    def narrow(self) -> bool:
        """Drops labels that no better choice has; says whether the optimum was found by that."""
        kept = self._passing.hopeful(self.energy)
        before = sum(len(margins) for margins in self._kept)
        if sum(map(len, kept)) > NARROWER * before:
            return False
        self._passing = self._passing.restricted(kept)
        self._aspects = [parts[keep] for parts, keep in zip(self._aspects, kept, strict=True)]
        self._kept = [old[keep] for old, keep in zip(self._kept, kept, strict=True)]
        problem = self._passing.problem
        found = solve_exactly(problem, max_table=EXACT_TABLE)
        if found is None:
            return False
        self._take(found, problem.energy(found))
        self._passing.bound = self.energy
        return True


def _tell(sweeps: int, cost: float, bound: float) -> None:
    gap = (cost - bound) / abs(cost) if cost else 0.0
    progress = {"cost": cost, "gap": gap}
    _LOG.info("%d sweeps, cost %.6g, gap %.2f%%", sweeps, cost, 100 * gap, extra=progress)


def _forbidding(problem: Problem, energy: float) -> float:
    """A cost that no choice reaches that is worth making."""
    if math.isinf(energy):
        # No labelling is known: anything above the dearest finite choices together is forbidden.
        return sum(map(_largest_finite, (*problem.costs, *problem.edges.values())))
    return energy


def _least(table: NDArray[np.float64]) -> float:
    return float(table.min())


def _largest_finite(table: NDArray[np.float64]) -> float:
    return float(table.max(where=np.isfinite(table), initial=0.0))


def _replace_infinite(problem: Problem, ceiling: float) -> Problem:
    memo = Memo()

    def finite(table: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(np.isfinite(table), table, float(table.min()) + ceiling)

    def folded(fold: Nearest) -> Nearest:
        return Nearest(finite(fold.table), fold.first, fold.second)

    return Problem(
        tuple(memo(finite, cost) for cost in problem.costs),
        {edge: memo(finite, matrix) for edge, matrix in problem.edges.items()},
        {edge: memo(folded, fold) for edge, fold in problem.nearest.items()},
    )


def _widen(labels: Sequence[int], kept: Sequence[NDArray[np.intp]]) -> tuple[int, ...]:
    return tuple(int(k[x]) for k, x in zip(kept, labels, strict=True))


def _narrow(labels: Sequence[int], kept: Sequence[NDArray[np.intp]]) -> list[int] | None:
    narrow: list[int] = []
    for label, keep in zip(labels, kept, strict=True):
        found = np.flatnonzero(keep == label)
        if len(found) == 0:
            return None
        narrow.append(int(found[0]))
    return narrow
