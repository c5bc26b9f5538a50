"""`parallelize`: a pure function becomes a step that plans itself once and runs on a mesh.

Comes in: a function and options. Goes out: `Step`, called like the function, on global arrays. A
call of a step is a call of one C++ object like that of `jax.jit`; tracing, planning and compiling
happen when it meets types, shardings or settings of jax that it has not seen before.
"""

import logging
import os
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from sbp import _compat
from sbp.algebra import NdSbp, Partial
from sbp.api.arrays import box
from sbp.api.binding import (
    call,
    check_arguments,
    check_call,
    check_values,
    in_order,
    is_hashable,
    marked,
    struct_of,
)
from sbp.api.options import (
    Options,
    argument_names,
    as_planned,
    check_disjoint,
    check_function,
    check_plan,
    choose,
    dtype_name,
    find_costs,
    function_name,
    parse_nbytes,
    positions,
)
from sbp.api.preparation import Prepared, prepare
from sbp.api.requests import described
from sbp.api.surroundings import check_caller, mesh_of_call
from sbp.errors import PlanError, SbpError
from sbp.hardware import Cluster
from sbp.plan import Conditions, Plan
from sbp.tracebacks import concise

_LOG = logging.getLogger("sbp")


@concise
def parallelize(
    fn: Callable[..., Any], *, mesh: Any, in_sbp: Any = None, out_sbp: Any = None,
    donate_argnums: int | Sequence[int] = (), donate_argnames: str | Sequence[str] = (),
    static_argnums: int | Sequence[int] = (), static_argnames: str | Sequence[str] = (),
    tie: Mapping[str, str] | str | None = "auto", memory_limit: int | str | None = None,
    max_nbytes: int | str | None = None, reduce_dtype: Any = None,
    hardware: Cluster | str | os.PathLike[str] | None = None, overlap: float | None = None,
    objective: str | None = None, search: str | None = None, lowering: str = "manual",
    plan: Plan | None = None,
) -> "Step":  # fmt: skip
    """Makes a step that runs a one-device function on a mesh.

    Args:
        fn: A pure function of trees of arrays.
        mesh: A `jax.sharding.Mesh`, or an `AbstractMesh` to plan without devices.
        in_sbp: Words of arguments: by name or path pattern, or a sequence of tree prefixes; what is
            not named is free.
        out_sbp: Words of results: one for all, a tree prefix, or path patterns.
        donate_argnums: Arguments whose memory the results may take.
        donate_argnames: The same by name.
        static_argnums: Arguments that are not arrays; a new value plans and compiles anew.
        static_argnames: The same by name.
        tie: `auto` gives a result that replaces a donated argument the argument's words; None does
            not; a mapping from result path to argument path says which.
        memory_limit: Most memory of a device: bytes, or text such as `80GiB`.
        max_nbytes: Most a device may send in a call; a note says if that takes a plan by bytes.
        reduce_dtype: A narrower float dtype in which partial sums may be added where the program
            narrows to it only after the sum.
        hardware: The cluster to price for, its name, or the path of a hardware file (`.json`, see
            `scripts/calibrate.py`); that of the mesh's devices by default.
        overlap: Share, 0 to 1, of the time on the wire of gradient reductions and weight gathers
            that is assumed hidden behind compute; see `CostModel`; 0 or that of `plan` by default.
        objective: `time`, the default; `bytes`: least bytes sent, an operation done twice counting
            as 0.02 bytes; or `wire`: least bytes sent, even if all devices compute the same.
        search: `optimal`, the default; `greedy` or `exhaustive`.
        lowering: `manual` (shard_map, the plan's collectives only) or `auto` (XLA's partitioner,
            with XLA's own rules: on CPU its maximum over a split dim drops NaN).
        plan: A plan to run as it is. It says the objective and the search: others are refused.

    Raises:
        SbpError: An option cannot be honoured.
    """
    check_function(fn)
    check_plan(plan)
    objective, search, share = as_planned(plan, objective, search, overlap)
    costs = find_costs(mesh, hardware, objective, share)
    donate = positions(fn, donate_argnums, donate_argnames, "donate")
    static = positions(fn, static_argnums, static_argnames, "static")
    check_disjoint(fn, donate, static)
    options = Options(
        mesh, in_sbp, out_sbp, donate, static, tie,
        Conditions(
            search,  # type: ignore[arg-type]
            parse_nbytes("memory_limit", memory_limit),
            parse_nbytes("max_nbytes", max_nbytes),
            dtype_name(reduce_dtype),
        ),
        costs, choose("lowering", lowering, ("manual", "auto")), plan,
    )  # fmt: skip
    return Step(fn, options)


