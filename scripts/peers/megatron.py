"""The GPT of `models.gpt` with three hooks, where tensor parallelism has to say something.

In: parameters, tokens, and the hooks of a strategy. Out: the mean loss. The model itself knows of
no devices; a hand-written Megatron has to name the places where a sum runs over `tp` (Shoeybi et
al. 2019: after the two row-parallel products, in the embedding, and in the cross-entropy), and
those where a split sequence is gathered again (Korthikanti et al. 2022).

Letters in shapes: as in `models.gpt`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from models import gpt


class Hooks(NamedTuple):
    """What a strategy does where an array is summed over `tp`, or split in another dim.

    Attributes:
        look_up: Table [V, D] and tokens [B, T] to activations [B, T, D].
        row_product: Subscripts, operand and weight to activations: a product over a split dim.
        cross_entropy: Logits [B, T, V] and targets [B, T] to the mean loss.
        whole: Activations to those of the whole sequence, before a product over a whole dim.
        columns: Letters of the dims, and activations that lie split over heads (h) or hidden (f).
        own_rows: Positions [T, D] to those of the activations.
    """

    look_up: Callable[[jax.Array, jax.Array], jax.Array]
    row_product: Callable[[str, jax.Array, jax.Array], jax.Array]
    cross_entropy: Callable[[jax.Array, jax.Array], jax.Array]
    whole: Callable[[jax.Array], jax.Array] = lambda x: x
    columns: Callable[[str, jax.Array], jax.Array] = lambda dims, x: x
    own_rows: Callable[[jax.Array], jax.Array] = lambda rows: rows


def loss(params: Any, batch: jax.Array, config: gpt.GPTConfig, hooks: Hooks) -> jax.Array:
    """As `gpt.loss`, with learned positions and a tied embedding, which the benchmark has."""
    tokens, targets = batch[:, :-1], batch[:, 1:]
    positions = hooks.own_rows(params["positions"][: tokens.shape[1]])
    x = hooks.look_up(params["embedding"], tokens) + positions[None]
    x, _ = jax.lax.scan(lambda x, block: (_block(x, block, config, hooks), None), x,
                        params["blocks"])  # fmt: skip
    x = hooks.whole(_layer_norm(x, params["ln_final"]))
    logits = jnp.einsum("btd,vd->btv", x, params["embedding"])
    return hooks.cross_entropy(logits, targets)


def picked(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Logit of each target [B, T]; zero where the target is not among these logits."""
    chosen = targets[..., None] == jnp.arange(logits.shape[-1])[None, None]
    return jnp.sum(jnp.where(chosen, logits, 0.0), axis=-1)


def _block(x: jax.Array, block: Any, config: gpt.GPTConfig, hooks: Hooks) -> jax.Array:
    h = hooks.whole(_layer_norm(x, block["ln1"]))
    qkv = hooks.columns("cbthk", jnp.einsum("btd,dchk->cbthk", h, block["wqkv"]))
    scores = jnp.einsum("bthk,bshk->bhts", qkv[0], qkv[1]) / math.sqrt(config.head_size)
    causal = jnp.tril(jnp.ones(scores.shape[2:], bool))
    weights = jax.nn.softmax(jnp.where(causal[None, None], scores, -jnp.inf), axis=-1)
    heads = hooks.columns("bthk", jnp.einsum("bhts,bshk->bthk", weights, qkv[2]))
    x = x + hooks.row_product("bthk,hkd->btd", heads, block["wproj"])
    h = jnp.einsum("btd,df->btf", hooks.whole(_layer_norm(x, block["ln2"])), block["wup"])
    h = hooks.columns("btf", jax.nn.gelu(h + block["bup"][None, None]))
    return x + hooks.row_product("btf,fd->btd", h, block["wdown"]) + block["bdown"][None, None]


def _layer_norm(x: jax.Array, gain: jax.Array) -> jax.Array:
    centered = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(centered * centered, axis=-1, keepdims=True)
    return centered * jax.lax.rsqrt(variance + 1e-5) * gain[None, None]
