"""sbp: from a pure function to one SPMD program, by the words Split, Broadcast and Partial.

Every array has one word for each mesh axis. From as few or as many as the user names, `parallelize`
infers the rest, inserts the cheapest communication, and runs the plan that it prints.
"""

from sbp.algebra import B as B
from sbp.algebra import NdSbp as NdSbp
from sbp.algebra import P as P
from sbp.algebra import Split as S
from sbp.api import MeshRanking as MeshRanking
from sbp.api import Step as Step
from sbp.api import box as box
from sbp.api import boxing_path as boxing_path
from sbp.api import parallelize as parallelize
from sbp.api import pin as pin
from sbp.api import show as show
from sbp.api import signature as signature
from sbp.api import signatures as signatures
from sbp.api import suggest_mesh as suggest_mesh
from sbp.api import verify_signature as verify_signature
from sbp.api import words as words
from sbp.collectives import audit as audit
from sbp.errors import BoxingError as BoxingError
from sbp.errors import PlanError as PlanError
from sbp.errors import SbpError as SbpError
from sbp.errors import SignatureError as SignatureError
from sbp.hardware import Cluster as Cluster
from sbp.plan import Plan as Plan
from sbp.specs import from_partition_spec as from_partition_spec
from sbp.specs import named_sharding as named_sharding
from sbp.specs import partition_spec as partition_spec

__all__ = [
    "B", "BoxingError", "Cluster", "MeshRanking", "NdSbp", "P", "Plan", "PlanError", "S",
    "SbpError", "SignatureError", "Step", "audit", "box", "boxing_path", "from_partition_spec",
    "named_sharding", "parallelize", "partition_spec", "pin", "show", "signature", "signatures",
    "suggest_mesh", "verify_signature", "words",
]  # fmt: skip
