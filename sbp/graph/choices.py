"""The flat graph of choices: nodes, and who writes and who reads each value.

`sbp.graph.builder` makes it of a program, of what the user fixed at its ends (`Boundary`) and of
the prices.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sbp.algebra import NdSbp, Words
from sbp.factors import Call
from sbp.graph.domains import Domain, Mesh
from sbp.graph.flow import Flow
from sbp.program import Equation, Value
from sbp.rules import find_rule

Axes = tuple[int, ...]
"""Numbers of mesh axes."""


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One choice.

    Attributes:
        name: Primitive or path, for people.
        source: The user's `file:line`.
        domain: What may be chosen.
        costs: Price of each label, trip count included.
        count: How many times it happens.
        call: The call, for nodes that choose a signature.
    """

    name: str
    source: str
    domain: Domain
    costs: NDArray[np.float64]
    count: int
    call: Call | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Port:
    """One end of a flow: a node and the words that each of its labels means there.

    Attributes:
        node: Number of the node.
        words: Words by label.
        count: How many times the value is boxed on this way; of a writer, how many times written.
        sealed: Axes on which it is read as it is, if it is written sealed on them too.
    """

    node: int
    words: tuple[Words, ...]
    count: int
    sealed: Axes = ()


@dataclass(slots=True, eq=False)
class Graph:
    """The choices of a whole program.

    Attributes:
        mesh: The mesh.
        nodes: All nodes, in program order.
        writers: Who writes each value.
        readers: Who reads each value, in program order.
        nodes_of: Nodes by equation (None for the program itself), role and position.
        flow: Static facts about values.
        pinned: For a value that is pinned from outside the program, what its readers read instead.
        notes: What the user should know of how the program was read.
        exchangeable: Axes of which the order is left open: choices that differ only in it are one.
    """

    mesh: Mesh
    nodes: list[Node] = field(default_factory=list)
    writers: dict[Value, Port] = field(default_factory=dict)
    readers: dict[Value, list[Port]] = field(default_factory=dict)
    nodes_of: dict[tuple[Equation | None, str, int], int] = field(default_factory=dict)
    flow: Flow = field(default_factory=Flow)
    pinned: dict[Value, Value] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    exchangeable: Axes = ()

    def total_flops(self) -> int:
        """Operations of the one-device program in one call."""
        total = 0
        for node in self.nodes:
            rule = find_rule(node.call.primitive) if node.call else None
            if rule and node.call:
                total += rule.flops(node.call) * node.count
        return total


@dataclass(frozen=True, slots=True)
class Boundary:
    """What the user fixed at the ends of the program, and what is asked of values inside.

    Attributes:
        argument_paths: Name of each argument leaf.
        result_paths: Name of each result leaf.
        argument_words: Words asked for, by position; None leaves a leaf free.
        result_words: The same for results.
        ties: For a result, the argument whose words it shares.
        donated: Arguments whose place a result that is tied to them takes.
        inner_words: Words that values inside have when they are read, as if each went through a
            `pin`; the program stays the same.
    """

    argument_paths: tuple[str, ...]
    result_paths: tuple[str, ...]
    argument_words: tuple[NdSbp | None, ...]
    result_words: tuple[NdSbp | None, ...]
    ties: Mapping[int, int] = field(default_factory=dict)
    donated: frozenset[int] = frozenset()
    inner_words: Mapping[Value, NdSbp] = field(default_factory=dict)
