"""The options of `parallelize`, checked.

Comes in: keyword arguments. Goes out: `Options`. An option that cannot be honoured is an error.
"""

import difflib
import inspect
import math
import numbers
import os
import re
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from sbp import hardware as machines
from sbp.cost_model import OBJECTIVES, CostModel
from sbp.errors import PlanError, SbpError
from sbp.graph import Mesh
from sbp.hardware import Cluster
from sbp.plan import Conditions, Plan
from sbp.plan.planning import Search

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}  # fmt: skip
SEARCHES: tuple[str, ...] = typing.get_args(Search)
_SIZES = {unit.upper(): nbytes for unit, nbytes in _UNITS.items()}


@dataclass(frozen=True, slots=True)
class Options:
    """What a step is to be.

    Attributes:
        mesh: The user's mesh, concrete or abstract.
        in_sbp: Words of arguments, as given.
        out_sbp: Words of results, as given.
        donate: Positions of donated arguments; names of those that the function takes by name.
        static: The same of static arguments.
        tie: `auto`, None, or result path -> argument path.
        conditions: What a plan must meet.
        costs: Prices.
        lowering: `manual` or `auto`.
        saved: A plan to run as it is.
    """

    mesh: Any
    in_sbp: Any
    out_sbp: Any
    donate: tuple[int | str, ...]
    static: tuple[int | str, ...]
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
        close = difflib.get_close_matches(value, allowed, n=1) if isinstance(value, str) else []
        raise SbpError(
            f"{name}={value!r} is not an option",
            why=f"The options are {', '.join(map(repr, allowed))}.",
            how=[
                *(f"{name}={option!r}" for option in close),
                f"{name}={allowed[0]!r} is the default",
            ],
        )
    return value


def parse_nbytes(name: str, value: float | str | None) -> int | None:
    """A size in bytes: a whole number, or text such as `80GiB`."""
    if value is None:
        return None
    text = str(value) + ("B" if isinstance(value, numbers.Real) else "")
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*([A-Za-z]+)\s*", text)
    unit = 0 if match is None else _SIZES.get(match.group(2).upper(), 0)
    number = 0.0 if match is None else float(match.group(1))
    if not unit or not math.isfinite(number) or (unit == 1 and not number.is_integer()):
        raise SbpError(
            f"{name}={value!r} is not a size",
            why=f"A size is a whole number of bytes, or a number and one of {', '.join(_UNITS)}.",
            how=f"{name}='80GiB'",
        )
    return int(number * unit)


