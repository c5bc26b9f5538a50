"""Exhaustive search: every choice is tried. The oracle of the search, for small problems."""

import itertools
import math

from sbp.errors import PlanError
from sbp.problem import Problem

MAX_CHOICES = 2_000_000


def solve_exhaustively(problem: Problem) -> list[int]:
    """The first of the cheapest labellings in lexicographic order.

    Raises:
        PlanError: There are more than `MAX_CHOICES` choices.
    """
    sizes = [len(cost) for cost in problem.costs]
    if math.prod(sizes) > MAX_CHOICES:
        raise PlanError(
            f"{math.prod(sizes):,} choices are too many to try them all",
            why=f"search='exhaustive' tries at most {MAX_CHOICES:,}.",
            how="use search='optimal', which proves its result without trying all",
        )
    choices = itertools.product(*map(range, sizes))
    return list(min(choices, key=problem.energy))
