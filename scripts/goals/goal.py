"""One line of the summary."""

from collections.abc import Iterable
from typing import NamedTuple

MOST_ERROR = 0.01
"""How far planned bytes may be from compiled ones."""
TITLES = {
    "G1": "plan bytes", "G2": "matmul suite", "G3": "predicted = compiled", "G4": "against GSPMD",
    "G5": "planning time", "G6": "memory", "G7": "dispatch", "G8": "compile time",
    "G9": "collectives", "G10": "step time",
}  # fmt: skip


class Goal(NamedTuple):
    """A figure beside what it should be.

    Attributes:
        name: `G1` to `G10`.
        case: What was measured.
        figure: What was found, in words.
        wanted: What was wished for, in words.
        met: Whether the figure is as wanted; None where it was not measured.
    """

    name: str
    case: str
    figure: str
    wanted: str
    met: bool | None

    @property
    def verdict(self) -> str:
        """Met, not met, or not measured."""
        return "not measured" if self.met is None else "met" if self.met else "NOT MET"


def at_most(name: str, case: str, value: float, limit: float, unit: str = "") -> Goal:
    """A goal that a value of at most `limit` meets."""
    end = f" {unit}" if unit else ""
    return Goal(name, case, f"{value:.3f}{end}", f"<= {limit:g}{end}", value <= limit)


def not_measured(name: str, why: str) -> Goal:
    """A goal that this run says nothing about."""
    return Goal(name, why, "-", "-", None)


def summary(goals: Iterable[Goal]) -> str:
    """A line for each goal in the order of their numbers; goals without a figure say so."""
    found = list(goals)
    missing = TITLES.keys() - {goal.name for goal in found}
    found += [not_measured(name, "its part of the benchmark was not run") for name in missing]
    found.sort(key=lambda goal: list(TITLES).index(goal.name))
    lines = [("goal", "", "case", "figure", "wanted", "")]
    lines += [
        (goal.name, TITLES[goal.name], goal.case, goal.figure, goal.wanted, goal.verdict)
        for goal in found
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
