"""The words: what one array is on each axis of the mesh.

Comes in: text, or words by axis name. Goes out: `NdSbp`, an immutable mapping from mesh axis to
`Split`, `Broadcast` or `Partial`, and the local shapes that follow from it. Inside the compiler the
same fact is a plain tuple of words in mesh order (`Words`). Nothing here knows about jax.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sbp.errors import SignatureError

PartialKind = Literal["sum", "max", "min"]


@dataclass(frozen=True, slots=True)
class Split:
    """Device k of the axis holds block k of dim `dim`."""

    dim: int

    def __str__(self) -> str:
        return f"S({self.dim})"

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Every device of the axis holds the whole array."""

    def __str__(self) -> str:
        return "B"

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class Partial:
    """The array is the elementwise reduction of what the devices of the axis hold.

    Attributes:
        kind: The reduction: `sum`, `max` or `min`. For booleans `max` is or, `min` is and.
    """

    kind: PartialKind = "sum"

    @property
    def max(self) -> "Partial":
        """Partial whose reduction is the maximum."""
        return Partial("max")

    @property
    def min(self) -> "Partial":
        """Partial whose reduction is the minimum."""
        return Partial("min")

    def __str__(self) -> str:
        return "P" if self.kind == "sum" else f"P.{self.kind}"

    __repr__ = __str__


Word = Split | Broadcast | Partial
Words = tuple[Word, ...]
"""Words in mesh order: the compiler's form of an `NdSbp`."""

B = Broadcast()
P = Partial("sum")
P_MAX = Partial("max")
P_MIN = Partial("min")

_WORD = re.compile(r"S\(\s*(-?\d+)\s*\)|B|P(?:\.(sum|max|min))?")
_ENTRY = re.compile(r"\s*([A-Za-z_]\w*)\s*:\s*([^,]+?)\s*")


def parse_word(text: str) -> Word:
    """Reads one word: `S(0)`, `B`, `P`, `P.max`, `P.min`.

    Raises:
        SignatureError: `text` is none of these.
    """
    match = _WORD.fullmatch(text.strip())
    if match is None:
        raise SignatureError(
            f"{text.strip()!r} is not a word",
            why="A word is S(dim), B, P, P.max or P.min.",
            how=_guess(text.strip()) or "write for example 'dp: S(0), tp: B'",
        )
    if match.group(1) is not None:
        return Split(int(match.group(1)))
    if match.group(0) == "B":
        return B
    return Partial(match.group(2) or "sum")  # type: ignore[arg-type]


def _guess(text: str) -> str:
    """The word that was meant, where only case or parentheses are wrong."""
    if split := re.fullmatch(r"[sS]\s*[(\[]?\s*(-?\d+)\s*[)\]]?", text):
        return f"S({split.group(1)})"
    known = ("B", "P", "P.max", "P.min")
    return next((word for word in known if word.lower() == text.lower()), "")


