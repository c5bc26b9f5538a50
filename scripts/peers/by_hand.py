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
    hooks = model.Hooks(
        look_up=lambda table, tokens: jax.lax.psum(_looked_up(table, tokens), "tp"),
        row_product=lambda subscripts, x, w: jax.lax.psum(jnp.einsum(subscripts, x, w), "tp"),
        cross_entropy=_cross_entropy,
    )
    return _megatron(mesh, config, hooks, ())


def megatron_sp(mesh: Mesh, config: gpt.GPTConfig) -> Peer:
    """As `megatron`; sums are scattered over the sequence, which is gathered for products."""

    def scattered(x: jax.Array) -> jax.Array:
        return jax.lax.psum_scatter(x, "tp", scatter_dimension=1, tiled=True)

    def own_rows(rows: jax.Array) -> jax.Array:
        size = rows.shape[0] // mesh.shape["tp"]
        return jax.lax.dynamic_slice_in_dim(rows, jax.lax.axis_index("tp") * size, size)

    hooks = model.Hooks(
        look_up=lambda table, tokens: scattered(_looked_up(table, tokens)),
        row_product=lambda subscripts, x, w: scattered(jnp.einsum(subscripts, x, w)),
        cross_entropy=_cross_entropy,
        whole=lambda x: jax.lax.all_gather(x, "tp", axis=1, tiled=True),
        own_rows=own_rows,
    )
    return _megatron(mesh, config, hooks, ("tp",))


def _megatron(
    mesh: Mesh, config: gpt.GPTConfig, hooks: model.Hooks, token_axes: tuple[str, ...]
) -> Peer:
    """Tokens between products are split over `dp` and over `token_axes`."""
    specs = megatron_specs(mesh, config)

    def varying(weight: jax.Array, spec: PartitionSpec) -> jax.Array:
        axes = ("dp", *(axis for axis in token_axes if axis not in spec))
        return jax.lax.pcast(weight, axes, to="varying")

    def loss(params: Any, batch: jax.Array) -> jax.Array:
        # Cast once, a gradient is reduced over an axis once, however often its parameter is used.
        params = jax.tree.map(varying, params, specs)
        return jax.lax.pmean(model.loss(params, batch, config, hooks), "dp")

    step, _ = adamw_step(loss, partial(gpt.init, config=config))
    return _mapped(step, mesh, state_specs(config, specs), PartitionSpec("dp"), check_vma=True)


def _own_first(size: int) -> jax.Array:
    return jax.lax.axis_index("tp") * size


def _looked_up(table: jax.Array, tokens: jax.Array) -> jax.Array:
    """Rows of a table whose vocabulary is split over `tp`; zeros for those of other devices."""
    here = tokens - _own_first(table.shape[0])
    own = (here >= 0) & (here < table.shape[0])
    return jnp.where(own[..., None], table[jnp.where(own, here, 0)], 0.0)


def _cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """The mean loss of logits [B, T, V] whose vocabulary is split over `tp`."""
    top = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    top = jax.lax.pmax(top, "tp")
    total = jax.lax.psum(jnp.sum(jnp.exp(logits - top), axis=-1), "tp")
    here = targets - _own_first(logits.shape[-1])
    right = jax.lax.psum(model.picked(logits, here), "tp")
    return jnp.mean(jnp.log(total) + top[..., 0] - right)


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
