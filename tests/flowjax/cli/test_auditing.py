"""`flowjax audit` as users type it: what is printed, written and returned."""

import json
import re

import pytest

from tests.flowjax.cli.test_entry import H100_STEP, MLP, run
from tests.flowjax.cli.test_entry import users_terminal as users_terminal


def test_audit_of_a_function_is_of_the_plan_that_was_written(capsys, tmp_path):
    written = str(tmp_path / "plan.json")
    words = ("--in-sbp", "batch=dp: S(0)", "--donate", "state", "--objective", "bytes")
    assert run(capsys, "plan", MLP, "--mesh", "dp=2,tp=4", *words, "--json", written)[0] == 0
    code, out, _ = run(capsys, "audit", MLP, "--mesh", "dp=2,tp=4", *words, "--max-bytes", "1MB")
    assert code == 0
    assert "against the plan: 0 unplanned, 0 missing" in out
    assert out.endswith("within the budget of 1,000,000 bytes\n")
    code, again, _ = run(
        capsys, "audit", MLP, "--plan", written, "--donate", "state", "--max-bytes", "100"
    )
    assert code == 1
    assert again.splitlines()[:-1] == out.splitlines()[:-1]
    assert again.splitlines()[-1].startswith("FAILED: ")
    assert again.endswith(" bytes per device and call, the budget is 100\n")


def test_audit_of_a_function_runs_the_plan_that_is_given(capsys, tmp_path):
    path = str(tmp_path / "plan.json")
    made = ("--mesh", "dp=2,tp=4", "--objective", "bytes", "--hardware", "a100", "--json", path)
    assert run(capsys, "plan", MLP, *made)[0] == 0
    audited = run(capsys, "audit", MLP, "--plan", path)
    assert audited[0] == 0
    assert run(capsys, "audit", MLP, "--plan", path, "--objective", "bytes") == audited
    code, out, err = run(capsys, "audit", MLP, "--plan", path, "--objective", "time")
    assert (code, out) == (2, "")
    assert err == (
        "flowjax: --objective time has no effect with --plan.\n"
        "  A plan runs as it is, and this one was made with --objective bytes.\n"
        "Fix one of: leave out --objective | leave out --plan to make a new plan\n"
    )


SUMS = """
import jax, jax.numpy as jnp

def sums(x):
    y = x * 2
    return y.sum(0), x

def arguments():
    return (jax.ShapeDtypeStruct((64, 64), jnp.float32),)
"""


def test_audit_says_lines_of_the_users_code(capsys, tmp_path, monkeypatch):
    (tmp_path / "sums.py").write_text(SUMS)
    monkeypatch.chdir(tmp_path)
    words = ("--in-sbp", "x=dp: S(0)", "--out-sbp", "*=dp: B")
    for lowering in ("manual", "auto"):
        code, out, _ = run(capsys, "audit", "sums:sums", "--args", "sums:arguments", "--mesh",
                           "dp=8", *words, "--lowering", lowering)  # fmt: skip
        assert code == 0
        # A sum is reduced for a result alone; an argument that is returned has no line of code.
        assert re.search(r"all-reduce .*/sums\.py:6$", out, re.MULTILINE)
        assert "all-gather" in out
        assert "auditing.py" not in out


def test_audit_of_a_compiled_program(capsys, tmp_path):
    code, out, _ = run(capsys, "audit", str(H100_STEP), "--max-bytes", "74MB")
    assert code == 0
    assert "73,400,327 bytes per device and call\n" in out
    assert run(capsys, "audit", str(H100_STEP), "--max-bytes", "73MB")[0] == 1
    code, out, _ = run(capsys, "audit", str(H100_STEP), "--mesh", "dp=2,tp=4")
    assert code == 0
    assert "all-gather      dp,tp" in out
    other = str(tmp_path / "plan.json")
    run(capsys, "plan", MLP, "--mesh", "dp=2,tp=4", "--json", other)
    code, out, _ = run(capsys, "audit", str(H100_STEP), "--plan", other)
    assert code == 1
    assert out.splitlines()[1].startswith("unplanned  ")
    assert out.splitlines()[-1].startswith("FAILED: ")
    assert run(capsys, "audit", str(H100_STEP), "--plan", other, "--mesh", "dp=4,tp=2") == (
        2,
        "",
        "flowjax: --mesh dp=4,tp=2 contradicts the plan, whose mesh is 'dp=2,tp=4' (audit).\n"
        "  Program and plan are compared axis by axis, so that both are of one mesh.\n"
        "Fix one of: leave out --mesh and name groups by the plan's mesh | the plan of this mesh\n",
    )


