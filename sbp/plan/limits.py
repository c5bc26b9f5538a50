"""Plans that fit a memory limit: what is in memory at the peak gets a price per byte.

Comes in: how to build and solve the program's problem, and the cheapest plan, which does not fit.
Goes out: the cheapest plan found that fits, or `PlanError` with the least memory found. The price
is the multiplier of Lagrange's method (Everett 1963): raised until a plan fits, then lowered again
as long as one does. Each plan that is tried adds what is in memory at its own peak to what is
priced. The prices tried where nothing fits do not depend on the limit, so the least memory found
is a limit that works.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from sbp.algebra import ArrayType, Words, format_type, local_type
from sbp.boxing import format_nbytes
from sbp.errors import PlanError
from sbp.graph import BoxingGraph, Graph, Held
from sbp.plan.assignment import Assignment
from sbp.plan.buffers import Buffer
from sbp.plan.explain import format_apart
from sbp.plan.memory import Memory
from sbp.problem import Memo, Problem, add
from sbp.program import Value
from sbp.search import Solution

Build = Callable[[Held | Graph | None], BoxingGraph]

FIRST_PRICE = 1.0
"""First price tried, in units of the cheapest plan's cost over its memory."""
STEP_UP = 16.0
MOST_UP = 4
"""Prices tried upwards; the last one outweighs every other cost."""
MOST_ROUNDS = 2
"""How often, where none fits, prices beside that of the leanest plan are tried."""
MOST_DOWN = 6
"""Most prices tried, once a plan fits, between one that is too low and one that is high enough."""
SMALL_EXCESS = 0.02
"""How much more a plan that fits may cost than one that does not, for no more to be tried."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A plan that was tried.

    Attributes:
        assignment: Its choices.
        solution: Its labels and cost, without prices of memory.
        memory: What it holds.
    """

    assignment: Assignment
    solution: Solution
    memory: Memory


@dataclasses.dataclass(slots=True, eq=False)
class Prices:
    """What is priced.

    Attributes:
        written: Values whose words in memory are those in which they are written.
        boxed: Values of which a boxed copy is in memory.
        per_byte: The price.
    """

    written: dict[Value, None] = dataclasses.field(default_factory=dict)
    boxed: dict[Value, None] = dataclasses.field(default_factory=dict)
    per_byte: float = 0.0

    def forget(self) -> None:
        """Starts again."""
        self.written, self.boxed = {}, {}

    def notice(self, candidate: Candidate) -> None:
        """Adds what a plan holds at its peak."""
        writers = candidate.assignment.boxing.graph.writers
        for buffer in candidate.memory.at_peak:
            parts = (buffer,) if buffer.value else (*buffer.inputs, *buffer.readers)
            for part in parts:
                if part.value is None or part.value not in writers:
                    continue
                is_written = part.words == candidate.assignment.written(part.value)
                (self.written if is_written else self.boxed)[part.value] = None


def fit(
    first: Candidate, limit: int, name: str, solve: Callable[[Prices], Candidate],
    least_price: float = 0.0,
) -> Candidate:  # fmt: skip
    """The cheapest plan found that fits.

    Args:
        first: The cheapest plan, which does not fit.
        limit: Most bytes a device may hold.
        name: The function's name.
        solve: Plans under prices of memory.
        least_price: No less is tried first; a plan that sends nothing has hardly a cost by bytes.

    Raises:
        PlanError: No plan that was tried fits.
    """
    prices, tried = Prices(), [first]
    prices.notice(first)
    unit = max(least_price, max(first.solution.energy, 1.0) / first.memory.peak_nbytes)
    scales: list[float] = []

    def fits(scale: float) -> bool:
        scales.append(scale)
        prices.per_byte = unit * scale
        tried.append(solve(prices))
        is_enough = tried[-1].memory.peak_nbytes <= limit
        if not is_enough:
            prices.notice(tried[-1])
        return is_enough

    upwards = [FIRST_PRICE * STEP_UP**k for k in range(MOST_UP)]
    enough = next(filter(fits, upwards), None)
    for _ in range(MOST_ROUNDS):
        if enough is not None:
            break
        # Memory need not fall with every rise of its price: a plan that is dear for what is held
        # at one peak may hold more at another. Again from the leanest, and what led there.
        peaks = [found.memory.peak_nbytes for found in tried]
        leanest = peaks.index(min(peaks))
        prices.forget()
        for found in tried[: leanest + 1]:
            prices.notice(found)
        near = [FIRST_PRICE, *scales][leanest]
        enough = next(filter(fits, (near / STEP_UP**0.5, near * STEP_UP**0.5)), None)
    if enough is None:
        raise _too_little(name, limit, tried)
    low, high = enough / STEP_UP, enough
    for _ in range(MOST_DOWN):
        if _cheapest(tried, limit) <= _dearest_misfit(tried, limit) * (1 + SMALL_EXCESS):
            break
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    fitting = [found for found in tried if found.memory.peak_nbytes <= limit]
    best = min(fitting, key=lambda found: found.solution.energy)
    # What no plan can beat without a limit, none can beat with one.
    bound = min(first.solution.bound, best.solution.energy)
    method = f"{first.solution.method}; {len(tried) - 1} prices of memory"
    solution = dataclasses.replace(best.solution, bound=bound, method=method)
    return dataclasses.replace(best, solution=solution)


