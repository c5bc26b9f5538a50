"""Law: plans of distributed matmuls move the least bytes that exhaustive search has found.

The cases, and what they count, are described in `tests/data/matmul_cases.json`.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType

import flowjax
import sbp
from scripts.parity_cases import QUICK

FILE = Path(__file__).parent.parent / "data" / "matmul_cases.json"
CASES = json.loads(FILE.read_text(encoding="utf-8"))["cases"]
AXES = ("dp", "tp")
# Their least bytes are had by multiplying B or P with B: each device does the work of all.
COMPUTED_TWICE = ("F7", "F8", "F14")
WORDS = {"S0": sbp.S(0), "S1": sbp.S(1), "B": sbp.B, "P": sbp.P}


def choices(text: str, sizes: list[int]) -> list[sbp.NdSbp]:
    """What a case allows of one array; `free` is every way to hold each element once."""
    axes = AXES[: len(sizes)]
    if text != "free":
        return [sbp.NdSbp(dict(zip(axes, (WORDS[w] for w in text.split(".")), strict=True)))]
    return [
        sbp.NdSbp(dict(zip(axes, words, strict=True)))
        for words in itertools.product((sbp.S(0), sbp.S(1)), repeat=len(axes))
    ]


def chain(x, weights):
    """The product; between the two of a feed-forward pair stands a relu, which P cannot pass."""
    for k, weight in enumerate(weights):
        x = x @ weight
        if len(weights) == 2 and k == 0:
            x = jax.nn.relu(x)
    return x


def steps_of(case) -> Iterator[sbp.Step]:
    mesh = flowjax.make_mesh(
        dict(zip(AXES, case["mesh"], strict=False)), axis_types=AxisType.Explicit
    )
    arrays = [case["x"], *case["w"].split(","), case["y"]]
    arrays = arrays if len(arrays) == len(case["dims"]) + 1 else [
        case["x"], *[case["w"]] * (len(case["dims"]) - 1), case["y"]
    ]  # fmt: skip
    for x, *weights, y in itertools.product(*(choices(a, case["mesh"]) for a in arrays)):
        in_sbp = {"x": x} | {f"weights.{k}": words for k, words in enumerate(weights)}
        objective = "wire" if case["id"] in COMPUTED_TWICE else "bytes"
        yield sbp.parallelize(chain, mesh=mesh, in_sbp=in_sbp, out_sbp=y, objective=objective)


def arguments_of(case):
    dims = case["dims"]
    shapes = [(case["tokens"], dims[0]), *itertools.pairwise(dims)]
    x, *weights = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    return x, tuple(weights)


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_plan_moves_the_least_bytes(case):
    arguments = arguments_of(case)
    steps = list(steps_of(case))
    plans = [step.plan(*arguments) for step in steps]
    best = min(range(len(plans)), key=lambda k: plans[k].wire_nbytes)
    assert plans[best].wire_nbytes == 4 * case["elements_per_device"]
    assert plans[best].gap == 0
    audit = sbp.audit(steps[best].lower(*arguments).compile(QUICK), plans[best])
    assert audit.total_nbytes == plans[best].wire_nbytes
    assert audit.unplanned == audit.missing == ()
