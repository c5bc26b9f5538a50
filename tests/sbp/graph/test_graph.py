"""The flat graph: who shares a choice, who shares a boxing, and how often things happen."""

import dataclasses
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh

import sbp
from sbp.algebra import B, Split
from sbp.cost_model import CostModel
from sbp.graph import Boundary, Mesh, Tables, build_graph, connect
from sbp.hardware import CPU
from sbp.tracing import trace
from tests.one_device import MESH, check, whole

STRUCT = jax.ShapeDtypeStruct((8, 8), np.float32)
X, W = whole(8, 8), whole(8, 8, seed=1)


def graph_of(fn, *structs, ties=None):
    traced = trace(lambda *xs: jax.tree.leaves(fn(*xs)), structs)
    count = len(traced.block.outputs)
    boundary = Boundary(
        tuple(f"x{k}" for k in range(len(structs))), tuple(f"y{k}" for k in range(count)),
        (None,) * len(structs), (None,) * count, ties or {},
    )  # fmt: skip
    mesh = Mesh(("dp", "tp"), (2, 4))
    return traced, build_graph(traced, mesh, CostModel(CPU, mesh.sizes), boundary)


def sent(fn, *args, mesh=MESH, **options):
    """Collectives of a plan: kind, array, times."""
    plan = sbp.parallelize(fn, mesh=mesh, **options).plan(*args)
    return [(row.collective, row.value_type, row.count) for row in plan.boxings if not row.is_local]


def test_equal_calls_share_one_domain_and_one_cost():
    def fn(x, w):
        for _ in range(3):
            x = jnp.sin(x @ w)
        return x * 2, x * 3

    _, graph = graph_of(fn, STRUCT, STRUCT)
    by_name = {}
    for node in graph.nodes:
        by_name.setdefault(node.name, []).append(node)
    for name, count in [("dot_general", 3), ("sin", 3), ("mul", 2)]:
        nodes = by_name[name]
        assert len(nodes) == count
        assert len({id(node.domain) for node in nodes}) == 1


def test_slices_and_pads_share_one_domain_wherever_they_start():
    def fn(x):
        parts = [lax.slice_in_dim(x, k, k + 2, axis=1) for k in range(3)]
        wide = [jnp.pad(x, ((0, 0), (k, 2 - k))) for k in range(3)]
        return sum(parts), sum(wide), lax.slice_in_dim(x, 0, 8, 2), lax.slice_in_dim(x, 0, 2)

    _, graph = graph_of(fn, STRUCT)
    for name, count, kinds in [("slice", 5, 3), ("pad", 3, 1)]:
        domains = [id(node.domain) for node in graph.nodes if node.name == name]
        assert (len(domains), len(set(domains))) == (count, kinds)
        assert len(set(domains[:3])) == 1


def test_a_bound_says_where_it_leaves_boxings_out(monkeypatch):
    def fn(x):
        return jnp.sin(x).sum(0), jnp.cos(x).sum(1)

    everything = sbp.parallelize(fn, mesh=MESH).plan(X)
    assert "simple boxings" not in everything.method
    monkeypatch.setattr("sbp.graph.boxings.MAX_HUB_LABELS", 12)
    limited = sbp.parallelize(fn, mesh=MESH, search="optimal").plan(X)
    assert limited.method.endswith("; readers of 1 values share simple boxings only")


def test_a_kernel_takes_its_floor_each_time_and_a_fused_equation_none():
    def fn(x, w):
        x, _ = lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=5)
        return jnp.sort(x * 2).sum()

    slow = dataclasses.replace(CPU, device=dataclasses.replace(CPU.device, kernel_floor_seconds=1))
    plan = sbp.parallelize(fn, mesh=MESH, hardware=slow).plan(X, W)
    floors = {row.primitive: round(row.seconds) for row in plan.equations}
    assert floors == {"dot_general": 1, "tanh": 0, "mul": 0, "sort": 1, "reduce_sum": 1}
    assert round(plan.compute_seconds) == round(plan.lower_bound_seconds) == 5 + 1 + 1


def test_matrices_of_equal_flows_are_one():
    def fn(x):
        for _ in range(4):
            x = jnp.sin(jnp.cos(x))
        return x

    _, graph = graph_of(fn, STRUCT)
    tables = Tables(CostModel(CPU, (2, 4)))
    boxing = connect(graph, tables)
    assert len(boxing.problem.edges) > 8
    assert len(tables._matrices) < len(boxing.problem.edges)


