"""What a peer is: a jitted train step and where its arguments lie.

In: a mesh, a model, the `PartitionSpec` of each parameter. Out: a `Peer`, and its first arguments.
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import sbp
from models import gpt
from models.training import LEARNING_RATE, State

OPTIMIZER = optax.adamw(LEARNING_RATE)
Specs = Any
"""A tree like the parameters, of `PartitionSpec`."""


class Peer(NamedTuple):
    """One AdamW step on a mesh: `state, batch -> state, loss`.

    Attributes:
        mesh: The mesh; with Explicit axes the step is traced under it.
        step: The jitted step; the state is donated.
        shardings: Of state and batch.
    """

    mesh: Mesh
    step: Callable[..., Any]
    shardings: tuple[State, NamedSharding]

    def lower(self, *structs: Any) -> jax.stages.Lowered:
        """The lowered step for arguments of these shapes."""
        placed = jax.tree.map(
            lambda s, at: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=at),
            structs, self.shardings,
        )  # fmt: skip
        explicit = AxisType.Explicit in self.mesh.axis_types
        with jax.set_mesh(self.mesh) if explicit else contextlib.nullcontext():
            return self.step.lower(*placed)  # type: ignore[attr-defined]

    def place(self, *arguments: Any) -> Any:
        """The arguments on the mesh."""
        return jax.device_put(arguments, self.shardings)


def initial_arguments(config: gpt.GPTConfig, batch: int) -> tuple[State, Any]:
    """A new state and random tokens, on the host: a step donates what lies on devices."""

    def make() -> tuple[State, jax.Array]:
        params = gpt.init(jax.random.key(0), config)
        shape = (batch, config.sequence + 1)
        tokens = jax.random.randint(jax.random.key(1), shape, 0, config.vocab)
        return State(params, OPTIMIZER.init(params)), tokens

    return jax.device_get(jax.jit(make)())


def style_specs(config: gpt.GPTConfig, style: str, mesh: Mesh) -> Specs:
    """The `PartitionSpec` of every parameter in a style of `gpt.words`."""
    words = gpt.words(config, style, mesh.axis_names)

    def spec(path: Any, leaf: Any) -> PartitionSpec:
        dotted = jax.tree_util.keystr(path, simple=True, separator=".")
        return sbp.partition_spec(words[f"*.{dotted}"], leaf.ndim)

    return jax.tree.map_with_path(spec, param_structs(config))


def param_structs(config: gpt.GPTConfig) -> Any:
    """Shapes and dtypes of the parameters."""
    return jax.eval_shape(lambda: gpt.init(jax.random.key(0), config))


def state_specs(config: gpt.GPTConfig, params: Specs, moments: Specs | None = None) -> State:
    """Specs of the whole state; the moments lie like the parameters if nothing is said."""
    structs = jax.eval_shape(OPTIMIZER.init, param_structs(config))
    held: Any = optax.tree_map_params(
        OPTIMIZER, lambda _, spec: spec, structs, params if moments is None else moments,
        transform_non_params=lambda _: PartitionSpec(),
    )  # fmt: skip
    return State(params, held)


def on_mesh(mesh: Mesh, specs: Any) -> Any:
    """A tree of specs as shardings."""
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)


def make_peer(step: Callable[..., Any], mesh: Mesh, state: State, batch: PartitionSpec) -> Peer:
    """Jits a step whose state leaves as it came.

    Args:
        step: `state, batch -> state, loss`.
        mesh: The mesh.
        state: Specs of the state.
        batch: Spec of the batch.
    """
    shardings: Any = on_mesh(mesh, state), NamedSharding(mesh, batch)
    out = shardings[0], NamedSharding(mesh, PartitionSpec())
    jitted = jax.jit(step, in_shardings=shardings, out_shardings=out, donate_argnums=0)
    return Peer(mesh, jitted, shardings)


def updated(state: State, gradients: Any) -> State:
    """The state after one AdamW update; of parts of arrays as of whole ones."""
    updates, moments = OPTIMIZER.update(gradients, state.moments, state.params)
    params: Any = optax.apply_updates(state.params, updates)
    return State(params, moments)
