"""Words of arrays that exist: reading them, changing them, showing the value behind them.

Comes in: global `jax.Array`s. Goes out: their words, the same array in other words, or text.
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding

from sbp import _compat
from sbp.algebra import ArrayType, B, NdSbp, Partial, format_type
from sbp.api.binding import check_array
from sbp.api.options import mesh_sizes
from sbp.api.requests import as_words
from sbp.boxing import Step, boxing_path
from sbp.errors import BoxingError, PlanError, SignatureError
from sbp.graph import Mesh, check_words
from sbp.lowering.moves import run_path
from sbp.specs import from_partition_spec, spec_of
from sbp.tracebacks import concise


@concise
def words(array: Any) -> NdSbp:
    """The words of an array.

    Args:
        array: A `jax.Array`, a struct with a sharding, a numpy array or a number.

    Returns:
        Words on the axes of the array's mesh; none for an array that lies on one device or on the
        host, which is whole.

    Raises:
        SignatureError: The array has a sharding that is not over a named mesh.
        SbpError: It is no array.
    """
    sharding = getattr(array, "sharding", None)
    if sharding is None:
        check_array(array, "words", structs=True)
    if sharding is None or len(sharding.device_set) == 1:
        return NdSbp()
    if not isinstance(sharding, NamedSharding):
        raise SignatureError(
            f"the array has a {type(sharding).__name__}",
            why="Words are by mesh axis, and this sharding has no named axes.",
            how="place the array with a NamedSharding, or with step.place",
        )
    return from_partition_spec(sharding.spec, sharding.mesh, array.ndim)


@concise
def box(array: Any, dst: Any, mesh: Any = None) -> jax.Array:
    """Moves an array into other words, by the cheapest collectives.

    Args:
        array: A global array, or one on a single device or the host (it is whole).
        dst: Words in any form; axes that are not named become B.
        mesh: The mesh to lie on; that of the array if None.

    Raises:
        SignatureError: The words do not fit the array, or are partial where they cannot be.
        BoxingError: There is no mesh.
        PlanError: `mesh` is none, or has no devices.
        SbpError: It is no array.
    """
    check_array(
        array,
        "box",
        "jax.tree.map(lambda x: sbp.box(x, words, mesh), tree) for the leaves of a tree",
    )
    on = getattr(getattr(array, "sharding", None), "mesh", None)
    target = mesh if mesh is not None else on
    if target is None:
        raise BoxingError(
            "the array lies on no mesh and none is given",
            why="Words are by mesh axis.",
            how="box(array, words, mesh=flowjax.make_mesh('dp=8'))",
        )
    kind = ArrayType(tuple(np.shape(array)), jax.typeof(array).dtype)
    sizes = mesh_sizes(target)
    if isinstance(target, AbstractMesh) and not _compat.is_tracer(array):
        raise PlanError(
            "the mesh is abstract",
            where="box",
            why="An AbstractMesh has no devices for an array to lie on.",
            how="give a mesh of devices: flowjax.make_mesh(...)",
        )
    axes = Mesh(tuple(target.axis_names), sizes)
    asked = check_words(as_words(dst, target, kind, "dst"), kind, axes, "dst", what="box")
    wanted = NdSbp.of(axes.axes, asked.on(axes.axes))
    _check_partial(wanted, target)
    sharding = NamedSharding(target, spec_of(axes.axes, wanted.on(axes.axes), kind.ndim))
    if on is None or on != target:
        if any(isinstance(word, Partial) for word in words(array).values()):
            array = box(array, "", on)
        whole = NdSbp(dict.fromkeys(axes.axes, B))
        if any(isinstance(word, Partial) for word in wanted.values()):
            return box(jax.device_put(array, NamedSharding(target, spec_of(
                axes.axes, whole.on(axes.axes), kind.ndim))), wanted, target)  # fmt: skip
        return jax.device_put(array, sharding)
    src = words(array).on(axes.axes)
    path = boxing_path(src, wanted.on(axes.axes), kind, axes.sizes, axes=axes.axes)
    moved = jax.shard_map(
        lambda x: run_path(x, path, kind, axes.axes, axes.sizes),
        mesh=target, in_specs=array.sharding.spec, out_specs=sharding.spec, check_vma=False,
    )  # fmt: skip
    return jax.jit(moved, out_shardings=sharding)(array)


def _check_partial(wanted: NdSbp, mesh: Any) -> None:
    partial = {axis: word for axis, word in wanted.items() if isinstance(word, Partial)}
    explicit = all(kind == AxisType.Explicit for kind in mesh.axis_types)
    if partial and not explicit:
        raise SignatureError(
            f"box to {NdSbp(partial)} on a mesh with Auto axes",
            why="jax's unreduced arrays exist on Explicit axes only.",
            how=["box to B or S", "flowjax.make_mesh(..., axis_types=AxisType.Explicit)"],
        )


@concise
def show(array: Any) -> str:
    """An array's type with its words, and its value; of a partial array the reduced value."""
    check_array(array, "show")
    found = words(array)
    kind = ArrayType(tuple(np.shape(array)), jax.typeof(array).dtype)
    value = box(array, "") if any(isinstance(w, Partial) for w in found.values()) else array
    if jax.numpy.issubdtype(kind.dtype, jax.dtypes.extended):
        value = jax.random.key_data(value)
    text = np.array2string(np.asarray(value), threshold=64, edgeitems=2)
    return f"{format_type(kind, tuple(found), tuple(found.values()))} {found}\n{text}"


@concise
def boxing_steps(src: Any, dst: Any, shape: Any, dtype: Any, mesh: Any) -> tuple[Step, ...]:
    """The steps, with bytes, that turn some words of an array into others.

    Args:
        src: Words of the array, in any form.
        dst: Words it shall have.
        shape: Its shape.
        dtype: Its dtype.
        mesh: The mesh, concrete or abstract.

    Raises:
        SignatureError: The words do not fit.
        BoxingError: The array cannot have them.
        PlanError: `mesh` is none.
    """
    kind = ArrayType(tuple(shape), np.dtype(dtype))
    sizes = mesh_sizes(mesh)
    axes = Mesh(tuple(mesh.axis_names), sizes)
    ends = [
        check_words(as_words(w, mesh, kind, name), kind, axes, name, what=name).on(axes.axes)
        for name, w in (("src", src), ("dst", dst))
    ]
    return boxing_path(ends[0], ends[1], kind, axes.sizes, axes=axes.axes)
