"""Words and jax's shardings: the same fact in two languages.

Comes in: `NdSbp` and a mesh, or a `PartitionSpec`. Goes out: the other one. Split is an axis in an
entry, Broadcast an absent axis, Partial an `unreduced` axis.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from sbp.algebra import B, NdSbp, P, Partial, Split, Word, Words
from sbp.errors import SignatureError


def partition_spec(ndsbp: NdSbp | str, ndim: int) -> PartitionSpec:
    """The `PartitionSpec` of some words.

    Args:
        ndsbp: Words, or their text; several axes on one dim nest in the order in which they stand
            here, which must be the order of the mesh.
        ndim: Number of dims of the array.

    Raises:
        SignatureError: A dim does not exist, a word is P.max or P.min, which jax cannot say, or an
            argument is not what it should be.
    """
    words = _as_words(ndsbp)
    _check_num_dims(ndim)
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
            not have, or nests axes in another order than the mesh; or an argument is none of these.
    """
    names = axis_names(mesh)
    _check_num_dims(ndim)
    if not isinstance(spec, PartitionSpec):
        raise SignatureError(
            f"{spec!r} is not a PartitionSpec",
            why="It is an entry for each dim: None, the name of an axis, or a tuple of names.",
            how="jax.sharding.PartitionSpec('dp', None)",
        )
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
        SignatureError: See `partition_spec`; or a word names an axis the mesh does not have, or it
            is no mesh.
    """
    names, words = axis_names(mesh), _as_words(ndsbp)
    for axis in words:
        _known(axis, names, partition_spec(words, ndim))
    _check_num_dims(ndim)
    return NamedSharding(mesh, spec_of(names, words.on(names), ndim))


def axis_names(mesh: Any) -> tuple[str, ...]:
    """Names of the axes of a jax mesh.

    Raises:
        SignatureError: It is no mesh.
    """
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise SignatureError(
            f"mesh={mesh!r} is not a mesh",
            why="A sharding is on a jax.sharding.Mesh or AbstractMesh, whose axes words name.",
            how=["flowjax.make_mesh('dp=2,tp=4')", "jax.make_mesh((2, 4), ('dp', 'tp'))"],
        )
    return tuple(mesh.axis_names)


def _as_words(given: Any) -> NdSbp:
    words = NdSbp.parse(given) if isinstance(given, str) else given
    if not isinstance(words, NdSbp):
        raise SignatureError(
            f"{given!r} is not words",
            why="Words are text or NdSbp, a word for each axis that they name.",
            how="write for example 'dp: S(0)'",
        )
    return words


def _check_num_dims(ndim: Any) -> None:
    if not isinstance(ndim, int | np.integer) or isinstance(ndim, bool) or ndim < 0:
        raise SignatureError(
            f"ndim={ndim!r} is not a number of dims",
            why="It is how many dims the array has.",
            how="array.ndim",
        )
