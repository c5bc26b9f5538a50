"""What the user's code raises: told with its type, its text and its line, exit code 2."""

import dataclasses
import sys

import jax
import pytest

from flowjax.cli import main
from flowjax.cli.users_errors import UsersError, told_apart
from sbp.axis_sizes import format_axes
from sbp.errors import SbpError
from sbp.hardware import CPU, Cluster

MODULE = """
import jax
x = jax.ShapeDtypeStruct((8, 16), "float32")

def mismatched(x):
    return x @ x

def failing(x):
    raise ValueError("memory_limit=3 is mine")

def silent(x):
    assert False

def no_data():
    return open("no/such/data")

def leaving():
    raise SystemExit(0)

def one():
    return mismatched, (x,)

def two():
    return failing, (x,)

def three():
    return silent, (x,)
"""
SHOW = "*arguments) in Python, which shows the traceback"
CASES = {
    "users:one": (
        "mismatched raises TypeError (users.py:6).\n"
        "  dot_general requires contracting dimensions to have the same shape, "
        "got (16,) and (8,).\n"
        f"Fix: jax.eval_shape(mismatched, {SHOW}"
    ),
    "users:two": (
        "failing raises ValueError (users.py:9).\n"
        "  memory_limit=3 is mine\n"
        f"Fix: jax.eval_shape(failing, {SHOW}"
    ),
    "users:three": (
        "silent raises AssertionError (users.py:12).\n"
        "  It has no text.\n"
        f"Fix: jax.eval_shape(silent, {SHOW}"
    ),
    "users:no_data": (
        "users:no_data raises FileNotFoundError (users.py:15).\n"
        "  [Errno 2] No such file or directory: 'no/such/data'\n"
        "Fix: call it in Python, which shows the traceback"
    ),
    "users:leaving": (
        "users:leaving raises SystemExit (users.py:18).\n"
        "  0\n"
        "Fix: call it in Python, which shows the traceback"
    ),
    "users_syntax:f": (
        "users_syntax cannot be imported: SyntaxError (users_syntax.py:1).\n"
        "  '(' was never closed (users_syntax.py, line 1)\n"
        "Fix: python -c 'import users_syntax' shows the traceback"
    ),
    "users_exit:f": (
        "users_exit cannot be imported: SystemExit (users_exit.py:2).\n"
        "  0\n"
        "Fix: python -c 'import users_exit' shows the traceback"
    ),
    "users_import:f": (
        "users_import cannot be imported: ImportError (users_import.py:1).\n"
        "  cannot import name 'nothing' from 'json' (FILE)\n"
        "Fix: python -c 'import users_import' shows the traceback"
    ),
}


@pytest.fixture(autouse=True)
def user_modules(tmp_path, monkeypatch):
    """The directory with the user's modules, which is where the command runs."""
    modules = {
        "users": MODULE,
        "users_syntax": "def f(\n",
        "users_exit": "import sys\nsys.exit(0)\n",
        "users_import": "from json import nothing\n",
    }
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    platforms = jax.config.jax_platforms
    yield
    jax.config.update("jax_platforms", platforms)
    for name in modules:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("command", ["plan", "audit"])
@pytest.mark.parametrize("target", CASES)
def test_errors_of_the_users_code(command, target, capsys):
    assert main([command, target, "--mesh", "dp=2"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    expected = CASES[target].replace("FILE", sys.modules["json"].__file__)
    assert err == f"flowjax: {expected}\n"


def test_ranking_meshes_too(capsys):
    assert main(["plan", "users:two", "--devices", "2"]) == 2
    assert capsys.readouterr().err == f"flowjax: {CASES['users:two']}\n"


def test_whose_an_error_is():
    def told(error, *, ours):
        with told_apart("f raises", "", ours=ours):
            raise error

    with pytest.raises(UsersError, match=r"f raises KeyError"):
        told(KeyError("x"), ours=True)  # a file of tests is the user's
    with pytest.raises(UsersError), told_apart("f raises", "", ours=False):
        jax.numpy.dtype("no dtype")
    for error in (SbpError("refused"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught:
            told(error, ours=False)
        assert caught.value is error


def test_an_error_in_code_of_ours_stays_as_it_is():
    with pytest.raises(AttributeError), told_apart("f raises", "", ours=True):
        format_axes(None)
    # ... and one in what ours calls: json, here.
    with pytest.raises(TypeError, match="JSON"), told_apart("f raises", "", ours=True):
        Cluster.save(dataclasses.replace(CPU, inside=object()), "x")
