"""Words and jax's shardings say the same, in both directions."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import flowjax
import sbp
from sbp.specs import num_dims, spec_of
from tests.one_device import MESH

AXES = ("dp", "tp", "pp")
CUBE = flowjax.make_mesh("dp=2,tp=2,pp=2", axis_types=AxisType.Explicit)
WORD = st.one_of(st.integers(0, 2).map(sbp.S), st.just(sbp.B), st.just(sbp.P))


def full(words, mesh):
    return sbp.NdSbp({axis: words.get(axis, sbp.B) for axis in mesh.axis_names})


@given(st.dictionaries(st.sampled_from(AXES), WORD))
def test_words_come_back_from_their_spec(given_words):
    words = sbp.NdSbp({axis: given_words[axis] for axis in AXES if axis in given_words})
    spec = sbp.partition_spec(words, 3)
    assert sbp.from_partition_spec(spec, CUBE, 3) == full(words, CUBE)
    assert sbp.named_sharding(CUBE, words, 3).spec == spec


@pytest.mark.parametrize(
    "mesh", [MESH, AbstractMesh((2, 4), ("dp", "tp"))], ids=["real", "abstract"]
)
@pytest.mark.parametrize(("spec", "text"), [
    (PartitionSpec(), ""),
    (PartitionSpec("dp"), "dp: S(0)"),
    (PartitionSpec(None, ("dp", "tp")), "dp: S(1), tp: S(1)"),
    (PartitionSpec("tp", "dp"), "dp: S(1), tp: S(0)"),
    (PartitionSpec(("tp",), None, None), "tp: S(0)"),
    (PartitionSpec(None, unreduced={"tp"}), "tp: P"),
    (PartitionSpec("dp", unreduced={"tp"}), "dp: S(0), tp: P"),
])  # fmt: skip
def test_a_spec_is_a_full_statement(spec, text, mesh):
    assert sbp.from_partition_spec(spec, mesh, 3) == full(sbp.NdSbp.parse(text), mesh)


def test_a_spec_means_to_jax_what_the_words_mean_to_sbp():
    # Where each device's block begins, for every two words on two axes.
    x = np.arange(8 * 8).reshape(8, 8)
    options = [sbp.S(0), sbp.S(1), sbp.B]
    for first, second in itertools.product(options, options):
        words = sbp.NdSbp(dp=first, tp=second)
        array = jax.device_put(x, sbp.named_sharding(MESH, words, 2))
        parts = sbp.reference.scatter(x, words, dict(MESH.shape), np.random.default_rng(0))
        for shard in array.addressable_shards:
            (place,) = np.argwhere(MESH.devices == shard.device)
            np.testing.assert_array_equal(shard.data, parts[tuple(place)])


def test_dims_are_counted_from_either_end():
    assert sbp.partition_spec(sbp.NdSbp(dp=sbp.S(-1)), 3) == PartitionSpec(None, None, "dp")
    assert num_dims(sbp.NdSbp(dp=sbp.S(2), tp=sbp.B)) == 3
    assert num_dims(sbp.NdSbp(dp=sbp.P)) == 0


def test_the_spec_has_an_entry_for_each_dim():
    assert spec_of(("dp", "tp"), (sbp.S(0), sbp.B), 3) == PartitionSpec("dp", None, None)
    assert spec_of((), (), 0) == PartitionSpec()


def refusal(call, *args):
    with pytest.raises(sbp.SignatureError) as caught:
        call(*args)
    return str(caught.value)


def test_words_that_no_spec_says():
    assert (
        refusal(lambda: sbp.partition_spec(sbp.NdSbp(dp=sbp.P.max), 2))
        == """\
'dp: P.max' cannot be written as a PartitionSpec.
  jax's unreduced arrays are sums; maxima and minima cannot cross the boundary of a program.
Fix: ask for 'dp: B'"""
    )
    assert (
        refusal(lambda: sbp.partition_spec(sbp.NdSbp(dp=sbp.S(2)), 2))
        == """\
'dp: S(2)' splits a dim that does not exist.
  The array has 2 dims.
Fix: name a dim from 0 to 1"""
    )
    assert (
        refusal(lambda: sbp.partition_spec(sbp.NdSbp(dp=sbp.S(0)), 0))
        == """\
'dp: S(0)' splits a dim that does not exist.
  The array has 0 dims.
Fix: 'dp: B'"""
    )
    assert (
        refusal(lambda: sbp.named_sharding(MESH, sbp.NdSbp(ep=sbp.B), 2))
        == """\
P(None, None) names the axis 'ep', which the mesh does not have.
  The mesh has dp, tp.
Fix: use one of the mesh's axes"""
    )


def test_a_sharding_is_what_jax_makes_of_it():
    sharding = sbp.named_sharding(MESH, sbp.NdSbp.parse("tp: S(1), dp: S(1)"), 2)
    assert sharding == NamedSharding(MESH, PartitionSpec(None, ("dp", "tp")))


@pytest.mark.parametrize("mesh", [5, None, "dp=2", {"dp": 2}], ids=repr)
def test_a_sharding_is_on_a_mesh(mesh):
    told = (
        f"mesh={mesh!r} is not a mesh.\n"
        "  A sharding is on a jax.sharding.Mesh or AbstractMesh, whose axes words name.\n"
        "Fix one of: flowjax.make_mesh('dp=2,tp=4') | jax.make_mesh((2, 4), ('dp', 'tp'))"
    )
    plan = sbp.parallelize(lambda x: x, mesh=MESH).plan(np.ones(8, np.float32))
    assert refusal(sbp.named_sharding, mesh, "dp: S(0)", 2) == told
    assert refusal(sbp.from_partition_spec, PartitionSpec("dp"), mesh, 2) == told
    assert refusal(plan.in_shardings, mesh) == refusal(plan.out_shardings, mesh) == told


@pytest.mark.parametrize("spec", ["dp", ("dp",), None, 5], ids=repr)
def test_what_is_no_spec_is_refused(spec):
    assert refusal(sbp.from_partition_spec, spec, MESH, 2).startswith(
        f"{spec!r} is not a PartitionSpec.\n"
    )


@pytest.mark.parametrize("words", [5, None, sbp.B, PartitionSpec("dp")], ids=repr)
def test_what_is_no_words_is_refused(words):
    told = f"{words!r} is not words.\n"
    assert refusal(sbp.partition_spec, words, 2).startswith(told)
    assert refusal(sbp.named_sharding, MESH, words, 2).startswith(told)


@pytest.mark.parametrize("ndim", ["2", None, -1, True, 2.0], ids=repr)
def test_what_is_no_number_of_dims_is_refused(ndim):
    told = f"ndim={ndim!r} is not a number of dims.\n  It is how many dims the array has.\n"
    for call, *args in (
        (sbp.partition_spec, "dp: S(0)"), (sbp.named_sharding, MESH, "dp: S(0)"),
        (sbp.from_partition_spec, PartitionSpec("dp"), MESH),
    ):  # fmt: skip
        assert refusal(call, *args, ndim).startswith(told)
    assert sbp.partition_spec("dp: S(0)", np.int64(2)) == PartitionSpec("dp", None)
