"""Planning: a traced function becomes a `Plan` and the `Assignment` that the lowering runs.

Comes in: a program, a mesh, prices, the user's conditions. Goes out: the cheapest plan found, held
against the conditions.
"""

import contextlib
import dataclasses
import functools
import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from sbp.algebra import Broadcast, NdSbp, Words, parse_word
from sbp.cost_model import BYTE_PRICE, OBJECTIVES, CostModel, Objective
from sbp.errors import PlanError, SbpError
from sbp.factors import NdSignature
from sbp.graph import (
    Boundary,
    BoxingGraph,
    Graph,
    Held,
    Mesh,
    Tables,
    axes_alike,
    build_graph,
    connect,
)
from sbp.plan.assignment import Assignment
from sbp.plan.axis_orders import plan_by_kinds
from sbp.plan.by_pairs import chosen_labels, plan_by_pairs
from sbp.plan.limits import STEP_UP, Build, Candidate, Prices, fit, over_limit, solve_priced
from sbp.plan.memory import find_memory
from sbp.plan.record import Plan
from sbp.plan.rows import array_names, boxing_rows, equation_rows
from sbp.program import Block, Traced
from sbp.search import INTERRUPTED, Solution, solve_exhaustively, solve_greedily, solve_optimally

_LOG = logging.getLogger("sbp")

Search = Literal["optimal", "greedy", "exhaustive"]

MAX_EQUATIONS_AT_ONCE = 300
"""On three axes or more, larger programs are planned without the graph of all choices."""

MAX_EQUATIONS_WITHOUT_KINDS = 12
"""Up to here all choices are few, even where they could be grouped by kinds."""

GAP_OF_KINDS = 0.01
"""Above this gap, a plan found by kinds of choices is improved two axes at a time."""

AT_OTHER_PRICES = ", run at other prices"
"""How a plan was found that was made for another machine, or under another overlap."""

CPU_NAME = "cpu"
"""The cluster whose compiler calls a library for reductions, which reads memory."""


@dataclasses.dataclass(frozen=True, slots=True)
class Conditions:
    """What the user asks of a plan.

    Attributes:
        search: How to search.
        memory_limit: Most bytes a device may hold; None sets no limit.
        max_nbytes: Most bytes a device may send in one call; None sets no limit.
        reduce_dtype: Name of the dtype in which partial sums may be added although the program
            narrows to it only after the sum.
    """

    search: Search = "optimal"
    memory_limit: int | None = None
    max_nbytes: int | None = None
    reduce_dtype: str | None = None


class _Graphs:
    """The graphs of one program: of all its choices, or of some."""

    def __init__(
        self, traced: Traced, mesh: Mesh, costs: CostModel, boundary: Boundary,
        reduce_dtype: str | None,
    ) -> None:  # fmt: skip
        self.costs = costs
        self.reduce_dtype = reduce_dtype
        self._program = (traced, mesh, costs, boundary, reduce_dtype)
        self._tables = Tables(costs)
        self.is_sealed = any(e.is_sealed for e in traced.block.equations)

    @functools.cached_property
    def kinds(self) -> Graph:
        """At least one choice of each kind, where the axes are alike."""
        return build_graph(*self._program, exchangeable=axes_alike(self.costs))

    @functools.cached_property
    def _whole(self) -> BoxingGraph:
        return connect(build_graph(*self._program), self._tables)

    def build(self, what: Held | Graph | None, offered: Sequence[Words] = ()) -> BoxingGraph:
        """The graph of all choices, of those that agree with what is held, or of a graph's own."""
        if what is None:
            return self._whole
        graph = what if isinstance(what, Graph) else build_graph(*self._program, what)
        return connect(graph, self._tables, offered)


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Planning makes millions of small objects and hardly a cycle.

    Looking for cycles takes the longer, the more objects the user's program holds.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_without_collector()
