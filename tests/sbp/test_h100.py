"""The audit of a program that XLA compiled for H100: asynchronous, combined and pipelined.

`tests/data/h100_step.py` wrote the program.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest

from sbp.collectives import audit

SOURCE = "tests/data/h100_step.py"
MESH = {"dp": 2, "tp": 4}
TEXT = (Path(__file__).parents[1] / "data" / "h100_step.hlo.txt").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Boxing:
    """What the plan of the program sends, as `tests/data/h100_step.py` prints it."""

    collective: str
    nbytes: float
    count: int = 1
    axes: tuple[str, ...] = ("dp", "tp")
    dtype: str = "float32"


@dataclass(frozen=True)
class Planned:
    """A plan, as far as an audit looks at it."""

    boxings: tuple[Boxing, ...]
    mesh_sizes = MESH


PLANNED = (
    Boxing("all-gather", 7340032),
    Boxing("all-gather", 7340032),
    Boxing("all-gather", 22020096),
    Boxing("reduce-scatter", 3670016, 6),
    Boxing("reduce-scatter", 7340032),
    Boxing("reduce-scatter", 7340032),
    Boxing("all-reduce", 7),
)


def test_asynchronous_pairs_and_tuples_count_once_with_their_bytes_and_lines():
    assert "all-gather-start(%param" in TEXT
    assert "reduce-scatter-start" in TEXT
    found = audit(TEXT, mesh=MESH)
    assert sorted(
        (row.kind, row.axes, row.dtype, row.nbytes, row.count, row.source.rpartition(":")[0])
        for row in found.collectives
    ) == [
        ("all-gather", ("dp", "tp"), "float32", 2 * 7340032, 1, SOURCE),
        ("all-gather", ("dp", "tp"), "float32", 22020096, 1, SOURCE),
        ("all-reduce", ("dp", "tp"), "float32", 7, 1, SOURCE),
        ("reduce-scatter", ("dp", "tp"), "float32", 3670016, 1, SOURCE),
        ("reduce-scatter", ("dp", "tp"), "float32", 3670016, 5, SOURCE),
        ("reduce-scatter", ("dp", "tp"), "float32", 2 * 7340032, 1, SOURCE),
    ]
    assert all(row.count_known for row in found.collectives)


def test_what_xla_merges_and_pipelines_is_as_planned():
    found = audit(TEXT, Planned(PLANNED))
    assert (found.unplanned, found.missing) == ((), ())
    assert found.total_nbytes == sum(row.nbytes * row.count for row in PLANNED)
    assert {row.note for row in found.merged} == {
        "XLA combined several into one operation",
        "XLA moved it out of a loop, or unrolled or peeled the loop",
    }


@pytest.mark.parametrize("left_out", range(len(PLANNED)))
def test_a_collective_that_is_not_in_the_plan_is_unplanned(left_out):
    rows = PLANNED[:left_out] + PLANNED[left_out + 1 :]
    found = audit(TEXT, Planned(rows))
    assert found.unplanned
    assert {row.kind for row in found.unplanned} == {PLANNED[left_out].collective}
    assert all(row.sources for row in found.unplanned)
    assert str(found).splitlines()[1].startswith("unplanned  ")
