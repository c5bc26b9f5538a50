"""What a machine is made of: links, devices, and clusters of them, as plain checked numbers.

Comes in: figures of a vendor or of `scripts/calibrate.py`. Goes out: frozen values that the cost
model reads, and their files. A figure that cannot be is an error where it is written.
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from sbp.errors import SbpError
from sbp.files import write_text

Place = Literal["inside", "outside"]

MOST = 1e30
"""No figure of a machine is larger."""

FORMAT = 1
"""Of a hardware file."""


@dataclass(frozen=True, slots=True)
class Link:
    """What joins the devices of one mesh axis.

    Attributes:
        bandwidth: Bytes/s one device sends, in one direction; it receives as much meanwhile.
        latency: Seconds that one step of a ring takes beside the transfer.
    """

    bandwidth: float
    latency: float

    def __post_init__(self) -> None:
        _check_number("bandwidth of a link, in bytes/s,", self.bandwidth)
        _check_number("latency of a link, in seconds,", self.latency, zero=True)


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator.

    Attributes:
        name: For messages.
        flops: Floating-point operations/s of a matmul, by the name of its operands' dtype.
        vector_flops: Floating-point operations/s of everything else, float32.
        memory_bandwidth: Bytes/s between the device and its memory.
        memory_nbytes: Size of that memory.
        kernel_floor_seconds: The least time that one kernel takes, with nothing to do.
    """

    name: str
    flops: Mapping[str, float] = field(hash=False)
    vector_flops: float
    memory_bandwidth: float
    memory_nbytes: int
    kernel_floor_seconds: float

    def __post_init__(self) -> None:
        _check_text("name of a device", self.name)
        for dtype, rate in self.flops.items():
            _check_number(f"matmul rate of {dtype}, in operations/s,", rate)
        _check_number("vector_flops, in operations/s,", self.vector_flops)
        _check_number("memory_bandwidth, in bytes/s,", self.memory_bandwidth)
        _check_number("memory_nbytes", self.memory_nbytes)
        _check_number("kernel_floor_seconds", self.kernel_floor_seconds, zero=True)

    def matmul_flops(self, dtype: str) -> float:
        """Operations/s of a matmul of `dtype`; the vector rate where no unit is made for it."""
        return self.flops.get(dtype, self.vector_flops)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal devices in equal nodes; a node is whatever `inside` reaches, such as a pod of TPUs.

    Attributes:
        name: For messages, and the key in `BY_NAME`.
        device: What is computed on.
        inside: The link between devices of one node: through a switch, so that all axes have its
            whole bandwidth, or one link of a torus.
        devices_per_node: Devices that `inside` reaches.
        outside: The link of one device to other nodes.
        ring_size: Of a torus, the number of devices after which its links close to a ring; 0 for a
            switch. A mesh axis of a multiple of it goes round and sends both ways at once, twice
            the bandwidth of `inside`; a shorter one is an open line, whose ends have one link
            only. Each mesh axis is taken to have physical axes of its own, as `jax.make_mesh` lays
            it where it can.
        source: Where the figures come from.
    """

    name: str
    device: Device
    inside: Link
    devices_per_node: int
    outside: Link
    ring_size: int = 0
    source: str = ""

    def __post_init__(self) -> None:
        _check_text("name of a cluster", self.name)
        _check_text("source", self.source)
        _check_number("devices_per_node", self.devices_per_node)
        _check_number("ring_size", self.ring_size, zero=True)

    def axis_places(self, mesh_sizes: Sequence[int]) -> tuple[Place, ...]:
        """Whether each mesh axis stays inside a node.

        Devices fill the mesh innermost axis first, as `jax.make_mesh` lays them out on GPUs, so
        inner axes stay inside a node. An axis with neighbours in two nodes is outside.

        Args:
            mesh_sizes: Number of devices of each mesh axis, outermost first.
        """
        one_node = math.prod(mesh_sizes) <= self.devices_per_node
        places: list[Place] = []
        span = 1
        for size in reversed(mesh_sizes):
            span *= size
            # A span that does not divide the node straddles two nodes somewhere in the mesh.
            within = one_node or size == 1 or self.devices_per_node % span == 0
            places.append("inside" if within else "outside")
        return tuple(reversed(places))

    def axis_links(self, mesh_sizes: Sequence[int]) -> tuple[Link, ...]:
        """The link each mesh axis runs over; arguments as of `axis_places`."""
        pairs = zip(self.axis_places(mesh_sizes), mesh_sizes, strict=True)
        return tuple(
            self.outside if place == "outside" else self._inside_link(size) for place, size in pairs
        )

    def goes_round(self, size: int) -> bool:
        """Whether an axis of this size inside a node is a ring of a torus."""
        return self.ring_size > 0 and size % self.ring_size == 0

    def _inside_link(self, size: int) -> Link:
        if not self.goes_round(size):
            return self.inside
        return Link(2 * self.inside.bandwidth, self.inside.latency)

    def save(self, path: str | Path) -> None:
        """Writes a hardware file (JSON), which `parallelize(hardware=path)` takes.

        Raises:
            SbpError: It cannot be written.
        """
        data = {"format": FORMAT, **dataclasses.asdict(self)}
        write_text(path, json.dumps(data, indent=2) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> "Cluster":
        """Reads a hardware file.

        Raises:
            SbpError: It is missing, of another format, or holds figures that cannot be.
        """
        try:
            data: Any = json.loads(Path(path).read_text(encoding="utf-8"))
            fields = _fields(Cluster, data, "the file", also="format")
            if (version := data["format"]) != FORMAT:
                raise SbpError(f"its format is {version!r}, this version reads {FORMAT}")
            fields["device"] = Device(**_fields(Device, data["device"], "device"))
            for name in ("inside", "outside"):
                fields[name] = Link(**_fields(Link, data[name], name))
            return cls(**fields)
        except RecursionError:
            why = "It is nested deeper than any cluster."
        except OSError as error:
            why = f"It cannot be read: {error.strerror or error}."
        except ValueError as error:
            # An SbpError, or what json and the decoder raise.
            reason = error.what if isinstance(error, SbpError) else str(error)
            why = f"{reason[:1].upper()}{reason[1:]}."
        raise SbpError(
            f"{str(path)!r} does not hold a cluster",
            where="hardware file",
            why=why,
            how=["write one with scripts/calibrate.py --out", "write one with sbp.Cluster.save"],
        )


def _fields(kind: type[Any], data: Any, where: str, *, also: str = "") -> dict[str, Any]:
    """The entries of an object in a file, which must be those of a dataclass."""
    if not isinstance(data, dict):
        raise SbpError(f"{where} is not a JSON object")
    entries = cast("dict[str, Any]", data)
    known = dataclasses.fields(kind)
    needed = {f.name for f in known if f.default is dataclasses.MISSING} | ({also} - {""})
    missing = sorted(needed - set(entries))
    unknown = sorted(set(entries) - {f.name for f in known} - {also})
    if missing or unknown:
        lacks = f"{where} lacks {', '.join(missing)}" if missing else ""
        extra = f"{where} has {', '.join(unknown)}, which is not known" if unknown else ""
        raise SbpError("; ".join(filter(None, (lacks, extra))))
    if not isinstance(entries.get("flops", {}), dict):
        raise SbpError(f"flops of {where} is not a JSON object")
    return {name: value for name, value in entries.items() if name != also}


def _check_number(what: str, value: Any, *, zero: bool = False) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and 0 <= value <= MOST and (value > 0 or zero):
        return
    raise SbpError(
        f"{what} is {value!r}",
        where="hardware",
        why=f"It is a finite number {'of at least' if zero else 'above'} 0.",
        how="the figure of the data sheet, or one that scripts/calibrate.py measures",
    )


def _check_text(what: str, value: Any) -> None:
    if not isinstance(value, str):
        raise SbpError(
            f"{what} is {value!r}",
            where="hardware",
            why="It is text, for people to read.",
            how="write it in quotes",
        )
