"""The cases of `check_parity.py`: small models, meshes, plans and lowerings, and how one is run.

In: a `Case`. Out: an `Outcome`: how far loss and gradients of the planned function are from the
one-device function (`jax.jit` of the same Python function), and how the compiled program's
collectives compare with the plan.
"""

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import flowjax
import sbp
from flowjax.styles import STYLES
from models import conv_net, gpt, mlp
from sbp.hardware import CPU, Link

# float32 sums in another order; both are tens of times what the cases show.
LOSS_TOLERANCE = 1e-5
"""Largest difference of a loss, relative to the loss."""
GRADIENT_TOLERANCE = 1e-4
"""Largest difference in a gradient leaf, relative to the largest magnitude in that leaf."""

MESHES = ((8,), (2, 4), (4, 2), (2, 2, 2))
LOWERINGS = ("manual", "auto")
MODEL_NAMES = (
    "mlp", "conv", "gpt-scan", "gpt-scan-dropout", "gpt-scan-remat", "gpt-scan-remat-dropout",
    "gpt-unrolled", "gpt-unrolled-dropout", "gpt-unrolled-remat", "gpt-unrolled-remat-dropout",
)  # fmt: skip
QUICK: dict[str, Any] = {"xla_backend_optimization_level": 0}
"""XLA options that compile several times faster; the collectives stay the same."""
if jax.__version_info__ < (0, 11):  # an option that newer XLA does not have
    QUICK["xla_cpu_use_fusion_emitters"] = False

BATCH = 8
DROPOUT = 0.25
# Small arrays are bound by latency, and then gathering weights is cheapest whatever the words. On a
# machine without latency the plans split the computation as they would split a larger one.
WITHOUT_LATENCY = dataclasses.replace(CPU, inside=Link(CPU.inside.bandwidth, latency=0.0))


@dataclass(frozen=True, slots=True)
class Model:
    """A function to plan: loss and gradients of a model.

    Attributes:
        name: As on the command line.
        function: `params, batch` or `params, batch, key` -> `loss, gradients`.
        arguments: Example arguments, on the host.
        words: Style and mesh axes -> words by argument path.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    words: Callable[[str, Sequence[str]], dict[str, str]]


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table.

    Attributes:
        model: One of `MODEL_NAMES`.
        mesh: Sizes of the mesh axes.
        plan: One of `flowjax.styles.STYLES`.
        lowering: `manual` or `auto`.
    """

    model: str
    mesh: tuple[int, ...]
    plan: str
    lowering: str

    def __str__(self) -> str:
        return f"{self.model}, mesh {self.mesh}, plan {self.plan}, lowering {self.lowering}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What running a case showed.

    Attributes:
        loss_error: Difference of the losses, relative to the one-device loss.
        gradient_error: Largest difference in a leaf over its largest magnitude; worst leaf.
        worst_leaf: Path of that leaf.
        plan: The plan.
        audit: Compiled against planned; None for the lowering `auto`.
        seconds: Wall time of planning, compiling and running.
    """

    loss_error: float
    gradient_error: float
    worst_leaf: str
    plan: sbp.Plan
    audit: Any
    seconds: float

    @property
    def failures(self) -> tuple[str, ...]:
        """What is wrong, in words; empty if nothing is."""
        found = []
        if not self.loss_error <= LOSS_TOLERANCE:  # NaN is wrong too
            found.append(f"loss off by {self.loss_error:.1e}")
        if self.gradient_error > GRADIENT_TOLERANCE:
            found.append(f"gradient {self.worst_leaf} off by {self.gradient_error:.1e}")
        if self.audit is not None and self.audit.unplanned:
            found.append(f"{len(self.audit.unplanned)} unplanned: {self.audit.unplanned[0]}")
        return tuple(found)


@functools.cache
def find_model(name: str) -> Model:
    """The model of a name. Made on first use: it holds arrays, which need JAX's devices."""
    if name == "mlp":
        vector = mlp.MLPConfig(inputs=32, hidden=64, classes=16)
        return _classifier(name, mlp, vector, "inputs", (vector.inputs,))
    if name == "conv":
        image = conv_net.ConvNetConfig(side=12, channels=(4, 16, 32), classes=24)
        shape = (image.side, image.side, image.channels[0])
        return _classifier(name, conv_net, image, "images", shape)
    return _gpt(name)


def _gpt(name: str) -> Model:
    """Scan or unrolled, with or without remat and dropout; positions and head vary along.

    No two dims are equal, so that one cannot stand for another: B 8, T 24, D 96, H 16, K 6, F 384,
    V 64. As B T < F, splitting F moves less than gathering weights.
    """
    scan, remat, dropout = "scan" in name, "remat" in name, "dropout" in name
    config = gpt.GPTConfig(
        vocab=64, sequence=24, num_layers=2, num_heads=16, d_model=96,
        positions="learned" if scan == remat else "rotary",
        tied_embedding=remat or not dropout,
        dropout=DROPOUT if dropout else 0.0, scan_layers=scan, remat=remat,
    )  # fmt: skip
    tokens = np.random.default_rng(0).integers(0, config.vocab, (BATCH, config.sequence + 1))

    def loss_and_gradients(params, batch, key=None):
        return jax.value_and_grad(gpt.loss)(params, batch, config, key)

    params = jax.jit(gpt.init, static_argnums=1)(jax.random.key(0), config)
    keys = (jax.random.key(1),) * dropout
    return Model(
        name,
        loss_and_gradients,
        (params, tokens.astype(np.int32), *keys),
        functools.partial(gpt.words, config),
    )


