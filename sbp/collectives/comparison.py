"""Planned against compiled: the same bytes per kind, set of mesh axes and loop multiplicity?

Comes in: the collectives of a program and the boxing rows of its plan. Goes out: the differences,
sorted into unplanned, missing and merged. Operations are not matched one to one, because XLA
combines them freely; bytes are.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from sbp.collectives.program import Collective

# Bytes by which a program may exceed its plan. A plan may round each of its rows up to whole bytes.
_TOLERANCE = 0.5

# What a backend may widen before it communicates: XLA:CPU runs every bf16 collective as f32.
_WIDENED = {
    "float32": {"bfloat16": 0.5, "float16": 0.5},
    "int32": {"bool": 0.25, "int8": 0.25, "uint8": 0.25, "int16": 0.5, "uint16": 0.5},
}

_LOOP = "XLA moved it out of a loop, or unrolled or peeled the loop"
_FOLDED = "XLA folded successive all-reduces into one over all their axes"
_ADDED = "XLA reduced a sum instead of its terms, or ran equal collectives once"
_COMBINED = "XLA combined several into one operation"


class PlannedCollective(Protocol):
    """One row of `plan.boxings`, as far as an audit looks at it."""

    @property
    def collective(self) -> str:
        """The kind, or the name of a local step."""
        ...

    @property
    def axes(self) -> tuple[str, ...]:
        """Mesh axes it runs over."""
        ...

    @property
    def dtype(self) -> str:
        """Element type, by numpy's name."""
        ...

    @property
    def nbytes(self) -> float:
        """Bytes a device sends in one execution."""
        ...

    @property
    def count(self) -> int:
        """Executions per call."""
        ...


