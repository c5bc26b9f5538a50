"""The benchmark of planning runs, and fails where a program holds what was not planned."""

import dataclasses
import re

import jax
import pytest

import sbp
from scripts import bench_plan

HEADINGS = ["program", "eqns", "mesh", "goal", "trace", "plan", "step", "gap", "MB"]


@pytest.fixture(autouse=True)
def user_promotion():
    # optax's bias correction raises a float to an int32 array
    with jax.numpy_dtype_promotion("standard"):
        yield


def test_a_row_for_each_plan(capsys):
    assert bench_plan.main(["--layers", "1", "--meshes", "8", "2,4", "--objectives", "time"]) == 0
    headings, *rows = capsys.readouterr().out.splitlines()
    assert headings.split() == HEADINGS
    assert [row.split()[:5] for row in rows] == [
        ["1", "layers", "scan", rows[0].split()[3], "8"],
        ["1", "layers", "scan", rows[0].split()[3], "2,4"],
    ]
    assert all(float(gap) <= 1 for row in rows for gap in re.findall(r"([\d.]+)%", row))


def test_what_is_compiled_is_what_is_planned(capsys, monkeypatch):
    arguments = ["--layers", "1", "--meshes", "8", "--objectives", "bytes", "--audit"]
    assert bench_plan.main(arguments) == 0
    (row,) = capsys.readouterr().out.splitlines()[1:]
    planned, compiled, _, unplanned, *_ = row.split()[-6:]
    assert float(compiled) == pytest.approx(float(planned), rel=0.01)
    assert unplanned == "0"
    audit = sbp.audit
    monkeypatch.setattr(sbp, "audit", lambda compiled, plan: audit(compiled, other(plan)))
    assert bench_plan.main(arguments) == 1


def other(plan):
    """A plan that asks for no communication."""
    return dataclasses.replace(plan, boxings=())