def _classifier(
    name: str, module: Any, config: Any, argument: str, shape: tuple[int, ...]
) -> Model:
    rng = np.random.default_rng(0)
    batch = {
        argument: rng.normal(size=(BATCH, *shape)).astype(np.float32),
        "labels": rng.integers(0, config.classes, BATCH).astype(np.int32),
    }

    def loss_and_gradients(params, batch):
        return jax.value_and_grad(module.loss)(params, batch)

    params = jax.jit(module.init, static_argnums=1)(jax.random.key(0), config)
    return Model(name, loss_and_gradients, (params, batch), module.words)


def axis_names(mesh: Sequence[int], plan: str) -> tuple[str, ...]:
    """Names of the mesh axes; the one axis of a 1-D mesh is what the plan splits over."""
    if len(mesh) == 1:
        return ("tp",) if plan == "megatron" else ("dp",)
    return ("dp", "tp", "pp")[: len(mesh)]


def all_cases() -> list[Case]:
    """Every combination."""
    return [Case(*parts) for parts in itertools.product(MODEL_NAMES, MESHES, STYLES, LOWERINGS)]


@functools.cache
def one_device(model: str, quick: bool = False) -> tuple[Any, Any]:
    """Loss and gradients of a model on one device, on the host."""
    made = find_model(model)
    program = jax.jit(made.function, compiler_options=QUICK if quick else None)
    return jax.device_get(program(*made.arguments))


def make_step(case: Case, plan: sbp.Plan | None = None) -> sbp.Step:
    """The planned function of a case; pinned gradients lie like their parameters.

    Args:
        case: The case.
        plan: A plan to run as it is.
    """
    names = axis_names(case.mesh, case.plan)
    words = find_model(case.model).words(case.plan, names)
    gradients = {path: asked for path, asked in words.items() if not path.startswith("batch")}
    return sbp.parallelize(
        find_model(case.model).function,
        mesh=flowjax.make_mesh(dict(zip(names, case.mesh, strict=True))),
        in_sbp=words or None,
        out_sbp=gradients or None,
        hardware=WITHOUT_LATENCY if case.plan in ("free", "megatron") else CPU,
        lowering=case.lowering,
        plan=plan,
    )


@functools.lru_cache(maxsize=2)
def _plan(model: str, mesh: tuple[int, ...], plan: str) -> sbp.Plan:
    """What both lowerings run; planned once."""
    case = Case(model, mesh, plan, "manual")
    return make_step(case).plan(*find_model(model).arguments)


def run_case(case: Case, *, quick: bool = False) -> Outcome:
    """Plans, compiles and runs a case, and compares it with one device.

    Args:
        case: What to run.
        quick: Compile with the options `QUICK`.
    """
    expected_loss, expected = one_device(case.model, quick)
    arguments = find_model(case.model).arguments
    started = time.perf_counter()
    step = make_step(case, _plan(case.model, case.mesh, case.plan))
    plan = step.plan(*arguments)
    compiled = step.lower(*arguments).compile(QUICK if quick else None)
    # On the CPU, steps of collectives must not pile up: device_get waits.
    loss, gradients = jax.device_get(compiled(*_as_tuple(step.place(*arguments))))
    seconds = time.perf_counter() - started
    error, leaf = largest_error(gradients, expected)
    return Outcome(
        abs(float(loss) - float(expected_loss)) / abs(float(expected_loss)),
        error, leaf, plan,
        sbp.audit(compiled, plan) if case.lowering == "manual" else None,
        seconds,
    )  # fmt: skip


def largest_error(tree: Any, expected: Any) -> tuple[float, str]:
    """Largest difference in a leaf over the leaf's largest expected magnitude, and the leaf.

    A NaN counts as infinite.
    """
    errors = {}
    leaves = zip(jax.tree.leaves_with_path(expected), jax.tree.leaves(tree), strict=True)
    for (path, right), got in leaves:
        assert got.shape == right.shape, (path, got.shape, right.shape)
        scale = float(np.max(np.abs(right))) or 1.0
        error = float(np.max(np.abs(got - right))) / scale
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        errors[name] = math.inf if math.isnan(error) else error
    worst = max(errors, key=errors.__getitem__)
    return errors[worst], worst


def dropout_mask(key: jax.Array) -> jax.Array:
    """What a GPT's dropout does to ones, at two sites: 0 or 1 / (1 - rate)."""
    ones = jnp.ones((BATCH, 24, 32))
    return jnp.stack([gpt._dropout(ones, DROPOUT, key, site) for site in (0, 3)])


def mask_words(mesh: Sequence[int]) -> list[str]:
    """Splits of the mask [site, B, T, D]: the batch over all axes; each axis another dim."""
    names = axis_names(mesh, "free")
    together = ", ".join(f"{name}: S(1)" for name in names)
    apart = ", ".join(f"{name}: S({3 - place})" for place, name in enumerate(names))
    return [together, apart]


def masks_differ(mesh: Sequence[int], lowering: str, *, quick: bool = False) -> int:
    """Number of elements in which a mask made in blocks on a mesh is not the one-device mask."""
    key = jax.random.key(1)
    expected = np.asarray(jax.jit(dropout_mask)(key))
    assert 0 < np.count_nonzero(expected) < expected.size
    names = axis_names(mesh, "free")
    differing = 0
    for words in mask_words(mesh):
        step = sbp.parallelize(
            dropout_mask,
            mesh=flowjax.make_mesh(dict(zip(names, mesh, strict=True))),
            out_sbp=words,
            lowering=lowering,
        )
        made = step.lower(key).compile(QUICK if quick else None)(step.place(key))
        assert made.sharding.shard_shape(made.shape) != made.shape, "the mask is not split"
        differing += int(np.count_nonzero(np.asarray(made) != expected))
    return differing


def _as_tuple(placed: Any) -> tuple[Any, ...]:
    return placed if isinstance(placed, tuple) else (placed,)
