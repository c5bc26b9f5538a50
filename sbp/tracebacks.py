"""Errors end where the user's code does: frames of sbp and jax are left out of their tracebacks.

Comes in: a function that users call. Goes out: the same, with short tracebacks of `SbpError`. The
option `JAX_TRACEBACK_FILTERING=off`, jax's own, shows all frames.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

import jax

from sbp.errors import SbpError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_HIDDEN = tuple(f"{Path(file).parent}/" for file in (jax.__file__, __file__))
_STANDARD_LIBRARY = f"{Path(functools.__file__).parent}/"


def concise(fn: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Leaves frames that are not the user's out of the errors of a function."""

    @functools.wraps(fn)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return fn(*args, **kwargs)
        except SbpError as error:
            if getattr(jax.config, "jax_traceback_filtering", "auto") != "off":
                error.__traceback__ = _of_user(error.__traceback__)
            raise

    return call


def _of_user(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without frames of sbp and jax."""
    if traceback is None:
        return None
    rest = _of_user(traceback.tb_next)
    file = traceback.tb_frame.f_code.co_filename
    is_standard = file.startswith(_STANDARD_LIBRARY) and "site-packages" not in file
    if is_standard or file.startswith(_HIDDEN):
        return rest
    return TracebackType(rest, traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno)