def test_ties_share_one_node():
    def update(w, g):
        return w - g, jnp.sum(g)

    _, free = graph_of(update, STRUCT, STRUCT)
    _, tied = graph_of(update, STRUCT, STRUCT, ties={0: 0})
    assert len(tied.nodes) == len(free.nodes) - 1
    assert tied.nodes_of[None, "result", 0] == tied.nodes_of[None, "argument", 0]
    assert free.nodes_of[None, "result", 0] != free.nodes_of[None, "argument", 0]


def test_trip_counts_multiply():
    def fn(x):
        def outer(c, _):
            inner = lax.scan(lambda d, __: (jnp.sin(d), None), c, None, length=3)[0]
            return jnp.cos(inner), None

        y = lax.scan(outer, x, None, length=5)[0]
        return lax.while_loop(lambda c: c[0, 0] < 0, jnp.tan, y)

    _, graph = graph_of(fn, STRUCT)
    counts = {node.name: node.count for node in graph.nodes}
    assert (counts["sin"], counts["cos"], counts["tan"]) == (15, 5, 1)
    costs = {node.name: node.costs for node in graph.nodes}
    np.testing.assert_array_equal(costs["sin"] / 15, costs["cos"] / 5)


def test_what_flows_into_a_loop_is_written_outside_and_read_by_the_trip():
    def fn(x, w):
        return lax.scan(lambda c, row: (c + w + row[None], c[0]), x, x, length=8)

    traced, graph = graph_of(fn, STRUCT, STRUCT)
    (scan,) = [e for e in traced.block.equations if e.name == "scan"]
    (body,) = scan.bodies
    assert [graph.writers[value].count for value in body.inputs] == [8, 8, 8]
    assert [graph.writers[value].count for value in scan.outputs] == [1, 1]
    for role in ("const", "carry", "slice"):
        node = graph.nodes_of[scan, role, 0]
        reads = [p.count for ports in graph.readers.values() for p in ports if p.node == node]
        assert sorted(reads) == ([1, 8] if role == "carry" else [1])


def test_a_loop_that_never_runs_costs_nothing():
    def fn(x):
        return lax.scan(lambda c, _: (c @ c, None), x, None, length=0)[0]

    _, graph = graph_of(fn, STRUCT)
    (node,) = [node for node in graph.nodes if node.name == "dot_general"]
    assert not node.costs.any()


def test_an_array_read_twice_whole_is_gathered_once():
    def twice(x):
        # Neither runs on slices of its only dim, and order matters to both.
        return jnp.sort(x), jnp.flip(lax.cumsum(x))

    x = whole(64)
    options = {"in_sbp": "dp: S(0), tp: B", "out_sbp": "dp: B, tp: B"}
    assert sent(twice, x, **options) == [("all-gather", "f32[64@dp]", 1)]
    check(twice, x, **options)


def test_a_reader_that_wants_what_was_written_pays_nothing_for_the_shared_boxing():
    def fn(x):
        return jnp.sort(x), x + 1

    x = whole(64)
    options = {"in_sbp": "dp: S(0), tp: B", "out_sbp": ("dp: B, tp: B", "dp: S(0), tp: B")}
    assert sent(fn, x, **options) == [("all-gather", "f32[64@dp]", 1)]
    check(fn, x, **options)


SPLIT, WHOLE = {"dp": sbp.S(0), "tp": sbp.B}, {"dp": sbp.B, "tp": sbp.B}


def test_a_reader_takes_the_shared_words_where_they_are_nearer():
    def fn(x):
        return sbp.pin(x, **WHOLE) * 2, sbp.pin(x, dp=sbp.S(1), tp=sbp.B) * 3

    options = {"in_sbp": "dp: S(0), tp: B", "out_sbp": ("dp: B, tp: B", "dp: S(1), tp: B")}
    # The second takes its slice of what was gathered for the first.
    assert sent(fn, X, **options) == [("all-gather", "f32[8@dp,8]", 1)]
    step = check(fn, X, **options)
    plan = step.plan(X)
    assert abs(plan.cost - plan.cost_seconds * 1e12) <= len(plan.boxings) + len(plan.equations)
    assert not sbp.audit(step.lower(X).compile(), plan).unplanned


def in_loop(**words):
    """A loop over a constant that is pinned in its body, before it is used whole."""

    def fn(x, w):
        def body(c, _):
            held = sbp.pin(w, **words) if words else w
            return sbp.pin(c + sbp.pin(held, **WHOLE), **WHOLE), None

        return lax.scan(body, x, None, length=3)[0]

    return fn


@pytest.mark.parametrize(("words", "times"), [({}, 1), (SPLIT, 3)])
def test_a_constant_is_gathered_outside_or_inside_a_loop(words, times):
    options = {"in_sbp": {"w": "dp: S(0), tp: B"}, "out_sbp": "dp: B, tp: B"}
    found = sent(in_loop(**words), X, W, **options)
    assert [row for row in found if row[0] == "all-gather"] == [
        ("all-gather", "f32[8@dp,8]", times)
    ]
    step = check(in_loop(**words), X, W, **options)
    audited = sbp.audit(step.lower(X, W).compile(), step.plan(X, W))
    assert not audited.unplanned
    assert not audited.missing


