"""Time to a compiled program: `sbp.parallelize` beside the same program written by hand.

Usage:
    python scripts/bench_compile.py                      data parallelism, 4 layers, scan
    python scripts/bench_compile.py --unrolled --rounds 5

Both are the AdamW train step of the benchmark GPT under data parallelism on 8 simulated devices.
By hand: `jax.shard_map` around `jax.value_and_grad`, one `pmean` of loss and gradients. The two are
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

import flowjax
import sbp
from models import gpt
from scripts.peers.by_hand import data_parallel


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
    ratio, _ = ratios(config, flowjax.make_mesh("dp=8"), options.rounds)
    print(f"median ratio, planning aside: {ratio:.3f}")


def ratios(config: gpt.GPTConfig, mesh: jax.sharding.Mesh, rounds: int) -> tuple[float, float]:
    """Median ratios of our seconds to a compiled program over those by hand; prints each round.

    Args:
        config: The model.
        mesh: One axis, `dp`.
        rounds: How often both are compiled.

    Returns:
        Without the time to plan, and with it.
    """
    _, structs = gpt.example(config=config)
    without, with_planning = [], []
    for number in range(rounds):
        by_hand = data_parallel(mesh, config)
        hand = timed(lambda by_hand=by_hand: by_hand, structs)
        step = by_plan(config, mesh)
        tracing = seconds(lambda step=step: jax.make_jaxpr(step.__wrapped__)(*structs))
        planning = seconds(lambda step=step: step.plan(*structs)) - tracing
        ours = timed(lambda step=step: step, structs)
        ours["total"] += tracing
        without.append(ours["total"] / hand["total"])
        with_planning.append((ours["total"] + planning) / hand["total"])
        print(
            f"round {number}: by hand {hand['total']:.2f} s (trace and lower {hand['lower']:.2f}, "
            f"compile {hand['compile']:.2f}); ours {ours['total']:.2f} s (trace {tracing:.2f}, "
            f"lower {ours['lower']:.2f}, compile {ours['compile']:.2f}); ratio {without[-1]:.2f}; "
            f"planning {planning:.2f} s"
        )
    return statistics.median(without), statistics.median(with_planning)


def by_plan(config: gpt.GPTConfig, mesh: jax.sharding.Mesh) -> sbp.Step:
    """The same by a plan."""
    return sbp.parallelize(
        gpt.example(config=config)[0], mesh=mesh, donate_argnums=(0,),
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
