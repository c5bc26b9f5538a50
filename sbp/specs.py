"""Words and jax's shardings: the same fact in two languages.

Comes in: `NdSbp` and a mesh, or a `PartitionSpec`. Goes out: the other one. Split is an axis in an
entry, Broadcast an absent axis, Partial an `unreduced` axis.
"""

from collections.abc import Sequence
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from sbp.algebra import B, NdSbp, P, Partial, Split, Word, Words
from sbp.errors import SignatureError


def partition_spec(ndsbp: NdSbp | str, ndim: int) -> PartitionSpec:
    """The `PartitionSpec` of some words.

    Args:
        ndsbp: Words, or their text; several axes on one dim nest in the order in which they stand
            here, which must be the order of the mesh.
        ndim: Number of dims of the array.

    Raises:
        SignatureError: A dim does not exist, or a word is P.max or P.min, which jax cannot say.
    """
    words = NdSbp.parse(ndsbp) if isinstance(ndsbp, str) else ndsbp
    return spec_of(tuple(words), tuple(words.values()), ndim)


def spec_of(axes: Sequence[str], words: Words, ndim: int) -> PartitionSpec:
    """The `PartitionSpec` of words in mesh order; see `partition_spec`."""
    entries: list[list[str]] = [[] for _ in range(ndim)]
    unreduced: set[str] = set()
    for axis, word in zip(axes, words, strict=True):
        match word:
            case Split(dim):
                if not -ndim <= dim < ndim:
                    raise SignatureError(
                        f"'{axis}: {word}' splits a dim that does not exist",
                        why=f"The array has {ndim} dims.",
                        how=f"name a dim from 0 to {ndim - 1}" if ndim else f"'{axis}: B'",
                    )
                entries[dim].append(axis)
            case Partial("sum"):
                unreduced.add(axis)
            case Partial():
                raise SignatureError(
                    f"'{axis}: {word}' cannot be written as a PartitionSpec",
                    why="jax's unreduced arrays are sums; maxima and minima cannot cross the "
                    "boundary of a program.",
                    how=f"ask for '{axis}: B'",
                )
            case _:
                pass
    dims = [tuple(e) if len(e) > 1 else (e[0] if e else None) for e in entries]
    return (
        PartitionSpec(*dims, unreduced=frozenset(unreduced)) if unreduced else PartitionSpec(*dims)
    )


def num_dims(words: NdSbp) -> int:
    """The fewest dims that an array with these words has."""
    return 1 + max((word.dim for word in words.values() if isinstance(word, Split)), default=-1)


def from_partition_spec(spec: PartitionSpec, mesh: Any, ndim: int) -> NdSbp:
    """The words of a `PartitionSpec`: a full statement, axes it does not name are B.

    Args:
        spec: The specification.
        mesh: Mesh whose axes the words are for.
        ndim: Number of dims of the array.

    Raises:
        SignatureError: The spec is longer than the array has dims, names an axis that the mesh does
            not have, or nests axes in another order than the mesh.
    """
    names = tuple(mesh.axis_names)
    if len(spec) > ndim:
        raise SignatureError(
            f"{spec} has {len(spec)} entries for an array of {ndim} dims",
            how=f"give at most {ndim} entries",
        )
    words: dict[str, Word] = dict.fromkeys(names, B)
    for axis in getattr(spec, "unreduced", ()):
        _known(axis, names, spec)
        words[axis] = P
    taken: set[str] = set(getattr(spec, "unreduced", ()))
    for dim, entry in enumerate(spec.partitions):
        axes = entry if isinstance(entry, tuple) else (entry,)
        if entry is PartitionSpec.UNCONSTRAINED:
            raise SignatureError(
                f"{spec} leaves dim {dim} unconstrained",
                why="A PartitionSpec states every axis: those that it does not name are B.",
                how="write words as text, which leaves axes free: 'dp: S(0)'",
            )
        named = [axis for axis in axes if isinstance(axis, str)]
        for axis in named:
            _known(axis, names, spec)
            if axis in taken:
                raise SignatureError(
                    f"{spec} names the axis {axis!r} twice",
                    why="An array has one word on each axis.",
                    how="name each axis once",
                )
            taken.add(axis)
            words[axis] = Split(dim)
        if named != sorted(named, key=names.index):
            ordered = tuple(sorted(named, key=names.index))
            raise SignatureError(
                f"{spec} nests {tuple(named)} on dim {dim}, the mesh nests {ordered}",
                why="Words have no order of their own: where several axes split one dim, the axis "
                "that stands first in the mesh is the outer one.",
                how=[f"write {ordered} in the spec", f"make the mesh with axes {tuple(named)}"],
            )
    return NdSbp(words)


def _known(axis: str, names: Sequence[str], spec: PartitionSpec) -> None:
    if axis not in names:
        raise SignatureError(
            f"{spec} names the axis {axis!r}, which the mesh does not have",
            why=f"The mesh has {', '.join(names)}.",
            how="use one of the mesh's axes",
        )


def named_sharding(mesh: Any, ndsbp: NdSbp | str, ndim: int) -> NamedSharding:
    """The sharding of an array with some words on a mesh.

    Args:
        mesh: A jax mesh.
        ndsbp: Words, or their text; an axis that is not named is B.
        ndim: Number of dims of the array.

    Raises:
        SignatureError: See `partition_spec`; or a word names an axis the mesh does not have.
    """
    words = NdSbp.parse(ndsbp) if isinstance(ndsbp, str) else ndsbp
    for axis in words:
        _known(axis, mesh.axis_names, partition_spec(words, ndim))
    return NamedSharding(mesh, spec_of(mesh.axis_names, words.on(mesh.axis_names), ndim))