@dataclass(frozen=True, slots=True)
class Difference:
    """One kind, set of axes and loop count in which plan and program differ.

    Attributes:
        kind: The collective.
        where: The mesh axes, or the device groups if they lie along no set of axes.
        count: Executions per call.
        planned_nbytes: Bytes per execution in the plan, all rows together.
        compiled_nbytes: The same in the program; widened dtypes counted as planned.
        planned_ops: Rows of the plan.
        compiled_ops: Operations in the program.
        note: What XLA did, if that is known.
        sources: "file:line" of the operations in the program, as far as its text has them.
    """

    kind: str
    where: str
    count: int
    planned_nbytes: float
    compiled_nbytes: float
    planned_ops: int
    compiled_ops: int
    note: str = ""
    sources: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One line, without the sources."""
        times = f" x {self.count}" if self.count != 1 else ""
        note = f" ({self.note})" if self.note else ""
        return (
            f"{self.kind} over {self.where}{times}: planned {self.planned_nbytes:,.0f} bytes "
            f"in {self.planned_ops}, compiled {self.compiled_nbytes:,.0f} in "
            f"{self.compiled_ops}{note}"
        )


@dataclass(frozen=True, slots=True)
class _Key:
    kind: str
    axes: tuple[str, ...]
    where: str
    count: int


@dataclass(slots=True)
class _Ledger:
    """Bytes by dtype, the number of rows they come from, and where those stand."""

    nbytes: dict[str, float] = field(default_factory=dict)
    ops: int = 0
    sources: dict[str, None] = field(default_factory=dict)

    @property
    def total(self) -> float:
        return sum(self.nbytes.values())


def compare(
    compiled: Iterable[Collective],
    planned: Iterable[PlannedCollective],
    mesh_sizes: Mapping[str, int],
) -> tuple[tuple[Difference, ...], tuple[Difference, ...], tuple[Difference, ...]]:
    """Sorts the differences into unplanned, missing and merged.

    Unplanned: more bytes than planned, and no rewrite of XLA explains them. Missing: planned bytes
    of which the program has none. Merged: fewer bytes or operations than planned, or the same
    bytes under another loop count or set of axes, because XLA

    * added independent reductions before communicating, or ran equal collectives once,
    * moved a collective out of a loop, or unrolled or peeled the loop,
    * folded successive all-reduces over different axes into one.

    A dtype that the backend widens (bf16 to f32 on CPU) counts with its planned size, up to the
    bytes planned in it. Apart from that dtypes are not compared.

    Args:
        compiled: The collectives of the program, named by mesh axes.
        planned: The rows of the plan that are collectives.
        mesh_sizes: Axis name -> size; axes of size 1 are ignored.
    """
    program: dict[_Key, _Ledger] = {}
    for row in compiled:
        key = _Key(row.kind, row.axes or (), place_name(row), row.count)
        _enter(program, key, row.dtype, row.nbytes)
        if row.source or row.op_name:
            program[key].sources[row.source or row.op_name] = None
    plan: dict[_Key, _Ledger] = {}
    for row in planned:
        axes = tuple(axis for axis, size in mesh_sizes.items() if size > 1 and axis in row.axes)
        if axes and row.count:  # the body of a loop over nothing never runs
            key = _Key(row.collective, axes, ",".join(axes), row.count)
            _enter(plan, key, row.dtype, row.nbytes)
    return _sorted_differences(plan, program)


def place_name(row: Collective) -> str:
    """Where a collective runs, in few characters: its axes, or its device groups."""
    if row.axes is not None:
        return ",".join(row.axes)
    shown = ",".join("{" + ",".join(map(str, group)) + "}" for group in row.groups[:2])
    return shown + ",..." * (len(row.groups) > 2)


def short_source(source: str) -> str:
    """A source line with the last folder of its path only."""
    return "/".join(source.split("/")[-2:])


def _enter(ledgers: dict[_Key, _Ledger], key: _Key, dtype: str, nbytes: float) -> None:
    ledger = ledgers.setdefault(key, _Ledger())
    ledger.nbytes[dtype] = ledger.nbytes.get(dtype, 0) + nbytes
    ledger.ops += 1


def _sorted_differences(
    plan: Mapping[_Key, _Ledger], program: Mapping[_Key, _Ledger]
) -> tuple[tuple[Difference, ...], tuple[Difference, ...], tuple[Difference, ...]]:
    none = _Ledger()
    rows = {}
    for key in dict.fromkeys([*plan, *program]):
        asked, done = plan.get(key, none), program.get(key, none)
        moved = _at_planned_size(done.nbytes, asked.nbytes)
        rows[key] = Difference(
            key.kind, key.where, key.count, asked.total, moved, asked.ops, done.ops,
            sources=tuple(done.sources),
        )  # fmt: skip
    changes = {key: row.compiled_nbytes - row.planned_nbytes for key, row in rows.items()}
    surplus = {key: change for key, change in changes.items() if change > _TOLERANCE}
    deficit = {
        key: -change for key, change in changes.items() if -change >= max(1, rows[key].planned_ops)
    }
    notes = _rewrites(surplus, deficit)
    for key, row in rows.items():
        if key in deficit and row.compiled_nbytes:
            notes.setdefault(key, _ADDED)
        elif key not in surplus and row.compiled_ops < row.planned_ops and key not in deficit:
            notes.setdefault(key, _COMBINED)
    return (
        tuple(rows[key] for key in surplus if key not in notes),
        tuple(rows[key] for key in deficit if key not in notes),
        tuple(replace(rows[key], note=note) for key, note in notes.items()),
    )


def _at_planned_size(compiled: Mapping[str, float], planned: Mapping[str, float]) -> float:
    """Compiled bytes, with widened elements counted as wide as the plan has them."""
    total = sum(compiled.values())
    short = {dtype: nbytes - compiled.get(dtype, 0) for dtype, nbytes in planned.items()}
    for wide, narrow_ratios in _WIDENED.items():
        excess = compiled.get(wide, 0) - planned.get(wide, 0)
        for narrow, ratio in narrow_ratios.items():
            widened = max(0, min(excess, short.get(narrow, 0) / ratio))
            excess -= widened
            total -= widened * (1 - ratio)
    return total


def _rewrites(surplus: Mapping[_Key, float], deficit: Mapping[_Key, float]) -> dict[_Key, str]:
    """Notes for the surpluses that a known rewrite of XLA makes out of deficits, and for those."""
    notes: dict[_Key, str] = {}
    left = dict(deficit)
    for key, nbytes in surplus.items():
        family = [other for other in left if (other.kind, other.where) == (key.kind, key.where)]
        same = [other for other in surplus if (other.kind, other.where) == (key.kind, key.where)]
        executed = sum(surplus[other] * other.count for other in same)
        deeper = [other for other in family if other.count > key.count]
        parts = [
            other
            for other in left
            if key.kind == other.kind == "all-reduce"
            and other.count == key.count
            and set(other.axes) < set(key.axes)
        ]
        if abs(executed - sum(deficit[other] * other.count for other in family)) <= _TOLERANCE:
            sources, note = family, _LOOP
        elif nbytes <= sum(left[other] for other in deeper) + _TOLERANCE:
            sources, note = deeper, _LOOP
        elif (
            set(key.axes) == {axis for other in parts for axis in other.axes}
            and nbytes <= sum(left[other] for other in parts) + _TOLERANCE
        ):
            sources, note = parts, _FOLDED
        else:
            continue
        notes |= dict.fromkeys([key, *sources], note)
        for other in sources:
            used = min(nbytes, left[other])
            left[other] -= used
            nbytes -= used
    return notes
