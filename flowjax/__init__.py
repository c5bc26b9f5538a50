"""The framework around `sbp`: meshes, and well-known parallel styles as words."""

from flowjax.mesh import make_mesh as make_mesh
from flowjax.mesh import parse_mesh as parse_mesh
from flowjax.zero import fsdp as fsdp
from flowjax.zero import zero as zero

__version__ = "0.1.0"
