"""Signatures of whole functions: found by asking the rules, proved by the numpy oracle.

Comes in: a pure function and arrays. Goes out: the words under which it needs no communication.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from sbp import reference
from sbp.algebra import P_MAX, P_MIN, NdSbp, Partial, Word, parse_word
from sbp.api.binding import check_array, struct_of
from sbp.api.claim_checks import holds_without_boxing, word_choices
from sbp.api.options import argument_names
from sbp.cost_model import CostModel
from sbp.errors import SbpError, SignatureError
from sbp.factors import Signature
from sbp.graph import Boundary, Mesh, build_graph
from sbp.hardware import CPU
from sbp.rules.laws import is_ordered
from sbp.tracebacks import concise
from sbp.tracing import presented_as, trace

MAX_COMBINATIONS = 4096


@concise
def signatures(fn: Callable[..., Any], *args: Any, num_devices: int = 2) -> tuple[Signature, ...]:
    """The signatures of a function on one axis: no array inside changes its words.

    Args:
        fn: A pure function of arrays.
        *args: Arrays or structs, one each argument.
        num_devices: Size of the axis.

    Raises:
        SbpError: The function has too many arguments to try all words, or not arrays, or there is
            no such number of devices.
    """
    for x in args:
        check_array(x, "signatures", "give the function one argument an array", structs=True)
    _check_num_devices(num_devices)
    structs = [struct_of(x) for x in args]
    names = argument_names(fn, len(structs))
    called = presented_as(fn, lambda *xs: jax.tree.leaves(fn(*xs)), names)
    traced = trace(called, structs)
    mesh = Mesh(("axis",), (num_devices,))
    outputs = traced.block.outputs
    choices = [word_choices(s.shape, num_devices) for s in (*structs, *(a.type for a in outputs))]
    for k, atom in enumerate(outputs, start=len(structs)):
        # Arguments of a function are not maxima or minima, but its results may be.
        kinds = {P_MAX, P_MIN} if is_ordered(atom.type) else set[Partial]()
        choices[k] += sorted(kinds, key=str)
    if math.prod(map(len, choices)) > MAX_COMBINATIONS:
        raise SbpError(
            f"{math.prod(map(len, choices))} combinations of words are too many to try",
            why=f"At most {MAX_COMBINATIONS} are tried.",
            how="ask for a part of the function",
        )
    found = []
    for combination in itertools.product(*choices):
        ends = [NdSbp(axis=word) for word in combination]
        boundary = Boundary(
            tuple(f"argument {k}" for k in range(len(structs))),
            tuple(f"result {k}" for k in range(len(outputs))),
            tuple(ends[: len(structs)]), tuple(ends[len(structs) :]),
        )  # fmt: skip
        graph = build_graph(traced, mesh, CostModel(CPU, mesh.sizes), boundary)
        if holds_without_boxing(graph):
            found.append(Signature(combination[: len(structs)], combination[len(structs) :]))
    return tuple(found)


def _check_num_devices(num_devices: Any) -> None:
    if not isinstance(num_devices, int) or isinstance(num_devices, bool) or num_devices < 1:
        raise SbpError(
            f"num_devices={num_devices!r} is not a number of devices",
            why="It is the size of the one mesh axis that the signatures are of.",
            how="num_devices=2 is the default",
        )


@concise
def verify_signature(
    fn: Callable[..., Any], signature: Signature | str, *args: Any, num_devices: int = 2
) -> None:
    """Proves a signature on these arrays: running `fn` on local arrays gives the logical result.

    Args:
        fn: A pure function of arrays.
        signature: A signature, or its text `S(0), B -> S(0)`.
        *args: Arrays; small integers make the comparison exact.
        num_devices: Size of the axis.

    Raises:
        SignatureError: The signature is wrong, does not fit the arrays, or cannot be read.
        SbpError: There is no such number of devices.
    """
    _check_num_devices(num_devices)
    claim = _parse(signature) if isinstance(signature, str) else signature
    expected = [np.asarray(x) for x in jax.tree.leaves(fn(*args))]
    if (len(claim.inputs), len(claim.outputs)) != (len(args), len(expected)):
        raise SignatureError(
            f"signature '{claim}' has {len(claim.inputs)} operands, {len(claim.outputs)} results",
            why=f"The function has {len(args)} and {len(expected)}.",
            how="name a word for each",
        )
    mesh = {"axis": num_devices}
    rng = np.random.default_rng(0)
    scattered = [
        reference.scatter(np.asarray(x), NdSbp(axis=word), mesh, rng)
        for x, word in zip(args, claim.inputs, strict=True)
    ]
    results = [
        _run_on_parts(fn, claim, [parts[k] for parts in scattered]) for k in range(num_devices)
    ]
    for position, (word, logical) in enumerate(zip(claim.outputs, expected, strict=True)):
        parts = np.empty(num_devices, object)
        for k in range(num_devices):
            parts[k] = results[k][position]
        _compare(claim, position, word, parts, logical, mesh)


def _run_on_parts(fn: Callable[..., Any], claim: Signature, parts: Sequence[Any]) -> list[Any]:
    try:
        return [np.asarray(y) for y in jax.tree.leaves(fn(*parts))]
    except (TypeError, ValueError) as error:
        shapes = ", ".join(str(part.shape) for part in parts)
        raise SignatureError(
            f"signature '{claim}' is wrong: the function does not run on local arrays",
            why=f"Their shapes are {shapes}. {type(error).__name__}: {error}",
            how=[
                "claim only what sbp.signatures(fn, *args) lists",
                "let the function take its shapes from its arguments",
            ],
        ) from error


def _compare(
    claim: Signature, position: int, word: Word, parts: Any, logical: Any, mesh: dict[str, int]
) -> None:
    try:
        got = reference.gather(parts, NdSbp(axis=word), mesh)
    except SbpError as error:
        reason = error.what
    else:
        reason = _first_difference(got, logical)
    if reason:
        raise SignatureError(
            f"signature '{claim}' is wrong for result {position}",
            why=reason,
            how="claim only what sbp.signatures(fn, *args) lists",
        )


def _first_difference(got: Any, logical: Any) -> str:
    """Where what the devices hold is not the function's result; empty if they agree."""
    if got.shape != logical.shape:
        return f"On devices its shape is {got.shape}, the function's is {logical.shape}."
    if np.issubdtype(logical.dtype, np.inexact):
        # Parts are added in another order.
        differs = ~np.isclose(got, logical, rtol=1e-5, atol=1e-6, equal_nan=True)
    else:
        differs = got != logical
    if not differs.any():
        return ""
    where = tuple(int(k) for k in np.argwhere(differs)[0])
    return f"At {list(where)} it gives {got[where]} on devices, the function {logical[where]}."


def _parse(text: str) -> Signature:
    sides = text.split("->")
    if len(sides) != 2:
        raise SignatureError(f"cannot read signature {text!r}", how="write 'S(0), B -> S(0)'")
    return Signature(
        *(tuple(parse_word(w) for w in side.split(",") if w.strip()) for side in sides)
    )
