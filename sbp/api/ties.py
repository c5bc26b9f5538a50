"""Ties: a result that takes the place of an argument has the argument's words.

Comes in: trees of arguments and results, and what the user says of ties. Goes out: for positions of
result leaves, positions of argument leaves.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from sbp.api.requests import described
from sbp.errors import SbpError


def find_ties(
    tie: Any, donated: Sequence[int], trees: Mapping[str, Any], results: Any,
    arguments: Sequence[str], outputs: Sequence[str],
) -> dict[int, int]:  # fmt: skip
    """Argument leaf by result leaf.

    Args:
        tie: The option of `parallelize`.
        donated: Positions of the donated ones among the trees.
        trees: Argument trees of structs, by name; static ones left out.
        results: The result tree of structs.
        arguments: Paths of the argument leaves.
        outputs: Paths of the result leaves.

    Raises:
        SbpError: An explicit tie names a path that is not there, or unequal trees.
    """
    if tie is None:
        return {}
    if tie == "auto":
        return _automatic(donated, trees, results)
    if not isinstance(tie, Mapping):
        raise SbpError(
            f"tie={tie!r} is not an option",
            why="A tie gives a result the words of the argument whose place it takes.",
            how=["tie='auto'", "tie=None", "tie={result path: argument path}"],
        )
    sources = [x for tree in trees.values() for x in jax.tree.leaves(tree)]
    targets = jax.tree.leaves(results)
    ties: dict[int, int] = {}
    for result, argument in tie.items():
        below = _below(result, outputs, "result"), _below(argument, arguments, "argument")
        ours, theirs = [targets[k] for k in below[0]], [sources[k] for k in below[1]]
        if not _alike(ours, theirs):
            raise SbpError(
                f"tie {{{result!r}: {argument!r}}} joins unequal trees",
                why=f"The result is {_types(ours)}, the argument {_types(theirs)}.",
                how="tie trees with the same shapes and dtypes, leaf by leaf",
            )
        ties.update(zip(*below, strict=True))
    return ties


def _types(leaves: Sequence[Any], most: int = 4) -> str:
    more = f" and {len(leaves) - most} more" if len(leaves) > most else ""
    return ", ".join(map(described, leaves[:most])) + more


def _below(path: str, paths: Sequence[str], what: str) -> list[int]:
    found = [k for k, p in enumerate(paths) if p == path or p.startswith(f"{path}.") or not path]
    if not found:
        named = [p for p in paths[:8] if p]
        raise SbpError(
            f"tie names the {what} {path!r}, which is not there",
            why=f"The {what}s are {', '.join(named)}." if named else f"The {what} has no path.",
            how=f"name one of the {what}s, or a subtree of them; '' is all of them",
        )
    return found


def _automatic(donated: Sequence[int], trees: Mapping[str, Any], results: Any) -> dict[int, int]:
    ties: dict[int, int] = {}
    start = 0
    for position, tree in enumerate(trees.values()):
        count = len(jax.tree.leaves(tree))
        if position in donated:
            for offset, subtree in _subtrees(results, 0):
                free = all(offset + k not in ties for k in range(count))
                if free and count and _alike(tree, subtree):
                    ties.update({offset + k: start + k for k in range(count)})
                    break
        start += count
    return ties


def _subtrees(tree: Any, offset: int) -> Iterator[tuple[int, Any]]:
    """Every subtree with the position of its first leaf, outermost first."""
    level = [(offset, tree)]
    while level:
        yield from level
        inner = []
        for start, node in level:
            children = jax.tree.structure(node).children()
            leaves, at = jax.tree.leaves(node), 0
            for child in children:
                inner.append((start + at, child.unflatten(leaves[at : at + child.num_leaves])))
                at += child.num_leaves
        level = inner


def _alike(one: Any, other: Any) -> bool:
    if jax.tree.structure(one) != jax.tree.structure(other):
        return False
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in pairs)
