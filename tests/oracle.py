"""The oracle: a signature is right if `gather(op(scatter(inputs)))` equals `op(inputs)`.

A `Case` is a function whose trace holds the primitive to be proved, with makers of its inputs.
Local calls run one device after the other, eagerly, as the compiler would run them: with the rule's
`run`, or the primitive bound with the local parameters.

Numbers are whole and small where an operand is a sum of parts, so that equality is exact; they
include NaN, infinities and the extremes of integers everywhere else.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from sbp import _compat
from sbp.algebra import P_MAX, P_MIN, ArrayType, NdSbp, P, Words
from sbp.errors import SbpError
from sbp.factors import Call, NdSignature, nd_signatures
from sbp.reference import gather, scatter
from sbp.rules.rule import LocalRun, Rule, local_call

MESHES = ((2,), (4,), (2, 2))

TRANSCENDENTAL = 3e-6
"""Relative tolerance of f32 functions: XLA's vector and scalar code differ by a few ulps."""

Maker = Callable[[np.random.Generator, bool], Any]


@dataclass(frozen=True)
class Case:
    """A primitive in the wild.

    Attributes:
        primitive: Its name in the jaxpr of `fn`.
        fn: A function of the made inputs.
        makers: Each makes an input from a generator; the flag asks for small whole numbers only.
        rtol: Relative tolerance of floats; 0 is exact.
        tame_orders: Whole operands beside P.max or P.min are finite, see `add`.
        label: Tells cases of one primitive apart.
        flat: The call is elementwise, and all devices may be run at once on flat arrays of one
            shape: a compilation for each local shape would take most of the time.
    """

    primitive: str
    fn: Callable[..., Any]
    makers: tuple[Maker, ...]
    rtol: float = 0.0
    tame_orders: bool = False
    label: str = ""
    flat: bool = False

    def __str__(self) -> str:
        """Primitive and label: the name of a test."""
        return f"{self.primitive}-{self.label}" if self.label else self.primitive


@dataclass(frozen=True)
class Equation:
    """An equation of a jaxpr with values for its operands."""

    primitive: Any
    call: Call
    operands: tuple[Any, ...]


class WrongSignature(AssertionError):
    """What the devices compute is not what one device computes."""


def trace(case: Case, rng: np.random.Generator, tame: bool = True) -> Equation:
    """The case's equation with fresh values; what comes before it in the jaxpr is evaluated."""
    with np.errstate(all="ignore"):
        args = [maker(rng, tame) for maker in case.makers]
    found = _find(*_compat.open_jaxpr(jax.make_jaxpr(case.fn)(*args)), args, case.primitive)
    assert found is not None, f"{case.primitive} is not in the jaxpr"
    return found


def _find(jaxpr: Any, consts: Any, args: Sequence[Any], name: str) -> Equation | None:
    env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
    for equation in jaxpr.eqns:
        operands = [v.val if _compat.is_literal(v) else env[v] for v in equation.invars]
        if equation.primitive.name == name:
            inputs = tuple(_type(v.aval) for v in equation.invars)
            outputs = tuple(_type(v.aval) for v in equation.outvars)
            call = Call(name, inputs, outputs, equation.params)
            typed = tuple(
                x if _is_key(x) else np.asarray(x, t.dtype)
                for x, t in zip(operands, inputs, strict=True)
            )
            return Equation(equation.primitive, call, typed)
        if equation.primitive.name == "jit":
            inner = _find(*_compat.open_jaxpr(equation.params["jaxpr"]), operands, name)
            if inner is not None:
                return inner
        results = _compat.bind(equation.primitive, operands, equation.params)
        env |= dict(zip(equation.outvars, results, strict=True))
    return None


def _type(aval: Any) -> ArrayType:
    return ArrayType(tuple(aval.shape), aval.dtype)


def _is_key(x: Any) -> bool:
    return isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def evaluate(equation: Equation, flat: bool = False) -> list[Any]:
    """The results on one device; `flat` as in `Case`."""
    if flat:
        params = equation.call.params
        (out,) = _run_flat(
            lambda operands: _compat.bind(equation.primitive, operands, params),
            [equation.operands],
            equation.call,
        )
        return out
    return [
        _numpy(x) for x in _compat.bind(equation.primitive, equation.operands, equation.call.params)
    ]


def _numpy(x: Any) -> Any:
    return np.asarray(jax.random.key_data(x) if _is_key(x) else x)


