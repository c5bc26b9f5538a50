"""All cases, by primitive."""

from tests.oracle import Case
from tests.sbp.rules import (
    contraction_cases,
    elementwise_cases,
    indexing_cases,
    random_cases,
    reduction_cases,
    shape_cases,
)

FAMILIES = (
    elementwise_cases,
    contraction_cases,
    reduction_cases,
    shape_cases,
    indexing_cases,
    random_cases,
)
ALL: tuple[Case, ...] = tuple(case for family in FAMILIES for case in family.CASES)
