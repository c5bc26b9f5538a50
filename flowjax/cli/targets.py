"""A function and example arguments, from import paths such as `models.gpt:example`.

Comes in: one or two import paths and a batch size. Goes out: `Target`. An example function returns
`(function, arguments)`; where a second import path makes the arguments, the first one is the
function itself. Arguments are arrays, or anything with shape and dtype.
"""

import contextlib
import difflib
import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from flowjax.cli.users_errors import UsersError, told_apart
from sbp.errors import SbpError


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be planned.

    Attributes:
        function: The function for one device.
        arguments: What it is called with, by position.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


def load_target(path: str, arguments_path: str | None, batch: int | None) -> Target:
    """Imports a function and makes its arguments.

    Args:
        path: `module:function`; an example function if `arguments_path` is None.
        arguments_path: `module:function` that returns the tuple of arguments.
        batch: Passed to the function that makes the arguments; None passes nothing.

    Raises:
        SbpError: A path does not lead to a function, or it returns something else.
        UsersError: A module or a function of the user's raises.
    """
    found = import_function(path)
    if arguments_path is not None:
        arguments = _call(import_function(arguments_path), batch, arguments_path)
        if not isinstance(arguments, tuple | list):
            raise SbpError(
                f"{arguments_path} returns {type(arguments).__name__}",
                where="--args",
                why="It returns the arguments of the function, in order.",
                how="return a tuple, of one entry for one argument: (x,)",
            )
        return Target(found, tuple(arguments))
    made = _call(found, batch, path)
    match made:
        case (function, (tuple() | list()) as arguments) if callable(function):
            return Target(function, tuple(arguments))
    raise SbpError(
        f"{path} returns {type(made).__name__}, not (function, arguments)",
        why="Without --args the import path leads to an example: called without arguments, or "
        "with batch=,\nit returns a function and the tuple of its arguments.",
        how=[
            "return step, (state, batch)",
            f"if {path} is the step itself: --args module:function, which returns its arguments",
        ],
    )


def errors_of(target: Target) -> contextlib.AbstractContextManager[None]:
    """While the body plans a function: what the function raises is told as the user's error."""
    name = getattr(target.function, "__name__", type(target.function).__name__)
    return told_apart(
        f"{name} raises",
        f"jax.eval_shape({name}, *arguments) in Python, which shows the traceback",
        ours=True,
    )


def import_function(path: str) -> Callable[..., Any]:
    """What an import path leads to; modules of the current directory count.

    Args:
        path: `module:function`.

    Raises:
        SbpError: It is no such path, or leads nowhere.
        UsersError: The module raises.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise SbpError(
            f"{path!r} is not an import path",
            why="It is a module, a colon and the name of a function in it.",
            how="models.gpt:example",
        )
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        with told_apart(
            f"{module_name} cannot be imported:",
            f"python -c 'import {module_name}' shows the traceback",
            ours=False,
        ):
            module = importlib.import_module(module_name)
    except UsersError as told:
        error = told.__cause__
        if not _is_not_there(error, module_name):
            raise
        raise SbpError(
            f"there is no module {error.name!r}",
            where=path,
            why=f"Modules are looked for in {here} and where Python has its packages.",
            how="run the command where `python -c 'import "
            f"{module_name}'` works, or set PYTHONPATH",
        ) from None
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, dir(found), n=3)
            raise SbpError(
                f"{module_name} has no {name!r}",
                where=path,
                why=f"The module is {module.__file__}.",
                how=[f"{module_name}:{other}" for other in near] or "name a function of it",
            )
        found = getattr(found, part)
    if not callable(found):
        raise SbpError(
            f"{path} is of type {type(found).__name__}, which cannot be called",
            why="An import path leads to a function.",
            how="name a function of the module",
        )
    return found


def _call(function: Callable[..., Any], batch: int | None, path: str) -> Any:
    parameters = inspect.signature(function).parameters.values()
    takes_batch = any(p.name == "batch" or p.kind == p.VAR_KEYWORD for p in parameters)
    needed = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if others := [name for name in needed if name != "batch"]:
        raise SbpError(
            f"{path} needs {', '.join(others)}",
            why="A function that makes arguments is called without any, or with batch=.",
            how=[
                "an example function: it returns (function, arguments)",
                f"if {path} is the step itself: --args module:function, which returns its "
                "arguments",
            ],
        )
    if batch is None and needed:
        raise SbpError(f"{path} needs batch", why="It has no default for it.", how="--batch 16")
    if batch is not None and not takes_batch:
        raise SbpError(
            f"{path} does not take batch",
            where="--batch",
            why="The batch size is passed on to the function that makes the arguments.",
            how=["leave out --batch", "give the function an argument batch"],
        )
    with told_apart(f"{path} raises", "call it in Python, which shows the traceback", ours=False):
        return function() if batch is None else function(batch=batch)


def _is_not_there(error: BaseException | None, module_name: str) -> TypeGuard[ModuleNotFoundError]:
    """Whether it is the module itself, or a package around it, that was not found."""
    return (
        isinstance(error, ModuleNotFoundError)
        and error.name is not None
        and f"{module_name}.".startswith(f"{error.name}.")
    )
