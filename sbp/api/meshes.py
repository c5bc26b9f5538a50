"""`suggest_mesh`: which mesh of so many devices runs a function best.

Comes in: a function, its arguments, a number of devices. Goes out: `MeshRanking`, a plan for every
way to arrange the devices that differs from the others, cheapest first.
"""

import dataclasses
import difflib
import inspect
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jax.sharding import AbstractMesh

from sbp.api.options import check_function, find_cluster, function_name, signature_of
from sbp.api.step import parallelize
from sbp.boxing import format_nbytes
from sbp.errors import PlanError, SbpError
from sbp.hardware import Cluster
from sbp.plan import Plan
from sbp.plan.explain import format_seconds, format_wire, gap_text, table
from sbp.search import INTERRUPTED
from sbp.tracebacks import concise

_LOG = logging.getLogger("sbp")

AXIS_NAMES = ("x", "y", "z")
"""Names of the axes where nobody speaks of them."""

MAX_DEVICES = 2**20
"""More than any machine has."""


@dataclasses.dataclass(frozen=True, slots=True)
class MeshRanking:
    """Plans of one function on meshes of as many devices, cheapest first.

    Attributes:
        name: The function's name.
        num_devices: Devices of every mesh.
        cluster: The machine they are priced for.
        plans: A plan for each mesh, cheapest first; `plan.mesh_sizes` is its mesh.
        links: Where the axes of each plan's mesh run, `inside` a node or `outside`.
        skipped: Meshes without a plan, as text, and why.
    """

    name: str
    num_devices: int
    cluster: str
    plans: tuple[Plan, ...]
    links: tuple[tuple[str, ...], ...]
    skipped: tuple[tuple[str, str], ...]

    @property
    def best(self) -> Plan:
        """The cheapest plan."""
        return self.plans[0]

    @property
    def mesh_sizes(self) -> dict[str, int]:
        """The mesh of the cheapest plan: sizes by axis name, outermost first."""
        return dict(self.best.mesh_sizes)

    def __str__(self) -> str:
        """One line a mesh."""
        many = len(self.plans) > 1
        head = (
            f"{self.name} on {self.num_devices} device{'s' * (self.num_devices > 1)} "
            f"({self.cluster}), objective {self.best.objective}: "
            + (f"{len(self.plans)} meshes, cheapest first" if many else "one mesh")
        )
        headings = ("mesh", "links", "time", "best possible", "gap", "sent", "memory")
        rows = [
            (
                _text(plan.mesh_sizes),
                ", ".join(links),
                format_seconds(plan.cost_seconds),
                format_seconds(plan.lower_bound_seconds) if plan.objective == "time" else "-",
                gap_text(plan),
                format_wire(plan.wire_nbytes),
                format_nbytes(plan.memory_nbytes),
            )
            for plan, links in zip(self.plans, self.links, strict=True)
        ]
        skipped = [f"no plan on {mesh}: {why}" for mesh, why in self.skipped]
        return "\n".join([head, "", table(headings, rows), *[""] * bool(skipped), *skipped])


@concise
def suggest_mesh(
    fn: Callable[..., Any], *args: Any, devices: int,
    cluster: Cluster | str | os.PathLike[str] | None = None, max_axes: int | None = None,
    axes: Sequence[str] | None = None, **options: Any,
) -> MeshRanking:  # fmt: skip
    """Plans a function on every arrangement of some devices into a mesh, and ranks the plans.

    Meshes that differ in the order of axes on equal links are the same, and planned once. Ctrl-C
    ends the search with the meshes planned so far.

    Args:
        fn: A pure function of trees of arrays.
        *args: Its arguments: arrays, or anything with shape and dtype. Nothing is run.
        devices: How many devices there are.
        cluster: The cluster to price for, its name, or the path of a hardware file; H100 by
            default.
        max_axes: Most axes of a mesh, 2 by default. Planning on three takes much longer.
        axes: Names of the axes, outermost first, where words in `options` or pins in `fn` name
            them. Then which axis has which size counts, and an axis may have size 1.
        **options: Of `parallelize`: `in_sbp`, `donate_argnums`, `memory_limit`, `objective` and so
            on, but neither `mesh` nor `hardware`.

    Raises:
        SbpError: An argument cannot be honoured.
        PlanError: No mesh has a plan.
    """
    check_function(fn, "suggest_mesh")
    _check(devices, max_axes, axes)
    _check_options(fn, options)
    machine = find_cluster(cluster, AbstractMesh((1,), AXIS_NAMES[:1]), "cluster")

    def plan_on(mesh: AbstractMesh) -> Plan:
        return parallelize(fn, mesh=mesh, hardware=machine, **options).plan(*args)

    plans, skipped, errors = _plan_each(
        list(_meshes(devices, machine, max_axes or 2, axes)), plan_on
    )
    if not plans:
        if len({error.what for error in errors}) == 1:
            raise errors[0]
        raise _no_mesh(fn, devices, skipped, axes)
    by_time = options.get("objective") in (None, "time")

    def rank(plan: Plan) -> tuple[float, int]:
        return plan.cost_seconds if by_time else plan.cost, len(plan.mesh_sizes)

    ranked = tuple(sorted(plans, key=rank))
    links = tuple(machine.axis_places(tuple(plan.mesh_sizes.values())) for plan in ranked)
    name = function_name(fn)
    return MeshRanking(name, devices, machine.name, ranked, links, tuple(skipped))


