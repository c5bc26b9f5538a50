"""What a user reads when sbp refuses: whole texts, each with where, what, why and how."""

import os

import jax
import numpy as np
import pytest
from jax.experimental import io_callback  # noqa: TID251
from jax.sharding import NamedSharding, PartitionSpec

import flowjax
import sbp

MESH = flowjax.make_mesh("dp=2,tp=4")
X = np.ones((8, 16), np.float32)
W = np.ones((16, 12), np.float32)


def refusal(call):
    with pytest.raises(sbp.SbpError) as caught:
        call()
    return str(caught.value)


def of_plan(fn, *args, mesh=MESH, **options):
    return refusal(lambda: sbp.parallelize(fn, mesh=mesh, **options).plan(*args))


def line_of(fn):
    """Where the body of a function stands, as messages say it."""
    return f"{os.path.relpath(__file__)}:{fn.__code__.co_firstlineno + 1}"


def matmul(x, w):
    return x @ w


def update(state, gradient):
    return state - gradient


WORDS = {
    "dp: S(2)": """\
in_sbp 'dp: S(2)' splits a dim that does not exist (argument x).
  f32[8,16] has 2 dims, numbered 0 to 1.
Fix one of: in_sbp 'dp: S(0)' (8 = 2 x 4) | in_sbp 'dp: S(1)' (16 = 2 x 8)""",
    "dp: S(-3)": """\
in_sbp 'dp: S(-3)' splits a dim that does not exist (argument x).
  f32[8,16] has 2 dims, numbered 0 to 1.
Fix one of: in_sbp 'dp: S(0)' (8 = 2 x 4) | in_sbp 'dp: S(1)' (16 = 2 x 8)""",
    "pp: S(0)": """\
in_sbp 'pp: S(0)' names an axis that the mesh does not have (argument x).
  The mesh has dp=2, tp=4.
Fix one of: use one of dp, tp | make a mesh with an axis 'pp'""",
    "dp: P": """\
in_sbp 'dp: P' asks for a partial array on a mesh with Auto axes (argument x).
  jax's unreduced arrays exist on Explicit axes only.
Fix one of: in_sbp 'dp: B', or S of a dim | flowjax.make_mesh(..., axis_types=AxisType.Explicit)""",
    "dp: P.min": """\
in_sbp 'dp: P.min' cannot cross the boundary of a step (argument x).
  jax has arrays of unreduced sums, not of maxima or minima.
Fix: in_sbp 'dp: B', or S of a dim""",
    "dp: S0": """\
'S0' is not a word (in_sbp x).
  A word is S(dim), B, P, P.max or P.min.
Fix: S(0)""",
    "dp: s(0)": """\
's(0)' is not a word (in_sbp x).
  A word is S(dim), B, P, P.max or P.min.
Fix: S(0)""",
    "dp: split": """\
'split' is not a word (in_sbp x).
  A word is S(dim), B, P, P.max or P.min.
Fix: write for example 'dp: S(0), tp: B'""",
    "S(0)": """\
cannot read 'S(0)' (in_sbp x).
  Words are written 'axis: word', separated by commas.
Fix: write for example 'dp: S(0), tp: B'""",
    "dp: S(0), tp": """\
cannot read 'tp' in 'dp: S(0), tp' (in_sbp x).
  Words are written 'axis: word', separated by commas.
Fix: write for example 'dp: S(0), tp: B'""",
    "dp: S(0), dp: B": """\
axis 'dp' is given twice in 'dp: S(0), dp: B' (in_sbp x).
Fix: name each axis once""",
}


@pytest.mark.parametrize("text", WORDS)
def test_words_that_an_argument_cannot_have(text):
    assert of_plan(matmul, X, W, in_sbp={"x": text}) == WORDS[text]


