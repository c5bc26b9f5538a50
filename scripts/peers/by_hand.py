"""Strategies written in `jax.shard_map`: the author names every collective.

In: a mesh and a model. Out: a `Peer`. Data parallelism of three kinds runs without replication
checks, where a gradient is local until it is reduced; Megatron runs with them, as they say where
the backward pass has to sum over `tp`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from models import gpt
from models.training import State, adamw_step
from scripts.peers import megatron as model
from scripts.peers.gspmd import megatron_specs
from scripts.peers.program import Peer, Specs, make_peer, state_specs, style_specs, updated


def data_parallel(mesh: Mesh, config: gpt.GPTConfig) -> Peer:
    """Everything whole; one all-reduce of loss and gradients."""
    whole = style_specs(config, "dp", mesh)

    def step(state: State, batch: jax.Array) -> tuple[State, jax.Array]:
        loss, gradients = jax.value_and_grad(gpt.loss)(state.params, batch, config)
        loss, gradients = jax.lax.pmean((loss, gradients), mesh.axis_names)
        return updated(state, gradients), loss

    return _mapped(step, mesh, state_specs(config, whole), PartitionSpec(mesh.axis_names))


def fsdp(mesh: Mesh, config: gpt.GPTConfig) -> Peer:
    """All split; weights are gathered, and the transpose of a gather scatters the gradient."""
    split = style_specs(config, "fsdp", mesh)

    def local_loss(shards: Any, batch: jax.Array) -> jax.Array:
        return gpt.loss(_gathered(shards, split), batch, config) / mesh.size

    local_step, _ = adamw_step(local_loss, partial(gpt.init, config=config))

    def step(state: State, batch: jax.Array) -> tuple[State, jax.Array]:
        state, loss = local_step(state, batch)
        return state, jax.lax.psum(loss, mesh.axis_names)

    return _mapped(step, mesh, state_specs(config, split), PartitionSpec(mesh.axis_names))


def zero1(mesh: Mesh, config: gpt.GPTConfig) -> Peer:
    """Moments split; gradients are scattered, and each device updates and shares its part."""
    whole, split = (style_specs(config, style, mesh) for style in ("dp", "fsdp"))

    def scattered(gradient: jax.Array, spec: PartitionSpec) -> jax.Array:
        dim, axes = _split_dim(spec)
        summed = jax.lax.psum_scatter(gradient, axes, scatter_dimension=dim, tiled=True)
        return summed / mesh.size

    def own_part(weight: jax.Array, spec: PartitionSpec) -> jax.Array:
        dim, axes = _split_dim(spec)
        size = weight.shape[dim] // mesh.size
        start = jax.lax.axis_index(axes) * size
        return jax.lax.dynamic_slice_in_dim(weight, start, size, dim)

    def step(state: State, batch: jax.Array) -> tuple[State, jax.Array]:
        loss, gradients = jax.value_and_grad(gpt.loss)(state.params, batch, config)
        parts = State(jax.tree.map(own_part, state.params, split), state.moments)
        parts = updated(parts, jax.tree.map(scattered, gradients, split))
        state = State(_gathered(parts.params, split), parts.moments)
        return state, jax.lax.pmean(loss, mesh.axis_names)

    return _mapped(step, mesh, state_specs(config, whole, split), PartitionSpec(mesh.axis_names))


def megatron(mesh: Mesh, config: gpt.GPTConfig) -> Peer:
    """Heads, hidden units and vocabulary split over `tp`, the batch over `dp`."""

    def first_own(size: int) -> jax.Array:
        return jax.lax.axis_index("tp") * size

    def look_up(table: jax.Array, tokens: jax.Array) -> jax.Array:
        here = tokens - first_own(table.shape[0])
        own = (here >= 0) & (here < table.shape[0])
        rows = jnp.where(own[..., None], table[jnp.where(own, here, 0)], 0.0)
        return jax.lax.psum(rows, "tp")

    def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
        top = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
        top = jax.lax.pmax(top, "tp")
        total = jax.lax.psum(jnp.sum(jnp.exp(logits - top), axis=-1), "tp")
        here = targets - first_own(logits.shape[-1])
        right = jax.lax.psum(model.picked(logits, here), "tp")
        return jnp.mean(jnp.log(total) + top[..., 0] - right)

    hooks = model.Hooks(
        look_up=look_up,
        row_product=lambda subscripts, x, w: jax.lax.psum(jnp.einsum(subscripts, x, w), "tp"),
        cross_entropy=cross_entropy,
    )

    def loss(params: Any, batch: jax.Array) -> jax.Array:
        # Cast once, a gradient is reduced over dp once, however often its parameter is used.
        params = jax.lax.pcast(params, "dp", to="varying")
        return jax.lax.pmean(model.loss(params, batch, config, hooks), "dp")

    step, _ = adamw_step(loss, partial(gpt.init, config=config))
    state = state_specs(config, megatron_specs(mesh, config))
    return _mapped(step, mesh, state, PartitionSpec("dp"), check_vma=True)


def _mapped(
    step: Callable[..., Any], mesh: Mesh, state: State, batch: PartitionSpec,
    *, check_vma: bool = False,
) -> Peer:  # fmt: skip
    mapped = jax.shard_map(
        step, mesh=mesh, in_specs=(state, batch), out_specs=(state, PartitionSpec()),
        check_vma=check_vma,
    )  # fmt: skip
    return make_peer(mapped, mesh, state, batch)


def _gathered(shards: Any, specs: Specs) -> Any:
    def gather(shard: jax.Array, spec: PartitionSpec) -> jax.Array:
        dim, axes = _split_dim(spec)
        return jax.lax.all_gather(shard, axes, axis=dim, tiled=True)

    return jax.tree.map(gather, shards, specs)


def _split_dim(spec: PartitionSpec) -> tuple[int, Any]:
    """The dim that a spec splits, and over which axes."""
    return next((dim, axes) for dim, axes in enumerate(spec) if axes is not None)
