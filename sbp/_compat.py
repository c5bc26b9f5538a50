"""The only importer of jax internals; hides the differences between jax 0.10 and 0.12.

Comes in: jax's own objects. Goes out: plain tuples and callables whose form does not depend on the
version, so that no other module of sbp asks which jax it runs on.
"""

import contextlib
import inspect
import os
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
from jax._src import api_util as _api_util
from jax._src import config as _config
from jax._src import effects as _effects
from jax._src import source_info_util, traceback_util
from jax._src import tree_util as _tree_util
from jax._src.interpreters import pxla as _pxla
from jax._src.lib import _jax as _jaxlib  # pyright: ignore[reportPrivateImportUsage]
from jax.core import Tracer
from jax.extend.core import Literal, Primitive
from jax.extend.core import jaxpr_as_fun as jaxpr_as_fun
from jax.extend.random import threefry_2x32 as threefry_2x32
from jax.interpreters import ad, batching, mlir
from jax.interpreters import partial_eval as pe
from jax.sharding import AbstractMesh, AxisType, Mesh

from sbp.tracebacks import concise

for _register in (source_info_util.register_exclusion, traceback_util.register_exclusion):
    _register(os.path.dirname(os.path.abspath(__file__)) + os.sep)


def open_jaxpr(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """The jaxpr without its constants, and the constants.

    Before jax 0.11 a closed jaxpr is a pair; after, a jaxpr carries its own constants.
    """
    consts = tuple(getattr(jaxpr, "consts", ()))
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    return inner, consts


def drop_dead_code(jaxpr: Any) -> Any:
    """The open jaxpr without equations that no result and no effect needs; all inputs stay."""
    live, *_ = pe.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    return live


def is_literal(atom: Any) -> bool:
    """Whether a jaxpr's atom is a constant written in place."""
    return isinstance(atom, Literal)


def is_tracer(x: Any) -> bool:
    """Whether an array stands for one inside a jax transformation."""
    return isinstance(x, Tracer)


def is_differentiated(x: Any) -> bool:
    """Whether an array stands for one that carries a derivative."""
    return is_tracer(x) and type(x).__name__ in ("JVPTracer", "LinearizeTracer")


class Scan(NamedTuple):
    """A scan's parameters: operands are constants, then the carry, then the stacked inputs."""

    body: Any
    num_consts: int
    num_carry: int
    length: int
    reverse: bool
    unroll: int


def scan_of(params: dict[str, Any]) -> Scan:
    """Reads a scan equation's parameters."""
    if "num_carry" in params:
        num_consts, num_carry = params["num_consts"], params["num_carry"]
    else:
        consts, carry, _ = params["ft_in"].unpack()
        num_consts, num_carry = len(list(consts)), len(list(carry))
    return Scan(
        params["jaxpr"], num_consts, num_carry, params["length"], params["reverse"],
        params["unroll"],
    )  # fmt: skip


def has_ordered_effects(effects: Any) -> bool:
    """Whether any of an equation's effects must keep its order."""
    return any(_effects.ordered_effects.contains(effect) for effect in effects)


def bind(primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """Applies a primitive to arrays under the active trace; always a list of results."""
    bound = primitive.get_bind_params(params)
    if isinstance(bound, tuple):
        functions, bound = bound
        out = primitive.bind(*functions, *args, **bound)
    else:
        out = primitive.bind(*args, **bound)
    return list(out) if primitive.multiple_results else [out]


def equation_context(equation: Any) -> Any:
    """Context managers under which jax itself evaluates an equation: source, name stack, config.

    All but the mesh, which is the one at hand: an equation traced for logical arrays may run on
    local ones.
    """
    stack = contextlib.ExitStack()
    if equation is None:
        return stack
    mesh = current_abstract_mesh()
    info = equation.source_info
    name_stack = source_info_util.current_name_stack() + info.name_stack
    stack.enter_context(source_info_util.user_context(info.traceback, name_stack=name_stack))
    stack.enter_context(equation.ctx.manager)
    stack.enter_context(jax.sharding.use_abstract_mesh(mesh))
    return stack


def source_line(source_info: Any) -> str:
    """`file:line` of the user's code, relative to the working directory where it lies inside.

    Empty where no line of the traceback is the user's.
    """
    frames = [(f.file_name, f.start_line) for f in source_info_util.user_frames(
        source_info.traceback)]  # fmt: skip
    own = (f for f in frames if "site-packages" not in f[0])
    return _readable_line(*next(own, frames[0])) if frames else ""


def error_line(error: BaseException) -> str:
    """`file:line` of the user's code that an error passed through last, as `source_line`."""
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if source_info_util.is_user_filename(frame.f_code.co_filename)
    ]
    return _readable_line(*frames[-1]) if frames else ""


def current_line() -> str:
    """`file:line` of the user's code that calls, as `source_line`."""
    return source_line(source_info_util.current())


def definition_line(fn: Any) -> str:
    """`file:line` where a function starts, as `source_line`; empty where it has no code."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return _readable_line(code.co_filename, code.co_firstlineno) if code else ""


def _readable_line(file_name: str, line: int) -> str:
    path = os.path.relpath(file_name)
    if path.startswith(".."):
        path = os.path.join(*file_name.split(os.sep)[-2:])
    return f"{path}:{line}"


def identity_primitive(
    name: str, batch_params: Callable[[dict[str, Any], int], dict[str, Any]],
    *, of_values_only: bool = False,
) -> Primitive:  # fmt: skip
    """A new primitive that returns its one operand, with all of jax's transformations.

    Args:
        name: Its name in jaxprs.
        batch_params: The parameters when the operand gets a new dim at a position.
        of_values_only: Whether derivatives pass it by.
    """
    primitive = Primitive(name)
    primitive.def_impl(lambda x, **_: x)
    primitive.def_abstract_eval(lambda aval, **_: aval)
    mlir.register_lowering(primitive, lambda _, x, **__: [x])
    if of_values_only:
        ad.primitive_jvps[primitive] = lambda primals, tangents, **params: (
            primitive.bind(*primals, **params), tangents[0],
        )  # fmt: skip
    else:
        ad.deflinear2(primitive, lambda cotangent, _, **kept: [primitive.bind(cotangent, **kept)])

    def batch(args: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        (x,), (dim,) = args, dims
        return primitive.bind(x, **batch_params(params, dim)), dim

    batching.primitive_batchers[primitive] = batch
    return primitive


def logical_mesh(mesh: Any, axis_type: AxisType) -> Any:
    """A context in which nothing is known of where arrays lie, but axes can be named.

    Args:
        mesh: The mesh whose axes can be named, or None.
        axis_type: What the axes are.
    """
    if mesh is None:
        return jax.sharding.use_abstract_mesh(AbstractMesh((), ()))
    types = (axis_type,) * len(mesh.axis_names)
    if isinstance(mesh, Mesh):
        logical = Mesh(mesh.devices, mesh.axis_names, axis_types=types).abstract_mesh
    else:
        logical = AbstractMesh(tuple(mesh.axis_sizes), tuple(mesh.axis_names), axis_types=types)
    return jax.sharding.use_abstract_mesh(logical)


InternalFloatingPointError = _api_util.InternalFloatingPointError
"""What a program raises under `jax.debug_nans` and `jax.debug_infs`."""


def entry_of(compiled: Any) -> Any:
    """The C++ entry of a compiled program, which `compiled(...)` reaches through a Python call.

    The object itself where jax has none, as for programs that call back into Python.
    """
    try:
        return compiled._executable.create_cpp_call(compiled._params) or compiled
    except AttributeError:
        return compiled


def run_entry(entry: Any, args: Sequence[Any]) -> tuple[Any, Any]:
    """Results of a program, and what `dispatcher` needs to run it alone the next time, or None."""
    if miss := getattr(entry, "_cache_miss", None):
        results, known, _ = miss(*args)
        return results, known
    return entry(*args), None


def dispatcher(
    find: Callable[..., tuple[Any, Any]],
    fn: Callable[..., Any],
    name: str,
    static: Sequence[int] = (),
) -> Any:
    """What `jax.jit` makes of a function, for programs that somebody else compiles.

    It is called like the function. Calls with types, shardings and settings of jax (the mesh of
    the context among them) that it has seen run in C++ without entering Python.

    Args:
        find: Is asked where a call is like none before. It returns what `run_entry` does.
        fn: The function, which jax runs without compiling to find where NaN comes from.
        name: For profiles and messages.
        static: Positions of arguments that are not arrays.
    """

    @concise
    def cache_miss(*args: Any, **kwargs: Any) -> tuple[Any, Any, bool]:
        return *find(*args, **kwargs), False

    def without_cache(*args: Any, **kwargs: Any) -> Any:
        return find(*args, **kwargs)[0]

    made = _jaxlib.pjit(
        name, without_cache, cache_miss, list(static), [], _pxla.JitGlobalCppCacheKeys(),
        _tree_util.dispatch_registry, _pxla.cc_shard_arg,
    )  # fmt: skip
    made._fun = fn
    return made


def find_invalid(error: Exception, call: Callable[[], Any]) -> NoReturn:
    """Says where NaN or infinity comes from, under `jax.debug_nans`: runs without compiling.

    Args:
        error: What jax found in a result.
        call: The function with its arguments.

    Raises:
        FloatingPointError: Always.
    """
    _api_util.maybe_recursive_nan_check(error, call, (), {})


def settings_of_trace() -> Any:
    """What of jax's settings a trace depends on, the mesh of the context aside."""
    with logical_mesh(None, AxisType.Auto):
        return _config.trace_context()


def is_jit_disabled() -> bool:
    """Whether `jax.disable_jit` is on."""
    return bool(_config.disable_jit.value)


current_abstract_mesh = jax.sharding.get_abstract_mesh
"""The mesh of the enclosing `jax.set_mesh`, possibly empty."""
