"""One training step of any model here, with the types of its arguments.

In: a model's loss and what initialises it. Out: an AdamW step and its state, as shapes and dtypes
only: what it takes to plan the step without a device.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax

LEARNING_RATE = 1e-3


class State(NamedTuple):
    """What a training step changes."""

    params: Any
    moments: optax.OptState


Step = Callable[[State, Any], tuple[State, jax.Array]]


def adamw_step(
    loss: Callable[[Any, Any], jax.Array], init: Callable[[jax.Array], Any]
) -> tuple[Step, State]:
    """A training step, and its state as a tree of `jax.ShapeDtypeStruct`.

    Args:
        loss: Takes parameters and a batch.
        init: Parameters from a key.
    """
    optimizer = optax.adamw(LEARNING_RATE)

    def train_step(state: State, batch: Any) -> tuple[State, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(state.params, batch)
        updates, moments = optimizer.update(gradient, state.moments, state.params)
        params: Any = optax.apply_updates(state.params, updates)
        return State(params, moments), value

    def initial_state(key: jax.Array) -> State:
        params = init(key)
        return State(params, optimizer.init(params))

    return train_step, jax.eval_shape(initial_state, jax.random.key(0))
