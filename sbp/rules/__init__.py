"""What we know of each primitive: signatures, cost, and how to run it on local arrays."""

from sbp.rules import arithmetic, contraction, elementwise, reduction, shape
from sbp.rules.rule import Rule

RULES: dict[str, Rule] = {
    **elementwise.RULES,
    **arithmetic.RULES,
    **contraction.RULES,
    **reduction.RULES,
    **shape.RULES,
}


def find_rule(primitive: str) -> Rule | None:
    """The rule of a primitive, or None: an unknown primitive runs on whole arrays (B)."""
    return RULES.get(primitive)