def _plan_each(
    meshes: Sequence[AbstractMesh], plan_on: Callable[[AbstractMesh], Plan]
) -> tuple[list[Plan], list[tuple[str, str]], list[SbpError]]:
    """Plans, the meshes that have none with the reason, errors; all until the user interrupts."""
    plans: list[Plan] = []
    skipped: list[tuple[str, str]] = []
    errors: list[SbpError] = []
    interrupted = False
    for number, mesh in enumerate(meshes, start=1):
        name = _text(mesh.shape)
        if interrupted:
            skipped.append((name, INTERRUPTED))
            continue
        try:
            _LOG.info("mesh %s, %d of %d", name, number, len(meshes))
            plans.append(plan_on(mesh))
            interrupted = INTERRUPTED in plans[-1].method
        except SbpError as error:
            errors.append(error)
            skipped.append((name, error.what))
        except KeyboardInterrupt:
            if not plans:
                raise
            interrupted = True
            skipped.append((name, INTERRUPTED))
    return plans, skipped, errors


def _meshes(
    devices: int, machine: Cluster, max_axes: int, axes: Sequence[str] | None
) -> Iterator[AbstractMesh]:
    """Every mesh that differs from the others."""
    if axes is not None:
        for sizes in _factorisations(devices, len(axes), least=1):
            yield AbstractMesh(sizes, tuple(axes))
        return
    seen: set[Any] = set()
    for num_axes in range(1, max_axes + 1):
        for sizes in _factorisations(devices, num_axes, least=2 if num_axes > 1 else 1):
            alike = tuple(sorted(zip(sizes, map(repr, machine.axis_links(sizes)), strict=True)))
            if alike not in seen:
                seen.add(alike)
                yield AbstractMesh(sizes, AXIS_NAMES[:num_axes])


def _factorisations(number: int, num_factors: int, least: int) -> Iterator[tuple[int, ...]]:
    """Ordered factors of a number, none below `least`."""
    if num_factors == 1:
        if number >= least:
            yield (number,)
        return
    for factor in _divisors(number):
        if factor >= least:
            for rest in _factorisations(number // factor, num_factors - 1, least):
                yield (factor, *rest)


def _divisors(number: int) -> list[int]:
    small = [k for k in range(1, math.isqrt(number) + 1) if number % k == 0]
    return sorted({*small, *(number // k for k in small)})


def _text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in sizes.items())


def _check(devices: Any, max_axes: Any, axes: Any) -> None:
    if not isinstance(devices, int) or isinstance(devices, bool) or devices < 1:
        raise SbpError(
            f"devices={devices!r} is not a number of devices",
            why="It says how many devices there are to arrange.",
            how="devices=8",
        )
    if devices > MAX_DEVICES:
        raise SbpError(
            f"devices={devices} is more than any machine has",
            why=f"Meshes of at most {MAX_DEVICES} devices are searched.",
            how=f"devices={MAX_DEVICES}, or fewer",
        )
    if max_axes is not None and max_axes not in range(1, len(AXIS_NAMES) + 1):
        raise SbpError(
            f"max_axes={max_axes!r} is not an option",
            why=f"A mesh of at most {len(AXIS_NAMES)} axes is searched.",
            how="max_axes=2 is the default",
        )
    if axes is not None and max_axes is not None:
        raise SbpError(
            "axes= and max_axes= are both given",
            why="A mesh has as many axes as axes= names; they may have size 1.",
            how="leave out max_axes=",
        )
    if axes is not None and (
        isinstance(axes, str)
        or not isinstance(axes, Sequence)
        or not 1 <= len(axes) <= len(AXIS_NAMES)
        or len({*axes}) < len(axes)
        or not all(isinstance(name, str) for name in axes)
    ):
        raise SbpError(
            f"axes={axes!r} are not names of axes",
            why=f"They are one to {len(AXIS_NAMES)} different names, outermost axis first.",
            how="axes=('dp', 'tp')",
        )


def _check_options(fn: Callable[..., Any], options: Mapping[str, Any]) -> None:
    for name, instead in (("mesh", "devices"), ("hardware", "cluster"), ("plan", "devices")):
        if name in options:
            raise SbpError(
                f"suggest_mesh does not take {name}=",
                why="It chooses the mesh, and makes the plans.",
                how=f"{instead}=",
            )
    known = [*inspect.signature(parallelize).parameters]
    for name in options:
        if name in known:
            continue
        how = [f"{near}=" for near in difflib.get_close_matches(name, known)]
        if name in signature_of(fn).parameters:
            how = [f"sbp.suggest_mesh({function_name(fn)}, {name}, devices=...)"]
        raise SbpError(
            f"suggest_mesh does not take {name}=",
            why="By name it takes the options of parallelize; arguments of the function go by "
            "position.",
            how=how or f"leave out {name}=",
        )


def _no_mesh(
    fn: Callable[..., Any], devices: int, skipped: Sequence[tuple[str, str]],
    axes: Sequence[str] | None,
) -> PlanError:  # fmt: skip
    meshes: dict[str, list[str]] = {}
    for mesh, why in skipped:
        meshes.setdefault(why, []).append(mesh)
    reasons = [f"{' | '.join(names)}: {why}." for why, names in meshes.items()]
    return PlanError(
        f"{function_name(fn)} has a plan on no mesh of {devices} devices",
        why="\n".join(reasons),
        how=[
            *["axes=('dp', 'tp') where words or pins name those axes"] * (axes is None),
            "looser options or fewer pins",
            "another number of devices",
        ],
    )
