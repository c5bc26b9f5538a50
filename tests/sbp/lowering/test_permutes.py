"""A permute runs over the axes along which blocks move, as an audit of the program reads them."""

import itertools

import numpy as np
import pytest

from sbp.algebra import ArrayType
from sbp.boxing import BoxingTable
from sbp.lowering.moves import permutation, permuted_axes


@pytest.mark.parametrize("sizes", [(2, 4), (4, 2), (2, 2, 2), (2, 3, 2), (2, 1, 4)])
@pytest.mark.parametrize("shape", [(48,), (48, 48)])
def test_blocks_move_along_every_axis_of_a_permute(shape, sizes):
    table = BoxingTable(ArrayType(shape, np.dtype("float32")), sizes)
    steps = [step for step in table.steps() if step.kind == "collective-permute"]
    assert steps
    for step in steps:
        axes = permuted_axes(step)
        pairs, _ = permutation(axes, step.src, step.dst, len(shape), sizes)
        places = list(itertools.product(*(range(sizes[axis]) for axis in axes)))
        moved = {
            axis
            for sender, receiver in pairs
            for axis, old, new in zip(axes, places[sender], places[receiver], strict=True)
            if old != new
        }
        assert moved == set(step.axes), step