SPECS = {
    PartitionSpec("pp"): """\
P('pp',) names the axis 'pp', which the mesh does not have (in_sbp x).
  The mesh has dp, tp.
Fix: use one of the mesh's axes""",
    PartitionSpec("dp", None, "tp"): """\
P('dp', None, 'tp') has 3 entries for an array of 2 dims (in_sbp x).
Fix: give at most 2 entries""",
    PartitionSpec(("tp", "dp")): """\
P(('tp', 'dp'),) nests ('tp', 'dp') on dim 0, the mesh nests ('dp', 'tp') (in_sbp x).
  Words have no order of their own: where several axes split one dim, the axis that stands first \
in the mesh is the outer one.
Fix one of: write ('dp', 'tp') in the spec | make the mesh with axes ('tp', 'dp')""",
    PartitionSpec("dp", "dp"): """\
P('dp', 'dp') names the axis 'dp' twice (in_sbp x).
  An array has one word on each axis.
Fix: name each axis once""",
    PartitionSpec(PartitionSpec.UNCONSTRAINED): """\
P(UNCONSTRAINED,) leaves dim 0 unconstrained (in_sbp x).
  A PartitionSpec states every axis: those that it does not name are B.
Fix: write words as text, which leaves axes free: 'dp: S(0)'""",
    NamedSharding(flowjax.make_mesh("dp=4,tp=2"), PartitionSpec("dp")): """\
a sharding of another mesh is asked for (in_sbp x).
  It is on a mesh of dp=4, tp=2; this mesh has dp=2, tp=4.
Fix: give words by axis name: 'dp: S(0)'""",
}


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_shardings_that_are_no_words(spec):
    assert of_plan(matmul, X, W, in_sbp={"x": spec}) == SPECS[spec]


def test_split_that_does_not_divide():
    odd = np.ones((10, 64), np.float32)
    assert (
        of_plan(matmul, X, np.ones((16, 10)), in_sbp={"w": "tp: S(1)"})
        == """\
in_sbp 'tp: S(1)' cannot hold (argument w).
  f32[16,10]: dim 1 has 10 elements, axis 'tp' has 4 devices.
  Split needs equal slices; 10 is not a multiple of 4.
Fix one of: in_sbp 'tp: S(0)' (16 = 4 x 4) | a mesh with tp=2 or 5 or 10 | \
leave tp free: the planner then picks"""
    )
    assert (
        of_plan(lambda x: x, odd, out_sbp="tp: S(0)")
        == """\
out_sbp 'tp: S(0)' cannot hold (the result).
  f32[10,64]: dim 0 has 10 elements, axis 'tp' has 4 devices.
  Split needs equal slices; 10 is not a multiple of 4.
Fix one of: out_sbp 'tp: S(1)' (64 = 4 x 16) | a mesh with tp=2 or 5 or 10 | \
leave tp free: the planner then picks"""
    )


def test_a_fix_of_a_split_holds_beside_the_words_of_the_other_axes():
    message = of_plan(matmul, X, W, in_sbp={"w": "dp: S(1), tp: S(1)"})
    assert (
        message
        == """\
in_sbp 'tp: S(1)' cannot hold (argument w).
  f32[16,12]: dim 1 has 6 elements left by dp, axis 'tp' has 4 devices.
  Split needs equal slices; 6 is not a multiple of 4.
Fix one of: in_sbp 'tp: S(0)' (16 = 4 x 4) | a mesh with tp=2 or 3 or 6 | \
leave tp free: the planner then picks"""
    )
    sbp.parallelize(matmul, mesh=MESH, in_sbp={"w": "dp: S(1), tp: S(0)"}).plan(X, W)


def test_words_that_a_result_cannot_have():
    def named(x, w):
        return {"y": x @ w}

    assert (
        of_plan(matmul, X, W, out_sbp="pp: B")
        == """\
out_sbp 'pp: B' names an axis that the mesh does not have (the result).
  The mesh has dp=2, tp=4.
Fix one of: use one of dp, tp | make a mesh with an axis 'pp'"""
    )
    assert (
        of_plan(named, X, W, out_sbp={"y": "dp: S(2)"})
        == """\
out_sbp 'dp: S(2)' splits a dim that does not exist (result y).
  f32[8,12] has 2 dims, numbered 0 to 1.
Fix one of: out_sbp 'dp: S(0)' (8 = 2 x 4) | out_sbp 'dp: S(1)' (12 = 2 x 6)"""
    )
    assert (
        of_plan(named, X, W, out_sbp={"y": "tp: P"})
        == """\
out_sbp 'tp: P' asks for a partial array on a mesh with Auto axes (result y).
  jax's unreduced arrays exist on Explicit axes only.
Fix one of: out_sbp 'tp: B', or S of a dim | flowjax.make_mesh(..., axis_types=AxisType.Explicit)"""
    )


