"""From a function and example arguments to `Traced`: straight equations, loops and branches.

Comes in: a function of flat arrays and their types. Goes out: its equations with calls entered,
dead code dropped, and every array a `Value` of its own. Only `scan`, `while` and `cond` keep
bodies; what jax calls `jit`, `remat`, `custom_jvp_call` and the like is laid out in line.
"""

import functools
import inspect
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import jax
from jax.sharding import AxisType

from sbp import _compat
from sbp.algebra import ArrayType, NdSbp, P, Split, Word
from sbp.errors import SbpError
from sbp.program import Atom, Block, Constant, Equation, Traced, Value, needed_part
from sbp.refusals import collective_error, collective_refused_by_jax, refuse


def _pin_batched(params: dict[str, Any], dim: int) -> dict[str, Any]:
    words = {
        axis: Split(word.dim + 1) if isinstance(word, Split) and word.dim >= dim else word
        for axis, word in params["words"].items()
    }
    return {**params, "words": NdSbp(words)}


UNKNOWN = "<unknown>"
PIN = _compat.identity_primitive("sbp_pin", _pin_batched)
CLAIM = _compat.identity_primitive("sbp_claim", _pin_batched, of_values_only=True)
"""An end of a function whose words its author claims.

Parameters: `words`; `call`, the number of the call of the function; `is_result`; `sealed`, the axes
on which nothing may be boxed between the arguments and the results; `notes` for the user.
"""

_INLINED = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "custom_lin": "call_jaxpr",
}
# fmt: off

def array_type(aval: Any) -> ArrayType:
    """The type of anything with a shape and a dtype; Python scalars as jax sees them."""
    aval = aval if hasattr(aval, "shape") and hasattr(aval, "dtype") else jax.typeof(aval)
    return ArrayType(tuple(aval.shape), aval.dtype)


_TRACED: ContextVar[str] = ContextVar("sbp.tracing", default="")


def function_being_traced() -> str:
    """The name of the function that sbp traces at this moment; empty if it traces none.

    jax tells a function that it is traced, but not by whom; only errors ask.
    """
    return _TRACED.get()


def presented_as(
    fn: Callable[..., Any], called: Callable[..., Any], names: Sequence[str]
) -> Callable[..., Any]:
    """A function that jax's messages name as another one.

    Args:
        fn: The user's function.
        called: What to call.
        names: The names of its arguments.
    """
    while isinstance(fn, functools.partial):
        fn = fn.func
    presented = functools.wraps(fn, updated=())(lambda *args: called(*args))
    presented.__name__ = getattr(fn, "__name__", type(fn).__name__)
    fit = len(set(names)) == len(names) and all(map(_is_parameter, names))
    presented.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names]
        if fit else [inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)]
    )  # fmt: skip
    return presented


