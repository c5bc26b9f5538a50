"""What sbp says when it refuses: where, what, why and how to fix it.

Every error a user can meet is an `SbpError`. Its text has the four parts in a fixed order, so that
a reader finds the remedy on the last line.
"""

from collections.abc import Sequence


class SbpError(ValueError):
    """A refused request, in four parts.

    Attributes:
        what: The fact that is wrong, in the user's words (one line, no final stop).
        where: Argument path, equation or user file:line; empty when there is none.
        why: The law that is broken; may hold several lines.
        how: Remedies, best first.
    """

    def __init__(
        self, what: str, *, where: str = "", why: str = "", how: str | Sequence[str] = ()
    ) -> None:
        """Composes the message from its parts.

        Args:
            what: The fact that is wrong.
            where: Where it is.
            why: The law that is broken.
            how: One remedy, or several of which one is enough.
        """
        self.what = what
        self.where = where
        self.why = why
        self.how = (how,) if isinstance(how, str) else tuple(how)
        super().__init__(self._text())

    def _text(self) -> str:
        lines = [f"{self.what} ({self.where})." if self.where else f"{self.what}."]
        lines += [f"  {line}" for line in self.why.splitlines()]
        if self.how:
            lead = "Fix" if len(self.how) == 1 else "Fix one of"
            lines.append(f"{lead}: {' | '.join(self.how)}")
        return "\n".join(lines)


class SignatureError(SbpError):
    """Words that no signature of an operation, or no array of this shape, can have."""


class BoxingError(SbpError):
    """A change of words that no chain of collectives can make."""


class PlanError(SbpError):
    """A function for which there is no plan under the user's conditions."""
