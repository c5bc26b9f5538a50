"""The clusters that sbp knows by name, and which of them a device belongs to."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from sbp.hardware.cluster import Cluster, Device, Link
from sbp.hardware.gpus import (
    A100_40GB_NODE,
    A100_ETHERNET,
    A100_NODE,
    B200_NODE,
    H100_NODE,
    H200_NODE,
)
from sbp.hardware.tpus import TPU_V5E_POD, TPU_V5P_POD

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
    source="nominal: simulated devices share one host",
)

BY_NAME: Mapping[str, Cluster] = {
    cluster.name: cluster
    for cluster in (
        H100_NODE, H200_NODE, B200_NODE, A100_NODE, A100_40GB_NODE, A100_ETHERNET,
        TPU_V5E_POD, TPU_V5P_POD, CPU,
    )
}  # fmt: skip
"""Clusters by name."""

# jax's `device_kind`, whole: boards with other links or memory (PCIe, NVL, GH200, GB200) are other
# machines. The version of the memory that follows the size on some boards says nothing new.
_KINDS = (
    (r"NVIDIA A100-SXM4-80GB", A100_NODE),
    (r"NVIDIA A100-SXM4-40GB", A100_40GB_NODE),
    (r"NVIDIA H100 80GB HBM3", H100_NODE),
    (r"NVIDIA H200( 141GB HBM3e)?", H200_NODE),
    (r"NVIDIA B200", B200_NODE),
    (r"TPU v5( lite|e)", TPU_V5E_POD),
    (r"TPU v5p?", TPU_V5P_POD),
)


def as_cluster(hardware: object) -> Cluster | None:
    """A cluster that is given: itself, by name, or by the path of a hardware file (`.json`).

    Returns:
        The cluster; None if it is not one, or the name is not known.

    Raises:
        SbpError: The file does not hold one.
    """
    if isinstance(hardware, Cluster):
        return hardware
    if isinstance(hardware, str) and hardware in BY_NAME:
        return BY_NAME[hardware]
    if not isinstance(hardware, str | os.PathLike):
        return None
    path = Path(cast("str | os.PathLike[str]", hardware))
    return Cluster.load(path) if path.suffix == ".json" else None


def cluster_of_device(kind: str) -> Cluster | None:
    """The cluster that is made of a kind of device.

    Args:
        kind: What `jax.Device.device_kind` says.
    """
    if kind.lower() == "cpu":
        return CPU
    return next((cluster for text, cluster in _KINDS if re.fullmatch(text, kind)), None)
