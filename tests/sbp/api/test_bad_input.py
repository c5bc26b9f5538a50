"""Options and arguments of the wrong kind: a text of ours, not a traceback out of jax or numpy."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

import flowjax
import sbp

MESH = flowjax.make_mesh("dp=2,tp=4")
X = np.ones((8, 16), np.float32)


def refusal(call):
    with pytest.raises(sbp.SbpError) as caught:
        call()
    return str(caught.value)


def line_of(fn):
    """Where the body of a function stands, as messages say it."""
    return f"{os.path.relpath(__file__)}:{fn.__code__.co_firstlineno + 1}"


def update(state, gradient):
    return state - gradient


OPTIONS = {
    ("objective", "speed"): """\
objective='speed' is not an option.
  The options are 'time', 'bytes', 'wire'.
Fix: objective='time' is the default""",
    ("objective", "byte"): """\
objective='byte' is not an option.
  The options are 'time', 'bytes', 'wire'.
Fix one of: objective='bytes' | objective='time' is the default""",
    ("search", "fast"): """\
search='fast' is not an option.
  The options are 'optimal', 'greedy', 'exhaustive'.
Fix: search='optimal' is the default""",
    ("lowering", "xla"): """\
lowering='xla' is not an option.
  The options are 'manual', 'auto'.
Fix: lowering='manual' is the default""",
    ("hardware", "foo"): """\
hardware='foo' is not known.
  It prices the plan: the name of a cluster that sbp knows, a cluster or a file.
  The names are h100, h200, b200, a100, a100-40gb, a100-ethernet, tpu-v5e, tpu-v5p, cpu.
Fix one of: hardware='h100' | pass an sbp.Cluster | hardware='machine.json', measured by scripts/\
calibrate.py --out machine.json""",
    ("hardware", "no/such.json"): """\
'no/such.json' does not hold a cluster (hardware file).
  It cannot be read: No such file or directory.
Fix one of: write one with scripts/calibrate.py --out | write one with sbp.Cluster.save""",
    ("overlap", 1.5): """\
overlap=1.5 is not a share.
  A share is a number from 0 (nothing) to 1 (everything).
Fix: overlap=0.5""",
    ("overlap", "half"): """\
overlap='half' is not a share.
  A share is a number from 0 (nothing) to 1 (everything).
Fix: overlap=0.5""",
    ("memory_limit", "80 foo"): """\
memory_limit='80 foo' is not a size.
  A size is a whole number of bytes, or a number and one of B, KB, MB, GB, TB, KiB, MiB, GiB, TiB.
Fix: memory_limit='80GiB'""",
    ("max_nbytes", -1): """\
max_nbytes=-1 is not a size.
  A size is a whole number of bytes, or a number and one of B, KB, MB, GB, TB, KiB, MiB, GiB, TiB.
Fix: max_nbytes='80GiB'""",
    ("reduce_dtype", "foo"): """\
reduce_dtype='foo' is not a float dtype.
  It is a float dtype to which the program narrows sums; they are then added in it.
Fix one of: reduce_dtype='bfloat16' | reduce_dtype=None adds as the program says""",
    ("reduce_dtype", "int32"): """\
reduce_dtype='int32' is not a float dtype.
  It is a float dtype to which the program narrows sums; they are then added in it.
Fix one of: reduce_dtype='bfloat16' | reduce_dtype=None adds as the program says""",
    ("plan", "plan.json"): """\
plan='plan.json' is not a plan.
  It is an sbp.Plan: from step.plan(...), or read from a file.
Fix: plan=sbp.Plan.load(path)""",
    ("mesh", None): """\
mesh=None is not a mesh.
  A mesh is a jax.sharding.Mesh, or an AbstractMesh to plan without devices.
Fix one of: flowjax.make_mesh('dp=2,tp=4') | jax.make_mesh((2, 4), ('dp', 'tp'))""",
    ("mesh", "dp=8"): """\
mesh='dp=8' is not a mesh.
  A mesh is a jax.sharding.Mesh, or an AbstractMesh to plan without devices.
Fix one of: flowjax.make_mesh('dp=2,tp=4') | jax.make_mesh((2, 4), ('dp', 'tp'))""",
    ("donate_argnums", 2): """\
donate_argnums has 2, which is no argument of update.
  update takes state, gradient. Arguments are counted from 0.
Fix one of: a number from 0 to 1 | donate_argnames='state' | donate_argnames='gradient'""",
    ("static_argnums", -3): """\
static_argnums has -3, which is no argument of update.
  update takes state, gradient. Arguments are counted from 0.
