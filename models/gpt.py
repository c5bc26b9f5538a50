"""A GPT: pre-norm decoder with causal attention, as pure functions over a dictionary of arrays.

In: a `GPTConfig`, a key, tokens. Out: parameters (`init`), logits (`apply`), the mean loss
(`loss`), and the SBP words of the well-known parallel styles (`words`). Only the last knows of
devices.

Letters in shapes: B batch, T time (query), S time (key), D model, H heads, K head, F hidden (4 D),
V vocab, L layers.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp

from flowjax.styles import Placement, style_words
from models.training import State, Step, adamw_step

Params = dict[str, Any]  # a leaf, or the dictionary of the blocks


@dataclass(frozen=True, slots=True)
class GPTConfig:
    """Shape and options of a GPT.

    Attributes:
        vocab: Number of tokens, V.
        sequence: Longest input, in tokens; the number of learned positions.
        num_layers: Number of blocks, L.
        num_heads: Attention heads, H; divides `d_model`.
        d_model: Width, D.
        positions: Learned table added to the embedding, or rotation of queries and keys.
        tied_embedding: Use the embedding table for the logits too.
        dropout: Rate on the two residual branches of a block, applied only when a key is given.
        scan_layers: One `lax.scan` over the stacked blocks; otherwise a Python loop.
        remat: Recompute each block in the backward pass.
    """

    vocab: int = 256
    sequence: int = 128
    num_layers: int = 4
    num_heads: int = 4
    d_model: int = 128
    positions: Literal["learned", "rotary"] = "rotary"
    tied_embedding: bool = True
    dropout: float = 0.0
    scan_layers: bool = True
    remat: bool = False

    @property
    def head_size(self) -> int:
        """Size of one head, K."""
        return self.d_model // self.num_heads


BENCHMARK = GPTConfig(
    vocab=1024, sequence=128, num_layers=4, num_heads=8, d_model=256, positions="learned"
)
"""The model of the byte goals: 3,448,064 parameters (norms have gains only, the MLP has biases)."""

GPT3 = GPTConfig(
    vocab=50304, sequence=2048, num_layers=96, num_heads=96, d_model=12288, positions="learned"
)
"""Brown et al., Language Models are Few-Shot Learners, 2020, table 2.1: 175 billion parameters."""


def init(key: jax.Array, config: GPTConfig) -> Params:
    """Parameters of a new model, float32; per-layer arrays are stacked on a leading dim L.

    Args:
        key: Typed key.
        config: The model.
    """
    layers, width, hidden = config.num_layers, config.d_model, 4 * config.d_model
    heads, head = config.num_heads, config.head_size
    keys = iter(jax.random.split(key, 7))

    def normal(*shape: int, scale: float = 0.02) -> jax.Array:
        return scale * jax.random.normal(next(keys), shape)

    residual = 0.02 / math.sqrt(2 * layers)  # GPT-2: keeps the residual stream's variance at 1
    params: Params = {
        "embedding": normal(config.vocab, width),
        "blocks": {
            "ln1": jnp.ones((layers, width)),
            "wqkv": normal(layers, width, 3, heads, head),
            "wproj": normal(layers, heads, head, width, scale=residual),
            "ln2": jnp.ones((layers, width)),
            "wup": normal(layers, width, hidden),
            "bup": jnp.zeros((layers, hidden)),
            "wdown": normal(layers, hidden, width, scale=residual),
            "bdown": jnp.zeros((layers, width)),
        },
        "ln_final": jnp.ones((width,)),
    }
    if config.positions == "learned":
        params["positions"] = normal(config.sequence, width)
    if not config.tied_embedding:
        params["unembedding"] = normal(config.vocab, width)
    return params


def apply(
    params: Params, tokens: jax.Array, config: GPTConfig, key: jax.Array | None = None
) -> jax.Array:
    """Logits [B, T, V] of the token after each position.

    Args:
        params: From `init`.
        tokens: int32 [B, T], T at most `config.sequence`.
        config: The model.
        key: Key of this call's dropout; None for none.
    """
    x = params["embedding"][tokens]
    if config.positions == "learned":
        x = x + params["positions"][None, : tokens.shape[1]]
    block = partial(_block, config=config, key=key if config.dropout > 0 else None)
    if config.remat:
        block = jax.checkpoint(block)
    if config.scan_layers:
        layers = (params["blocks"], jnp.arange(config.num_layers))
        x, _ = jax.lax.scan(lambda x, layer: (block(x, *layer), None), x, layers)
    else:
        for index in range(config.num_layers):
            x = block(x, jax.tree.map(operator.itemgetter(index), params["blocks"]), index)
    x = _layer_norm(x, params["ln_final"])
    table = params["embedding" if config.tied_embedding else "unembedding"]
    return jnp.einsum("btd,vd->btv", x, table)


def loss(
    params: Params, batch: jax.Array, config: GPTConfig, key: jax.Array | None = None
) -> jax.Array:
    """Mean cross-entropy of predicting tokens 1.. from tokens ..-1, in nats per token.

    Args:
        params: From `init`.
        batch: int32 tokens [B, T + 1].
        config: The model.
        key: Key of this call's dropout; None for none.
    """
    logits = apply(params, batch[:, :-1], config, key)
    picked = jnp.take_along_axis(logits, batch[:, 1:, None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


def words(
    config: GPTConfig, style: str, axis_names: Sequence[str] = ("dp", "tp")
) -> dict[str, str]:
    """SBP words of `batch` and every parameter in one of `flowjax.styles.STYLES`.

    Megatron splits attention over heads and the MLP over F: columns going in, rows coming out.

    Args:
        config: The model.
        style: `free`, `dp`, `megatron` or `fsdp`.
        axis_names: Axes of the mesh.
    """
    parameters = {
        "embedding": Placement(fsdp=1),
        "blocks.ln1": Placement(fsdp=1),
        "blocks.wqkv": Placement(fsdp=1, tp=3),
        "blocks.wproj": Placement(fsdp=3, tp=1),
        "blocks.ln2": Placement(fsdp=1),
        "blocks.wup": Placement(fsdp=1, tp=2),
        "blocks.bup": Placement(fsdp=1, tp=1),
        "blocks.wdown": Placement(fsdp=2, tp=1),
        "blocks.bdown": Placement(fsdp=1),
        "ln_final": Placement(fsdp=0),
    }
    if config.positions == "learned":
        parameters["positions"] = Placement(fsdp=1)
    if not config.tied_embedding:
        parameters["unembedding"] = Placement(fsdp=1)
    return style_words(style, axis_names, batch="batch", parameters=parameters)


def example(
    batch: int = 16, config: GPTConfig = BENCHMARK
) -> tuple[Step, tuple[State, jax.ShapeDtypeStruct]]:
    """A training step and the types of its arguments: `flowjax plan models.gpt:example`.

    Args:
        batch: Number of sequences.
        config: The model.
    """
    step, state = adamw_step(partial(loss, config=config), partial(init, config=config))
    return step, (state, jax.ShapeDtypeStruct((batch, config.sequence + 1), jnp.int32))


def _block(
    x: jax.Array,
    block: Params,
    layer: jax.Array | int,
    *,
    config: GPTConfig,
    key: jax.Array | None,
) -> jax.Array:
    attention = _attention(_layer_norm(x, block["ln1"]), block, config)
    x = x + _dropout(attention, config.dropout, key, 2 * layer)
    h = jnp.einsum("btd,df->btf", _layer_norm(x, block["ln2"]), block["wup"])
    h = jax.nn.gelu(h + block["bup"][None, None])
    h = jnp.einsum("btf,fd->btd", h, block["wdown"]) + block["bdown"][None, None]
    return x + _dropout(h, config.dropout, key, 2 * layer + 1)


def _attention(x: jax.Array, block: Params, config: GPTConfig) -> jax.Array:
    qkv = jnp.einsum("btd,dchk->cbthk", x, block["wqkv"])
    q, k, v = qkv[0], qkv[1], qkv[2]
    if config.positions == "rotary":
        q, k = _rotate(q), _rotate(k)
    scores = jnp.einsum("bthk,bshk->bhts", q, k) / math.sqrt(config.head_size)
    causal = jnp.tril(jnp.ones(scores.shape[2:], bool))
    weights = jax.nn.softmax(jnp.where(causal[None, None], scores, -jnp.inf), axis=-1)
    return jnp.einsum("bthk,hkd->btd", jnp.einsum("bhts,bshk->bthk", weights, v), block["wproj"])


def _rotate(x: jax.Array) -> jax.Array:
    """Turns the pair (i, i + K/2) of x [B, T, H, K] by t / 10000^(2i/K) (Su et al. 2021)."""
    half = x.shape[-1] // 2
    frequency = 10_000.0 ** (-jnp.arange(half, dtype=x.dtype) / half)
    angle = jnp.outer(jnp.arange(x.shape[1], dtype=x.dtype), frequency)[None, :, None]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    left, right = x[..., :half], x[..., half:]
    return jnp.concatenate([left * cos - right * sin, left * sin + right * cos], axis=-1)


def _layer_norm(x: jax.Array, gain: jax.Array) -> jax.Array:
    centered = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(centered * centered, axis=-1, keepdims=True)
    return centered * jax.lax.rsqrt(variance + 1e-5) * gain[None, None]


def _dropout(x: jax.Array, rate: float, key: jax.Array | None, site: jax.Array | int) -> jax.Array:
    if key is None:
        return x
    keep = jax.random.bernoulli(jax.random.fold_in(key, site), 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), 0.0)
