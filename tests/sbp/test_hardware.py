"""The machine as numbers: which link an axis runs over, its files, and that no number is absurd."""

import dataclasses
import json

import jax
import pytest

from sbp.errors import SbpError
from sbp.hardware import (
    A100_SXM,
    B200_SXM,
    BY_NAME,
    CPU,
    H100_NODE,
    H100_SXM,
    H200_SXM,
    TPU_V5E_POD,
    TPU_V5P_POD,
    Cluster,
    Device,
    Link,
    cluster_of_device,
    describe,
)

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

    matrix = device.flops
    assert matrix["float32"] >= device.vector_flops
    assert matrix.get("bfloat16", matrix["float32"]) >= matrix["float32"]
    assert cluster.source, "figures say where they come from"


def test_later_gpus_are_no_slower():
    for older, newer in [(A100_SXM, H100_SXM), (H100_SXM, H200_SXM), (H200_SXM, B200_SXM)]:
        assert newer.memory_bandwidth > older.memory_bandwidth
        assert newer.memory_nbytes > 0.99 * older.memory_nbytes
        assert newer.matmul_flops("bfloat16") >= older.matmul_flops("bfloat16")


def test_an_axis_that_goes_round_a_torus_sends_both_ways():
    one_way = TPU_V5E_POD.inside
    both_ways = Link(2 * one_way.bandwidth, one_way.latency)
    assert TPU_V5E_POD.axis_links((16, 16)) == (both_ways, both_ways)
    assert TPU_V5E_POD.axis_links((8, 16)) == (one_way, both_ways)
    assert TPU_V5E_POD.axis_links((4, 4)) == (one_way, one_way)
    # Two pods: the outer axis leaves them, whatever its size.
    assert TPU_V5E_POD.axis_links((16, 2, 16)) == (TPU_V5E_POD.outside, one_way, both_ways)
    # Cubes of v5p close at 4.
    doubled = 2 * TPU_V5P_POD.inside.bandwidth
    assert [link.bandwidth for link in TPU_V5P_POD.axis_links((8, 4))] == [doubled, doubled]
    assert TPU_V5P_POD.axis_links((2,)) == (TPU_V5P_POD.inside,)
    # The links of a switch are whole for any axis.
    assert H100_NODE.axis_links((8,)) == (H100_NODE.inside,)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100"), ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H200", "h200"), ("NVIDIA B200", "b200"),
        ("TPU v5 lite", "tpu-v5e"), ("TPU v5", "tpu-v5p"), ("TPU v5p", "tpu-v5p"), ("cpu", "cpu"),
        ("NVIDIA H100 PCIe", None), ("NVIDIA H200 NVL", None), ("NVIDIA GB200", None),
        ("NVIDIA GH200 480GB", None), ("TPU v4", None), ("", None),
    ],
)  # fmt: skip
def test_a_device_belongs_to_the_cluster_of_its_kind(kind, name):
    assert cluster_of_device(kind) == (BY_NAME[name] if name else None)


H100_TABLE = """\
mesh pp=2, dp=1, tp=8 on h100: NVIDIA H100 SXM 80GB, 8 a node
axis  size  link     each way  latency
pp    2     outside  50 GB/s   4 us
dp    1     none     -         -
tp    8     inside   450 GB/s  1.9 us
figures: peaks of the vendor"""

POD_TABLE = """\
mesh dp=2, fsdp=32, tp=8 on tpu-v5e: TPU v5e, 256 a node
axis  size  link           each way    latency
dp    2     outside        3.125 GB/s  30 us
fsdp  32    inside, round  100 GB/s    1 us
tp    8     inside         50 GB/s     1 us
figures: peaks of Google's documentation"""


def test_describe_says_which_axis_runs_on_which_link():
    assert describe({"pp": 2, "dp": 1, "tp": 8}, "h100") == H100_TABLE
    pod = jax.sharding.AbstractMesh((2, 32, 8), ("dp", "fsdp", "tp"))
    assert describe(pod, TPU_V5E_POD) == POD_TABLE
    mesh = jax.make_mesh((2, 4), ("dp", "tp"))
    assert describe(mesh, "cpu").startswith("mesh dp=2, tp=4 on cpu: simulated CPU device,")
    assert "figures" not in describe({"dp": 4}, TOY)


