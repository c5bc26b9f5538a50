"""What is read of a function: straight equations, with calls entered and nothing that is dead."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from sbp.program import Constant
from sbp.tracing import trace
from tests.one_device import MESH, whole

STRUCT = jax.ShapeDtypeStruct((8, 4), np.float32)


def read(fn, *structs):
    return trace(lambda *xs: jax.tree.leaves(fn(*xs)), structs or [STRUCT], MESH)


def names(block):
    return [equation.name for equation in block.equations]


def here(fn, line=1):
    return f"{os.path.relpath(__file__)}:{fn.__code__.co_firstlineno + line}"


def squared(x):
    return x * x


@jax.custom_jvp
def tripled(x):
    return 3 * x


tripled.defjvp(lambda primals, tangents: (tripled(*primals), 3 * tangents[0]))


@jax.custom_vjp
def doubled(x):
    return 2 * x


doubled.defvjp(lambda x: (doubled(x), None), lambda _, cotangent: (2 * cotangent,))


CALLS = {
    "jit": lambda x: jax.jit(squared)(x),
    "nested jit": lambda x: jax.jit(lambda y: jax.jit(squared)(y))(x),
    "remat": lambda x: jax.checkpoint(squared)(x),
    "custom_jvp": tripled,
    "custom_vjp": doubled,
    "named_call": lambda x: jax.named_call(squared, name="square")(x),
    "custom_gradient": lambda x: jax.custom_gradient(lambda y: (y * y, lambda g: g))(x),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_entered(name):
    assert names(read(CALLS[name]).block) == ["mul"]


def test_a_recomputation_stands_behind_a_barrier():
    def gradient(x):
        return jax.grad(lambda y: jnp.sum(jax.checkpoint(jnp.sin)(y)))(x)

    found = names(read(gradient).block)
    assert found.index("barrier") < found.index("cos")
    kept = names(read(lambda x: jax.grad(lambda y: jnp.sum(
        jax.checkpoint(jnp.sin, prevent_cse=False)(y)))(x)).block)  # fmt: skip
    assert "barrier" not in kept


def test_what_nothing_needs_is_dropped_but_every_argument_stays():
    def fn(x, unused):
        jnp.sin(x)
        y = jax.jit(lambda x: (x * 2, jnp.cos(x)))(x)
        return y[0]

    traced = read(fn, STRUCT, STRUCT)
    assert names(traced.block) == ["mul"]
    assert traced.num_arguments == len(traced.block.inputs) == 2


def test_effects_are_kept_though_nothing_uses_them():
    def fn(x):
        jax.debug.print("{}", jnp.sum(x))
        return x

    equations = read(fn).block.equations
    assert [(e.name, e.has_effects) for e in equations] == [
        ("reduce_sum", False), ("debug_print", True),
    ]  # fmt: skip


def test_loops_and_branches_keep_bodies():
    def fn(x):
        y = lax.scan(lambda c, row: (c + row, c * 2), x[0], x)[0]
        y = lax.while_loop(lambda c: c[0] < 9, lambda c: c + 1, y)
        return lax.cond(y[0] > 0, jnp.sin, jnp.cos, y)

    equations = {e.name: e for e in read(fn).block.equations}
    assert [names(b) for b in equations["scan"].bodies] == [["add"]]
    assert equations["scan"].params["scan"].length == 8
    assert names(equations["while"].bodies[1]) == ["add"]
    assert [names(b) for b in equations["cond"].bodies] == [["cos"], ["sin"]]


def test_a_scan_of_one_turn_is_no_loop():
    def fn(x):
        return lax.scan(lambda c, row: (jnp.sin(c), (row * 2, c)), x[0], x[:1])[1]

    equations = read(fn).block.equations
    assert not any(e.bodies for e in equations)
    # The carry of a last turn is nobody's.
    assert "sin" not in [e.name for e in equations]
    assert {e.source for e in equations} == {here(fn)}


def test_closed_over_arrays_are_inputs_and_equal_objects_are_one():
    w, v = jnp.asarray(whole(4)), whole(4, 4, seed=1)

    def fn(x):
        y = x * w[None] + w[None]
        return lax.scan(lambda c, _: (c @ v + w[None], None), y, None, length=2)[0]

    traced = read(fn)
    assert len(traced.consts) == len(traced.block.inputs) - traced.num_arguments == 2
    assert any(const is w for const in traced.consts)


def test_results_may_be_arguments_or_numbers():
    traced = read(lambda x: (x, 3.0, x))
    first, number, last = traced.block.outputs
    assert first is last is traced.block.inputs[0]
    assert isinstance(number, Constant)
    assert (number.value, str(number.type.dtype)) == (3.0, "float32")


def test_lines_are_the_users():
    def fn(x):
        y = jax.nn.softmax(x)
        return lax.scan(lambda c, row: (c, row
                                        * 2), 0, y)[1]  # fmt: skip

    equations = read(fn).block.equations
    (scan,) = [e for e in equations if e.name == "scan"]
    assert {e.source for e in equations if e.name != "scan"} == {here(fn)}
    assert scan.source == here(fn, 2)
    assert scan.bodies[0].equations[0].source in (here(fn, 2), here(fn, 3))


def test_the_text_shows_types_and_bodies():
    text = str(read(lambda x: lax.fori_loop(0, 2, lambda _, c: c + x, x)))
    assert text.splitlines()[0] == "in v0:f32[8,4]"
    assert "scan[length=2, reverse=False]" in text
    assert "\n  v" in text


PROGRAM = """
import sys
sys.path[:0] = [{root!r}]
import jax, jax.numpy as jnp, numpy as np
from sbp.tracing import trace

def fn(x, key):
    y = jax.nn.softmax(jax.checkpoint(jnp.sin)(x)) + jax.random.uniform(key, x.shape)
    y = jax.lax.scan(lambda c, row: (c + row, row), x[0], y)[1]
    y = jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct(y.shape, y.dtype), y)
    return [jax.lax.cond(y[0, 0] > 0, lambda v: v, lambda v: -v, y)]

key = jax.ShapeDtypeStruct((), jax.random.key(0).dtype)
traced = trace(fn, [jax.ShapeDtypeStruct((8, 4), np.float32), key])
print(traced.fingerprint)
print(traced)
"""


def test_the_fingerprint_is_equal_in_every_process_and_holds_no_address():
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    seen = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(root=root)], check=True, capture_output=True,
            text=True, env={**environment, "PYTHONHASHSEED": seed},
        )  # fmt: skip
        seen.add(done.stdout)
    (text,) = seen
    assert "0x" not in text
    assert root not in text


def test_the_fingerprint_tells_programs_apart():
    programs = [
        lambda x: x * 2, lambda x: x * 3, lambda x: x + 2, lambda x: jnp.sum(x, 0),
        lambda x: jnp.sum(x, 1), lambda x: lax.fori_loop(0, 2, lambda _, c: c * 2, x),
        lambda x: lax.fori_loop(0, 3, lambda _, c: c * 2, x),
    ]  # fmt: skip
    assert len({read(fn).fingerprint for fn in programs}) == len(programs)
    other = jax.ShapeDtypeStruct((8, 4), jnp.bfloat16)
    assert read(squared).fingerprint != read(squared, other).fingerprint