def prove(
    equation: Equation,
    rule: Rule,
    signature: NdSignature,
    sizes: Sequence[int],
    expected: Sequence[Any],
    rng: np.random.Generator,
    rtol: float = 0.0,
    flat: bool = False,
) -> None:
    """Runs the local calls and compares.

    Args:
        equation: The call on one device.
        rule: Says how to run it locally.
        signature: What is to be proved.
        sizes: Of the mesh axes.
        expected: The results on one device.
        rng: Cuts partial operands into parts.
        rtol: Relative tolerance of floats.
        flat: Run all devices at once, see `Case`.

    Raises:
        WrongSignature: They do not make up the expected results.
    """
    axes = "abc"[: len(sizes)]
    mesh = dict(zip(axes, sizes, strict=True))
    locals_ = [
        _scatter(operand, NdSbp.of(axes, words), mesh, rng)
        for operand, words in zip(equation.operands, signature.inputs, strict=True)
    ]
    local = local_call(equation.call, signature, sizes, rule)
    devices = list(itertools.product(*map(range, sizes)))

    def run(operands: Sequence[Any], device: Any) -> Sequence[Any]:
        if rule.run is None:
            return _compat.bind(equation.primitive, operands, local.params)
        context = LocalRun(equation.call, local, signature, tuple(sizes), lambda axis: device[axis])
        return rule.run(context, operands)

    each = [[parts[device] for parts in locals_] for device in devices]
    if flat:
        outs = _run_flat(lambda operands: run(operands, devices[0]), each, local)
    else:
        outs = [run(operands, device) for operands, device in zip(each, devices, strict=True)]
    results = [np.empty(tuple(sizes), object) for _ in expected]
    for device, out in zip(devices, outs, strict=True):
        for result, value, array in zip(results, out, local.outputs, strict=True):
            if tuple(value.shape) != array.shape or value.dtype != array.dtype:
                raise WrongSignature(f"{show(signature)}: local {value.shape}, not {array.shape}")
            result[device] = _numpy(value)
    for result, words, value in zip(results, signature.outputs, expected, strict=True):
        try:
            actual = gather(result, NdSbp.of(axes, words), mesh)
        except (SbpError, ValueError) as error:
            raise WrongSignature(f"{show(signature)} on {sizes}: {error}") from error
        if not agree(actual, value, rtol):
            raise WrongSignature(f"{show(signature)} on {sizes}:\n{actual}\nis not\n{value}")


_FLAT = 256


def _run_flat(
    run: Callable[[Sequence[Any]], Sequence[Any]], each: Sequence[Sequence[Any]], local: Call
) -> list[list[Any]]:
    """The elementwise calls of all devices as one on flat arrays, so that one shape is compiled."""
    shape, count = local.outputs[0].shape, local.outputs[0].size
    columns = zip(*each, strict=True)
    flat = [
        np.concatenate([np.broadcast_to(x, shape).ravel() for x in column]) for column in columns
    ]
    padded = [np.concatenate([x, np.ones(_FLAT - x.size, x.dtype)]) for x in flat]
    out = [np.asarray(x) for x in run(padded)]
    return [[x[k * count : (k + 1) * count].reshape(shape) for x in out] for k in range(len(each))]


def _scatter(x: Any, ndsbp: NdSbp, mesh: dict[str, int], rng: np.random.Generator) -> Any:
    if not _is_key(x):
        return scatter(x, ndsbp, mesh, rng)
    parts = scatter(np.asarray(jax.random.key_data(x)), ndsbp, mesh, rng)
    wrapped = np.empty(parts.shape, object)
    for device in np.ndindex(parts.shape):
        wrapped[device] = jax.random.wrap_key_data(parts[device], impl=jax.random.key_impl(x))
    return wrapped


def agree(actual: Any, expected: Any, rtol: float) -> bool:
    """Whether arrays are equal, NaN where NaN; floats up to a relative tolerance."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return False
    with np.errstate(all="ignore"):
        close = (actual == expected) | ((actual != actual) & (expected != expected))
        if rtol and actual.dtype.kind in "fc":
            close |= np.abs(actual - expected) <= rtol * np.abs(expected)
    return bool(np.all(close))


def show(signature: NdSignature) -> str:
    """A signature on one line, an array's words in parentheses."""

    def side(words: tuple[Words, ...]) -> str:
        return ", ".join("(" + " ".join(map(str, word)) + ")" for word in words)

    return f"{side(signature.inputs)} -> {side(signature.outputs)}"


def is_tame(case: Case, signature: NdSignature) -> bool:
    """Whether a signature is proved on small whole numbers: sums, and what the case asks for."""
    words = {word for operand in signature.inputs for word in operand}
    return P in words or (case.tame_orders and bool(words & {P_MAX, P_MIN}))


def prove_case(
    case: Case,
    rule: Rule,
    meshes: Sequence[tuple[int, ...]] = MESHES,
    seed: int = 0,
    choose: Callable[[Sequence[NdSignature]], Sequence[NdSignature]] = tuple,
) -> int:
    """Proves the signatures of a case on meshes.

    Args:
        case: The case.
        rule: The rule that is to be proved.
        meshes: Sizes of the axes of each mesh.
        seed: Of the values and the parts.
        choose: Picks among the signatures.

    Returns:
        The number of signatures proved.
    """
    values = {}
    for tame in (False, True):
        equation = trace(case, np.random.default_rng(seed), tame)
        values[tame] = equation, evaluate(equation, case.flat)
    count = 0
    rng = np.random.default_rng(seed + 1)
    for sizes in meshes:
        call = values[True][0].call
        for signature in choose(nd_signatures(call, sizes, rule.signatures, rule.localize)):
            equation, expected = values[is_tame(case, signature)]
            prove(equation, rule, signature, sizes, expected, rng, case.rtol, case.flat)
            count += 1
    return count
