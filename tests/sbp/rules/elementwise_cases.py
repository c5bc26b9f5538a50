"""Cases of the elementwise primitives."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import primitives

from tests.oracle import TRANSCENDENTAL, Case
from tests.values import bools, complexes, constant, finite_floats, floats, ints, whole_floats

UNARY = (
    "acos, acosh, asin, asinh, atan, atanh, bessel_i0e, bessel_i1e, cbrt, cos, cosh, digamma, erf, "
    "erfc, erf_inv, exp, exp2, expm1, lgamma, log, log1p, log2, logistic, rsqrt, sin, sinh, sqrt, "
    "tan, tanh"
)
EXACT_UNARY = "abs, ceil, floor, is_finite, neg, round, sign, square"
COMPARE = ["eq", "ge", "gt", "le", "lt", "ne"]
BITS = ["and", "or", "xor"]
WIDE, VECTOR = (8, 4), (8,)


def unary(name: str):
    """The function of `jax.lax` that binds a primitive, or jax.numpy's."""
    return getattr(lax, name, None) or getattr(jnp, name)


def unary_cases():
    """Functions of one operand."""
    for name in UNARY.split(", "):
        if name == "log2" and not hasattr(lax, "log2"):
            continue  # before jax 0.12 it is two logs and a division
        yield Case(name, unary(name), (floats(*VECTOR),), TRANSCENDENTAL)
    for name in EXACT_UNARY.split(", "):
        yield Case(name, unary(name), (floats(*WIDE),))
    for name in ("abs", "neg", "sign", "square"):
        yield Case(name, unary(name), (ints(*VECTOR),), label="int")
    for name in ("abs", "neg", "square"):
        yield Case(name, unary(name), (complexes(*VECTOR),), TRANSCENDENTAL, label="complex")
    yield Case("neg", lax.neg, (ints(*VECTOR, dtype="uint8"),), label="uint8")
    yield Case("exp", lax.exp, (floats(0, 4),), label="empty")
    yield Case("exp", lax.exp, (floats(1, 4),), TRANSCENDENTAL, label="size 1")
    yield Case("exp", lax.exp, (floats(),), TRANSCENDENTAL, label="scalar")
    for name in ("not", "clz", "population_count"):
        fn = lax.bitwise_not if name == "not" else unary(name)
        yield Case(name, fn, (ints(*VECTOR),))
        yield Case(name, fn, (ints(*VECTOR, dtype="uint8"),), label="uint8")
    yield Case("not", lax.bitwise_not, (bools(*VECTOR),), label="bool")
    for power in (-3, -2, 2, 3, 5):
        fn = functools.partial(lax.integer_pow, y=power)
        yield Case("integer_pow", fn, (floats(*VECTOR),), TRANSCENDENTAL, label=f"{power}")
    yield Case("integer_pow", lambda x: lax.integer_pow(x, 3), (ints(*VECTOR),), label="int")
    yield Case("reduce_precision", lambda x: lax.reduce_precision(x, 5, 7), (floats(*WIDE),))
    if hasattr(lax, "one_minus_square"):
        yield Case("one_minus_square", lax.one_minus_square, (floats(*VECTOR),))


def identity_cases():
    """Functions that return their operands."""
    yield Case("copy", lambda x: lax.copy_p.bind(x), (floats(*WIDE),))
    yield Case("copy", lambda x: lax.copy_p.bind(x), (bools(*WIDE),), label="bool")
    yield Case("name", lambda x: checkpoint_name(x, "x"), (ints(*WIDE),))
    yield Case("stop_gradient", lax.stop_gradient, (floats(*WIDE),))
    barrier = lambda x, y: lax.optimization_barrier((x, y))  # noqa: E731
    yield Case("optimization_barrier", barrier, (floats(*WIDE), floats(*VECTOR)))
    yield Case("optimization_barrier", barrier, (ints(*WIDE), bools(*VECTOR)), label="bool")
    bitcast = lax.bitcast_convert_type
    yield Case("bitcast_convert_type", lambda x: bitcast(x, np.int32), (floats(*WIDE),))
    yield Case("bitcast_convert_type", lambda x: bitcast(x, np.uint8), (floats(4),), label="wide")
    narrow = ints(8, 4, dtype="uint8")
    yield Case("bitcast_convert_type", lambda x: bitcast(x, np.int32), (narrow,), label="narrow")