def pinned_on_a_missing_dim(x):
    return sbp.pin(x, dp=sbp.S(2))


def pinned_on_a_missing_axis(x):
    return sbp.pin(x, pp=sbp.S(0))


def pinned_unevenly(x):
    return sbp.pin(x[:3], dp=sbp.S(0))


def pinned_to_a_sum_of_booleans(x):
    return sbp.pin(x > 0, dp=sbp.P)


def pinned_to_two_kinds_of_partial(x):
    return sbp.pin(x, dp=sbp.P, tp=sbp.P.max)


PINS = {
    pinned_on_a_missing_dim: """\
pin 'dp: S(2)' splits a dim that does not exist ({line}).
  f32[8,16] has 2 dims, numbered 0 to 1.
Fix: pin 'dp: S(1)'""",
    pinned_on_a_missing_axis: """\
pin 'pp: S(0)' names an axis that the mesh does not have ({line}).
  The mesh has dp=2, tp=4.
Fix one of: use one of dp, tp | make a mesh with an axis 'pp'""",
    pinned_unevenly: """\
pin 'dp: S(0)' cannot hold ({line}).
  f32[3,16]: dim 0 has 3 elements, axis 'dp' has 2 devices.
  Split needs equal slices; 3 is not a multiple of 2.
Fix one of: pin 'dp: S(1)' (16 = 2 x 8) | a mesh with dp=3 | \
leave dp free: the planner then picks""",
    pinned_to_a_sum_of_booleans: """\
pin 'dp: P' cannot hold ({line}).
  bool[8,16]: P on 'dp': elements of bool cannot be added.
Fix: pin B, or S of a dim, instead of P""",
    pinned_to_two_kinds_of_partial: """\
pin 'dp: P, tp: P.max' cannot hold ({line}).
  f32[8,16]: P and P.max of one array: partials of two kinds do not mix.
Fix: pin B, or S of a dim, instead of P""",
}


@pytest.mark.parametrize("fn", PINS)
def test_pins_that_a_value_cannot_meet(fn):
    assert of_plan(fn, X) == PINS[fn].format(line=line_of(fn))


def test_contradictory_pins_of_tied_state():
    contradiction = of_plan(
        update, X, X, donate_argnums=0, in_sbp={"state": "dp: S(0)"}, out_sbp="dp: B"
    )
    assert (
        contradiction
        == """\
in_sbp 'dp: S(0)' and out_sbp 'dp: B' contradict each other (argument state, the result).
  They are tied: the result takes the place of the donated argument, so both have the same words.
Fix one of: out_sbp 'dp: S(0)' | in_sbp 'dp: B' | tie=None"""
    )


def test_every_fix_of_contradictory_pins_works():
    def with_words(argument, result, **options):
        step = sbp.parallelize(
            update, mesh=MESH, donate_argnums=0, in_sbp={"state": argument}, out_sbp=result,
            **options,
        )  # fmt: skip
        return step.plan(X, X).results[0][1]["dp"]

    assert with_words("dp: S(0)", "dp: S(0)") == sbp.S(0)
    assert with_words("dp: B", "dp: B") == sbp.B
    assert with_words("dp: S(0)", "dp: B", tie=None) == sbp.B
    # The same dim, counted from either end, is no contradiction.
    assert with_words("dp: S(0)", "dp: S(-2)") == sbp.S(0)


