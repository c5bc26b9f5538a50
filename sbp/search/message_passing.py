"""Sequential tree-reweighted message passing: a labelling and a proven lower bound, sweep by sweep.

Comes in: a pairwise `Problem` with finite costs. Goes out: `Passed`, the best labelling seen and
the best bound. Every sweep moves costs between neighbours so that the sum stays the same for every
choice, and the bound only grows.

Source:
    V. Kolmogorov, Convergent tree-reweighted message passing for energy minimization, 2006.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sbp.problem import Costs, Memo, Problem, transpose


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
        self.share = [1.0 / max(len(self.later[s]), len(self.earlier[s]), 1) for s in range(count)]
        self.messages: dict[tuple[int, int], Costs] = {
            (s, t): np.zeros(len(problem.costs[t])) for s in range(count) for t in around[s]
        }
        self.bound = -math.inf
        self.decoded: tuple[int, ...] = ()

    def _gathered(self, node: int) -> Costs:
        total = self.problem.costs[node]
        for other in self.matrices[node]:
            total = total + self.messages[other, node]
        return total

    def _send(self, node: int, other: int, shared: Costs) -> float:
        rows = shared - self.messages[other, node]
        nearest = self.problem.nearest
        if (node, other) in nearest:
            message = nearest[node, other].lowest_column(rows)
        elif (other, node) in nearest:
            message = nearest[other, node].lowest_row(rows)
        else:
            message = np.minimum.reduce(self.matrices[node][other] + rows[:, None])
        least = float(np.minimum.reduce(message))
        self.messages[node, other] = message - least
        return least

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
            shared = self._gathered(node) * self.share[node]
            for other in self.later[node]:
                self._send(node, other, shared)
        bound = 0.0
        for node in reversed(range(len(labels))):
            total = self._gathered(node)
            least = float(total.min())
            bound += least
            shared = (total - least) * self.share[node]
            for other in self.earlier[node]:
                bound += self._send(node, other, shared)
        self.bound = max(self.bound, bound)
        self.decoded = tuple(labels)
        return self.decoded

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