Fix one of: a number from 0 to 1 | static_argnames='state' | static_argnames='gradient'""",
    ("static_argnums", 1.5): """\
static_argnums has 1.5, which is no argument of update.
  update takes state, gradient. Arguments are counted from 0.
Fix one of: a number from 0 to 1 | static_argnames='state' | static_argnames='gradient'""",
    ("donate_argnums", True): """\
donate_argnums has True, which is no argument of update.
  update takes state, gradient. Arguments are counted from 0.
Fix one of: a number from 0 to 1 | donate_argnames='state' | donate_argnames='gradient'""",
    ("donate_argnames", "stat"): """\
donate_argnames names 'stat', which update does not take.
  update takes state, gradient.
Fix: 'state'""",
    ("static_argnames", ("q",)): """\
static_argnames names 'q', which update does not take.
  update takes state, gradient.
Fix: name one of its arguments""",
}


@pytest.mark.parametrize(("option", "value"), OPTIONS, ids=str)
def test_options_are_checked_when_the_step_is_made(option, value):
    given = {"mesh": MESH, option: value}
    assert refusal(lambda: sbp.parallelize(update, **given)) == OPTIONS[option, value]


@pytest.mark.parametrize("fn", [3, None, "update"])
def test_only_a_function_can_be_parallelized(fn):
    assert (
        refusal(lambda: sbp.parallelize(fn, mesh=MESH))
        == f"""\
parallelize was given {fn!r}, which cannot be called.
  It takes a pure function of arrays and returns a step.
Fix: sbp.parallelize(train_step, mesh=mesh)"""
    )


def test_an_argument_is_not_both_donated_and_static():
    def make():
        sbp.parallelize(update, mesh=MESH, donate_argnums=0, static_argnames="state")

    assert (
        refusal(make)
        == """\
state of update is donated and static.
  A static argument is no array, so it has no memory to give.
Fix one of: do not donate it | do not make it static"""
    )


@pytest.mark.parametrize(
    ("size", "nbytes"),
    [(7, 7), (8e10, 80_000_000_000), ("1.5KiB", 1536), (" 2 mb ", 2_000_000), ("3e3 B", 3000)],
)
def test_sizes_are_numbers_or_text(size, nbytes):
    step = sbp.parallelize(update, mesh=MESH, memory_limit=size)
    assert step._options.conditions.memory_limit == nbytes


TIES = {
    "x": """\
tie='x' is not an option.
  A tie gives a result the words of the argument whose place it takes.
Fix one of: tie='auto' | tie=None | tie={result path: argument path}""",
    5: """\
tie=5 is not an option.
  A tie gives a result the words of the argument whose place it takes.
Fix one of: tie='auto' | tie=None | tie={result path: argument path}""",
    ("", "q"): """\
tie names the argument 'q', which is not there.
  The arguments are state, gradient.
Fix: name one of the arguments, or a subtree of them; '' is all of them""",
    ("r", "state"): """\
tie names the result 'r', which is not there.
  The result has no path.
Fix: name one of the results, or a subtree of them; '' is all of them""",
    ("", ""): """\
tie {'': ''} joins unequal trees.
  The result is f32[8,16], the argument f32[8,16], f32[8,16].
Fix: tie trees with the same shapes and dtypes, leaf by leaf""",
}


@pytest.mark.parametrize("tie", TIES, ids=str)
def test_ties_that_cannot_be(tie):
    given = dict([tie]) if isinstance(tie, tuple) else tie
    step = sbp.parallelize(update, mesh=MESH, tie=given)
    assert refusal(lambda: step.plan(X, X)) == TIES[tie]


ARGUMENTS = {
    "str": "text",
    "ndarray of dtype object": np.array([{}, None]),
}


@pytest.mark.parametrize("kind", ARGUMENTS)
@pytest.mark.parametrize("use", ["__call__", "plan", "place", "lower"])
def test_arguments_that_are_no_arrays(kind, use):
    step = sbp.parallelize(update, mesh=MESH)
    assert (
        refusal(lambda: getattr(step, use)(ARGUMENTS[kind], X))
        == f"""\
argument state is no array but {kind}.
  A step takes and returns trees of arrays and numbers.
Fix: static_argnames='state', if it is no array"""
    )


def test_an_argument_is_named_down_to_the_leaf():
    step = sbp.parallelize(lambda *trees: trees[1]["a"], mesh=MESH)
    assert (
        refusal(lambda: step.plan(X, {"a": X, "b": ["text"]}))
        == """\
argument trees.1.b.0 is no array but str.
  A step takes and returns trees of arrays and numbers.
