"""Files that users name: text is written and read, or one error says why not.

Comes in: a path. Goes out: its text, or nothing.
"""

from pathlib import Path

from sbp.errors import SbpError


def write_text(path: str | Path, text: str) -> None:
    """Writes a file.

    Raises:
        SbpError: It cannot be written.
    """
    try:
        Path(path).write_text(text, encoding="utf-8")
    except (OSError, TypeError) as error:
        raise _refused("written", path, error) from error


def check_can_write(path: str | Path) -> None:
    """Refuses a path that is a folder, or in none: cheap to ask before long work.

    Raises:
        SbpError: It can never be written, or is no path.
    """
    try:
        target = Path(path)
    except TypeError as error:
        raise _refused("written", path, error) from error
    if target.is_dir():
        raise _refused("written", path, IsADirectoryError(0, "Is a directory"))
    if not target.parent.is_dir():
        raise _refused("written", path, FileNotFoundError(0, "No such file or directory"))


def read_bytes(path: str | Path) -> bytes:
    """What is in a file.

    Raises:
        SbpError: It cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except (OSError, TypeError) as error:
        raise _refused("read", path, error) from error


def _refused(verb: str, path: object, error: OSError | TypeError) -> SbpError:
    if isinstance(error, TypeError):
        return SbpError(
            f"{path!r} is not the path of a file",
            why=f"It is of type {type(path).__name__}.",
            how="text, or a pathlib.Path",
        )
    reason = f"{error.strerror or error}."
    target = Path(str(path))
    if isinstance(error, FileNotFoundError) and not target.parent.is_dir():
        reason = f"There is no folder {str(target.parent)!r}."
        how = [f"mkdir -p {target.parent}", "a path in a folder that is there"]
    elif isinstance(error, IsADirectoryError) or target.is_dir():
        reason = "It is a folder."
        how = ["the path of a file in it"]
    elif verb == "read":
        how = ["the path of a file that is there and can be read"]
    else:
        how = ["a path in a folder where you may write"]
    return SbpError(f"{str(path)!r} cannot be {verb}", why=reason, how=how)
