"""What the fields of a saved plan may hold, down to the last number.

Comes in: JSON as Python reads it, and the types of the fields. Goes out: the fields, or an error
that names the place in the file: `boxings[3].nbytes is -1`.
"""

import dataclasses
import math
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sbp.algebra import NdSbp, Split, parse_word
from sbp.axis_sizes import axis_sizes
from sbp.boxing import Kind
from sbp.cost_model import OBJECTIVES
from sbp.errors import SbpError

MOST = 1e100
"""No figure of a plan is larger; sums of products of two are finite."""
MOST_DEVICES = 2**32
"""On one axis."""

_DIM = r"\d+(?:@\w+|@\([\w,]+\))?"
_TYPE = re.compile(
    rf"(?:\w+|key<[^>]*>)\[((?:{_DIM}(?:,{_DIM})*)?)\](?:\{{U(?:max|min)?:[\w,]+\}})*"
)
"""An array in jax's notation: `f32[8@dp,16]{U:tp}`."""


def read(kind: Any, data: Any, at: str) -> Any:
    """A value of some type.

    Args:
        kind: A type of a field: text, a number, words, a dataclass, or tuples and mappings of such.
        data: What the file has.
        at: Where it stands in the file.

    Raises:
        ValueError: It is not of the type; the text says where it is.
    """
    of, origin = typing.get_args(kind), typing.get_origin(kind)
    if kind is Any:
        return tuples(data)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return kind(**read_fields(types_of(kind), data, f"{at}."))
    if origin is tuple:
        kinds = of[:1] * len(data) if of[-1] is Ellipsis and isinstance(data, list) else of
        if isinstance(data, list) and len(data) == len(kinds):
            pairs = enumerate(zip(kinds, data, strict=True))
            return tuple(read(one, entry, f"{at}[{k}]") for k, (one, entry) in pairs)
    elif of:
        if isinstance(data, dict):
            return {key: read(of[1], entry, f"{at}.{key}") for key, entry in data.items()}
    elif kind is NdSbp:
        if isinstance(data, str):
            return _told(NdSbp.parse, data, at)
    elif kind is str:
        if isinstance(data, str):
            return data
    elif isinstance(data, (int, float) if kind is float else int) and not isinstance(data, bool):
        if 0 <= data <= MOST:
            return data
        raise ValueError(f"{at} is {data}"[:80] + f", not a number from 0 to {MOST}")
    raise ValueError(f"{at} is {data!r}"[:200])


