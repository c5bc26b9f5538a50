"""The goals on the benchmark's train step: bytes, prediction, memory, collectives and step time.

In: the rows of `strategies`. Out: goals. Bytes, collectives and memory are held against the goals
on both backends, where the step was compiled for H100 too; times are of simulated devices.
"""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from models import gpt
from sbp.plan.explain import flop_share
from scripts import peers
from scripts.goals import memory
from scripts.goals.figures import Figures
from scripts.goals.goal import MOST_ERROR, Goal, not_measured
from scripts.goals.strategies import FREE, STYLED, Row, mesh_of, our_rows, peer_rows, table, timed

MESHES = ((8,), (2, 4), (4, 2), (1, 8))
MOST_MB: dict[tuple[int, ...], float] = {(8,): 24.2, (2, 4): 19.9, (4, 2): 19.9, (1, 8): 24.2}
LIMITED = ((8,), (2, 4))
"""Meshes on which a plan has to keep to what the leanest peer holds."""
MOST_FLOPS = 1.02
MOST_OF_NAIVE: dict[tuple[int, ...], float] = {(1, 8): 0.61, (2, 4): 0.84}
BY_HAND = "shard_map"
SHARED = "sbp DP words"
"""Of ours, the one that is the same program on every mesh, as the peers' that only split data."""
SAME_BYTES = 1.01  # "at equal bytes", with room for the reduction of a loss


def measure(
    rounds: int, target: Path | None = None, meshes: Sequence[tuple[int, ...]] = MESHES,
    config: gpt.GPTConfig = gpt.BENCHMARK,
) -> list[Goal]:  # fmt: skip
    """Compiles and runs every strategy on every mesh, and prints a table for each.

    Args:
        rounds: Steps of each program.
        target: XLA's description of H100, to compile for it too.
        meshes: Sizes of the meshes.
        config: The model.
    """
    shared = peer_rows((8,), peers.DATA_ONLY, config, target)
    goals: list[Goal] = []
    for sizes in meshes:
        makers = peers.makers(mesh_of(sizes)).items()
        others = {name: make for name, make in makers if name not in peers.DATA_ONLY}
        rows = peer_rows(sizes, others, config, target)
        rows += [*shared, *our_rows(sizes, FREE + STYLED * (sizes == (8,)), config, target)]
        if sizes == meshes[0]:
            shared += [row for row in rows if row.name == SHARED]
        rows = timed(rows, rounds, config, always=("GSPMD naive",) * (sizes in MOST_OF_NAIVE))
        goals += goals_of(sizes, rows, config.num_layers)
        if sizes in LIMITED:
            known = [row for row in rows if not row.is_ours]
            limited, found = memory.limited(sizes, known, config, target)
            rows, goals = [*rows, *limited], [*goals, *found]
        print(table(sizes, rows), end="\n\n", flush=True)
    rows, found = memory.recomputed(target, config)
    print("activations are computed again,", table(memory.MESH, rows), end="\n\n", flush=True)
    goals += found
    if target is None:
        goals += [not_measured(name, "H100") for name in ("G1", "G3", "G6", "G9")]
    return goals


def goals_of(sizes: tuple[int, ...], rows: Sequence[Row], num_layers: int) -> Iterator[Goal]:
    """What the rows of a mesh say.

    Args:
        sizes: Of the mesh.
        rows: Ours and the peers', with times.
        num_layers: Of the model.
    """
    ours = {row.name: row for row in rows if row.is_ours}
    for backend in ("cpu", "h100"):
        found = {row.name: figures for row in rows if (figures := getattr(row, backend))}
        if found:
            where = f"mesh {','.join(map(str, sizes))}, {'CPU' if backend == 'cpu' else 'H100'}"
            yield from _bytes_goals(where, MOST_MB[sizes], found, ours)
            yield from _memory_goals(where, found, ours)
            yield from _count_goals(where, found, num_layers, on_cpu=backend == "cpu")
    yield from _time_goals(sizes, rows)


