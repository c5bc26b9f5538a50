"""What XLA's kernels hold beside the operands and the result that a program knows of.

Comes in: an equation, or a collective, and what one device holds of its arrays. Goes out: `Extra`,
or whether arrays are copied. Two backends differ: the CPU's calls libraries that read memory in one
layout; the GPU's splits the contraction of a product that is too small to fill the device, and adds
the parts later.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp

from sbp.algebra import ArrayType, Split, Word, Words, local_type
from sbp.boxing import Step
from sbp.program import Equation

NUM_CORES = 132
"""Streaming multiprocessors of an H100, or of an H200."""
TILE = 128
SECONDS_PER_FLOP, SECONDS_PER_BYTE = 100.0, 0.194136
ADD_SECONDS_PER_BYTE, ADD_SECONDS = 193.1384, 4.36e7
"""XLA's own prices, in a unit of its own; of Hopper, in `splitk_rewriter.cc`."""
MAX_SPLITS = 2048


@dataclass(frozen=True, slots=True)
class Extra:
    """What a kernel holds more.

    Attributes:
        copied: Positions of operands that are copied into another layout first.
        raw_nbytes: Bytes of what the kernel writes, if the result is made of that by another.
    """

    copied: tuple[int, ...] = ()
    raw_nbytes: int = 0


NOTHING = Extra()


def is_library_call(equation: Equation) -> bool:
    """Whether XLA's CPU backend calls a library for an equation."""
    name = equation.name
    return name in ("dot_general", "conv_general_dilated") or name.startswith("reduce_")


def is_relaid(
    step: Step, array: ArrayType, sizes: Sequence[int], *, on_cpu: bool
) -> tuple[bool, bool]:
    """Whether a collective sends a copy of its operand, and what it makes is copied again.

    The dim along which blocks are cut, or joined, must be the outer one in memory. The CPU's
    all-to-all takes blocks, and gives blocks.

    Args:
        step: The collective.
        array: The logical array.
        sizes: Number of devices of each mesh axis.
        on_cpu: Whether for XLA's CPU backend.

    Source:
        XLA's `gpu_layout_assignment.cc` and `cpu_layout_assignment.cc`.
    """
    if step.kind not in ("all-gather", "reduce-scatter", "all-to-all"):
        return False, False

    def is_inner(word: Word, words: Words) -> bool:
        shape = local_type(array, words, sizes).shape
        return isinstance(word, Split) and math.prod(shape[: word.dim]) > 1

    if step.kind == "all-to-all" and on_cpu:
        return True, True
    axis = step.axes[0]
    cuts = step.kind != "all-gather" and is_inner(step.dst[axis], step.src)
    joins = step.kind != "reduce-scatter" and is_inner(step.src[axis], step.dst)
    return cuts, joins


def extra(
    equation: Equation, inputs: Sequence[ArrayType], output: ArrayType, *, on_cpu: bool
) -> Extra:
    """What the kernel of an equation holds more.

    Args:
        equation: The equation.
        inputs: Local operands.
        output: The local result, the first of several.
        on_cpu: Whether for XLA's CPU backend.
    """
    if equation.name == "conv_general_dilated":
        return _of_convolution(equation, output, on_cpu)
    if equation.name == "dot_general":
        return _ordered(equation, inputs) if on_cpu else _split(equation, inputs, output)
    return NOTHING


def _of_convolution(equation: Equation, output: ArrayType, on_cpu: bool) -> Extra:
    """Copies into the layout that the backend's library reads.

    Eigen takes batch, space, feature; space, in feature, out feature. cuDNN takes the other two
    dims around those of space, in any order: it tells the gradient of filters by its windows.

    Source:
        XLA's `conv_canonicalization.cc` and `conv_rewriter.cc`.
    """
    numbers, last = equation.params["dimension_numbers"], output.ndim - 1
    orders = (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec)
    if on_cpu:
        space = tuple(range(1, last))
        image, filters = (0, last, *space), (last, last - 1, *range(last - 1))
        foreign = [order != own for order, own in zip(orders, (image, filters, image), strict=True)]
    else:
        foreign = [{*order[:2]} != {0, last} for order in orders]
    copied = tuple(k for k in (0, 1) if foreign[k])
    return Extra(copied, output.nbytes if foreign[2] else 0)


def _ordered(equation: Equation, inputs: Sequence[ArrayType]) -> Extra:
    """Copies into the order in which a product is one of matrices.

    That is batch, free, contracted on the left and batch, contracted, free on the right. A matrix,
    or a batch of them, is read in either order.
    """
    contracts, batches = equation.params["dimension_numbers"]
    copied = []
    for side, (array, contract, batch) in enumerate(zip(inputs, contracts, batches, strict=True)):
        free = [dim for dim in range(array.ndim) if dim not in contract and dim not in batch]
        order = [*batch, *free, *contract] if side == 0 else [*batch, *contract, *free]
        is_matrix = sorted(batch) == list(range(len(batch))) and len(free) <= 1 >= len(contract)
        if order != sorted(order) and not is_matrix:
            copied.append(side)
    return Extra(tuple(copied))


def _split(equation: Equation, inputs: Sequence[ArrayType], output: ArrayType) -> Extra:
    """The parts of a product whose contraction is split."""
    left, right = inputs
    (contracted, _), (batch, _) = equation.params["dimension_numbers"]
    k = math.prod(left.shape[dim] for dim in contracted)
    count = math.prod(left.shape[dim] for dim in batch)
    if not output.size or not jnp.issubdtype(output.dtype, jnp.floating):
        return NOTHING
    m, n = left.size // (count * k), right.size // (count * k)
    splits = num_splits(count, m, n, k, (left, right, output))
    sums_nbytes = output.size * max(output.dtype.itemsize, 4)
    return Extra(raw_nbytes=splits * sums_nbytes if splits > 1 else 0)


def num_splits(count: int, m: int, n: int, k: int, arrays: Sequence[ArrayType]) -> int:
    """Into how many parts XLA splits the contraction of `count` products of [m, k] and [k, n].

    Args:
        count: Number of products.
        m: Rows.
        n: Columns.
        k: What is contracted.
        arrays: Operands and result, for their dtypes.
    """
    left, right, out = (array.dtype.itemsize for array in arrays)
    sums = max(out, 4)
    rows, columns = min(m, TILE), min(n, TILE)
    tiles = -(-m // TILE) * -(-n // TILE)
    slots = NUM_CORES * TILE * TILE / (rows * columns)

    def price(splits: int) -> float:
        waves = max(1.0, count * splits * tiles / slots)
        flops = 2 * rows * columns * -(-k // splits) * waves
        read = count * k * (m * left + n * right)
        written = count * m * n * (splits * sums if splits > 1 else out)
        seconds = max(flops * SECONDS_PER_FLOP, (read + written) * SECONDS_PER_BYTE)
        if splits == 1:
            return seconds
        added = count * m * n * (splits * sums + out)
        return seconds + ADD_SECONDS + added * ADD_SECONDS_PER_BYTE

    return min((2**power for power in range(MAX_SPLITS.bit_length())), key=price)
