"""`Traced` and the rules become one flat graph of choices, loops and branches included.

Comes in: a program, the mesh, the prices, the pins. Goes out: `Graph`: nodes with domains and
costs, and who writes and who reads each value. Equations inside a loop are nodes like any other,
their costs multiplied by the trip count.

A scan: a carry is one node, written by the initial value once and by the body each time; what flows
into the body (a constant, a slice of a stacked input) is a node too, so that a boxing may stand in
front of it, outside the loop, or behind it, inside.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sbp.algebra import ArrayType, B, NdSbp, Split, Words
from sbp.cost_model import CostModel
from sbp.errors import PlanError
from sbp.factors import Call, NdSignature
from sbp.graph.choices import Axes, Boundary, Graph, Node, Port
from sbp.graph.domains import (
    Domain,
    Held,
    Mesh,
    allowed_words,
    call_domain,
    check_words,
    freeze,
    signatures_domain,
    words_domain,
)
from sbp.graph.flow import analyse, carry_range, is_kernel, trip_count
from sbp.program import Atom, Block, Equation, Traced, Value
from sbp.rules import find_rule

Shift = Callable[[Words], Words]


def build_graph(
    traced: Traced, mesh: Mesh, costs: CostModel, boundary: Boundary,
    reduce_dtype: str | None = None, held: Held | None = None, exchangeable: Axes = (),
) -> Graph:  # fmt: skip
    """Builds the graph of a program.

    Args:
        traced: The program.
        mesh: The mesh.
        costs: Prices.
        boundary: Pins and ties.
        reduce_dtype: A dtype in which partial sums may be added before the program narrows to it.
        held: Choices kept on some axes.
        exchangeable: Axes of one size and one kind of link: of signatures that differ only in
            their order, one is enough.

    Raises:
        SignatureError: A pin does not fit its value.
        PlanError: Pins contradict each other.
    """
    graph = Graph(
        mesh, flow=analyse(traced.block), notes=list(traced.notes), exchangeable=exchangeable
    )
    builder = _Builder(graph, costs, reduce_dtype, held, boundary.inner_words)
    block = traced.block
    arguments = zip(block.inputs, boundary.argument_words, boundary.argument_paths, strict=False)
    for k, (value, asked, path) in enumerate(arguments):
        pinned = _checked(asked, value, mesh, f"argument {path}", "in_sbp")
        for result, tied in boundary.ties.items():
            if tied == k:
                name = result_name(boundary.result_paths[result])
                other = _checked(boundary.result_words[result], value, mesh, name, "out_sbp")
                pinned = _merge(pinned, other, mesh, f"argument {path}, {name}")
        domain = builder.allowed(value.type, pinned, partial=False)
        node = builder.value_node(f"argument {path}", "", domain, 1, (None, "argument", k))
        builder.write(value, node, domain.labels, 1)
    for k, value in enumerate(block.inputs[traced.num_arguments :]):
        domain = builder.allowed(value.type, None, partial=False)
        node = builder.value_node(f"closed-over array {k}", "", domain, 1, (None, "closure", k))
        builder.write(value, node, domain.labels, 1)
    builder.read_block(block, 1)
    for k, atom in enumerate(block.outputs):
        if k in boundary.ties:
            node = graph.nodes_of[None, "argument", boundary.ties[k]]
            graph.nodes_of[None, "result", k] = node
            builder.read(atom, node, graph.nodes[node].domain.labels, 1)
            continue
        name = result_name(boundary.result_paths[k])
        pinned = _checked(boundary.result_words[k], atom, mesh, name, "out_sbp")
        domain = builder.allowed(atom.type, pinned, partial=False)
        node = builder.value_node(name, "", domain, 1, (None, "result", k))
        builder.read(atom, node, domain.labels, 1)
    return graph


def result_name(path: str) -> str:
    """A result leaf for people; the path is empty where the function returns one array."""
    return f"result {path}" if path else "the result"


def _checked(words: NdSbp | None, atom: Atom, mesh: Mesh, where: str, what: str) -> NdSbp | None:
    return check_words(words, atom.type, mesh, where, what=what) if words else None


def _merge(first: NdSbp | None, second: NdSbp | None, mesh: Mesh, where: str) -> NdSbp | None:
    if first is None or second is None:
        return first or second
    for axis, one in first.items():
        other = second.get(axis, one)
        if one != other and mesh.sizes[mesh.axes.index(axis)] > 1:
            raise PlanError(
                f"in_sbp '{axis}: {one}' and out_sbp '{axis}: {other}' contradict each other",
                where=where,
                why="They are tied: the result takes the place of the donated argument, so both "
                "have the same words.",
                how=[f"out_sbp '{axis}: {one}'", f"in_sbp '{axis}: {other}'", "tie=None"],
            )
    return NdSbp({**second, **first})


class _Builder:
    def __init__(
        self, graph: Graph, costs: CostModel, reduce_dtype: str | None, held: Held | None,
        inner_words: Mapping[Value, NdSbp],
    ) -> None:  # fmt: skip
        self.held = held
        self.inner_words = inner_words
        self.graph = graph
        self.costs = costs
        self.reduce_dtype = reduce_dtype
        self.domains: dict[Any, Domain] = {}
        self.operand_words: dict[tuple[Any, ...], tuple[Words, ...]] = {}
        self.same_words: dict[tuple[Words, ...], tuple[Words, ...]] = {}
        self.same_prices: dict[bytes, NDArray[np.float64]] = {}
        self.prices: dict[Any, NDArray[np.float64]] = {}
        self.whole = (B,) * len(graph.mesh.sizes)
        self.sealed_reads: Axes = ()
        self.sealed_writes: Axes = ()

    def add(self, node: Node, key: tuple[Equation | None, str, int]) -> int:
        self.graph.nodes.append(node)
        self.graph.nodes_of[key] = len(self.graph.nodes) - 1
        return len(self.graph.nodes) - 1

    def allowed(self, array: ArrayType, pinned: NdSbp | None, *, partial: bool) -> Domain:
        """What the next node, one for a value, may choose from."""
        key = (array, pinned, partial)
        if self.held is None and key in self.domains:
            return self.domains[key]
        words = allowed_words(array, self.graph.mesh, pinned, partial=partial)
        if self.held is not None:
            words = self.held.words(len(self.graph.nodes), words)
        self.domains[key] = words_domain(words, len(self.whole))
        return self.domains[key]

    def value_node(
        self, name: str, source: str, domain: Domain, count: int,
        key: tuple[Equation | None, str, int],
    ) -> int:  # fmt: skip
        size = len(domain.labels)
        if size not in self.prices:
            self.prices[size] = np.zeros(size)
        return self.add(Node(name, source, domain, self.prices[size], count), key)

    def write(self, value: Value, node: int, words: tuple[Words, ...], count: int) -> None:
        self.graph.writers[value] = Port(node, words, count, self.sealed_writes)
        if value in self.inner_words:
            self.pin_inside(value, self.graph.nodes[node].source, count)

    def pin_inside(self, value: Value, source: str, count: int) -> None:
        graph, array = self.graph, value.type
        pinned = check_words(self.inner_words[value], array, graph.mesh, source, what="pin")
        domain = self.allowed(array, pinned, partial=True)
        key = (None, "inner pin", len(graph.pinned))
        node = self.value_node("pin", source, domain, count, key)
        self.read(value, node, domain.labels, count)
        behind = graph.pinned[value] = Value(array)
        graph.flow.repeat(value, behind)
        self.write(behind, node, domain.labels, count)

    def read(self, atom: Atom, node: int, words: tuple[Words, ...], count: int) -> None:
        if isinstance(atom, Value):
            atom = self.graph.pinned.get(atom, atom)
            port = Port(node, words, count, self.sealed_reads)
            self.graph.readers.setdefault(atom, []).append(port)

    def shifted(self, words: tuple[Words, ...], shift: Shift) -> tuple[Words, ...]:
        """The words on the other side of a loop; equal requests share one tuple."""
        key = (id(words), shift)
        if key not in self.operand_words:
            shifted = tuple(map(shift, words))
            self.operand_words[key] = self.same_words.setdefault(shifted, shifted)
        return self.operand_words[key]

    def read_block(self, block: Block, count: int) -> None:
        outside = self.sealed_reads, self.sealed_writes
        for equation in block.equations:
            self.sealed_reads = self.numbers(equation.sealed_reads)
            self.sealed_writes = self.numbers(equation.sealed_writes)
            match equation.name:
                case "scan":
                    self.read_scan(equation, count)
                case "while":
                    self.read_while(equation, count)
                case "cond":
                    self.read_cond(equation, count)
                case "pin":
                    self.read_pin(equation, count)
                case "barrier":
                    for k, (atom, value) in enumerate(
                        zip(equation.inputs, equation.outputs, strict=True)
                    ):
                        self.pass_through(equation, "barrier", k, atom, {value: count}, count)
                case _:
                    self.read_call(equation, count)
        self.sealed_reads, self.sealed_writes = outside

    def numbers(self, axes: Collection[str]) -> Axes:
        """Numbers of mesh axes."""
        return tuple(k for k, axis in enumerate(self.graph.mesh.axes) if axis in axes)

    def read_call(self, equation: Equation, count: int) -> None:
        call = call_of(equation)
        rule = None if equation.has_effects else find_rule(equation.name)
        if rule is None and not equation.has_effects:
            note = f"{equation.name} has no rule and runs replicated ({equation.source})"
            if note not in self.graph.notes:
                self.graph.notes.append(note)
        kept = self.held.label(len(self.graph.nodes)) if self.held else None
        aspect = rule.aspect(call) if rule and rule.aspect else freeze(equation.params)
        key = (call, aspect, equation.has_effects, kept)
        if key not in self.domains:
            self.domains[key] = self.find_domain(equation, call, kept)
        domain = self.domains[key]
        costs = self.call_cost(equation, call, domain, key, count)
        node = self.add(
            Node(equation.name, equation.source, domain, costs, count, call),
            (equation, "call", 0),
        )
        for k, atom in enumerate(equation.inputs):
            self.read(atom, node, self.words_of(domain, "inputs", k), count)
        for k, value in enumerate(equation.outputs):
            self.write(value, node, self.words_of(domain, "outputs", k), count)

    def find_domain(self, equation: Equation, call: Call, kept: NdSignature | None) -> Domain:
        """The signatures of an equation; one with effects runs on whole arrays."""
        num_axes = len(self.whole)
        if equation.has_effects:
            sides = (self.whole,) * len(call.inputs), (self.whole,) * len(call.outputs)
            return signatures_domain([NdSignature(*sides)], num_axes)
        only = self.held.signatures(call, kept) if self.held else None
        mesh, exchangeable = self.graph.mesh, self.graph.exchangeable
        domain = call_domain(call, mesh, self.reduce_dtype, only, exchangeable)
        if kept is None or kept in domain.labels:
            return domain
        # What it had need not follow from what other axes may now have before it.
        return signatures_domain((kept, *domain.labels), num_axes)

    def words_of(self, domain: Domain, side: str, position: int) -> tuple[Words, ...]:
        key = (id(domain), side, position)
        if key not in self.operand_words:
            words = tuple(getattr(s, side)[position] for s in domain.labels)
            # Calls that differ in a parameter only, such as where a slice starts, share them too.
            self.operand_words[key] = self.same_words.setdefault(words, words)
        return self.operand_words[key]

    def call_cost(
        self, equation: Equation, call: Call, domain: Domain, key: Any, count: int
    ) -> NDArray[np.float64]:
        traffic = self.graph.flow.memory_traffic(equation)
        known = (key, traffic, count)
        if known not in self.prices:
            flops, kernel = contraction_flops(call), is_kernel(equation)
            free = flops == 0 and not kernel and not any(traffic)
            prices = [
                0.0
                if free
                else self.costs.signature_price(call, signature, traffic, flops, is_kernel=kernel)
                for signature in domain.labels
            ]
            total = np.array(prices, np.float64) * count
            self.prices[known] = self.same_prices.setdefault(total.tobytes(), total)
        return self.prices[known]

    def pass_through(
        self, equation: Equation, role: str, position: int, atom: Atom,
        values: Mapping[Value, int], count: int, *, outer: Shift | None = None,
        pinned: NdSbp | None = None,
    ) -> int:  # fmt: skip
        """A node that only hands a value on.

        Args:
            equation: Where it stands.
            role: What it is there.
            position: Which one of its role.
            atom: What it reads.
            values: What it writes, and how many times each.
            count: How many times it reads.
            outer: The words on the reading side, from those on the writing side.
            pinned: Words that must hold.
        """
        (array, *_) = (value.type for value in values)
        domain = self.allowed(array, pinned, partial=True)
        words = domain.labels
        node = self.value_node(role, equation.source, domain, count, (equation, role, position))
        self.read(atom, node, self.shifted(words, outer) if outer else words, count)
        for value, times in values.items():
            self.write(value, node, words, times)
        return node

    def read_pin(self, equation: Equation, count: int) -> None:
        (atom,), (value,) = equation.inputs, equation.outputs
        words = check_words(
            equation.params["words"], value.type, self.graph.mesh, equation.source, what="pin"
        )
        self.pass_through(equation, "pin", 0, atom, {value: count}, count, pinned=words)

    def read_scan(self, equation: Equation, count: int) -> None:
        scan, body = equation.params["scan"], equation.bodies[0]
        start, stop = carry_range(equation)
        trips = count * scan.length
        carries: list[int] = []
        for k, (atom, inner) in enumerate(zip(equation.inputs, body.inputs, strict=True)):
            if k < start:
                self.pass_through(equation, "const", k, atom, {inner: trips}, count)
            elif k < stop:
                values = {inner: trips, equation.outputs[k - start]: count}
                carries.append(self.pass_through(equation, "carry", k - start, atom, values, count))
            else:
                self.pass_through(
                    equation, "slice", k - stop, atom, {inner: trips}, count, outer=stacked
                )
        self.read_block(body, trips)
        num_carry = stop - start
        for k, atom in enumerate(body.outputs):
            if k < num_carry:
                labels = self.graph.nodes[carries[k]].domain.labels
                self.read(atom, carries[k], labels, trips)
                continue
            domain = self.allowed(atom.type, None, partial=True)
            key = (equation, "stack", k - num_carry)
            node = self.value_node("stack", equation.source, domain, trips, key)
            self.read(atom, node, domain.labels, trips)
            self.write(equation.outputs[k], node, self.shifted(domain.labels, stacked), count)

    def read_while(self, equation: Equation, count: int) -> None:
        condition, body = equation.bodies
        num_cond, num_body = equation.params["cond_nconsts"], equation.params["body_nconsts"]
        known = trip_count(equation)
        note = f"while has an unknown trip count and is priced as one trip ({equation.source})"
        if known is None and note not in self.graph.notes:
            self.graph.notes.append(note)
        trips = count if known is None else count * known
        inputs = equation.inputs
        for k, inner in enumerate(condition.inputs[:num_cond]):
            self.pass_through(equation, "cond_const", k, inputs[k], {inner: trips}, count)
        for k, inner in enumerate(body.inputs[:num_body]):
            self.pass_through(
                equation, "body_const", k, inputs[num_cond + k], {inner: trips}, count
            )
        carries: list[int] = []
        for k, value in enumerate(equation.outputs):
            inside = (condition.inputs[num_cond + k], body.inputs[num_body + k])
            values = {**dict.fromkeys(inside, trips), value: count}
            atom = inputs[num_cond + num_body + k]
            carries.append(self.pass_through(equation, "carry", k, atom, values, count))
        self.read_block(condition, trips)
        self.read_block(body, trips)
        self.read_whole(equation, "predicate", condition.outputs[0], trips)
        for node, atom in zip(carries, body.outputs, strict=True):
            self.read(atom, node, self.graph.nodes[node].domain.labels, trips)

    def read_cond(self, equation: Equation, count: int) -> None:
        self.read_whole(equation, "predicate", equation.inputs[0], count)
        for k, atom in enumerate(equation.inputs[1:]):
            values = dict.fromkeys((branch.inputs[k] for branch in equation.bodies), count)
            self.pass_through(equation, "operand", k, atom, values, count)
        for branch in equation.bodies:
            self.read_block(branch, count)
        for k, value in enumerate(equation.outputs):
            domain = self.allowed(value.type, None, partial=True)
            node = self.value_node("join", equation.source, domain, count, (equation, "join", k))
            for branch in equation.bodies:
                self.read(branch.outputs[k], node, domain.labels, count)
            self.write(value, node, domain.labels, count)

    def read_whole(self, equation: Equation, role: str, atom: Atom, count: int) -> None:
        """Predicates are B: devices that disagreed would wait for each other for ever."""
        if "whole" not in self.domains:
            self.domains["whole"] = words_domain([self.whole], len(self.whole))
        domain = self.domains["whole"]
        node = self.value_node(role, equation.source, domain, count, (equation, role, 0))
        self.read(atom, node, domain.labels, count)


def stacked(words: Words) -> Words:
    """Words of a stacked array, from those of its slices along dim 0."""
    return tuple(Split(w.dim + 1) if isinstance(w, Split) else w for w in words)


def call_of(equation: Equation) -> Call:
    """The logical call of an equation."""
    return Call(
        equation.name,
        tuple(atom.type for atom in equation.inputs),
        tuple(value.type for value in equation.outputs),
        equation.params,
    )


def contraction_flops(call: Call) -> int:
    """Operations of a matmul or convolution; 0 for calls that memory bounds."""
    rule = find_rule(call.primitive)
    if rule is None or call.primitive not in ("dot_general", "conv_general_dilated"):
        return 0
    return rule.flops(call)
