"""Errors of the user's own code: which they are, and the line they come from.

Comes in: an exception with its traceback. Goes out: `UsersError`, with the type, the text and the
line. An error of ours goes on as it is.
"""

import contextlib
import os
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import jaxlib
import numpy

import flowjax
import sbp
from sbp.errors import SbpError


def _folder(package: object) -> str:
    return f"{Path(str(getattr(package, '__file__', ''))).parent}{os.sep}"


_OURS = tuple(map(_folder, (flowjax, sbp)))
_LIBRARIES = (*map(_folder, (jax, jaxlib, numpy)), "<frozen ")
_STDLIB = f"{sysconfig.get_path('stdlib')}{os.sep}"
_SITE = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("purelib", "platlib"))


class UsersError(SbpError):
    """What the user's code raised; its text is not ours."""


@contextlib.contextmanager
def told_apart(what: str, how: str | Sequence[str], *, ours: bool) -> Iterator[None]:
    """Makes an error of the user's code in the body a `UsersError`.

    Args:
        what: The user's code, and what it does: `train:step raises`.
        how: How to see more of the error.
        ours: Whether the body runs code of ours too, whose errors go on as they are.

    Raises:
        UsersError: The user's code raised, or wanted to exit.
    """
    try:
        yield
    except SbpError:
        raise
    except (Exception, SystemExit) as error:
        frames = _users_frames(error)
        if ours and not frames:
            raise
        raise UsersError(
            f"{what} {type(error).__name__}",
            where=_line(error, frames),
            why=str(error) or "It has no text.",
            how=how,
        ) from error


def _users_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The lines of user code below our last one, without those of what user code calls."""
    frames = list(traceback.extract_tb(error.__traceback__))
    ours = [k for k, frame in enumerate(frames) if frame.filename.startswith(_OURS)]
    below = frames[ours[-1] + 1 :] if ours else frames
    return [frame for frame in below if not _is_called(frame.filename)]


def _is_called(filename: str) -> bool:
    """Whether it is of what user code calls, so that an error in it is due to a line above."""
    in_python = filename.startswith(_STDLIB) and not filename.startswith(_SITE)
    return in_python or filename.startswith(_LIBRARIES)


def _line(error: BaseException, frames: Sequence[traceback.FrameSummary]) -> str:
    """The deepest line of a file that is not installed, if there is one."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(error.filename)}:{error.lineno}"
    own = [frame for frame in frames if not frame.filename.startswith(_SITE)]
    for frame in (own or frames)[-1:]:
        return f"{_shown(frame.filename)}:{frame.lineno}"
    return ""


def _shown(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