def _is_parameter(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def trace(fn: Callable[..., Sequence[Any]], structs: Sequence[Any], mesh: Any = None) -> Traced:
    """Traces a function.

    Args:
        fn: Takes trees of arrays, returns a sequence of arrays.
        structs: The arrays' shapes and dtypes. No shardings: the function never sees how they lie.
        mesh: The mesh whose axes the function may name in constraints. A mesh that the caller has
            set plays no part.

    Raises:
        SbpError: The function uses collectives, `shard_map`, or effects that must keep an order.
    """
    closed = _make_jaxpr(fn, structs, mesh)
    jaxpr, consts = _compat.open_jaxpr(closed)
    jaxpr = _compat.drop_dead_code(jaxpr)
    reader = _Reader()
    arguments = tuple(Value(array_type(var.aval)) for var in jaxpr.invars)
    env: dict[Any, Atom] = dict(zip(jaxpr.invars, arguments, strict=True))
    env.update(reader.close_over(jaxpr.constvars, consts))
    outputs = reader.read_equations(jaxpr, env)
    block = Block(arguments + tuple(reader.const_values), outputs, reader.sealed_equations())
    block, _ = needed_part(block, [True] * len(outputs))
    return Traced(block, len(arguments), tuple(reader.consts), tuple(reader.notes))


def _make_jaxpr(fn: Callable[..., Any], structs: Sequence[Any], mesh: Any) -> Any:
    for axis_type in (AxisType.Auto, AxisType.Explicit):
        outer = _TRACED.set(getattr(fn, "__name__", type(fn).__name__))
        try:
            with _compat.logical_mesh(mesh, axis_type):
                return jax.make_jaxpr(fn)(*structs)
        except (NameError, ValueError) as error:
            # A function that closes over arrays on Explicit axes, or reshards, needs such axes;
            # one that constrains needs Auto ones.
            if axis_type == AxisType.Auto and _NEEDS_EXPLICIT_AXES.search(str(error)):
                continue
            name = collective_refused_by_jax(str(error))
            if name is None:
                raise
            raise collective_error(name, _compat.error_line(error)) from None
        finally:
            _TRACED.reset(outer)
    raise AssertionError(fn)


class _Claim:
    """What lies between the arguments and the results of one call that makes a claim."""

    def __init__(self, start: int, sealed: frozenset[str]) -> None:
        self.start, self.sealed = start, sealed
        self.entrances: set[Equation] = set()
        self.reads: set[Equation] = set()
        self.writes: set[Equation] = set()
        self.is_closed = False

    def close(
        self, equations: Sequence[Equation], results: Sequence[Atom], end: Equation | None
    ) -> None:
        """Follows results back to the arguments; what is made before the call is outside."""
        self.is_closed = True
        if end is not None:
            self.reads.add(end)
        needed = set(results)
        for equation in reversed(equations[self.start :]):
            if equation is end or needed.isdisjoint(equation.outputs):
                continue
            self.writes.add(equation)
            if equation not in self.entrances:
                self.reads.add(equation)
                needed.update(equation.inputs)


class _Reader:
    """Reads one jaxpr into equations; nested calls go into the same list."""

    def __init__(self, top: "_Reader | None" = None, source: str = UNKNOWN) -> None:
        self.equations: list[Equation] = []
        self.source = source
        self.consts: list[Any] = top.consts if top else []
        self.const_values: list[Value] = top.const_values if top else []
        self.notes: dict[str, None] = top.notes if top else {}
        self.claims: dict[int, _Claim] = {}
        self.all_claims: list[_Claim] = []

    def close_over(self, variables: Sequence[Any], consts: Sequence[Any]) -> dict[Any, Atom]:
        """Values for constants; equal objects share one."""
        env: dict[Any, Atom] = {}
        for var, const in zip(variables, consts, strict=True):
            known = next((k for k, c in enumerate(self.consts) if c is const), None)
            if known is None:
                known = len(self.consts)
                self.consts.append(const)
                self.const_values.append(Value(array_type(const)))
            env[var] = self.const_values[known]
        return env

    def read_equations(self, jaxpr: Any, env: dict[Any, Atom]) -> tuple[Atom, ...]:
        """Appends a jaxpr's equations; returns what it returns."""

        def read(atom: Any) -> Atom:
            if _compat.is_literal(atom):
                return Constant(array_type(atom.aval), atom.val)
            return env[atom]

        for eqn in jaxpr.eqns:
            inputs = tuple(map(read, eqn.invars))
            results = self._read_equation(eqn, inputs)
            env.update(zip(eqn.outvars, results, strict=True))
        return tuple(map(read, jaxpr.outvars))

    def _read_equation(self, eqn: Any, inputs: tuple[Atom, ...]) -> Sequence[Atom]:
        name = eqn.primitive.name
        # Library code called by the user's line has no line of the user's own.
        source = _compat.source_line(eqn.source_info) or self.source
        refuse(eqn, source, is_entered=name in _INLINED or name_is_control(name))
        if name in _INLINED:
            return self._inline(eqn, inputs, source)
        if name == "custom_linear_solve":
            return self._inline_solve(eqn, inputs, source)
        if name == "while" and eqn.params["cond_jaxpr"].out_avals[0].shape:
            return self._inline_closed(_of_one_predicate(eqn), inputs, source)
        if name == "scan" and eqn.params["length"] == 1:
            return self._inline_turn(eqn, inputs, source)
        if name == "device_put" and all(place is None for place in eqn.params["devices"]):
            return inputs
        outputs = tuple(Value(array_type(var.aval)) for var in eqn.outvars)
        if name == CLAIM.name:
            return self._claim(eqn.params, inputs, source)
        if name in (PIN.name, "sharding_constraint", "reshard"):
            words = eqn.params["words"] if name == PIN.name else _constrained(eqn, source)
            last = self.equations[-1] if self.equations else None
            if last and last.name == "pin" and (last.outputs, last.params["words"]) == (
                inputs, words
            ):  # fmt: skip
                # sbp.pin also makes a constraint, for those who read the program without sbp.
                return inputs
            return self._pin(inputs, words, source)
        else:
            self.equations.append(
                Equation(
                    name, inputs, outputs, _params(eqn), source,
                    self._bodies(eqn, source), eqn,
                    bool(eqn.effects) and not name_is_control(name),
                )
            )  # fmt: skip
        if eqn.params.get("out_sharding") is not None:
            return self._pin(outputs, _sharding_words(eqn.params["out_sharding"], source), source)
        return outputs

    def _claim(
        self, params: Mapping[str, Any], inputs: tuple[Atom, ...], source: str
    ) -> Sequence[Atom]:
        self.notes.update(dict.fromkeys(params["notes"]))
        claim = self.claims.get(params["call"])
        # A function that is jitted is read again where it is called again.
        if claim is None or (claim.is_closed and not params["is_result"]):
            claim = self.claims[params["call"]] = _Claim(len(self.equations), params["sealed"])
            self.all_claims.append(claim)
        ends = self._pin(inputs, params["words"], source)
        end = None if ends is inputs else self.equations[-1]
        if params["is_result"]:
            claim.close(self.equations, inputs, end)
        elif end is not None:
            claim.entrances.add(end)
        return ends

    def sealed_equations(self) -> tuple[Equation, ...]:
        """The equations, those sealed that claims say are."""
        claims = [claim for claim in self.all_claims if claim.sealed]
        return tuple(
            e.sealed(
                (a for c in claims if e in c.reads for a in c.sealed),
                (a for c in claims if e in c.writes for a in c.sealed),
            )
            if any(e in c.reads or e in c.writes for c in claims)
            else e
            for e in self.equations
        )

    def _pin(self, inputs: Sequence[Atom], words: NdSbp, source: str) -> Sequence[Atom]:
        if not words:
            return inputs
        outputs = tuple(Value(atom.type) for atom in inputs)
        self.equations.append(Equation("pin", tuple(inputs), outputs, {"words": words}, source))
        return outputs

    def _inline(self, eqn: Any, inputs: tuple[Atom, ...], source: str) -> Sequence[Atom]:
        jaxpr, consts = _compat.open_jaxpr(eqn.params[_INLINED[eqn.primitive.name]])
        if eqn.params.get("differentiated") and eqn.params.get("prevent_cse", True):
            # Without the barrier XLA merges the recomputation with the forward pass and keeps
            # alive what checkpoint was to drop.
            values = tuple(x for x in inputs if isinstance(x, Value))
            held = tuple(Value(x.type) for x in values)
            self.equations.append(Equation("barrier", values, held, {}, source))
            renamed = dict(zip(values, held, strict=True))
            inputs = tuple(renamed[x] if isinstance(x, Value) else x for x in inputs)
        return self._read_inside(jaxpr, consts, inputs, source)

    def _inline_solve(self, eqn: Any, inputs: tuple[Atom, ...], source: str) -> Sequence[Atom]:
        """The solver of a linear solve; the rest of the equation serves its derivatives."""
        lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
        start = lengths.matvec + lengths.vecmat
        consts = inputs[start : start + lengths.solve]
        right_hand_side = inputs[start + lengths.solve + lengths.transpose_solve :]
        return self._inline_closed(jaxprs.solve, (*consts, *right_hand_side), source)

    def _inline_turn(self, eqn: Any, inputs: tuple[Atom, ...], source: str) -> Sequence[Atom]:
        """A scan that runs once. What it carries on is needed only if it is read outside."""
        scan = _compat.scan_of(eqn.params)
        num_held = scan.num_consts + scan.num_carry

        def each(fn: Callable[..., Any], atoms: Sequence[Atom]) -> Sequence[Atom]:
            structs = [jax.ShapeDtypeStruct(x.type.shape, x.type.dtype) for x in atoms]
            jaxpr = jax.make_jaxpr(lambda *xs: [fn(x, (0,)) for x in xs])(*structs).jaxpr
            at_loop = [e.replace(source_info=eqn.source_info) for e in jaxpr.eqns]
            return self._read_inside(jaxpr.replace(eqns=at_loop), (), atoms, source)

        slices = each(jax.lax.squeeze, inputs[num_held:])
        results = self._inline_closed(scan.body, (*inputs[:num_held], *slices), source)
        stacks = each(jax.lax.expand_dims, results[scan.num_carry :])
        return (*results[: scan.num_carry], *stacks)

    def _inline_closed(self, closed: Any, inputs: Sequence[Atom], source: str) -> Sequence[Atom]:
        jaxpr, consts = _compat.open_jaxpr(closed)
        return self._read_inside(jaxpr, consts, inputs, source)

    def _read_inside(
        self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Atom], source: str
    ) -> Sequence[Atom]:
        env: dict[Any, Atom] = dict(zip(jaxpr.invars, inputs, strict=True))
        env.update(self.close_over(jaxpr.constvars, consts))
        outer, self.source = self.source, source
        results = self.read_equations(jaxpr, env)
        self.source = outer
        return results

    def _bodies(self, eqn: Any, source: str) -> tuple[Block, ...]:
        name, params = eqn.primitive.name, eqn.params
        if name == "scan":
            bodies = [_compat.scan_of(params).body]
        elif name == "while":
            bodies = [params["cond_jaxpr"], params["body_jaxpr"]]
        else:
            bodies = list(params["branches"]) if name == "cond" else []
        return tuple(self._body(body, source) for body in bodies)

    def _body(self, closed: Any, source: str) -> Block:
        jaxpr, consts = _compat.open_jaxpr(closed)
        inner = _Reader(self, source)
        inputs = tuple(Value(array_type(var.aval)) for var in jaxpr.invars)
        env: dict[Any, Atom] = dict(zip(jaxpr.invars, inputs, strict=True))
        env.update(self.close_over(jaxpr.constvars, consts))
        outputs = inner.read_equations(jaxpr, env)
        return Block(inputs, outputs, inner.sealed_equations())


