"""A multilayer perceptron that classifies vectors, as pure functions over a dictionary of arrays.

In: an `MLPConfig`, a key, a batch. Out: parameters (`init`), logits (`apply`), the mean loss
(`loss`), and the SBP words of the well-known parallel styles (`words`).

Letters in shapes: B batch, I inputs, F hidden, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from flowjax.styles import Placement, style_words
from models.training import State, Step, adamw_step

Params = dict[str, jax.Array]


@dataclass(frozen=True, slots=True)
class MLPConfig:
    """Shape of the network: sizes of its three arrays' dims.

    Attributes:
        inputs: Size of an input vector, I.
        hidden: Width of the hidden layer, F.
        classes: Number of classes, C.
    """

    inputs: int = 64
    hidden: int = 256
    classes: int = 16


def init(key: jax.Array, config: MLPConfig) -> Params:
    """Parameters of a new network, float32, scaled to keep the variance (He et al. 2015).

    Args:
        key: Typed key.
        config: The network.
    """
    up_key, down_key = jax.random.split(key)
    inputs, hidden, classes = config.inputs, config.hidden, config.classes
    return {
        "wup": jax.random.normal(up_key, (inputs, hidden)) * (2 / inputs) ** 0.5,
        "bup": jnp.zeros((hidden,)),
        "wdown": jax.random.normal(down_key, (hidden, classes)) * hidden**-0.5,
        "bdown": jnp.zeros((classes,)),
    }


def apply(params: Params, inputs: jax.Array) -> jax.Array:
    """Logits [B, C] of float32 inputs [B, I]."""
    hidden = jax.nn.relu(inputs @ params["wup"] + params["bup"][None])
    return hidden @ params["wdown"] + params["bdown"][None]


def loss(params: Params, batch: dict[str, jax.Array]) -> jax.Array:
    """Mean cross-entropy in nats per example.

    Args:
        params: From `init`.
        batch: `inputs`, float32 [B, I], and `labels`, int32 [B].
    """
    logits = apply(params, batch["inputs"])
    picked = jnp.take_along_axis(logits, batch["labels"][:, None], axis=-1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


def words(style: str, axis_names: Sequence[str] = ("dp", "tp")) -> dict[str, str]:
    """SBP words of `batch` and every parameter in one of `flowjax.styles.STYLES`.

    Args:
        style: `free`, `dp`, `megatron` (columns going in, rows coming out) or `fsdp`.
        axis_names: Axes of the mesh.
    """
    parameters = {
        "wup": Placement(fsdp=0, tp=1),
        "bup": Placement(fsdp=0, tp=0),
        "wdown": Placement(fsdp=0, tp=0),
        "bdown": Placement(fsdp=0),
    }
    return style_words(style, axis_names, batch="batch.*", parameters=parameters)


def example(
    batch: int = 64, config: MLPConfig | None = None
) -> tuple[Step, tuple[State, dict[str, jax.ShapeDtypeStruct]]]:
    """A training step and the types of its arguments: `flowjax plan models.mlp:example`.

    Args:
        batch: Number of vectors.
        config: The network; its defaults if None.
    """
    config = config or MLPConfig()
    step, state = adamw_step(loss, partial(init, config=config))
    inputs = jax.ShapeDtypeStruct((batch, config.inputs), jnp.float32)
    return step, (state, {"inputs": inputs, "labels": jax.ShapeDtypeStruct((batch,), jnp.int32)})