class Step:
    """A function on a mesh: called like the one-device function, on global arrays.

    The first call, or the first `plan`, fixes the words of arguments and results; arrays of other
    shapes are planned anew with these words at the ends.
    """

    # Each step has its own `__call__`, a C++ object: a method in Python costs half a microsecond.
    __slots__ = ("__call__", "__dict__", "__weakref__")

    __call__: Callable[..., Any]

    def __init__(self, fn: Callable[..., Any], options: Options) -> None:
        """Made by `parallelize`."""
        self._fn = fn
        self._options = options
        self._prepared: dict[Any, Prepared] = {}
        self._first: Prepared | None = None
        self._executables: dict[Any, Any] = {}
        self._by_name: dict[tuple[int, tuple[str, ...]], Callable[..., Any]] = {}
        self._told: set[str] = set()
        # Threads that plan take turns: what one has planned the next one uses.
        self._planning = threading.RLock()
        self.__name__ = function_name(fn)
        self.__doc__ = fn.__doc__
        self.__wrapped__ = fn
        self.__call__ = _compat.dispatcher(self._find, fn, self.__name__)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """A step that is an attribute of a class is a method of its objects."""
        return self if instance is None else types.MethodType(self, instance)

    def __copy__(self) -> "Step":
        """A step is a function: a copy of it is the step itself."""
        return self

    def __deepcopy__(self, memo: Any) -> "Step":
        return self

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self.__name__} is a step and cannot be pickled: its programs belong to this process."
            "\nFix: save its plan, step.plan(...).save(path), and parallelize there with "
            "plan=sbp.Plan.load(path)"
        )

    def __repr__(self) -> str:
        state = "planned" if self._first else "not planned yet"
        return f"<sbp.Step {self.__name__} on mesh {self._options.axes}, {state}>"

    @concise
    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for these arguments.

        Args:
            *args: Arrays, or anything with shape and dtype such as `jax.ShapeDtypeStruct`.
            **kwargs: Arguments by name.
        """
        return self._prepare(*in_order(self._fn, args, kwargs)).plan

    @concise
    def place(self, *args: Any, **kwargs: Any) -> Any:
        """Puts arguments where the plan wants them.

        Args:
            *args: Arrays.
            **kwargs: Arguments by name.

        Returns:
            The arguments as global arrays, in the function's order: a tuple, or the one argument
            alone.
        """
        arguments, keywords = in_order(self._fn, args, kwargs)
        prepared = self._prepare(arguments, keywords)
        placed = self._put(prepared, arguments, self._mesh())
        return placed[0] if len(placed) == 1 else placed

    @concise
    def init(self, init_fn: Callable[..., Any], *args: Any) -> Any:
        """Runs `init_fn(*args)` straight into the planned words of an argument.

        Args:
            init_fn: Returns a tree equal in structure, shapes and dtypes to one of the step's
                arguments.
            *args: What it takes.

        Raises:
            PlanError: There is no plan yet, or no argument is like the result.
        """
        if not callable(init_fn):
            raise SbpError(
                f"init was given {init_fn!r}, which cannot be called",
                why="It takes a function and its arguments, and runs it where the plan wants what "
                "it returns.",
                how=["step.init(init_fn, key)", "step.place(...) for arrays that exist"],
            )
        made = jax.eval_shape(init_fn, *args)
        if self._first is None:
            raise PlanError(
                f"{self.__name__} has no plan yet, so it is not known where its arguments lie",
                why="init places the result by the plan, and a plan needs all arguments' shapes.",
                how=f"first call step.plan(jax.eval_shape({function_name(init_fn)}, ...), ...) "
                "with the other arguments",
            )
        mesh = self._mesh()
        index = self._first.argument_like(made)
        if index is None:
            raise PlanError(
                f"{function_name(init_fn)} returns nothing that {self.__name__} takes",
                why=f"It returns {described(made)}; no argument has this structure with these "
                "shapes and dtypes.",
                how="plan with what it returns: "
                f"step.plan(jax.eval_shape({function_name(init_fn)}, ...), ...)",
            )
        shardings = self._first.in_shardings(mesh)[index]
        return jax.jit(init_fn, out_shardings=shardings)(*args)

    @concise
    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Jax's lowered program for these arguments (a `jax.stages.Lowered`)."""
        return self._prepare(*in_order(self._fn, args, kwargs)).lower(self._mesh())

    @concise
    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """The traced one-device program, for printing."""
        return self._prepare(*in_order(self._fn, args, kwargs)).traced

    def _prepare(self, args: Sequence[Any], keywords: tuple[str, ...]) -> Prepared:
        places = marked(self._fn, self._options.static, len(args), keywords)
        static = {k: args[k] for k in places}
        leaves, tree = jax.tree.flatten(tuple(x for k, x in enumerate(args) if k not in static))
        try:
            structs = tuple(map(struct_of, leaves))
            types = tuple((s.shape, s.dtype, s.weak_type) for s in structs)
            settings = _compat.settings_of_trace()
            values = tuple((k, type(x), x) for k, x in static.items())
            key = (keywords, tree, types, values, settings)
            known = self._prepared.get(key)
        except (TypeError, OverflowError):
            self._check_call(args, keywords)
            check_arguments(argument_names(self._fn, len(args), keywords), args, places)
            raise
        if known is not None:
            return known
        self._check_call(args, keywords)
        with self._planning:
            if key not in self._prepared:
                self._prepared[key] = prepare(
                    self._fn, self._options, keywords, tree, structs, static, self._first
                )
                self._first = self._first or self._prepared[key]
        return self._prepared[key]

    def _check_call(self, args: Sequence[Any], keywords: Sequence[str]) -> None:
        call(lambda *xs, **named: check_call(self._fn, xs, named), args, keywords)

    def _mesh(self) -> Mesh:
        partial = self._first is not None and self._first.has_partial_boundary
        return mesh_of_call(self.__name__, self._options.mesh, partial)

    @concise
    def _find(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Results for these arguments, and what the dispatcher needs to find them next time."""
        if not kwargs and not self._options.static:
            return self._run(args, ())
        args, keywords = in_order(self._fn, args, kwargs)
        key = (len(args), keywords)
        static = marked(self._fn, self._options.static, len(args), keywords)
        if not all(is_hashable(args[place]) for place in static):
            return self._run(args, keywords)  # which says so
        if key not in self._by_name:
            # The program takes arguments in order; the first dispatcher would sort them by name.
            self._by_name[key] = _compat.dispatcher(
                lambda *xs: self._run(xs, keywords), lambda *xs: call(self._fn, xs, keywords),
                self.__name__, static,
            )  # fmt: skip
        return self._by_name[key](*args), None

    def _run(self, args: Sequence[Any], keywords: tuple[str, ...]) -> tuple[Any, Any]:
        """Finds the program for arguments in order, brings them where it wants them, runs it."""
        check_caller(self.__name__)
        prepared = self._prepare(args, keywords)
        mesh = self._mesh()
        dynamic = prepared.dynamic(args)
        leaves = jax.tree.leaves(dynamic)
        check_values(self.__name__, prepared.paths, leaves)
        if any(map(_compat.is_tracer, (*leaves, *prepared.traced.consts))):
            return prepared.program(mesh)(*dynamic), None
        run = self._executable(prepared, mesh)
        moved = [
            (path, leaf.nbytes)
            for path, leaf, struct, sharding in zip(
                prepared.paths, leaves, prepared.structs, prepared.leaf_shardings(mesh), strict=True
            )
            if _is_misplaced(leaf, sharding) or _is_wider(leaf, struct)
        ]
        for path, nbytes in moved:
            self._tell(path, f"{self.__name__}: moved {path} ({nbytes} bytes) to where the plan "
                       "wants it; step.place does this ahead of time")  # fmt: skip
        if moved:
            dynamic = prepared.dynamic(self._put(prepared, args, mesh))
        try:
            results, known = _compat.run_entry(run, dynamic)
        except _compat.InternalFloatingPointError as error:
            _compat.find_invalid(error, lambda: call(self._fn, args, keywords))
        return results, None if moved else known

    def _executable(self, prepared: Prepared, mesh: Mesh) -> Any:
        """The compiled program.

        It is compiled for types and shardings once, and takes arrays from wherever they come. A
        jitted function would compile anew for arrays that do not lie on the mesh yet.
        """
        key = (prepared, mesh.axis_types)
        if key not in self._executables:
            self._executables[key] = _compat.entry_of(prepared.lower(mesh).compile())
        return self._executables[key]

    def _tell(self, key: str, message: str) -> None:
        if key not in self._told:
            self._told.add(key)
            _LOG.warning(message)

    def _put(self, prepared: Prepared, args: Sequence[Any], mesh: Mesh) -> tuple[Any, ...]:
        leaves = jax.tree.leaves(prepared.dynamic(args))
        check_values(self.__name__, prepared.paths, leaves)
        leaves = [
            leaf.astype(struct.dtype) if _is_wider(leaf, struct) else leaf
            for leaf, struct in zip(leaves, prepared.structs, strict=True)
        ]
        ends = zip(leaves, prepared.plan.arguments, prepared.leaf_shardings(mesh), strict=True)
        return prepared.with_leaves(args, [
            # jax can put an array neither into a partial sharding nor out of one.
            box(leaf, words, mesh)
            if _has_partial(words) or _is_partial(leaf)
            else jax.device_put(leaf, sharding)
            for leaf, (_, words), sharding in ends
        ])  # fmt: skip


def _is_misplaced(leaf: Any, sharding: NamedSharding) -> bool:
    if not isinstance(leaf, jax.Array):
        return bool(sharding.spec.unreduced)
    if _is_partial(leaf) or sharding.spec.unreduced:
        return leaf.sharding != sharding
    if leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
        return False
    return leaf.committed


def _is_wider(leaf: Any, struct: jax.ShapeDtypeStruct) -> bool:
    """Whether an array was made with `jax.enable_x64` and is used without it."""
    return isinstance(leaf, jax.Array) and leaf.dtype != struct.dtype


def _is_partial(leaf: Any) -> bool:
    spec = getattr(getattr(leaf, "sharding", None), "spec", None)
    return bool(getattr(spec, "unreduced", ()))


def _has_partial(words: NdSbp) -> bool:
    return any(isinstance(word, Partial) for word in words.values())