def read_fields(kinds: Mapping[str, Any], data: Any, at: str = "") -> dict[str, Any]:
    """The fields of a record; arguments as of `read`.

    Raises:
        ValueError: One is missing, is not known, or is not of its type.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{at.rstrip('.')} is {data!r}"[:200])
    for name in kinds:
        if name not in data:
            raise ValueError(f"{at}{name} is missing")
    for name in data:
        if name not in kinds:
            raise ValueError(f"{at}{name} is not known")
    return {name: read(kind, data[name], f"{at}{name}") for name, kind in kinds.items()}


def types_of(kind: Any) -> dict[str, Any]:
    """The types of the fields of a dataclass."""
    return {field.name: field.type for field in dataclasses.fields(kind)}


def tuples(data: Any) -> Any:
    """Lists as tuples, all the way down."""
    return tuple(map(tuples, data)) if isinstance(data, list) else data


def check(plan: Mapping[str, Any]) -> None:
    """Refuses fields, each of its type, that no plan has.

    Args:
        plan: The fields of a plan, by name.

    Raises:
        ValueError: The text says which field and where it is.
    """
    sizes = axis_sizes(plan["mesh_sizes"], "mesh_sizes")
    axes = tuple(sizes)
    for axis, size in sizes.items():
        _hold(size <= MOST_DEVICES, f"mesh_sizes.{axis}", size, "more than any machine has")
    for name in ("name", "cluster", "method", "fingerprint"):
        _hold(plan[name] != "", name, plan[name], "no name")
    objective, overlap = plan["objective"], plan["overlap"]
    _hold(objective in OBJECTIVES, "objective", objective, f"none of {', '.join(OBJECTIVES)}")
    _hold(overlap <= 1, "overlap", overlap, "more than everything")
    for end in ("arguments", "results"):
        for k, (_, words) in enumerate(plan[end]):
            _check_words(words, axes, None, f"{end}[{k}][1]")
            _hold(set(words) == set(axes), f"{end}[{k}][1]", str(words), f"not on {axes}")
    _check_ties(plan)
    for k, row in enumerate(plan["equations"]):
        _check_equation(row, axes, f"equations[{k}]")
    for k, row in enumerate(plan["boxings"]):
        _check_boxing(row, axes, len(plan["equations"]), f"boxings[{k}]")
    for name in ("choices", "shared"):
        for k, label in enumerate(plan[name]):
            _check_label(label, len(axes), f"{name}[{k}]")
    _check_sums(plan)


def _hold(is_held: bool, at: str, value: Any, why: str) -> None:
    if not is_held:
        raise ValueError(f"{at} is {value!r}"[:200] + f", {why}")


def _told(parse: Callable[[str], Any], text: str, at: str) -> Any:
    try:
        return parse(text)
    except SbpError as error:
        raise ValueError(f"{at} is {text!r}"[:200] + f": {error.what}") from None


def _check_words(words: NdSbp, axes: Sequence[str], ndim: int | None, at: str) -> None:
    for axis, word in words.items():
        _hold(axis in axes, at, str(words), f"but the mesh has {', '.join(axes)}")
        if isinstance(word, Split):
            exists = word.dim >= 0 and (ndim is None or word.dim < ndim)
            _hold(exists, at, str(words), "which splits a dim that does not exist")


def _check_ties(plan: Mapping[str, Any]) -> None:
    ends = [("results", dict(plan["results"])), ("arguments", dict(plan["arguments"]))]
    for k, pair in enumerate(plan["ties"]):
        for side, (end, paths) in enumerate(ends):
            _hold(pair[side] in paths, f"ties[{k}][{side}]", pair[side], f"not in {end}")


def _check_equation(row: Any, axes: Sequence[str], at: str) -> None:
    _hold(row.primitive != "", f"{at}.primitive", row.primitive, "no name")
    for side in ("operands", "results"):
        for k, text in enumerate(getattr(row, side)):
            _num_dims(text, f"{at}.{side}[{k}]")
    by_axis = [part.partition(": ") for part in row.signature.split("; ")]
    named = tuple(axis for axis, _, _ in by_axis)
    _hold(named == tuple(axes), f"{at}.signature", row.signature, f"not on {', '.join(axes)}")
    for _, _, words in by_axis:
        for word in filter(None, re.split(r"\s*(?:,|->)\s*", words)):
            _told(parse_word, word, f"{at}.signature")


def _check_boxing(row: Any, axes: Sequence[str], num_equations: int, at: str) -> None:
    kinds = typing.get_args(Kind)
    _hold(row.collective in kinds, f"{at}.collective", row.collective, f"none of {kinds}")
    _hold(row.dtype != "", f"{at}.dtype", row.dtype, "no name")
    for k, axis in enumerate(row.axes):
        _hold(axis in axes, f"{at}.axes[{k}]", axis, f"but the mesh has {', '.join(axes)}")
    _hold(row.equation <= num_equations, f"{at}.equation", row.equation, "not in equations")
    ndim = _num_dims(row.value_type, f"{at}.value_type")
    _num_dims(row.result_type, f"{at}.result_type")
    changes = [_told(NdSbp.parse, text, f"{at}.{side}")
               for side, text in (("src", row.src), ("dst", row.dst))]  # fmt: skip
    for side, words in zip(("src", "dst"), changes, strict=True):
        _check_words(words, axes, ndim, f"{at}.{side}")
    _hold(set(changes[0]) == set(changes[1]), f"{at}.dst", row.dst, "not on the axes of src")


def _num_dims(text: str, at: str) -> int:
    """Number of dims of a type in jax's notation."""
    match = _TYPE.fullmatch(text)
    if match is None:
        raise ValueError(f"{at} is {text!r}"[:200] + ", not the type of an array")
    return len(re.findall(_DIM, match[1]))


def _check_label(label: Any, num_axes: int, at: str) -> None:
    """Whether it is the words of one array, or those of the operands and results of an equation."""
    is_label = isinstance(label, tuple)
    if is_label and all(isinstance(word, str) for word in label):
        _hold(len(label) == num_axes, at, label, f"not words on {num_axes} axes")
        for word in label:
            _told(parse_word, word, at)
        return
    is_pair = is_label and len(label) == 2 and all(isinstance(side, tuple) for side in label)
    _hold(is_pair, at, label, "not a choice")
    for k, side in enumerate(label):
        for n, words in enumerate(side):
            one = f"{at}[{k}][{n}]"
            is_words = isinstance(words, tuple) and all(isinstance(w, str) for w in words)
            _hold(is_words, one, words, "not words")
            _check_label(words, num_axes, one)


def _check_sums(plan: Mapping[str, Any]) -> None:
    """Figures of the whole are those of its lines."""
    boxings, equations = plan["boxings"], plan["equations"]
    compute = sum(row.seconds * row.count for row in equations)
    for name, total in (
        ("compute_seconds", compute),
        ("cost_seconds", compute + sum(row.seconds * row.count for row in boxings)),
        ("wire_nbytes", sum(row.nbytes * row.count for row in boxings)),
        ("flops_per_device", sum(row.flops * row.count for row in equations)),
    ):
        is_sum = math.isclose(plan[name], total, rel_tol=1e-9)
        _hold(is_sum, name, plan[name], f"but its lines add up to {total}")
    bound, cost = plan["lower_bound"], plan["cost"]
    _hold(bound <= cost * (1 + 1e-6), "lower_bound", bound, "above the cost")
