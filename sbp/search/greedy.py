"""Greedy choice: each node in turn takes the label that is cheapest given those before it.

This is how OneFlow infers words, one operation at a time with no look ahead; it serves as the
baseline that a plan is compared with, and as a first labelling.
"""

from sbp.problem import Problem


def solve_greedily(problem: Problem) -> list[int]:
    """Labels chosen in node order. The result may be forbidden where later nodes are tied."""
    around = problem.neighbours
    labels: list[int] = []
    for node, cost in enumerate(problem.costs):
        score = cost
        for other, matrix in around[node].items():
            if other < node:
                score = score + matrix[:, labels[other]]
        labels.append(int(score.argmin()))
    return labels
