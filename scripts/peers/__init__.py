"""The known strategies for the train step of a GPT, as people write them without a planner.

In: a mesh and a model. Out: a `Peer` each: one AdamW step, jitted, with the shardings of its
arguments. All compute the same loss as one device does; they differ in what they send and hold.
Read on in this order: `program` (what a peer is), `megatron` (the model with its hooks), `gspmd`
(XLA's partitioner inserts the communication), `by_hand` (shard_map: the author does).
"""

from collections.abc import Callable

from jax.sharding import Mesh

from models import gpt
from scripts.peers import by_hand, gspmd
from scripts.peers.program import Peer as Peer
from scripts.peers.program import initial_arguments as initial_arguments

Maker = Callable[[Mesh, gpt.GPTConfig], Peer]

DATA_ONLY: dict[str, Maker] = {
    "GSPMD FSDP": gspmd.fsdp,
    "GSPMD ZeRO-1": gspmd.zero1,
    "shard_map DP": by_hand.data_parallel,
    "shard_map FSDP": by_hand.fsdp,
    "shard_map ZeRO-1": by_hand.zero1,
}
"""Every axis of the mesh carries data."""
BY_ROLES: dict[str, Maker] = {
    "GSPMD naive": gspmd.naive,
    "explicit mode": gspmd.explicit,
}
"""Data on `dp`, and Megatron's split on `tp` where the mesh has it."""
TENSOR: dict[str, Maker] = {
    "GSPMD Megatron": gspmd.megatron,
    "GSPMD Megatron-SP": gspmd.megatron_sp,
    "shard_map Megatron": by_hand.megatron,
    "shard_map Megatron-SP": by_hand.megatron_sp,
}
"""Need an axis `tp`."""


def makers(mesh: Mesh) -> dict[str, Maker]:
    """Name -> maker of every peer that applies to a mesh."""
    return BY_ROLES | (TENSOR if "tp" in mesh.axis_names else {}) | DATA_ONLY
