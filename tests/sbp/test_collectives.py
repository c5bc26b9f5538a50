"""Audits of programs compiled here for 8 devices, and of plans that do not match their program."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from sbp.collectives import Collective, audit, ring_nbytes
from sbp.collectives.comparison import compare

ORDERS = {
    "in order": [0, 1, 2, 3, 4, 5, 6, 7],
    "transposed": [0, 4, 1, 5, 2, 6, 3, 7],
    "shuffled": [7, 3, 5, 1, 0, 2, 4, 6],
}


def device_mesh(sizes, order="in order"):
    devices = np.array(jax.devices())[ORDERS[order]].reshape(tuple(sizes.values()))
    return Mesh(devices, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def compiled(fn, *shapes, mesh, dtype=jnp.float32):
    whole = PartitionSpec()
    mapped = jax.shard_map(fn, mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False)
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    return jax.jit(mapped).lower(*arguments).compile()


@dataclass(frozen=True)
class Boxing:
    """A row of a plan, as far as an audit looks at it."""

    collective: str
    axes: tuple[str, ...]
    nbytes: float
    count: int = 1
    dtype: str = "float32"


@dataclass(frozen=True)
class FakePlan:
    """A plan, as far as an audit looks at it."""

    boxings: Sequence[Boxing]
    mesh_sizes: Mapping[str, int]


A_B = {"a": 2, "b": 4}
CUBE = {"a": 2, "b": 2, "c": 2}


def all_gather(x, axes):
    return lax.all_gather(x, axes, tiled=True)


def all_gather_last(x, axes):
    return lax.all_gather(x, axes, axis=1)


def reduce_scatter(x, axes):
    return lax.psum_scatter(x, axes, tiled=True)


def all_to_all(x, axes):
    return lax.all_to_all(x, axes, 0, 1, tiled=True)


KINDS = {
    lax.psum: "all-reduce",
    lax.pmax: "all-reduce",
    lax.pmin: "all-reduce",
    all_gather: "all-gather",
    all_gather_last: "all-gather",
    reduce_scatter: "reduce-scatter",
    all_to_all: "all-to-all",
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("axes", ["a", "b", ("a", "b"), ("b", "a")])
@pytest.mark.parametrize("fn", [lax.psum, all_gather, reduce_scatter, all_to_all])
def test_every_collective_on_every_order_of_devices(fn, axes, order):
    program = compiled(lambda x: fn(x, axes), (8, 16), mesh=device_mesh(A_B, order))
    (row,) = audit(program, mesh=A_B).collectives
    named = tuple(axis for axis in A_B if axis in axes)
    size = {"a": 2, "b": 4}.get(axes, 8)
    assert (row.kind, row.axes, row.dtype) == (KINDS[fn], named, "float32")
    assert row.nbytes == ring_nbytes(KINDS[fn], size, 8 * 16 * 4)
    assert (row.count, row.count_known) == (1, True)


@pytest.mark.parametrize("axes", ["a", "c", ("a", "c"), ("c", "b"), ("c", "a", "b")])
@pytest.mark.parametrize("fn", [lax.pmax, lax.pmin, all_gather_last])
def test_sets_of_axes_of_a_cube(fn, axes):
    program = compiled(lambda x: fn(x, axes), (8, 16), mesh=device_mesh(CUBE))
    (row,) = audit(program, mesh=device_mesh(CUBE)).collectives
    assert row.axes == tuple(axis for axis in CUBE if axis in axes)
    assert row.nbytes == ring_nbytes(KINDS[fn], 2 ** len(axes), 512)


def test_bytes_of_one_device_by_hand():
    # 512 bytes on each of 4 devices
    assert ring_nbytes("all-gather", 4, 512) == 3 / 4 * 2048
    assert ring_nbytes("reduce-scatter", 4, 512) == 3 / 4 * 512
    assert ring_nbytes("all-reduce", 4, 512) == 2 * 3 / 4 * 512
    assert ring_nbytes("all-to-all", 4, 512) == 3 / 16 * 2048
    assert ring_nbytes("collective-permute", 2, 512) == 512


@pytest.mark.parametrize(
    ("axes", "pairs", "named"),
    [
        ("b", [(0, 1), (1, 2), (2, 3), (3, 0)], ("b",)),
        ("a", [(0, 1)], ("a",)),
        (("a", "b"), [(0, 1), (5, 5)], ("b",)),
        (("a", "b"), [(k, (k * 2) % 7) for k in range(7)], ("a", "b")),
    ],
)
def test_permutes_cost_the_device_that_sends(axes, pairs, named):
    program = compiled(lambda x: lax.ppermute(x, axes, pairs), (8, 16), mesh=device_mesh(A_B))
    (row,) = audit(program, mesh=A_B).collectives
    assert (row.kind, row.axes, row.nbytes) == ("collective-permute", named, 512)


def test_an_axis_of_one_device_does_not_communicate():
    mesh = device_mesh({"a": 1, "b": 8})
    program = compiled(lambda x: lax.psum(lax.psum(x, "a"), "b"), (8, 16), mesh=mesh)
    (row,) = audit(program, mesh=mesh).collectives
    assert row.axes == ("b",)
    plan = FakePlan(
        [Boxing("all-reduce", ("a",), 0), Boxing("all-reduce", ("a", "b"), 896)], mesh.shape
    )
    assert audit(program, plan).unplanned == audit(program, plan).missing == ()


def sine_sum(x, _=None):
    return lax.psum(jnp.sin(x), "b"), None


@pytest.mark.parametrize("length", [1, 2, 3, 20])
def test_scans_multiply(length):
    program = compiled(
        lambda x: lax.scan(sine_sum, x, None, length=length)[0], (8, 16), mesh=device_mesh(A_B)
    )
    audited = audit(program, mesh=A_B)
    assert [(row.count, row.count_known) for row in audited.collectives] == [(length, True)]
    assert audited.total_nbytes == length * 768


def nested(x):
    def outer(_, x):
        return lax.psum(lax.fori_loop(0, 5, lambda _, y: sine_sum(y)[0], x), "a")

    return lax.fori_loop(3, 10, outer, x)


def test_nested_loops_multiply_with_and_without_a_note_of_the_trip_count():
    text = compiled(nested, (8, 16), mesh=device_mesh(A_B)).as_text() or ""
    bare = text.replace("known_trip_count", "unread")
    assert bare != text
    for program in (text, bare):
        rows = audit(program, mesh=A_B).collectives
        assert sorted((row.axes, row.count) for row in rows) == [(("a",), 7), (("b",), 35)]
        assert all(row.count_known for row in rows)


def test_an_endless_loop_counts_once_and_its_condition_too():
    def fn(x):
        return lax.while_loop(lambda x: lax.pmax(x, "a")[0, 0] < 9, lambda x: sine_sum(x)[0], x)

    audited = audit(compiled(fn, (8, 16), mesh=device_mesh(A_B)), mesh=A_B)
    assert {(row.axes, row.count, row.count_known) for row in audited.collectives} == {
        (("a",), 1, False),
        (("b",), 1, False),
    }
    assert "unknown number of times" in str(audited)


def test_a_known_loop_in_an_endless_one_is_not_known():
    def fn(x):
        return lax.while_loop(
            lambda x: x[0, 0] < 9, lambda x: lax.scan(sine_sum, x, None, length=5)[0], x
        )

    (row,) = audit(compiled(fn, (8, 16), mesh=device_mesh(A_B)), mesh=A_B).collectives
    assert (row.count, row.count_known) == (5, False)


def branching(x, choice):
    branches = [
        lambda x: x + 1,
        lambda x: lax.psum(jnp.sin(x), ("a", "b")) * 2,
        lambda x: lax.psum(x, "b"),
    ]
    return lax.switch(choice[0, 0].astype(jnp.int32), branches, x)


def test_a_conditional_is_charged_for_its_dearest_branch():
    program = compiled(branching, (8, 16), (1, 1), mesh=device_mesh(A_B))
    audited = audit(program, mesh=A_B)
    assert {(row.axes, row.charged) for row in audited.collectives} == {
        (("a", "b"), True),
        (("b",), False),
    }
    assert audited.total_nbytes == 896
    rows = [Boxing("all-reduce", ("a", "b"), 896), Boxing("all-reduce", ("b",), 768)]
    assert audit(program, FakePlan(rows, A_B)).unplanned == ()
    assert len(audit(program, FakePlan(rows[:1], A_B)).unplanned) == 1


def test_groups_that_jit_chooses_itself():
    mesh = device_mesh(A_B)

    def reshard(src, dst):
        fn = jax.jit(
            lambda x: x * 1,
            in_shardings=NamedSharding(mesh, src),
            out_shardings=NamedSharding(mesh, dst),
        )
        argument = jax.ShapeDtypeStruct((16, 16), jnp.float32)
        return audit(fn.lower(argument).compile(), mesh=mesh).collectives

    # The text has device_ids=(...) on jaxlib 0.10 and the mesh of the program on 0.12.
    (row,) = reshard(PartitionSpec(("b", "a")), PartitionSpec())
    assert (row.kind, row.axes, row.nbytes) == ("all-gather", ("a", "b"), 896)
    assert row.groups == ((0, 4, 1, 5, 2, 6, 3, 7),)
    # Half of axis b: [4,2]<=[2,2,2]T(0,2,1), and a sub-axis.
    permute, gather = reshard(PartitionSpec("b"), PartitionSpec("a"))
    assert permute.axes == ("a", "b")
    assert (gather.axes, gather.groups) == (None, ((0, 2), (1, 3), (4, 6), (5, 7)))
    exchange, _ = reshard(PartitionSpec("a", "b"), PartitionSpec("b", "a"))
    assert (exchange.kind, exchange.axes) == ("all-to-all", None)
    assert set(map(frozenset, exchange.groups)) == {
        frozenset(pair) for pair in ((0, 1), (2, 3), (4, 5), (6, 7))
    }


def two_sums(x, y):
    return lax.psum(x, "a"), reduce_scatter(y, "b")


TWO_SUMS = [Boxing("all-reduce", ("a",), 512), Boxing("reduce-scatter", ("b",), 96)]


def test_a_program_that_does_what_the_plan_says():
    program = compiled(two_sums, (8, 16), (8, 4), mesh=device_mesh(A_B))
    rows = [*TWO_SUMS, Boxing("slice", ("a",), 0), Boxing("mask", ("b",), 64)]
    audited = audit(program, FakePlan(rows, A_B))
    assert audited.checked
    assert (audited.unplanned, audited.missing, audited.merged) == ((), (), ())


PLANTED = {
    "no row": (TWO_SUMS[:1], "reduce-scatter over b: planned 0 bytes in 0, compiled 96 in 1", 0),
    "another kind": (
        [TWO_SUMS[0], Boxing("all-reduce", ("b",), 96)],
        "reduce-scatter over b: planned 0 bytes in 0, compiled 96 in 1",
        1,
    ),
    "another axis": (
        [TWO_SUMS[1], Boxing("all-reduce", ("b",), 512)],
        "all-reduce over a: planned 0 bytes in 0, compiled 512 in 1",
        1,
    ),
    "fewer bytes": (
        [TWO_SUMS[0], Boxing("reduce-scatter", ("b",), 48)],
        "reduce-scatter over b: planned 48 bytes in 1, compiled 96 in 1",
        0,
    ),
    "narrower in the plan than float16 explains": (
        [TWO_SUMS[0], Boxing("reduce-scatter", ("b",), 24, dtype="float16")],
        "reduce-scatter over b: planned 24 bytes in 1, compiled 72 in 1",
        0,
    ),
}


@pytest.mark.parametrize(("rows", "text", "num_missing"), PLANTED.values(), ids=PLANTED)
def test_planted_mismatches_are_unplanned(rows, text, num_missing):
    program = compiled(two_sums, (8, 16), (8, 4), mesh=device_mesh(A_B))
    audited = audit(program, FakePlan(rows, A_B))
    assert [str(difference) for difference in audited.unplanned] == [text]
    assert len(audited.missing) == num_missing


@pytest.mark.parametrize("fn", [lax.psum, lax.pmax, all_gather, reduce_scatter, all_to_all])
def test_bfloat16_counts_as_planned_where_the_backend_widens_it(fn):
    program = compiled(lambda x: fn(x, "b"), (8, 16), mesh=device_mesh(A_B), dtype=jnp.bfloat16)
    nbytes = ring_nbytes(KINDS[fn], 4, 256)
    row = Boxing(KINDS[fn], ("b",), nbytes, dtype="bfloat16")
    audited = audit(program, FakePlan([row], A_B))
    assert (audited.unplanned, audited.missing, audited.merged) == ((), (), ())
    wide = replace(row, dtype="float32")
    assert audit(program, FakePlan([wide], A_B)).unplanned


def test_narrow_integers_travel_as_they_are():
    for dtype in (jnp.bool_, jnp.int8, jnp.float16):
        program = compiled(
            lambda x: all_gather(x, "b"), (8, 16), mesh=device_mesh(A_B), dtype=dtype
        )
        row = Boxing("all-gather", ("b",), 384 * dtype.dtype.itemsize, dtype=dtype.dtype.name)
        assert audit(program, FakePlan([row], A_B)).unplanned == ()


def test_combined_collectives_are_listed_as_merged():
    program = compiled(
        lambda x, y: (lax.psum(x, "a"), lax.psum(y, "a")), (8, 16), (4, 4), mesh=device_mesh(A_B)
    )
    rows = [Boxing("all-reduce", ("a",), 512), Boxing("all-reduce", ("a",), 64)]
    audited = audit(program, FakePlan(rows, A_B))
    assert (audited.unplanned, audited.missing) == ((), ())
    assert [str(difference) for difference in audited.merged] == [
        "all-reduce over a: planned 576 bytes in 2, compiled 576 in 1 "
        "(XLA combined several into one operation)"
    ]


def test_equal_collectives_that_run_once_are_merged():
    program = compiled(
        lambda x: jnp.sin(lax.psum(x, "b")) @ lax.psum(x, "b").T, (8, 16), mesh=device_mesh(A_B)
    )
    audited = audit(program, FakePlan([Boxing("all-reduce", ("b",), 768)] * 2, A_B))
    assert (audited.unplanned, audited.missing) == ((), ())
    assert [difference.compiled_nbytes for difference in audited.merged] == [768]


def test_a_collective_moved_out_of_its_loop_is_merged():
    def fn(x, w):
        return lax.scan(lambda x, _: (jnp.sin(x @ all_gather(w, "b")), None), x, None, length=6)[0]

    program = compiled(fn, (8, 16), (4, 16), mesh=device_mesh(A_B))
    (row,) = audit(program, mesh=A_B).collectives
    assert (row.count, row.nbytes) == (1, 768)
    audited = audit(program, FakePlan([Boxing("all-gather", ("b",), 768, 6)], A_B))
    assert (audited.unplanned, audited.missing) == ((), ())
    assert [(row.count, row.note) for row in audited.merged] == [
        (1, "XLA moved it out of a loop, or unrolled or peeled the loop"),
        (6, "XLA moved it out of a loop, or unrolled or peeled the loop"),
    ]
    smaller = FakePlan([Boxing("all-gather", ("b",), 760, 6)], A_B)
    assert len(audit(program, smaller).unplanned) == 1


def test_an_unrolled_loop_is_merged():
    program = compiled(
        lambda x: lax.scan(sine_sum, x, None, length=7, unroll=2)[0],
        (8, 16),
        mesh=device_mesh(A_B),
    )
    audited = audit(program, FakePlan([Boxing("all-reduce", ("b",), 768, 7)], A_B))
    assert {row.count for row in audited.collectives} == {1, 3}
    assert (audited.unplanned, audited.missing) == ((), ())
    assert {row.count for row in audited.merged} == {1, 3, 7}
    shorter = FakePlan([Boxing("all-reduce", ("b",), 768, 6)], A_B)
    assert audit(program, shorter).unplanned


FOLDED = """HloModule jit_f, is_scheduled=true, num_partitions=8

