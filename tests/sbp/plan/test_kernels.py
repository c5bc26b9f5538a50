"""What kernels hold beside their operands and results, against what XLA was seen to compile."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

import sbp
from sbp.algebra import ArrayType, B, P, Split
from sbp.boxing import boxing_path
from sbp.plan.kernels import is_relaid, num_splits

FLOAT = ArrayType((), np.dtype("float32"))


@pytest.mark.parametrize(
    ("count", "m", "n", "k", "splits"),
    # From programs that XLA compiled for H100: the leading dim of a product with split contraction.
    [(1, 128, 64, 64, 4), (1, 64, 64, 128, 8), (1, 256, 16, 32, 1), (1, 32, 64, 256, 8),
     (1, 128, 192, 64, 4), (1, 128, 64, 256, 8), (1, 256, 256, 256, 4), (16, 64, 64, 8, 1)],
)  # fmt: skip
def test_contractions_are_split_as_xla_splits_them(count, m, n, k, splits):
    assert num_splits(count, m, n, k, (FLOAT, FLOAT, FLOAT)) == splits


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def peak(function, *arguments, hardware: str) -> int:
    step = sbp.parallelize(function, mesh=AbstractMesh((1,), ("dp",)), hardware=hardware)
    return step.plan(*arguments).memory_nbytes


def test_parts_of_a_product_are_held_on_gpus_only():
    arguments = floats(128, 64), floats(64, 64)
    ends, whole = 4 * (128 * 64 + 64 * 64), 4 * 128 * 64
    assert peak(jnp.matmul, *arguments, hardware="cpu") == ends + whole
    assert peak(jnp.matmul, *arguments, hardware="h100") == ends + 4 * whole + whole


def convolved(order: str):
    filters = {"NHWC": "HWIO", "NCHW": "OIHW"}[order]

    def run(x, w):
        return jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=(order, filters, order)
        )

    return run


def test_a_cpu_copies_what_is_not_in_its_order_on_both_sides_of_a_convolution():
    image, filters, result = 4 * 2 * 8 * 8 * 4, 4 * 9 * 4 * 6, 4 * 2 * 8 * 8 * 6
    own = peak(convolved("NHWC"), floats(2, 8, 8, 4), floats(3, 3, 4, 6), hardware="cpu")
    foreign = peak(convolved("NCHW"), floats(2, 4, 8, 8), floats(6, 4, 3, 3), hardware="cpu")
    assert own == image + filters + result
    assert foreign == image + filters + max(image + filters + result, 2 * result)


def test_a_gpu_copies_filters_only():
    image, filters, result = 4 * 2 * 8 * 8 * 4, 4 * 9 * 4 * 6, 4 * 2 * 8 * 8 * 6
    found = peak(convolved("NHWC"), floats(2, 8, 8, 4), floats(3, 3, 4, 6), hardware="h100")
    assert found == image + 2 * filters + result


@pytest.mark.parametrize(
    ("left", "right", "numbers", "copied"),
    # Seen in programs that XLA compiled for the CPU.
    [((32, 64), (64, 16), (((1,), (0,)), ((), ())), ()),
     ((64, 32), (16, 64), (((0,), (1,)), ((), ())), ()),
     ((4, 64, 32), (4, 64, 16), (((1,), (1,)), ((0,), (0,))), ()),
     ((4, 8, 64), (16, 64), (((2,), (1,)), ((), ())), ()),
     ((4, 8, 16), (4, 8, 32), (((0, 1), (0, 1)), ((), ())), (0,)),
     ((4, 8, 2, 16), (4, 8, 2, 16), (((3,), (3,)), ((0, 2), (0, 2))), (0, 1))],
)  # fmt: skip
def test_a_cpu_copies_what_is_no_matrix_before_a_product(left, right, numbers, copied):
    def product(x, y):
        return jax.lax.dot_general(x, y, numbers)

    operands = floats(*left), floats(*right)
    sizes = [4 * x.size for x in (*operands, jax.eval_shape(product, *operands))]
    expected = sum(sizes) + sum(sizes[k] for k in copied)
    assert peak(product, *operands, hardware="cpu") == expected


@pytest.mark.parametrize(
    ("src", "dst", "on_cpu", "on_gpu"),
    [(Split(0), B, (False, False), (False, False)), (Split(1), B, (False, True), (False, True)),
     (P, Split(0), (False, False), (False, False)), (P, Split(2), (True, False), (True, False)),
     (Split(0), Split(1), (True, True), (True, False)), (P, B, (False, False), (False, False)),
     (Split(1), Split(2), (True, True), (True, True))],
    ids=str,
)  # fmt: skip
def test_blocks_lie_one_after_the_other_to_be_sent(src, dst, on_cpu, on_gpu):
    array = ArrayType((16, 16, 16), np.dtype("float32"))
    (step,) = boxing_path((src,), (dst,), array, (4,))
    assert is_relaid(step, array, (4,), on_cpu=True) == on_cpu
    assert is_relaid(step, array, (4,), on_cpu=False) == on_gpu


def test_a_dim_of_one_in_front_is_none():
    array = ArrayType((4, 16), np.dtype("float32"))
    (step,) = boxing_path((Split(0), Split(1)), (Split(0), B), array, (4, 4))
    assert is_relaid(step, array, (4, 4), on_cpu=False) == (False, False)
