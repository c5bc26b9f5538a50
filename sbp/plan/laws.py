"""What forbids a value some words: what the user asked for, a tie, the rule of its operation.

Comes in: a target of a planned program and the words asked about. Goes out: text for people, empty
where nothing forbids them.
"""

from collections.abc import Sequence

from sbp.algebra import NdSbp, Words
from sbp.graph import Boundary, Graph, result_name
from sbp.plan.assignment import Assignment
from sbp.plan.targets import Target

MAX_SIGNATURES = 6
"""Signatures that are listed."""


def fits(graph: Graph, words: Words, request: NdSbp) -> bool:
    """Whether words are what is asked; on an axis of one device all are."""
    named = NdSbp.of(graph.mesh.axes, words)
    sizes = dict(zip(graph.mesh.axes, graph.mesh.sizes, strict=True))
    return all(named[axis] == word or sizes[axis] == 1 for axis, word in request.items())


def is_read_so(assignment: Assignment, target: Target, request: NdSbp) -> bool:
    """Whether a value is boxed to what is asked for everything that reads it."""
    graph = assignment.boxing.graph
    readers = graph.readers.get(target.value, ()) if target.value else ()
    words = map(assignment.words_at, readers)
    return bool(readers) and all(fits(graph, one, request) for one in words)


def _asked_for(boundary: Boundary, target: Target) -> list[tuple[str, NdSbp]]:
    """What was asked of an end, by the options of the step, with the name of the option."""
    ends: list[tuple[str, NdSbp | None]] = []
    arguments, results = {target.position}, {target.position}
    if target.kind == "result":
        arguments = {boundary.ties[k] for k in results if k in boundary.ties}
    else:
        results = {r for r, a in boundary.ties.items() if a in arguments}
    if target.kind != "value":
        ends += [("in_sbp", boundary.argument_words[k]) for k in sorted(arguments)]
        ends += [("out_sbp", boundary.result_words[k]) for k in sorted(results)]
    return [(option, words) for option, words in ends if words]


def asked_by(boundary: Boundary, target: Target) -> str:
    """The options that ask for the words an end has, as the rest of a sentence."""
    asked = [f"{option} '{str(w)[1:-1]}'" for option, w in _asked_for(boundary, target)]
    return f", as {' and '.join(asked)} asks" if asked else ""


def contradiction(boundary: Boundary, graph: Graph, target: Target, request: NdSbp) -> str:
    """The pin of the user that forbids the words; empty if none does."""
    sizes = dict(zip(graph.mesh.axes, graph.mesh.sizes, strict=True))
    request = NdSbp({axis: word for axis, word in request.items() if sizes[axis] > 1})
    if target.primitive == "pin":
        held = _pin_words(graph, target)
        for axis, word in request.items():
            if held.get(axis, word) != word:
                return f"A pin on this line keeps '{axis}: {held[axis]}'."
    for option, words in _asked_for(boundary, target):
        for axis, word in request.items():
            if words.get(axis, word) != word:
                tied = "; ".join(tie_of(boundary, target))
                return f"{option} asks for '{axis}: {words[axis]}'." + f"\n{tied}" * bool(tied)
    return ""


def _pin_words(graph: Graph, target: Target) -> NdSbp:
    """The words that a pin leaves no choice of."""
    node = graph.writers[target.value].node if target.value else 0
    axes = graph.mesh.axes
    columns = zip(axes, zip(*graph.nodes[node].domain.labels, strict=True), strict=True)
    return NdSbp({axis: words[0] for axis, words in columns if len(set(words)) == 1})


def tie_of(boundary: Boundary, target: Target) -> list[str]:
    """What an end is tied to, as a line of its own."""
    for result, argument in boundary.ties.items():
        if (target.kind, target.position) in (("argument", argument), ("result", result)):
            names = result_name(boundary.result_paths[result]), boundary.argument_paths[argument]
            return ["{} and argument {} are tied: they have the same words".format(*names)]
    return []


def missing_signature(graph: Graph, target: Target, request: NdSbp) -> str:
    """Why no signature of its operation gives a value these words; empty if one does."""
    if target.value is None:
        return ""
    port = graph.writers[target.value]
    if any(fits(graph, words, request) for words in port.words):
        return ""
    node = graph.nodes[port.node]
    if node.call is None:
        return f"{target.primitive} cannot hand it on as this."
    lines = [f"{target.primitive} has no signature with this result."]
    for axis in request:
        number = graph.mesh.axes.index(axis)
        found = dict.fromkeys(str(label.axis(number)) for label in node.domain.labels)
        lines.append(f"On {axis} it has {_listed(list(found))}.")
    return "\n".join(lines)


def _listed(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - MAX_SIGNATURES} more" if len(texts) > MAX_SIGNATURES else ""
    return "; ".join(texts[:MAX_SIGNATURES]) + more
