"""`signature`: the words that a function promises to keep, claimed by its author and checked.

Comes in: a function, and for each mesh axis the words of its arguments and results. Goes out: the
same function. Where sbp traces it, each claim is tried by itself (`sbp.api.claim_checks`), and the
plan keeps it: nothing is boxed between the arguments and the results on the axes of the claim.
Under plain `jax.jit` with a mesh set the words become sharding constraints.
"""

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import jax

from sbp import _compat
from sbp.algebra import NdSbp, Word, parse_word
from sbp.api.binding import check_arrays, function_name, is_hashable
from sbp.api.claim_checks import Claim, check_claim
from sbp.api.pinning import constrain
from sbp.api.requests import leaf_paths, prefix_words
from sbp.errors import SbpError, SignatureError
from sbp.graph import Mesh, check_words
from sbp.program import Traced
from sbp.tracebacks import concise
from sbp.tracing import CLAIM, array_type, function_being_traced, trace

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

INFER = "_"
_CALLS = itertools.count()
_CHECKING: ContextVar[bool] = ContextVar("sbp.checking", default=False)


@dataclass(frozen=True, slots=True)
class _Claimed:
    """What is claimed on one axis.

    Attributes:
        given: As its author gave it.
        arguments: For each argument a tree prefix of words; None is inferred.
        results: A tree prefix for all results.
    """

    given: Any
    arguments: tuple[Any, ...]
    results: Any


@dataclass(frozen=True, slots=True)
class _End:
    """The arguments, or the results, of one call: leaves, and the words claimed for each."""

    tree: Any
    leaves: tuple[Any, ...]
    paths: tuple[str, ...]
    words: tuple[NdSbp, ...]

    @property
    def arrays(self) -> list[int]:
        """Positions of the leaves that take part; what has no words may be of any kind."""
        return [
            k
            for k, (leaf, words) in enumerate(zip(self.leaves, self.words, strict=True))
            if words or (hasattr(leaf, "shape") and hasattr(leaf, "dtype"))
        ]

    def rebuild_words(self, words: Sequence[Word | None]) -> Any:
        """The trees, with words as text in place of arrays, and of all else."""
        spelled = [INFER] * len(self.leaves)
        for position, word in zip(self.arrays, words, strict=True):
            spelled[position] = INFER if word is None else str(word)
        return self.tree.unflatten(spelled)

    def rebuild(self, arrays: Sequence[Any]) -> Any:
        """The trees, with other arrays."""
        leaves = list(self.leaves)
        for position, array in zip(self.arrays, arrays, strict=True):
            leaves[position] = array
        return self.tree.unflatten(leaves)