def arithmetic_cases():
    """Functions of several operands with laws of sums."""
    for name in ("add", "sub", "mul", "div", "max", "min", "rem"):
        fn = getattr(lax, name)
        tame = name in ("add", "sub")
        rtol = TRANSCENDENTAL if name == "div" else 0.0
        both = (floats(*WIDE), floats(*WIDE))
        yield Case(name, fn, both, rtol, tame)
        yield Case(name, fn, (floats(*WIDE), constant(2.0)), rtol, tame, label="right scalar")
        yield Case(name, fn, (constant(2.0), floats(*WIDE)), rtol, tame, label="left scalar")
        yield Case(name, fn, (ints(*WIDE), ints(*WIDE)), label="int")
        if name in ("add", "mul", "max"):
            yield Case(name, fn, (ints(*VECTOR, dtype="uint8"),) * 2, label="uint8")
            yield Case(name, fn, (floats(8, 1), floats(8, 4)), tame_orders=tame, label="repeated")
            yield Case(name, fn, (floats(0, 4), floats(0, 4)), tame_orders=tame, label="empty")
        if name in ("add", "sub", "mul", "div"):
            pair = (complexes(*VECTOR),) * 2
            yield Case(name, fn, pair, TRANSCENDENTAL, label="complex")
        if name in ("max", "min"):
            yield Case(name, fn, (bools(*WIDE), bools(*WIDE)), label="bool")
    bf16 = (whole_floats(*VECTOR, dtype=jnp.bfloat16),) * 2
    yield Case("add", lax.add, bf16, tame_orders=True, label="bf16")
    yield Case("add_any", _cotangents_added, (floats(*VECTOR),), tame_orders=True)
    for name in ("real", "imag"):
        yield Case(name, getattr(lax, name), (complexes(*WIDE),))
    yield Case("conj", lax.conj, (complexes(*WIDE),))
    yield Case("complex", lax.complex, (whole_floats(*WIDE), whole_floats(*WIDE)))
    shift = ints(*WIDE, low=-1, high=33)
    for name in ("shift_left", "shift_right_arithmetic", "shift_right_logical"):
        yield Case(name, getattr(lax, name), (ints(*WIDE), shift))
    yield Case("shift_left", lax.shift_left, (ints(*WIDE), constant(3, "int32")), label="scalar")


def _cotangents_added(x):
    """A gradient in which two cotangents meet."""
    return jax.vjp(lambda y: (y, y), x)[1]((x, x))


def choice_cases():
    """Comparisons, bits, clamp, select."""
    for name in COMPARE:
        fn = getattr(lax, name)
        yield Case(name, fn, (floats(*WIDE), floats(*WIDE)))
        yield Case(name, fn, (ints(*WIDE, low=-2, high=2),) * 2, label="int")
        yield Case(name, fn, (floats(*WIDE), constant(1.0)), label="scalar")
        yield Case(name, fn, (bools(*VECTOR), bools(*VECTOR)), label="bool")
    for name in ("eq_to", "le_to", "lt_to"):
        primitive = getattr(primitives, f"{name}_p", None)
        if primitive is not None:
            yield Case(name, primitive.bind, (floats(*VECTOR), floats(*VECTOR)))
    for name in BITS:
        fn = getattr(lax, f"bitwise_{name}")
        yield Case(name, fn, (ints(*VECTOR), ints(*VECTOR)), label="int")
        yield Case(name, fn, (bools(*WIDE), bools(*WIDE)), label="bool")
        yield Case(name, fn, (bools(*WIDE), constant(True, "bool")), label="bool scalar")
    three = (floats(*WIDE), floats(*WIDE), floats(*WIDE))
    yield Case("clamp", lax.clamp, three)
    yield Case("clamp", lax.clamp, (constant(-1.0), floats(*WIDE), constant(2.0)), label="scalar")
    yield Case("clamp", lax.clamp, (ints(*VECTOR),) * 3, label="int")
    yield Case("select_n", lax.select_n, (bools(*WIDE), floats(*WIDE), floats(*WIDE)))
    yield Case("select_n", lax.select_n, (bools(), floats(*WIDE), floats(*WIDE)), label="scalar")
    yield Case("select_n", lax.select_n, (bools(*WIDE), bools(*WIDE), bools(*WIDE)), label="bool")
    which = ints(*WIDE, low=0, high=2)
    yield Case("select_n", lax.select_n, (which, *(ints(*WIDE),) * 3), label="three")


