"""What users call."""

from sbp.api.arrays import box as box
from sbp.api.arrays import boxing_steps as boxing_path
from sbp.api.arrays import show as show
from sbp.api.arrays import words as words
from sbp.api.claims import signature as signature
from sbp.api.inspection import signatures as signatures
from sbp.api.inspection import verify_signature as verify_signature
from sbp.api.meshes import MeshRanking as MeshRanking
from sbp.api.meshes import suggest_mesh as suggest_mesh
from sbp.api.pinning import pin as pin
from sbp.api.step import Step as Step
from sbp.api.step import parallelize as parallelize

__all__ = [
    "MeshRanking", "Step", "box", "boxing_path", "parallelize", "pin", "show", "signatures",
    "suggest_mesh", "verify_signature", "words",
]  # fmt: skip
