"""NVIDIA's data-centre GPUs, and nodes of eight of them.

Rates are dense peaks of the vendor. `float32` is the rate of TF32, because that is what jax runs by
default: jax.lax.Precision.DEFAULT "uses tensorfloat32 if available (e.g. on A100 and H100 GPUs)"
(its docstring in jax 0.10.2, read 2026). A matmul of Precision.HIGHEST runs at the vector rate.

Memory: XLA's own descriptions of the devices, `*.txtpb` in xla/backends/gpu/target_config/specs
(read 2026): memory_bandwidth, and device_memory_size (less than the "80 GB" of the product name).

"(recalled)" marks a figure that was not held against its source again.
"""

import dataclasses

from sbp.hardware.cluster import Cluster, Device, Link

# XLA's cost model, kKernelLaunchOverhead in xla/service/gpu/model/gpu_performance_model_base.h
# (read 2026).
_KERNEL_FLOOR = 1e-6
# One ring step, hwLat in NCCL's src/graph/tuning.cc (read 2026), ring, LL128: NVLINK and NET. The
# table has no row of its own for Blackwell.
_NVLINK_LATENCY = 1.9e-6
_NETWORK_LATENCY = 4.0e-6
_DATA_SHEET = "peaks of the vendor"

A100_SXM = Device(
    name="NVIDIA A100 SXM 80GB",
    # NVIDIA A100 Tensor Core GPU data sheet (2021).
    flops={
        "float64": 19.5e12,
        "float32": 156e12,
        "bfloat16": 312e12,
        "float16": 312e12,
        "int8": 624e12,
    },
    vector_flops=19.5e12,
    memory_bandwidth=2.03904e12,
    memory_nbytes=85_100_068_864,
    kernel_floor_seconds=_KERNEL_FLOOR,
)

# The first A100 (2020) differs in its memory only.
A100_SXM_40GB = dataclasses.replace(
    A100_SXM,
    name="NVIDIA A100 SXM 40GB",
    memory_bandwidth=1.5552e12,
    memory_nbytes=42_331_013_120,
)

H100_SXM = Device(
    name="NVIDIA H100 SXM 80GB",
    # NVIDIA H100 Tensor Core GPU Architecture (white paper, 2022), table 2.
    flops={
        "float64": 66.9e12,
        "float32": 494.7e12,
        "bfloat16": 989.4e12,
        "float16": 989.4e12,
        "float8_e4m3fn": 1978.9e12,
        "float8_e5m2": 1978.9e12,
        "int8": 1978.9e12,
    },
    vector_flops=66.9e12,
    memory_bandwidth=3.352e12,
    memory_nbytes=84_942_979_072,
    kernel_floor_seconds=_KERNEL_FLOOR,
)

# NVIDIA H200 data sheet (2024): the arithmetic of H100 SXM, with more and faster memory.
H200_SXM = dataclasses.replace(
    H100_SXM,
    name="NVIDIA H200 SXM 141GB",
    memory_bandwidth=4.8e12,
    memory_nbytes=151_397_597_184,
)

B200_SXM = Device(
    name="NVIDIA B200 180GB",
    # NVIDIA Blackwell Architecture Technical Brief (2024), HGX B200 at 1000 W, as quoted by
    # glennklockwood.com/garden/processors/B200 (read 2026). Later data sheets say 37e12 for
    # float64 (recalled).
    flops={
        "float64": 40e12,
        "float32": 1100e12,
        "bfloat16": 2250e12,
        "float16": 2250e12,
        "float8_e4m3fn": 4500e12,
        "float8_e5m2": 4500e12,
        "int8": 4500e12,
        "float4_e2m1fn": 9000e12,
    },
    vector_flops=80e12,
    memory_bandwidth=7.67232e12,
    memory_nbytes=191_514_411_008,
    kernel_floor_seconds=_KERNEL_FLOOR,
)

A100_NODE = Cluster(
    name="a100",
    device=A100_SXM,
    # NVLink 3 through NVSwitch: 12 links of 25 GB/s each way, 600 GB/s both ways together (the same
    # data sheet).
    inside=Link(bandwidth=300e9, latency=_NVLINK_LATENCY),
    devices_per_node=8,
    # One 200 Gb/s ConnectX-6 for each GPU (NVIDIA DGX A100 data sheet, 2020; recalled).
    outside=Link(bandwidth=25e9, latency=_NETWORK_LATENCY),
    source=_DATA_SHEET,
)

A100_40GB_NODE = dataclasses.replace(A100_NODE, name="a100-40gb", device=A100_SXM_40GB)

A100_ETHERNET = dataclasses.replace(
    A100_40GB_NODE,
    name="a100-ethernet",
    # A cloud machine of eight A100 40GB with 100 Gb/s of Ethernet in all, such as a2-highgpu-8g of
    # Google Cloud (its documentation, 2021; recalled): an eighth for each GPU. Latency of one step
    # over TCP sockets: nominal, tens of microseconds (recalled).
    outside=Link(bandwidth=12.5e9 / 8, latency=3e-5),
)

H100_NODE = Cluster(
    name="h100",
    device=H100_SXM,
    # NVLink 4 through NVSwitch: 18 links of 25 GB/s each way, 900 GB/s both ways together (the
    # same white paper). Transfers reach about 380 of the 450 GB/s (NCCL issue 1264, 2024).
    inside=Link(bandwidth=450e9, latency=_NVLINK_LATENCY),
    devices_per_node=8,
    # One 400 Gb/s ConnectX-7 for each GPU (NVIDIA DGX H100 data sheet, 2023).
    outside=Link(bandwidth=50e9, latency=_NETWORK_LATENCY),
    source=_DATA_SHEET,
)

# NVIDIA DGX H200 (2024): the links of DGX H100 (recalled).
H200_NODE = dataclasses.replace(H100_NODE, name="h200", device=H200_SXM)

B200_NODE = Cluster(
    name="b200",
    device=B200_SXM,
    # NVLink 5 through NVSwitch: 1.8 TB/s both ways together, 14.4 TB/s for eight GPUs (NVIDIA DGX
    # B200 data sheet, 2024, as quoted by others, read 2026).
    inside=Link(bandwidth=900e9, latency=_NVLINK_LATENCY),
    devices_per_node=8,
    # One 400 Gb/s ConnectX-7 for each GPU (the same data sheet; recalled).
    outside=Link(bandwidth=50e9, latency=_NETWORK_LATENCY),
    source=_DATA_SHEET,
)
