"""How far planning is, on one line of the terminal.

Comes in: what `sbp` tells its log. Goes out: a line on stderr that overwrites itself; nothing where
stderr is no terminal.
"""

import contextlib
import logging
import sys
import time
from collections.abc import Iterator
from typing import TextIO

from sbp.plan.explain import format_seconds

_LOG = logging.getLogger("sbp")
_CLEAR = "\r\x1b[K"


class ProgressLine(logging.Handler):
    """Shows the latest progress of a search; warnings stay."""

    def __init__(self, stream: TextIO, objective: str) -> None:
        """Starts the clock.

        Args:
            stream: A terminal.
            objective: `time` or `bytes`; the cost of a plan is a time for the first only.
        """
        super().__init__(logging.INFO)
        self._stream = stream
        self._objective = objective
        self._started = time.monotonic()
        self._stage = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Shows a record."""
        if record.levelno >= logging.WARNING:
            self._stream.write(f"{_CLEAR}{record.getMessage()}\n")
            return
        text = record.getMessage()
        cost, gap = getattr(record, "cost", None), getattr(record, "gap", None)
        if cost is None or gap is None:
            self._stage = text
        else:
            # The search counts time in picoseconds.
            price = f"{format_seconds(cost / 1e12)} a call, " * (self._objective == "time")
            text = f"{self._stage}: {price}gap {gap:.2%}"
        seconds = time.monotonic() - self._started
        self._stream.write(f"{_CLEAR}{seconds:4.0f} s  {text[:90]}  (Ctrl-C: best so far)")
        self._stream.flush()

    def close(self) -> None:
        """Wipes the line."""
        self._stream.write(_CLEAR)
        self._stream.flush()
        super().close()


@contextlib.contextmanager
def shown_progress(objective: str) -> Iterator[None]:
    """Shows progress while the body runs, where stderr is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    line, level = ProgressLine(sys.stderr, objective), _LOG.level
    _LOG.addHandler(line)
    _LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        _LOG.setLevel(level)
        _LOG.removeHandler(line)
        line.close()
