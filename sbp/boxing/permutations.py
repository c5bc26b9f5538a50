"""Who sends to whom in a collective-permute.

Comes in: the words before and after, the mesh. Goes out: pairs of sender and receiver.
"""

import functools
import itertools

from sbp.algebra import Split, Words
from sbp.boxing.steps import Step


def permuted_axes(step: Step) -> tuple[int, ...]:
    """The axes on which a permute's devices are numbered: it moves along them, or slices."""
    changed = {
        axis for axis, (old, new) in enumerate(zip(step.src, step.dst, strict=True)) if old != new
    }
    return tuple(sorted({*step.axes, *changed}))


@functools.lru_cache(maxsize=1024)
def permutation(
    axes: tuple[int, ...], src: Words, dst: Words, ndim: int, sizes: tuple[int, ...]
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, ...], ...]]:
    """Who sends to whom, and which part of what it holds.

    Args:
        axes: The axes over which devices are numbered, outermost first; others play no part.
        src: Words before.
        dst: Words after.
        ndim: Number of dims of the array.
        sizes: Number of devices of each mesh axis.

    Returns:
        Pairs of sender and receiver, and for each sender the number, in each dim, of the new block
        within its old block.
    """
    devices = list(itertools.product(*(range(sizes[axis]) for axis in axes)))

    def block(words: Words, dim: int, device: tuple[int, ...]) -> tuple[int, int]:
        """Number of the device's block of a dim, and how many there are."""
        number, count = 0, 1
        for axis, position in zip(axes, device, strict=True):
            if words[axis] == Split(dim):
                number, count = number * sizes[axis] + position, count * sizes[axis]
        return number, count

    held: list[tuple[int, ...]] = []
    needed: list[tuple[int, ...]] = []
    parts: list[tuple[int, ...]] = []
    for device in devices:
        old = [block(src, dim, device) for dim in range(ndim)]
        new = [block(dst, dim, device) for dim in range(ndim)]
        ratios = [after // before for (_, before), (_, after) in zip(old, new, strict=True)]
        held.append(tuple(number for number, _ in old))
        needed.append(tuple(n // ratio for (n, _), ratio in zip(new, ratios, strict=True)))
        parts.append(tuple(n % ratio for (n, _), ratio in zip(new, ratios, strict=True)))
    # A device that holds what it needs keeps it; the other holders serve the other devices.
    spare: dict[tuple[int, ...], list[int]] = {}
    for number, (has, needs) in enumerate(zip(held, needed, strict=True)):
        if has != needs:
            spare.setdefault(has, []).append(number)
    senders = [
        number if has == needs else spare[needs].pop(0)
        for number, (has, needs) in enumerate(zip(held, needed, strict=True))
    ]
    receivers = {sender: receiver for receiver, sender in enumerate(senders)}
    return (
        tuple((number, receivers[number]) for number in range(len(devices))),
        tuple(parts[receivers[number]] for number in range(len(devices))),
    )
