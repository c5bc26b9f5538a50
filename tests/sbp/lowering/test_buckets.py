"""Steps that share a collective give what they give one by one, in programs and by themselves."""

import collections
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

import flowjax
import sbp
from sbp.algebra import P_MAX, ArrayType, P, local_shape
from sbp.boxing import BoxingTable
from sbp.lowering.buckets import Load, run_bucket
from sbp.lowering.moves import run_step
from sbp.plan.ordering import bucket_key
from scripts.parity_cases import QUICK
from tests.one_device import assert_same, whole

MESHES = {"8": "dp=8", "2x4": "dp=2,tp=4"}
SHAPES = ((8, 16), (16, 8, 2))


def steps_by_key(sizes, dtype="float32"):
    """All steps of arrays of several shapes, sorted by what can share a collective."""
    found = collections.defaultdict(list)
    for shape in SHAPES:
        array = ArrayType(shape, np.dtype(dtype))
        for step in BoxingTable(array, sizes, {P}).steps():
            if not step.is_local:
                found[bucket_key(step, array, sizes)].append((array, step))
    return found


@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
def test_a_bucket_is_its_steps_made_one_by_one(mesh):
    mesh = flowjax.make_mesh(mesh)
    axes, sizes = mesh.axis_names, tuple(mesh.shape.values())
    groups = [[rows[0], rows[-1]] for rows in steps_by_key(sizes).values()]
    assert {rows[0][1].kind for rows in groups} >= {
        "all-gather", "reduce-scatter", "all-reduce", "all-to-all",
    }  # fmt: skip

    def differing():
        device = lax.axis_index(axes)
        counts = []
        for rows in groups:
            loads = []
            for number, (array, step) in enumerate(rows):
                shape = local_shape(array.shape, step.src, sizes)
                key = jax.random.fold_in(jax.random.key(number), device)
                x = jax.random.randint(key, shape, -99, 99).astype(array.dtype)
                loads.append(Load(x, (step,), array))
            joint = run_bucket(loads, axes, sizes)
            single = [run_step(load.x, load.step, load.array, axes, sizes) for load in loads]
            assert [load.x.shape for load in joint] == [x.shape for x in single]
            assert not any(load.steps for load in joint)
            counts += [jnp.sum(a.x != b) for a, b in zip(joint, single, strict=True)]
        return jnp.stack(counts)[None]

    specs = PartitionSpec(axes)
    program = jax.shard_map(differing, mesh=mesh, in_specs=(), out_specs=specs, check_vma=False)
    assert not np.any(np.asarray(jax.jit(program, compiler_options=QUICK)()))


def test_what_is_special_travels_alone():
    sizes = (8,)

    def keys(dtype, shape=(8, 8), partials=(P, P_MAX)):
        table = BoxingTable(ArrayType(shape, dtype), sizes, partials)
        return [
            (step, bucket_key(step, table.array, sizes))
            for step in table.steps()
            if not step.is_local
        ]

    assert {key for step, key in keys(np.dtype("float32")) if P_MAX in step.src} == {None}
    assert {key for _, key in keys(np.dtype("float32"), (8, 0))} == {None}
    assert {key for _, key in keys(jax.random.key(0).dtype, partials=())} == {None}
    assert None not in {key for step, key in keys(np.dtype("float32")) if P_MAX not in step.src}
    narrow = {key for _, key in keys(np.dtype("int16"))}
    assert not (narrow - {None}) & {key for _, key in keys(np.dtype("float32"))}


def test_weak_types_stay_weak():
    def fn(x):
        arrays = [x, jnp.ones((8, 8)), lax.full((8, 8), 1.5) * 2.0, x * 3]
        split = [sbp.pin(y, dp=sbp.S(0)) for y in arrays]
        return [sbp.pin(y * 2.0, dp=sbp.B) for y in split]

    x = whole(8, 8)
    assert [y.weak_type for y in map(jax.typeof, fn(x))] == [False, False, True, False]
    step = sbp.parallelize(fn, mesh=flowjax.make_mesh("dp=8"))
    assert_same(step(x), fn(x))


WORDS = {
    "8": ("dp: S(0)", "dp: S(1)", "dp: B"),
    "2x4": (
        "dp: S(0), tp: S(1)", "dp: S(1), tp: S(0)", "dp: S(0), tp: S(0)", "dp: B, tp: S(1)",
        "dp: S(0), tp: B", "dp: B, tp: B", "dp: S(1), tp: S(1)",
    ),
}  # fmt: skip


