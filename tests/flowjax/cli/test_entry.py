"""The command line as users type it: what is printed, written and returned."""

import importlib
import io
import logging
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import pytest

import flowjax
import sbp
from flowjax.cli import main

ROOT = Path(__file__).parents[3]
H100_STEP = ROOT / "tests" / "data" / "h100_step.hlo.txt"
MLP = "models.mlp:example"


@pytest.fixture(autouse=True)
def users_terminal(monkeypatch):
    """The checkout as the current directory, a width, and jax as users have it."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "path", list(sys.path))
    platforms = jax.config.jax_platforms
    # optax's bias correction raises a float to an int32 array
    with jax.numpy_dtype_promotion("standard"):
        yield
    jax.config.update("jax_platforms", platforms)


def run(capsys, *words):
    """Exit code, stdout and stderr of a command."""
    try:
        code = main(list(words))
    except SystemExit as exit_of_argparse:
        code = exit_of_argparse.code
    return code, *capsys.readouterr()


def test_plan_prints_what_the_step_plans(capsys, tmp_path):
    code, out, err = run(
        capsys, "plan", MLP, "--mesh", "dp=2,tp=4", "--batch", "32", "--donate", "state",
        "--in-sbp", "batch.*=dp: S(0)", "--in-sbp", "state.params.wup=tp: S(1)",
        "--memory-limit", "1GiB", "--json", str(tmp_path / "plan.json"),
        "--html", str(tmp_path / "plan.html"),
    )  # fmt: skip
    assert (code, err) == (0, "")
    plan = sbp.Plan.load(tmp_path / "plan.json")
    assert out == plan.explain() + "\n"
    assert plan.cluster == "h100"
    words = dict(plan.arguments)
    assert words["batch.inputs"]["dp"] == sbp.S(0)
    assert words["state.params.wup"]["tp"] == sbp.S(1)
    assert len(plan.ties) == 13
    assert "<html" in (tmp_path / "plan.html").read_text()


def test_plan_shows_a_part(capsys):
    _, out, _ = run(capsys, "plan", MLP, "--mesh", "dp=2", "--top", "2", "--where", "dot_general")
    assert out.count("dot_general") == 2


def test_plan_of_many_devices_ranks_their_meshes(capsys):
    code, out, _ = run(
        capsys, "plan", MLP, "--devices", "4", "--hardware", "a100", "--objective", "bytes"
    )
    assert code == 0
    assert out.startswith("train_step on 4 devices (a100), objective bytes: 2 meshes, cheapest")
    assert "\n\ntrain_step on mesh x=" in out
    _, out, _ = run(
        capsys, "plan", MLP, "--devices", "2", "--axes", "dp, tp", "--in-sbp", "batch=dp: S(0)"
    )
    assert "2 meshes" in out.splitlines()[0]
    assert "dp=1, tp=2" in out


ERRORS = {
    "wrong hardware": (
        ["plan", MLP, "--mesh", "dp=2", "--hardware", "h99"],
        "flowjax: --hardware h99 is not known.\n",
    ),
    "wrong mesh": (["plan", MLP, "--mesh", "8"], "flowjax: mesh '8' has the item '8'"),
    "no plan": (
        ["plan", MLP, "--mesh", "dp=2", "--memory-limit", "1KiB"],
        "flowjax: train_step needs ",
    ),
    "a plan beyond the budget": (
        ["plan", MLP, "--mesh", "dp=2", "--in-sbp", "batch=dp: S(0)", "--max-bytes", "10"],
        "flowjax: train_step sends ",
    ),
    "wrong words": (
        ["plan", MLP, "--mesh", "dp=2", "--in-sbp", "dp: S(0)"],
        "flowjax: 'dp: S(0)' is not PATTERN=WORDS (--in-sbp).\n"
        "  It is a path pattern, '=' and a word for each axis that is not free.\n"
        "Fix: --in-sbp 'batch=dp: S(0)'\n",
    ),
    "words twice": (
        ["plan", MLP, "--mesh", "dp=2", "--out-sbp", "0=dp: B", "--out-sbp", "0=dp: S(0)"],
        "flowjax: the pattern '0' comes twice (--out-sbp).\n"
        "  The words of a pattern are said once, for all axes.\n"
        "Fix: --out-sbp '0=dp: S(0), tp: B'\n",
    ),
    "axes of a mesh": (
        ["plan", MLP, "--mesh", "dp=2", "--axes", "dp"],
        "flowjax: --axes has no effect on --mesh.\n"
        "  It says which meshes of --devices are searched.\n"
        "Fix one of: --devices instead of --mesh | leave out --axes\n",
    ),
    "axes by name and number": (
        ["plan", MLP, "--devices", "2", "--axes", "dp", "--max-axes", "1"],
        "flowjax: --axes and --max-axes are both given.\n"
        "  A mesh has as many axes as --axes names; they may have size 1.\n"
        "Fix: leave out --max-axes\n",
    ),
    "a file that cannot be written": (
        ["plan", MLP, "--mesh", "dp=2", "--json", "no/such/folder/plan.json"],
        "flowjax: 'no/such/folder/plan.json' cannot be written.\n"
        "  There is no folder 'no/such/folder'.\n"
        "Fix one of: mkdir -p no/such/folder | a path in a folder that is there\n",
    ),
    "nothing to audit": (
        ["audit", "step.hlo"],
        "flowjax: there is no file 'step.hlo'.\n"
        "  An audit is of a file with the text of a compiled program, or of a function.\n"
        "Fix one of: the path of a file | an import path: models.gpt:example\n",
    ),
    "a folder to audit": (
        ["audit", str(ROOT)],
        f"flowjax: {str(ROOT)!r} is a folder.\n"
        "  An audit is of a file with the text of a compiled program, or of a function.\n"
        "Fix one of: the path of a file in it | an import path: models.gpt:example\n",
    ),
    "a module to audit": (
        ["audit", str(ROOT / "models" / "mlp.py")],
        f"flowjax: {ROOT}/models/mlp.py is a file of Python.\n"
        "  An audit is of a file with the text of a compiled program, or of a function.\n"
        "Fix: an import path: mlp:example, in the folder of the file\n",
    ),
    "an empty program": (
        ["audit", os.devnull],
        "flowjax: this text is not a compiled HLO module: it has no ENTRY computation.\n",
    ),
    "no mesh to compile for": (
        ["audit", MLP],
        "flowjax: no mesh to compile for (models.mlp:example).\n"
        "  A function is compiled for the devices of a mesh.\n"
        "Fix one of: --mesh dp=2,tp=4 | --plan plan.json, which names its mesh\n",
    ),
    "a step for a compiled program": (
        ["audit", str(H100_STEP), "--batch", "8", "--donate", "state"],
        f"flowjax: --batch, --donate given with the compiled program {H100_STEP}.\n"
        "  It says how a function is planned, and this program is compiled already.\n"
        "Fix one of: leave out --batch, --donate | an import path instead of a file\n",
    ),
    "a program that is none": (
        ["audit", str(ROOT / "README.md")],
        "flowjax: this text is not a compiled HLO module: it has no ENTRY computation.\n"
        "  It is another text, or a part of one.\n"
        "Fix: write compiled.as_text() to a file, and audit that\n",
    ),
    "a budget that is none": (
        ["audit", str(H100_STEP), "--max-bytes", "much"],
        "flowjax: --max-bytes much is not a size.\n",
    ),
    "a limit that is none": (
        ["plan", MLP, "--mesh", "dp=2", "--memory-limit", "1.5"],
        "flowjax: --memory-limit 1.5 is not a size.\n",
    ),
    "a plan that is not there": (
        ["audit", str(H100_STEP), "--plan", "no/such.json"],
        "flowjax: 'no/such.json' cannot be read.\n  There is no folder 'no'.\n",
    ),
    "another number of devices": (
        ["audit", str(H100_STEP), "--mesh", "dp=3"],
        "flowjax: the program was compiled for 8 devices, the mesh has 3.\n",
    ),
    "more devices than can be simulated": (
        ["audit", MLP, "--mesh", "dp=100000"],
        "flowjax: 100000 devices are too many to simulate (models.mlp:example).\n"
        "  A function is compiled for simulated CPU devices, at most 4096.\n"
        "Fix one of: a smaller mesh | the text of a program that was compiled elsewhere\n",
    ),
    "more devices than there are": (
        ["plan", MLP, "--devices", "1000000000000"],
        "flowjax: --devices 1000000000000 is more than any machine has.\n",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_text_and_exit_with_two(capsys, case):
    words, text = ERRORS[case]
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith(text)
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "words",
    [[], ["plan"], ["plan", MLP], ["plan", MLP, "--mesh", "dp=2", "--devices", "2"],
     ["plan", MLP, "--devices", "x"], ["audit", MLP, "--objective", "speed"], ["train"],
     ["plan", MLP, "--mesh", "dp=2", "--batch", "-4"], ["audit", MLP, "--batch", "0"],
     ["plan", MLP, "--mesh", "dp=2", "--batch", "1.5"], ["plan", MLP, "--devices", "-2"],
     ["plan", MLP, "--mesh", "dp=2", "--top", "0"]],
)  # fmt: skip
def test_wrong_usage_exits_with_two(capsys, words):
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith("usage: flowjax")


def test_a_file_is_refused_before_the_planning(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sbp, "parallelize", None)
    for option in ("--json", "--html"):
        code, _, err = run(capsys, "plan", MLP, "--mesh", "dp=2", option, str(tmp_path))
        assert (code, err.splitlines()[1]) == (2, "  It is a folder.")
    code, _, err = run(capsys, "audit", MLP, "--mesh", "dp=2", "--json", str(tmp_path))
    assert (code, err.splitlines()[1]) == (2, "  It is a folder.")


def test_every_objective_can_be_asked_for(capsys):
    for objective in ("time", "bytes", "wire"):
        code, out, _ = run(capsys, "plan", MLP, "--mesh", "dp=2", "--objective", objective)
        assert code == 0
        assert f"objective {objective}" in out


def test_a_fault_of_ours_is_not_the_users(capsys, monkeypatch):
    monkeypatch.setattr(sbp, "parallelize", None)
    code, out, err = run(capsys, "plan", MLP, "--mesh", "dp=2")
    assert (code, out) == (70, "")
    assert err.startswith("Traceback")
    assert err.endswith("flowjax: this is a fault of flowjax itself; please report it\n")


def test_help(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert (
        out
        == """\
