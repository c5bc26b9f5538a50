"""What a user says of words, leaf by leaf.

Comes in: words in any form (text, `NdSbp`, `PartitionSpec`, `NamedSharding`), spread over arguments
by name, by path pattern, or as a tree prefix. Goes out: an `NdSbp` or None for each leaf.
"""

import difflib
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from sbp.algebra import NdSbp
from sbp.errors import SignatureError
from sbp.lowering.specs import from_partition_spec

WORDS = (NdSbp, str, PartitionSpec, NamedSharding)


def as_words(request: Any, mesh: Any, ndim: int, where: str) -> NdSbp:
    """Words given in any form.

    Args:
        request: An `NdSbp`, its text, a `PartitionSpec` or a `NamedSharding`; the last two say all
            axes, the first two only those they name.
        mesh: The mesh that a spec is read on.
        ndim: Number of dims of the array.
        where: Whose words they are, for errors.
    """
    if isinstance(request, NdSbp):
        return request
    if isinstance(request, str):
        return NdSbp.parse(request)
    if isinstance(request, NamedSharding):
        if tuple(request.mesh.axis_names) != tuple(mesh.axis_names):
            raise SignatureError(
                "a sharding of another mesh is asked for",
                where=where,
                why=f"It is on axes {request.mesh.axis_names}, the mesh has {mesh.axis_names}.",
                how="give words by axis name: 'dp: S(0)'",
            )
        request = request.spec
    return from_partition_spec(request, mesh, ndim)


def path_of(keys: Sequence[Any], root: str) -> str:
    """A leaf's path with dots: `state.params.blocks.wqkv`."""
    parts = [root] if root else []
    for key in keys:
        for name in ("key", "name", "idx"):
            if hasattr(key, name):
                parts.append(str(getattr(key, name)))
                break
        else:
            parts.append(str(key))
    return ".".join(parts)


def leaf_paths(trees: Mapping[str, Any]) -> list[str]:
    """The paths of all leaves of named trees, in order."""
    return [
        path_of(keys, root)
        for root, tree in trees.items()
        for keys, _ in jax.tree_util.tree_flatten_with_path(tree)[0]
    ]


def spread(
    request: Any, trees: Mapping[str, Any], mesh: Any, what: str
) -> tuple[NdSbp | None, ...]:
    """The words asked for each leaf.

    Args:
        request: None, words for everything, a sequence of tree prefixes (one a tree), or a mapping
            from path pattern to words, the first pattern that fits a leaf counts. A pattern also
            fits everything below the path it names.
        trees: Trees of arrays or structs, by name.
        mesh: The mesh.
        what: `in_sbp` or `out_sbp`, for errors.

    Raises:
        SignatureError: A pattern fits nothing, or a prefix is not one.
    """
    paths = leaf_paths(trees)
    ndims = [len(leaf.shape) for tree in trees.values() for leaf in jax.tree.leaves(tree)]
    if request is None:
        return (None,) * len(paths)
    if isinstance(request, Mapping) and not isinstance(request, NdSbp):
        requests = _by_pattern(request, trees, paths, what)
    elif isinstance(request, WORDS):
        requests = [request] * len(paths)
    else:
        requests = _by_position(request, trees, what)
    return tuple(
        None if asked is None else as_words(asked, mesh, ndim, f"{what} {path}")
        for asked, ndim, path in zip(requests, ndims, paths, strict=True)
    )


def _by_pattern(
    patterns: Mapping[str, Any], trees: Mapping[str, Any], paths: Sequence[str], what: str
) -> list[Any]:
    requests: list[Any] = [None] * len(paths)
    taken = [False] * len(paths)
    for pattern, asked in patterns.items():
        fits = [
            k
            for k, path in enumerate(paths)
            if fnmatch.fnmatchcase(path, pattern) or path.startswith(f"{pattern}.")
        ]
        if not fits:
            raise _unused(pattern, paths, what)
        if isinstance(asked, WORDS) or asked is None:
            found = dict.fromkeys(fits, asked)
        elif pattern in trees:
            found = dict(
                zip(fits, _prefix(asked, trees[pattern], f"{what} {pattern}"), strict=True)
            )
        else:
            raise SignatureError(
                f"{what} gives {type(asked).__name__} for the pattern {pattern!r}",
                why="A tree of words can stand only under the name of a whole argument.",
                how="give one text such as 'dp: S(0)' for a pattern",
            )
        for k, words in found.items():
            if not taken[k]:
                requests[k], taken[k] = words, True
    return requests


def _unused(pattern: str, paths: Sequence[str], what: str) -> SignatureError:
    close = difflib.get_close_matches(pattern, paths, n=3, cutoff=0.4)
    shown = ", ".join(paths[:8]) + (f" and {len(paths) - 8} more" if len(paths) > 8 else "")
    return SignatureError(
        f"{what} pattern {pattern!r} matches nothing",
        why=f"The leaves are {shown}." if paths else "There are no leaves.",
        how=[*(f"{name!r}" for name in close), "remove the pattern"],
    )


def _by_position(request: Any, trees: Mapping[str, Any], what: str) -> list[Any]:
    if len(trees) == 1 and "" in trees:
        return _prefix(request, trees[""], what)
    if not isinstance(request, Sequence) or len(request) != len(trees):
        given = f"{len(request)} entries" if isinstance(request, Sequence) else repr(request)
        raise SignatureError(
            f"{what} has {given} for {len(trees)} arguments",
            why=f"The arguments are {', '.join(trees)}.",
            how=["give one entry an argument, None leaves it free",
                 f"give a mapping: {{'{next(iter(trees), 'x')}': 'dp: S(0)'}}"],
        )  # fmt: skip
    return [
        words
        for (name, tree), prefix in zip(trees.items(), request, strict=True)
        for words in _prefix(prefix, tree, f"{what} {name}")
    ]


def _prefix(prefix: Any, tree: Any, where: str) -> list[Any]:
    """Words of each leaf of a tree, from a tree prefix of words."""
    leaves, structure = jax.tree.flatten(
        prefix, is_leaf=lambda x: x is None or isinstance(x, WORDS)
    )
    wrong = next((x for x in leaves if x is not None and not isinstance(x, WORDS)), None)
    if wrong is not None:
        raise SignatureError(
            f"{wrong!r} is not words",
            where=where,
            why="Words are text, NdSbp, PartitionSpec or NamedSharding; None leaves a leaf free.",
            how="write for example 'dp: S(0)'",
        )
    try:
        subtrees = structure.flatten_up_to(tree)
    except ValueError as error:
        raise SignatureError(
            "the tree of words is not a prefix of the tree of arrays",
            where=where,
            why=f"{error}\nThe arrays are {jax.tree.structure(tree)}.",
            how=[
                "give one text for the whole subtree",
                "use path patterns: {'state.params.*': ...}",
            ],
        ) from error
    return [
        words
        for words, subtree in zip(leaves, subtrees, strict=True)
        for _ in jax.tree.leaves(subtree)
    ]
