"""`flowjax plan`: a function by import path becomes a plan, printed and written.

Comes in: parsed arguments. Goes out: text on stdout, files, an exit code.
"""

import argparse
import sys

from jax.sharding import AbstractMesh

import sbp
from flowjax.cli.arguments import step_options
from flowjax.cli.progress import shown_progress
from flowjax.cli.targets import errors_of, load_target
from sbp.axis_sizes import parse_axes
from sbp.errors import SbpError
from sbp.files import check_can_write

HARDWARE = "h100"
"""What a plan is priced for if nobody says otherwise."""


def run_plan(options: argparse.Namespace) -> int:
    """Plans, prints, writes; the exit code.

    Raises:
        SbpError: An argument is wrong, or there is no plan.
        OSError: A file cannot be written.
        KeyboardInterrupt: The user interrupted before there was a plan.
    """
    _check(options)
    target = load_target(options.target, options.args, options.batch)
    words = {**step_options(options), "max_nbytes": options.max_bytes}
    cluster = options.hardware or HARDWARE
    with shown_progress(options.objective or "time"), errors_of(target):
        if options.devices is None:
            sizes = parse_axes(options.mesh, "--mesh")
            mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes))
            step = sbp.parallelize(target.function, mesh=mesh, hardware=cluster, **words)
            plan, ranking = step.plan(*target.arguments), None
        else:
            if options.axes is not None:
                words["axes"] = [name.strip() for name in options.axes.split(",")]
            if options.max_axes is not None:
                words["max_axes"] = options.max_axes
            ranking = sbp.suggest_mesh(
                target.function, *target.arguments, devices=options.devices, cluster=cluster,
                **words,
            )  # fmt: skip
            plan = ranking.best
    if options.json:
        plan.save(options.json)
    if options.html:
        plan.write_html(options.html)
    parts = [] if ranking is None else [str(ranking), ""]
    parts.append(plan.explain(top=options.top, where=options.where))
    sys.stdout.write("\n".join(parts) + "\n")
    return 0


def _check(options: argparse.Namespace) -> None:
    for path in filter(None, (options.json, options.html)):
        check_can_write(path)
    for name in ("axes", "max_axes"):
        if options.devices is None and getattr(options, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise SbpError(
                f"{option} has no effect on --mesh",
                why="It says which meshes of --devices are searched.",
                how=["--devices instead of --mesh", f"leave out {option}"],
            )
