"""What of a program its results need; what a while loop carries for nobody is not part of it."""

import jax
import jax.numpy as jnp
from jax import lax

import sbp
from tests.one_device import MESH, check, whole
from tests.sbp.test_tracing import names, read

X, Y, W = whole(8, 4), whole(8, 4, seed=2), whole(4, 4, seed=1)


def loops(block):
    return [e for e in block.equations if e.name == "while"]


def test_what_a_while_loop_carries_for_nobody_is_dropped_with_all_that_led_to_it():
    def fn(x, y):
        def step(state):
            k, kept, idle = state
            return k + 1, kept + 1, jnp.sin(idle) * kept

        return lax.while_loop(lambda s: s[0] < 3, step, (0, x, jnp.cos(y)))[1]

    block = read(fn, *[jax.ShapeDtypeStruct((8, 4), jnp.float32)] * 2).block
    (loop,) = loops(block)
    assert names(block) == ["while"]
    assert names(loop.bodies[1]) == ["add", "add"]
    assert len(loop.inputs) == len(loop.outputs) == 2
    assert [len(body.inputs) for body in loop.bodies] == [2, 2]


def test_what_one_carried_value_needs_of_another_stays():
    def fn(x, y, w):
        def go_on(state):
            return (state[0] < 3) & (jnp.sum(w) < 1000)

        def step(state):
            k, a, b, c, d = state
            return k + 1, a + b, b + c, c * 2, d @ w

        return lax.while_loop(go_on, step, (0, x, y, x + y, x))[1]

    structs = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in (X, Y, W)]
    (loop,) = loops(read(fn, *structs).block)
    assert len(loop.outputs) == 4
    assert (loop.params["cond_nconsts"], loop.params["body_nconsts"]) == (1, 0)
    check(fn, X, Y, W, in_sbp={"x": "dp: S(0)", "w": "tp: S(1)"})


def test_loops_inside_loops_and_branches_are_looked_into():
    def idle(x):
        return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] + 1, s[2] * 2),
                              (0, x, x))[1]  # fmt: skip

    def fn(x):
        y = lax.scan(lambda c, _: (idle(c), None), x, None, length=2)[0]
        return lax.cond(y[0, 0] > 0, idle, lambda v: v, y)

    block = read(fn).block
    bodies = [body for e in block.equations for body in e.bodies]
    inner = [loop for body in bodies for loop in loops(body)]
    assert [len(loop.outputs) for loop in inner] == [2, 2]
    check(fn, X, in_sbp="dp: S(0)")


def test_a_loop_that_speaks_runs_though_nobody_needs_what_it_carries(capfd):
    def fn(x):
        def step(k):
            jax.debug.print("turn {}", k)
            return k + 1

        lax.while_loop(lambda k: k < 2, step, 0)
        return x

    step = sbp.parallelize(fn, mesh=MESH)
    step(X)
    jax.effects_barrier()
    assert capfd.readouterr().out.count("turn 1") >= 1


def test_what_is_dropped_is_neither_planned_nor_sent():
    def fn(x, w):
        def turn(state):
            k, kept, idle = state
            return k + 1, kept + 1, idle @ w

        a = lax.while_loop(lambda s: s[0] < 3, turn, (0, x, x))[1]
        b = lax.scan(lambda c, row: (c @ w, row + 1), x, a[None])[1]
        return b, lax.scan(lambda c, row: (c, row @ w), w, x[:0])[1]

    step = check(fn, X, W, in_sbp={"x": "dp: S(0), tp: S(1)", "w": "tp: S(0)"})
    plan = step.plan(X, W)
    audited = sbp.audit(step.lower(X, W).compile(), plan)
    assert plan.wire_nbytes == audited.total_nbytes
    assert not audited.unplanned
    assert not audited.missing
