"""Time to a compiled program: `sbp.parallelize` beside the same program written by hand.

Usage:
    python scripts/bench_compile.py                      data parallelism, 4 layers, scan
    python scripts/bench_compile.py --unrolled --rounds 5

Both are the AdamW train step of the benchmark GPT under data parallelism on 8 simulated devices.
By hand: `jax.shard_map` around `jax.value_and_grad`, one `psum` for each gradient. The two are
compiled in turn, in fresh functions each round, and the ratio is taken round by round, as the
machine's speed drifts. Planning is shown apart: the hand-written program has none.
"""

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import optax
from jax.sharding import NamedSharding, PartitionSpec

import flowjax
import sbp
from models import gpt, training

OPTIMIZER = optax.adamw(1e-3)


def main(arguments: Sequence[str] | None = None) -> None:
    """Compiles both in turn and prints seconds and ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--unrolled", action="store_true", help="a Python loop over the layers")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    options = parser.parse_args(arguments)
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_enable_compilation_cache", False)
    config = dataclasses.replace(
        gpt.BENCHMARK, num_layers=options.layers, scan_layers=not options.unrolled
    )
    mesh = flowjax.make_mesh("dp=8")
    _, structs = gpt.example(config=config)
    ratios = []
    for number in range(options.rounds):
        hand = timed(lambda: by_hand(config, mesh), structs)
        step = by_plan(config, mesh)
        tracing = seconds(lambda step=step: jax.make_jaxpr(step.__wrapped__)(*structs))
        planning = seconds(lambda step=step: step.plan(*structs)) - tracing
        ours = timed(lambda step=step: step, structs)
        ours["total"] += tracing
        ratios.append(ours["total"] / hand["total"])
        print(
            f"round {number}: by hand {hand['total']:.2f} s (trace and lower {hand['lower']:.2f}, "
            f"compile {hand['compile']:.2f}); ours {ours['total']:.2f} s (trace {tracing:.2f}, "
            f"lower {ours['lower']:.2f}, compile {ours['compile']:.2f}); ratio {ratios[-1]:.2f}; "
            f"planning {planning:.2f} s"
        )
    print(f"median ratio, planning aside: {statistics.median(ratios):.3f}")


def train_step(config: gpt.GPTConfig, reduce: Callable[[Any], Any]) -> Callable[..., Any]:
    """One AdamW step; `reduce` is applied to loss and gradients."""

    def step(state: Any, batch: jax.Array) -> tuple[Any, jax.Array]:
        params, moments = state
        loss, gradients = reduce(jax.value_and_grad(gpt.loss)(params, batch, config))
        updates, moments = OPTIMIZER.update(gradients, moments, params)
        return training.State(optax.apply_updates(params, updates), moments), loss

    return step


def by_hand(config: gpt.GPTConfig, mesh: jax.sharding.Mesh) -> Any:
    """Data parallelism in `shard_map`, as people write it."""
    whole, split = PartitionSpec(), PartitionSpec("dp")
    step = jax.shard_map(
        train_step(config, lambda tree: jax.lax.pmean(tree, "dp")),
        mesh=mesh, in_specs=(whole, split), out_specs=(whole, whole), check_vma=False,
    )  # fmt: skip
    shardings = (NamedSharding(mesh, whole), NamedSharding(mesh, split))
    return jax.jit(step, in_shardings=shardings, donate_argnums=(0,))


def by_plan(config: gpt.GPTConfig, mesh: jax.sharding.Mesh) -> sbp.Step:
    """The same by a plan."""
    return sbp.parallelize(
        train_step(config, lambda tree: tree), mesh=mesh, donate_argnums=(0,),
        in_sbp={"state": "dp: B", "batch": "dp: S(0)"},
    )  # fmt: skip


def seconds(run: Callable[[], Any]) -> float:
    """Seconds that something takes."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def timed(make: Callable[[], Any], structs: Sequence[Any]) -> dict[str, float]:
    """Seconds of lowering (tracing included) and compiling."""
    began = time.perf_counter()
    lowered = make().lower(*structs)
    half = time.perf_counter()
    lowered.compile()
    done = time.perf_counter()
    return {"lower": half - began, "compile": done - half, "total": done - began}


if __name__ == "__main__":
    main()
