"""Known strategies compute what one device does, and send what the literature says they send."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

import flowjax
import sbp
from models import gpt
from scripts import peers
from scripts.goals.strategies import peer_rows
from scripts.parity_cases import GRADIENT_TOLERANCE, LOSS_TOLERANCE, largest_error

SMALL = dataclasses.replace(gpt.BENCHMARK, vocab=64, sequence=16, num_layers=2, d_model=32)
MESH = "dp=2,tp=4"


@pytest.fixture(autouse=True)
def user_promotion():
    # optax's bias correction raises a float to an int32 array
    with jax.numpy_dtype_promotion("standard"):
        yield


def trained(step, state, batch):
    """Losses of two steps, and the first moments: those of AdamW see the scale of a gradient."""
    state, first = step(state, batch)
    state, second = step(state, batch)
    return (float(first), float(second)), jax.device_get(state.moments[0].mu)


@pytest.fixture(scope="module")
def expected():
    with jax.numpy_dtype_promotion("standard"):
        return trained(jax.jit(gpt.example(16, SMALL)[0]), *peers.initial_arguments(SMALL, 16))


@pytest.mark.parametrize("name", peers.makers(flowjax.make_mesh(MESH)))
def test_a_peer_trains_as_one_device_does(name, expected):
    peer = peers.makers(flowjax.make_mesh(MESH))[name](flowjax.make_mesh(MESH), SMALL)
    step = peer.lower(*gpt.example(16, SMALL)[1]).compile()
    losses, moments = trained(step, *peer.place(*peers.initial_arguments(SMALL, 16)))
    np.testing.assert_allclose(losses, expected[0], rtol=LOSS_TOLERANCE)
    error, leaf = largest_error(moments, expected[1])
    assert error <= GRADIENT_TOLERANCE, leaf


def test_without_tensor_axis_there_is_no_megatron():
    assert not [name for name in peers.makers(flowjax.make_mesh("dp=8")) if "Megatron" in name]


def test_sharded_by_hand_the_benchmark_sends_twice_its_parameters():
    (row,) = peer_rows((8,), {"shard_map FSDP": peers.DATA_ONLY["shard_map FSDP"]})
    num_parameters = 3_448_064
    loss = 2 * 7 / 8 * 4
    assert row.cpu.sent_nbytes == 2 * 7 / 8 * 4 * num_parameters + loss
    assert round(row.cpu.sent_nbytes / 1e6, 2) == 24.14


def test_weights_and_moments_lie_where_a_strategy_says():
    mesh = flowjax.make_mesh("dp=8")
    state, batch = peers.DATA_ONLY["shard_map ZeRO-1"](mesh, SMALL).shardings
    moments: Any = state.moments
    wup = state.params["blocks"]["wup"], moments[0].mu["blocks"]["wup"]
    words = [sbp.from_partition_spec(sharding.spec, mesh, 3) for sharding in wup]
    assert [str(word) for word in words] == ["(dp: B)", "(dp: S(1))"]
    assert str(sbp.from_partition_spec(batch.spec, mesh, 2)) == "(dp: S(0))"


def test_split_between_products_a_sequence_sends_what_whole_ones_do():
    makers = peers.makers(flowjax.make_mesh(MESH))
    names = ("shard_map Megatron", "shard_map Megatron-SP")
    megatron, split = peer_rows((2, 4), {name: makers[name] for name in names})
    # A reduce-scatter and an all-gather send what an all-reduce does; norms and positions are more.
    assert megatron.cpu.sent_nbytes <= split.cpu.sent_nbytes <= 1.01 * megatron.cpu.sent_nbytes
    assert split.cpu.memory_nbytes < 0.9 * megatron.cpu.memory_nbytes