usage: flowjax [-h] [--version] COMMAND ...

Says how a JAX function will run on a mesh of devices, and checks that it does.

options:
  -h, --help  show this help message and exit
  --version   show program's version number and exit

commands:
  COMMAND
    plan      plan a function and print the plan
    audit     list the collectives of a compiled program; check a budget
"""
    )
    for command, options in {
        "plan": ("--mesh", "--devices", "--args", "--batch", "--in-sbp", "--json", "--html"),
        "audit": ("--plan", "--max-bytes", "--mesh", "--json", "--args"),
    }.items():
        code, out, _ = run(capsys, command, "--help")
        assert code == 0
        assert all(f"  {option} " in out for option in options)
        assert "Exit codes: 0 " in out
        assert "flowjax plan models.gpt:example" in out or "flowjax audit models.gpt" in out


def test_the_installed_command_is_this_one():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, name = project["scripts"]["flowjax"].split(":")
    assert getattr(importlib.import_module(module), name) is main


def test_version(capsys):
    code, out, _ = run(capsys, "--version")
    assert (code, out) == (0, f"flowjax {flowjax.__version__} (jax {jax.__version__})\n")


class CtrlC(logging.Handler):
    """Presses Ctrl-C at the first progress of a search."""

    def emit(self, record):
        """Presses."""
        if hasattr(record, "gap"):
            raise KeyboardInterrupt


@pytest.fixture
def ctrl_c():
    log, handler = logging.getLogger("sbp"), CtrlC()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield
    log.removeHandler(handler)
    log.setLevel(level)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_prints_the_best_plan_so_far_with_its_gap(capsys):
    code, out, _ = run(capsys, "plan", MLP, "--mesh", "dp=2,tp=4")
    assert code == 0
    assert re.search(r"^  proof   gap [\d.]+%: .* \d+ sweeps \(interrupted\)", out, re.MULTILINE)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_leaves_the_other_meshes_out(capsys):
    code, out, _ = run(capsys, "plan", MLP, "--devices", "16", "--top", "1")
    assert code == 0
    # The first of the four is solved without a sweep.
    assert out.splitlines()[0].endswith(": 2 meshes, cheapest first")
    assert "no plan on x=4, y=4: interrupted\nno plan on x=8, y=2: interrupted\n" in out


def test_ctrl_c_before_there_is_a_plan(capsys, monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(sbp, "parallelize", interrupt)
    code, out, err = run(capsys, "plan", MLP, "--mesh", "dp=2")
    assert (code, out, err) == (130, "", "flowjax: interrupted before there was a plan\n")


SIGNALLED = """
import logging, signal
from models.mlp import example

