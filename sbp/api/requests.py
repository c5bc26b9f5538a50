"""What a user says of words, leaf by leaf.

Comes in: words in any form (text, `NdSbp`, `PartitionSpec`, `NamedSharding`), spread over arguments
by name, by path pattern, or as a tree prefix. Goes out: an `NdSbp` or None for each leaf.
"""

import difflib
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from sbp.algebra import ArrayType, NdSbp, format_type
from sbp.errors import SignatureError
from sbp.specs import from_partition_spec


@dataclass(frozen=True, slots=True)
class WordRule:
    """Words that depend on the array: a rule stands wherever words do.

    Attributes:
        name: What it is called in errors.
        words: Takes an array's type and the mesh's sizes by axis name, gives the words.
    """

    name: str
    words: Callable[[ArrayType, Mapping[str, int]], NdSbp]

    def __repr__(self) -> str:
        return self.name


WORDS = (NdSbp, str, PartitionSpec, NamedSharding, WordRule)


def as_words(request: Any, mesh: Any, array: ArrayType, where: str) -> NdSbp:
    """Words given in any form.

    Args:
        request: An `NdSbp`, its text, a `PartitionSpec`, a `NamedSharding` or a `WordRule`; the
            second last two say all axes, the others only those they name.
        mesh: The mesh that a spec is read on.
        array: The array.
        where: Whose words they are, for errors.
    """
    if isinstance(request, NdSbp):
        return request
    try:
        if isinstance(request, WordRule):
            return request.words(array, dict(mesh.shape))
        if isinstance(request, str):
            return NdSbp.parse(request)
        if isinstance(request, NamedSharding):
            _check_same_mesh(request.mesh, mesh)
            request = request.spec
        if not isinstance(request, PartitionSpec):
            raise SignatureError(
                f"{request!r} is not words",
                why="Words are text, NdSbp, PartitionSpec or NamedSharding.",
                how="write for example 'dp: S(0)'",
            )
        return from_partition_spec(request, mesh, array.ndim)
    except SignatureError as error:
        raise SignatureError(error.what, where=where, why=error.why, how=error.how) from None


def _check_same_mesh(given: Any, mesh: Any) -> None:
    one, other = (
        ", ".join(f"{name}={size}" for name, size in m.shape.items()) for m in (given, mesh)
    )
    if one != other:
        raise SignatureError(
            "a sharding of another mesh is asked for",
            why=f"It is on a mesh of {one}; this mesh has {other}.",
            how="give words by axis name: 'dp: S(0)'",
        )


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


def described(tree: Any, most: int = 4) -> str:
    """The first leaves of a tree, with paths and types."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    shown = [
        f"{path_of(keys, '')} {format_type(ArrayType(x.shape, x.dtype))}".strip()
        for keys, x in leaves[:most]
    ]
    return ", ".join(shown) + (f" and {len(leaves) - most} more" if len(leaves) > most else "")


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
            fits everything below the path it names. A list of `(pattern, words)` under a pattern is
            a table for the leaves below: each has a rule, and each rule a leaf.
        trees: Trees of arrays or structs, by name.
        mesh: The mesh.
        what: `in_sbp` or `out_sbp`, for errors.

    Raises:
        SignatureError: A pattern fits nothing, or a prefix is not one.
    """
    paths = leaf_paths(trees)
    arrays = [
        ArrayType(tuple(leaf.shape), leaf.dtype)
        for tree in trees.values()
        for leaf in jax.tree.leaves(tree)
    ]
    if request is None:
        return (None,) * len(paths)
    if isinstance(request, Mapping) and not isinstance(request, NdSbp):
        requests = _by_pattern(request, trees, paths, mesh, what)
    elif isinstance(request, WORDS):
        requests = [request] * len(paths)
    else:
        requests = _by_position(request, trees, what)
    return tuple(
        None if asked is None else as_words(asked, mesh, array, f"{what} {path}".strip())
        for asked, array, path in zip(requests, arrays, paths, strict=True)
    )


