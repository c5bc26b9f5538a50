"""The options of `parallelize`, checked.

Comes in: keyword arguments. Goes out: `Options`. An option that cannot be honoured is an error.
"""

import difflib
import inspect
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from sbp import hardware as machines
from sbp.cost_model import CostModel
from sbp.errors import PlanError, SbpError
from sbp.graph import Mesh
from sbp.hardware import Cluster
from sbp.plan import Conditions, Plan

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}  # fmt: skip
_SIZES = {unit.upper(): nbytes for unit, nbytes in _UNITS.items()}


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
            why=f"The options are {', '.join(map(repr, allowed))}.",
            how=f"{name}={allowed[0]!r} is the default",
        )
    return value


def parse_nbytes(name: str, value: float | str | None) -> int | None:
    """A size in bytes: a number, or text such as `80GiB`."""
    if value is None:
        return None
    text = str(value) + ("B" if isinstance(value, int | float) else "")
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*([A-Za-z]+)\s*", text)
    if match is None or match.group(2).upper() not in _SIZES:
        raise SbpError(
            f"{name}={value!r} is not a size",
            why=f"A size is a number of bytes, or a number and one of {', '.join(_UNITS)}.",
            how=f"{name}='80GiB'",
        )
    return int(float(match.group(1)) * _SIZES[match.group(2).upper()])