CONVERSIONS = (
    ("float32", "bfloat16"), ("bfloat16", "float32"), ("float16", "float32"),
    ("float32", "float16"), ("bfloat16", "float16"), ("float16", "bfloat16"),
    ("float32", "complex64"), ("float32", "int32"), ("float32", "bool"),
    ("int32", "float32"), ("int32", "float16"), ("int32", "uint32"), ("int32", "int8"),
    ("int8", "int32"), ("uint8", "int32"), ("int8", "uint32"), ("uint32", "int8"),
    ("int32", "bool"), ("uint8", "bool"), ("bool", "int32"), ("bool", "float32"),
    ("uint32", "float16"), ("float32", "float8_e4m3fn"),
)  # fmt: skip


def conversion_cases():
    """Conversions between dtypes."""
    for source, target in CONVERSIONS:
        if source == "bool":
            maker = bools(*WIDE)
        elif source.startswith(("int", "uint")):
            maker = ints(*WIDE, dtype=source)
        else:
            maker = floats(*WIDE, dtype=jnp.dtype(source))
        fn = functools.partial(lax.convert_element_type, new_dtype=jnp.dtype(target))
        yield Case("convert_element_type", fn, (maker,), label=f"{source} to {target}")
    complex_ = (complexes(*WIDE),)
    to_real = lambda x: lax.convert_element_type_p.bind(  # noqa: E731
        x, new_dtype=np.dtype("float32"), weak_type=False, sharding=None
    )
    yield Case("convert_element_type", to_real, complex_, label="complex64 to float32")


def special_cases():
    """Functions of several operands that only split."""
    two, positive = (floats(*VECTOR), floats(*VECTOR)), finite_floats(*VECTOR, low=0.1)
    for name in ("atan2", "nextafter", "pow"):
        yield Case(name, getattr(lax, name), two, TRANSCENDENTAL)
    for name in ("igamma", "igamma_grad_a", "igammac"):
        yield Case(name, getattr(lax, name), (positive, positive), 1e-4)
    above = finite_floats(*VECTOR, low=1.5)
    yield Case("zeta", lax.zeta, (above, positive), 1e-4)
    yield Case("polygamma", lax.polygamma, (constant([1.0] * 8), positive), 1e-4)
    share = finite_floats(*VECTOR, low=0.1, high=0.9)
    yield Case("regularized_incomplete_beta", lax.betainc, (positive, positive, share), 1e-4)
    if hasattr(lax, "mulhi"):
        yield Case("mulhi", lax.mulhi, (ints(*VECTOR), ints(*VECTOR)))
    if hasattr(primitives, "polynomial_p"):
        yield Case("polynomial", lambda x: jnp.polyval(jnp.ones(3), x), (floats(*VECTOR),), 1e-5)


FLAT_CASES = (*unary_cases(), *arithmetic_cases(), *choice_cases(), *special_cases())
CASES = (
    *(replace(case, flat="repeated" not in case.label) for case in FLAT_CASES),
    *(replace(case, flat=True) for case in conversion_cases()),
    *identity_cases(),
)
