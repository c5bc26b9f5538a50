"""`pin`: words for a value inside a function.

Comes in: an array in a user's function. Goes out: the same array; while sbp traces the function the
plan keeps the words, under plain `jax.jit` with a mesh set they become a sharding constraint.
"""

from typing import Any

import jax
from jax.sharding import AxisType, PartitionSpec

from sbp import _compat
from sbp.algebra import ArrayType, NdSbp, Partial, Split, Word, format_type
from sbp.api.binding import check_array
from sbp.errors import SignatureError
from sbp.specs import from_partition_spec, spec_of
from sbp.tracebacks import concise
from sbp.tracing import PIN, array_type


@concise
def pin(x: Any, words: NdSbp | str | None = None, /, **by_axis: Word | str) -> Any:
    """Keeps the words of a value on the axes that are named; other axes stay free.

    Args:
        x: An array in a function.
        words: Words as `NdSbp` or text.
        **by_axis: Words by axis name: `pin(x, dp=sbp.S(0))`.

    Returns:
        The array. Outside a plan and without a mesh this is the identity.

    Raises:
        SignatureError: A dim does not exist, or the words are none.
        SbpError: It is no array.
    """
    check_array(
        x, "pin", "jax.tree.map(lambda x: sbp.pin(x, words), tree) for the leaves of a tree"
    )
    if not isinstance(words, NdSbp | str | None):
        raise SignatureError(
            f"sbp.pin was given {words!r}, which is not words",
            where=_compat.current_line(),
            why="Words are text or NdSbp.",
            how=["sbp.pin(x, 'dp: S(0)')", "sbp.pin(x, dp=sbp.S(0))"],
        )
    asked = NdSbp.parse(words) if isinstance(words, str) else (words or NdSbp())
    named = {
        axis: NdSbp.parse(f"{axis}: {word}")[axis] if isinstance(word, str) else word
        for axis, word in by_axis.items()
    }
    kind = array_type(x)
    request = NdSbp({axis: _counted(w, kind, axis) for axis, w in NdSbp(asked, **named).items()})
    if not request:
        return x
    pinned: Any = PIN.bind(x, words=request)
    mesh = _compat.current_abstract_mesh()
    return pinned if mesh.empty else constrain(pinned, request, mesh)


def _counted(word: Word, array: ArrayType, axis: str) -> Word:
    if not isinstance(word, Split):
        return word
    ndim = array.ndim
    if not -ndim <= word.dim < ndim:
        raise SignatureError(
            f"pin '{axis}: {word}' splits a dim that does not exist",
            where=_compat.current_line(),
            why=f"{format_type(array)} has {ndim} dims"
            + (f", numbered 0 to {ndim - 1}." if ndim else "."),
            how=f"pin '{axis}: S({ndim - 1})'" if ndim else f"pin '{axis}: B'",
        )
    return Split(word.dim % ndim)


def constrain(x: Any, words: NdSbp, mesh: Any) -> Any:
    """Words under plain jax: a reshard on Explicit axes, a constraint on Auto ones."""
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    if any(isinstance(word, Partial) for word in words.values()):
        return x
    ndim = len(jax.typeof(x).shape)
    known = {axis: word for axis, word in words.items() if axis in kinds}
    if explicit := [axis for axis in known if kinds[axis] == AxisType.Explicit]:
        # A type states all Explicit axes: those that are not pinned keep what they have.
        now = from_partition_spec(jax.typeof(x).sharding.spec, mesh, ndim)
        wanted = NdSbp({**now, **{axis: known[axis] for axis in explicit}})
        x = jax.sharding.reshard(x, spec_of(mesh.axis_names, wanted.on(mesh.axis_names), ndim))
    if auto := [axis for axis in mesh.axis_names if axis in known and axis not in explicit]:
        spec = spec_of(auto, tuple(known[axis] for axis in auto), ndim)
        # Axes that are not pinned stay XLA's choice.
        dims = [PartitionSpec.UNCONSTRAINED if entry is None else entry for entry in spec]
        x = jax.lax.with_sharding_constraint(x, PartitionSpec(*dims))
    return x