def parse_share(name: str, value: Any) -> float:
    """A number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise SbpError(
            f"{name}={value!r} is not a share",
            why="A share is a number from 0 (nothing) to 1 (everything).",
            how=f"{name}=0.5",
        )
    return float(value)


def find_cluster(
    hardware: Cluster | str | os.PathLike[str] | None, mesh: Any, option: str = "hardware"
) -> Cluster:
    """The machine to price for: given, by name, from a hardware file, or that of the devices.

    A mesh without devices is priced for H100.

    Args:
        hardware: What is given.
        mesh: The mesh.
        option: What it is given as, for errors.
    """
    if hardware is None and isinstance(mesh, jax.sharding.AbstractMesh):
        return machines.H100_NODE
    if hardware is None:
        kind = mesh.devices.flat[0].device_kind
        cluster = machines.cluster_of_device(kind)
        if cluster is None:
            raise _unknown_cluster(f"no cluster of {kind!r} is known", option)
        return cluster
    cluster = machines.as_cluster(hardware)
    if cluster is None:
        raise _unknown_cluster(f"{option}={hardware!r} is not known", option)
    return cluster


def find_costs(mesh: Any, hardware: Any, objective: Any, overlap: float) -> CostModel:
    """Prices on a mesh; arguments as of `parallelize`, checked by `as_planned`."""
    sizes = mesh_sizes(mesh)
    return CostModel(
        find_cluster(hardware, mesh),
        sizes,
        objective,
        overlap,
    )


def _unknown_cluster(what: str, option: str) -> SbpError:
    return SbpError(
        what,
        why="It prices the plan: the name of a cluster that sbp knows, a cluster or a file.\n"
        f"The names are {', '.join(machines.BY_NAME)}.",
        how=[
            f"{option}={machines.H100_NODE.name!r}",
            "pass an sbp.Cluster",
            f"{option}='machine.json', measured by scripts/calibrate.py --out machine.json",
        ],
    )


def mesh_sizes(mesh: Any) -> tuple[int, ...]:
    """Sizes of the axes of a jax mesh, concrete or abstract.

    Raises:
        PlanError: It is no mesh, or has a device twice.
    """
    if not isinstance(mesh, jax.sharding.Mesh | jax.sharding.AbstractMesh):
        raise PlanError(
            f"mesh={mesh!r} is not a mesh",
            why="A mesh is a jax.sharding.Mesh, or an AbstractMesh to plan without devices.",
            how=["flowjax.make_mesh('dp=2,tp=4')", "jax.make_mesh((2, 4), ('dp', 'tp'))"],
        )
    if isinstance(mesh, jax.sharding.Mesh):
        points, devices = mesh.devices.size, len({*mesh.devices.flat})
        if devices < points:
            raise PlanError(
                f"the mesh has {points} points, but different devices: {devices}",
                why="Each point of a mesh is a device of its own.",
                how=["name each device once", "jax.make_mesh, which chooses the devices"],
            )
    return tuple(int(mesh.shape[name]) for name in mesh.axis_names)


def positions(
    fn: Callable[..., Any], argnums: int | Sequence[int], argnames: str | Sequence[str], what: str
) -> tuple[int | str, ...]:
    """Positions of arguments given by number or name; names of those that go by name only."""
    numbers = tuple(argnums) if isinstance(argnums, Sequence) else (argnums,)
    names = (argnames,) if isinstance(argnames, str) else tuple(argnames)
    known, by_name = parameter_names(fn), _keyword_names(fn)
    for name in names:
        if name not in (*known, *by_name) and not _takes(fn, inspect.Parameter.VAR_KEYWORD):
            raise SbpError(
                f"{what}_argnames names {name!r}, which {function_name(fn)} does not take",
                why=_all_taken(fn),
                how=_similar(name, (*known, *by_name)) or ["name one of its arguments"],
            )
    any_number = _takes(fn, inspect.Parameter.VAR_POSITIONAL)
    least, most = (0, math.inf) if any_number else (-len(known), len(known))
    numbered = "a number from 0" + f" to {len(known) - 1}" * (not any_number)
    for number in numbers:
        is_whole = isinstance(number, int) and not isinstance(number, bool)
        if not is_whole or not least <= number < most:
            raise SbpError(
                f"{what}_argnums has {number!r}, which is no argument of {function_name(fn)}",
                why=f"{_all_taken(fn)} Arguments are counted from 0.",
                how=[numbered] * bool(most)
                + [f"{what}_argnames={name!r}" for name in (*known, *by_name)[:3]],
            )
    counted = (number % len(known) if number < 0 else number for number in numbers)
    found = (known.index(name) if name in known else name for name in names)
    return tuple(dict.fromkeys((*counted, *found)))


def _all_taken(fn: Callable[..., Any]) -> str:
    """What a function takes, as a sentence."""
    known, by_name = parameter_names(fn), _keyword_names(fn)
    taken = [", ".join(known)] * bool(known) + [f"{', '.join(by_name)} by name"] * bool(by_name)
    return f"{function_name(fn)} takes {', and '.join(taken) or 'no named arguments'}."


def _similar(name: str, known: Sequence[str]) -> list[str]:
    return [repr(close) for close in difflib.get_close_matches(name, known, cutoff=0.5)]


def _takes(fn: Callable[..., Any], kind: Any) -> bool:
    return any(parameter.kind == kind for parameter in _parameters(fn))


def check_disjoint(
    fn: Callable[..., Any], donate: Sequence[int | str], static: Sequence[int | str]
) -> None:
    """An argument cannot be both donated and static."""
    both = [mark for mark in donate if mark in static]
    if both:
        names = dict(enumerate(parameter_names(fn)))
        shown = (k if isinstance(k, str) else names.get(k, f"argument {k}") for k in both)
        raise SbpError(
            f"{', '.join(shown)} of {function_name(fn)} is donated and static",
            why="A static argument is no array, so it has no memory to give.",
            how=["do not donate it", "do not make it static"],
        )


def check_function(fn: Any, what: str = "parallelize") -> None:
    """Only something that can be called can be parallelized."""
    if not callable(fn):
        makes = {"parallelize": "returns a step", "suggest_mesh": "plans it on several meshes"}
        more = "mesh=mesh" if what == "parallelize" else "*arguments, devices=8"
        raise SbpError(
            f"{what} was given {fn!r}, which cannot be called",
            why=f"It takes a pure function of arrays and {makes[what]}.",
            how=f"sbp.{what}(train_step, {more})",
        )


def check_plan(plan: Any) -> None:
    """A saved plan comes as the plan, not as its path."""
    if plan is not None and not isinstance(plan, Plan):
        raise SbpError(
            f"plan={plan!r} is not a plan",
            why="It is an sbp.Plan: from step.plan(...), or read from a file.",
            how="plan=sbp.Plan.load(path)",
        )


def as_planned(
    plan: Plan | None, objective: Any, search: Any, overlap: Any
) -> tuple[str, str, float]:
    """Objective, search and overlap: as given; else as of a plan that is run again; else defaults.

    Raises:
        SbpError: One is no option, or has no effect on a plan that was made with another.
    """
    made = {"objective": "time", "search": "optimal", "overlap": 0.0}
    if plan is not None:
        search_of_plan = next((s for s in SEARCHES[1:] if plan.method.startswith(s)), SEARCHES[0])
        made = {"objective": plan.objective, "search": search_of_plan, "overlap": plan.overlap}
    objective = made["objective"] if objective is None else objective
    search = made["search"] if search is None else search
    overlap = made["overlap"] if overlap is None else overlap
    for name, value, allowed in (
        ("objective", objective, OBJECTIVES), ("search", search, SEARCHES)
    ):  # fmt: skip
        choose(name, value, allowed)
        if plan is not None and value != made[name]:
            raise SbpError(
                f"{name}={value!r} has no effect with plan=",
                why=f"A plan runs as it is, and this one was made with {name}={made[name]!r}.",
                how=[f"leave out {name}=", "leave out plan= to make a new plan"],
            )
    return objective, search, parse_share("overlap", overlap)


def parameter_names(fn: Callable[..., Any]) -> list[str]:
    """Names of the positional parameters of a function, as far as it tells them."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in _parameters(fn) if p.kind in kinds]


