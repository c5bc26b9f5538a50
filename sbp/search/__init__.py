"""The cheapest choice, with a proven lower bound; greedy and exhaustive search beside it."""

from sbp.search.exhaustive import solve_exhaustively as solve_exhaustively
from sbp.search.greedy import solve_greedily as solve_greedily
from sbp.search.optimal import INTERRUPTED as INTERRUPTED
from sbp.search.optimal import Solution as Solution
from sbp.search.optimal import solve_optimally as solve_optimally
