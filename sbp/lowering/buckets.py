"""Several steps as one collective.

Comes in: local arrays with alike steps to make (`Load`). Goes out: the local arrays after them, as
`sbp.lowering.moves` makes them one by one; only the order in which a backend adds floats may be
another. What can share a collective is said by `sbp.plan.ordering.bucket_key`. All-reduces are made
by one `psum`; of any other kind, the blocks for each device are laid end to end, sent at once, and
taken apart again.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from sbp.algebra import ArrayType, Split, Words
from sbp.boxing import Step
from sbp.lowering.moves import part_to_send, run_step
from sbp.plan.ordering import bucket_permutation


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """A local array on its way to other words.

    Attributes:
        x: The local array, in the words before the first of `steps`.
        steps: What is left to do.
        array: The logical array.
    """

    x: jax.Array
    steps: tuple[Step, ...]
    array: ArrayType

    @property
    def step(self) -> Step:
        """What is to be done next."""
        return self.steps[0]


def run_bucket(
    loads: Sequence[Load], axis_names: Sequence[str], sizes: Sequence[int]
) -> list[Load]:
    """Runs the next steps of loads, which have equal keys, as one collective.

    Args:
        loads: At least one. Weakly typed arrays go alone, as they would become strong.
        axis_names: Names of the mesh axes; this runs inside a `shard_map` over all of them.
        sizes: Number of devices of each mesh axis.
    """
    is_reduced = loads[0].step.kind == "all-reduce"
    joint = [load for load in loads if is_reduced or not jax.typeof(load.x).weak_type]
    done: dict[Load, jax.Array] = {}
    if len(joint) > 1:
        done.update(zip(joint, _run_joint(joint, axis_names, tuple(sizes)), strict=True))
    for load in loads:
        if load not in done:
            done[load] = run_step(load.x, load.step, load.array, axis_names, sizes)
    return [Load(done[load], load.steps[1:], load.array) for load in loads]


def _run_joint(
    loads: Sequence[Load], axis_names: Sequence[str], sizes: tuple[int, ...]
) -> list[jax.Array]:
    step, arrays = loads[0].step, [load.x for load in loads]
    names = tuple(axis_names[axis] for axis in step.axes)
    count = math.prod(sizes[axis] for axis in step.axes)
    match step.kind:
        case "all-reduce":
            return list(lax.psum(arrays, names))
        case "all-gather":
            blocks = [x[None] for x in arrays]
            blocks = _send(blocks, lambda x: lax.all_gather(x, names, tiled=True))
            # Taken apart at once: a part that is used late would keep all of them.
            return list(lax.optimization_barrier(_join_all(blocks, loads)))
        case "reduce-scatter":
            blocks = _cut_all(loads, count)
            blocks = _send(blocks, lambda x: lax.psum_scatter(x, names, tiled=True))
            return [x[0] for x in blocks]
        case "all-to-all":
            blocks = _cut_all(loads, count)
            blocks = _send(blocks, lambda x: lax.all_to_all(x, names, 0, 0, tiled=True))
            return _join_all(blocks, loads)
        case "collective-permute":
            axes, pairs = bucket_permutation(step, loads[0].array, sizes)
            names = tuple(axis_names[axis] for axis in axes)
            parts = [part_to_send(o.x, o.step, o.array, axis_names, sizes) for o in loads]
            blocks = _send([x[None] for x in parts], lambda x: lax.ppermute(x, names, pairs))
            return [x[0] for x in blocks]
        case _:
            raise AssertionError(f"a bucket of {step.kind}")


def _send(
    blocks: Sequence[jax.Array], collective: Callable[[jax.Array], jax.Array]
) -> list[jax.Array]:
    """Runs a collective that acts on the leading dim, which is as long in all of the arrays."""
    rows = [x.reshape(len(x), -1) for x in blocks]
    ends = list(itertools.accumulate(row.shape[1] for row in rows))
    columns = jnp.split(collective(jnp.concatenate(rows, axis=1)), ends[:-1], axis=1)
    return [x.reshape(-1, *y.shape[1:]) for x, y in zip(columns, blocks, strict=True)]


def _cut_all(loads: Sequence[Load], count: int) -> list[jax.Array]:
    """Each array as `count` blocks, along a new leading dim, of the dim that it will split."""
    cut = []
    for load in loads:
        dim, shape = _split_dim(load.step.dst, load.step), load.x.shape
        parts = load.x.reshape(*shape[:dim], count, shape[dim] // count, *shape[dim + 1 :])
        cut.append(jnp.moveaxis(parts, dim, 0))
    return cut


def _join_all(blocks: Sequence[jax.Array], loads: Sequence[Load]) -> list[jax.Array]:
    """Each array whose blocks, of the dim that it no longer splits, lie along a leading dim."""
    joined = []
    for x, load in zip(blocks, loads, strict=True):
        dim = _split_dim(load.step.src, load.step)
        shape = x.shape[1:]
        whole = (*shape[:dim], len(x) * shape[dim], *shape[dim + 1 :])
        joined.append(jnp.moveaxis(x, 0, dim).reshape(whole))
    return joined


def _split_dim(words: Words, step: Step) -> int:
    """The dim that words split over the axes of a step."""
    word = words[step.axes[0]]
    assert isinstance(word, Split), (words, step)
    return word.dim