@pytest.mark.parametrize(("words", "array", "times"), [
    ({}, "f32[3,8@dp,8]", 1), (SPLIT, "f32[8@dp,8]", 3),
])  # fmt: skip
def test_stacked_inputs_are_gathered_outside_or_inside_a_loop(words, array, times):
    def fn(xs, c):
        def body(c, x):
            held = sbp.pin(x, **words) if words else x
            return sbp.pin(c + sbp.pin(held, **WHOLE), **WHOLE), None

        return lax.scan(body, c, xs)[0]

    xs = whole(3, 8, 8)
    options = {"in_sbp": {"xs": "dp: S(1), tp: B"}, "out_sbp": "dp: B, tp: B"}
    found = sent(fn, xs, X, **options)
    # All at once or slice by slice sends the same bytes; latency decides.
    assert found in ([("all-gather", array, times)], [("all-gather", "f32[8@dp,8]", 3)])
    check(fn, xs, X, **options)


def test_a_stacked_dim_of_a_scan_is_not_split():
    traced, graph = graph_of(lambda xs: lax.scan(lambda c, x: (c + x, c), xs[0], xs), STRUCT)
    (scan,) = [e for e in traced.block.equations if e.name == "scan"]
    assert scan.bodies[0].inputs[1].type.ndim == 1
    (reader,) = [
        port
        for port in graph.readers[scan.inputs[1]]
        if port.node == graph.nodes_of[scan, "slice", 0]
    ]
    assert {word for words in reader.words for word in words} == {B, sbp.P, Split(1)}
    writer = graph.writers[scan.outputs[1]]
    assert Split(0) not in {word for words in writer.words for word in words}


def test_predicates_are_whole():
    def fn(x):
        y = lax.while_loop(lambda c: jnp.all(c < 9), lambda c: c + 1, x)
        return lax.cond(jnp.any(y > 0), jnp.sin, jnp.cos, y)

    _, graph = graph_of(fn, STRUCT)
    predicates = [node for node in graph.nodes if node.name == "predicate"]
    assert len(predicates) == 2
    assert all(node.domain.labels == ((B, B),) for node in predicates)
    check(fn, X, in_sbp="dp: S(0), tp: S(1)")


def test_arguments_and_results_are_not_partial_unless_asked():
    _, graph = graph_of(lambda x: jnp.sum(x, 0), STRUCT)
    for role in ("argument", "result"):
        labels = graph.nodes[graph.nodes_of[None, role, 0]].domain.labels
        assert sbp.P not in {word for words in labels for word in words}


def test_a_primitive_without_a_rule_is_noted_once_with_the_users_line():
    def fn(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return [jax.pure_callback(np.sin, shape, y) for y in (x, x * 2)][1]

    _, graph = graph_of(fn, STRUCT)
    (note,) = graph.notes
    assert note == (
        "pure_callback has no rule and runs replicated "
        f"({os.path.relpath(__file__)}:{fn.__code__.co_firstlineno + 2})"
    )


def test_axes_of_one_device_have_one_word():
    mesh = jax.make_mesh((2, 1), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    plan = sbp.parallelize(lambda x, w: x @ w, mesh=mesh).plan(X, W)
    assert {words["tp"] for _, words in (*plan.arguments, *plan.results)} == {B}
    check(lambda x, w: x @ w, X, W, mesh=mesh, in_sbp={"x": "tp: S(0)"})


def compute_seconds(fn):
    step = sbp.parallelize(fn, mesh=AbstractMesh((1,), ("dp",)), hardware="cpu")
    return step.plan(X, W).compute_seconds


@pytest.mark.parametrize("behind", [lambda y: jnp.sin(y) * 2, lambda y: y @ y, jnp.sort])
@pytest.mark.parametrize("before", [lambda x, w: x @ w, lambda x, w: x + w])
def test_what_is_pinned_costs_what_it_costs_without(before, behind):
    pinned = compute_seconds(lambda x, w: behind(sbp.pin(before(x, w), dp=sbp.B)))
    assert pinned == compute_seconds(lambda x, w: behind(before(x, w))) > 0


def test_a_barrier_is_written_and_read():
    through = compute_seconds(lambda x, w: lax.optimization_barrier(x + w) * 2)
    write_and_read = 2 * X.nbytes / CPU.device.memory_bandwidth
    assert through == pytest.approx(compute_seconds(lambda x, w: (x + w) * 2) + write_and_read)