Fix: static_argnums=1, if it is no array"""
    )


@pytest.mark.parametrize("value", [[2], ([2],)])
def test_a_static_argument_must_be_hashable(value):
    step = sbp.parallelize(update, mesh=MESH, static_argnums=1)
    assert (
        refusal(lambda: step(X, value))
        == f"""\
static argument gradient is a {type(value).__name__}, which cannot be hashed.
  A new value of a static argument plans and compiles anew, so values are compared by hash.
Fix: a tuple for a list, a frozen dataclass for a dict"""
    )


CALLS = {
    "missing a required argument: 'gradient'": ((X,), {}),
    "too many positional arguments": ((X, X, X), {}),
    "multiple values for argument 'state'": ((X,), {"state": X}),
}


@pytest.mark.parametrize("reason", CALLS)
@pytest.mark.parametrize("use", ["__call__", "plan"])
def test_calls_that_the_function_does_not_take(reason, use):
    args, kwargs = CALLS[reason]
    step = sbp.parallelize(update, mesh=MESH)
    step.plan(X, X)
    assert (
        refusal(lambda: getattr(step, use)(*args, **kwargs))
        == f"""\
update cannot be called so: {reason}.
  A step takes the arguments of its function.
Fix: update(state, gradient)"""
    )


def test_another_structure_than_planned():
    step = sbp.parallelize(lambda tree: tree, mesh=MESH)
    step.plan({"a": X})
    assert (
        refusal(lambda: step({"a": X, "b": X}))
        == """\
<lambda> is called with another structure than it was planned for.
  First: ({'a': *},)
  Now:   ({'a': *, 'b': *},)
Fix: parallelize the function again for the new structure"""
    )
    step = sbp.parallelize(lambda x: {"a": x} if x.ndim == 2 else x, mesh=MESH)
    step.plan(X)
    assert (
        refusal(lambda: step(X[0]))
        == """\
<lambda> returns another structure than it was planned for.
  First: {'a': *}
  Now:   *
Fix: parallelize the function again for the new structure"""
    )


def test_other_shapes_that_the_first_words_do_not_fit():
    step = sbp.parallelize(update, mesh=MESH, in_sbp="dp: S(0), tp: B", out_sbp="dp: S(0), tp: B")
    step.plan(X, X)
    assert (
        refusal(lambda: step(X[:7], X[:7]))
        == """\
update cannot keep the words (dp: S(0), tp: B) of its first plan (argument state).
  f32[7,16]: dim 0 has 7 elements, axis 'dp' has 2 devices.
  Split needs equal slices; 7 is not a multiple of 2.
  A step has one set of words at its ends, whatever the shapes.
Fix one of: pin words that all shapes can have | \
parallelize the function again for the new shapes"""
    )


def test_a_mesh_with_other_axes_is_set():
    step = sbp.parallelize(update, mesh=MESH)
    with jax.set_mesh(flowjax.make_mesh("data=8")):
        message = refusal(lambda: step(X, X))
    assert (
        message
        == """\
update is for a mesh of dp=2, tp=4, jax.set_mesh has set one of data=8.
  Arrays of one program lie on one mesh.
Fix one of: leave the context | parallelize for the mesh of the context"""
    )


@pytest.mark.parametrize("use", ["__call__", "lower", "place"])
def test_an_abstract_mesh_plans_but_does_not_run(use):
    step = sbp.parallelize(update, mesh=AbstractMesh((2, 4), ("dp", "tp")))
    step.plan(X, X)
    assert (
        refusal(lambda: getattr(step, use)(X, X))
        == """\
update has an abstract mesh.
  An AbstractMesh has no devices to run on.
Fix: use step.plan(...), or give a mesh of devices: flowjax.make_mesh(...)"""
    )


def test_init_before_there_is_a_plan():
    def make_x():
        return jnp.ones((8, 16))

    step = sbp.parallelize(update, mesh=MESH)
    assert (
        refusal(lambda: step.init(make_x))
        == """\
update has no plan yet, so it is not known where its arguments lie.
  init places the result by the plan, and a plan needs all arguments' shapes.
Fix: first call step.plan(jax.eval_shape(make_x, ...), ...) with the other arguments"""
    )
    step.plan(jax.eval_shape(make_x), X)
    assert step.init(make_x).shape == (8, 16)


def test_init_of_what_is_no_function():
    step = sbp.parallelize(update, mesh=MESH)
    assert (
        refusal(lambda: step.init(3))
        == """\
init was given 3, which cannot be called.
  It takes a function and its arguments, and runs it where the plan wants what it returns.
