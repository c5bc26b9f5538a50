"""Which values can travel together, with how many bytes, and how often loops turn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sbp
from sbp.cost_model import BUCKET_NBYTES
from sbp.graph.flow import analyse, trip_count
from sbp.tracing import trace
from tests.one_device import MESH, check, whole

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


COUNTED = {
    "up": (lambda k: k < 5, 1, 0, 5), "by twos": (lambda k: k <= 5, 2, 0, 3),
    "down": (lambda k: k > 0, -1, 7, 7), "down by twos": (lambda k: k >= -3, -2, 7, 6),
    "never": (lambda k: k < 0, 1, 0, 0),
    "unequal": (lambda k: k != 4, 2, 0, 2), "past it": (lambda k: k != 5, 2, 0, None),
    "away": (lambda k: k > 0, 1, 7, None), "on the spot": (lambda k: k < 5, 0, 0, None),
    "floats": (lambda k: k < 5.0, 1.0, 0.0, None),
}  # fmt: skip


def counting(goes_on, step, start):
    def fn(x):
        def turn(state):
            k, y = state
            y = sbp.pin(y, tp="S(0)")
            return k + step, sbp.pin(y * 2, tp="S(1)")

        return lax.while_loop(lambda s: goes_on(s[0]), turn, (start, x))[1]

    return fn


@pytest.mark.parametrize("name", COUNTED)
def test_loops_that_count_are_known_to_turn_so_often(name):
    goes_on, step, start, turns = COUNTED[name]
    fn = counting(goes_on, step, start)
    struct = jax.ShapeDtypeStruct((8, 8), np.float32)
    (loop,) = trace(lambda x: [fn(x)], [struct], MESH).block.equations
    assert trip_count(loop) == turns
    if turns is None:
        assert "unknown trip count" in sbp.parallelize(fn, mesh=MESH).plan(struct).notes[0]


@pytest.mark.parametrize("name", [n for n, case in COUNTED.items() if case[3] is not None])
def test_what_they_send_is_counted_as_compilers_count(name):
    fn = counting(*COUNTED[name][:3])
    step = check(fn, whole(8, 8), in_sbp="tp: S(1)", out_sbp="tp: S(1)", objective="bytes")
    plan = step.plan(whole(8, 8))
    audited = sbp.audit(step.lower(whole(8, 8)).compile(), plan)
    assert plan.notes == ()
    assert not audited.unplanned
    assert not audited.missing
    assert plan.wire_nbytes == audited.total_nbytes


def test_data_decides_how_often_a_loop_turns():
    for fn in (
        lambda x: lax.while_loop(lambda s: s.sum() < 99, lambda s: s * 2 + 1, x),
        lambda x: lax.fori_loop(0, x[0, 0].astype(int), lambda k, s: s * 2, x),
        lambda x: lax.while_loop(
            lambda s: s[0] < 9, lambda s: (s[0] * 2, s[1] + 1), (1, x))[1],
    ):  # fmt: skip
        block = trace(lambda x, fn=fn: [fn(x)], [jax.ShapeDtypeStruct((8, 8), np.float32)]).block
        (loop,) = [e for e in block.equations if e.name == "while"]
        assert trip_count(loop) is None