def make_plan(
    name: str, traced: Traced, mesh: Mesh, costs: CostModel, boundary: Boundary,
    conditions: Conditions, saved: Plan | None = None,
) -> tuple[Plan, Assignment]:  # fmt: skip
    """Plans a program; by least bytes where the cheapest plan sends more than allowed.

    Args:
        name: The function's name.
        traced: The program.
        mesh: The mesh.
        costs: Prices.
        boundary: Pins and ties.
        conditions: What else is asked.
        saved: A plan to run as it is instead of searching.

    Raises:
        SignatureError: A pin does not fit.
        PlanError: There is no plan, or none under the conditions.
    """

    def plan_by(objective: Objective) -> tuple[Plan, Assignment]:
        priced = dataclasses.replace(costs, objective=objective)
        return _plan_at(name, traced, mesh, priced, boundary, conditions, saved)

    most = conditions.max_nbytes
    plan, assignment = plan_by(costs.objective)
    if saved is not None:
        plan = dataclasses.replace(plan, notes=saved.notes)
    if most is None or plan.wire_nbytes <= most:
        return plan, assignment
    if saved is not None:
        raise _sends_too_much(f"the saved plan of {name}", plan, most, ["make a new plan"])
    others: list[tuple[Plan, Assignment]] = []
    for objective in OBJECTIVES[OBJECTIVES.index(costs.objective) + 1 :]:
        with contextlib.suppress(PlanError):  # it finds none that fits into memory
            others.append(plan_by(objective))
    fitting = [found for found in others if found[0].wire_nbytes <= most]
    if not fitting:
        least = min([plan, *(other for other, _ in others)], key=lambda each: each.wire_nbytes)
        more = ["a higher memory_limit"] * (conditions.memory_limit is not None)
        raise _sends_too_much(name, least, most, [*more, "fewer pins"])
    found, assignment = min(fitting, key=lambda each: each[0].cost_seconds)
    note = (
        f"planned for least bytes: the plan by {plan.objective} sends {plan.wire_nbytes} bytes a "
        f"device, max_nbytes is {most}"
    )
    return dataclasses.replace(found, notes=(*found.notes, note)), assignment


def _plan_at(
    name: str, traced: Traced, mesh: Mesh, costs: CostModel, boundary: Boundary,
    conditions: Conditions, saved: Plan | None,
) -> tuple[Plan, Assignment]:  # fmt: skip
    """The cheapest plan at some prices that fits into memory; arguments as of `make_plan`."""
    graphs = _Graphs(traced, mesh, costs, boundary, conditions.reduce_dtype)
    replacing = [result for result, k in boundary.ties.items() if k in boundary.donated]
    num_equations = _num_equations(traced.block)
    _LOG.info("planning %s, %d equations", name, num_equations)

    def search(build: Build) -> tuple[BoxingGraph, Solution]:
        if conditions.search != "optimal" or sum(size > 1 for size in mesh.sizes) <= 2:
            return _solve_at_once(build(None), conditions.search)
        return _solve_on_many_axes(graphs, build, num_equations)

    found = search(graphs.build) if saved is None else _reuse(saved, traced, mesh, graphs.build)

    def candidate(boxing: BoxingGraph, solution: Solution) -> Candidate:
        assignment = Assignment(boxing, solution.labels)
        held = find_memory(
            assignment, traced.block, traced.num_arguments, replacing,
            on_cpu=costs.cluster.name == CPU_NAME,
        )  # fmt: skip
        return Candidate(assignment, solution, held)

    def solve(prices: Prices) -> Candidate:
        return candidate(*solve_priced(graphs.build, prices, search))

    chosen, limit = candidate(*found), conditions.memory_limit
    if limit is not None and chosen.memory.peak_nbytes > limit:
        if saved is not None:
            raise over_limit(name, limit, chosen, "The saved plan does not fit.")
        least_price = 0.0 if costs.objective == "time" else BYTE_PRICE / STEP_UP
        chosen = fit(chosen, limit, name, solve, least_price)
    return _record(name, traced, chosen, costs, boundary), chosen.assignment


def _num_equations(block: Block) -> int:
    inner = (_num_equations(body) for e in block.equations for body in e.bodies)
    return len(block.equations) + sum(inner)


def _solve_on_many_axes(
    graphs: _Graphs, build: Build, num_equations: int
) -> tuple[BoxingGraph, Solution]:
    """Searches among the graphs that `build` makes of those of the program."""
    costs, found = graphs.costs, None
    few = num_equations <= MAX_EQUATIONS_WITHOUT_KINDS
    # Up to the order of the axes, nothing says what is boxed on one of them.
    if axes_alike(costs) and not few and not graphs.is_sealed:
        found = plan_by_kinds(graphs.kinds, build, graphs.reduce_dtype)
    if found and (found[1].gap <= GAP_OF_KINDS or INTERRUPTED in found[1].method):
        return found
    if num_equations <= MAX_EQUATIONS_AT_ONCE:
        whole = _solve_at_once(build(None), "optimal")
        return found if found and found[1].energy < whole[1].energy else whole
    found = plan_by_pairs(build, costs, found)
    if found is None:
        raise _no_plan("optimal")
    return found


