"""Plans: what was chosen, what it costs, how it is read back and printed."""

from sbp.plan.alternatives import Answer as Answer
from sbp.plan.alternatives import Origin as Origin
from sbp.plan.planning import Conditions as Conditions
from sbp.plan.planning import make_plan as make_plan
from sbp.plan.record import Plan as Plan
from sbp.plan.rows import BoxingRow as BoxingRow
from sbp.plan.rows import EquationRow as EquationRow
