"""The machine as numbers: what a device computes and remembers, what a link carries.

Comes in: nothing. Goes out: `Cluster` values, plain data that the cost model reads. Rates are peaks
of the vendor unless a comment says otherwise; a plan priced with them is a ranking, not a forecast.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Link:
    """What joins the devices of one mesh axis.

    Attributes:
        bandwidth: Bytes/s one device sends, in one direction.
        latency: Seconds that one step of a ring takes beside the transfer.
    """

    bandwidth: float
    latency: float


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator.

    Attributes:
        name: For messages.
        flops: Floating-point operations/s of a matmul, by the name of its operands' dtype.
        vector_flops: Floating-point operations/s of everything else, float32.
        memory_bandwidth: Bytes/s between the device and its memory.
        memory_nbytes: Size of that memory.
        kernel_floor_seconds: The least time that one kernel takes.
    """

    name: str
    flops: Mapping[str, float] = field(hash=False)
    vector_flops: float
    memory_bandwidth: float
    memory_nbytes: int
    kernel_floor_seconds: float

    def matmul_flops(self, dtype: str) -> float:
        """Operations/s of a matmul of `dtype`; the vector rate where no unit is made for it."""
        return self.flops.get(dtype, self.vector_flops)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal devices in equal nodes.

    Attributes:
        name: For messages, and the key in `BY_NAME`.
        device: What is computed on.
        inside: The link between devices of one node.
        devices_per_node: Devices that `inside` reaches.
        outside: The link of one device to other nodes.
    """

    name: str
    device: Device
    inside: Link
    devices_per_node: int
    outside: Link

    def axis_links(self, mesh_sizes: Sequence[int]) -> tuple[Link, ...]:
        """The link each mesh axis runs over.

        Devices fill the mesh innermost axis first, as `jax.make_mesh` lays them out on GPUs, so
        inner axes stay inside a node. An axis with neighbours in two nodes is as slow as the way
        between them.

        Args:
            mesh_sizes: Number of devices of each mesh axis, outermost first.
        """
        one_node = math.prod(mesh_sizes) <= self.devices_per_node
        links: list[Link] = []
        span = 1
        for size in reversed(mesh_sizes):
            span *= size
            # A span that does not divide the node straddles two nodes somewhere in the mesh.
            within = one_node or size == 1 or self.devices_per_node % span == 0
            links.append(self.inside if within else self.outside)
        return tuple(reversed(links))


H100_SXM = Device(
    name="NVIDIA H100 SXM 80GB",
    # NVIDIA H100 Tensor Core GPU Architecture (white paper, 2022), table 2: dense rates of the
    # tensor cores. float32 is the TF32 rate, because that is what jax runs by default:
    # jax.lax.Precision.DEFAULT "uses tensorfloat32 if available (e.g. on A100 and H100 GPUs)"
    # (its docstring in jax 0.10.2, read 2026).
    flops={
        "float64": 66.9e12,
        "float32": 494.7e12,
        "bfloat16": 989.4e12,
        "float16": 989.4e12,
        "float8_e4m3fn": 1978.9e12,
        "float8_e5m2": 1978.9e12,
        "int8": 1978.9e12,
    },
    # The same table: float32 outside the tensor cores, which is also a matmul of Precision.HIGHEST.
    vector_flops=66.9e12,
    # XLA's own description of this device, h100_sxm.txtpb in xla/backends/gpu/target_config/specs
    # (read 2026): memory_bandwidth, and device_memory_size (79.1 GiB; "80 GB" is the product name).
    memory_bandwidth=3.352e12,
    memory_nbytes=84_942_979_072,
    # XLA's cost model, kKernelLaunchOverhead in xla/service/gpu/model/gpu_performance_model_base.h
    # (read 2026).
    kernel_floor_seconds=1e-6,
)

H100_NODE = Cluster(
    name="h100",
    device=H100_SXM,
    # NVLink 4 through NVSwitch: 18 links of 25 GB/s each way, 900 GB/s both ways together (the
    # same white paper). Transfers reach about 380 of the 450 GB/s (NCCL issue 1264, 2024). Latency
    # of one ring step: hwLat in NCCL's src/graph/tuning.cc (read 2026), NVLink, ring, LL128.
    inside=Link(bandwidth=450e9, latency=1.9e-6),
    devices_per_node=8,
    # One 400 Gb/s ConnectX-7 for each GPU (NVIDIA DGX H100 data sheet, 2023). Latency: the same
    # table, NET.
    outside=Link(bandwidth=50e9, latency=4.0e-6),
)

CPU = Cluster(
    name="cpu",
    # Nominal: simulated devices share the cores and the memory of one host, so no number can be
    # right. The ratios are those of a machine where communication is dear but not hopeless.
    device=Device(
        name="simulated CPU device",
        flops={"float64": 2.5e10, "float32": 5e10},
        vector_flops=5e10,
        memory_bandwidth=1e10,
        memory_nbytes=4 * 2**30,
        kernel_floor_seconds=1e-6,
    ),
    inside=Link(bandwidth=2e9, latency=1e-5),
    devices_per_node=2**20,
    outside=Link(bandwidth=2e9, latency=1e-5),
)

BY_NAME: Mapping[str, Cluster] = {cluster.name: cluster for cluster in (H100_NODE, CPU)}
"""Clusters by name."""