PATTERNS = {
    "state.*": """\
in_sbp pattern 'state.*' matches nothing.
  The leaves are x, w.
Fix: remove the pattern""",
    "xx": """\
in_sbp pattern 'xx' matches nothing.
  The leaves are x, w.
Fix one of: 'x' | remove the pattern""",
    "dp": """\
in_sbp pattern 'dp' matches nothing.
  The leaves are x, w.
Fix one of: words by axis are one text: 'dp: S(0)' | remove the pattern""",
    5: """\
in_sbp has the key 5, which is not a path pattern.
  The leaves are x, w.
Fix: give text, or words by position: in_sbp=('dp: S(0)', None)""",
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_that_match_nothing(pattern):
    assert of_plan(matmul, X, W, in_sbp={pattern: "dp: S(0)"}) == PATTERNS[pattern]


def test_pattern_for_a_result_without_a_path():
    assert (
        of_plan(matmul, X, W, out_sbp={"y": "dp: S(0)"})
        == """\
out_sbp pattern 'y' matches nothing.
  There is one leaf, without a path.
Fix one of: out_sbp='dp: S(0)' | remove the pattern"""
    )


def of_tree(params, x):
    return params["a"] + x, {"b": x}


def test_prefixes_that_do_not_fit_the_tree():
    params = {"a": X, "b": {"c": X, "d": X}}

    def of_prefix(prefix):
        return of_plan(of_tree, params, X, in_sbp=(prefix, None))

    fixes = (
        "Fix one of: one text for a whole subtree | path patterns: {'state.params.*': 'dp: S(0)'}"
    )
    assert (
        of_plan(of_tree, params, X, in_sbp=("dp: S(0)",))
        == """\
in_sbp has 1 entry for 2 arguments.
  The arguments are params, x.
Fix one of: give one entry an argument, None leaves it free | \
give a mapping: {'params': 'dp: S(0)'}"""
    )
    assert (
        of_prefix({"a": "dp: S(0)"})
        == f"""\
the tree of words is not a prefix of the tree of arrays (in_sbp params).
  The words are a dict with a, the arrays are a dict with a, b.
{fixes}"""
    )
    assert (
        of_prefix({"a": None, "b": ["dp: S(0)", None]})
        == f"""\
the tree of words is not a prefix of the tree of arrays (in_sbp params).
  The words at 'b' are a list of 2 entries, the arrays are a dict with c, d.
{fixes}"""
    )
    assert (
        of_prefix({"a": {"q": "dp: S(0)"}, "b": None})
        == f"""\
the tree of words is not a prefix of the tree of arrays (in_sbp params).
  The words at 'a' are a dict with q, the arrays are one array f32[8,16].
{fixes}"""
    )
    assert (
        of_plan(of_tree, params, X, out_sbp=("dp: S(0)",))
        == f"""\
the tree of words is not a prefix of the tree of arrays (out_sbp).
  The words are a tuple of 1 entry, the arrays are a tuple of 2 entries.
{fixes}"""
    )
    assert (
        of_plan(of_tree, params, X, out_sbp=(("dp: S(0)", "dp: B"), None))
        == f"""\
the tree of words is not a prefix of the tree of arrays (out_sbp).
  The words at '0' are a tuple of 2 entries, the arrays are one array f32[8,16].
{fixes}"""
    )


@pytest.mark.parametrize("given", [5, sbp.S(0)])
def test_things_that_are_no_words(given):
    assert (
        of_plan(matmul, X, W, in_sbp={"x": given})
        == f"""\
{given} is not words (in_sbp x).
  Words are text, NdSbp, PartitionSpec or NamedSharding; None leaves a leaf free.
Fix: write for example 'dp: S(0)'"""
    )
    message = of_plan(matmul, X, W, in_sbp=given)
    assert message.startswith(f"in_sbp={given} is not a request for words.\n  It is words for all")


def adds_over_an_axis(x):
    return jax.lax.psum(x, "dp")


def gathers_over_an_axis(x):
    return jax.lax.all_gather(x, "tp")


def maps_over_shards(x):
    return jax.shard_map(abs, mesh=MESH, in_specs=PartitionSpec(), out_specs=PartitionSpec())(x)


def puts_on_devices(x):
    return jax.device_put(x, NamedSharding(MESH, PartitionSpec("dp")))


def calls_with_shardings(x):
    return jax.jit(abs, out_shardings=NamedSharding(MESH, PartitionSpec("dp")))(x)


def prints_in_order(x):
    jax.debug.print("{}", x, ordered=True)
    return x


def calls_back_for_a_value(x):
    return io_callback(np.asarray, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def nests_against_the_mesh(x):
    return jax.lax.with_sharding_constraint(x, PartitionSpec(("tp", "dp")))


def returns_text(x):
    return {"y": [x, "text"]}


FUNCTIONS = {
    adds_over_an_axis: """\
the function communicates by itself: psum over 'dp' ({line}).
  A parallelized function is written for one device; the plan owns all communication.
Fix one of: remove the collective and let the plan insert it | \
call jax.shard_map outside the parallelized function""",
    gathers_over_an_axis: """\
the function communicates by itself: a collective over 'tp' ({line}).
  A parallelized function is written for one device; the plan owns all communication.
Fix one of: remove the collective and let the plan insert it | \
call jax.shard_map outside the parallelized function""",
    maps_over_shards: """\
the function communicates by itself: shard_map ({line}).
  A parallelized function is written for one device; the plan owns all communication.
Fix one of: remove the collective and let the plan insert it | \
call jax.shard_map outside the parallelized function""",
    puts_on_devices: """\
the function places an array itself: device_put ({line}).
  A parallelized function is written for one device; the plan says where arrays lie.
Fix one of: pin the array: sbp.pin(x, dp=sbp.S(0)) | place it before the call: step.place""",
    calls_with_shardings: """\
the function places an array itself: jax.jit with shardings ({line}).
  A parallelized function is written for one device; the plan says where arrays lie.
Fix one of: pin the array: sbp.pin(x, dp=sbp.S(0)) | place it before the call: step.place""",
    prints_in_order: """\
debug_print must run in order with other effects ({line}).
  Ordered effects thread one token through the program; devices of an SPMD program share none.
Fix one of: pass ordered=False | call it outside the parallelized function""",
    calls_back_for_a_value: """\
io_callback has a side effect and returns values ({line}).
  The effect must happen once, but its values are needed on every device.
Fix one of: use jax.pure_callback if there is no side effect | return nothing from the callback""",
    nests_against_the_mesh: """\
the constraint P(('tp', 'dp'),) nests tp, dp against the mesh ({line}).
  Where several axes split one dim, the axis that stands first in the mesh is the outer one; \
the mesh has dp, tp.
Fix: nest the axes in the order of the mesh""",
    returns_text: """\
result y.1 of returns_text is no array but str.
  A step takes and returns trees of arrays and numbers.
Fix: return arrays""",
}


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_functions_that_are_not_for_one_device(fn):
    assert of_plan(fn, X) == FUNCTIONS[fn].format(line=line_of(fn))


def test_limits_that_no_plan_keeps():
    assert (
        of_plan(matmul, X, W, memory_limit=100)
        == f"""\
matmul needs 480 B on a device, memory_limit is 100 B.
  No plan was found that needs less than this one. Its largest arrays on one device are:
  192 B  f32[8,12@dp]{{U:tp}} ({line_of(matmul)})
  128 B  f32[8,16@tp] (argument x)
  96 B  f32[16@tp,12@dp] (argument w)
Fix one of: memory_limit=480 | pin the largest arrays to S | use more devices"""
    )
    split = {"in_sbp": {"x": "dp: S(0), tp: B"}, "out_sbp": "dp: B, tp: B"}
    assert (
        of_plan(matmul, X, W, max_nbytes=7, **split)
        == """\
matmul sends 192 bytes a device, max_nbytes is 7.
  No plan was found that sends less; explain() lists what it sends.
Fix one of: max_nbytes=192 | fewer pins"""
    )
    sbp.parallelize(matmul, mesh=MESH, memory_limit=480).plan(X, W)
    sbp.parallelize(matmul, mesh=MESH, max_nbytes=192, **split).plan(X, W)


def test_a_mesh_larger_than_the_devices():
    assert (
        refusal(lambda: flowjax.make_mesh("dp=4,tp=4"))
        == """\
mesh 'dp=4,tp=4' needs 16 devices, there are 8 (make_mesh).
  Each point of a mesh is a device of its own.
Fix one of: a smaller mesh | simulate them on the CPU, before JAX is first used: \
jax.config.update('jax_num_cpu_devices', 16), or \
XLA_FLAGS=--xla_force_host_platform_device_count=16"""
    )
