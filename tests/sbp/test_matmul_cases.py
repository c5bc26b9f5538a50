"""Law: plans of distributed matmuls move the least bytes that exhaustive search has found.

The cases, and what they count, are described in `scripts/matmul_cases.json`.
"""

import pytest

from scripts.goals.matmuls import CASES, best_of, least_nbytes
from scripts.parity_cases import QUICK


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_plan_moves_the_least_bytes(case):
    _, _, plan, audit = best_of(case, QUICK)
    assert plan.wire_nbytes == least_nbytes(case)
    assert plan.gap == 0
    assert audit.total_nbytes == plan.wire_nbytes
    assert audit.unplanned == audit.missing == ()
