"""The plan: a frozen value that says what will run, what it costs, and how far that is from best.

Comes in: rows and sums. Goes out: `Plan`, which prints, compares, saves and loads. It holds plain
values only, so that a plan can be made on one machine and run on another.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sbp.algebra import NdSbp, Word
from sbp.files import read_bytes, write_text
from sbp.plan import alternatives, difference, explain, page, storage
from sbp.plan.alternatives import Answer, Origin
from sbp.plan.rows import BoxingRow, EquationRow
from sbp.specs import named_sharding, num_dims


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """How a function will run on a mesh.

    Attributes:
        name: The function's name.
        mesh_sizes: Number of devices by mesh axis, outermost first.
        cluster: The machine it is priced for.
        objective: `time`, `bytes` or `wire`.
        method: How the choices were found.
        cost_seconds: Predicted time of one call: compute and communication, less what `overlap`
            assumes to be hidden.
        compute_seconds: The part that is compute.
        wire_nbytes: Bytes a device sends in one call.
        flops_per_device: Operations on one device in one call.
        total_flops: Operations of the one-device function.
        memory_nbytes: Predicted peak memory of one device.
        memory_parts: What it consists of: kind of array and bytes.
        memory_source: The user's line that runs at the peak.
        cost: What the search minimised: picoseconds where the objective is `time`; else units of
            1e-8 bytes: what is sent, a second as one byte and, with `bytes`, each operation beyond
            an even share as 0.02 bytes.
        lower_bound: No plan costs less, in the same units.
        boxings: Every step of communication or local change of words.
        equations: Every equation with its signature.
        arguments: Words of each argument leaf, by path.
        results: Words of each result leaf, by path.
        ties: Pairs of result path and argument path that share words.
        notes: What the reader should know.
        fingerprint: Digest of the traced function.
        choices: The words or signature of every choice, to run this very plan again.
        shared: The words to which values with several readers are boxed for all of them.
        overlap: Share of the communication of arguments and results assumed hidden behind compute.
        in_tree: The tree of the arguments, where the plan was made in this process.
        out_tree: The tree of the results, likewise.
        origin: What it was made from, likewise; `why` plans again from it.
    """

    name: str
    mesh_sizes: Mapping[str, int]
    cluster: str
    objective: str
    method: str
    cost_seconds: float
    compute_seconds: float
    wire_nbytes: int
    flops_per_device: int
    total_flops: int
    memory_nbytes: int
    memory_parts: tuple[tuple[str, int], ...]
    memory_source: str
    cost: float
    lower_bound: float
    boxings: tuple[BoxingRow, ...]
    equations: tuple[EquationRow, ...]
    arguments: tuple[tuple[str, NdSbp], ...]
    results: tuple[tuple[str, NdSbp], ...]
    ties: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    fingerprint: str
    choices: tuple[Any, ...]
    shared: tuple[Any, ...]
    overlap: float = 0.0
    in_tree: Any = dataclasses.field(default=None, compare=False, repr=False)
    out_tree: Any = dataclasses.field(default=None, compare=False, repr=False)
    origin: Origin | None = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def gap(self) -> float:
        """How far the cost may be above the best possible, relative to the cost."""
        return max(0.0, (self.cost - self.lower_bound) / self.cost) if self.cost else 0.0

    @property
    def lower_bound_seconds(self) -> float:
        """No plan takes less time; 0 with another objective, which proves nothing of time."""
        # Prices are whole picoseconds: rounded up, they may be more than the time itself.
        bound = self.lower_bound / 1e12 if self.objective == "time" else 0.0
        return min(bound, self.cost_seconds)

    @property
    def communication_seconds(self) -> float:
        """The part of the predicted time that is communication or local change of words."""
        return self.cost_seconds - self.compute_seconds

    @property
    def in_sbp(self) -> Any:
        """Words of the arguments: one tree an argument, or by path where the plan was loaded."""
        return self._tree(self.in_tree, self.arguments)

    @property
    def out_sbp(self) -> Any:
        """Words of the results, as a tree, or by path where the plan was loaded."""
        return self._tree(self.out_tree, self.results)

    def in_shardings(self, mesh: Any) -> Any:
        """Shardings of the arguments on a jax mesh with the plan's axes; a tree as of `in_sbp`."""
        return _shardings(mesh, self.in_tree, self.arguments)

    def out_shardings(self, mesh: Any) -> Any:
        """Shardings of the results on a jax mesh with the plan's axes; a tree as of `out_sbp`."""
        return _shardings(mesh, self.out_tree, self.results)

    def _tree(self, tree: Any, leaves: tuple[tuple[str, NdSbp], ...]) -> Any:
        return dict(leaves) if tree is None else tree.unflatten([words for _, words in leaves])

    def summary(self) -> str:
        """The head of `explain`: time and its parts, proof, bytes, operations, memory."""
        return explain.summary(self)

    def explain(self, *, top: int | None = None, where: str | None = None) -> str:
        """The plan as text: a summary, the words at the ends, then every line of the program.

        A boxing stands indented below the equation that needs it.

        Args:
            top: Show only this many lines, the dearest; all if None.
            where: Show only lines whose source, operation or array has this text in it, or matches
                this pattern: `train.py:12`, `all-*`, `params.w1`.

        Raises:
            SbpError: Nothing matches.
        """
        return explain.explain(self, top=top, where=where)

    def why(
        self, value_or_line: str, word: NdSbp | Word | str, *, which: int | str | None = None
    ) -> Answer:
        """Why a value does not have other words: plans again with these and compares.

        Args:
            value_or_line: Path of an argument or result, `params.w1` or `result loss`; or the line
                that computes a value, `train.py:12`.
            word: The words asked about, `tp: S(0)`; axes that are not named stay free. One word
                will do on a mesh of one axis.
            which: Of several values of a line, the number of one or a part of its description.

        Returns:
            An answer that prints; its `plan` is the plan with these words, where there is one.

        Raises:
            SbpError: The value or the words are not found, or the plan was not made by a step of
                this process.
        """
        return alternatives.answer(self, value_or_line, word, which)

    def diff(self, other: "Plan") -> str:
        """What another plan does differently.

        Raises:
            SbpError: `other` is not a plan.
        """
        if not isinstance(other, Plan):
            raise difference.not_a_plan(other)
        return difference.diff(self, other)

    def write_html(self, path: str | Path) -> None:
        """Writes the plan as one page for a browser, which needs no network.

        It shows the summary, a timeline of a call with a lane for each mesh axis, memory over time,
        and a table to filter and sort.

        Raises:
            SbpError: It cannot be written.
        """
        write_text(path, page.whole(self))

    def __str__(self) -> str:
        return self.explain()

    def _repr_html_(self) -> str:
        return page.embedded(self)

    def save(self, path: str | Path) -> None:
        """Writes the plan as JSON: equal plans give equal files.

        Raises:
            SbpError: It cannot be written.
        """
        write_text(path, storage.encode(self))

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """Reads a plan that `save` wrote.

        Raises:
            SbpError: The file cannot be read.
            PlanError: It is not a plan, or of another format.
        """
        fields = {
            field.name: field.type
            for field in dataclasses.fields(cls)
            if field.name not in storage.NOT_SAVED
        }
        return cls(**storage.decode(read_bytes(path), str(path), fields))


def _shardings(mesh: Any, tree: Any, leaves: tuple[tuple[str, NdSbp], ...]) -> Any:
    placed = [named_sharding(mesh, words, num_dims(words)) for _, words in leaves]
    paths = [path for path, _ in leaves]
    return dict(zip(paths, placed, strict=True)) if tree is None else tree.unflatten(placed)