def _bytes_goals(
    where: str, limit: float, found: dict[str, Figures], ours: dict[str, Row]
) -> Iterator[Goal]:
    best = ours["sbp bytes"]
    sent = found[best.name].sent_nbytes
    least = min((name for name in found if name not in ours), key=lambda n: found[n].sent_nbytes)
    share = flop_share(best.plan)  # type: ignore[arg-type]
    yield Goal(
        "G1", where,
        f"{sent / 1e6:.3f} MB, {sent / found[least].sent_nbytes:.2f} of {least}, flops {share:.3f}",
        f"<= {limit} MB, flops <= {MOST_FLOPS}", sent <= limit * 1e6 and share <= MOST_FLOPS,
    )  # fmt: skip
    errors = [
        abs(row.plan.wire_nbytes - found[name].sent_nbytes) / found[name].sent_nbytes  # type: ignore[union-attr]
        for name, row in ours.items()
    ]
    unplanned = sum(found[name].num_unplanned for name in ours)
    yield Goal(
        "G3", f"{where}, {len(errors)} plans",
        f"off by {max(errors):.2%} at most, {unplanned} unplanned", f"<= {MOST_ERROR:.0%}, 0",
        max(errors) <= MOST_ERROR and unplanned == 0,
    )  # fmt: skip


def _memory_goals(where: str, found: dict[str, Figures], ours: dict[str, Row]) -> Iterator[Goal]:
    """Against the leanest peer of those that send no more than ours."""
    for name in ("sbp bytes", "sbp time"):
        most = found[name].sent_nbytes * SAME_BYTES
        rivals = {
            peer: figures.memory_nbytes
            for peer, figures in found.items()
            if peer not in ours and figures.sent_nbytes <= most
        }
        held = found[name].memory_nbytes
        if rivals:
            rival = min(rivals, key=rivals.__getitem__)
            yield Goal(
                "G6", f"{where}, {name}",
                f"{held / 1e6:.1f} MB; {rival} {rivals[rival] / 1e6:.1f}", "<= the peer's",
                held <= rivals[rival],
            )  # fmt: skip
        else:
            rival = min(found.keys() - ours.keys(), key=lambda peer: found[peer].memory_nbytes)
            yield Goal(
                "G6", f"{where}, {name}",
                f"{held / 1e6:.1f} MB; no peer sends as little, {rival} holds "
                f"{found[rival].memory_nbytes / 1e6:.1f}",
                "<= the leanest peer's", held <= found[rival].memory_nbytes,
            )  # fmt: skip


def _count_goals(
    where: str, found: dict[str, Figures], num_layers: int, *, on_cpu: bool
) -> Iterator[Goal]:
    split = 2 * num_layers if on_cpu else 3
    most = {"sbp DP words": 1, "sbp ZeRO-1 words": split, "sbp FSDP words": split}
    for name in (name for name in most if name in found):
        runs, ops = found[name].num_executed, found[name].num_collectives
        yield Goal(
            "G9", f"{where}, {name}", f"{runs} a step, {ops} in the program",
            f"<= {most[name]} a step", runs <= most[name],
        )  # fmt: skip


def _time_goals(sizes: tuple[int, ...], rows: Sequence[Row]) -> Iterator[Goal]:
    """Ratio of least times, and the median of the rounds' own ratios beside it.

    Ours is held against the fastest peer, and the fastest that is written by hand.
    """
    mesh = f"mesh {','.join(map(str, sizes))}"

    def fastest(some: Iterable[Row]) -> Row:
        return min(some, key=lambda row: min(row.seconds))

    known = [row for row in rows if not row.is_ours]
    by_hand = [row for row in known if row.name.startswith(BY_HAND)]
    ours = fastest(row for row in rows if row.is_ours)
    limits = {fastest(some).name: 1.0 for some in (known, by_hand) if some}
    if sizes in MOST_OF_NAIVE:
        limits["GSPMD naive"] = min(MOST_OF_NAIVE[sizes], limits.get("GSPMD naive", 1.0))
    for row in rows:
        if row.name in limits:
            ratio = min(ours.seconds) / min(row.seconds)
            rounds = zip(ours.seconds, row.seconds, strict=False)  # the slower ran fewer
            paired = [mine / theirs for mine, theirs in rounds]
            yield Goal(
                "G10", f"{mesh}, {ours.name} over {row.name}",
                f"{ratio:.3f} (median of rounds {statistics.median(paired):.3f})",
                f"<= {limits[row.name]:g}", ratio <= limits[row.name],
            )  # fmt: skip
