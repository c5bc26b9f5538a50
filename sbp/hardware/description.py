"""Which mesh axis runs over which link, for people."""

import os
from typing import Any

from sbp.axis_sizes import axis_sizes
from sbp.errors import SbpError
from sbp.hardware.catalogue import BY_NAME, as_cluster
from sbp.hardware.cluster import Cluster, Link


def describe(mesh: Any, cluster: Cluster | str | os.PathLike[str]) -> str:
    """The link of each mesh axis, as a table.

    Args:
        mesh: A jax mesh, concrete or abstract; sizes by axis name, outermost first; or their text,
            `dp=2,tp=8`.
        cluster: A cluster, its name, or the path of a hardware file (`.json`).

    Returns:
        A line for each axis: its size, whether it stays inside a node, the bytes/s that a device
        sends over it (and receives meanwhile), and the seconds a step takes beside the transfer.

    Raises:
        SbpError: The mesh or the cluster is not one.
    """
    machine = as_cluster(cluster)
    if machine is None:
        raise SbpError(
            f"cluster {cluster!r} is not known",
            why=f"The names are {', '.join(BY_NAME)}.",
            how=[
                "use one of the names",
                "give an sbp.Cluster",
                "give the path of a hardware file, "
                "measured by scripts/calibrate.py --out machine.json",
            ],
        )
    sizes = axis_sizes(mesh, "hardware.describe")
    places = machine.axis_places(tuple(sizes.values()))
    links = machine.axis_links(tuple(sizes.values()))
    rows = [("axis", "size", "link", "each way", "latency")]
    for (axis, size), place, link in zip(sizes.items(), places, links, strict=True):
        if size == 1:
            rows.append((axis, "1", "none", "-", "-"))
            continue
        around = ", round" if place == "inside" and machine.goes_round(size) else ""
        rows.append((axis, str(size), place + around, *_figures(link)))
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    text = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
    nodes = f"{machine.device.name}, {machine.devices_per_node} a node"
    figures = [f"figures: {machine.source}"] * bool(machine.source)
    return "\n".join([f"mesh {text} on {machine.name}: {nodes}", *lines, *figures])


def _figures(link: Link) -> tuple[str, str]:
    return f"{link.bandwidth / 1e9:.4g} GB/s", f"{link.latency * 1e6:.3g} us"
