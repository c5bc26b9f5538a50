"""Where a step is called: inside which function, under which settings, on which mesh.

Comes in: a step's name and its mesh. Goes out: the mesh to run on, or an error that says why the
step cannot run there.
"""

from typing import Any

import jax
from jax.sharding import AxisType, Mesh

from sbp._compat import current_abstract_mesh, current_line, is_jit_disabled
from sbp.errors import PlanError, SbpError
from sbp.tracing import function_being_traced


def check_caller(name: str) -> None:
    """Refuses a call from where a step's program cannot run as it was planned."""
    if outer := function_being_traced():
        raise SbpError(
            f"{outer} calls {name}, which is a step itself",
            where=current_line(),
            why="A parallelized function is written for one device; its own plan covers all that "
            "it calls.",
            how="call the plain function: step.__wrapped__(...)",
        )
    if is_jit_disabled():
        raise SbpError(
            f"{name} is called under jax.disable_jit",
            why="A step is one compiled program and has no other way to run.",
            how=["leave the context", "call the plain function: step.__wrapped__(...)"],
        )


def mesh_of_call(name: str, mesh: Any, partial: bool) -> Mesh:
    """The mesh to run on: the user's devices, with the axis types of the context.

    Args:
        name: The step's name.
        mesh: The mesh that it was made for.
        partial: Whether it takes or returns partial arrays.

    Raises:
        PlanError: There are no devices, or the context has another mesh.
    """
    if isinstance(mesh, jax.sharding.AbstractMesh):
        raise PlanError(
            f"{name} has an abstract mesh",
            why="An AbstractMesh has no devices to run on.",
            how="use step.plan(...), or give a mesh of devices: flowjax.make_mesh(...)",
        )
    context = current_abstract_mesh()
    if not context.empty:
        _check_context(name, mesh, context, partial)
        types = context.axis_types
    else:
        types = mesh.axis_types if partial else (AxisType.Auto,) * len(mesh.axis_names)
    return Mesh(mesh.devices, mesh.axis_names, axis_types=types)


def _check_context(name: str, mesh: Mesh, context: Any, partial: bool) -> None:
    ours, theirs = (
        ", ".join(f"{axis}={size}" for axis, size in m.shape.items()) for m in (mesh, context)
    )
    if ours != theirs:
        raise PlanError(
            f"{name} is for a mesh of {ours}, jax.set_mesh has set one of {theirs}",
            why="Arrays of one program lie on one mesh.",
            how=["leave the context", "parallelize for the mesh of the context"],
        )
    if AxisType.Manual in context.axis_types:
        raise PlanError(
            f"{name} is called inside a jax.shard_map",
            why="A step takes whole arrays and has all axes of the mesh to itself.",
            how="call it outside the shard_map",
        )
    if partial and AxisType.Auto in context.axis_types:
        raise PlanError(
            f"{name} has partial arrays at its ends, jax.set_mesh has set a mesh with Auto axes",
            why="jax's unreduced arrays exist on Explicit axes only.",
            how=["leave the context", "set the mesh with axis_types=AxisType.Explicit"],
        )