def parse_share(name: str, value: Any) -> float:
    """A number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise SbpError(
            f"{name}={value!r} is not a share",
            why="A share is a number from 0 (nothing) to 1 (everything).",
            how=f"{name}=0.5",
        )
    return float(value)


def find_cluster(hardware: Cluster | str | os.PathLike[str] | None, mesh: Any) -> Cluster:
    """The machine to price for: given, by name, from a hardware file, or that of the devices.

    A mesh without devices is priced for H100.
    """
    if isinstance(hardware, Cluster):
        return hardware
    if hardware is None and isinstance(mesh, jax.sharding.AbstractMesh):
        return machines.H100_NODE
    if hardware is None:
        kind = mesh.devices.flat[0].device_kind
        cluster = machines.cluster_of_device(kind)
        if cluster is None:
            raise _unknown_cluster(f"no cluster of {kind!r} is known")
        return cluster
    if isinstance(hardware, str) and hardware in machines.BY_NAME:
        return machines.BY_NAME[hardware]
    if isinstance(hardware, str | os.PathLike) and Path(hardware).suffix == ".json":
        return Cluster.load(Path(hardware))
    raise _unknown_cluster(f"hardware={hardware!r} is not known")


def find_costs(mesh: Any, hardware: Any, objective: Any, overlap: Any) -> CostModel:
    """Prices on a mesh; arguments as of `parallelize`."""
    sizes = mesh_sizes(mesh)
    return CostModel(
        find_cluster(hardware, mesh),
        sizes,
        choose("objective", objective, ("time", "bytes", "wire")),  # type: ignore[arg-type]
        parse_share("overlap", overlap),
    )


def _unknown_cluster(what: str) -> SbpError:
    return SbpError(
        what,
        why="It prices the plan: the name of a cluster that sbp knows, a cluster or a file.\n"
        f"The names are {', '.join(machines.BY_NAME)}.",
        how=[
            f"hardware={machines.H100_NODE.name!r}",
            "pass an sbp.Cluster",
            "hardware='machine.json', measured by scripts/calibrate.py --out machine.json",
        ],
    )


def mesh_sizes(mesh: Any) -> tuple[int, ...]:
    """Sizes of the axes of a jax mesh, concrete or abstract."""
    if not isinstance(mesh, jax.sharding.Mesh | jax.sharding.AbstractMesh):
        raise PlanError(
            f"mesh={mesh!r} is not a mesh",
            why="A mesh is a jax.sharding.Mesh, or an AbstractMesh to plan without devices.",
            how=["flowjax.make_mesh('dp=2,tp=4')", "jax.make_mesh((2, 4), ('dp', 'tp'))"],
        )
    return tuple(int(mesh.shape[name]) for name in mesh.axis_names)


def positions(
    fn: Callable[..., Any], argnums: int | Sequence[int], argnames: str | Sequence[str], what: str
) -> tuple[int, ...]:
    """Positions of arguments given by number or name."""
    numbers = tuple(argnums) if isinstance(argnums, Sequence) else (argnums,)
    names = (argnames,) if isinstance(argnames, str) else tuple(argnames)
    known = parameter_names(fn)
    takes = f"{function_name(fn)} takes {', '.join(known) or 'no arguments by position'}."
    for name in names:
        if name not in known:
            raise SbpError(
                f"{what}_argnames names {name!r}, which {function_name(fn)} does not take",
                why=takes,
                how=_similar(name, known) or ["name one of its arguments"],
            )
    for number in numbers:
        if not isinstance(number, int) or not 0 <= number < _most_arguments(fn):
            raise SbpError(
                f"{what}_argnums has {number!r}, which is no argument of {function_name(fn)}",
                why=f"{takes} Arguments are counted from 0.",
                how=[f"a number from 0 to {len(known) - 1}"] * bool(known)
                + [f"{what}_argnames={name!r}" for name in known[:3]],
            )
    return tuple(dict.fromkeys((*numbers, *map(known.index, names))))


def _similar(name: str, known: Sequence[str]) -> list[str]:
    return [repr(close) for close in difflib.get_close_matches(name, known, cutoff=0.5)]


def _most_arguments(fn: Callable[..., Any]) -> float:
    many = any(p.kind == p.VAR_POSITIONAL for p in _parameters(fn))
    return math.inf if many else len(parameter_names(fn))


def check_disjoint(fn: Callable[..., Any], donate: Sequence[int], static: Sequence[int]) -> None:
    """An argument cannot be both donated and static."""
    both = sorted({*donate} & {*static})
    if both:
        names = [*parameter_names(fn), *(f"argument {k}" for k in range(max(both) + 1))]
        raise SbpError(
            f"{', '.join(names[k] for k in both)} of {function_name(fn)} is donated and static",
            why="A static argument is no array, so it has no memory to give.",
            how=["do not donate it", "do not make it static"],
        )


def check_function(fn: Any) -> None:
    """Only something that can be called can be parallelized."""
    if not callable(fn):
        raise SbpError(
            f"parallelize was given {fn!r}, which cannot be called",
            why="It takes a pure function of arrays and returns a step.",
            how="sbp.parallelize(train_step, mesh=mesh)",
        )


def check_plan(plan: Any) -> None:
    """A saved plan comes as the plan, not as its path."""
    if plan is not None and not isinstance(plan, Plan):
        raise SbpError(
            f"plan={plan!r} is not a plan",
            why="It is an sbp.Plan: from step.plan(...), or read from a file.",
            how="plan=sbp.Plan.load(path)",
        )


def parameter_names(fn: Callable[..., Any]) -> list[str]:
    """Names of the positional parameters of a function, as far as it tells them."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in _parameters(fn) if p.kind in kinds]


def _parameters(fn: Callable[..., Any]) -> Sequence[inspect.Parameter]:
    try:
        return tuple(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return (inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL),)


def argument_names(fn: Callable[..., Any], count: int) -> list[str]:
    """A name for each positional argument of a call; `args.2` where the function names none."""
    names = parameter_names(fn)[:count]
    rest = next((p.name for p in _parameters(fn) if p.kind == p.VAR_POSITIONAL), "args")
    return names + [f"{rest}.{k}" for k in range(count - len(names))]


def function_name(fn: Callable[..., Any]) -> str:
    """The name of a function, for people."""
    return getattr(fn, "__name__", type(fn).__name__)


def dtype_name(value: Any) -> str | None:
    """The name of a float dtype given in any of jax's forms."""
    if value is None:
        return None
    try:
        dtype = jax.numpy.dtype(value)
    except TypeError:
        dtype = None
    if dtype is None or not jax.numpy.issubdtype(dtype, jax.numpy.floating):
        raise SbpError(
            f"reduce_dtype={value!r} is not a float dtype",
            why="It is a float dtype to which the program narrows sums; they are then added in it.",
            how=["reduce_dtype='bfloat16'", "reduce_dtype=None adds as the program says"],
        )
    return str(dtype)
