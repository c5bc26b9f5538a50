"""Prices: by the ring formulas, whole numbers, and never better for doing more."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp.algebra import ArrayType, B, P, Split
from sbp.boxing import BoxingTable
from sbp.cost_model import (
    BUCKET_NBYTES,
    BYTE_PRICE,
    TREE_EFFICIENCY,
    CostModel,
    num_blocks,
    num_parts,
)
from sbp.factors import Call, NdSignature
from sbp.hardware import BY_NAME, CPU, H100_NODE, Link

F32 = np.dtype("float32")
X = ArrayType((64, 64), F32)
COSTS = CostModel(H100_NODE, (8,))
LINK = H100_NODE.inside


def step(src, dst, array=X, sizes=(8,)):
    (found,) = BoxingTable(array, sizes, {P}).path((src,), (dst,))
    return found


def test_a_collective_takes_latency_and_bytes_over_bandwidth():
    link, memory = H100_NODE.inside, H100_NODE.device.memory_bandwidth
    nbytes = X.nbytes
    gathered = COSTS.step_seconds(step(Split(0), B))
    assert gathered == pytest.approx(
        7 * link.latency + 7 / 8 * nbytes / link.bandwidth + 2 * nbytes / memory
    )
    reduced = COSTS.step_seconds(step(P, B))
    assert reduced == pytest.approx(
        14 * link.latency + 14 / 8 * nbytes / link.bandwidth + 2 * nbytes / memory
    )


def test_local_steps_cost_memory_traffic_only():
    sliced = step(B, Split(0))
    assert COSTS.step_seconds(sliced) == 2 * sliced.local_nbytes / 3.352e12
    assert COSTS.step_seconds(sliced) < 1e-3 * COSTS.step_seconds(step(Split(0), B))


@pytest.mark.parametrize(("src", "dst"), [(Split(0), B), (P, B), (P, Split(0))])
def test_what_travels_together_pays_its_part_of_the_latency(src, dst):
    small = step(src, dst)
    alone, together = COSTS.step_seconds(small), COSTS.step_seconds(small, bucket=BUCKET_NBYTES)
    assert together < 0.1 * alone
    large = step(src, dst, ArrayType((2**12, 2**14), F32))
    assert large.nbytes > 2 * BUCKET_NBYTES
    assert COSTS.step_seconds(large, bucket=BUCKET_NBYTES) == COSTS.step_seconds(large)


@pytest.mark.parametrize(("src", "dst"), [(Split(0), B), (P, Split(0))])
def test_a_bucket_in_a_loop_pays_its_latency_each_turn(src, dst):
    turn, whole = ArrayType((64, 64), F32), ArrayType((16, 64, 64), F32)
    behind = COSTS.step_seconds(step(src, dst, whole), bucket=BUCKET_NBYTES)
    inside = COSTS.step_seconds(step(src, dst, turn), bucket=turn.nbytes)
    shared = COSTS.step_seconds(step(src, dst, turn), bucket=4 * turn.nbytes)
    latency = 7 * H100_NODE.inside.latency
    assert inside >= 7 / 8 * latency
    assert inside / 4 < shared < inside / 3
    assert 16 * inside > behind + 13 * latency


def test_what_is_packed_is_copied_and_an_all_reduce_is_not():
    def excess(src, dst, array=X):
        """Beyond the latency, relative to the traffic of the array."""
        far = dataclasses.replace(H100_NODE, inside=dataclasses.replace(LINK, latency=0.0))
        costs, found = CostModel(far, (8,)), step(src, dst, array)
        seconds = costs.step_seconds(found, bucket=BUCKET_NBYTES) - costs.step_seconds(found)
        return seconds * H100_NODE.device.memory_bandwidth / (2 * array.nbytes)

    assert excess(P, B) == pytest.approx(0, abs=1e-9)
    assert excess(Split(0), B) == pytest.approx(1, rel=0.01)
    assert excess(P, Split(0)) == pytest.approx(7 / 8, rel=0.01)
    large = ArrayType((2**12, 2**14), F32)
    assert excess(Split(0), B, large) == pytest.approx(0, abs=1e-9)  # fills its bucket alone


@pytest.mark.parametrize("shape", [(8,), (64, 64), (2**12, 2**12)])
@pytest.mark.parametrize("bucket", [0, BUCKET_NBYTES])
def test_an_all_reduce_is_no_dearer_than_its_two_halves(shape, bucket):
    array = ArrayType(shape, F32)

    def price(src, dst):
        return COSTS.step_price(step(src, dst, array), bucket=bucket)

    assert price(P, B) <= price(P, Split(0)) + price(Split(0), B) + 1


@given(st.sampled_from([(8,), (2, 4), (4, 2), (2, 2, 2)]), st.sampled_from(["time", "bytes"]))
def test_prices_are_whole_numbers_and_not_negative(sizes, objective):
    costs = CostModel(CPU, sizes, objective)
    for found in BoxingTable(ArrayType((8, 16), F32), sizes, {P}).steps():
        for bucket in (0, BUCKET_NBYTES):
            price = costs.step_price(found, bucket=bucket)
            assert price == int(price) >= 0


def test_a_link_between_nodes_is_slower_than_one_inside():
    inside, outside = CostModel(H100_NODE, (2, 8)).links[::-1]
    assert inside.bandwidth > outside.bandwidth
    crossing = dataclasses.replace(H100_NODE, devices_per_node=2)
    assert CostModel(crossing, (8,)).step_seconds(step(Split(0), B)) > COSTS.step_seconds(
        step(Split(0), B)
    )


def test_over_several_axes_the_slowest_link_carries_the_smallest_blocks():
    costs, array = CostModel(H100_NODE, (2, 8)), ArrayType((64, 64), F32)
    (gather,) = BoxingTable(array, (2, 8)).path((Split(0), Split(0)), (B, B))
    block = array.nbytes / 16
    seconds = (
        H100_NODE.outside.latency + 7 * H100_NODE.inside.latency
        + block / H100_NODE.outside.bandwidth
        + 7 * 2 * block / H100_NODE.inside.bandwidth
        + 2 * array.nbytes / H100_NODE.device.memory_bandwidth
    )  # fmt: skip
    assert costs.step_seconds(gather) == pytest.approx(seconds)


def test_between_nodes_an_all_to_all_sends_all_but_what_stays_in_the_node():
    costs = CostModel(H100_NODE, (2, 8))
    table = BoxingTable(X, (2, 8), {P})
    (exchange,) = table.path((Split(0), Split(0)), (Split(1), Split(1)))
    assert exchange.kind == "all-to-all"
    block = X.nbytes / 16 / 16
    assert costs.step_seconds(exchange) == pytest.approx(
        H100_NODE.outside.latency + 7 * H100_NODE.inside.latency
        + 8 * block / H100_NODE.outside.bandwidth + 7 * block / H100_NODE.inside.bandwidth
        + 2 * exchange.local_nbytes / H100_NODE.device.memory_bandwidth
    )  # fmt: skip


def test_between_nodes_a_permute_sends_everything_over_the_slow_link():
    sizes, large = (4, 4), ArrayType((2**14, 2**14), F32)
    (permute,) = BoxingTable(large, sizes, {P}).path((Split(0), B), (B, Split(0)))
    assert permute.kind == "collective-permute"
    seconds = CostModel(H100_NODE, sizes).step_seconds(permute)
    assert seconds >= large.nbytes / 4 / H100_NODE.outside.bandwidth


def test_between_nodes_a_small_all_reduce_climbs_a_tree_and_a_large_one_goes_round():
    size, link = 64, Link(1e9, 1e-5)
    spread = dataclasses.replace(H100_NODE, devices_per_node=1, outside=link)
    costs = CostModel(spread, (size,))

    def reduce(array):
        found = step(P, B, array, (size,))
        return found, costs.step_seconds(found) - 2 * found.local_nbytes / 3.352e12

    small, seconds = reduce(ArrayType((64,), F32))
    assert seconds == pytest.approx(2 * 6 * link.latency + 2 * 256 / link.bandwidth / 0.92)
    assert seconds < 2 * 63 * link.latency
    large, seconds = reduce(ArrayType((2**14, 2**14), F32))
    assert seconds == pytest.approx(2 * 63 * link.latency + large.nbytes / link.bandwidth)
    assert TREE_EFFICIENCY < 1 < large.nbytes / small.nbytes
    # A tree is a way to reduce: a gather of as little goes round.
    gather = step(Split(0), B, ArrayType((64,), F32), (size,))
    assert costs.step_seconds(gather) > 63 * link.latency


def test_inside_a_node_a_tree_is_a_chain():
    reduced = step(P, B, ArrayType((8,), F32))
    assert COSTS.step_seconds(reduced) > 14 * H100_NODE.inside.latency


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("sizes", [(4, 16), (64,), (2, 3)])
def test_more_bytes_never_take_less_time(name, sizes):
    costs = CostModel(BY_NAME[name], sizes)
    ends = (P,) * len(sizes), (B,) * len(sizes)
    seconds = []
    for width in (1, 4, 64, 2**10, 2**16, 2**20):
        (found,) = BoxingTable(ArrayType((width,), F32), sizes, {P}).path(*ends)
        seconds.append(costs.step_seconds(found))
    assert seconds == sorted(seconds)
    assert seconds[0] > 0


@pytest.mark.parametrize(("src", "dst"), [(Split(0), B), (P, B), (P, Split(0)), (B, Split(0))])
def test_overlap_hides_its_share_of_the_wire_where_collectives_are_bucketed(src, dst):
    found = step(src, dst, ArrayType((2**12, 2**12), F32))

    def seconds(overlap, bucket):
        costs = dataclasses.replace(COSTS, overlap=overlap)
        return costs.step_seconds(found, bucket=bucket)

    assert seconds(0.5, 0) == COSTS.step_seconds(found)
    memory = 2 * found.local_nbytes / H100_NODE.device.memory_bandwidth
    wire = COSTS.step_seconds(found, bucket=BUCKET_NBYTES) - memory
    assert seconds(0.75, BUCKET_NBYTES) == pytest.approx(memory + wire / 4)
    assert seconds(1.0, BUCKET_NBYTES) == pytest.approx(memory)


@pytest.mark.parametrize(("src", "dst"), [(Split(0), B), (P, B), (P, Split(0)),
                                          (Split(0), Split(1))])  # fmt: skip
def test_half_the_dtype_is_half_the_bytes(src, dst):
    halves = ArrayType(X.shape, np.dtype(jnp.bfloat16))
    assert 2 * step(src, dst, halves).nbytes == step(src, dst).nbytes > 0
    whole = COSTS.step_seconds(step(src, dst, ArrayType((2**14, 2**14), F32)))
    half = COSTS.step_seconds(step(src, dst, ArrayType((2**14, 2**14), halves.dtype)))
    assert half == pytest.approx(whole / 2, rel=0.05)


def test_bfloat16_contractions_run_at_their_own_rate_and_move_half_the_bytes():
    signature = NdSignature(((B,), (B,)), ((B,),))
    big = 2**13
    seconds = []
    for dtype in (F32, np.dtype(jnp.bfloat16)):
        array = ArrayType((big, big), dtype)
        call = Call("dot_general", (array, array), (array,), {})
        bound_by_memory = COSTS.signature_seconds(call, signature, (True,) * 3, 0)
        assert bound_by_memory == pytest.approx(3 * array.nbytes / 3.352e12)
        seconds.append(COSTS.signature_seconds(call, signature, (True,) * 3, 2 * big**3))
    assert seconds == [2 * big**3 / 494.7e12, 2 * big**3 / 989.4e12]


def matmul(signature):
    call = Call("dot_general", (X, X), (X,), {})
    split = NdSignature(*(tuple((word,) for word in side) for side in signature))
    return call, split


SPLIT = matmul(((Split(0), B), (Split(0),)))
WHOLE = matmul(((B, B), (B,)))
FLOPS = 2 * 64**3


def test_arithmetic_and_memory_overlap():
    device = H100_NODE.device
    assert COSTS.call_seconds(1e15, "float32", 0) == 1e15 / device.flops["float32"]
    assert COSTS.call_seconds(0, "float32", 1e12) == 1e12 / device.memory_bandwidth
    assert COSTS.call_seconds(1e15, "float32", 1) == COSTS.call_seconds(1e15, "float32", 0)
    # No unit is made for it.
    assert COSTS.call_seconds(1e12, "complex64", 0) == 1e12 / device.vector_flops


def test_a_kernel_takes_its_floor_whatever_its_words():
    floor = H100_NODE.device.kernel_floor_seconds
    assert COSTS.call_seconds(0, "float32", 0, is_kernel=True) == floor
    for call, signature in (SPLIT, WHOLE):
        fused, alone = (
            COSTS.signature_seconds(call, signature, (True,) * 3, FLOPS, is_kernel=kernel)
            for kernel in (False, True)
        )
        assert alone == pytest.approx(fused + floor)


def test_work_that_is_split_is_cheaper():
    for objective in ("time", "bytes"):
        costs = CostModel(H100_NODE, (8,), objective)
        traffic = (True, True, True)
        split = costs.signature_price(*SPLIT, traffic, FLOPS)
        assert 0 <= split < costs.signature_price(*WHOLE, traffic, FLOPS)


def test_what_stays_in_a_kernel_costs_no_traffic():
    call, signature = SPLIT
    for traffic, nbytes in [
        ((False,) * 3, 0), ((True, False, False), X.nbytes / 8), ((False, True, False), X.nbytes),
        ((True,) * 3, X.nbytes * (1 + 2 / 8)),
    ]:  # fmt: skip
        seconds = COSTS.signature_seconds(call, signature, traffic, 0)
        assert seconds == pytest.approx(nbytes / H100_NODE.device.memory_bandwidth)


def test_bytes_come_before_superfluous_work_and_work_before_seconds():
    costs = CostModel(H100_NODE, (8,), "bytes")
    sent = BYTE_PRICE * step(Split(0), B).nbytes
    assert sent < costs.step_price(step(Split(0), B)) < sent + BYTE_PRICE
    assert costs.call_price(1.0, 0.0) <= BYTE_PRICE
    even = costs.signature_price(*SPLIT, (True,) * 3, FLOPS)
    twice = costs.signature_price(*WHOLE, (True,) * 3, FLOPS)
    assert twice - even > 1e3 * even
    # A matmul of long rows done by all costs more than gathering what each could have made.
    long_rows = costs.signature_price(*WHOLE, (False,) * 3, 2 * 64 * 64 * 256)
    assert long_rows > costs.step_price(step(Split(0), B))


def test_parts_are_counted_over_all_arrays_of_a_call():
    signature = NdSignature(((Split(0), B), (B, Split(1))), ((Split(0), P),))
    assert num_parts(signature, (2, 4)) == 8
    assert num_blocks((Split(0), P, Split(0)), (2, 3, 4)) == 8
    assert num_blocks((B, P), (2, 3)) == 1


def test_the_mesh_is_counted():
    assert CostModel(CPU, (2, 3, 4)).num_devices == 24
    assert math.isclose(CostModel(CPU, ()).num_devices, 1)
