"""Trains a byte-level GPT on real text, on a mesh of devices simulated on the CPU or on real ones.

Usage:
    python scripts/train_gpt.py                          the planner chooses, mesh dp=2,tp=4
    python scripts/train_gpt.py --words megatron         pinned to a known style
    python scripts/train_gpt.py --mesh 1                 one device, plain jax.jit
    python scripts/train_gpt.py --explain --steps 1      shows the plan

The text is CPython's own help topics unless `--text` names a file; its last tenth is held out. At
the end the script prints, in nats per byte on the held-out bytes, the GPT beside a bigram model
fitted on the same training bytes, and text the GPT wrote.
"""

import argparse
import contextlib
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from pydoc_data import topics
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

import flowjax
import sbp
from flowjax.styles import STYLES
from models import gpt
from sbp.errors import SbpError

CONFIG = gpt.GPTConfig(vocab=256, sequence=128, num_layers=2, num_heads=4, d_model=64)
PEAK_LEARNING_RATE = 6e-3


class State(NamedTuple):
    """What a training step changes."""

    params: gpt.Params
    optimizer: optax.OptState


class Run(NamedTuple):
    """The step with what it needs to start."""

    step: Callable
    initial_state: Callable[[jax.Array], State]


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains, scores and samples as the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--mesh", default="dp=2,tp=4", help="axis sizes, or 1 (default: %(default)s)"
    )
    parser.add_argument("--words", default="free", choices=STYLES, help="default: %(default)s")
    parser.add_argument("--text", type=Path, help="train on this file")
    parser.add_argument("--steps", type=int, default=300, help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=16, help="sequences (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--explain", action="store_true", help="print the plan before training")
    options = parser.parse_args(arguments)
    for name in ("steps", "batch"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; it must be at least 1")
    try:
        axes = {} if options.mesh == "1" else flowjax.parse_mesh(options.mesh)
        simulate_devices(math.prod(axes.values()))
        train_bytes, held_out = load_bytes(options.text)
        run = prepare(axes, options)
        state = train(run, train_bytes, options)
    except (SbpError, OSError) as error:
        parser.error(str(error))
    params = jax.device_put(jax.device_get(state.params))  # whole, on one device
    report(params, train_bytes, held_out)
    print("\n" + sample(params, "The ", 400, options.seed))


def simulate_devices(num_devices: int) -> None:
    """Asks for that many CPU devices; no effect on accelerators, or once JAX has its devices."""
    with contextlib.suppress(RuntimeError):  # JAX has its devices: make_mesh counts them
        jax.config.update("jax_num_cpu_devices", num_devices)


def load_bytes(path: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Training and held-out bytes, uint8: the first nine tenths of the text and the rest.

    Raises:
        OSError: The file cannot be read.
        SbpError: The held-out tenth is shorter than one sequence.
    """
    if path is None:
        text = "\n\n".join(topics.topics[name] for name in sorted(topics.topics)).encode()
    else:
        text = path.read_bytes()
    num_train = len(text) * 9 // 10
    if len(text) - num_train <= CONFIG.sequence:
        raise SbpError(
            f"the text has {len(text)} bytes",
            where=str(path),
            why=f"A tenth is held out and must exceed one sequence of {CONFIG.sequence} bytes.",
            how=f"a text of {10 * (CONFIG.sequence + 1)} bytes or more",
        )
    data = np.frombuffer(text, np.uint8)
    return data[:num_train], data[num_train:]


def prepare(axes: dict[str, int], options: argparse.Namespace) -> Run:
    """The training step: one device runs it under `jax.jit`, a mesh under `sbp.parallelize`."""
    schedule = optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=PEAK_LEARNING_RATE,
        warmup_steps=options.steps // 5,
        decay_steps=options.steps,
        end_value=PEAK_LEARNING_RATE / 20,
    )
    optimizer = optax.adamw(schedule, b2=0.95, weight_decay=0.1)  # b2: no spikes without clipping

    def initial_state(key: jax.Array) -> State:
        params = gpt.init(key, CONFIG)
        return State(params, optimizer.init(params))

    def train_step(state: State, batch: jax.Array) -> tuple[State, dict[str, jax.Array]]:
        loss, gradient = jax.value_and_grad(gpt.loss)(state.params, batch, CONFIG)
        updates, moments = optimizer.update(gradient, state.optimizer, state.params)
        params = jax.tree.map(jnp.add, state.params, updates)
        return State(params, moments), {"loss": loss}

    if math.prod(axes.values()) == 1:
        if options.explain:
            print("One device: the step runs under jax.jit, there is nothing to plan.")
        return Run(jax.jit(train_step, donate_argnums=(0,)), jax.jit(initial_state))

    mesh = flowjax.make_mesh(axes)
    words = gpt.words(CONFIG, options.words, mesh.axis_names)
    step = sbp.parallelize(train_step, mesh=mesh, in_sbp=words, donate_argnums=(0,))
    batch = jax.ShapeDtypeStruct((options.batch, CONFIG.sequence + 1), jnp.int32)
    plan = step.plan(jax.eval_shape(initial_state, jax.random.key(0)), batch)
    print(plan.explain() if options.explain else plan.summary())
    simulated = "; simulated devices share the cores of this host and are slower"
    priced = f"Times above are priced for {plan.cluster!r}"
    print(priced + simulated * (jax.default_backend() == "cpu"))
    print("The first step compiles; then:", flush=True)
    return Run(step, lambda key: step.init(initial_state, key))


def train(run: Run, data: np.ndarray, options: argparse.Namespace) -> State:
    """The state after all steps; the batches depend on the seed alone."""
    rng = np.random.default_rng(options.seed)
    state = run.initial_state(jax.random.key(options.seed))
    started = time.perf_counter()
    with tqdm(range(options.steps), unit="step", mininterval=0.5) as progress:
        for index in progress:
            starts = rng.integers(0, len(data) - CONFIG.sequence, options.batch)
            batch = data[starts[:, None] + np.arange(CONFIG.sequence + 1)].astype(np.int32)
            state, metrics = run.step(state, batch)
            loss = float(metrics["loss"])  # waits: steps of collectives must not pile up on the CPU
            if index == 0:
                started = time.perf_counter()  # leaves the compilation out of the rate
            else:
                seconds = time.perf_counter() - started
                rate = index * options.batch * CONFIG.sequence / seconds
                text = f"loss {loss:.3f} nats/byte, {rate:,.0f} tokens/s"
                progress.set_postfix_str(text, refresh=False)
    return state


def report(params: gpt.Params, train_bytes: np.ndarray, held_out: np.ndarray) -> None:
    """Prints nats per held-out byte of the GPT and of a bigram model, on the same bytes."""
    length = CONFIG.sequence
    num_windows = (len(held_out) - 1) // length
    scored = held_out[: num_windows * length + 1].astype(np.int32)
    windows = scored[np.arange(num_windows)[:, None] * length + np.arange(length + 1)]
    loss = jax.jit(lambda params, batch: gpt.loss(params, batch, CONFIG))
    model = float(np.mean([loss(params, window[None]) for window in windows]))
    bigram = bigram_nats(train_bytes, scored)
    print(f"\nheld-out nats/byte: GPT {model:.3f}, bigram {bigram:.3f}, gain {bigram - model:.3f}")


def bigram_nats(train_bytes: np.ndarray, scored: np.ndarray) -> float:
    """Mean nats per byte of `scored[1:]`: bigram counts smoothed with one draw of the unigram."""
    unigram = np.bincount(train_bytes, minlength=256) + 1.0
    unigram /= unigram.sum()
    pairs = np.zeros((256, 256))
    np.add.at(pairs, (train_bytes[:-1], train_bytes[1:]), 1)
    bigram = (pairs + unigram) / (pairs.sum(axis=1, keepdims=True) + 1)
    return float(-np.log(bigram[scored[:-1], scored[1:]]).mean())


def sample(params: gpt.Params, prompt: str, num_bytes: int, seed: int) -> str:
    """The prompt continued by `num_bytes` bytes drawn at temperature 0.7."""
    logits = jax.jit(lambda params, window: gpt.apply(params, window[None], CONFIG)[0])
    rng = np.random.default_rng(seed)
    text = list(prompt.encode())
    for _ in range(num_bytes):
        recent = text[-CONFIG.sequence :]
        window = np.zeros(CONFIG.sequence, np.int32)
        window[: len(recent)] = recent  # later positions are not looked at
        scores = np.asarray(logits(params, window)[len(recent) - 1], np.float64) / 0.7
        weights = np.exp(scores - scores.max())
        text.append(int(rng.choice(256, p=weights / weights.sum())))
    return bytes(text).decode(errors="replace")


if __name__ == "__main__":
    main()
