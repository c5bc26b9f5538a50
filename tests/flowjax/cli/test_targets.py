"""From import paths to a function and its arguments, and what is said where they lead nowhere."""

import sys

import pytest

from flowjax.cli.targets import import_function, load_target
from flowjax.cli.users_errors import UsersError
from sbp.errors import SbpError

MODULE = """
def step(state, batch):
    return state

def example(batch=4):
    return step, (1, batch)

def fixed():
    return step, [1, 2]

def sized(batch):
    return step, (1, batch)

def arguments(batch=4):
    return 1, batch

def one_argument():
    return 1

def shapeless():
    return step

class Model:
    @staticmethod
    def example():
        return step, (5, 6)

number = 3
"""


@pytest.fixture(autouse=True)
def user_module(tmp_path, monkeypatch):
    """A directory with the user's module, which is where the command runs."""
    (tmp_path / "users_model.py").write_text(MODULE)
    (tmp_path / "broken_model.py").write_text("import no_such_dependency\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("users_model", None)


@pytest.mark.parametrize(
    ("path", "arguments", "batch", "expected"),
    [
        ("example", None, None, (1, 4)),
        ("example", None, 8, (1, 8)),
        ("fixed", None, None, (1, 2)),
        ("sized", None, 8, (1, 8)),
        ("Model.example", None, None, (5, 6)),
        ("step", "arguments", None, (1, 4)),
        ("step", "arguments", 8, (1, 8)),
    ],
)
def test_an_example_or_a_step_with_its_arguments(path, arguments, batch, expected):
    arguments_path = arguments and f"users_model:{arguments}"
    target = load_target(f"users_model:{path}", arguments_path, batch)
    assert target.function.__name__ == "step"
    assert target.arguments == expected


ERRORS = {
    "no colon": (
        ("users_model", None, None),
        "'users_model' is not an import path.\n"
        "  It is a module, a colon and the name of a function in it.\n"
        "Fix: models.gpt:example",
    ),
    "no function": (
        ("users_model:exmple", None, None),
        "users_model has no 'exmple' (users_model:exmple).\n"
        "  The module is HERE/users_model.py.\n"
        "Fix: users_model:example",
    ),
    "no module": (
        ("users_modle:example", None, None),
        "there is no module 'users_modle' (users_modle:example).\n"
        "  Modules are looked for in HERE and where Python has its packages.\n"
        "Fix: run the command where `python -c 'import users_modle'` works, or set PYTHONPATH",
    ),
    "a number": (
        ("users_model:number", None, None),
        "users_model:number is of type int, which cannot be called.\n"
        "  An import path leads to a function.\n"
        "Fix: name a function of the module",
    ),
    "the step itself": (
        ("users_model:step", None, None),
        "users_model:step needs state.\n"
        "  A function that makes arguments is called without any, or with batch=.\n"
        "Fix one of: an example function: it returns (function, arguments) | if users_model:step "
        "is the step itself: --args module:function, which returns its arguments",
    ),
    "batch that is needed": (
        ("users_model:sized", None, None),
        "users_model:sized needs batch.\n  It has no default for it.\nFix: --batch 16",
    ),
    "batch that is not taken": (
        ("users_model:fixed", None, 8),
        "users_model:fixed does not take batch (--batch).\n"
        "  The batch size is passed on to the function that makes the arguments.\n"
        "Fix one of: leave out --batch | give the function an argument batch",
    ),
    "no arguments": (
        ("users_model:shapeless", None, None),
        "users_model:shapeless returns function, not (function, arguments).\n"
        "  Without --args the import path leads to an example: called without arguments, or with "
        "batch=,\n"
        "  it returns a function and the tuple of its arguments.\n"
        "Fix one of: return step, (state, batch) | if users_model:shapeless is the step itself: "
        "--args module:function, which returns its arguments",
    ),
    "arguments that are no tuple": (
        ("users_model:step", "users_model:one_argument", None),
        "users_model:one_argument returns int (--args).\n"
        "  It returns the arguments of the function, in order.\n"
        "Fix: return a tuple, of one entry for one argument: (x,)",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_what_is_said_of_a_path_that_leads_nowhere(case, tmp_path):
    given, text = ERRORS[case]
    with pytest.raises(SbpError) as caught:
        load_target(*given)
    assert str(caught.value) == text.replace("HERE", str(tmp_path))


def test_an_error_inside_the_users_module_is_the_users():
    with pytest.raises(UsersError) as caught:
        import_function("broken_model:example")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    assert str(caught.value) == (
        "broken_model cannot be imported: ModuleNotFoundError (broken_model.py:1).\n"
        "  No module named 'no_such_dependency'\n"
        "Fix: python -c 'import broken_model' shows the traceback"
    )
