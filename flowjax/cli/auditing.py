"""`flowjax audit`: the collectives of a compiled program, against a plan and a budget of bytes.

Comes in: parsed arguments. Goes out: text on stdout, an exit code that a pipeline can test.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import jax

import flowjax
import sbp
from flowjax.cli.arguments import step_options
from flowjax.cli.planning import HARDWARE
from flowjax.cli.progress import shown_progress
from flowjax.cli.targets import errors_of, load_target
from sbp.api.options import parse_nbytes
from sbp.axis_sizes import parse_axes
from sbp.collectives import Audit
from sbp.errors import SbpError
from sbp.files import check_can_write, read_bytes, write_text
from sbp.hardware import BY_NAME

OF_FUNCTIONS = (
    "args", "batch", "donate", "in_sbp", "out_sbp", "hardware", "memory_limit", "objective",
    "lowering",
)  # fmt: skip
"""Options that say nothing of a program that is compiled already."""

FORMAT = 1
"""Of the file of an audit; it changes with what is in it."""

MOST_SIMULATED = 4096
"""Simulated devices: each costs the compiler time and memory."""


def run_audit(options: argparse.Namespace) -> int:
    """Audits, prints; 1 if something is unplanned or missing or the budget is exceeded, else 0.

    Raises:
        SbpError: An argument is wrong, or there is no plan.
        OSError: A file cannot be read or written.
    """
    if options.json:
        check_can_write(options.json)
    budget = parse_nbytes("max_nbytes", options.max_bytes)
    plan = sbp.Plan.load(options.plan) if options.plan else None
    if Path(options.target).exists() and not Path(options.target).is_dir():
        audited = _audit_text(options, plan)
    else:
        audited = _audit_function(options, plan)
    problems = []
    if number := len(audited.unplanned):
        problems.append(f"{number} unplanned collective{'s' * (number != 1)}")
    if number := len(audited.missing):
        problems.append(
            f"{number} planned collective{'s' * (number != 1)} that the program does not have"
        )
    if budget is not None and audited.total_nbytes > budget:
        problems.append(
            f"{audited.total_nbytes:,.0f} bytes per device and call, the budget is {budget:,}"
        )
    if options.json:
        write_text(options.json, _encode(audited, budget, problems))
    lines = [str(audited), *(f"FAILED: {problem}" for problem in problems)]
    if budget is not None and audited.total_nbytes <= budget:
        lines.append(f"within the budget of {budget:,} bytes")
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if problems else 0


def _encode(audited: Audit, budget: int | None, problems: Sequence[str]) -> str:
    """The audit as JSON: what is printed, for a pipeline to read."""
    data = {
        "format": FORMAT,
        "problems": problems,
        "nbytes": audited.total_nbytes,
        "budget_nbytes": budget,
        "checked": audited.checked,
        **{
            name: [dataclasses.asdict(row) for row in getattr(audited, name)]
            for name in ("unplanned", "missing", "merged", "collectives")
        },
    }
    return json.dumps(data, indent=1) + "\n"


def _audit_text(options: argparse.Namespace, plan: sbp.Plan | None) -> Audit:
    given = [name for name in OF_FUNCTIONS if getattr(options, name) is not None]
    if given:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise SbpError(
            f"{named} given with the compiled program {options.target}",
            why="It says how a function is planned, and this program is compiled already.",
            how=[f"leave out {named}", "an import path instead of a file"],
        )
    if (source := Path(options.target)).suffix == ".py":
        raise SbpError(
            f"{options.target} is a file of Python",
            why="An audit is of a file with the text of a compiled program, or of a function.",
            how=f"an import path: {source.stem}:example, in the folder of the file",
        )
    mesh = parse_axes(options.mesh, "--mesh") if options.mesh else None
    try:
        text = read_bytes(options.target).decode("utf-8")
    except UnicodeDecodeError as error:
        raise SbpError(
            f"{options.target} is not text",
            why="An audit reads the text of a compiled program, not its binary form.",
            how="write compiled.as_text() to a file",
        ) from error
    return sbp.audit(text, plan, mesh=mesh)


def _audit_function(options: argparse.Namespace, plan: sbp.Plan | None) -> Audit:
    if ":" not in options.target:
        is_folder = Path(options.target).is_dir()
        raise SbpError(
            f"{options.target!r} is a folder"
            if is_folder
            else f"there is no file {options.target!r}",
            why="An audit is of a file with the text of a compiled program, or of a function.",
            how=["the path of a file" + " in it" * is_folder, "an import path: models.gpt:example"],
        )
    if options.mesh:
        sizes = parse_axes(options.mesh, "--mesh")
    elif plan is not None:
        sizes = dict(plan.mesh_sizes)
    else:
        raise SbpError(
            "no mesh to compile for",
            where=options.target,
            why="A function is compiled for the devices of a mesh.",
            how=["--mesh dp=2,tp=4", "--plan plan.json, which names its mesh"],
        )
    if math.prod(sizes.values()) > MOST_SIMULATED:
        raise SbpError(
            f"{math.prod(sizes.values())} devices are too many to simulate",
            where=options.target,
            why=f"A function is compiled for simulated CPU devices, at most {MOST_SIMULATED}.",
            how=["a smaller mesh", "the text of a program that was compiled elsewhere"],
        )
    with contextlib.suppress(RuntimeError):  # JAX has its devices: make_mesh counts them
        jax.config.update("jax_num_cpu_devices", math.prod(sizes.values()))
    target = load_target(options.target, options.args, options.batch)
    mesh = flowjax.make_mesh(sizes, jax.devices("cpu"))
    step = sbp.parallelize(
        target.function, mesh=mesh, hardware=options.hardware or _hardware(plan), plan=plan,
        **step_options(options),
    )  # fmt: skip
    with shown_progress(options.objective or "time"), errors_of(target):
        plan = step.plan(*target.arguments)
    return _without_ours(sbp.audit(step.lower(*target.arguments).compile(), plan))


def _without_ours(audited: Audit) -> Audit:
    """No source line where the only one is that of this file, which asks for the lowering."""
    ours = str(Path(flowjax.__file__).parent)
    return dataclasses.replace(
        audited,
        collectives=tuple(
            dataclasses.replace(row, source="") if row.source.startswith(ours) else row
            for row in audited.collectives
        ),
        unplanned=tuple(
            dataclasses.replace(
                found, sources=tuple(line for line in found.sources if not line.startswith(ours))
            )
            for found in audited.unplanned
        ),
    )


def _hardware(plan: sbp.Plan | None) -> str:
    """What to price for if nobody says: what the plan was made for, where its name says it all."""
    return plan.cluster if plan is not None and plan.cluster in BY_NAME else HARDWARE
