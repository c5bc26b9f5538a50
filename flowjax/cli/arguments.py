"""What can be said on the command line.

Goes out: the parser, and the options of `sbp.parallelize` that parsed arguments stand for.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import jax

import flowjax
from sbp.errors import SbpError
from sbp.hardware import BY_NAME

Command = Callable[[argparse.Namespace], int]

_PLAN = """\
Plans a function on a mesh and prints the plan. Nothing runs, no accelerator is needed.

The import path leads to an example function: called without arguments, or with batch=, it returns
(step, arguments). With --args it is the step itself, and --args makes the arguments. Arguments are
arrays or jax.ShapeDtypeStruct. Modules of the current directory can be imported."""

_PLAN_END = """\
examples:
  flowjax plan models.gpt:example --mesh dp=2,tp=4 --donate state
  flowjax plan models.gpt:example --devices 16 --hardware a100 --batch 64 --html plan.html
  flowjax plan train:step --args train:arguments --mesh dp=8 --in-sbp 'batch=dp: S(0)'

Ctrl-C prints the best plan so far with its gap. Exit codes: 0 a plan, 2 a wrong argument, an error
of the function or no plan, 130 interrupted before there was a plan,
70 a fault of flowjax itself."""

_AUDIT = """\
Lists the collectives of a compiled program, what is not planned first.

The program is the text of a compiled program (HLO: compiled.as_text() of any backend), or an import
path as of `flowjax plan`, which is planned and compiled for simulated CPU devices."""

_AUDIT_END = """\
examples:
  flowjax audit step.hlo.txt --plan plan.json --max-bytes 20MB
  flowjax audit models.gpt:example --mesh dp=2,tp=4 --donate state --max-bytes 20MB

Exit codes: 0 as planned and within the budget; 1 collectives that are not planned, or planned ones
that are missing (the program is not that of the plan), or too many bytes; 2 a wrong argument, an
error of the function, a program for other devices or another mesh, or no plan; 70 a fault of
flowjax itself. XLA's CPU compiler sends bfloat16 as float32, twice the bytes."""


def make_parser(plan: Command, audit: Command) -> argparse.ArgumentParser:
    """The parser; what it returns has the chosen command as `run`."""
    parser = argparse.ArgumentParser(
        prog="flowjax",
        description="Says how a JAX function will run on a mesh of devices, and checks that it "
        "does.",
    )
    version = f"flowjax {flowjax.__version__} (jax {jax.__version__})"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    raw = argparse.RawDescriptionHelpFormatter

    planner = commands.add_parser(
        "plan", help="plan a function and print the plan",
        description=_PLAN, epilog=_PLAN_END, formatter_class=raw,
    )  # fmt: skip
    planner.add_argument("target", metavar="MODULE:FUNCTION", help="import path")
    _add_mesh(planner)
    _add_function(planner)
    planner.add_argument(
        "--max-bytes", metavar="SIZE", type=_size, help="most bytes a device may send a call"
    )
    output = planner.add_argument_group("output")
    output.add_argument("--top", type=_count, metavar="N", help="print the N dearest lines only")
    output.add_argument(
        "--where", metavar="TEXT", help="print the lines of an array, operation or source line only"
    )
    output.add_argument("--json", metavar="FILE", help="write the plan, for sbp.Plan.load")
    output.add_argument("--html", metavar="FILE", help="write the plan as a page")
    planner.set_defaults(run=plan)

    auditor = commands.add_parser(
        "audit", help="list the collectives of a compiled program; check a budget",
        description=_AUDIT, epilog=_AUDIT_END, formatter_class=raw,
    )  # fmt: skip
    auditor.add_argument("target", metavar="FILE|MODULE:FUNCTION", help="HLO text, or import path")
    auditor.add_argument("--plan", metavar="FILE", help="hold the program against this plan (JSON)")
    auditor.add_argument(
        "--max-bytes", metavar="SIZE", type=_size, help="the budget: bytes a device and call"
    )
    auditor.add_argument("--mesh", metavar="AXES", help="axes to name devices by: dp=2,tp=4")
    auditor.add_argument("--json", metavar="FILE", help="write the audit and its verdict")
    _add_function(auditor)
    auditor.set_defaults(run=audit)
    return parser


