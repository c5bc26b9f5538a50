"""Words of arrays that exist: read, changed and shown, on any mesh, Partial included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import flowjax
import sbp
from tests.one_device import MESH, whole

X = whole(8, 16)
EXPLICIT = flowjax.make_mesh("dp=2,tp=4", axis_types=AxisType.Explicit)
WORDS = ["", "dp: S(0)", "dp: S(1), tp: S(1)", "tp: S(0), dp: S(1)"]
PARTIAL = ["dp: P", "tp: P, dp: S(0)", "dp: P, tp: P"]


def refusal(call):
    with pytest.raises(sbp.SbpError) as caught:
        call()
    return str(caught.value)


def full(text):
    return sbp.NdSbp({"dp": sbp.B, "tp": sbp.B, **sbp.NdSbp.parse(text)})


@pytest.mark.parametrize("mesh", [MESH, EXPLICIT], ids=["auto", "explicit"])
@pytest.mark.parametrize("text", WORDS)
def test_words_say_how_an_array_lies(text, mesh):
    sharding = sbp.named_sharding(mesh, sbp.NdSbp.parse(text), 2)
    assert sbp.words(jax.device_put(X, sharding)) == full(text)
    assert sbp.words(jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=sharding)) == full(text)


@pytest.mark.parametrize("whole_array", [X, 3, jnp.ones(4), jax.device_put(X, jax.devices()[5])])
def test_an_array_off_the_mesh_has_no_words(whole_array):
    assert sbp.words(whole_array) == sbp.NdSbp()


def test_words_of_other_shardings_are_refused():
    class Odd:
        device_set = frozenset(jax.devices())

    odd = type("Array", (), {"sharding": Odd(), "ndim": 2})()
    assert (
        refusal(lambda: sbp.words(odd))
        == """\
the array has a Odd.
  Words are by mesh axis, and this sharding has no named axes.
Fix: place the array with a NamedSharding, or with step.place"""
    )
    against = jax.device_put(X, NamedSharding(MESH, PartitionSpec(("tp", "dp"))))
    assert "the mesh nests ('dp', 'tp')" in refusal(lambda: sbp.words(against))


STRUCT = jax.ShapeDtypeStruct((8,), np.float32)
NO_ARRAYS = {
    "words": lambda x: sbp.words(x),
    "show": lambda x: sbp.show(x),
    "box": lambda x: sbp.box(x, "dp: S(0)", MESH),
    "pin": lambda x: sbp.pin(x, "dp: S(0)"),
    "signatures": lambda x: sbp.signatures(lambda y: y, x),
}
FIXES = {
    "box": "jax.tree.map(lambda x: sbp.box(x, words, mesh), tree) for the leaves of a tree",
    "pin": "jax.tree.map(lambda x: sbp.pin(x, words), tree) for the leaves of a tree",
    "signatures": "give the function one argument an array",
}


@pytest.mark.parametrize("use", NO_ARRAYS)
@pytest.mark.parametrize("given", [[1, 2], {"a": X}, "text", None], ids=repr)
def test_what_is_no_array_is_refused(use, given):
    more = "" if use in ("words", "signatures") else " with values"
    fix = FIXES.get(use, f"jax.tree.map(sbp.{use}, tree) for the leaves of a tree")
    assert (
        refusal(lambda: NO_ARRAYS[use](given))
        == f"""\
sbp.{use} was given something of type {type(given).__name__}, which is no array.
  It takes one array or number{more}.
Fix: {fix}"""
    )


@pytest.mark.parametrize("use", ["show", "box", "pin"])
def test_a_shape_has_no_values(use):
    assert "type ShapeDtypeStruct, which is no array" in refusal(lambda: NO_ARRAYS[use](STRUCT))


@pytest.mark.parametrize("dst", WORDS)
@pytest.mark.parametrize("src", WORDS)
def test_boxing_keeps_the_value(src, dst):
    array = sbp.box(X, src, MESH)
    assert sbp.words(array) == full(src)
    moved = sbp.box(array, dst)
    assert sbp.words(moved) == full(dst)
    np.testing.assert_array_equal(np.asarray(moved), X)


@pytest.mark.parametrize("dst", [*WORDS, *PARTIAL])
@pytest.mark.parametrize("src", PARTIAL)
def test_boxing_from_and_to_partial(src, dst):
    array = sbp.box(X, src, EXPLICIT)
    assert sbp.words(array) == full(src)
    moved = sbp.box(array, dst)
    assert sbp.words(moved) == full(dst)
    np.testing.assert_array_equal(np.asarray(sbp.box(moved, "")), X)


def test_boxing_to_another_mesh():
    other = flowjax.make_mesh("data=4", axis_types=AxisType.Explicit)
    for src in (sbp.box(X, "dp: S(0), tp: S(1)", MESH), sbp.box(X, "dp: P", EXPLICIT)):
        moved = sbp.box(src, "data: S(1)", other)
        assert sbp.words(moved) == sbp.NdSbp(data=sbp.S(1))
        np.testing.assert_array_equal(np.asarray(moved), X)
        partial = sbp.box(src, "data: P", other)
        np.testing.assert_array_equal(np.asarray(sbp.box(partial, "")), X)


def test_words_are_taken_in_any_form():
    forms = [
        "tp: S(1)", sbp.NdSbp(tp=sbp.S(1)), PartitionSpec(None, "tp"), "tp: S(-1)",
        NamedSharding(MESH, PartitionSpec(None, "tp")),
    ]  # fmt: skip
    for form in forms:
        assert sbp.words(sbp.box(X, form, MESH)) == full("tp: S(1)")


def test_boxing_is_under_jit_what_it_is_outside():
    boxed = jax.jit(lambda x: sbp.box(x * 2, "tp: S(1)", MESH))(X)
    np.testing.assert_array_equal(np.asarray(boxed), X * 2)


def test_what_boxing_refuses():
    assert (
        refusal(lambda: sbp.box(X, "dp: S(0)"))
        == """\