def pinned(x, text):
    return sbp.pin(x, **sbp.NdSbp.parse(text))


def random_program(name, seed):
    """Arrays pinned to random words, mixed, summed and pinned again, in a loop and outside."""
    rng = np.random.default_rng(seed)
    words = [str(w) for w in rng.choice(WORDS[name], 24)]

    def mix(xs, texts, mod):
        moved = [pinned(x, text) for x, text in zip(xs, texts, strict=True)]
        mixed = [a @ b % mod for a, b in itertools.pairwise([*moved, moved[0]])]
        return [pinned(x, text) for x, text in zip(mixed, reversed(texts), strict=True)]

    def fn(xs):
        xs = mix(xs, words[:4], 5)

        def body(carry, rows):
            total = sum(jnp.sum(row) for row in rows)
            carry = mix([c + row % 3 for c, row in zip(carry, rows, strict=True)], words[4:8], 3)
            return carry, (mix(rows, words[8:12], 4), total)

        stacks = [jnp.stack([x, x + 1, x * 2]) for x in xs]
        carry, (ys, totals) = lax.scan(body, xs, stacks)
        return mix(carry, words[12:16], 7), ys, jnp.sum(totals), [jnp.sum(x, 0) for x in xs]

    return fn


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", MESHES)
def test_random_programs_give_what_one_device_gives(name, seed, monkeypatch):
    args = [whole(8, 8, seed=seed + k) for k in range(4)]
    fn = random_program(name, seed)
    expected = fn(args)
    for nbytes in (30 * 2**20, 200):
        for limit in ("BUCKET_NBYTES", "ALL_REDUCE_NBYTES"):
            monkeypatch.setattr(f"sbp.plan.scheduling.{limit}", nbytes)
        step = sbp.parallelize(fn, mesh=flowjax.make_mesh(MESHES[name]))
        compiled = step.lower(args).compile(QUICK)
        assert_same(compiled(step.place(args)), expected)
        found = sbp.audit(compiled, step.plan(args))
        assert not found.unplanned
        assert not found.missing


def counts(step, *args):
    """Collectives of the compiled program: (kind, executions) -> how many there are."""
    found = sbp.audit(step.lower(*args).compile(QUICK), step.plan(*args))
    assert not found.unplanned
    assert not found.missing
    return collections.Counter((row.kind, row.count) for row in found.collectives)


LAYERS = 4
WEIGHTS = [whole(16, 16, seed=k) for k in range(LAYERS)]
BATCH = whole(64, 16, seed=9)


def train(weights, batch):
    """One step of gradient descent and momentum on whole numbers."""

    def loss(weights):
        x = batch
        for w in weights:
            x = jnp.maximum(x @ w, 0) % 5
        return jnp.sum(x)

    value, gradients = jax.value_and_grad(loss)(weights)
    return [w - g for w, g in zip(weights, gradients, strict=True)], gradients, value


TRAIN = functools.partial(sbp.parallelize, train, mesh=flowjax.make_mesh("dp=8"))
WHOLE, SPLIT = ["dp: B"] * LAYERS, [f"dp: S({k % 2})" for k in range(LAYERS)]


def test_data_parallelism_reduces_once():
    def fn(gains, batch):
        def loss(gains):
            x = batch
            for gain in gains:
                x = jnp.maximum(x + gain[None], 0) % 7
            return jnp.sum(x)

        return jax.value_and_grad(loss)(gains)

    step = sbp.parallelize(
        fn, mesh=flowjax.make_mesh("dp=8"), in_sbp={"gains": "dp: B", "batch": "dp: S(0)"},
        out_sbp="dp: B",
    )  # fmt: skip
    gains = [w[0] for w in WEIGHTS]
    assert_same(step(gains, BATCH), fn(gains, BATCH))
    assert counts(step, gains, BATCH) == {("all-reduce", 1): 1}


def test_split_parameters_are_gathered_once_and_reduced_once():
    step = TRAIN(in_sbp={"weights": SPLIT, "batch": "dp: S(0)"}, out_sbp=(SPLIT, SPLIT, "dp: B"))
    assert_same(step(WEIGHTS, BATCH), train(WEIGHTS, BATCH))
    assert counts(step, WEIGHTS, BATCH) == {
        ("all-gather", 1): 1, ("reduce-scatter", 1): 1, ("all-reduce", 1): 1,
    }  # fmt: skip


