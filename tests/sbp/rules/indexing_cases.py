"""Cases of gather and scatter: all modes, indices out of range, negative, duplicate, narrow."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sbp._compat import open_jaxpr
from tests.oracle import Case
from tests.values import bools, complexes, floats, ints, whole_floats

MODES = ("clip", "fill", "promise_in_bounds")
ROWS = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))


def rows(mode, **options):
    """Rows of a table by number; `promise_in_bounds` gets numbers in range only."""
    return lambda table, index: lax.gather(
        table, index, ROWS, (1, table.shape[1]), mode=mode, **options
    )


def wild(*shape, dtype="int32"):
    """Row numbers of 8 rows, half of them out of range."""
    low = 0 if dtype.startswith("u") else -9
    return ints(*shape, dtype=dtype, low=low, high=20)


def inside(*shape):
    """Row numbers in range."""
    return ints(*shape, low=0, high=7)


def gather_cases():
    """Look-ups in a table."""
    table = floats(8, 2)
    for mode in MODES:
        index = inside(4, 1) if mode == "promise_in_bounds" else wild(4, 1)
        yield Case("gather", rows(mode), (table, index), label=mode)
        yield Case("gather", rows(mode), (ints(8, 2), index), label=f"{mode} int")
        yield Case("gather", rows(mode), (bools(8, 2), index), label=f"{mode} bool")
    for value in (False, True):
        fn = rows("fill", fill_value=value)
        yield Case("gather", fn, (bools(8, 2), wild(4, 1)), label=f"fill bool {value}")
    yield Case("gather", rows("fill", fill_value=7.0), (floats(8, 2), wild(4, 1)), label="fill 7")
    yield Case("gather", rows("clip"), (complexes(8, 2), wild(4, 1)), label="complex")
    for dtype in ("uint8", "int8", "uint32"):
        everything = ints(4, 1, dtype=dtype)
        for mode in ("clip", "fill"):
            yield Case("gather", rows(mode), (table, everything), label=f"{mode} {dtype}")
    blocks = ints(4, 1, dtype="uint8")  # a block may begin beyond the largest index
    yield Case("gather", rows("fill"), (floats(512, 1), blocks), label="uint8 of 512")
    large = ints(4, 1, dtype="int32")
    yield Case("gather", rows("fill"), (table, large), label="extremes")
    yield Case("gather", rows("clip"), (table, large), label="clip extremes")
    yield from windows_and_batches()


def windows_and_batches():
    """Gathers with several indexed dims, windows, batching dims."""
    two = lax.GatherDimensionNumbers((), (0, 1), (0, 1))
    points = lambda x, i: lax.gather(x, i, two, (1, 1), mode="fill")  # noqa: E731
    yield Case("gather", points, (floats(8, 4), wild(4, 2)), label="points")
    swapped = lax.GatherDimensionNumbers((), (0, 1), (1, 0))
    points = lambda x, i: lax.gather(x, i, swapped, (1, 1), mode="clip")  # noqa: E731
    yield Case("gather", points, (floats(8, 4), wild(4, 2)), label="points swapped")
    window = lax.GatherDimensionNumbers((0, 2), (), (0, 1))
    patches = lambda x, i: lax.gather(x, i, window, (2, 4), mode="clip")  # noqa: E731
    yield Case("gather", patches, (floats(8, 4), wild(4, 2)), label="windows")
    patches = lambda x, i: lax.gather(x, i, window, (2, 4), mode="fill")  # noqa: E731
    small = ints(4, 2, low=-1, high=1)
    yield Case("gather", patches, (floats(8, 4), small), label="windows filled")
    mixed = lax.GatherDimensionNumbers((1,), (0,), (0, 1))
    part = lambda x, i: lax.gather(x, i, mixed, (1, 2), mode="clip")  # noqa: E731
    yield Case("gather", part, (floats(8, 4), wild(4, 2)), label="row and window")
    along = lambda x, i: jnp.take_along_axis(x, i, 1)  # noqa: E731
    yield Case("gather", along, (floats(4, 8), wild(4, 2)), label="along axis")
    batch = lax.GatherDimensionNumbers((), (1,), (1,), (0,), (1,))
    turned = lambda x, i: lax.gather(x, i, batch, (1, 1), mode="clip")  # noqa: E731
    yield Case("gather", turned, (floats(4, 8), wild(2, 4, 1)), label="batching dim last")
    yield Case("gather", rows("fill"), (floats(8, 0), wild(4, 1)), label="empty slices")
    yield Case("gather", rows("fill"), (floats(8, 2), wild(0, 1)), label="no indices")


SCATTER_ROWS = lax.ScatterDimensionNumbers(
    update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
)
SCATTERS = {
    "scatter-add": lax.scatter_add, "scatter-sub": lax.scatter_sub, "scatter-mul": lax.scatter_mul,
    "scatter-min": lax.scatter_min, "scatter-max": lax.scatter_max,
}  # fmt: skip


# What is applied takes an element and an update that it does not use.
SINE = open_jaxpr(jax.make_jaxpr(lambda x, _: lax.sin(x))(0.0, 0.0))[0]


def put_rows(operation, mode, **options):
    """Rows of a table combined with updates by number."""
    return functools.partial(operation, dimension_numbers=SCATTER_ROWS, mode=mode, **options)


def scatter_cases():
    """Updates of a table; duplicate numbers in all that combine."""
    for name, operation in SCATTERS.items():
        for mode in MODES if name == "scatter-add" else ("fill",):
            index = inside(4, 1) if mode == "promise_in_bounds" else wild(4, 1)
            fn = put_rows(operation, mode)
            yield Case(name, fn, (whole_floats(8, 2), index, whole_floats(4, 2)), label=mode)
        yield Case(name, fn, (ints(8, 2), index, ints(4, 2)), label="int")
        along = lambda x, i, u, op=operation: op(x, i, u, BATCHED, mode="clip")  # noqa: E731
        inputs = (whole_floats(4, 8), wild(4, 2, 1), whole_floats(4, 2))
        yield Case(name, along, inputs, label="batching dim")
    for dtype in ("int32", "uint8", "int8", "uint32"):
        for mode in ("clip", "fill"):
            everything = ints(4, 1, dtype=dtype)
            inputs = (whole_floats(8, 2), everything, whole_floats(4, 2))
            fn = put_rows(lax.scatter_add, mode)
            yield Case("scatter-add", fn, inputs, label=f"{mode} {dtype} extremes")
    inputs = (whole_floats(512, 1), ints(4, 1, dtype="uint8"), whole_floats(4, 1))
    yield Case("scatter-add", put_rows(lax.scatter_add, "fill"), inputs, label="uint8 of 512")
    window = lax.ScatterDimensionNumbers((0, 2), (), (0, 1))
    for mode in ("clip", "fill"):
        fn = functools.partial(lax.scatter_add, dimension_numbers=window, mode=mode)
        inputs = (whole_floats(8, 4), wild(4, 2), whole_floats(2, 4, 4))
        yield Case("scatter-add", fn, inputs, label=f"windows {mode}")
    mixed = lax.ScatterDimensionNumbers((1,), (0,), (0, 1))
    for mode in ("clip", "fill"):
        fn = functools.partial(lax.scatter_add, dimension_numbers=mixed, mode=mode)
        inputs = (whole_floats(8, 4), ints(4, 2, low=-3, high=9), whole_floats(4, 2))
        yield Case("scatter-add", fn, inputs, label=f"row and window {mode}")


BATCHED = lax.ScatterDimensionNumbers((), (1,), (1,), (0,), (0,))


def distinct(*shape):
    """Row numbers that differ, some of them out of range."""
    return lambda rng, tame: rng.permutation(np.arange(-3, 12))[: shape[0]].astype("int32")[:, None]


def overwrite_cases():
    """Updates that replace."""
    for mode in ("fill", "promise_in_bounds"):
        fn = put_rows(lax.scatter, mode, unique_indices=True)
        inputs = (floats(8, 2), distinct(4, 1), floats(4, 2))
        yield Case("scatter", fn, inputs, label=f"unique {mode}")
    fn = put_rows(lax.scatter, "fill")
    yield Case("scatter", fn, (floats(8, 2), distinct(4, 1), floats(4, 2)), label="duplicates")
    yield Case("scatter", fn, (bools(8, 2), wild(1, 1), bools(1, 2)), label="single bool")
    for mode in ("fill", "clip"):
        applied = put_rows(
            lax.scatter_p.bind, lax.GatherScatterMode.from_any(mode), update_jaxpr=SINE,
            update_consts=(), indices_are_sorted=False, unique_indices=True,
        )  # fmt: skip
        inputs = (floats(8, 2), distinct(4, 1), floats(4, 2))
        yield Case("scatter", applied, inputs, label=f"function {mode}")
    clip = put_rows(lax.scatter, "clip")
    yield Case("scatter", clip, (floats(8, 2), wild(1, 1), floats(1, 2)), label="single clip")


CASES = (*gather_cases(), *scatter_cases(), *overwrite_cases())