def _no_plan(search: Search) -> PlanError:
    if search == "greedy":
        return PlanError(
            "the greedy search found no plan that meets the pins",
            why="It chose words early that a later pin or tie forbids, and takes nothing back.",
            how=["use search='optimal'", "remove a pin"],
        )
    return PlanError(
        "no plan meets the pins",
        why="Every choice of signatures breaks a pin or a tie.",
        how=["remove a pin", "pass tie=None"],
    )


def _solve_at_once(boxing: BoxingGraph, search: Search) -> tuple[BoxingGraph, Solution]:
    problem = boxing.problem
    if search == "optimal":
        by_bytes = boxing.tables.costs.objective != "time"
        start = _replicated(boxing)
        found = solve_optimally(problem, boxing.aspects, [start], polish_always=by_bytes)
        if found is None:
            raise _no_plan(search)
        return boxing, dataclasses.replace(found, method=found.method + boxing.limits)
    solve = solve_greedily if search == "greedy" else solve_exhaustively
    labels = tuple(solve(problem))
    energy = problem.energy(labels)
    if not np.isfinite(energy):
        raise _no_plan(search)
    bound = energy if search == "exhaustive" else float(sum(c.min() for c in problem.costs))
    return boxing, Solution(labels, energy, bound, search)


def _replicated(boxing: BoxingGraph) -> list[int]:
    """The choice that holds and computes everything everywhere, as far as pins allow."""

    def is_whole(label: Any) -> bool:
        if isinstance(label, NdSignature):
            return all(is_whole(words) for words in (*label.inputs, *label.outputs))
        return all(isinstance(word, Broadcast) for word in label)

    labels = [0] * len(boxing.problem.costs)
    for node, place in zip(boxing.graph.nodes, boxing.place, strict=True):
        whole = (k for k, label in enumerate(node.domain.labels) if is_whole(label))
        labels[place] = next(whole, 0)
    for value, hub in boxing.hubs.items():
        writer = boxing.graph.writers[value]
        written: Words = writer.words[labels[boxing.place[writer.node]]]
        labels[hub.node] = hub.pairs.index((written, written))
    return labels


def _reuse(
    saved: Plan, traced: Traced, mesh: Mesh, build: Callable[..., BoxingGraph]
) -> tuple[BoxingGraph, Solution]:
    sizes = dict(zip(mesh.axes, mesh.sizes, strict=True))
    if saved.fingerprint != traced.fingerprint:
        raise _misfit(saved, "the function or the shapes of its arguments have changed")
    if tuple(saved.mesh_sizes.items()) != tuple(sizes.items()):
        raise _misfit(saved, f"it was made for mesh {dict(saved.mesh_sizes)}, this is {sizes}")
    wanted = tuple(map(decode_label, saved.choices))
    boxed = tuple(map(decode_label, saved.shared))
    # On an axis of one device all words mean the same, whichever of them a pin asks for.
    shared_axes = tuple(k for k, size in enumerate(mesh.sizes) if size > 1)
    try:
        boxing = build(Held(shared_axes, wanted), boxed)
    except SbpError:
        raise
    except (IndexError, AttributeError, TypeError, ValueError) as error:
        raise _misfit(saved, "its choices are not those of this function") from error
    labels = [0] * len(boxing.problem.costs)
    for node, place, label in zip(boxing.graph.nodes, boxing.place, wanted, strict=False):
        found = _position(label, node.domain.labels, shared_axes)
        if found is None:
            raise _misfit(saved, f"pins or options forbid what it chose for {node.name}")
        labels[place] = found
    for hub, words in zip(boxing.hubs.values(), boxed, strict=False):
        targets = [pair[1] for pair in hub.pairs]
        labels[hub.node] = _position(words, targets, shared_axes) or 0
    energy = boxing.problem.energy(labels)
    counts = len(boxing.graph.nodes), len(boxing.hubs)
    if counts != (len(wanted), len(boxed)) or not np.isfinite(energy):
        raise _misfit(saved, "its choices are not those of this function")
    # What was proven at other prices, such as those of another machine, says nothing at these.
    if energy == saved.cost:
        return boxing, Solution(tuple(labels), energy, saved.lower_bound, saved.method)
    method = f"{saved.method.removesuffix(AT_OTHER_PRICES)}{AT_OTHER_PRICES}"
    return boxing, Solution(tuple(labels), energy, 0.0, method)


