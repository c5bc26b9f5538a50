"""One matmul whose arrays are held evenly in any words: ours, the least there is, and a bound.

In: shapes and meshes. Out: a table, and the goals on bytes. Every device starts with 1/p of each
operand and ends with 1/p of the result, and which words say so is free. The least bytes do not come
from the planner: `least_elements` tries every role of every mesh axis, and `bound_elements` is what
no algorithm on p devices can go below, whatever the mesh.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from scripts.goals.goal import MOST_ERROR, Goal, at_most
from scripts.goals.matmuls import Best, best_of, partitioned_nbytes

MOST_OVER_BOUND = 1.1
COLUMNS = "{:<14}{:<20}{:<7}{:<7}{:>9}{:>9}{:>9}{:>10}{:>7}{:>7}{:>10}{:>7}"
HEADINGS = (
    "matmul", "m, k, n", "mesh", "roles", "bound MB", "least MB", "planned", "compiled", "unpl.",
    "ratio", "GSPMD MB", "ratio",
)  # fmt: skip


class Matmul(NamedTuple):
    """`[m, k] @ [k, n]` in float32."""

    name: str
    m: int
    k: int
    n: int

    @property
    def arrays(self) -> tuple[tuple[int, str], ...]:
        """Elements of both operands and the result, with the dims they have."""
        return (self.m * self.k, "mk"), (self.k * self.n, "kn"), (self.m * self.n, "mn")


SHAPES = (
    Matmul("square", 4096, 4096, 4096),
    Matmul("tall", 65536, 1024, 1024),  # many tokens
    Matmul("wide", 1024, 1024, 65536),  # a vocabulary
    Matmul("decode", 64, 4096, 4096),  # few tokens
    Matmul("big k", 1024, 65536, 1024),  # the gradient of a weight
    Matmul("feed-forward", 2048, 1024, 4096),
)
SUITE = tuple(
    (shape, sizes)
    for shape, between in zip(SHAPES, itertools.cycle([(2, 4), (4, 2)]), strict=False)
    for sizes in ((8,), between, (2, 2, 2))
)
"""18: each shape on the coarsest and the finest mesh of 8 devices, and on one between them."""


def measure(suite: Sequence[tuple[Matmul, tuple[int, ...]]] = SUITE) -> list[Goal]:
    """Plans and compiles every matmul, and prints a table.

    Args:
        suite: Matmuls and the sizes of their meshes.
    """
    print(COLUMNS.format(*HEADINGS))
    found = []
    for shape, sizes in suite:
        least, roles = least_elements(shape, sizes)
        best = best_of(case_of(shape, sizes, least))
        print(_line(shape, sizes, least, roles, best), flush=True)
        found.append((shape, sizes, 4 * least, best))
    print()
    return list(_goals(found))


def case_of(shape: Matmul, sizes: tuple[int, ...], least: int) -> dict[str, Any]:
    """A case as `matmuls` takes it.

    Args:
        shape: The matmul.
        sizes: Of the mesh.
        least: Elements a device sends at least.
    """
    return {
        "id": shape.name, "tokens": shape.m, "dims": [shape.k, shape.n], "mesh": list(sizes),
        "x": "free", "w": "free", "y": "free", "elements_per_device": least,
    }  # fmt: skip


def least_elements(shape: Matmul, sizes: tuple[int, ...]) -> tuple[int, str]:
    """The fewest elements that a device sends, and the dim that each mesh axis then works on.

    Args:
        shape: The matmul.
        sizes: Of the mesh.
    """
    ways = itertools.product("mkn", repeat=len(sizes))
    return min(
        ((_sent(shape, sizes, roles), "".join(roles)) for roles in ways), key=lambda way: way[0]
    )


def _sent(shape: Matmul, sizes: tuple[int, ...], roles: Sequence[str]) -> int:
    """Of each array: the block that a device works on, without the 1/p of the array it holds."""
    parts = dict.fromkeys("mkn", 1)
    for size, role in zip(sizes, roles, strict=True):
        parts[role] *= size
    held = math.prod(sizes)
    return sum(
        elements // math.prod(parts[dim] for dim in dims) - elements // held
        for elements, dims in shape.arrays
    )


def bound_elements(shape: Matmul, num_devices: int) -> float:
    """What some device has to send or receive at least, whatever the algorithm.

    Args:
        shape: The matmul.
        num_devices: p.

    Source:
        Al Daas, Ballard, Grigori, Kumar, Rouse: Tight Memory-Independent Parallel Matrix
        Multiplication Communication Lower Bounds, SPAA 2022, theorem 3.
    """
    small, middle, large = sorted((shape.m, shape.k, shape.n))
    if num_devices <= large / middle:
        touched = (middle + small) * large / num_devices + middle * small
    elif num_devices <= large * middle / small**2:
        touched = large * middle / num_devices
        touched += 2 * small * math.sqrt(large * middle / num_devices)
    else:
        touched = 3 * (large * middle * small / num_devices) ** (2 / 3)
    return touched - sum(elements for elements, _ in shape.arrays) / num_devices


def _line(shape: Matmul, sizes: tuple[int, ...], least: int, roles: str, best: Best) -> str:
    theirs, sent = partitioned_nbytes(best), best.audit.total_nbytes
    bound = 4 * bound_elements(shape, math.prod(sizes))
    planned = best.plan.wire_nbytes
    return COLUMNS.format(
        shape.name, f"{shape.m}, {shape.k}, {shape.n}", ",".join(map(str, sizes)), roles,
        *(f"{nbytes / 1e6:.3f}" for nbytes in (bound, 4 * least, planned, sent)),
        len(best.audit.unplanned), f"{planned / (4 * least):.3f}",
        "-" if theirs is None else f"{theirs / 1e6:.3f}",
        "-" if theirs is None else f"{theirs / sent:.2f}",
    )  # fmt: skip


def _goals(found: Sequence[tuple[Matmul, tuple[int, ...], int, Best]]) -> Iterator[Goal]:
    """Against the least of each mesh; against the bound on the best of a shape's meshes."""
    ratios = {
        (shape.name, sizes): best.plan.wire_nbytes / least for shape, sizes, least, best in found
    }
    exact = sum(ratio == 1 for ratio in ratios.values())
    (name, sizes), worst = max(ratios.items(), key=lambda item: item[1])
    where = f"; {name} on {','.join(map(str, sizes))} {worst:.3f} of it" if worst > 1 else ""
    count = len(found)
    yield Goal(
        "G2", f"{count} matmuls whose ends are free but even",
        f"{exact} of {count} send the least{where}", f"{count} of {count}", exact == count,
    )  # fmt: skip
    sent: dict[Matmul, list[float]] = {}
    for shape, sizes, _, best in found:
        over = best.plan.wire_nbytes / 4 / bound_elements(shape, math.prod(sizes))
        sent.setdefault(shape, []).append(over)
    worst_shape = max(sent, key=lambda shape: min(sent[shape]))
    yield at_most(
        "G2", f"on the best mesh over the bound, {worst_shape.name}", min(sent[worst_shape]),
        MOST_OVER_BOUND,
    )  # fmt: skip
    off = max(abs(best.plan.wire_nbytes / best.audit.total_nbytes - 1) for _, _, _, best in found)
    unplanned = sum(len(best.audit.unplanned) for _, _, _, best in found)
    yield Goal(
        "G3", f"{count} matmuls whose ends are free but even",
        f"off by {off:.2%} at most, {unplanned} unplanned", f"<= {MOST_ERROR:.0%}, 0",
        off <= MOST_ERROR and unplanned == 0,
    )  # fmt: skip
