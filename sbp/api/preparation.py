"""One function, one set of shapes: traced, planned, and ready to be lowered on any axis types.

Comes in: a function, options, types of the arguments. Goes out: `Prepared`.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from sbp import _compat
from sbp.algebra import ArrayType, NdSbp, Partial
from sbp.api.binding import call, check_arrays, marked
from sbp.api.options import Options, argument_names, function_name
from sbp.api.requests import leaf_paths, spread
from sbp.api.ties import find_ties
from sbp.errors import PlanError, SbpError, SignatureError
from sbp.graph import Boundary, check_words, result_name
from sbp.lowering.auto import lower_automatically
from sbp.lowering.manual import lower_manually
from sbp.plan import Origin, Plan, make_plan
from sbp.plan.assignment import Assignment
from sbp.program import Traced
from sbp.specs import spec_of
from sbp.tracing import presented_as, trace

_LOG = logging.getLogger("sbp")


@dataclasses.dataclass(slots=True, eq=False)
class Prepared:
    """A planned function.

    Attributes:
        flat: The user's function on flat arrays.
        names: Names of the arguments that are not static.
        traced: The program.
        plan: Its plan.
        assignment: The plan's choices.
        in_tree: Structure of the tuple of arguments that are not static.
        out_tree: Structure of the result.
        structs: Types of the argument leaves.
        paths: Their paths.
        static: Static arguments by position.
        donate: Positions of donated arguments among those that are not static.
        lowering: Which lowering to use.
    """

    flat: Callable[..., Sequence[Any]]
    names: tuple[str, ...]
    traced: Traced
    plan: Plan
    assignment: Assignment
    in_tree: Any
    out_tree: Any
    structs: tuple[jax.ShapeDtypeStruct, ...]
    paths: tuple[str, ...]
    static: Mapping[int, Any]
    donate: tuple[int, ...]
    lowering: str
    _programs: dict[Any, Any] = dataclasses.field(default_factory=dict)

    @property
    def has_partial_boundary(self) -> bool:
        """Whether an argument or result is partial."""
        ends = (*self.plan.arguments, *self.plan.results)
        return any(isinstance(word, Partial) for _, words in ends for word in words.values())

    def dynamic(self, args: Sequence[Any]) -> list[Any]:
        """The arguments that are not static."""
        return [x for k, x in enumerate(args) if k not in self.static]

    def with_leaves(self, args: Sequence[Any], leaves: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments with other leaves."""
        dynamic = iter(self.in_tree.unflatten(leaves))
        return tuple(x if k in self.static else next(dynamic) for k, x in enumerate(args))

    def placed_structs(self, mesh: Mesh) -> tuple[Any, ...]:
        """Types of the arguments that are not static, lying where the plan wants them."""
        pairs = zip(self.structs, self.leaf_shardings(mesh), strict=True)
        return tuple(self.in_tree.unflatten([
            jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where, weak_type=s.weak_type)
            for s, where in pairs
        ]))  # fmt: skip

    def leaf_shardings(self, mesh: Mesh) -> list[NamedSharding]:
        """Where each argument leaf lies."""
        return [
            NamedSharding(mesh, spec_of(mesh.axis_names, words.on(mesh.axis_names), len(s.shape)))
            for (_, words), s in zip(self.plan.arguments, self.structs, strict=True)
        ]

    def in_shardings(self, mesh: Mesh) -> tuple[Any, ...]:
        """Where the arguments that are not static lie, as trees."""
        return tuple(self.in_tree.unflatten(self.leaf_shardings(mesh)))

    def out_shardings(self, mesh: Mesh) -> Any:
        """Where the results lie, as a tree."""
        return self.out_tree.unflatten(self._result_shardings(mesh))

    def _result_shardings(self, mesh: Mesh) -> list[NamedSharding]:
        atoms = self.traced.block.outputs
        return [
            NamedSharding(mesh, spec_of(mesh.axis_names, words.on(mesh.axis_names), a.type.ndim))
            for (_, words), a in zip(self.plan.results, atoms, strict=True)
        ]

    def argument_like(self, tree: Any) -> int | None:
        """Position of the argument with this structure, these shapes and dtypes."""
        leaves, structure = jax.tree.flatten(tree)
        wanted = [(x.shape, x.dtype) for x in leaves]
        start = 0
        for position, child in enumerate(self.in_tree.children()):
            stop = start + child.num_leaves
            if child == structure and wanted == [
                (s.shape, s.dtype) for s in self.structs[start:stop]
            ]:
                return position
            start = stop
        return None

    def program(self, mesh: Mesh) -> Any:
        """The jitted program, a function of the arguments that are not static."""
        if mesh.axis_types not in self._programs:
            planned = self._differentiable(self._lower(mesh))

            def body(*dynamic: Any) -> Any:
                return self.out_tree.unflatten(planned(*jax.tree.leaves(dynamic)))

            body.__name__ = self.plan.name
            self._programs[mesh.axis_types] = jax.jit(
                body,
                in_shardings=self.in_shardings(mesh),
                out_shardings=self.out_shardings(mesh),
                donate_argnums=self.donate,
            )
        return self._programs[mesh.axis_types]

    def lower(self, mesh: Mesh) -> Any:
        """The lowered program (a `jax.stages.Lowered`); equal requests share one."""
        return self.program(mesh).lower(*self.placed_structs(mesh))

    def _lower(self, mesh: Mesh) -> Callable[..., Sequence[Any]]:
        if self.lowering == "auto":
            return self._lower_automatically(mesh)
        closures = self._closure_shardings(mesh)
        consts = _put_all(self.traced.consts, closures)
        shardings = [*self.leaf_shardings(mesh), *closures]
        program = lower_manually(
            self.traced, self.assignment, mesh, [s.spec for s in shardings],
            [s.spec for s in self._result_shardings(mesh)],
        )  # fmt: skip

        def lowered(*arguments: Any) -> Sequence[Any]:
            arrays: Sequence[Any] = (*arguments, *consts)
            if AxisType.Explicit in mesh.axis_types:
                arrays = [
                    jax.sharding.reshard(x, _explicit_part(s))
                    for x, s in zip(arrays, shardings, strict=True)
                ]
            return program(*arrays)

        return lowered

    def _lower_automatically(self, mesh: Mesh) -> Callable[..., Sequence[Any]]:
        types = (AxisType.Auto,) * len(mesh.axis_names)
        auto = Mesh(mesh.devices, mesh.axis_names, axis_types=types)
        consts = _put_all(self.traced.consts, self._closure_shardings(auto))
        program = lower_automatically(self.traced, self.assignment, auto)

        def lowered(*arguments: Any) -> tuple[Any, ...]:
            return tuple(program(*arguments, *consts))

        if AxisType.Explicit not in mesh.axis_types:
            return lowered
        specs = tuple(_explicit_part(s).spec for s in self._result_shardings(mesh))
        on_auto_axes: Any = jax.sharding.auto_axes(lowered, out_sharding=specs)
        return on_auto_axes

    def _closure_shardings(self, mesh: Mesh) -> list[NamedSharding]:
        values = self.traced.block.inputs[self.traced.num_arguments :]
        words = (self.assignment.label(None, "closure", k) for k in range(len(values)))
        return [
            NamedSharding(mesh, spec_of(mesh.axis_names, w, value.type.ndim))
            for w, value in zip(words, values, strict=True)
        ]

    def _differentiable(self, program: Callable[..., Sequence[Any]]) -> Callable[..., Any]:
        """The program, differentiated from outside as the user's own function.

        A derivative of the lowered program would have to derive its collectives and the user's
        custom rules anew; the function itself has them right.
        """

        @jax.custom_jvp
        def planned(*arguments: Any) -> tuple[Any, ...]:
            return tuple(program(*arguments))

        @planned.defjvp
        def _(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
            if self.has_partial_boundary:
                raise SignatureError(
                    f"{self.plan.name} is differentiated from outside, with partial arrays at "
                    "its ends",
                    why="The derivative of the function itself does not know that an argument or "
                    "result is a sum over devices, and would count it once for each.",
                    how=["take the gradient inside the parallelized function",
                         "ask for B or S at its ends"],
                )  # fmt: skip
            _LOG.warning(
                "%s: differentiated from outside; the derivative is right but not planned. "
                "Parallelize the function that takes the gradient.", self.plan.name,
            )  # fmt: skip
            return jax.jvp(lambda *xs: tuple(self.flat(*xs)), tuple(primals), tuple(tangents))

        return planned


def _put_all(arrays: Sequence[Any], shardings: Sequence[NamedSharding]) -> list[Any]:
    """Places arrays now, even while jax traces; a tracer stays as it is."""
    with jax.ensure_compile_time_eval():
        return [
            x if _compat.is_tracer(x) else jax.device_put(x, sharding)
            for x, sharding in zip(arrays, shardings, strict=True)
        ]


def _explicit_part(sharding: NamedSharding) -> NamedSharding:
    """What a sharding says of the Explicit axes; of the others, types say nothing."""
    mesh, spec = sharding.mesh, sharding.spec
    pairs = zip(mesh.axis_names, mesh.axis_types, strict=True)
    named = {axis for axis, kind in pairs if kind == AxisType.Explicit}
    if len(named) == len(mesh.axis_names):
        return sharding
    entries = (entry if isinstance(entry, tuple) else (entry,) for entry in spec.partitions)
    dims = (tuple(axis for axis in entry if axis in named) or None for entry in entries)
    return NamedSharding(mesh, PartitionSpec(*dims))


def prepare(
    fn: Callable[..., Any], options: Options, keywords: Sequence[str], in_tree: Any,
    structs: tuple[jax.ShapeDtypeStruct, ...], static: Mapping[int, Any], first: Prepared | None,
) -> Prepared:  # fmt: skip
    """Traces and plans a function for one set of shapes.

    Args:
        fn: The user's function.
        options: What is asked.
        keywords: Names of the last arguments, which go by name.
        in_tree: Structure of the tuple of arguments that are not static.
        structs: Types of their leaves.
        static: Static arguments by position.
        first: What fixed the words at the ends before, if anything did.
    """
    out_trees: list[Any] = []
    arguments = in_tree.unflatten(structs)
    num_arguments = len(arguments) + len(static)
    named = argument_names(fn, num_arguments, keywords)
    names = tuple(name for k, name in enumerate(named) if k not in static)

    def called(*dynamic: Any) -> Sequence[Any]:
        rest = iter(dynamic)
        full = [static[k] if k in static else next(rest) for k in range(num_arguments)]
        results, out_tree = _flat_results(fn, call(fn, full, keywords))
        out_trees.append(out_tree)
        return results

    traced = trace(presented_as(fn, called, names), arguments, options.mesh)
    if any(map(_compat.is_differentiated, traced.consts)):
        raise SbpError(
            f"{function_name(fn)} closes over a value that is being differentiated",
            why="Derivatives flow through the arguments of a step, not through what its function "
            "closes over.",
            how="make the value an argument",
        )
    out_tree = out_trees[-1]
    outputs = [jax.ShapeDtypeStruct(a.type.shape, a.type.dtype) for a in traced.block.outputs]
    donate = tuple(
        k - sum(s < k for s in static) for k in marked(fn, options.donate, num_arguments, keywords)
    )
    boundary = _boundary(
        options, dict(zip(names, arguments, strict=True)), out_tree.unflatten(outputs), donate,
        in_tree, out_tree, first,
    )  # fmt: skip

    def plan_for(ends: Boundary, saved: Plan | None = None) -> tuple[Plan, Assignment]:
        _check_ends(options, ends)
        made, chosen = make_plan(
            function_name(fn), traced, options.axes, options.costs, ends, options.conditions, saved
        )
        origin = Origin(traced, ends, chosen, lambda other: plan_for(other)[0])
        trees = {"in_tree": in_tree, "out_tree": out_tree}
        return dataclasses.replace(made, **trees, origin=origin), chosen

    plan, assignment = plan_for(boundary, options.saved)
    return Prepared(
        lambda *leaves: called(*in_tree.unflatten(leaves)), names, traced, plan, assignment,
        in_tree, out_tree, structs, boundary.argument_paths, static, donate, options.lowering,
    )  # fmt: skip


def _flat_results(fn: Callable[..., Any], returned: Any) -> tuple[list[Any], Any]:
    check_arrays(
        returned, lambda path: f"{result_name(path)} of {function_name(fn)}", "return arrays"
    )
    return jax.tree.flatten(returned)


def _boundary(
    options: Options, trees: Mapping[str, Any], results: Any, donate: Sequence[int], in_tree: Any,
    out_tree: Any, first: Prepared | None,
) -> Boundary:  # fmt: skip
    arguments = leaf_paths(trees)
    outputs = leaf_paths({"": results})
    ties = find_ties(options.tie, donate, trees, results, arguments, outputs)
    if first is None:
        in_words = spread(options.in_sbp, trees, options.mesh, "in_sbp")
        out_words = spread(options.out_sbp, {"": results}, options.mesh, "out_sbp")
    else:
        _check_structure(first, tuple(trees), in_tree, out_tree)
        in_words = tuple(words for _, words in first.plan.arguments)
        out_words = tuple(words for _, words in first.plan.results)
        leaves = [x for tree in (*trees.values(), results) for x in jax.tree.leaves(tree)]
        names = [*(f"argument {path}" for path in arguments), *map(result_name, outputs)]
        for name, words, leaf in zip(names, (*in_words, *out_words), leaves, strict=True):
            _check_kept(first, name, words, ArrayType(leaf.shape, leaf.dtype), options)
    trees_of_leaves = [k for k, tree in enumerate(trees.values()) for _ in jax.tree.leaves(tree)]
    donated = frozenset(leaf for leaf, tree in enumerate(trees_of_leaves) if tree in donate)
    return Boundary(tuple(arguments), tuple(outputs), in_words, out_words, ties, donated)


def _check_structure(first: Prepared, names: tuple[str, ...], in_tree: Any, out_tree: Any) -> None:
    if first.names != names:
        raise PlanError(
            f"{first.plan.name} is called with other arguments than it was planned for",
            why=f"First: {', '.join(first.names)}\nNow:   {', '.join(names)}",
            how="parallelize the function again for these arguments",
        )
    for what, old, new in (
        ("is called with", first.in_tree, in_tree),
        ("returns", first.out_tree, out_tree),
    ):
        if old != new:
            trees = (str(tree).removeprefix("PyTreeDef(")[:-1] for tree in (old, new))
            raise PlanError(
                f"{first.plan.name} {what} another structure than it was planned for",
                why="First: {}\nNow:   {}".format(*trees),
                how="parallelize the function again for the new structure",
            )


def _check_kept(
    first: Prepared, where: str, words: NdSbp, array: ArrayType, options: Options
) -> None:
    try:
        check_words(words, array, options.axes, where, what="in_sbp")
    except SignatureError as error:
        raise PlanError(
            f"{first.plan.name} cannot keep the words {words} of its first plan",
            where=where,
            why=f"{error.why}\nA step has one set of words at its ends, whatever the shapes.",
            how=[
                "pin words that all shapes can have",
                "parallelize the function again for the new shapes",
            ],
        ) from None


def _check_ends(options: Options, boundary: Boundary) -> None:
    arguments = zip(boundary.argument_paths, boundary.argument_words, strict=True)
    results = zip(boundary.result_paths, boundary.result_words, strict=True)
    ends = [("in_sbp", f"argument {path}", words) for path, words in arguments]
    ends += [("out_sbp", result_name(path), words) for path, words in results]
    for what, where, words in ends:
        for axis, word in (words or {}).items():
            if isinstance(word, Partial):
                _check_partial_end(what, where, axis, word, options)


def _check_partial_end(what: str, where: str, axis: str, word: Partial, options: Options) -> None:
    if word.kind != "sum":
        raise SignatureError(
            f"{what} '{axis}: {word}' cannot cross the boundary of a step",
            where=where,
            why="jax has arrays of unreduced sums, not of maxima or minima.",
            how=f"{what} '{axis}: B', or S of a dim",
        )
    if options.lowering == "auto":
        raise SignatureError(
            f"{what} '{axis}: P' asks for a partial array with lowering='auto'",
            where=where,
            why="XLA's partitioner works on Auto axes, which have no word for Partial.",
            how=[f"{what} '{axis}: B', or S of a dim", "lowering='manual'"],
        )
    if not all(kind == AxisType.Explicit for kind in options.mesh.axis_types):
        raise SignatureError(
            f"{what} '{axis}: P' asks for a partial array on a mesh with Auto axes",
            where=where,
            why="jax's unreduced arrays exist on Explicit axes only.",
            how=[
                f"{what} '{axis}: B', or S of a dim",
                "flowjax.make_mesh(..., axis_types=AxisType.Explicit)",
            ],
        )