def _of_one_predicate(eqn: Any) -> Any:
    """A vmapped while loop, whose predicate is an array, as a loop with one predicate.

    It runs while any of its elements goes on, and keeps what those have that do not.
    """
    num_cond, num_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    goes_on = _compat.jaxpr_as_fun(eqn.params["cond_jaxpr"])
    body = _compat.jaxpr_as_fun(eqn.params["body_jaxpr"])

    def loop(*operands: Any) -> Any:
        cond_consts, body_consts = operands[:num_cond], operands[num_cond : num_cond + num_body]

        def step(carry: Sequence[Any]) -> list[Any]:
            (active,) = goes_on(*cond_consts, *carry)
            return [
                jax.lax.select(jax.lax.broadcast_in_dim(active, x.shape, range(active.ndim)), x, y)
                for x, y in zip(body(*body_consts, *carry), carry, strict=True)
            ]

        start = list(operands[num_cond + num_body :])
        return jax.lax.while_loop(lambda c: goes_on(*cond_consts, *c)[0].any(), step, start)

    return jax.make_jaxpr(loop)(*(var.aval for var in eqn.invars))


def _params(eqn: Any) -> Mapping[str, Any]:
    if eqn.primitive.name == "scan":
        return {"scan": _compat.scan_of(eqn.params)}
    # jax notes the mesh at hand in places such as zeros_like; where arrays lie, the plan says.
    return {k: None if k in ("sharding", "out_sharding") else v for k, v in eqn.params.items()}


