"""Measures the machine at hand and writes a hardware file, by which plans are priced.

Usage:
    python scripts/calibrate.py --out machine.json          all local devices, a few minutes
    python scripts/calibrate.py --devices 8 --quick         on 8 simulated CPU devices, seconds

Then `sbp.parallelize(..., hardware="machine.json")`. Measured are the rate of matmuls for each
dtype, that of fused arithmetic, memory bandwidth, the floor of a kernel, and five collectives over
all devices, at several sizes. Every time is the least of several rounds, each waited for; programs
of two lengths are subtracted, so that what a call costs besides falls out. A latency and a
bandwidth are fitted to all collectives together, by the cost model's own formulas and by least
squares of the relative error, which is printed. What cannot be measured here, such as the link to
other nodes, keeps its nominal figure, and the file says so.
"""

import argparse
import contextlib
import dataclasses
import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from sbp.algebra import ArrayType, B, P, Split
from sbp.boxing import BoxingTable, Kind, Step
from sbp.cost_model import CostModel
from sbp.errors import SbpError
from sbp.hardware import H100_NODE, Cluster, Device, Link, cluster_of_device
from scripts.timing import chain_seconds, loop_seconds

DTYPES = ("float32", "bfloat16", "float16")
KINDS: tuple[Kind, ...] = (
    "all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute",
)  # fmt: skip
WHOLE, BLOCK = PartitionSpec(), PartitionSpec("x")


class Effort(NamedTuple):
    """How much to measure.

    Attributes:
        rounds: Times each program runs.
        matmul_seconds: Matrices grow until a matmul takes as long, or has `max_matmul` rows.
        max_matmul: See there.
        memory_nbytes: Size of the array that is read and written.
        collective_nbytes: Sizes of the gathered array of a collective.
    """

    rounds: int
    matmul_seconds: float
    max_matmul: int
    memory_nbytes: int
    collective_nbytes: tuple[int, ...]


QUICK = Effort(3, 1e-4, 256, 2**22, (2**14, 2**20))
ON_CPU = Effort(10, 5e-3, 2048, 2**27, tuple(2**k for k in range(14, 25, 2)))
ON_ACCELERATOR = Effort(20, 2e-3, 8192, 2**30, tuple(2**k for k in range(14, 29, 2)))