def _add_mesh(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("mesh")
    either = group.add_mutually_exclusive_group(required=True)
    either.add_argument("--mesh", metavar="AXES", help="axis sizes, outermost first: dp=2,tp=4")
    either.add_argument(
        "--devices", type=_count, metavar="N", help="rank the meshes of N devices, take the best"
    )
    group.add_argument(
        "--axes", metavar="NAMES", help="with --devices: axis names that words use: dp,tp"
    )
    group.add_argument(
        "--max-axes", type=_count, metavar="N", help="with --devices: most axes of a mesh, up to 3"
    )


def _add_function(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("function")
    group.add_argument(
        "--args", metavar="MODULE:FUNCTION", help="returns the arguments of the function"
    )
    group.add_argument("--batch", type=_count, metavar="N", help="passed on as batch=N")
    group.add_argument(
        "--donate", metavar="NAMES", help="arguments whose memory the results may take: state"
    )
    group.add_argument(
        "--in-sbp", action="append", metavar="PATTERN=WORDS",
        help="words of arguments, repeatable: 'state.params.*.wup=tp: S(2)'",
    )  # fmt: skip
    group.add_argument(
        "--out-sbp", action="append", metavar="PATTERN=WORDS", help="words of results, likewise"
    )
    conditions = parser.add_argument_group("conditions")
    conditions.add_argument(
        "--hardware", metavar="NAME|FILE",
        help=f"machine to price for, default h100: {', '.join(BY_NAME)} or a hardware file (.json)",
    )  # fmt: skip
    conditions.add_argument(
        "--memory-limit", metavar="SIZE", type=_size, help="of a device, such as 80GiB"
    )
    conditions.add_argument("--objective", choices=("time", "bytes", "wire"), help="default: time")
    conditions.add_argument("--lowering", choices=("manual", "auto"), help="default: manual")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return int(text)


def _size(text: str) -> int | str:
    """A plain number counts bytes; text such as `80GiB` is for `sbp` to read."""
    return int(text) if text.isdigit() else text


def step_options(options: argparse.Namespace) -> dict[str, Any]:
    """The options of `sbp.parallelize` that were given, without mesh and hardware.

    Raises:
        SbpError: Words are not `PATTERN=WORDS`.
    """
    donated = [name.strip() for name in (options.donate or "").split(",") if name.strip()]
    found = {
        "in_sbp": parse_words("--in-sbp", options.in_sbp),
        "out_sbp": parse_words("--out-sbp", options.out_sbp),
        "donate_argnums": tuple(int(name) for name in donated if name.isdigit()),
        "donate_argnames": tuple(name for name in donated if not name.isdigit()),
        "memory_limit": options.memory_limit,
        "objective": options.objective,
        "lowering": options.lowering,
    }
    return {name: value for name, value in found.items() if value not in (None, ())}


def parse_words(option: str, items: Sequence[str] | None) -> dict[str, str] | None:
    """Words by path pattern, from items `PATTERN=WORDS`.

    Raises:
        SbpError: An item has another form, or a pattern comes twice.
    """
    if items is None:
        return None
    words: dict[str, str] = {}
    for item in items:
        pattern, separator, text = item.partition("=")
        if not separator or not pattern.strip() or not text.strip():
            raise SbpError(
                f"{item!r} is not PATTERN=WORDS",
                where=option,
                why="It is a path pattern, '=' and a word for each axis that is not free.",
                how=f"{option} 'batch=dp: S(0)'",
            )
        if pattern.strip() in words:
            raise SbpError(
                f"the pattern {pattern.strip()!r} comes twice",
                where=option,
                why="The words of a pattern are said once, for all axes.",
                how=f"{option} '{pattern.strip()}=dp: S(0), tp: B'",
            )
        words[pattern.strip()] = text.strip()
    return words
