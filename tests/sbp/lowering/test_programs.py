"""Loops, branches, calls and effects under both lowerings, held against one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sbp
from tests.one_device import MESH, assert_same, check, whole

X, W = whole(8, 4), whole(4, 4, seed=1)
WORDS = {"in_sbp": {"x": "dp: S(0)", "w": "tp: S(0)"}}


def scanned(x, w):
    def body(carry, row):
        total, count = carry
        return (jnp.clip(total @ w + row, -5, 5), count + 1), (row * 2, jnp.sum(total))

    return lax.scan(body, (x[0], 0), x)


def scanned_backwards(x, w):
    return lax.scan(lambda c, row: (c + row, c), w[0], x, reverse=True, unroll=2)


def scanned_without_inputs(x, w):
    return lax.scan(lambda c, _: (jnp.clip(c @ w, -9, 9), None), x, None, length=3)


def scanned_over_nothing(x, w):
    return lax.scan(lambda c, row: (c + row, row), w[0], x[:0])


def scanned_once(x, w):
    def body(carry, row):
        return carry @ w + row, (row * 2, jnp.sum(carry))

    return lax.scan(body, x[0], x[:1])


def scanned_twice(x, w):
    def outer(c, row):
        return lax.scan(lambda d, v: (d + v * row, d), c, w)[0], row

    return lax.scan(outer, w[0], x)


def looped(x, w):
    def go_on(state):
        k, y = state
        return (k < 5) & (jnp.max(y) < 100)

    return lax.while_loop(go_on, lambda s: (s[0] + 1, s[1] + jnp.sum(w)), (0, x))


def counted(x, w):
    return lax.fori_loop(0, 3, lambda k, y: y.at[k].add(1.0), x)


def branched(x, w):
    return lax.cond(jnp.sum(x) > 0, lambda y: (y @ w, 1.0), lambda y: (y, 2.0), x)


def switched(x, w):
    return lax.switch(x[0, 0].astype(int) % 3, [lambda: x, lambda: x * 2, lambda: x @ w])


def branched_in_a_loop(x, w):
    def body(c, row):
        return lax.cond(row[0] > 0, lambda: c + row, lambda: c * 1), jnp.sum(c)

    return lax.scan(body, w[0], x)


def called(x, w):
    return jax.jit(lambda y: jax.jit(jnp.abs)(y) @ w)(x), jax.nn.relu(x), jnp.where(x > 0, x, 0)


def recomputed(x, w):
    def block(w, x):
        return jax.checkpoint(lambda w, x: jnp.maximum(x @ w, 0) @ w)(w, x)

    return jax.grad(lambda w: jnp.sum(block(w, x) % 7))(w)


def differentiated_in_a_loop(x, w):
    def loss(w):
        step = jax.checkpoint(lambda c, row: (jnp.maximum(c @ w, 0) % 3 + row, None))
        return jnp.sum(lax.scan(step, x[0], x)[0])

    return jax.value_and_grad(loss)(w)


def mapped(x, w):
    return jax.vmap(lambda row: row - lax.pmean(row * 8, "rows"), axis_name="rows")(x)


PROGRAMS = [
    scanned, scanned_backwards, scanned_without_inputs, scanned_over_nothing, scanned_once,
    scanned_twice,
    looped, counted, branched, switched, branched_in_a_loop, called, recomputed,
    differentiated_in_a_loop, mapped,
]  # fmt: skip


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_programs_give_what_one_device_gives(fn):
    check(fn, X, W, **WORDS)


@pytest.mark.parametrize("words", ["dp: B, tp: B", "dp: S(0), tp: S(1)", "dp: S(1)"])
@pytest.mark.parametrize("fn", [scanned, looped, branched], ids=lambda fn: fn.__name__)
def test_whatever_is_pinned(fn, words):
    step = sbp.parallelize(fn, mesh=MESH, in_sbp=words)
    assert_same(step(X, W), fn(X, W))


def collectives(fn, mesh=MESH, **options):
    return sbp.parallelize(fn, mesh=mesh, **{**WORDS, **options}).plan(X, W).boxings


def test_boxings_inside_a_loop_are_run_by_the_trip():
    def pinned(x, w):
        def body(c, row):
            return sbp.pin(sbp.pin(c, dp=sbp.S(0), tp=sbp.B) + row, dp=sbp.B, tp=sbp.B), None

        return lax.scan(body, w[0], x)

    check(pinned, X, W)
    inside = [row for row in collectives(pinned) if row.count == len(X)]
    assert [row.collective for row in inside if not row.is_local] == ["all-gather"]


def test_a_sum_in_a_loop_is_kept_in_parts_until_it_ends():
    def summed(x, w):
        return lax.scan(lambda c, row: (c + jnp.sum(row * w[0]), None), 0.0, x)[0]

    options = {"in_sbp": {"x": "dp: S(1), tp: B"}, "out_sbp": "dp: B, tp: B"}
    sent = [row for row in collectives(summed, **options) if not row.is_local]
    assert [(row.collective, row.count) for row in sent] == [("all-reduce", 1)]
    step = check(summed, X, W, **options)
    assert not sbp.audit(step.lower(X, W).compile(), step.plan(X, W)).unplanned


@pytest.mark.parametrize("lowering", ["manual", "auto"])
def test_a_print_is_made_once(lowering, capfd):
    def printing(x, w):
        jax.debug.print("sum {}", jnp.sum(x))
        lax.fori_loop(0, 2, lambda k, c: (jax.debug.print("trip {}", k), c)[1], 0)
        return x @ w

    step = sbp.parallelize(printing, mesh=MESH, lowering=lowering, **WORDS)
    for _ in range(2):
        assert_same(step(X, W), X @ W)
    jax.effects_barrier()
    lines = capfd.readouterr().out.split("\n")
    assert sorted(filter(None, lines)) == sorted([f"sum {np.sum(X)}", "trip 0", "trip 1"] * 2)


@pytest.mark.parametrize("lowering", ["manual", "auto"])
def test_a_callback_without_effects_runs_on_whole_arrays(lowering):
    def calling(x, w):
        shape = jax.ShapeDtypeStruct((len(x),), x.dtype)
        return jax.pure_callback(lambda y: np.sort(np.asarray(y).sum(1)), shape, x @ w)

    step = sbp.parallelize(calling, mesh=MESH, lowering=lowering, **WORDS)
    assert_same(step(X, W), np.sort((X @ W).sum(1)))
    line = f"{calling.__code__.co_firstlineno + 2}"
    (note,) = step.plan(X, W).notes
    assert note.startswith("pure_callback has no rule and runs replicated (")
    assert note.endswith(f"test_programs.py:{line})")


@pytest.mark.parametrize("lowering", ["manual", "auto"])
def test_a_recomputation_is_not_undone(lowering):
    step = sbp.parallelize(recomputed, mesh=MESH, lowering=lowering, **WORDS)
    assert "optimization_barrier" in step.lower(X, W).as_text()


def test_matmuls_keep_the_precision_they_were_traced_with():
    step = sbp.parallelize(lambda x, w: jnp.matmul(x, w, precision="highest"), mesh=MESH, **WORDS)
    step.plan(X, W)
    assert "HIGHEST" in step.lower(X, W).as_text()


def test_names_of_the_user_reach_the_compiled_program():
    def named(x, w):
        with jax.named_scope("my_layer"):
            return x @ w

    compiled = sbp.parallelize(named, mesh=MESH, **WORDS).lower(X, W).compile()
    assert "my_layer" in compiled.as_text()


def test_a_literal_of_a_loop_may_become_partial():
    def fn(x):
        return lax.scan(lambda c, row: ((c + row) % 7 - 3, c), jnp.int32(0), x.max(1))

    x = np.arange(64, dtype=np.int32).reshape(8, 8)
    for search in ("greedy", "optimal"):
        step = sbp.parallelize(fn, mesh=jax.make_mesh((8,), ("x",)), search=search)
        assert_same(step(x), jax.jit(fn)(x))
