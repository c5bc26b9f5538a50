"""What we know of each primitive: signatures, cost, and how to run it on local arrays."""

from sbp.rules import (
    arithmetic,
    contraction,
    elementwise,
    indexing,
    linalg,
    ordering,
    random_bits,
    reduction,
    shape,
)
from sbp.rules.rule import Rule

FAMILIES = (
    elementwise,
    arithmetic,
    contraction,
    reduction,
    shape,
    indexing,
    ordering,
    random_bits,
    linalg,
)

RULES: dict[str, Rule] = {name: rule for family in FAMILIES for name, rule in family.RULES.items()}
"""The rule of each primitive we know, by its name in a jaxpr."""


def find_rule(primitive: str) -> Rule | None:
    """The rule of a primitive, or None: an unknown primitive runs on whole arrays (B)."""
    return RULES.get(primitive)
