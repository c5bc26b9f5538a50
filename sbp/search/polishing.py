"""Local improvement of a labelling by exact moves.

Comes in: a `Problem`, a labelling, and for each label its part on every mesh axis. Goes out: a
labelling that neither re-planning one axis nor re-planning one neighbourhood can improve.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sbp.problem import Problem
from sbp.search.elimination import solve_exactly

Aspects = Sequence[NDArray[np.intp]]
"""For each node a matrix: a row a label, a column a mesh axis; equal entries are equal parts."""

WINDOW_TABLE = 3e5
AXIS_TABLE = 2e6


def replan_axis(
    problem: Problem, labels: Sequence[int], aspects: Aspects, axis: int
) -> list[int] | None:
    """The best labelling that differs on one axis only, or None where exactness is too dear."""
    kept: list[NDArray[np.intp]] = []
    for parts, label in zip(aspects, labels, strict=True):
        others = np.delete(parts, axis, axis=1)
        kept.append(np.flatnonzero((others == others[label]).all(axis=1)))
    found = solve_exactly(problem.restricted(kept), max_table=AXIS_TABLE)
    return None if found is None else [int(k[x]) for k, x in zip(kept, found, strict=True)]


def _window(around: Sequence[dict[int, Any]], centre: int, size: int) -> list[int]:
    seen = {centre: None}
    ring = [centre]
    while ring and len(seen) < size:
        ring = [t for s in ring for t in around[s] if t not in seen]
        for node in ring:
            if len(seen) < size:
                seen[node] = None
    return sorted(seen)


def replan_windows(problem: Problem, labels: Sequence[int], size: int) -> list[int]:
    """Re-plans the neighbourhood of every node in turn, all others held.

    Args:
        problem: The problem.
        labels: Where to start.
        size: Most nodes of a neighbourhood; it is smaller where that would be too dear.
    """
    best = list(labels)
    covered = 0
    fitting = size
    for centre in range(len(best)):
        if centre < covered:
            continue
        fitting = min(size, fitting + fitting // 2 + 1)
        while True:
            nodes = _window(problem.neighbours, centre, fitting)
            part = problem.conditioned(nodes, best)
            table = WINDOW_TABLE if len(nodes) > 1 else float(len(problem.costs[centre]))
            found = solve_exactly(part, max_table=table)
            if found is not None:
                break
            fitting = len(nodes) * 2 // 3
        if part.energy(found) < part.energy([best[n] for n in nodes]):
            for node, label in zip(nodes, found, strict=True):
                best[node] = label
        covered = centre + max(1, len(nodes) // 4)
    return best


def polish(
    problem: Problem, labels: Sequence[int], aspects: Aspects, *, max_rounds: int = 4,
    window: int = 40,
) -> list[int]:  # fmt: skip
    """Moves until none of them helps, or the rounds are used up."""
    best = list(labels)
    energy = problem.energy(best)
    num_axes = aspects[0].shape[1] if aspects else 0
    for _ in range(max_rounds):
        before = energy
        for axis in range(num_axes):
            found = replan_axis(problem, best, aspects, axis)
            if found is not None and problem.energy(found) < energy:
                best, energy = found, problem.energy(found)
        best = replan_windows(problem, best, window)
        energy = problem.energy(best)
        if energy >= before:
            break
    return best
