"""Writes `h100_step.hlo.txt`: a small step with its gradient as XLA compiles it for 8 H100s.

Usage, from the root of the checkout, without any GPU (see `scripts/h100.py`):
    JAX_PLATFORMS=cpu PYTHONPATH=. python tests/data/h100_step.py TARGET

TARGET is XLA's description of the device, `xla/backends/gpu/target_config/specs/h100_sxm.txtpb` in
its sources. Printed is what the plan sends: the rows that `tests/sbp/test_h100.py` has.
"""

import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp

import sbp
from scripts.h100 import h100_mesh

ROOT = Path(__file__).parents[2]
OUTPUT = Path(__file__).with_name("h100_step.hlo.txt")
HEAD = f"""\
// Written by tests/data/h100_step.py with jax {jax.__version__}: a step compiled for 8 H100s.
// It has asynchronous collectives, collectives over tuples, and collectives in loops.
"""


def loss(params, x):
    h = x @ params["first"] @ params["second"]
    h, _ = jax.lax.scan(lambda h, w: (h @ w, None), h, params["layers"])
    return jnp.sum(h)


def gradient_step(params, x):
    value, gradient = jax.value_and_grad(loss)(params, x)
    return gradient, value


def main():
    mesh = h100_mesh({"dp": 2, "tp": 4}, sys.argv[1])
    split = {"*.layers": "dp: S(1), tp: S(1)", "*": "dp: S(0), tp: S(0)"}
    step = sbp.parallelize(
        gradient_step, mesh=mesh, hardware="h100", in_sbp=split, donate_argnums=0
    )
    shapes = {"first": (1024, 2048), "second": (2048, 1024), "layers": (6, 1024, 1024)}
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    arguments = params, jax.ShapeDtypeStruct((16384, 1024), jnp.float32)
    plan = step.plan(*arguments)
    text = step.lower(*arguments).compile().as_text()
    text = re.sub(r' ?scheduling_name="[^"]*"', "", text)  # repeats the instruction's own name
    OUTPUT.write_text(HEAD + text.replace(f'"{ROOT}/', '"'), encoding="utf-8")
    for row in plan.boxings:
        if not row.is_local:
            print(row.collective, row.axes, row.nbytes, row.count, row.dtype)  # noqa: T201
    print(sbp.audit(text, plan))  # noqa: T201


if __name__ == "__main__":
    main()