def test_describe_reads_a_hardware_file(tmp_path):
    path = tmp_path / "machine.json"
    BY_NAME["h100"].save(path)
    sizes = {"pp": 2, "dp": 1, "tp": 8}
    assert describe(sizes, path) == describe(sizes, str(path)) == H100_TABLE
    with pytest.raises(SbpError, match=r"no-such.json' does not hold a cluster"):
        describe(sizes, str(tmp_path / "no-such.json"))


@pytest.mark.parametrize("cluster", ["h1000", 3, None])
def test_describe_refuses_what_is_no_cluster(cluster):
    with pytest.raises(SbpError) as caught:
        describe({"dp": 2}, cluster)
    assert (
        str(caught.value)
        == f"""\
cluster {cluster!r} is not known.
  The names are {", ".join(BY_NAME)}.
Fix one of: use one of the names | give an sbp.Cluster | give the path of a hardware file, \
measured by scripts/calibrate.py --out machine.json"""
    )


def test_describe_refuses_what_is_no_mesh():
    for given in (3, None, {}, {"dp": 0}, {"dp": "4"}, {"dp": 1.5}, {1: 2}, "dp=0", "dp"):
        with pytest.raises(SbpError, match=r"\(hardware\.describe\)\.\n"):
            describe(given, "h100")


def test_describe_takes_the_text_of_a_mesh():
    assert describe("pp=2,dp=1,tp=8", "h100") == H100_TABLE


@pytest.mark.parametrize("cluster", BY_NAME.values(), ids=BY_NAME)
def test_a_cluster_survives_its_file(cluster, tmp_path):
    cluster.save(tmp_path / "machine.json")
    assert Cluster.load(tmp_path / "machine.json") == cluster


def changed(data, path, value):
    *outer, last = path
    for key in outer:
        data = data[key]
    if value is None:
        del data[last]
    else:
        data[last] = value


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (("format",), 2, "Its format is 2, this version reads 1."),
        (("format",), None, "The file lacks format."),
        (("inside",), None, "The file lacks inside."),
        (("inside", "latency"), None, "Inside lacks latency."),
        (("inside",), 3, "Inside is not a JSON object."),
        (("device", "colour"), "red", "Device has colour, which is not known."),
        (("device", "flops"), [1], "Flops of device is not a JSON object."),
        (("device", "flops", "float32"), "fast",
         "Matmul rate of float32, in operations/s, is 'fast'."),
        (("outside", "bandwidth"), 0, "Bandwidth of a link, in bytes/s, is 0."),
        (("outside", "latency"), -1e-6, "Latency of a link, in seconds, is -1e-06."),
        (("device", "memory_bandwidth"), float("nan"), "Memory_bandwidth, in bytes/s, is nan."),
        (("outside", "bandwidth"), float("inf"), "Bandwidth of a link, in bytes/s, is inf."),
        (("devices_per_node",), True, "Devices_per_node is True."),
        (("outside", "bandwidth"), 10**31, f"Bandwidth of a link, in bytes/s, is {10**31}."),
        (("inside", "latency"), 10**400, f"Latency of a link, in seconds, is {10**400}."),
        (("name",), 5, "Name of a cluster is 5."),
        (("device", "name"), {}, "Name of a device is {}."),
        (("source",), [], "Source is []."),
    ],
)  # fmt: skip
def test_a_bad_file_is_one_clear_error(path, value, why, tmp_path):
    file = tmp_path / "machine.json"
    H100_NODE.save(file)
    data = json.loads(file.read_text())
    changed(data, path, value)
    file.write_text(json.dumps(data))
    with pytest.raises(SbpError) as caught:
        Cluster.load(file)
    assert str(caught.value) == (
        f"{str(file)!r} does not hold a cluster (hardware file).\n  {why}\nFix one of: write one "
        "with scripts/calibrate.py --out | write one with sbp.Cluster.save"
    )


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff", b"[" * 100_000])
def test_a_file_of_something_else_is_an_error(content, tmp_path):
    (tmp_path / "machine.json").write_bytes(content)
    with pytest.raises(SbpError, match="does not hold a cluster"):
        Cluster.load(tmp_path / "machine.json")


def test_a_figure_that_cannot_be_is_an_error_where_it_is_written():
    with pytest.raises(SbpError, match=r"bandwidth of a link, in bytes/s, is -1 \(hardware\)"):
        Link(-1, 0)
    assert Link(1, 0).latency == 0


def test_clusters_are_values():
    assert hash(CPU) != hash(H100_NODE)
    assert dataclasses.replace(CPU) == CPU
    with pytest.raises(dataclasses.FrozenInstanceError):
        CPU.name = "other"  # type: ignore[misc]