def _position(label: Any, labels: Sequence[Any], axes: Sequence[int]) -> int | None:
    """Where a label stands, or else one that is the same on these axes."""
    if label in labels:
        return labels.index(label)
    wanted = _on_axes(label, axes)
    return next((k for k, other in enumerate(labels) if _on_axes(other, axes) == wanted), None)


def _on_axes(label: Any, axes: Sequence[int]) -> tuple[Any, ...]:
    """What a label says of some axes."""
    if isinstance(label, NdSignature):
        return tuple(label.axis(axis) for axis in axes)
    return tuple(label[axis] for axis in axes)


def _misfit(saved: Plan, reason: str) -> PlanError:
    return PlanError(
        f"the saved plan of {saved.name} does not fit",
        why=f"A plan runs only what it was made for; {reason}.",
        how=["make a new plan", "call with the function, shapes and mesh of the saved one"],
    )


def encode_label(label: Any) -> Any:
    """A label as nested tuples of text, the same in memory and in a file."""
    if isinstance(label, NdSignature):
        return tuple(tuple(map(encode_label, side)) for side in (label.inputs, label.outputs))
    return tuple(map(str, label))


def decode_label(data: Any) -> Any:
    """The label that `encode_label` wrote."""
    if all(isinstance(word, str) for word in data):
        return tuple(map(parse_word, data))
    inputs, outputs = data
    return NdSignature(tuple(map(decode_label, inputs)), tuple(map(decode_label, outputs)))


def _record(
    name: str, traced: Traced, chosen: Candidate, costs: CostModel, boundary: Boundary
) -> Plan:
    assignment, solution, memory = chosen.assignment, chosen.solution, chosen.memory
    mesh = assignment.boxing.graph.mesh
    names = array_names(traced, boundary)
    boxings = tuple(boxing_rows(assignment, costs, boundary, names))
    equations = tuple(equation_rows(assignment, costs, traced.block, names, iter(memory.live)))
    compute = sum(row.seconds * row.count for row in equations)
    moving = sum(row.seconds * row.count for row in boxings)

    def named(paths: Sequence[str], role: str) -> tuple[tuple[str, NdSbp], ...]:
        labels = (assignment.label(None, role, k) for k in range(len(paths)))
        return tuple(
            (path, NdSbp.of(mesh.axes, words)) for path, words in zip(paths, labels, strict=True)
        )

    return Plan(
        name=name,
        mesh_sizes=dict(zip(mesh.axes, mesh.sizes, strict=True)),
        cluster=costs.cluster.name,
        objective=costs.objective,
        method=solution.method,
        cost_seconds=compute + moving,
        compute_seconds=compute,
        wire_nbytes=sum(row.nbytes * row.count for row in boxings),
        flops_per_device=sum(row.flops * row.count for row in equations),
        total_flops=assignment.boxing.graph.total_flops(),
        memory_nbytes=memory.peak_nbytes,
        memory_parts=memory.parts,
        memory_source=memory.source,
        cost=solution.energy,
        lower_bound=solution.bound,
        boxings=boxings,
        equations=equations,
        arguments=named(boundary.argument_paths, "argument"),
        results=named(boundary.result_paths, "result"),
        ties=tuple(
            (boundary.result_paths[r], boundary.argument_paths[a]) for r, a in boundary.ties.items()
        ),
        notes=tuple(assignment.boxing.graph.notes),
        fingerprint=traced.fingerprint,
        choices=tuple(map(encode_label, chosen_labels(assignment.boxing, solution))),
        shared=tuple(
            encode_label(hub.pairs[solution.labels[hub.node]][1])
            for hub in assignment.boxing.hubs.values()
        ),
        overlap=costs.overlap,
    )


def _sends_too_much(name: str, least: Plan, most: int, how: Sequence[str]) -> PlanError:
    return PlanError(
        f"{name} sends {least.wire_nbytes} bytes a device, max_nbytes is {most}",
        why="No plan was found that sends less; explain() lists what it sends.",
        how=[f"max_nbytes={least.wire_nbytes}", *how],
    )
