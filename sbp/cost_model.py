"""Prices: the seconds and bytes of an equation or a boxing step, as integers.

Comes in: the cluster, the mesh and the objective. Goes out: `CostModel`, whose prices the search
adds up. Prices are whole numbers held in floats, so that their sum does not depend on the order.

Compute is a roofline: the longer of arithmetic and memory traffic; arithmetic counts for
contractions only, as everything else is bound by memory. An equation that is a kernel of its own
takes the floor of a kernel besides, whatever its words are. Elementwise equations are not: XLA
fuses a chain of them, and a chain is charged what it reads at its beginning and writes at its end,
nothing in between, and no floor, as into how many kernels XLA cuts it is not known here.

Communication is latency plus bytes over bandwidth on each link, by the ring or the tree, whichever
is faster. It is added to compute, but for the share that `CostModel.overlap` assumes to be hidden.
What can travel together shares one latency, by bytes, with as many as `BUCKET_NBYTES`. In a loop it
can with those of its turn only (`sbp.graph.flow`), so that the same bytes wait more often in a loop
than behind it. All-reduces are sent from where they lie; others are packed, which is priced too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sbp.algebra import Split, Words
from sbp.boxing import Step
from sbp.factors import Call, NdSignature
from sbp.hardware import Cluster, Link

Objective = Literal["time", "bytes", "wire"]
OBJECTIVES: tuple[Objective, ...] = ("time", "bytes", "wire")
"""The fewer bytes, the later."""

PICOSECONDS = 1e12
# With `bytes` and `wire`, one byte on the wire outweighs 0.1 ms, so that seconds only break ties.
BYTE_PRICE = 1e8
SECOND_PRICE = 1e8
# With `bytes`, what one superfluous floating-point operation of a contraction costs, in bytes. It
# is set so that no program gains by computing a contraction twice to save its communication: a
# matmul of k-long rows does 2k operations for each 4-byte number it makes.
EXCESS_FLOP_BYTES = 0.02
# Double binary trees keep 0.92 of a ring's bandwidth: ncclTopoTuneModel in NCCL's
# src/graph/tuning.cc (read 2026); Sanders, Speck & Traeff, Two-tree algorithms (2009).
TREE_EFFICIENCY = 0.92
# XLA's GPU compiler merges collectives that can travel together up to 30 MiB
# (xla_gpu_all_reduce_combine_threshold_bytes); such a collective pays its part of one latency.
BUCKET_NBYTES = 30 * 2**20


@dataclass(frozen=True, slots=True)
class CostModel:
    """Prices on one mesh.

    Attributes:
        cluster: The machine.
        sizes: Number of devices of each mesh axis.
        objective: `time` prices picoseconds. `bytes` and `wire` price bytes sent, each at
            `BYTE_PRICE`, and a second as one byte, so that time decides between plans that send the
            same; with `bytes` a superfluous operation costs `EXCESS_FLOP_BYTES` besides.
        overlap: Share of the time on the wire that is hidden behind compute, from 0 to 1, where
            collectives are bucketed: gradient reductions, weight gathers, and whatever else is
            elementwise steps from an argument or a result. An assumption: whether there is compute
            enough to hide behind is not asked.
    """

    cluster: Cluster
    sizes: tuple[int, ...]
    objective: Objective = "time"
    overlap: float = 0.0

    @property
    def num_devices(self) -> int:
        """Number of devices of the mesh."""
        return math.prod(self.sizes)

    @property
    def links(self) -> tuple[Link, ...]:
        """The link of each mesh axis."""
        return self.cluster.axis_links(self.sizes)

    def step_seconds(self, step: Step, *, bucket: int = 0) -> float:
        """Time of one boxing step.

        Args:
            step: A step with its bytes.
            bucket: Bytes with which it can travel, its own included, of which it pays its part of
                one latency; 0 if it travels alone.
        """
        memory = 2 * step.local_nbytes / self.cluster.device.memory_bandwidth
        if step.nbytes == 0:
            return memory
        waits = [self._ring_seconds(step)]
        if step.kind == "all-reduce":
            waits.append(self._tree_seconds(step))
        if bucket:
            # An all-reduce goes round twice, so that it costs what its two halves cost.
            passes = 2 if step.kind == "all-reduce" else 1
            part = min(1.0, step.nbytes / passes / bucket)
            waits = [(latency * part, transfer) for latency, transfer in waits]
            if step.kind != "all-reduce":
                # Laid end to end with others before or behind, on the side that holds more.
                packed = (1.0 - part) * max(step.nbytes, step.local_nbytes)
                memory += 2 * packed / self.cluster.device.memory_bandwidth
        wire = min(latency + transfer for latency, transfer in waits)
        return memory + wire * (1.0 - self.overlap * (bucket > 0))

    def _ring_seconds(self, step: Step) -> tuple[float, float]:
        """Latency and transfer by a ring on each axis: n - 1 steps, or 2 (n - 1) to reduce to all.

        Source:
            Patarasuk & Yuan, Bandwidth optimal all-reduce algorithms (2009).
        """
        links, axes = self.links, self._wide_axes(step)
        if step.kind == "collective-permute":
            latency = max(links[axis].latency for axis in axes)
        else:
            passes = 2 if step.kind == "all-reduce" else 1
            latency = passes * sum(links[axis].latency * (self.sizes[axis] - 1) for axis in axes)
        return latency, _transfer_seconds(step, axes, self.sizes, links)

    def _tree_seconds(self, step: Step) -> tuple[float, float]:
        """Latency and transfer of an all-reduce of b bytes by double binary trees: up, then down.

        Inside a node NCCL's trees are chains of n - 1 steps, between nodes log2 n deep. Every
        device sends 2 b, where a ring sends 2 (n - 1) / n b, at `TREE_EFFICIENCY`.

        Source:
            ncclTopoTuneModel in NCCL's src/graph/tuning.cc (read 2026).
        """
        links, axes = self.links, self._wide_axes(step)
        places = self.cluster.axis_places(self.sizes)
        latency = 0.0
        for axis in axes:
            size = self.sizes[axis]
            depth = size - 1 if places[axis] == "inside" else math.ceil(math.log2(size))
            latency += 2 * depth * links[axis].latency
        num_devices = math.prod(self.sizes[axis] for axis in axes)
        transfer = _transfer_seconds(step, axes, self.sizes, links)
        return latency, transfer * num_devices / (num_devices - 1) / TREE_EFFICIENCY

    def _wide_axes(self, step: Step) -> list[int]:
        return [axis for axis in step.axes if self.sizes[axis] > 1]

    def step_price(self, step: Step, *, bucket: int = 0) -> float:
        """Price of one boxing step, in units of the objective."""
        seconds = self.step_seconds(step, bucket=bucket)
        if self.objective == "time":
            return float(round(seconds * PICOSECONDS))
        return float(round(step.nbytes * BYTE_PRICE + seconds * SECOND_PRICE))

    def call_seconds(
        self, flops: float, dtype: str, nbytes: float, *, is_kernel: bool = False
    ) -> float:
        """Time of one equation on one device.

        Args:
            flops: Operations of a contraction; 0 for anything else.
            dtype: Name of the operands' dtype.
            nbytes: Bytes read from and written to memory.
            is_kernel: Whether it is a kernel of its own, not part of a fused chain.

        Source:
            XLA adds the launch of a kernel to its time likewise: EstimateUnfusedExecTime in
            xla/service/gpu/model/gpu_performance_model.cc (read 2026).
        """
        device = self.cluster.device
        busy = max(flops / device.matmul_flops(dtype), nbytes / device.memory_bandwidth)
        return busy + device.kernel_floor_seconds * is_kernel

    def signature_price(
        self, call: Call, signature: NdSignature, traffic: Sequence[bool], flops: int,
        *, is_kernel: bool = False,
    ) -> float:  # fmt: skip
        """Price of one equation under a signature, in units of the objective.

        Args:
            call: The logical call.
            signature: Words of operands and results.
            traffic: Which operands, then which results, go through memory.
            flops: Logical operations of a contraction; 0 for anything else.
            is_kernel: Whether it is a kernel of its own, not part of a fused chain.
        """
        seconds = self.signature_seconds(call, signature, traffic, flops, is_kernel=is_kernel)
        excess = flops / num_parts(signature, self.sizes) - flops / self.num_devices
        return self.call_price(seconds, excess)

    def signature_seconds(
        self, call: Call, signature: NdSignature, traffic: Sequence[bool], flops: int,
        *, is_kernel: bool = False,
    ) -> float:  # fmt: skip
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
        share = flops / num_parts(signature, self.sizes)
        return self.call_seconds(share, dtype, nbytes, is_kernel=is_kernel)

    def call_price(self, seconds: float, excess_flops: float) -> float:
        """Price of one equation, in units of the objective.

        Args:
            seconds: Its time.
            excess_flops: Operations of a contraction beyond an even share of the whole.
        """
        if self.objective == "time":
            return float(round(seconds * PICOSECONDS))
        excess = excess_flops * EXCESS_FLOP_BYTES if self.objective == "bytes" else 0.0
        return float(round(excess * BYTE_PRICE + seconds * SECOND_PRICE))


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
    step: Step, axes: Sequence[int], sizes: Sequence[int], links: Sequence[Link]
) -> float:
    """Divides a step's bytes over the links of its axes.

    Gathering on axes of sizes n1, n2, ... sends n1 - 1 blocks on the first, then (n2 - 1) blocks of
    n1 blocks on the second, and so on: n - 1 blocks in all. The slowest link comes first, when
    blocks are small. An all-to-all cannot leave it its least: of the n blocks of a device all but
    n / n1 go to devices that lie elsewhere on that axis. A permute sends all to one device.
    """
    if step.kind == "collective-permute":
        return step.nbytes / min(links[axis].bandwidth for axis in axes)
    block = step.nbytes / (math.prod(sizes[axis] for axis in axes) - 1)
    seconds, held = 0.0, 1
    slowest_last = step.kind == "all-to-all"
    for axis in sorted(axes, key=lambda axis: links[axis].bandwidth, reverse=slowest_last):
        seconds += block * held * (sizes[axis] - 1) / links[axis].bandwidth
        held *= sizes[axis]
    return seconds
