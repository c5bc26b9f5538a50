"""Sequential tree-reweighted message passing: a labelling and a proven lower bound, sweep by sweep.

Comes in: a pairwise `Problem` with finite costs. Goes out: `Passed`, the best labelling seen and
the best bound. Every sweep moves costs between neighbours so that the sum stays the same for every
choice, and the bound only grows.

Source:
    V. Kolmogorov, Convergent tree-reweighted message passing for energy minimization, 2006.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sbp.problem import Costs, Memo, Problem, transpose

ROUNDING = 1e-9
"""Relative error of sums of costs that is allowed for."""


@dataclass(frozen=True, slots=True)
class Passed:
    """What message passing found.

    Attributes:
        labels: The best labelling seen.
        energy: Its cost.
        bound: No choice costs less.
        num_sweeps: Sweeps made.
    """

    labels: tuple[int, ...]
    energy: float
    bound: float
    num_sweeps: int


def _shares(
    later: Sequence[Sequence[int]], earlier: Sequence[Sequence[int]]
) -> dict[tuple[int, int], float]:
    """Which part of a node's costs goes with its message to each neighbour.

    Costs move along chains of nodes in their order, and each node deals its costs out to the chains
    through it. A sum of many terms is a chain of additions: so that all terms get equal parts of
    what is paid at its end, a link counts as many chains as there are terms behind it; likewise
    where one value is taken apart step by step.
    """
    chains = {(s, t): 1.0 for s, ahead in enumerate(later) for t in ahead}
    for s, ahead in enumerate(later):
        if len(ahead) == 1:
            chains[s, ahead[0]] = max(1.0, sum(chains[t, s] for t in earlier[s]))
    apart = dict.fromkeys(chains, 1.0)
    for s in reversed(range(len(later))):
        if len(earlier[s]) == 1:
            apart[earlier[s][0], s] = max(1.0, sum(apart[s, t] for t in later[s]))
    chains = {link: max(count, apart[link]) for link, count in chains.items()}
    shares: dict[tuple[int, int], float] = {}
    for s, (ahead, behind) in enumerate(zip(later, earlier, strict=True)):
        out, into = (sum(chains[s, t] for t in ahead), sum(chains[t, s] for t in behind))
        shares |= {(s, t): chains[s, t] / max(out, into) for t in ahead}
        shares |= {(s, t): chains[t, s] / max(out, into) for t in behind}
    return shares


class MessagePassing:
    """Messages between neighbours, kept so that sweeps can go on after a better labelling."""

    def __init__(self, problem: Problem) -> None:
        """Starts with empty messages."""
        self.problem = problem
        count = len(problem.costs)
        around = problem.neighbours
        # Rows of a matrix are read one after the other.
        self.matrices: list[dict[int, Costs]] = [{} for _ in around]
        memo = Memo()
        for (u, v), matrix in problem.edges.items():
            self.matrices[u][v] = matrix
            self.matrices[v][u] = memo(transpose, matrix)
        self.later = [[t for t in around[s] if t > s] for s in range(count)]
        self.earlier = [[t for t in around[s] if t < s] for s in range(count)]
        self.share = _shares(self.later, self.earlier)
        self._passers = {(s, t): self._passer(s, t) for s in range(count) for t in around[s]}
        self.messages: dict[tuple[int, int], Costs] = {
            (s, t): np.zeros(len(problem.costs[t])) for s in range(count) for t in around[s]
        }
        self.bound = -math.inf
        self.decoded: tuple[int, ...] = ()
        self._margins = [np.zeros(len(cost)) for cost in problem.costs]
        self._bound_of_margins = -math.inf

    def _passer(self, node: int, other: int) -> Callable[[Costs], Costs]:
        """Tells the least of a node's costs plus the matrix for each label of a neighbour."""
        nearest = self.problem.nearest
        if (node, other) in nearest:
            return nearest[node, other].lowest_column
        if (other, node) in nearest:
            return nearest[other, node].lowest_row
        matrix, least = self.matrices[node][other], np.minimum.reduce
        return lambda rows: least(matrix + rows[:, None])

    def _gathered(self, node: int) -> Costs:
        total, messages = self.problem.costs[node], self.messages
        for other in self.matrices[node]:
            total = total + messages[other, node]
        return total

    def _send(self, node: int, other: int, costs: Costs) -> float:
        """Sends the neighbour its share of a node's costs; gives what the message is less."""
        way = node, other
        message = self._passers[way](costs * self.share[way] - self.messages[other, node])
        least = np.minimum.reduce(message)
        self.messages[way] = message - least
        return float(least)

    def sweep(self) -> tuple[int, ...]:
        """One pass forth and back; raises the bound and decodes a labelling on the way forth."""
        labels: list[int] = []
        for node, cost in enumerate(self.problem.costs):
            score = cost
            for other in self.earlier[node]:
                score = score + self.matrices[other][node][labels[other]]
            for other in self.later[node]:
                score = score + self.messages[other, node]
            labels.append(int(score.argmin()))
            total = self._gathered(node)
            for other in self.later[node]:
                self._send(node, other, total)
        bound = 0.0
        self._bound_of_margins = self.bound
        for node in reversed(range(len(labels))):
            total = self._gathered(node)
            least = float(np.minimum.reduce(total))
            bound += least
            # Costs of either side have moved here as far as they can: what a label costs above the
            # least, the whole costs more with that label.
            margins = self._margins[node] = total - least
            for other in self.earlier[node]:
                bound += self._send(node, other, margins)
        self.bound = max(self.bound, bound)
        self.decoded = tuple(labels)
        return self.decoded

    def hopeful(self, energy: float) -> list[NDArray[np.intp]]:
        """For each node the labels that a choice may have that costs no more than `energy`."""
        slack = energy - self._bound_of_margins + ROUNDING * abs(energy)
        return [np.flatnonzero(margins <= slack) for margins in self._margins]

    def restricted(self, kept: Sequence[NDArray[np.intp]]) -> "MessagePassing":
        """The same state with only some labels of each node; the bound is that of the whole."""
        passing = MessagePassing(self.problem.restricted(kept))
        passing.messages = {(s, t): message[kept[t]] for (s, t), message in self.messages.items()}
        passing.bound = self.bound
        return passing

    def run(self, incumbent: Sequence[int], *, num_sweeps: int, target_gap: float) -> Passed:
        """Sweeps until the gap is closed or the sweeps are used up.

        Args:
            incumbent: The best labelling known.
            num_sweeps: Most sweeps.
            target_gap: Stop when (energy - bound) / energy is at most this.
        """
        best = tuple(incumbent)
        energy = self.problem.energy(best)
        for done in range(1, num_sweeps + 1):
            labels = self.sweep()
            found = self.problem.energy(labels)
            if found < energy:
                best, energy = labels, found
            if energy - self.bound <= target_gap * abs(energy):
                return Passed(best, energy, self.bound, done)
        return Passed(best, energy, self.bound, num_sweeps)