def _cheapest(tried: Sequence[Candidate], limit: int) -> float:
    return min(x.solution.energy for x in tried if x.memory.peak_nbytes <= limit)


def _dearest_misfit(tried: Sequence[Candidate], limit: int) -> float:
    return max(x.solution.energy for x in tried if x.memory.peak_nbytes > limit)


def solve_priced(
    build: Build, prices: Prices, search: Callable[[Build], tuple[BoxingGraph, Solution]]
) -> tuple[BoxingGraph, Solution]:
    """The graph without prices of memory, and the cheapest choice under them at its own cost.

    Args:
        build: The graph of all choices, with choices held on some axes, or of some choices.
        prices: What is priced.
        search: Solves the problem of the graph that it builds.
    """
    built: list[tuple[BoxingGraph, BoxingGraph]] = []

    def build_priced(what: Held | Graph | None) -> BoxingGraph:
        plain = build(what)
        built.append((priced(plain, prices), plain))
        return built[-1][0]

    found, solution = search(build_priced)
    plain = next(plain for with_prices, plain in built if with_prices is found)
    return plain, dataclasses.replace(solution, energy=plain.problem.energy(solution.labels))


def priced(boxing: BoxingGraph, prices: Prices) -> BoxingGraph:
    """The graph with memory priced.

    Args:
        boxing: The graph with its own costs.
        prices: What is priced.
    """
    if not prices.per_byte:
        return boxing
    graph, memo = boxing.graph, Memo()
    costs = list(boxing.problem.costs)
    known: dict[tuple[ArrayType, int], NDArray[np.float64]] = {}

    def vector(array: ArrayType, words: Sequence[Words | None]) -> NDArray[np.float64]:
        key = (array, id(words))
        if key not in known:
            sizes = graph.mesh.sizes
            nbytes = [local_type(array, w, sizes).nbytes if w is not None else 0 for w in words]
            known[key] = np.round(np.array(nbytes, float) * prices.per_byte)
        return known[key]

    def charge(node: int, array: ArrayType, words: Sequence[Words | None]) -> None:
        costs[node] = memo(add, costs[node], vector(array, words))

    boxed_words: dict[int, Sequence[Words | None]] = {}
    for value in prices.written:
        port = graph.writers[value]
        charge(boxing.place[port.node], value.type, port.words)
    for value in prices.boxed:
        hub = boxing.hubs.get(value)
        # A reader may box a copy of its own beside the shared one.
        for port in graph.readers.get(value, ()):
            charge(boxing.place[port.node], value.type, port.words)
        if hub is not None:
            if id(hub.pairs) not in boxed_words:
                boxed_words[id(hub.pairs)] = [b if a != b else None for a, b in hub.pairs]
            charge(hub.node, value.type, boxed_words[id(hub.pairs)])
    problem = Problem(tuple(costs), boxing.problem.edges, boxing.problem.nearest)
    return dataclasses.replace(boxing, problem=problem)


def largest(assignment: Assignment, buffers: Sequence[Buffer], count: int = 3) -> list[str]:
    """Lines on the largest arrays in memory.

    Args:
        assignment: The choices.
        buffers: What is in memory, largest first.
        count: How many lines at most.
    """
    graph, lines = assignment.boxing.graph, []
    for buffer in buffers[:count]:
        if buffer.value is None or buffer.value not in graph.writers:
            lines.append(f"{format_nbytes(buffer.nbytes)}  arrays packed for a collective")
            continue
        node = graph.nodes[graph.writers[buffer.value].node]
        array = format_type(buffer.value.type, graph.mesh.axes, buffer.words)
        lines.append(f"{format_nbytes(buffer.nbytes)}  {array} ({node.source or node.name})")
    return lines


def over_limit(name: str, limit: int, candidate: Candidate, why: str) -> PlanError:
    """The error of a plan that needs more than it may.

    Args:
        name: The function's name.
        limit: Most bytes a device may hold.
        candidate: The plan.
        why: Which plan that is.
    """
    nbytes = candidate.memory.peak_nbytes
    needed, allowed = format_apart(nbytes, limit)
    return PlanError(
        f"{name} needs {needed} on a device, memory_limit is {allowed}",
        why=f"{why} Its largest arrays on one device are:\n"
        + "\n".join(largest(candidate.assignment, candidate.memory.at_peak)),
        how=[f"memory_limit={nbytes}", "pin the largest arrays to S", "use more devices"],
    )


def _too_little(name: str, limit: int, tried: Sequence[Candidate]) -> PlanError:
    least = min(tried, key=lambda found: found.memory.peak_nbytes)
    return over_limit(name, limit, least, "No plan was found that needs less than this one.")
