"""The machine as numbers: which link an axis runs over, and that no number is absurd."""

import dataclasses

import pytest

from sbp.hardware import BY_NAME, CPU, H100_NODE, H100_SXM, Cluster, Device, Link

FAST, SLOW = Link(100.0, 1e-6), Link(10.0, 1e-5)
TOY = Cluster("toy", Device("toy", {"bfloat16": 4.0}, 1.0, 1.0, 1, 0.0), FAST, 4, SLOW)


@pytest.mark.parametrize(
    ("mesh", "links"),
    [
        ((4,), (FAST,)),
        ((2, 2), (FAST, FAST)),
        ((2, 4), (SLOW, FAST)),
        ((4, 2), (SLOW, FAST)),
        ((8,), (SLOW,)),
        ((2, 2, 2), (SLOW, FAST, FAST)),
        ((2, 1, 4), (SLOW, FAST, FAST)),
        ((1, 4), (FAST, FAST)),
        ((3,), (FAST,)),
        ((2, 3), (SLOW, SLOW)),
        ((), ()),
    ],
)
def test_axes_that_leave_the_node_run_over_the_outer_link(mesh, links):
    assert TOY.axis_links(mesh) == links


def test_one_h100_node_is_eight_devices_on_nvlink():
    assert H100_NODE.axis_links((2, 4)) == (H100_NODE.inside,) * 2
    assert H100_NODE.axis_links((2, 8)) == (H100_NODE.outside, H100_NODE.inside)
    assert H100_NODE.inside.bandwidth == 450e9, "one way: half of what the data sheet says"


def test_float32_matmuls_run_at_the_rate_of_tensorfloat32():
    assert H100_SXM.matmul_flops("float32") == H100_SXM.matmul_flops("bfloat16") / 2
    assert H100_SXM.matmul_flops("int32") == H100_SXM.vector_flops


@pytest.mark.parametrize("cluster", BY_NAME.values(), ids=BY_NAME)
def test_numbers_are_plain_and_positive(cluster):
    assert BY_NAME[cluster.name] is cluster
    device = cluster.device
    numbers = [*device.flops.values(), device.vector_flops, device.memory_bandwidth]
    numbers += [device.memory_nbytes, device.kernel_floor_seconds, cluster.devices_per_node]
    for link in (cluster.inside, cluster.outside):
        numbers += [link.bandwidth, link.latency]
    assert all(number > 0 for number in numbers)
    assert cluster.outside.bandwidth <= cluster.inside.bandwidth < device.memory_bandwidth


def test_clusters_are_values():
    assert hash(CPU) != hash(H100_NODE)
    assert dataclasses.replace(CPU) == CPU
    with pytest.raises(dataclasses.FrozenInstanceError):
        CPU.name = "other"  # type: ignore[misc]
