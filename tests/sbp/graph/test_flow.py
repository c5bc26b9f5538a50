"""Which values can travel together, and with how many bytes."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sbp.cost_model import BUCKET_NBYTES
from sbp.graph.flow import analyse
from sbp.tracing import trace

LAYERS = 4
WEIGHTS = jax.ShapeDtypeStruct((LAYERS, 16, 16), np.float32)
GAINS = jax.ShapeDtypeStruct((LAYERS, 16), np.float32)
BATCH = jax.ShapeDtypeStruct((8, 16), np.float32)
A_TURN = (16 * 16 + 16) * 4  # bytes of a weight and a gain


def loss(weights, gains, batch):
    def layer(x, slices):
        weight, gain = slices
        return jnp.sin(x @ weight) * gain[None], None

    return jnp.sum(lax.scan(layer, batch, (weights, gains))[0])


def body_of(block, reverse):
    (scan,) = (
        e for e in block.equations if e.name == "scan" and e.params["scan"].reverse == reverse
    )
    return scan.bodies[0]


def test_in_a_loop_the_bytes_of_a_turn_share_a_collective():
    fn = jax.grad(loss, argnums=(0, 1))
    block = trace(lambda *xs: list(fn(*xs)), (WEIGHTS, GAINS, BATCH)).block
    bucketed = analyse(block).bucketed
    assert {bucketed[value] for value in (*block.inputs, *block.outputs)} == {BUCKET_NBYTES}
    forward, backward = body_of(block, False), body_of(block, True)
    slices = [value for value in forward.inputs if value.type.shape in ((16, 16), (16,))]
    assert {bucketed[value] for value in slices} == {A_TURN}
    stacked = [value for value in backward.outputs if value.type.shape in ((16, 16), (16,))]
    assert len(stacked) == 2
    assert {bucketed[value] for value in stacked} == {A_TURN}


def test_no_turn_fills_more_than_a_bucket():
    large = jax.ShapeDtypeStruct((2, 4096, 4096), np.float32)
    block = trace(lambda xs: lax.scan(lambda c, x: (c, x + 1), 0.0, xs)[1], (large,)).block
    assert set(analyse(block).bucketed.values()) == {BUCKET_NBYTES}
