"""Prices: the seconds and bytes of an equation or a boxing step, as integers.

Comes in: the cluster, the mesh and the objective. Goes out: `CostModel`, whose prices the search
adds up. Prices are whole numbers held in floats, so that their sum does not depend on the order.

Compute is a roofline: the longer of arithmetic and memory traffic; arithmetic counts for
contractions only, as everything else is bound by memory. Communication is latency plus bytes over
bandwidth on each link, with no overlap assumed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sbp.algebra import Split, Words
from sbp.boxing import Step
from sbp.factors import Call, NdSignature
from sbp.hardware import Cluster, Link

Objective = Literal["time", "bytes"]

PICOSECONDS = 1e12
# With `bytes`, one byte on the wire outweighs 0.1 ms, so that seconds only break ties.
BYTE_PRICE = 1e4
SECOND_PRICE = 1e8
# With `bytes`, what one superfluous floating-point operation of a contraction costs, in bytes. It
# is set so that no program gains by computing a contraction twice to save its communication: a
# matmul of k-long rows does 2k operations for each 4-byte number it makes.
EXCESS_FLOP_BYTES = 0.02
# XLA's GPU compiler merges collectives that can travel together up to 30 MiB
# (xla_gpu_all_reduce_combine_threshold_bytes); such a collective pays its part of one latency.
BUCKET_NBYTES = 30 * 2**20


@dataclass(frozen=True, slots=True)
class CostModel:
    """Prices on one mesh.

    Attributes:
        cluster: The machine.
        sizes: Number of devices of each mesh axis.
        objective: `time` prices picoseconds; `bytes` prices wire bytes first, then superfluous
            arithmetic, and seconds only between equals.
    """

    cluster: Cluster
    sizes: tuple[int, ...]
    objective: Objective = "time"

    @property
    def num_devices(self) -> int:
        """Number of devices of the mesh."""
        return math.prod(self.sizes)

    @property
    def links(self) -> tuple[Link, ...]:
        """The link of each mesh axis."""
        return self.cluster.axis_links(self.sizes)

    def step_seconds(self, step: Step, *, bucketed: bool = False) -> float:
        """Time of one boxing step.

        Args:
            step: A step with its bytes.
            bucketed: Whether it can travel together with others of its kind.
        """
        memory = 2 * step.local_nbytes / self.cluster.device.memory_bandwidth
        if step.nbytes == 0:
            return memory
        links, sizes = self.links, self.sizes
        axes = [axis for axis in step.axes if sizes[axis] > 1]
        # An all-reduce goes round the ring twice, so that it costs what its two halves cost.
        rounds = 2 if step.kind == "all-reduce" else 1
        if step.kind == "collective-permute":
            latency = max(links[axis].latency for axis in axes)
        else:
            latency = rounds * sum(links[axis].latency * (sizes[axis] - 1) for axis in axes)
        if bucketed:
            latency *= min(1.0, step.nbytes / rounds / BUCKET_NBYTES)
        return memory + latency + _transfer_seconds(step.nbytes, axes, sizes, links)

    def step_price(self, step: Step, *, bucketed: bool = False) -> float:
        """Price of one boxing step, in units of the objective."""
        seconds = self.step_seconds(step, bucketed=bucketed)
        if self.objective == "time":
            return float(round(seconds * PICOSECONDS))
        return float(round(step.nbytes * BYTE_PRICE + seconds * SECOND_PRICE))

    def call_seconds(self, flops: float, dtype: str, nbytes: float) -> float:
        """Time of one equation on one device.

        Args:
            flops: Operations of a contraction; 0 for anything else.
            dtype: Name of the operands' dtype.
            nbytes: Bytes read from and written to memory.
        """
        device = self.cluster.device
        return max(flops / device.matmul_flops(dtype), nbytes / device.memory_bandwidth)

    def signature_price(
        self, call: Call, signature: NdSignature, traffic: Sequence[bool], flops: int
    ) -> float:
        """Price of one equation under a signature, in units of the objective.

        Args:
            call: The logical call.
            signature: Words of operands and results.
            traffic: Which operands, then which results, go through memory.
            flops: Logical operations of a contraction; 0 for anything else.
        """
        seconds = self.signature_seconds(call, signature, traffic, flops)
        excess = flops / num_parts(signature, self.sizes) - flops / self.num_devices
        return self.call_price(seconds, excess)

    def signature_seconds(
        self, call: Call, signature: NdSignature, traffic: Sequence[bool], flops: int
    ) -> float:
        """Time of one equation on one device; arguments as of `signature_price`."""
        nbytes = sum(
            array.nbytes // num_blocks(words, self.sizes)
            for array, words, counted in zip(
                (*call.inputs, *call.outputs),
                (*signature.inputs, *signature.outputs),
                traffic,
                strict=True,
            )
            if counted
        )
        dtype = str(call.inputs[0].dtype) if call.inputs else ""
        return self.call_seconds(flops / num_parts(signature, self.sizes), dtype, nbytes)

    def call_price(self, seconds: float, excess_flops: float) -> float:
        """Price of one equation, in units of the objective.

        Args:
            seconds: Its time.
            excess_flops: Operations of a contraction beyond an even share of the whole.
        """
        if self.objective == "time":
            return float(round(seconds * PICOSECONDS))
        return float(round(excess_flops * EXCESS_FLOP_BYTES * BYTE_PRICE + seconds * SECOND_PRICE))


def num_parts(signature: NdSignature, sizes: Sequence[int]) -> int:
    """Into how many parts a signature divides the work of a call."""
    arrays = (*signature.inputs, *signature.outputs)
    return math.prod(
        size
        for axis, size in enumerate(sizes)
        if any(isinstance(words[axis], Split) for words in arrays)
    )


def num_blocks(words: Words, sizes: Sequence[int]) -> int:
    """Into how many blocks words divide an array."""
    return math.prod(
        size for word, size in zip(words, sizes, strict=True) if isinstance(word, Split)
    )


def _transfer_seconds(
    nbytes: int, axes: Sequence[int], sizes: Sequence[int], links: Sequence[Link]
) -> float:
    """Divides a ring's bytes over the links of its axes, slowest link first, when blocks are small.

    Walking axes of sizes n1, n2, ... sends n1 - 1 blocks on the first, then (n2 - 1) blocks of n1
    blocks on the second, and so on: n - 1 blocks in all.
    """
    block = nbytes / (math.prod(sizes[axis] for axis in axes) - 1)
    seconds, held = 0.0, 1
    for axis in sorted(axes, key=lambda axis: links[axis].bandwidth):
        seconds += block * held * (sizes[axis] - 1) / links[axis].bandwidth
        held *= sizes[axis]
    return seconds