class NdSbp(Mapping[str, Word]):
    """The words of an array, by mesh axis. An axis that is not named is free before planning.

    The text form is `(dp: S(0), tp: P)`; it is also the repr, and `parse` reads it back. Equality
    does not depend on the order of the names: when several axes split one dim, the order of the
    mesh says which is the outer one.
    """

    __slots__ = ("_words",)

    def __init__(self, words: Mapping[str, Word] | None = None, /, **by_axis: Word) -> None:
        """Takes words as one mapping, as keywords, or both.

        Raises:
            SignatureError: A value is not a word, or an axis is given twice.
        """
        given = dict(words or {})
        for axis, word in by_axis.items():
            if axis in given:
                raise SignatureError(f"axis {axis!r} is given twice", how="name each axis once")
            given[axis] = word
        for axis, word in given.items():
            if not isinstance(word, Split | Broadcast | Partial):  # pyright: ignore
                raise SignatureError(
                    f"the word of axis {axis!r} is {word!r}",
                    why="A word is sbp.S(dim), sbp.B, sbp.P, sbp.P.max or sbp.P.min.",
                    how=f"NdSbp({axis}=sbp.S(0)), or text: NdSbp.parse('{axis}: S(0)')",
                )
        self._words = given

    @classmethod
    def parse(cls, text: str) -> "NdSbp":
        """Reads the text form; the parentheses may be left out.

        Raises:
            SignatureError: The text is not of the form `axis: word, axis: word`.
        """
        body = text.strip()
        if body.startswith("(") and body.endswith(")"):
            body = body[1:-1].strip()
        words: dict[str, Word] = {}
        for entry in filter(None, (part.strip() for part in body.split(","))):
            match = _ENTRY.fullmatch(entry)
            if match is None:
                raise SignatureError(
                    f"cannot read {entry!r}" + (f" in {text!r}" if entry != text else ""),
                    why="Words are written 'axis: word', separated by commas.",
                    how="write for example 'dp: S(0), tp: B'",
                )
            axis, word = match.groups()
            if axis in words:
                raise SignatureError(
                    f"axis {axis!r} is given twice in {text!r}", how="name each axis once"
                )
            words[axis] = parse_word(word)
        return cls(words)

    @classmethod
    def of(cls, axes: Sequence[str], words: Words) -> "NdSbp":
        """Names the words of a tuple in mesh order."""
        return cls(dict(zip(axes, words, strict=True)))

    def on(self, axes: Sequence[str]) -> Words:
        """The words in the order of `axes`; an axis that is not named is B."""
        return tuple(self._words.get(axis, B) for axis in axes)

    def __getitem__(self, axis: str) -> Word:
        return self._words[axis]

    def __iter__(self) -> Iterator[str]:
        return iter(self._words)

    def __len__(self) -> int:
        return len(self._words)

    def __hash__(self) -> int:
        return hash(frozenset(self._words.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NdSbp) and self._words == other._words

    def __repr__(self) -> str:
        return "(" + ", ".join(f"{axis}: {word}" for axis, word in self._words.items()) + ")"


@dataclass(frozen=True, slots=True)
class ArrayType:
    """Shape and dtype of an array, logical or local.

    Attributes:
        shape: Sizes of the dims.
        dtype: A numpy dtype, or jax's extended dtype of random keys.
    """

    shape: tuple[int, ...]
    dtype: Any

    @property
    def ndim(self) -> int:
        """Number of dims."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for extent in self.shape:
            size *= extent
        return size

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * int(self.dtype.itemsize)


def local_shape(shape: Sequence[int], words: Words, sizes: Sequence[int]) -> tuple[int, ...] | None:
    """The shape one device holds, or None where a split dim does not divide.

    Args:
        shape: Logical shape.
        words: One word per mesh axis.
        sizes: Number of devices of each mesh axis.
    """
    local = list(shape)
    for word, size in zip(words, sizes, strict=True):
        if isinstance(word, Split):
            if not 0 <= word.dim < len(local) or local[word.dim] % size:
                return None
            local[word.dim] //= size
    return tuple(local)


def local_type(array: ArrayType, words: Words, sizes: Sequence[int]) -> ArrayType:
    """The type one device holds. The words must be legal for the shape."""
    shape = local_shape(array.shape, words, sizes)
    assert shape is not None, (array, words, sizes)
    return ArrayType(shape, array.dtype)


_SHORT = {
    "float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c",
}  # fmt: skip


def format_dtype(dtype: Any) -> str:
    """Jax's short name of a dtype: `f32`, `bf16`, `i32`, `bool`, `key<fry>`."""
    name = str(dtype)
    match = re.fullmatch(r"(bfloat|float|uint|int|complex)(\d+)", name)
    return f"{_SHORT[match.group(1)]}{match.group(2)}" if match else name


def format_type(array: ArrayType, axes: Sequence[str] = (), words: Words = ()) -> str:
    """An array with its words, as jax prints types: `f32[8@dp,16]{U:tp}`.

    Args:
        array: The logical array.
        axes: Mesh axis names, outermost first.
        words: One word per axis.
    """
    entries: list[str] = []
    for dim, size in enumerate(array.shape):
        over = [axis for axis, word in zip(axes, words, strict=True) if word == Split(dim)]
        mark = f"@{over[0]}" if len(over) == 1 else f"@({','.join(over)})" if over else ""
        entries.append(f"{size}{mark}")
    text = f"{format_dtype(array.dtype)}[{','.join(entries)}]"
    for kind, label in (("sum", "U"), ("max", "Umax"), ("min", "Umin")):
        over = [axis for axis, word in zip(axes, words, strict=True) if word == Partial(kind)]  # type: ignore[arg-type]
        text += f"{{{label}:{','.join(over)}}}" if over else ""
    return text