def _keyword_names(fn: Callable[..., Any]) -> list[str]:
    return [p.name for p in _parameters(fn) if p.kind == p.KEYWORD_ONLY]


def _parameters(fn: Callable[..., Any]) -> Sequence[inspect.Parameter]:
    return tuple(signature_of(fn).parameters.values())


def signature_of(fn: Callable[..., Any]) -> inspect.Signature:
    """What a function takes; any positional arguments where it does not tell."""
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):
        rest = inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)
        return inspect.Signature([rest])


def argument_names(
    fn: Callable[..., Any], num_arguments: int, keywords: Sequence[str] = ()
) -> list[str]:
    """A name for each argument of a call; `args.2` where the function names none.

    Args:
        fn: The function.
        num_arguments: How many there are.
        keywords: Names of the last of them, which go by name.
    """
    count = num_arguments - len(keywords)
    names = parameter_names(fn)[:count]
    rest = _name_of(fn, inspect.Parameter.VAR_POSITIONAL, "args")
    names += [f"{rest}.{k}" for k in range(count - len(names))]
    more = _name_of(fn, inspect.Parameter.VAR_KEYWORD, "kwargs")
    # f(x, /, **more) takes a second x by name.
    return names + [f"{more}.{name}" if name in names else name for name in keywords]


def _name_of(fn: Callable[..., Any], kind: Any, otherwise: str) -> str:
    return next((p.name for p in _parameters(fn) if p.kind == kind), otherwise)


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