def test_an_audit_is_written_for_a_pipeline_to_read(capsys, tmp_path):
    path, plan = tmp_path / "audit.json", str(tmp_path / "plan.json")
    words = ("--in-sbp", "batch=dp: S(0)", "--out-sbp", "*=dp: B")
    run(capsys, "plan", MLP, "--mesh", "dp=2,tp=4", *words, "--json", plan)
    code, out, _ = run(capsys, "audit", MLP, "--plan", plan, "--max-bytes", "1MB",
                       "--json", str(path))  # fmt: skip
    data = json.loads(path.read_text())
    assert (code, data["format"], data["problems"]) == (0, 1, [])
    assert (data["checked"], data["unplanned"], data["missing"]) == (True, [], [])
    assert data["budget_nbytes"] == 1_000_000
    assert f"{len(data['collectives'])} collective" in out
    assert f"{data['nbytes']:,.0f} bytes per device and call" in out
    sent = (row["nbytes"] * row["count"] for row in data["collectives"] if row["charged"])
    assert sum(sent) == data["nbytes"] > 0
    # What fails is written too.
    code, out, _ = run(capsys, "audit", str(H100_STEP), "--plan", plan, "--json", str(path))
    data = json.loads(path.read_text())
    assert code == 1
    assert [f"FAILED: {problem}" for problem in data["problems"]] == [
        line for line in out.splitlines() if line.startswith("FAILED")
    ]
    found = [(row["kind"], row["compiled_nbytes"]) for row in data["unplanned"]]
    assert found
    assert f"{len(found)} unplanned," in out
    assert data["budget_nbytes"] is None


def test_a_program_in_its_binary_form_is_no_text(capsys, tmp_path):
    (tmp_path / "step.pb").write_bytes(b"\xff\xfe\x00HloModule")
    assert run(capsys, "audit", str(tmp_path / "step.pb")) == (
        2,
        "",
        f"flowjax: {tmp_path}/step.pb is not text.\n"
        "  An audit reads the text of a compiled program, not its binary form.\n"
        "Fix: write compiled.as_text() to a file\n",
    )


@pytest.mark.parametrize("option", ["--plan", "--hardware"])
def test_a_file_that_is_nested_too_deep_is_no_fault_of_ours(option, capsys, tmp_path):
    (tmp_path / "deep.json").write_text("[" * 100_000)
    words = ("audit", MLP, "--mesh", "dp=2", option, str(tmp_path / "deep.json"))
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert "nested deeper than any" in err


def test_a_program_without_what_is_planned_fails(capsys, tmp_path):
    plan, program = str(tmp_path / "plan.json"), tmp_path / "step.hlo.txt"
    words = ("--in-sbp", "batch=dp: S(0)", "--out-sbp", "*=dp: B")
    assert run(capsys, "plan", MLP, "--mesh", "dp=8", *words, "--json", plan)[0] == 0
    text = "HloModule jit_f, num_partitions=%d\n\nENTRY %%f (x: f32[]) -> f32[] {\n}\n"
    program.write_text(text % 8)
    code, out, _ = run(capsys, "audit", str(program), "--plan", plan)
    assert code == 1
    assert re.search(r"0 unplanned, [1-9]\d* missing", out)
    assert re.fullmatch(
        r"FAILED: [1-9]\d* planned collectives? that the program does not have",
        out.splitlines()[-1],
    )
    program.write_text(text % 1)
    code, out, err = run(capsys, "audit", str(program), "--plan", plan)
    assert (code, out) == (2, "")
    assert err.startswith(
        "flowjax: the program was compiled for 1 device, the plan's mesh has 8.\n"
    )
