"""Why not another word: the cheapest plan in which a value has it, held against the plan at hand.

Comes in: a `Plan` that a step made, the name of a value, the words asked about. Goes out: `Answer`:
it has them already, it cannot have them and by which law, or what they cost.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from sbp.algebra import NdSbp
from sbp.errors import PlanError, SignatureError
from sbp.graph import Boundary, check_words
from sbp.plan import laws
from sbp.plan.assignment import Assignment
from sbp.plan.difference import NO_DIFFERENCE
from sbp.plan.explain import format_seconds, gap_text
from sbp.plan.targets import Target, find_target, requested_words
from sbp.program import Traced

if TYPE_CHECKING:
    from sbp.plan.record import Plan

Kind = Literal["same", "illegal", "tie", "dearer", "cheaper"]
MAX_DIFFERENCES = 12
"""Lines of a difference that an answer shows."""


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """Why a value does not have some words.

    Attributes:
        kind: `same`: it has them; `illegal`: it cannot be computed with them; `tie`: they cost the
            same; `dearer` or `cheaper`: than the plan at hand.
        text: The answer for people.
        plan: The cheapest plan with these words, where there is one.
    """

    kind: Kind
    text: str
    plan: "Plan | None" = dataclasses.field(default=None, repr=False)

    def __str__(self) -> str:
        return self.text


class Origin:
    """What a plan was made from, and how to make another one. It stays in its process.

    Attributes:
        traced: The program.
        boundary: Pins and ties of the plan.
        assignment: Its choices.
        plan_for: Plans the same program for other pins.
    """

    def __init__(
        self, traced: Traced, boundary: Boundary, assignment: Assignment,
        plan_for: Callable[[Boundary], "Plan"],
    ) -> None:  # fmt: skip
        """Takes them as they are."""
        self.traced = traced
        self.boundary = boundary
        self.assignment = assignment
        self.plan_for = plan_for

    def __reduce__(self) -> tuple[type, tuple[()]]:
        # A copied or pickled plan has none, like one that was read from a file.
        return type(None), ()


def answer(plan: "Plan", asked: Any, word: Any, which: int | str | None) -> Answer:
    """Answers `Plan.why`; arguments as there."""
    origin = plan.origin
    if origin is None:
        raise PlanError(
            f"this plan of {plan.name} cannot say why",
            why="The question is answered by planning again, and a plan that was read from a file "
            "or copied has no program to plan.",
            how="ask the plan of a step: step.plan(...).why(...), with "
            "sbp.parallelize(..., plan=loaded) for a saved one",
        )
    target = find_target(origin.traced, origin.boundary, origin.assignment, asked, which)
    graph = origin.assignment.boxing.graph
    request = requested_words(word, graph.mesh, target)
    asked_text = f"'{str(request)[1:-1]}'"
    try:
        request = check_words(request, target.array, graph.mesh, target.name, what="why")
    except SignatureError as error:
        return Answer("illegal", f"{target.name} cannot be {asked_text}:\n{_indented(error.why)}")
    has = NdSbp.of(graph.mesh.axes, target.words)
    if laws.fits(graph, target.words, request):
        why = laws.asked_by(origin.boundary, target)
        single = [
            axis
            for axis, size in zip(graph.mesh.axes, graph.mesh.sizes, strict=True)
            if size == 1 and request.get(axis, has[axis]) != has[axis]
        ]
        equal = f"; on {', '.join(single)}, of one device, all words are the same" if single else ""
        return Answer("same", f"{target.name} is {asked_text} already: {has}{why}{equal}")
    if laws.is_read_so(origin.assignment, target, request):
        text = f"{target.name} is boxed to {asked_text} already, for all that read it"
        return Answer("same", text)
    if reason := laws.contradiction(origin.boundary, graph, target, request):
        return Answer("illegal", f"{target.name} cannot be {asked_text}:\n{_indented(reason)}")
    reason = laws.missing_signature(graph, target, request)
    try:
        other = origin.plan_for(_pinned(origin.boundary, target, request))
    except (SignatureError, PlanError) as error:
        text = f"{target.name} cannot be {asked_text}: {error.what}"
        return Answer("illegal", f"{text}\n{_indented(error.why)}".rstrip())
    kind, price = _compare(plan, other)
    lines = [f"{target.name} as {asked_text} instead of {has}: {price}"]
    if reason:
        kind = "illegal"
        lines = [
            f"{target.name} cannot be computed as {asked_text}:", _indented(reason),
            f"boxed to it for all its readers, as a pin does: {price}",
        ]  # fmt: skip
    lines += laws.tie_of(origin.boundary, target)
    if (found := plan.diff(other)) != NO_DIFFERENCE:
        lines += [_indented(line) for line in _shown(found)]
    return Answer(kind, "\n".join(lines), other)


def _pinned(boundary: Boundary, target: Target, request: NdSbp) -> Boundary:
    if target.value is not None:
        inner = {**boundary.inner_words, target.value: request}
        return dataclasses.replace(boundary, inner_words=inner)
    name = f"{target.kind}_words"
    words = list(getattr(boundary, name))
    words[target.position] = NdSbp({**(words[target.position] or {}), **request})
    return dataclasses.replace(boundary, **{name: tuple(words)})


def _compare(plan: "Plan", other: "Plan") -> tuple[Kind, str]:
    if plan.objective != other.objective:  # max_nbytes made one of them a plan of least bytes
        times = format_seconds(plan.cost_seconds), format_seconds(other.cost_seconds)
        kind = "dearer" if other.cost_seconds > plan.cost_seconds else "cheaper"
        return kind, f"{times[1]} instead of {times[0]}, planned by {other.objective}"
    delta = other.cost - plan.cost
    if delta == 0:
        return "tie", "a tie, both cost the same"
    kind: Kind = "dearer" if delta > 0 else "cheaper"
    share = f"{abs(delta) / plan.cost:.2%}" if plan.cost else "from nothing"
    if plan.objective == "time":
        text = f"{kind} by {format_seconds(abs(delta) / 1e12)} ({share})"
    else:
        text = f"{kind} by {_sums(plan, other)} ({share} of the objective)"
    gaps = plan.gap * plan.cost, other.gap * other.cost
    if max(gaps) >= abs(delta):
        text += f"; the search left as much open (gaps {gap_text(plan)} and {gap_text(other)})"
    return kind, text


def _sums(plan: "Plan", other: "Plan") -> str:
    wire = abs(other.wire_nbytes - plan.wire_nbytes)
    if wire:
        return f"{wire} bytes sent"
    flops = abs(other.flops_per_device - plan.flops_per_device)
    if flops:
        return f"{flops:.4g} operations"
    return format_seconds(abs(other.cost_seconds - plan.cost_seconds))


def _shown(text: str) -> list[str]:
    lines = text.splitlines()
    if len(lines) <= MAX_DIFFERENCES:
        return lines
    rest = len(lines) - MAX_DIFFERENCES
    return [*lines[:MAX_DIFFERENCES], f"and {rest} more: plan.diff(answer.plan) has all"]


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