ENTRY %main.0_spmd (param.1: f32[4,4]) -> f32[4,4] {
  %param.1 = f32[4,4]{1,0} parameter(0)
  %all-reduce-start = f32[4,4]{1,0} all-reduce-start(%param.1), channel_id=2, \
replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true, to_apply=%region_0.0, \
metadata={op_name="jit(f)/psum" source_file="/home/me/models/gpt.py" source_line=88}
  ROOT %all-reduce-done = f32[4,4]{1,0} all-reduce-done(%all-reduce-start)
}
"""


def test_folded_all_reduces_are_merged():
    rows = [Boxing("all-reduce", ("a",), 64), Boxing("all-reduce", ("b",), 96)]
    audited = audit(FOLDED, FakePlan(rows, A_B))
    assert (audited.unplanned, audited.missing) == ((), ())
    assert {row.note for row in audited.merged} == {
        "XLA folded successive all-reduces into one over all their axes"
    }
    assert len(audit(FOLDED, FakePlan(rows[:1], A_B)).unplanned) == 1


def differences(compiled_rows, planned_rows):
    rows = [
        Collective(row.collective, (), row.axes, row.dtype, row.nbytes, row.count)
        for row in compiled_rows
    ]
    return compare(rows, planned_rows, A_B)


def test_a_rewrite_explains_no_more_than_it_can():
    gather = Boxing("all-gather", ("b",), 100)
    reduce = Boxing("all-reduce", ("a", "b"), 112)
    # one loop, two places it was moved to
    unplanned, missing, merged = differences(
        [gather, replace(gather, count=2)], [replace(gather, count=6)]
    )
    assert [row.count for row in unplanned] == [2]
    assert not missing
    assert [row.count for row in merged] == [1, 6]
    # into a loop
    unplanned, missing, _ = differences(
        [replace(gather, nbytes=60, count=6)], [replace(gather, count=2)]
    )
    assert (len(unplanned), len(missing)) == (1, 1)
    # folded over axes that were reduced elsewhere
    parts = [Boxing("all-reduce", ("a",), 64, 6), Boxing("all-reduce", ("b",), 96, 6)]
    assert len(differences([reduce], parts)[0]) == 1
    assert not differences([replace(reduce, count=6)], parts)[0]


def test_a_plan_may_round_its_rows_up():
    exact = Boxing("all-reduce", ("a", "b"), 3.5)
    rounded = replace(exact, nbytes=4)
    assert differences([exact] * 9, [rounded] * 9) == ((), (), ())
    assert len(differences([rounded] * 10, [exact] * 10)[0]) == 1
    assert len(differences([exact] * 8, [rounded] * 10)[2]) == 1


def test_widened_bytes_stand_for_one_dtype_only():
    planned = [Boxing("all-reduce", ("b",), 100, dtype=dtype) for dtype in ("bfloat16", "float16")]
    unplanned, missing, merged = differences([Boxing("all-reduce", ("b",), 200)], planned)
    assert (unplanned, missing) == ((), ())
    assert [row.compiled_nbytes for row in merged] == [100]


def test_the_printed_table():
    rows = [Boxing("all-reduce", ("a",), 64), Boxing("all-gather", ("b",), 1000, 12)]
    assert str(audit(FOLDED, FakePlan(rows, A_B))) == (
        "plan       collective  over  dtype    ops  bytes  times  bytes per call  source\n"
        "unplanned  all-reduce  a,b   float32    1    112      1             112  "
        "models/gpt.py:88\n"
        "1 collective, 112 bytes per device and call\n"
        "against the plan: 1 unplanned, 2 missing, 0 merged\n"
        "  unplanned: all-reduce over a,b: planned 0 bytes in 0, compiled 112 in 1, "
        "at models/gpt.py:88\n"
        "  missing: all-reduce over a: planned 64 bytes in 1, compiled 0 in 0\n"
        "  missing: all-gather over b x 12: planned 1,000 bytes in 1, compiled 0 in 0"
    )


def test_what_is_not_planned_is_printed_first():
    def both(x):
        return lax.psum(x, "a"), lax.all_gather(x, "b", tiled=True)

    program = compiled(both, (64, 16), mesh=device_mesh(A_B))
    gather = Boxing("all-gather", ("b",), 3 * 4096)
    rows = str(audited := audit(program, FakePlan([gather], A_B))).splitlines()
    assert [row.split()[:3] for row in rows[1:3]] == [
        ["unplanned", "all-reduce", "a"],
        ["planned", "all-gather", "b"],
    ]
    assert sum(row.nbytes for row in audited.collectives if row.kind == "all-reduce") < 3 * 4096
    (source,) = audited.unplanned[0].sources
    line = both.__code__.co_firstlineno + 1
    assert source.endswith(f"tests/sbp/test_collectives.py:{line}")
    assert rows[-1].endswith(f", at sbp/test_collectives.py:{line}")
    without_plan = str(audit(program, mesh=A_B)).splitlines()
    assert [row.split()[0] for row in without_plan[1:3]] == ["all-gather", "all-reduce"]


def test_groups_without_a_mesh_are_printed_as_devices():
    audited = audit(FOLDED.replace("{{0,1,2,3,4,5,6,7}}", "{{0,3},{1,2},{4,6},{5,7}}"))
    assert audited.collectives[0].axes is None
    assert "{0,3},{1,2},..." in str(audited)


def test_a_program_without_collectives_prints_a_verdict():
    program = jax.jit(jnp.sin).lower(jax.ShapeDtypeStruct((4,), jnp.float32)).compile()
    audited = audit(program, FakePlan([], {"a": 1}))
    assert str(audited) == (
        "0 collectives, 0 bytes per device and call\n"
        "against the plan: 0 unplanned, 0 missing, 0 merged"
    )