signal.signal(signal.SIGINT, signal.default_int_handler)

class Press(logging.Handler):
    def emit(self, record):
        if hasattr(record, "gap"):
            signal.raise_signal(signal.SIGINT)

logging.getLogger("sbp").addHandler(Press())
logging.getLogger("sbp").setLevel(logging.INFO)
"""


def test_a_signal_to_the_process_ends_the_search_only(tmp_path):
    (tmp_path / "signalled.py").write_text(SIGNALLED)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "flowjax", "plan", "signalled:example", "--mesh", "dp=2,tp=4"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "(interrupted)" in done.stdout
    assert "Traceback" not in done.stderr


class Terminal(io.StringIO):
    """A stderr that is a terminal."""

    def isatty(self):
        """It is."""
        return True


def test_progress_is_one_line_of_the_terminal(monkeypatch, capsys):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main(["plan", MLP, "--mesh", "dp=2,tp=4"]) == 0
    shown = terminal.getvalue()
    assert "\n" not in shown
    assert re.search("planning train_step, [0-9]+ equations", shown)
    assert " us a call, gap " in shown
    assert shown.endswith("\r\x1b[K")
    assert capsys.readouterr().out.startswith("train_step on mesh dp=2, tp=4")
    log = logging.getLogger("sbp")
    assert not log.handlers
    assert log.level == logging.NOTSET


def test_no_progress_where_nobody_looks(capsys):
    assert run(capsys, "plan", MLP, "--mesh", "dp=2,tp=4")[2] == ""


def test_a_reader_that_stops_reading_is_no_error():
    command = f"{sys.executable} -m flowjax plan {MLP} --mesh dp=2 | true"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (0, "")
