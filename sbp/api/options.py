"""The options of `parallelize`, checked.

Comes in: keyword arguments. Goes out: `Options`. An option that cannot be honoured is an error.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from sbp import hardware as machines
from sbp.cost_model import CostModel
from sbp.errors import PlanError, SbpError
from sbp.graph import Mesh
from sbp.hardware import Cluster
from sbp.plan import Conditions, Plan

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Options:
    """What a step is to be.

    Attributes:
        mesh: The user's mesh, concrete or abstract.
        in_sbp: Words of arguments, as given.
        out_sbp: Words of results, as given.
        donate: Positions of donated arguments.
        static: Positions of static arguments.
        tie: `auto`, None, or result path -> argument path.
        conditions: What a plan must meet.
        costs: Prices.
        lowering: `manual` or `auto`.
        saved: A plan to run as it is.
    """

    mesh: Any
    in_sbp: Any
    out_sbp: Any
    donate: tuple[int, ...]
    static: tuple[int, ...]
    tie: Any
    conditions: Conditions
    costs: CostModel
    lowering: str
    saved: Plan | None

    @property
    def axes(self) -> Mesh:
        """Names and sizes of the mesh axes."""
        return Mesh(tuple(self.mesh.axis_names), self.costs.sizes)


def choose(name: str, value: Any, allowed: Sequence[str]) -> str:
    """Checks an option that has a few values."""
    if value not in allowed:
        raise SbpError(
            f"{name}={value!r} is not an option",
            how=[f"{name}={option!r}" for option in allowed],
        )
    return value


def parse_nbytes(name: str, value: int | str | None) -> int | None:
    """A size in bytes: a number, or text such as `80GiB`."""
    if value is None or isinstance(value, int):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", str(value))
    if match is None or match.group(2).upper() not in _UNITS:
        raise SbpError(
            f"{name}={value!r} is not a size", how=f"{name}='80GiB' or a number of bytes"
        )
    return int(float(match.group(1)) * _UNITS[match.group(2).upper()])


def find_cluster(hardware: Cluster | str | None, mesh: Any) -> Cluster:
    """The machine to price for; that of the mesh's devices if none is named."""
    if isinstance(hardware, Cluster):
        return hardware
    if hardware is None:
        device = None if isinstance(mesh, jax.sharding.AbstractMesh) else mesh.devices.flat[0]
        return (
            machines.CPU if device is not None and device.platform == "cpu" else machines.H100_NODE
        )
    if hardware not in machines.BY_NAME:
        raise SbpError(
            f"hardware={hardware!r} is not known",
            how=[*(f"hardware={name!r}" for name in machines.BY_NAME), "pass an sbp.Cluster"],
        )
    return machines.BY_NAME[hardware]


def mesh_sizes(mesh: Any) -> tuple[int, ...]:
    """Sizes of the axes of a jax mesh, concrete or abstract."""
    if not isinstance(mesh, jax.sharding.Mesh | jax.sharding.AbstractMesh):
        raise PlanError(
            f"mesh={mesh!r} is not a mesh",
            how=["flowjax.make_mesh('dp=2,tp=4')", "jax.make_mesh((2, 4), ('dp', 'tp'))"],
        )
    return tuple(int(mesh.shape[name]) for name in mesh.axis_names)


def positions(
    fn: Callable[..., Any], argnums: int | Sequence[int], argnames: str | Sequence[str], what: str
) -> tuple[int, ...]:
    """Positions of arguments given by number or name."""
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    names = (argnames,) if isinstance(argnames, str) else tuple(argnames)
    known = parameter_names(fn)
    for name in names:
        if name not in known:
            raise SbpError(
                f"{what}_argnames names {name!r}, which {_name(fn)} does not take",
                why=f"Its arguments are {', '.join(known)}.",
                how="name one of its arguments",
            )
    wrong = next((n for n in numbers if not isinstance(n, int) or n < 0), None)
    if wrong is not None:
        raise SbpError(f"{what}_argnums has {wrong!r}", how="count arguments from 0")
    return tuple(dict.fromkeys((*numbers, *map(known.index, names))))


def parameter_names(fn: Callable[..., Any]) -> list[str]:
    """Names of the positional parameters of a function, as far as it tells them."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in kinds]


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def dtype_name(value: Any) -> str | None:
    """The name of a dtype given in any of jax's forms."""
    return None if value is None else str(np.dtype(value))
