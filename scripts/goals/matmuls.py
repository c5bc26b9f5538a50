"""Distributed matmuls between given words: ours, the least known, and XLA's partitioner.

In: the cases of `scripts/matmul_cases.json`, which says what they are and what they count. Out: the
best of a case's plans, a table, and the goals on bytes.
"""

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType

import flowjax
import sbp
from scripts.goals.goal import MOST_ERROR, Goal

CASES = json.loads(Path(__file__).parents[1].joinpath("matmul_cases.json").read_text("utf-8"))[
    "cases"
]
AXES = ("dp", "tp", "pp")
# Their least bytes are had by multiplying B or P with B: each device does the work of all.
COMPUTED_TWICE = ("F7", "F8", "F14")
WORDS = {"S0": sbp.S(0), "S1": sbp.S(1), "B": sbp.B, "P": sbp.P}
COLUMNS = "{:<5}{:<34}{:>10}{:>10}{:>10}{:>8}{:>7}{:>10}{:>7}"
HEADINGS = (
    "case", "what", "least MB", "planned", "compiled", "unpl.", "gap", "GSPMD MB", "ratio",
)  # fmt: skip


class Best(NamedTuple):
    """The plan of a case that sends least, among the words that the case allows.

    Attributes:
        step: The step.
        arguments: Types of its arguments.
        plan: The plan.
        audit: Of the compiled program.
    """

    step: sbp.Step
    arguments: tuple[Any, ...]
    plan: sbp.Plan
    audit: Any


def measure() -> list[Goal]:
    """Plans and compiles every case, and prints a table."""
    print(COLUMNS.format(*HEADINGS))
    exact, errors, unplanned, ratios = 0, [], 0, []
    for case in CASES:
        best, least = best_of(case), least_nbytes(case)
        sent = best.audit.total_nbytes
        exact += best.plan.wire_nbytes == sent == least
        errors.append(abs(best.plan.wire_nbytes - sent) / sent if sent else float(sent != 0))
        unplanned += len(best.audit.unplanned)
        theirs = partitioned_nbytes(best)
        ratio = None
        if theirs is not None:
            ratio = theirs / sent if sent else 1.0 if theirs == 0 else math.inf
            ratios.append(ratio)
        print(
            COLUMNS.format(
                case["id"], case["what"][:33], *(f"{n / 1e6:.3f}" for n in (
                    least, best.plan.wire_nbytes, sent)),
                len(best.audit.unplanned), f"{best.plan.gap:.2%}",
                "-" if theirs is None else f"{theirs / 1e6:.3f}",
                "-" if ratio is None else f"{ratio:.2f}",
            ), flush=True,
        )  # fmt: skip
    print()
    count = len(CASES)
    mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
    return [
        Goal("G2", "matmuls with given ends", f"{exact} of {count} send the least",
             f"{count} of {count}", exact == count),
        Goal("G3", f"{count} matmuls",
             f"off by {max(errors):.2%} at most, {unplanned} unplanned", f"<= {MOST_ERROR:.0%}, 0",
             max(errors) <= MOST_ERROR and unplanned == 0),
        Goal("G4", f"{len(ratios)} matmuls between the same ends, CPU",
             f"GSPMD sends {mean:.2f} times ours (geometric mean), {min(ratios):.2f} at least",
             ">= 1 each, ours the least there is", min(ratios) >= 1 and exact == count),
    ]  # fmt: skip


def least_nbytes(case: Mapping[str, Any]) -> int:
    """The least bytes that exhaustive search has found."""
    return 4 * case["elements_per_device"]


def best_of(case: Mapping[str, Any], options: dict[str, Any] | None = None) -> Best:
    """Plans under the words that a case allows, and compiles the plan that sends least.

    No more words are tried once a plan sends no more than the case's least.

    Args:
        case: One of `CASES`.
        options: For XLA.
    """
    arguments = _arguments(case)
    best: tuple[sbp.Step, sbp.Plan] | None = None
    for step in _steps(case):
        plan = step.plan(*arguments)
        if best is None or plan.wire_nbytes < best[1].wire_nbytes:
            best = step, plan
        if plan.wire_nbytes <= least_nbytes(case):
            break
    assert best is not None, "a case allows some words"
    step, plan = best
    compiled = step.lower(*arguments).compile(options)
    return Best(step, arguments, plan, sbp.audit(compiled, plan))


def partitioned_nbytes(best: Best) -> float | None:
    """Bytes that XLA's partitioner sends between the ends of a plan; None if one is partial."""
    ends = [words for _, words in (*best.plan.arguments, *best.plan.results)]
    if any(sbp.P in words.values() for words in ends):
        return None
    mesh = flowjax.make_mesh(best.plan.mesh_sizes)
    x, *weights, y = (sbp.named_sharding(mesh, words, 2) for words in ends)
    program = jax.jit(_chain, in_shardings=(x, tuple(weights)), out_shardings=y)
    return sbp.audit(program.lower(*best.arguments).compile(), mesh=mesh).total_nbytes


def _choices(text: str, sizes: list[int]) -> list[sbp.NdSbp]:
    """What a case allows of one array; `free` is every way to hold each element once."""
    axes = AXES[: len(sizes)]
    if text != "free":
        return [sbp.NdSbp(dict(zip(axes, (WORDS[w] for w in text.split(".")), strict=True)))]
    return [
        sbp.NdSbp(dict(zip(axes, words, strict=True)))
        for words in itertools.product((sbp.S(0), sbp.S(1)), repeat=len(axes))
    ]


def _chain(x: jax.Array, weights: tuple[jax.Array, ...]) -> jax.Array:
    """The product; between the two of a feed-forward pair stands a relu, which P cannot pass."""
    for k, weight in enumerate(weights):
        x = x @ weight
        if len(weights) == 2 and k == 0:
            x = jax.nn.relu(x)
    return x


def _steps(case: Mapping[str, Any]) -> Iterator[sbp.Step]:
    mesh = flowjax.make_mesh(
        dict(zip(AXES, case["mesh"], strict=False)), axis_types=AxisType.Explicit
    )
    arrays = [case["x"], *case["w"].split(","), case["y"]]
    arrays = arrays if len(arrays) == len(case["dims"]) + 1 else [
        case["x"], *[case["w"]] * (len(case["dims"]) - 1), case["y"]
    ]  # fmt: skip
    for x, *weights, y in itertools.product(*(_choices(a, case["mesh"]) for a in arrays)):
        in_sbp = {"x": x} | {f"weights.{k}": words for k, words in enumerate(weights)}
        objective = "wire" if case["id"] in COMPUTED_TWICE else "bytes"
        yield sbp.parallelize(_chain, mesh=mesh, in_sbp=in_sbp, out_sbp=y, objective=objective)


def _arguments(case: Mapping[str, Any]) -> tuple[Any, ...]:
    dims = case["dims"]
    shapes = [(case["tokens"], dims[0]), *itertools.pairwise(dims)]
    x, *weights = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    return x, tuple(weights)
