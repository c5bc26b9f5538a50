"""Meshes of H100s that are not here: XLA's GPU compiler needs a description of the device only.

In: axis sizes and XLA's description, `xla/backends/gpu/target_config/specs/h100_sxm.txtpb` in its
sources. Out: a mesh to lower and compile for. It needs jax's CUDA plugin and its PJRT library of
jax's own version (`pip install --no-deps jax-cuda12-plugin jax-cuda12-pjrt`), none of the CUDA
libraries, and `JAX_PLATFORMS=cpu`.
"""

import math
from collections.abc import Mapping
from pathlib import Path

from jax.experimental import topologies  # noqa: TID251
from jax.sharding import AxisType, Mesh

GPUS_PER_NODE = 8


def h100_mesh(sizes: Mapping[str, int], target: str | Path) -> Mesh:
    """A mesh of H100s, with Auto axes: of one node, or of whole nodes of 8.

    Args:
        sizes: Axis name -> size, outer axis first.
        target: Path of XLA's description of the device.
    """
    num_devices = math.prod(sizes.values())
    nodes = max(num_devices // GPUS_PER_NODE, 1)
    topology = topologies.get_topology_desc(
        platform="cuda",
        target_config=Path(target).read_text(encoding="utf-8"),
        topology=f"1x{nodes}x{num_devices // nodes}",
    )
    shape, names = tuple(sizes.values()), tuple(sizes)
    devices = topologies.make_mesh(topology, shape, names).devices
    return Mesh(devices, names, axis_types=(AxisType.Auto,) * len(names))