the array lies on no mesh and none is given.
  Words are by mesh axis.
Fix: box(array, words, mesh=flowjax.make_mesh('dp=8'))"""
    )
    assert (
        refusal(lambda: sbp.box(X, "dp: P", MESH))
        == """\
box to (dp: P) on a mesh with Auto axes.
  jax's unreduced arrays exist on Explicit axes only.
Fix one of: box to B or S | flowjax.make_mesh(..., axis_types=AxisType.Explicit)"""
    )
    assert (
        refusal(lambda: sbp.box(X, "pp: S(0)", MESH))
        == """\
box 'pp: S(0)' names an axis that the mesh does not have (dst).
  The mesh has dp=2, tp=4.
Fix one of: use one of dp, tp | make a mesh with an axis 'pp'"""
    )
    assert (
        refusal(lambda: sbp.box(X, "dp: P.max", EXPLICIT))
        == """\
'dp: P.max' cannot be written as a PartitionSpec.
  jax's unreduced arrays are sums; maxima and minima cannot cross the boundary of a program.
Fix: ask for 'dp: B'"""
    )


def test_boxing_needs_a_mesh_of_devices():
    assert (
        refusal(lambda: sbp.box(X, "dp: S(0)", "x"))
        == """\
mesh='x' is not a mesh.
  A mesh is a jax.sharding.Mesh, or an AbstractMesh to plan without devices.
Fix one of: flowjax.make_mesh('dp=2,tp=4') | jax.make_mesh((2, 4), ('dp', 'tp'))"""
    )
    assert "'x' is not a mesh" in refusal(lambda: sbp.boxing_path("", "", (8,), "float32", "x"))
    assert (
        refusal(lambda: sbp.box(X, "dp: S(0)", AbstractMesh((2, 4), ("dp", "tp"))))
        == """\
the mesh is abstract (box).
  An AbstractMesh has no devices for an array to lie on.
Fix: give a mesh of devices: flowjax.make_mesh(...)"""
    )


def test_showing_an_array():
    assert sbp.show(np.ones((2, 2), np.float32)) == "f32[2,2] ()\n[[1. 1.]\n [1. 1.]]"
    assert sbp.show(sbp.box(X[:2, :4], "tp: S(1)", MESH)) == (
        f"f32[2,4@tp] (dp: B, tp: S(1))\n{X[:2, :4]}"
    )
    # Of a partial array, the sum.
    assert sbp.show(sbp.box(X[:2, :2], "dp: P, tp: P", EXPLICIT)) == (
        f"f32[2,2]{{U:dp,tp}} (dp: P, tp: P)\n{X[:2, :2]}"
    )
    keys = sbp.box(jax.random.split(jax.random.key(0), 2), "dp: S(0)", MESH)
    assert sbp.show(keys).startswith("key<fry>[2@dp] (dp: S(0), tp: B)\n[[")


@pytest.mark.parametrize(
    "mesh", [MESH, AbstractMesh((2, 4), ("dp", "tp"))], ids=["real", "abstract"]
)
def test_boxing_path_lists_steps_with_bytes(mesh):
    path = sbp.boxing_path("tp: P", "dp: S(0)", (8, 16), "float32", mesh)
    assert [(step.kind, step.nbytes) for step in path] == [("slice", 0), ("all-reduce", 384)]
    assert sbp.boxing_path("dp: S(0)", "dp: S(0)", (8, 16), "bfloat16", mesh) == ()


def test_boxing_path_refuses_what_an_array_cannot_be():
    def path(src):
        return lambda: sbp.boxing_path(src, "", (8, 16), "bool", MESH)

    assert (
        refusal(path("dp: S(2)"))
        == """\
src 'dp: S(2)' splits a dim that does not exist (src).
  bool[8,16] has 2 dims, numbered 0 to 1.
Fix one of: src 'dp: S(0)' (8 = 2 x 4) | src 'dp: S(1)' (16 = 2 x 8)"""
    )
    assert (
        refusal(path("dp: P"))
        == """\
src 'dp: P' cannot hold (src).
  bool[8,16]: P on 'dp': elements of bool cannot be added.
Fix: src B, or S of a dim, instead of P"""
    )