Fix one of: step.init(init_fn, key) | step.place(...) for arrays that exist"""
    )


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("use", ["__call__", "place"])
def test_shapes_can_be_planned_but_not_computed_with(use, planned):
    step = sbp.parallelize(update, mesh=MESH)
    if planned:
        step(X, X)
    assert (
        refusal(lambda: getattr(step, use)({"a": X}["a"], jax.eval_shape(jnp.asarray, X)))
        == """\
argument gradient of update is a shape without values.
  A call computes; a plan is all that can be made from shapes.
Fix one of: step.plan(...) takes shapes | pass an array"""
    )


def test_init_of_something_that_is_no_argument():
    def make_y():
        return {"a": jnp.ones((3,)), "b": jnp.ones(())}

    step = sbp.parallelize(update, mesh=MESH)
    step.plan(X, X)
    assert (
        refusal(lambda: step.init(make_y))
        == """\
make_y returns nothing that update takes.
  It returns a f32[3], b f32[]; no argument has this structure with these shapes and dtypes.
Fix: plan with what it returns: step.plan(jax.eval_shape(make_y, ...), ...)"""
    )


WORDS = {
    "in_sbp": """\
in_sbp=3 is not a request for words.
  It is words for all arguments, a mapping from argument name or path pattern to words, or one \
entry an argument.
  Words are text, NdSbp, PartitionSpec or NamedSharding.
Fix one of: in_sbp={'state': 'dp: S(0)'} | in_sbp='dp: S(0)' | in_sbp=('dp: S(0)', None), \
in the order of the arguments""",
    "out_sbp": """\
3 is not words (out_sbp).
  Words are text, NdSbp, PartitionSpec or NamedSharding; None leaves a leaf free.
Fix: write for example 'dp: S(0)'""",
}


@pytest.mark.parametrize("option", WORDS)
def test_a_number_is_no_words(option):
    step = sbp.parallelize(update, mesh=MESH, **{option: 3})
    assert refusal(lambda: step.plan(X, X)) == WORDS[option]


def test_a_step_inside_another_one():
    inner = sbp.parallelize(update, mesh=flowjax.make_mesh("data=8"))

    def outer(x):
        return inner(x, x) + 1

    step, where = sbp.parallelize(outer, mesh=MESH), line_of(outer)
    for _ in range(2):
        assert (
            refusal(lambda: step.plan(X))
            == f"""\
outer calls update, which is a step itself ({where}).
  A parallelized function is written for one device; its own plan covers all that it calls.
Fix: call the plain function: step.__wrapped__(...)"""
        )
    plain = sbp.parallelize(lambda x: inner.__wrapped__(x, x) + 1, mesh=MESH)
    np.testing.assert_array_equal(plain(X), X - X + 1)
    np.testing.assert_array_equal(inner(X, X), X - X)


def test_a_step_without_jit():
    step = sbp.parallelize(update, mesh=MESH)
    with jax.disable_jit():
        message = refusal(lambda: step(X, X))
    assert (
        message
        == """\
update is called under jax.disable_jit.
  A step is one compiled program and has no other way to run.
Fix one of: leave the context | call the plain function: step.__wrapped__(...)"""
    )


def test_python_branches_on_values_are_reported_as_the_users_own():
    def branches(state, n):
        return state["a"] if state["a"].sum() > 0 else -state["a"] * n

    here = f"the function branches at {__file__}:{branches.__code__.co_firstlineno}"
    step = sbp.parallelize(branches, mesh=MESH, static_argnames="n")
    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        step({"a": X}, 2)
    assert here in str(caught.value)
    assert "the value of the argument state['a']" in str(caught.value)
    with pytest.raises(
        jax.errors.TracerBoolConversionError, match=r"while .* function <lambda> at"
    ) as caught:
        sbp.signatures(lambda x: x if x.sum() > 0 else -x, X)
    assert "the value of the argument x." in str(caught.value)


def test_errors_of_the_function_are_its_own():
    def fails(x):
        raise ValueError("mine")

    step = sbp.parallelize(fails, mesh=MESH)
    with pytest.raises(ValueError, match="mine") as caught:
        step(X)
    assert not isinstance(caught.value, sbp.SbpError)
    with pytest.raises(TypeError, match="NoneType"):
        sbp.parallelize(update, mesh=MESH)(None, X)


def test_a_function_without_a_name_is_called_by_its_kind():
    step = sbp.parallelize(functools.partial(update, gradient=X), mesh=MESH)
    assert step.plan(X).name == "partial"