@concise
def signature(
    *, strict: bool = True, **by_axis: Any
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Claims the words of a function's arguments and results, axis by axis.

    The claim is checked wherever a plan is made of the function: on each axis the results have
    their words if the arguments have theirs, and nothing is boxed in between. The plan keeps to it.
    Axes that the mesh lacks are left out, and the plan notes which. Derivatives are free. Outside a
    plan the function is an ordinary one; under `jax.jit` with a mesh set, the words become sharding
    constraints.

    Args:
        strict: False allows boxing inside; `explain` shows it.
        **by_axis: For a mesh axis, text such as `"S(0), B -> S(0)"`: a word for each argument and
            each result. `_` leaves one to be inferred, and a word holds for a whole tree. For words
            leaf by leaf give a pair: a tuple of trees of words for the arguments, and one for the
            results.

    Raises:
        SignatureError: A claim cannot be read or, when the function is called in a plan, does not
            hold; the error names what would.
    """
    claims = {axis: _read(axis, claim) for axis, claim in by_axis.items()}
    if not claims:
        raise SignatureError(
            "sbp.signature claims nothing",
            why="It takes the words of arguments and results by mesh axis.",
            how="@sbp.signature(tp='B, S(1) -> S(1)')",
        )

    def claim(fn: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        if not callable(fn):
            raise SignatureError(
                f"sbp.signature decorates {fn!r}, which is no function",
                why="It makes a decorator.",
                how="@sbp.signature(tp='B, S(1) -> S(1)') above def",
            )
        checked: set[Any] = set()

        @concise
        @functools.wraps(fn)
        def claimed(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            mesh = _compat.current_abstract_mesh()
            if mesh.empty:
                return fn(*args, **kwargs)
            call = _Call(fn, claims, mesh, args, kwargs)
            if strict and function_being_traced() and not _CHECKING.get():
                call.check(checked)
            return call.run(strict)

        return claimed

    return claim


class _Call:
    """One call of a function that makes claims, on a mesh."""

    def __init__(
        self, fn: Callable[..., Any], claims: Mapping[str, _Claimed], mesh: Any,
        args: Sequence[Any], kwargs: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.fn, self.name = fn, function_name(fn)
        # Where sbp itself calls it there is no line of the user's.
        self.where = _compat.current_line() or _compat.definition_line(fn)
        self.mesh, self.axes = mesh, Mesh(tuple(mesh.axis_names), tuple(mesh.axis_sizes))
        self.claims = {axis: claims[axis] for axis in self.axes.axes if axis in claims}
        self.notes = tuple(
            f"{self.name} claims words on {axis}, which the mesh lacks ({self.where})"
            for axis in claims
            if axis not in self.axes.axes
        )
        bound = inspect.signature(fn).bind(*args, **kwargs)
        self.kwargs = bound.kwargs
        names = list(bound.signature.parameters)[: len(bound.args)]
        names += [f"argument {k}" for k in range(len(names), len(bound.args))]
        for axis, claim in self.claims.items():
            self._check_count(axis, claim, bound)
        self.operands = self._end(
            bound.args,
            leaf_paths(dict(zip(names, bound.args, strict=True))),
            lambda claim: claim.arguments[: len(bound.args)],
        )

    def _check_count(self, axis: str, claim: _Claimed, bound: inspect.BoundArguments) -> None:
        kinds = [p.kind for p in bound.signature.parameters.values()]
        most = sum(kind in (kind.POSITIONAL_ONLY, kind.POSITIONAL_OR_KEYWORD) for kind in kinds)
        given, count = len(bound.args), len(claim.arguments)
        if given <= count <= max(given, most):
            return
        raise SignatureError(
            f"{self.name} claims {axis}={claim.given!r}, words for {count} "
            f"argument{'s'[: count != 1]}; it is called with {given}",
            where=self.where,
            why=f"It is {self.name}{bound.signature}. A claim has a word for each argument.",
            how=["give one word an argument", f"{INFER} leaves an argument to be inferred"],
        )

    def _end(self, trees: Any, paths: Sequence[str], prefix_of: Callable[[_Claimed], Any]) -> _End:
        leaves, tree = jax.tree.flatten(trees)
        words: list[dict[str, Word]] = [{} for _ in leaves]
        for axis, claim in self.claims.items():
            where = f"{axis}={claim.given!r} of {self.name}, {self.where}"
            for leaf, asked in zip(
                words, prefix_words(prefix_of(claim), trees, where), strict=True
            ):
                leaf.update(asked or {})
        for leaf, path, asked in zip(leaves, paths, words, strict=True):
            if asked:
                check_arrays(leaf, lambda _, path=path: f"{path} of {self.name}",
                             f"claim {INFER} for what is no array")  # fmt: skip
        checked = (
            check_words(NdSbp(asked), array_type(leaf), self.axes,
                        f"{path} of {self.name}, {self.where}", what="signature")
            if asked else NdSbp()
            for leaf, path, asked in zip(leaves, paths, words, strict=True)
        )  # fmt: skip
        return _End(tree, tuple(leaves), tuple(paths), tuple(checked))

    def _results(self, returned: Any) -> _End:
        return self._end(returned, leaf_paths({"": returned}), lambda claim: claim.results)

    def _body(self, arrays: Sequence[Any]) -> Any:
        return self.fn(*self.operands.rebuild(arrays), **self.kwargs)

    def run(self, strict: bool) -> Any:
        """Calls the function with its ends marked."""
        call, sealed = next(_CALLS), frozenset(self.claims) if strict else frozenset[str]()
        planned = bool(function_being_traced())

        def mark(end: _End, is_result: bool) -> list[Any]:
            params = {"call": call, "is_result": is_result, "sealed": sealed, "notes": self.notes}
            marked = []
            for position in end.arrays:
                words = end.words[position]
                array = CLAIM.bind(end.leaves[position], words=words, **params)
                marked.append(array if planned else constrain(array, words, self.mesh))
            return marked

        results = self._results(self._body(mark(self.operands, False)))
        return results.rebuild(mark(results, True))

    def check(self, checked: set[Any]) -> None:
        """Tries each claim by itself, unless this was done for these types.

        Args:
            checked: What was tried already.
        """
        held = {k: x for k, x in enumerate(self.operands.leaves) if k not in self.operands.arrays}
        structs = [array_type(self.operands.leaves[k]) for k in self.operands.arrays]
        key = (self.operands.tree, tuple(structs), tuple(held.items()), self.axes,
               tuple(self.kwargs.items()))  # fmt: skip
        if is_hashable(key) and key in checked:
            return
        traced, results = self._trace(structs)

        def spell(arguments: Sequence[Any], returned: Sequence[Any]) -> Any:
            return _spell(self.operands.rebuild_words(arguments), results.rebuild_words(returned))

        ends = self.operands, results
        paths = [tuple(end.paths[k] for k in end.arrays) for end in ends]
        for axis, claim in self.claims.items():
            words = [tuple(end.words[k].get(axis) for k in end.arrays) for end in ends]
            made = Claim(
                self.name, axis, claim.given, self.where, paths[0], paths[1], words[0], words[1],
                spell,
            )  # fmt: skip
            check_claim(made, traced, self.axes)
        if is_hashable(key):
            checked.add(key)

    def _trace(self, structs: Sequence[Any]) -> tuple[Traced, _End]:
        returned: list[Any] = []

        def flat(*arrays: Any) -> list[Any]:
            result = self._body(arrays)
            returned.append(result)
            end = self._results(result)
            return [end.leaves[k] for k in end.arrays]

        with _checking():
            traced = trace(
                flat, [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in structs], self.mesh
            )
        return traced, self._results(returned[-1])


@contextlib.contextmanager
def _checking() -> Iterator[None]:
    """What a function claims that is called inside is checked when it is called itself."""
    token = _CHECKING.set(True)
    try:
        yield
    finally:
        _CHECKING.reset(token)


def _read(axis: str, claim: Any) -> _Claimed:
    if isinstance(claim, str):
        sides = claim.split("->")
        if len(sides) == 2:
            arguments, results = ([w.strip() for w in side.split(",")] for side in sides)
            arguments = [] if arguments == [""] else arguments
            trees = tuple(arguments), results[0] if len(results) == 1 else tuple(results)
            return _Claimed(claim, *(_words(axis, claim, tree) for tree in trees))
    elif isinstance(claim, tuple) and len(claim) == 2 and isinstance(claim[0], tuple):
        return _Claimed(claim, *(_words(axis, claim, tree) for tree in claim))
    raise SignatureError(
        f"sbp.signature({axis}={claim!r}) cannot be read",
        why="A claim is a word for each argument, an arrow, and a word for each result; or a pair, "
        "a tuple of trees of words for the arguments, and one for the results.",
        how=[f"{axis}='S(0), B -> S(0)'", f"{axis}=(('S(0)', {{'w': 'B'}}), 'S(0)')"],
    )


def _spell(arguments: Any, results: Any) -> Any:
    """A claim as its author would write it: text, if each tree has one word; else a pair."""
    ends = tuple(map(_shortest, arguments)), _shortest(results)
    several = ends[1] if isinstance(ends[1], tuple) else (ends[1],)
    if all(isinstance(word, str) for word in (*ends[0], *several)):
        return f"{', '.join(ends[0])} -> {', '.join(several)}".strip()
    return ends


def _shortest(tree: Any) -> Any:
    """One word for a tree that has the same everywhere; of several results, one each."""
    words = set(jax.tree.leaves(tree))
    if type(tree) is tuple and len(words) > 1:
        return tuple(map(_shortest, tree))
    return tree if len(words) > 1 else next(iter(words), INFER)


def _words(axis: str, given: Any, tree: Any) -> Any:
    """A tree of words, each as `NdSbp`; what is to be inferred is None."""

    def word(leaf: Any) -> NdSbp | None:
        if leaf is None or leaf == INFER:
            return None
        try:
            return NdSbp({axis: parse_word(leaf) if isinstance(leaf, str) else leaf})
        except SbpError as error:
            raise SignatureError(
                f"sbp.signature({axis}={given!r}): {error.what}", why=error.why, how=error.how
            ) from None

    return jax.tree.map(word, tree, is_leaf=lambda x: x is None or isinstance(x, str | Word))
