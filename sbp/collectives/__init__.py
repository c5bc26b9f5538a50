"""The collectives of a compiled program, with loop counts and bytes, held against the plan.

Comes in: a compiled program, and optionally the mesh and the plan it was lowered from. Goes out: an
`Audit`: every collective, what the plan did not ask for, what it asked for in vain, and what XLA
merged.
Read on in this order: `hlo_text` (text to instructions), `replica_groups` (devices to mesh axes),
`program` (instructions to collectives), `comparison` (with the plan), `report` (the audit itself).
"""

from sbp.collectives.comparison import Difference as Difference
from sbp.collectives.program import Collective as Collective
from sbp.collectives.program import ring_nbytes as ring_nbytes
from sbp.collectives.report import Audit as Audit
from sbp.collectives.report import audit as audit
