"""Arguments by name, by default and by position: a step takes them as `jax.jit` does."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowjax
import sbp

MESH = flowjax.make_mesh("dp=2,tp=4")
X = np.arange(128, dtype=np.float32).reshape(8, 16) - 50
W = np.ones((16, 12), np.float32)


def branch(x, train=True, scale=1.0):
    return x * scale if train else x


def along(x, axis=0, scale=1.0):
    return jnp.sum(x, axis) * scale


def activate(x, act="relu", scale=1.0):
    return getattr(jax.nn, act)(x) * scale


def project(x, w=None, scale=1.0):
    return (x if w is None else x @ w) * scale


def many(x, *rest, scale=2.0):
    return x * (1 + len(rest)) * scale


def mixed(x, /, y=1.0, *, z=3.0):
    return x * y - z


def free(x, **options):
    return x * options.get("scale", 1.0) + options.get("shift", 0.0)


CALLS = [
    (branch, (), {"scale": 2.0}, ["x", "scale"]),
    (along, (), {"scale": 2.0}, ["x", "scale"]),
    (activate, (), {"scale": 2.0}, ["x", "scale"]),
    (project, (), {"scale": 2.0}, ["x", "scale"]),
    (project, (W,), {"scale": 2.0}, ["x", "w", "scale"]),
    (many, (X,), {}, ["x", "rest.0"]),
    (many, (X,), {"scale": 3.0}, ["x", "rest.0", "scale"]),
    (mixed, (), {"y": 2.0}, ["x", "y"]),
    (mixed, (), {"z": 2.0}, ["x", "z"]),
    (mixed, (), {"z": 2.0, "y": 5.0}, ["x", "y", "z"]),
    (free, (), {}, ["x"]),
    (free, (), {"scale": 3.0}, ["x", "scale"]),
    (free, (), {"shift": 2.0, "scale": 3.0}, ["x", "scale", "shift"]),
    (functools.partial(branch, train=False), (), {"scale": 3.0}, ["x", "scale"]),
    (functools.partial(project, w=W), (), {"scale": 3.0}, ["x", "scale"]),
]


@pytest.mark.parametrize(("fn", "more", "named", "paths"), CALLS)
def test_arguments_by_name_as_under_jit(fn, more, named, paths):
    step = sbp.parallelize(fn, mesh=MESH)
    for _ in range(2):
        np.testing.assert_array_equal(step(X, *more, **named), jax.jit(fn)(X, *more, **named))
    assert [path for path, _ in step.plan(X, *more, **named).arguments] == paths
    placed = step.place(X, *more, **named)
    assert len(jax.tree.leaves(placed)) == len(paths)
    assert "HloModule" in step.lower(X, *more, **named).compile().as_text()


def test_the_order_of_names_in_a_call_is_of_no_account():
    step = sbp.parallelize(free, mesh=MESH)
    assert step.plan(X, shift=1.0, scale=2.0) is step.plan(X, scale=2.0, shift=1.0)


def test_names_are_pinned_donated_and_static_like_positions():
    def fn(x, *, state, n=3, **more):
        return state - x * (n if isinstance(n, int) else 1000) - more["last"]

    step = sbp.parallelize(
        fn, mesh=MESH, donate_argnames="state", static_argnames=("n", "last"),
        in_sbp={"state": "dp: S(1)"},
    )  # fmt: skip
    plan = step.plan(X, state=X, n=2, last=7)
    assert dict(plan.arguments).keys() == {"x", "state"}
    assert plan.ties == (("", "state"),)
    assert dict(plan.arguments)["state"]["dp"] == sbp.S(1)
    for n in (2, 4):
        placed = step.place(X, state=X, n=n, last=7)
        assert placed[2:] == (n, 7)
        x, state = placed[:2]
        np.testing.assert_array_equal(step(x, state=state, n=n, last=7), X - X * n - 7)
        assert (x.is_deleted(), state.is_deleted()) == (False, True)


def test_equal_arrays_under_other_names_are_other_arguments():
    step = sbp.parallelize(branch, mesh=MESH, static_argnames="train")
    np.testing.assert_array_equal(step(X, scale=2.0), X * 2)
    np.testing.assert_array_equal(step(X, False, 2.0), X)
    np.testing.assert_array_equal(step(X, scale=2.0), X * 2)
    np.testing.assert_array_equal(step(X, train=False, scale=2.0), X)
    step = sbp.parallelize(free, mesh=MESH)
    np.testing.assert_array_equal(step(X, scale=2.0), X * 2)
    with pytest.raises(sbp.PlanError) as caught:
        step(X, shift=2.0)
    assert (
        str(caught.value)
        == """\
free is called with other arguments than it was planned for.
  First: x, scale
  Now:   x, shift
Fix: parallelize the function again for these arguments"""
    )


@pytest.mark.parametrize("option", ["static_argnums", "donate_argnums"])
def test_arguments_are_counted_from_the_end_too(option):
    def fn(x, last):
        return last * 2 if isinstance(last, int) else last - x

    last = 4 if option == "static_argnums" else X
    step = sbp.parallelize(fn, mesh=MESH, **{option: -1})
    np.testing.assert_array_equal(step(X, last), fn(X, last))
    np.testing.assert_array_equal(step(X, last=last), fn(X, last))
    assert step.plan(X, last).ties == ((("", "last"),) if option == "donate_argnums" else ())


def test_what_a_function_takes_by_name_is_among_what_it_takes():
    def fn(x, *, num_layers=3):
        return x * num_layers

    with pytest.raises(sbp.SbpError) as caught:
        sbp.parallelize(fn, mesh=MESH, static_argnames="num_layer")
    assert (
        str(caught.value)
        == """\
static_argnames names 'num_layer', which fn does not take.
  fn takes x, and num_layers by name.
Fix: 'num_layers'"""
    )
    with pytest.raises(sbp.SbpError) as caught:
        sbp.parallelize(fn, mesh=MESH, donate_argnames="num_layers", static_argnames="num_layers")
    assert caught.value.what == "num_layers of fn is donated and static"


def test_negative_numbers_need_an_end_to_count_from():
    with pytest.raises(sbp.SbpError) as caught:
        sbp.parallelize(many, mesh=MESH, static_argnums=-1)
    assert (
        str(caught.value)
        == """\
static_argnums has -1, which is no argument of many.
  many takes x, and scale by name. Arguments are counted from 0.
Fix one of: a number from 0 | static_argnames='x' | static_argnames='scale'"""
    )


def test_a_static_argument_by_name_must_be_hashable():
    step = sbp.parallelize(free, mesh=MESH, static_argnames="scale")
    with pytest.raises(sbp.SbpError) as caught:
        step(X, scale=[2])
    assert caught.value.what == "static argument scale is a list, which cannot be hashed"
    with pytest.raises(sbp.SbpError) as caught:
        step(X, shift="much")
    assert caught.value.what == "argument shift is no array but str"


def test_an_object_that_is_called_is_traced_under_the_name_of_its_kind():
    class Scale:
        def __init__(self):
            self.factor = 3.0

        def __call__(self, x, *, shift=0.0):
            return x * self.factor + shift

    step = sbp.parallelize(Scale(), mesh=MESH)
    np.testing.assert_array_equal(step(X, shift=1.0), X * 3 + 1)
    assert step.plan(X, shift=1.0).name == "Scale"


def test_derivatives_flow_to_arguments_by_name():
    step = sbp.parallelize(lambda x, *, scale: (x * scale).sum(), mesh=MESH)
    found = jax.grad(lambda scale: step(X, scale=scale))(2.0)
    np.testing.assert_array_equal(found, X.sum())
