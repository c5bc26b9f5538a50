"""The plan: a frozen value that says what will run, what it costs, and how far that is from best.

Comes in: rows and sums. Goes out: `Plan`, which prints, compares, saves and loads. It holds plain
values only, so that a plan can be made on one machine and run on another.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sbp.algebra import NdSbp
from sbp.errors import PlanError
from sbp.plan import explain
from sbp.plan.rows import BoxingRow, EquationRow
from sbp.specs import named_sharding, num_dims

FORMAT = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """How a function will run on a mesh.

    Attributes:
        name: The function's name.
        mesh_sizes: Number of devices by mesh axis, outermost first.
        cluster: The machine it is priced for.
        objective: `time` or `bytes`.
        method: How the choices were found.
        cost_seconds: Predicted time of one call: compute and communication, less what `overlap`
            assumes to be hidden.
        compute_seconds: The part that is compute.
        wire_nbytes: Bytes a device sends in one call.
        flops_per_device: Operations on one device in one call.
        total_flops: Operations of the one-device function.
        memory_nbytes: Predicted peak memory of one device.
        cost: What the search minimised, in units of the objective.
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

    @property
    def gap(self) -> float:
        """How far the cost may be above the best possible, relative to the cost."""
        return max(0.0, (self.cost - self.lower_bound) / self.cost) if self.cost else 0.0

    @property
    def lower_bound_seconds(self) -> float:
        """No plan takes less time; with the objective `bytes` nothing is proven of time, and 0."""
        return self.lower_bound / 1e12 if self.objective == "time" else 0.0

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
        """The head of `explain`: time, proof, bytes, operations, memory."""
        return explain.summary(self)

    def explain(self, *, top: int | None = None) -> str:
        """The plan as text.

        Args:
            top: Show only this many equations and boxings, the dearest; all if None.
        """
        return explain.explain(self, top=top)

    def diff(self, other: "Plan") -> str:
        """What another plan does differently."""
        return explain.diff(self, other)

    def __str__(self) -> str:
        return self.explain()

    def _repr_html_(self) -> str:
        return explain.to_html(self)

    def save(self, path: str | Path) -> None:
        """Writes the plan as JSON."""
        data = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("in_tree", "out_tree")
        }
        data["boxings"] = [dataclasses.asdict(row) for row in self.boxings]
        data["equations"] = [dataclasses.asdict(row) for row in self.equations]
        data["arguments"] = [(path_, str(words)) for path_, words in self.arguments]
        data["results"] = [(path_, str(words)) for path_, words in self.results]
        data["mesh_sizes"] = dict(self.mesh_sizes)
        text = json.dumps({"format": FORMAT, **data}, indent=1)
        Path(path).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """Reads a plan that `save` wrote.

        Raises:
            PlanError: The file is not a plan, or of another format.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            if data.pop("format") != FORMAT:
                raise KeyError("format")
            return cls(
                **{
                    **data,
                    "boxings": tuple(map(_boxing_row, data["boxings"])),
                    "equations": tuple(map(_equation_row, data["equations"])),
                    "arguments": _words(data["arguments"]),
                    "results": _words(data["results"]),
                    "ties": tuple(map(tuple, data["ties"])),
                    "notes": tuple(data["notes"]),
                    "choices": _tuples(data["choices"]),
                    "shared": _tuples(data["shared"]),
                }
            )
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise PlanError(
                f"{path} does not hold a plan of format {FORMAT}",
                why=f"{type(error).__name__}: {error}",
                how="write it again with Plan.save of this version",
            ) from error


def _shardings(mesh: Any, tree: Any, leaves: tuple[tuple[str, NdSbp], ...]) -> Any:
    placed = [named_sharding(mesh, words, num_dims(words)) for _, words in leaves]
    paths = [path for path, _ in leaves]
    return dict(zip(paths, placed, strict=True)) if tree is None else tree.unflatten(placed)


def _words(pairs: list[list[str]]) -> tuple[tuple[str, NdSbp], ...]:
    return tuple((path, NdSbp.parse(text)) for path, text in pairs)


def _tuples(data: Any) -> Any:
    return tuple(map(_tuples, data)) if isinstance(data, list) else data


def _boxing_row(data: dict[str, Any]) -> BoxingRow:
    return BoxingRow(**{**data, "axes": tuple(data["axes"])})


def _equation_row(data: dict[str, Any]) -> EquationRow:
    tuples = {key: tuple(data[key]) for key in ("operands", "results")}
    return EquationRow(**{**data, **tuples})
