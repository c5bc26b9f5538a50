"""Compares loss and gradients on every mesh, under every plan, with one device.

Usage:
    python scripts/check_parity.py                       the whole table
    python scripts/check_parity.py --models mlp 'gpt-scan*' --meshes 8 2,4
    python scripts/check_parity.py --plans free fsdp --lowerings manual --shard 2/4

One row per case. `loss` is the difference relative to the one-device loss; `gradient` the largest
difference in a leaf relative to the largest magnitude in that leaf; then the gap that the plan
proves, the bytes a device sends by the plan, and the audit of the compiled program against it:
unplanned, missing and merged collectives (the lowering `auto` is XLA's partitioner and has no
audit). Then dropout masks, made in blocks on each mesh, bit for bit against one device. Ends with a
summary, and with exit code 1 if a row is wrong.
"""

import argparse
import contextlib
import fnmatch
import sys
import time
from collections.abc import Sequence

import jax

from flowjax.styles import STYLES
from scripts import parity_cases
from scripts.parity_cases import Case, Outcome

COLUMNS = "{:<27}{:<9}{:<10}{:<8}{:>9}{:>9}{:>9}{:>10}  {:<15}{:>6}  {}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the chosen cases; returns 1 if one is wrong."""
    options = _parse(arguments)
    with contextlib.suppress(RuntimeError):  # JAX has its devices already
        jax.config.update("jax_num_cpu_devices", 8)
    cases = [case for case in parity_cases.all_cases() if _is_chosen(case, options)]
    number, count = options.shard
    started = time.perf_counter()
    print(f"jax {jax.__version__}, Python {sys.version.split()[0]}, {len(jax.devices())} devices")
    print(
        COLUMNS.format(
            "model", "mesh", "plan", "lowering", "loss", "gradient", "gap", "bytes",
            "unpl/miss/merged", "s", "",
        )
    )  # fmt: skip
    wrong, unplanned, ran, worst = 0, 0, 0, (0.0, 0.0)
    for case in cases[number - 1 :: count]:
        try:
            outcome = parity_cases.run_case(case, quick=options.quick)
        except Exception as error:  # one crash must not hide the other rows
            print(_failed_row(case, error), flush=True)
            wrong, ran = wrong + 1, ran + 1
            continue
        print(_row(case, outcome), flush=True)
        wrong, ran = wrong + bool(outcome.failures), ran + 1
        worst = max(worst[0], outcome.loss_error), max(worst[1], outcome.gradient_error)
        unplanned += len(outcome.audit.unplanned) if outcome.audit else 0
    if number == 1:
        wrong += _check_masks(options)
    print(
        f"{ran} cases in {time.perf_counter() - started:.0f} s: {wrong} wrong, "
        f"{unplanned} unplanned collectives, worst loss {worst[0]:.1e} "
        f"(limit {parity_cases.LOSS_TOLERANCE:.0e}), worst gradient {worst[1]:.1e} "
        f"(limit {parity_cases.GRADIENT_TOLERANCE:.0e})"
    )
    return int(wrong > 0)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["*"], help="names or patterns")
    parser.add_argument("--meshes", nargs="+", type=_mesh, default=parity_cases.MESHES)
    parser.add_argument("--plans", nargs="+", choices=STYLES, default=STYLES)
    parser.add_argument(
        "--lowerings", nargs="+", choices=parity_cases.LOWERINGS, default=parity_cases.LOWERINGS
    )
    parser.add_argument(
        "--shard", type=_shard, default=(1, 1), metavar="K/N", help="every N-th row from the K-th"
    )
    parser.add_argument("--quick", action="store_true", help="compile without optimisation")
    options = parser.parse_args(arguments)
    for pattern in options.models:
        if not fnmatch.filter(parity_cases.MODEL_NAMES, pattern):
            parser.error(f"no model {pattern!r}: {', '.join(parity_cases.MODEL_NAMES)}")
    for mesh in options.meshes:
        if mesh not in parity_cases.MESHES:
            known = " ".join(",".join(map(str, sizes)) for sizes in parity_cases.MESHES)
            parser.error(f"no mesh {','.join(map(str, mesh))}: {known}")
    return options


def _mesh(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(","))


def _shard(text: str) -> tuple[int, int]:
    number, count = (int(part) for part in text.split("/"))
    if not 1 <= number <= count:
        raise ValueError(text)
    return number, count


def _is_chosen(case: Case, options: argparse.Namespace) -> bool:
    return (
        any(fnmatch.fnmatchcase(case.model, pattern) for pattern in options.models)
        and case.mesh in options.meshes
        and case.plan in options.plans
        and case.lowering in options.lowerings
    )


def _start(case: Case) -> tuple[str, ...]:
    return case.model, ",".join(map(str, case.mesh)), case.plan, case.lowering


def _row(case: Case, outcome: Outcome) -> str:
    audit = outcome.audit
    verdict = "-"
    if audit is not None:
        verdict = f"{len(audit.unplanned)}/{len(audit.missing)}/{len(audit.merged)}"
    return COLUMNS.format(
        *_start(case),
        f"{outcome.loss_error:.1e}",
        f"{outcome.gradient_error:.1e}",
        f"{outcome.plan.gap:.2%}",
        f"{outcome.plan.wire_nbytes:,}",
        verdict,
        f"{outcome.seconds:.1f}",
        "; ".join(outcome.failures) and "WRONG: " + "; ".join(outcome.failures),
    ).rstrip()


def _failed_row(case: Case, error: Exception) -> str:
    reason = (str(error).splitlines() or [""])[0]
    message = f"FAILED: {type(error).__name__}: {reason}"
    return COLUMNS.format(*_start(case), *"------", message)


def _check_masks(options: argparse.Namespace) -> int:
    wrong = 0
    for mesh in options.meshes:
        for lowering in options.lowerings:
            differing = parity_cases.masks_differ(mesh, lowering, quick=options.quick)
            where = f"mesh {','.join(map(str, mesh))}, {lowering}"
            verdict = f"{differing} elements DIFFER" if differing else "equal bit for bit"
            print(f"dropout mask on {where}: {verdict}", flush=True)
            wrong += differing > 0
    return wrong


if __name__ == "__main__":
    sys.exit(main())