def _by_pattern(
    patterns: Mapping[str, Any], trees: Mapping[str, Any], paths: Sequence[str], mesh: Any,
    what: str,
) -> list[Any]:  # fmt: skip
    requests: list[Any] = [None] * len(paths)
    taken = [False] * len(paths)
    for pattern, asked in patterns.items():
        if not isinstance(pattern, str):
            raise SignatureError(
                f"{what} has the key {pattern!r}, which is not a path pattern",
                why=_shown(paths),
                how=f"give text, or words by position: {what}=('dp: S(0)', None)",
            )
        fits = [k for k, path in enumerate(paths) if _fits(pattern, path)]
        if not fits:
            raise _unused(pattern, paths, mesh, what)
        if all(taken[k] for k in fits):
            raise _shadowed(pattern, list(patterns), what)
        if isinstance(asked, WORDS) or asked is None:
            found = dict.fromkeys(fits, asked)
        elif _is_table(asked):
            below = [paths[k].removeprefix(pattern).removeprefix(".") for k in fits]
            found = dict(zip(fits, _by_table(asked, below, f"{what} {pattern}"), strict=True))
        elif pattern in trees:
            found = dict(
                zip(fits, prefix_words(asked, trees[pattern], f"{what} {pattern}"), strict=True)
            )
        else:
            raise SignatureError(
                f"{what} gives {type(asked).__name__} for the pattern {pattern!r}",
                why="A tree of words can stand only under the name of a whole argument.",
                how=[
                    "give one text such as 'dp: S(0)' for a pattern",
                    "give a table of rules: [('*.w', 'dp: S(0)'), ('*', 'dp: B')]",
                ],
            )
        for k, words in found.items():
            if not taken[k]:
                requests[k], taken[k] = words, True
    return requests


def _fits(pattern: str, path: str) -> bool:
    """Whether a pattern is a path, or that of something above it, or matches it."""
    above = path == pattern or path.startswith(f"{pattern}.")
    return above or fnmatch.fnmatchcase(path, pattern)


def _is_table(asked: Any) -> bool:
    return isinstance(asked, list) and bool(asked) and all(
        isinstance(rule, tuple)
        and len(rule) == 2
        and isinstance(rule[0], str)
        and ":" not in rule[0]
        and (rule[1] is None or isinstance(rule[1], WORDS))
        for rule in asked
    )  # fmt: skip


def _by_table(rules: Sequence[tuple[str, Any]], paths: Sequence[str], where: str) -> list[Any]:
    """Words by the first rule that fits a leaf: every leaf has one, and every rule a leaf."""
    found = [next((k for k, rule in enumerate(rules) if _fits(rule[0], path)), None)
             for path in paths]  # fmt: skip
    missing = [path for path, k in zip(paths, found, strict=True) if k is None]
    unused = [pattern for k, (pattern, _) in enumerate(rules) if k not in found]
    if missing or unused:
        lists = [f"Without a rule: {', '.join(missing)}"] if missing else []
        lists += [f"Rules without a leaf: {', '.join(map(repr, unused))}"] if unused else []
        raise SignatureError(
            f"the table has no rule for {len(missing)} of {len(paths)} leaves, and {len(unused)} "
            f"of {len(rules)} rules have no leaf",
            where=where,
            why="The first rule that fits a leaf counts; a leaf without one, or a rule without a "
            "leaf, is a spelling mistake.\n" + "\n".join(lists),
            how=[
                *(["end with ('*', None), which leaves the rest free"] if missing else []),
                *(
                    ["remove the rule, or put it before one that takes its leaves"]
                    if unused
                    else []
                ),
            ],
        )
    return [rules[k][1] for k in found if k is not None]


def _shown(paths: Sequence[str]) -> str:
    if not any(paths):
        return "There is one leaf, without a path." if paths else "There are no leaves."
    more = f" and {len(paths) - 8} more" if len(paths) > 8 else ""
    return f"The leaves are {', '.join(paths[:8])}{more}."


def _unused(pattern: str, paths: Sequence[str], mesh: Any, what: str) -> SignatureError:
    how = [f"{name!r}" for name in difflib.get_close_matches(pattern, paths, n=3, cutoff=0.4)]
    if pattern in mesh.axis_names:
        how = [f"words by axis are one text: '{pattern}: S(0)'"]
    if not any(paths):
        how = [f"{what}='{next(iter(mesh.axis_names), 'dp')}: S(0)'"]
    return SignatureError(
        f"{what} pattern {pattern!r} matches nothing",
        why=_shown(paths),
        how=[*how, "remove the pattern"],
    )


