"""A small convolutional network that classifies images, as pure functions over a dictionary.

In: a `ConvNetConfig`, a key, a batch. Out: parameters (`init`), logits (`apply`), the mean loss
(`loss`), and the SBP words of the well-known parallel styles (`words`).

Letters in shapes: B batch, X image side, I input channels, M middle channels, O output channels,
C classes.
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
class ConvNetConfig:
    """Shape of the network: two 3 x 3 convolutions, each halving the image, then a linear layer.

    Attributes:
        side: Side of the square image, X, in pixels; a multiple of 4.
        channels: Channels of image, first and second convolution: I, M, O.
        classes: Number of classes, C.
    """

    side: int = 16
    channels: tuple[int, int, int] = (8, 16, 32)
    classes: int = 16


def init(key: jax.Array, config: ConvNetConfig) -> Params:
    """Parameters of a new network, float32, scaled to keep the variance (He et al. 2015).

    Args:
        key: Typed key.
        config: The network.
    """
    keys = jax.random.split(key, 3)
    inputs, middle, outputs = config.channels

    def filters(key: jax.Array, into: int, out: int) -> jax.Array:
        return jax.random.normal(key, (3, 3, into, out)) * (2 / (9 * into)) ** 0.5

    return {
        "conv1": filters(keys[0], inputs, middle),
        "bias1": jnp.zeros((middle,)),
        "conv2": filters(keys[1], middle, outputs),
        "bias2": jnp.zeros((outputs,)),
        "linear": jax.random.normal(keys[2], (outputs, config.classes)) * outputs**-0.5,
    }


def apply(params: Params, images: jax.Array) -> jax.Array:
    """Logits [B, C] of float32 images [B, X, X, I]."""
    x = _max_pool(jax.nn.relu(_convolve(images, params["conv1"], params["bias1"])))
    x = _max_pool(jax.nn.relu(_convolve(x, params["conv2"], params["bias2"])))
    return jnp.mean(x, axis=(1, 2)) @ params["linear"]


def loss(params: Params, batch: dict[str, jax.Array]) -> jax.Array:
    """Mean cross-entropy in nats per image.

    Args:
        params: From `init`.
        batch: `images`, float32 [B, X, X, I], and `labels`, int32 [B].
    """
    logits = apply(params, batch["images"])
    picked = jnp.take_along_axis(logits, batch["labels"][:, None], axis=-1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


def words(style: str, axis_names: Sequence[str] = ("dp", "tp")) -> dict[str, str]:
    """SBP words of `batch` and every parameter in one of `flowjax.styles.STYLES`.

    Args:
        style: `free`, `dp`, `megatron` (the first convolution split over its output channels, the
            second over its input channels) or `fsdp`.
        axis_names: Axes of the mesh.
    """
    parameters = {
        "conv1": Placement(fsdp=3, tp=3),
        "bias1": Placement(fsdp=0, tp=0),
        "conv2": Placement(fsdp=3, tp=2),
        "bias2": Placement(fsdp=0),
        "linear": Placement(fsdp=0),
    }
    return style_words(style, axis_names, batch="batch.*", parameters=parameters)


def example(
    batch: int = 64, config: ConvNetConfig | None = None
) -> tuple[Step, tuple[State, dict[str, jax.ShapeDtypeStruct]]]:
    """A training step and the types of its arguments: `flowjax plan models.conv_net:example`.

    Args:
        batch: Number of images.
        config: The network; its defaults if None.
    """
    config = config or ConvNetConfig()
    step, state = adamw_step(loss, partial(init, config=config))
    shape = (batch, config.side, config.side, config.channels[0])
    images = jax.ShapeDtypeStruct(shape, jnp.float32)
    return step, (state, {"images": images, "labels": jax.ShapeDtypeStruct((batch,), jnp.int32)})


def _convolve(x: jax.Array, filters: jax.Array, bias: jax.Array) -> jax.Array:
    """3 x 3 convolution with zero padding: the image keeps its size."""
    dims = ("NHWC", "HWIO", "NHWC")
    y = jax.lax.conv_general_dilated(x, filters, (1, 1), "SAME", dimension_numbers=dims)
    return y + bias[None, None, None]


def _max_pool(x: jax.Array) -> jax.Array:
    batch, side, _, channels = x.shape
    return jnp.max(x.reshape(batch, side // 2, 2, side // 2, 2, channels), axis=(2, 4))
