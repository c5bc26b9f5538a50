"""Cases of dot_general and convolution."""

import functools

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.oracle import Case
from tests.values import complexes, ints, tame, whole_floats


def dot(contract, batch=((), ()), **options):
    """dot_general with dimension numbers."""
    return functools.partial(lax.dot_general, dimension_numbers=(contract, batch), **options)


MATMUL = dot(((1,), (0,)))


def dot_cases():
    """Matrix products."""
    left, right = whole_floats(4, 8), whole_floats(8, 4)
    yield Case("dot_general", MATMUL, (left, right))
    yield Case("dot_general", MATMUL, (ints(4, 8), ints(8, 4)), label="int")
    batched = dot(((2, 3), (1, 2)), ((0,), (0,)))
    inputs = (whole_floats(4, 1, 2, 4), whole_floats(4, 2, 4, 2))
    yield Case("dot_general", batched, inputs, label="batched")
    yield Case(
        "dot_general", dot(((1,), (1,))), (complexes(4, 4), complexes(2, 4)), label="complex"
    )
    yield Case("dot_general", MATMUL, (whole_floats(4, 0), whole_floats(0, 4)), label="empty")
    yield Case("dot_general", dot(((0,), (0,))), (whole_floats(4), whole_floats(4)), label="inner")
    wide = dot(((1,), (0,)), preferred_element_type=jnp.int32)
    small = (ints(4, 4, dtype="int8"), ints(4, 4, dtype="int8"))
    yield Case("dot_general", wide, small, label="int8 to int32")
    wide = dot(((1,), (0,)), preferred_element_type=jnp.float32)
    half = whole_floats(4, 4, dtype=jnp.bfloat16)
    yield Case("dot_general", wide, (half, half), label="bf16 to f32")
    narrow = dot(((1,), (0,)), preferred_element_type=jnp.bfloat16)
    yield Case("dot_general", narrow, (left, right), label="f32 to bf16")


def convolution(spec, **options):
    """conv_general_dilated."""
    return functools.partial(lax.conv_general_dilated, dimension_numbers=spec, **options)


NCHW = ("NCHW", "OIHW", "NCHW")
NHWC = ("NHWC", "HWIO", "NHWC")


def conv_cases():
    """Convolutions."""
    name, one = "conv_general_dilated", {"window_strides": (1, 1)}
    plain = convolution(NCHW, padding="SAME", **one)
    yield Case(name, plain, (whole_floats(4, 4, 3, 3), whole_floats(4, 4, 2, 2)))
    last = convolution(NHWC, padding=((0, 0), (1, 0)), **one)
    inputs = (whole_floats(2, 4, 3, 4), whole_floats(1, 2, 4, 4))
    yield Case(name, last, inputs, label="channels last, window 1 on a dim")
    strided = convolution(
        NCHW, padding=((0, 0), (0, 0)), window_strides=(1, 2), lhs_dilation=(2, 1)
    )
    yield Case(name, strided, (whole_floats(2, 2, 4, 4), whole_floats(2, 2, 1, 1)), label="dilated")
    groups = convolution(NCHW, padding="SAME", feature_group_count=4, **one)
    yield Case(name, groups, (whole_floats(2, 8, 3, 3), whole_floats(4, 2, 2, 2)), label="groups")
    depth = convolution(NCHW, padding="SAME", feature_group_count=4, **one)
    inputs = (whole_floats(2, 4, 3, 3), whole_floats(8, 1, 2, 2))
    yield Case(name, depth, inputs, label="depthwise")
    two = convolution(NCHW, padding="SAME", feature_group_count=2, **one)
    yield Case(name, two, (whole_floats(2, 8, 3, 3), whole_floats(8, 4, 1, 1)), label="two groups")
    batch = convolution(NCHW, padding="VALID", batch_group_count=4, **one)
    # XLA on CPU multiplies the other groups by zero, so that one NaN makes every result NaN.
    inputs = (tame(whole_floats(8, 2, 3, 3)), tame(whole_floats(4, 2, 2, 2)))
    yield Case(name, batch, inputs, label="batch groups")
    wide = convolution(NCHW, padding="VALID", preferred_element_type=np.dtype("float32"), **one)
    half = functools.partial(whole_floats, dtype=jnp.bfloat16)
    yield Case(name, wide, (half(2, 2, 2, 2), half(2, 2, 2, 2)), label="bf16 to f32")


CASES = (*dot_cases(), *conv_cases())