def _shadowed(pattern: str, patterns: Sequence[str], what: str) -> SignatureError:
    return SignatureError(
        f"{what} pattern {pattern!r} counts for nothing",
        why="Of several patterns that match a leaf the first one counts, and every leaf that this "
        "one matches is matched by one before it.",
        how=[f"put {pattern!r} before {patterns[0]!r}", "remove the pattern"],
    )


def _by_position(request: Any, trees: Mapping[str, Any], what: str) -> list[Any]:
    if len(trees) == 1 and "" in trees:
        return prefix_words(request, trees[""], what)
    if not isinstance(request, Sequence):
        raise SignatureError(
            f"{what}={request!r} is not a request for words",
            why="It is words for all arguments, a mapping from argument name or path pattern to "
            "words, or one entry an argument.\nWords are text, NdSbp, PartitionSpec or "
            "NamedSharding.",
            how=[f"{what}={{'{next(iter(trees), 'x')}': 'dp: S(0)'}}", f"{what}='dp: S(0)'",
                 f"{what}=('dp: S(0)', None), in the order of the arguments"],
        )  # fmt: skip
    if len(request) != len(trees):
        given = f"{len(request)} entr{'y' if len(request) == 1 else 'ies'}"
        raise SignatureError(
            f"{what} has {given} for {len(trees)} argument{'s'[: len(trees) != 1]}",
            why=f"The arguments are {', '.join(trees)}.",
            how=["give one entry an argument, None leaves it free",
                 f"give a mapping: {{'{next(iter(trees), 'x')}': 'dp: S(0)'}}"],
        )  # fmt: skip
    return [
        words
        for (name, tree), prefix in zip(trees.items(), request, strict=True)
        for words in prefix_words(prefix, tree, f"{what} {name}")
    ]


def prefix_words(prefix: Any, tree: Any, where: str) -> list[Any]:
    """Words of each leaf of a tree, from a tree prefix of words.

    Args:
        prefix: The prefix; None leaves what is below it free.
        tree: The tree.
        where: Whose words they are, for errors.
    """
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
    except ValueError:
        how = ["one text for a whole subtree", "path patterns: {'state.params.*': 'dp: S(0)'}"]
        if isinstance(prefix, list | tuple) and len(prefix) == 1 and not _children(tree):
            how = [f"without the {type(prefix).__name__}: {prefix[0]!r}"]
        raise SignatureError(
            "the tree of words is not a prefix of the tree of arrays",
            where=where,
            why=_difference(prefix, tree, ""),
            how=how,
        ) from None
    return [
        words
        for words, subtree in zip(leaves, subtrees, strict=True)
        for _ in jax.tree.leaves(subtree)
    ]


def _difference(prefix: Any, tree: Any, path: str) -> str:
    """Where a tree of words first leaves the tree of arrays, in words."""
    if prefix is None or isinstance(prefix, WORDS):
        return ""
    ours, theirs = (_children(node) for node in (prefix, tree))
    at = f" at {path!r}" if path else ""
    if type(prefix) is not type(tree) or list(ours) != list(theirs):
        return f"The words{at} are {_kind(prefix, ours)}, the arrays are {_kind(tree, theirs)}."
    found = (
        _difference(child, theirs[key], f"{path}.{key}" if path else key)
        for key, child in ours.items()
    )
    return next(filter(None, found), f"The words{at} have another structure than the arrays.")


def _children(node: Any) -> dict[str, Any]:
    """The subtrees one level below a node, by key; nothing below a leaf."""
    if node is None or isinstance(node, (*WORDS, jax.ShapeDtypeStruct)):
        return {}
    pairs, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    return {path_of(keys, ""): child for keys, child in pairs}


def _kind(node: Any, children: Mapping[str, Any]) -> str:
    if isinstance(node, jax.ShapeDtypeStruct):
        return f"one array {format_type(ArrayType(node.shape, node.dtype))}"
    name = type(node).__name__
    if name in ("list", "tuple"):
        return f"a {name} of {len(children)} entr{'y' if len(children) == 1 else 'ies'}"
    article = "an" if name[0] in "AEIOUaeiou" else "a"
    return f"{article} {name} with {', '.join(children) or 'nothing in it'}"
