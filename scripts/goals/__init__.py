"""The goals of planning, as lines with a figure each: met, not met, or not measured.

In: what to measure. Out: tables and `Goal`s, all computed from one run. `steps` runs our plans
beside the peers' programs, `matmuls` the distributed matmuls, `overheads` the time to plan, to
compile and to call. Every module here has a `measure` that prints its tables and returns its goals.
"""

from scripts.goals.goal import Goal as Goal
from scripts.goals.goal import summary as summary
