"""Google's TPUs, and pods of them.

A pod is one node: `inside` is one of its links (ICI), which join the chips to a torus, and
`outside` the data-centre network between pods. One jax device is one chip. `float32` is the rate of
bfloat16, because jax multiplies float32 in one pass of bfloat16 by default.

"(recalled)" marks a figure that was not held against its source again.
"""

from sbp.hardware.cluster import Cluster, Device, Link

# No kernel is launched by the host; what an operation costs at least is nominal.
_KERNEL_FLOOR = 1e-6
# From one chip to the next, about a microsecond (Austin et al., How to Scale Your Model, 2025;
# recalled). Between pods: nominal.
_ICI_LATENCY = 1e-6
_NETWORK_LATENCY = 3e-5
_DOCUMENTATION = "peaks of Google's documentation"

TPU_V5E = Device(
    name="TPU v5e",
    # cloud.google.com/tpu/docs/v5e (read 2026): rates and memory.
    flops={"float32": 197e12, "bfloat16": 197e12, "int8": 393e12},
    # One core of 8 x 128 lanes with 4 units at about 1.5 GHz (recalled).
    vector_flops=6.1e12,
    memory_bandwidth=819e9,
    memory_nbytes=16 * 10**9,
    kernel_floor_seconds=_KERNEL_FLOOR,
)

TPU_V5P = Device(
    name="TPU v5p",
    # cloud.google.com/tpu/docs/v5p (read 2026): rates and memory; int8 twice bfloat16 (recalled).
    flops={
        "float32": 459e12,
        "bfloat16": 459e12,
        "float8_e4m3fn": 459e12,
        "float8_e5m2": 459e12,
        "int8": 918e12,
    },
    # Two cores of 8 x 128 lanes with 4 units at about 1.75 GHz (recalled).
    vector_flops=14.3e12,
    memory_bandwidth=2765e9,
    memory_nbytes=95 * 2**30,
    kernel_floor_seconds=_KERNEL_FLOOR,
)

TPU_V5E_POD = Cluster(
    name="tpu-v5e",
    device=TPU_V5E,
    # The same page: 400 GB/s both ways together over 4 ports, so 50 GB/s each way on each.
    inside=Link(bandwidth=50e9, latency=_ICI_LATENCY),
    devices_per_node=256,
    # The same page: 6.4 Tb/s for a pod of 256.
    outside=Link(bandwidth=6.4e12 / 8 / 256, latency=_NETWORK_LATENCY),
    # A pod is 16 x 16, and only an axis of 16 is closed (the scaling book; recalled).
    ring_size=16,
    source=_DOCUMENTATION,
)

TPU_V5P_POD = Cluster(
    name="tpu-v5p",
    device=TPU_V5P,
    # The same page: 1200 GB/s both ways together over 6 links, so 100 GB/s each way on each.
    inside=Link(bandwidth=100e9, latency=_ICI_LATENCY),
    # The largest job the page allows, of the 8960 chips of a pod.
    devices_per_node=6144,
    # The same page: 50 Gb/s for a chip.
    outside=Link(bandwidth=50e9 / 8, latency=_NETWORK_LATENCY),
    # Slices are made of cubes of 4 x 4 x 4, whose optical switches close every axis.
    ring_size=4,
    source=_DOCUMENTATION,
)