class Sample(NamedTuple):
    """A collective of one size as the planner sees it, and how long it took."""

    step: Step
    seconds: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints a table, and writes the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, help="how many (default: all; simulated on a CPU)")
    parser.add_argument("--out", default="machine.json", help="(default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="small and few sizes, to try it out")
    options = parser.parse_args(arguments)
    out = Path(options.out)
    if out.suffix != ".json" or not out.absolute().parent.is_dir():
        parser.error(f"--out {out}: it must be a .json file in a directory that exists")
    if options.devices is not None:
        if options.devices < 1:
            parser.error("--devices must be at least 1")
        with contextlib.suppress(RuntimeError):  # JAX has its devices already
            jax.config.update("jax_num_cpu_devices", options.devices)
    devices = jax.local_devices()[: options.devices]
    if options.devices is not None and len(devices) < options.devices:
        parser.error(f"--devices is {options.devices}, there are {len(devices)}")
    on_cpu = devices[0].platform == "cpu"
    effort = QUICK if options.quick else ON_CPU if on_cpu else ON_ACCELERATOR
    kind = devices[0].device_kind
    print(f"{len(devices)} x {kind}, jax {jax.__version__}, {effort.rounds} rounds")
    if on_cpu and len(devices) > 1:
        print("simulated devices share the cores of this host: no figure is one of a real machine")
    nominal = cluster_of_device(kind) or H100_NODE
    measure(devices, nominal, effort).save(out)
    print(f"written to {out}: sbp.parallelize(..., hardware='{out}')")


def measure(devices: Sequence[Any], nominal: Cluster, effort: Effort) -> Cluster:
    """The devices as a cluster; what cannot be measured is `nominal`."""
    with jax.default_device(devices[0]):
        device = measure_device(devices[0], nominal.device, effort)
    source = f"scripts/calibrate.py, {datetime.date.today()}, jax {jax.__version__}, "
    source += f"{len(devices)} x {devices[0].device_kind}"
    name = f"measured-{devices[0].device_kind.lower().replace(' ', '-')}-{len(devices)}"
    if len(devices) == 1:
        print(f"one device: its links are the nominal ones of {nominal.name!r}, not measured")
        return dataclasses.replace(
            nominal, name=name, device=device, source=f"{source}; links nominal ({nominal.name})"
        )
    samples = [s for kind in KINDS for s in measure_collective(kind, devices, effort)]
    link = fit_link(samples, len(devices), device)
    cluster = Cluster(
        name=name,
        device=device,
        inside=link,
        devices_per_node=len(devices),
        outside=Link(min(nominal.outside.bandwidth, link.bandwidth), nominal.outside.latency),
        source=f"{source}; the link to other nodes nominal ({nominal.name})",
    )
    print_links(samples, cluster)
    return cluster


def measure_device(device: Any, nominal: Device, effort: Effort) -> Device:
    """Rates of one device, printed line by line."""
    flops = dict(nominal.flops)
    for dtype in DTYPES:
        flops[dtype] = matmul_flops(dtype, effort)
        print(f"{'matmul ' + dtype:<24}{flops[dtype] / 1e12:12.4g} TFLOP/s")
    bandwidth = memory_bandwidth(effort)
    print(f"{'memory':<24}{bandwidth / 1e9:12.4g} GB/s")
    vector = vector_flops(effort)
    print(f"{'fused arithmetic':<24}{vector / 1e12:12.4g} TFLOP/s")
    floor = kernel_floor(8 if device.platform == "cpu" else 128, effort)
    print(f"{'floor of a kernel':<24}{floor * 1e6:12.4g} us")
    return dataclasses.replace(
        nominal,
        name=device.device_kind,
        flops=flops,
        vector_flops=vector,
        memory_bandwidth=bandwidth,
        kernel_floor_seconds=floor,
    )


def matmul_flops(dtype: str, effort: Effort) -> float:
    """The best rate over growing square matrices, operations/s."""
    best, size = 0.0, 256
    while size <= effort.max_matmul:
        x, w = (jax.random.normal(jax.random.key(k), (size, size), dtype) for k in range(2))
        w = (w / size**0.5).astype(dtype)
        seconds = loop_seconds(lambda x, w=w: x @ w, x, effort.rounds)
        best = max(best, 2 * size**3 / seconds)
        if seconds > effort.matmul_seconds:
            break
        size *= 2
    return best


def memory_bandwidth(effort: Effort) -> float:
    """Bytes/s of reading and writing a large array."""
    x = jnp.zeros(effort.memory_nbytes // 4, jnp.float32)
    return 2 * x.nbytes / loop_seconds(lambda x: x + 1, x, effort.rounds)


def vector_flops(effort: Effort, num_steps: int = 256) -> float:
    """Operations/s of multiplications and additions that stay in registers."""
    x = jnp.ones(max(2**14, effort.memory_nbytes // 64), jnp.float32)

    def body(x: jax.Array) -> jax.Array:
        for _ in range(num_steps):
            x = x * 0.5 + 0.25
        return x

    return 2 * num_steps * x.size / loop_seconds(body, x, effort.rounds)


def kernel_floor(size: int, effort: Effort) -> float:
    """Seconds of a matmul so small that there is nothing to compute."""
    x = jnp.eye(size, dtype=jnp.float32)
    return chain_seconds(lambda x: x @ x, x, effort.rounds, lengths=(8, 40))


def measure_collective(kind: Kind, devices: Sequence[Any], effort: Effort) -> list[Sample]:
    """One collective at every size, over all devices."""
    mesh = Mesh(np.array(devices), ("x",))
    samples: list[Sample] = []
    for nbytes in effort.collective_nbytes:
        step, shape = collective_step(kind, nbytes, len(devices))
        spec = WHOLE if kind in ("reduce-scatter", "all-reduce") else BLOCK

        def wrap(run: Callable[[Any], Any], spec: PartitionSpec = spec) -> Callable[[Any], Any]:
            # A value that all hold is not known to be the same after the chain: no check.
            return jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)

        x = jax.device_put(np.zeros(shape, np.float32), jax.NamedSharding(mesh, spec))
        body = collective_body(kind, len(devices))
        samples.append(Sample(step, chain_seconds(body, x, effort.rounds, wrap=wrap)))
    return samples


def collective_step(kind: Kind, nbytes: int, size: int) -> tuple[Step, tuple[int, int]]:
    """The planner's step for a collective on a float32 array of about `nbytes`, and its shape."""
    columns = 32 * size
    shape = (size * max(1, nbytes // (4 * columns * size)), columns)
    array = ArrayType(shape, np.dtype("float32"))
    if kind == "collective-permute":
        local = array.nbytes // size
        return Step(kind, (0,), (Split(0),), (Split(0),), local, local), shape
    ends = {
        "all-gather": (Split(0), B), "reduce-scatter": (P, Split(0)), "all-reduce": (P, B),
        "all-to-all": (Split(0), Split(1)),
    }  # fmt: skip
    src, dst = ends[kind]
    (step,) = BoxingTable(array, (size,), {P}).path((src,), (dst,))
    return step, shape


def collective_body(kind: Kind, size: int) -> Callable[[jax.Array], jax.Array]:
    """The collective on local arrays, with its result in the shape of its operand.

    All arrays are zero, so that sums need no scaling; no wire can tell.
    """

    def body(x: jax.Array) -> jax.Array:
        match kind:
            case "all-gather":
                return lax.all_gather(x, "x", tiled=True)[: x.shape[0]]
            case "reduce-scatter":
                return lax.dynamic_update_slice(x, lax.psum_scatter(x, "x", tiled=True), (0, 0))
            case "all-reduce":
                return lax.psum(x, "x")
            case "all-to-all":
                y = lax.all_to_all(x, "x", split_axis=1, concat_axis=0, tiled=True)
                return y.reshape(x.shape)
            case _:
                return lax.ppermute(x, "x", [(k, (k + 1) % size) for k in range(size)])

    return body


def fit_link(samples: Sequence[Sample], size: int, device: Device) -> Link:
    """The link that explains the samples best, by the relative error of the cost model."""

    def price(link: Link) -> np.ndarray:
        cluster = Cluster("fit", device, link, size, link)
        return np.array([CostModel(cluster, (size,)).step_seconds(s.step) for s in samples])

    seconds = np.array([s.seconds for s in samples])
    # The model is linear in the latency and in the time of a byte: read its coefficients off it.
    unit, never = 1.0, 1e30
    rest = price(Link(never, 0.0))
    slopes = np.stack([price(Link(never, unit)) - rest, price(Link(unit, 0.0)) - rest], axis=1)
    for known in (rest, np.zeros_like(rest)):
        for columns in ([0, 1], [1]):
            found = np.linalg.lstsq(
                slopes[:, columns] / seconds[:, None], (seconds - known) / seconds, rcond=None
            )[0]
            if (found > 0).all():
                return Link(float(1 / found[-1]), float(found[0]) if len(columns) == 2 else 0.0)
    raise SbpError("no link explains the times of the collectives", why=f"They are {seconds}.")


def print_links(samples: Sequence[Sample], cluster: Cluster) -> None:
    """Each collective with its own fit, and how far the common link is off."""
    size = cluster.devices_per_node
    heads = ("latency, us", "GB/s", "own error", "common error")
    print(f"{'over ' + str(size) + ' devices':<24}" + "".join(f"{head:>14}" for head in heads))
    for kind in KINDS:
        of_kind = [s for s in samples if s.step.kind == kind]
        own = fit_link(of_kind, size, cluster.device)
        # A line through two points says nothing of how well a line fits.
        error = f"{relative_error(of_kind, own, cluster):.0%}" if len(of_kind) > 2 else "-"
        common = relative_error(of_kind, cluster.inside, cluster)
        print(_link_line(kind, own) + f"{error:>14}{common:14.0%}")
    error = relative_error(samples, cluster.inside, cluster)
    print(_link_line("common", cluster.inside) + f"{'':14}{error:14.0%}")
    print("own error: of the collective's own latency and GB/s; '-': two sizes fix them exactly")
    print("common error: of the one latency and bandwidth that the file has for all collectives")


def _link_line(name: str, link: Link) -> str:
    return f"{name:<24}{link.latency * 1e6:14.4g}{link.bandwidth / 1e9:14.4g}"


def relative_error(samples: Sequence[Sample], link: Link, cluster: Cluster) -> float:
    """Mean of |predicted / measured - 1|."""
    machine = dataclasses.replace(cluster, inside=link)
    costs = CostModel(machine, (cluster.devices_per_node,))
    return float(np.mean([abs(costs.step_seconds(s.step) / s.seconds - 1) for s in samples]))


if __name__ == "__main__":
    main()