def test_gathered_parts_are_taken_apart_at_once():
    step = TRAIN(in_sbp={"weights": SPLIT, "batch": "dp: S(0)"}, out_sbp=(SPLIT, SPLIT, "dp: B"))
    text = step.lower(WEIGHTS, BATCH).as_text()
    assert text.count("stablehlo.all_gather") == text.count("stablehlo.optimization_barrier") == 1


def test_split_gradients_of_whole_parameters_are_cut_from_whole_ones():
    step = TRAIN(in_sbp={"weights": WHOLE, "batch": "dp: S(0)"}, out_sbp=(WHOLE, SPLIT, "dp: B"))
    assert_same(step(WEIGHTS, BATCH), train(WEIGHTS, BATCH))
    # Scattering them and gathering the new parameters sends as much, in two collectives.
    assert counts(step, WEIGHTS, BATCH) == {("all-reduce", 1): 1}


def test_a_loop_gathers_once_an_iteration():
    def fn(stacks, x):
        def layer(x, ws):
            for k, w in enumerate(ws):
                w = sbp.pin(sbp.pin(w * 2, dp=sbp.S(k % 2)), dp=sbp.B)
                x = sbp.pin(jnp.maximum(x @ w, 0) % 5, dp=sbp.S(0))
            return x, None

        return lax.scan(layer, x, stacks)[0]

    stacks = [np.stack(WEIGHTS)] * 3
    words = ["dp: S(1)", "dp: S(2)", "dp: S(1)"]
    step = sbp.parallelize(
        fn, mesh=flowjax.make_mesh("dp=8"), in_sbp={"stacks": words, "x": "dp: S(0)"},
        out_sbp="dp: S(0)",
    )  # fmt: skip
    assert_same(step(stacks, BATCH), fn(stacks, BATCH))
    assert counts(step, stacks, BATCH) == {("all-gather", LAYERS): 1}


@pytest.mark.parametrize("words", ["dp: B", "dp: S(1)"])
def test_gradients_that_a_loop_stacks_are_reduced_once_behind_it(words):
    def fn(stacks, batch):
        def layer(x, weights):
            return functools.reduce(lambda x, w: jnp.maximum(x @ w, 0) % 5, weights, x), None

        return jax.grad(lambda stacks: jnp.sum(lax.scan(layer, batch, stacks)[0]))(stacks)

    stacks = [np.stack(WEIGHTS[:2])] * 2
    step = sbp.parallelize(
        fn, mesh=flowjax.make_mesh("dp=8"), hardware="h100",
        in_sbp={"stacks": words, "batch": "dp: S(0)"}, out_sbp=words,
    )  # fmt: skip
    assert_same(step(stacks, BATCH), fn(stacks, BATCH))
    split = {("all-gather", 1): 1, ("reduce-scatter", 1): 1}
    expected = {("all-reduce", 1): 1} if words == "dp: B" else split
    assert counts(step, stacks, BATCH) == expected


def test_no_bucket_outgrows_its_bound(monkeypatch):
    # A gathered weight has 16 x 16 x 4 bytes.
    monkeypatch.setattr("sbp.plan.scheduling.BUCKET_NBYTES", 2 * 1024)
    step = TRAIN(in_sbp={"weights": SPLIT, "batch": "dp: S(0)"}, out_sbp=(SPLIT, SPLIT, "dp: B"))
    assert_same(step(WEIGHTS, BATCH), train(WEIGHTS, BATCH))
    assert counts(step, WEIGHTS, BATCH) == {
        ("all-gather", 1): 2, ("reduce-scatter", 1): 2, ("all-reduce", 1): 1,
    }  # fmt: skip


def test_a_tied_table_is_reduced_once():
    def fn(table, x):
        def loss(table):
            return jnp.sum(jnp.maximum(x @ table % 3, 0) @ table.T)

        return jax.grad(loss)(table)

    step = sbp.parallelize(
        fn, mesh=flowjax.make_mesh("dp=8"), in_sbp={"table": "dp: B", "x": "dp: S(0)"},
        out_sbp="dp: B",
    )  # fmt: skip
    table = whole(16, 32)
    assert_same(step(table, BATCH), fn(table, BATCH))
    (reduction,) = sbp.audit(step.lower(table, BATCH).compile()).collectives
    assert (reduction.kind, reduction.nbytes) == ("all-reduce", 2 * 7 / 8 * table.nbytes)