def name_is_control(name: str) -> bool:
    """Whether a primitive keeps bodies of its own."""
    return name in ("scan", "while", "cond")


def _constrained(eqn: Any, source: str) -> NdSbp:
    """The words that one of jax's constraints asks for; axes that it does not name are free."""
    return _sharding_words(eqn.params.get("sharding", eqn.params.get("dst_sharding")), source)


def _sharding_words(sharding: Any, source: str) -> NdSbp:
    words: dict[str, Word] = dict.fromkeys(getattr(sharding.spec, "unreduced", ()), P)
    for dim, entry in enumerate(sharding.spec.partitions):
        axes = [axis for axis in (entry if isinstance(entry, tuple) else (entry,))
                if isinstance(axis, str)]  # fmt: skip
        if axes != sorted(axes, key=sharding.mesh.axis_names.index):
            raise SbpError(
                f"the constraint {sharding.spec} nests {', '.join(axes)} against the mesh",
                where=source,
                why=f"Where several axes split one dim, the axis that stands first in the mesh is "
                f"the outer one; the mesh has {', '.join(sharding.mesh.axis_names)}.",
                how="nest the axes in the order of the mesh",
            )
        words.update(dict.fromkeys(axes, Split(dim)))
    return NdSbp(words)


_NEEDS_EXPLICIT_AXES = re.compile(
    r"should match the aval mesh|cannot contain axis names that are of type Auto"
)
