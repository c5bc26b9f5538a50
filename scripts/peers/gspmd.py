"""Strategies in which XLA's partitioner finds the communication: from shardings, or from types.

In: a mesh and a model. Out: a `Peer`. The argument shardings say most of it; `megatron` constrains
the activations too, and in explicit mode they are part of the types.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from models import gpt
from models.training import State, adamw_step
from scripts.peers import megatron as model
from scripts.peers.program import (
    Peer,
    Specs,
    make_peer,
    on_mesh,
    state_specs,
    style_specs,
    updated,
)


def naive(mesh: Mesh, config: gpt.GPTConfig) -> Peer:
    """Argument shardings only: the batch over `dp`, the weights over `tp`."""
    return _by_roles(mesh, config, partial(gpt.loss, config=config))


def megatron(mesh: Mesh, config: gpt.GPTConfig) -> Peer:
    """Argument shardings, and constraints on every sum over `tp`."""
    return _megatron(mesh, config, None)


def megatron_sp(mesh: Mesh, config: gpt.GPTConfig) -> Peer:
    """As `megatron`; between the products the sequence is split over `tp`, not held by all."""
    return _megatron(mesh, config, "tp")


def _megatron(mesh: Mesh, config: gpt.GPTConfig, sequence: str | None) -> Peer:
    """Constrains activations [B, T, D] to lie split over `sequence` between products."""

    def constrained(x: jax.Array, *spec: str | None) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*spec)))

    def held(x: jax.Array) -> jax.Array:
        return constrained(x, "dp", sequence)

    def columns(dims: str, x: jax.Array) -> jax.Array:
        return constrained(x, *({"b": "dp", "h": "tp", "f": "tp"}.get(dim) for dim in dims))

    def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
        logits = constrained(logits, "dp", None, "tp")
        whole, right = jax.nn.logsumexp(logits, axis=-1), model.picked(logits, targets)
        return jnp.mean(constrained(whole, "dp") - constrained(right, "dp"))

    hooks = model.Hooks(
        look_up=lambda table, tokens: held(table[tokens]),
        row_product=lambda subscripts, x, w: held(jnp.einsum(subscripts, x, w)),
        cross_entropy=cross_entropy,
        whole=lambda x: constrained(x, "dp"),
        columns=columns,
    )
    return _by_roles(mesh, config, partial(model.loss, config=config, hooks=hooks))


def explicit(mesh: Mesh, config: gpt.GPTConfig) -> Peer:
    """As `megatron`, with shardings in the types: where a sum is due, the result's is named."""
    mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,) * mesh.devices.ndim)
    activations = PartitionSpec("dp", None, None)

    def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - model.picked(logits, targets))

    hooks = model.Hooks(
        look_up=lambda table, tokens: table.at[tokens].get(out_sharding=activations),
        row_product=partial(jnp.einsum, out_sharding=activations),
        cross_entropy=cross_entropy,
    )
    return _by_roles(mesh, config, partial(model.loss, config=config, hooks=hooks))


def fsdp(mesh: Mesh, config: gpt.GPTConfig) -> Peer:
    """Parameters and moments split over all devices, gathered for use by a constraint."""
    split = style_specs(config, "fsdp", mesh)
    return _data_parallel(mesh, config, split, split)


def zero1(mesh: Mesh, config: gpt.GPTConfig) -> Peer:
    """Only the moments are split over all devices."""
    whole = style_specs(config, "dp", mesh)
    return _data_parallel(mesh, config, whole, style_specs(config, "fsdp", mesh))


def megatron_specs(mesh: Mesh, config: gpt.GPTConfig) -> Specs:
    """Megatron's split of the parameters, vocabulary included; whole without an axis `tp`."""
    if "tp" not in mesh.axis_names:
        return style_specs(config, "dp", mesh)
    return style_specs(config, "megatron", mesh) | {"embedding": PartitionSpec("tp", None)}


def _by_roles(mesh: Mesh, config: gpt.GPTConfig, loss: partial[jax.Array]) -> Peer:
    step, _ = adamw_step(loss, partial(gpt.init, config=config))
    specs = megatron_specs(mesh, config)
    return make_peer(step, mesh, state_specs(config, specs), PartitionSpec("dp"))


def _data_parallel(mesh: Mesh, config: gpt.GPTConfig, params: Specs, moments: Specs) -> Peer:
    whole = on_mesh(mesh, style_specs(config, "dp", mesh))
    parts = on_mesh(mesh, moments)

    def step(state: State, batch: jax.Array) -> tuple[State, jax.Array]:
        # Constrained outside of the loss: inside, the gradients would have to be whole as well.
        full = jax.lax.with_sharding_constraint(state.params, whole)
        value, gradients = jax.value_and_grad(gpt.loss)(full, batch, config)
        gradients = jax.lax.with_sharding_constraint(gradients, parts)
        return updated(state, gradients), value

    state = state_specs(config, params, moments)
    return make_peer(step, mesh, state, PartitionSpec(mesh.axis_names))
