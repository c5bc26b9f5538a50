"""The collectives of a compiled program: devices, mesh axes, bytes, and how often each runs.

Comes in: a parsed HLO module and the sizes of the mesh axes. Goes out: one `Collective` per
operation and dtype. Asynchronous pairs count once, at their start; loops multiply; calls are
entered.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from sbp.collectives.hlo_text import (
    Computation,
    HloArray,
    HloModule,
    Instruction,
    called_computations,
    source_line,
    trip_count,
)
from sbp.collectives.replica_groups import (
    Groups,
    axes_of_groups,
    axes_of_pairs,
    expand_replica_groups,
    listed_groups,
)

COLLECTIVE_KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "ragged-all-to-all",
)


@dataclass(frozen=True, slots=True)
class Collective:
    """One communication of a compiled program, as often as its loops run it.

    Attributes:
        kind: The HLO opcode without `-start`, one of `COLLECTIVE_KINDS`.
        groups: Device ids that talk to each other; the (source, target) pairs of a permute.
        axes: The mesh axes the groups lie along, in mesh order and without axes of size 1; for a
            permute the axes along which some pair moves. None without a mesh, and if the groups are
            not those of a set of axes.
        dtype: Numpy's name of the element type that travels.
        nbytes: Bytes the busiest device sends in one execution (`ring_nbytes`).
        count: Executions per call: product of the trip counts of the enclosing loops.
        count_known: False if the text does not tell a trip count, and 1 was taken.
        charged: False in the branches of a conditional that move less than its dearest branch.
        op_name: JAX's name stack, if the text has it.
        source: "file:line" of the user's code, if the text has it.
        instruction: Name of the HLO instruction; one instruction may carry several dtypes.
    """

    kind: str
    groups: Groups
    axes: tuple[str, ...] | None
    dtype: str
    nbytes: float
    count: int = 1
    count_known: bool = True
    charged: bool = True
    op_name: str = ""
    source: str = ""
    instruction: str = ""


def find_collectives(
    module: HloModule, mesh_sizes: Mapping[str, int] | None = None
) -> tuple[Collective, ...]:
    """Every collective that a call of the program runs, callees in place of their calls.

    Args:
        module: The compiled program.
        mesh_sizes: Axis name -> size in mesh order, to name device groups by; ignored if it does
            not have as many devices as the program.
    """
    found = tuple(_walk(module, module.computations[module.entry], 1, True))
    if mesh_sizes is None or prod(mesh_sizes.values()) != module.num_devices:
        return found
    return tuple(replace(row, axes=_axes(row, mesh_sizes)) for row in found)


def ring_nbytes(kind: str, group_size: int, operand_nbytes: float) -> float:
    """Bytes that one device sends in one collective, in a ring or pairwise exchange.

    With n devices and b bytes of the array gathered over them: all-gather and reduce-scatter
    (n-1)/n b, all-reduce 2(n-1)/n b, all-to-all (n-1)/n^2 b; a permute or broadcast passes its
    operand on. A ragged all-to-all is priced as if it were even.

    Args:
        kind: One of `COLLECTIVE_KINDS`.
        group_size: n.
        operand_nbytes: Bytes of one device's operand: b/n for all-gather and all-to-all, else b.
    """
    match kind:
        case "all-gather":
            return (group_size - 1) * operand_nbytes
        case "all-reduce":
            return 2 * (group_size - 1) * operand_nbytes / group_size
        case "reduce-scatter" | "all-to-all" | "ragged-all-to-all":
            return (group_size - 1) * operand_nbytes / group_size
    return operand_nbytes


def _walk(
    module: HloModule, computation: Computation, count: int, known: bool
) -> Iterator[Collective]:
    """The collectives that one run of a computation executes, `count` times over."""
    for instruction in computation.instructions.values():
        match instruction.opcode:
            case "while":
                trips = trip_count(module, computation, instruction)
                sure = known and trips is not None
                # The condition runs once more than the body: the last time it says stop.
                times = {"condition": 1, "body": 1}
                if trips is not None:
                    times = {"condition": trips + 1, "body": trips}
                for key, number in times.items():
                    for inner in _called(module, instruction, key):
                        yield from _walk(module, inner, count * number, sure)
            case "conditional":
                keys = ("branch_computations", "true_computation", "false_computation")
                called = _called(module, instruction, *keys)
                yield from _branches([tuple(_walk(module, c, count, known)) for c in called])
            case "call" | "fusion" | "async-start" | "custom-call":
                keys = ("to_apply", "calls", "called_computations")
                for inner in _called(module, instruction, *keys):
                    yield from _walk(module, inner, count, known)
            case opcode if count and opcode.removesuffix("-start") in (*COLLECTIVE_KINDS, "send"):
                yield from _collectives(module, computation, instruction, count, known)


def _called(module: HloModule, instruction: Instruction, *keys: str) -> list[Computation]:
    return [module.computations[name] for name in called_computations(instruction, *keys)]


def _branches(branches: Sequence[Sequence[Collective]]) -> Iterator[Collective]:
    """All branches; only the one that moves most is charged."""
    totals = [sum(row.nbytes * row.count for row in rows if row.charged) for rows in branches]
    for place, rows in enumerate(branches):
        dearest = place == totals.index(max(totals))
        yield from (replace(row, charged=row.charged and dearest) for row in rows)


def _collectives(
    module: HloModule, computation: Computation, instruction: Instruction, count: int, known: bool
) -> Iterator[Collective]:
    """The rows of one instruction, one per dtype; none if nothing leaves a device."""
    kind = instruction.opcode.removesuffix("-start").replace("send", "collective-permute")
    attributes = instruction.attributes
    if attributes.get("is_host_transfer") == "true":
        return
    groups = (_pairs if kind == "collective-permute" else _groups)(module, kind, attributes)
    if not groups:
        return
    operands: dict[str, float] = {}
    for array in _operands(computation, instruction):
        operands[array.dtype] = operands.get(array.dtype, 0) + array.nbytes
    op_name, source = source_line(module, instruction)
    for dtype, nbytes in operands.items():
        if nbytes:
            yield Collective(
                kind=kind,
                groups=groups,
                axes=None,
                dtype=dtype,
                nbytes=ring_nbytes(kind, max(map(len, groups)), nbytes),
                count=count,
                count_known=known,
                op_name=op_name,
                source=source,
                instruction=instruction.name,
            )


def _operands(computation: Computation, instruction: Instruction) -> Iterable[HloArray]:
    """The arrays that are sent: all operands, without offsets, destinations and tokens."""
    names = instruction.arguments
    in_place_permute = "slice_sizes" in instruction.attributes
    if in_place_permute or instruction.opcode.startswith(("ragged-all-to-all", "send")):
        names = names[:1]
    return [array for name in names for array in computation.instructions[name].arrays]


def _pairs(module: HloModule, kind: str, attributes: Mapping[str, str]) -> Groups:
    """Who sends to whom, without those that send to themselves."""
    text = attributes.get("source_target_pairs")
    if text is None:
        # XLA:GPU turns pipelined permutes into send and recv, and notes the pairs here.
        _, _, text = attributes.get("frontend_attributes", "").partition("source_target_pairs=")
    return tuple(pair for pair in listed_groups(text) if len(set(pair)) > 1)


def _groups(module: HloModule, kind: str, attributes: Mapping[str, str]) -> Groups:
    """The groups as device ids; none if every device is alone."""
    text = attributes.get("replica_groups", "{}")
    if "device_ids" in attributes:
        text += f", device_ids={attributes['device_ids']}"
    groups = expand_replica_groups(text, module.num_devices)
    names_replicas = (
        kind in ("all-reduce", "all-gather", "reduce-scatter")
        and "channel_id" in attributes
        and attributes.get("use_global_device_ids") != "true"
    )
    if names_replicas and text.replace(" ", "") != "{}":
        # Without global ids these three name replicas, each of which stands for its partitions.
        parts = range(module.num_partitions)
        groups = tuple(
            tuple(replica * len(parts) + part for replica in group for part in parts)
            for group in groups
        )
    return groups if max(map(len, groups)) > 1 else ()


def _axes(row: Collective, sizes: Mapping[str, int]) -> tuple[str, ...] | None:
    if row.kind == "collective-permute":
        return axes_of_pairs(row.groups, sizes)
    return axes_of_groups(row.groups, sizes)
