"""Every primitive of the models' train steps has a rule, and can be split."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import optax
import pytest

from models import conv_net, gpt, mlp
from sbp import _compat
from sbp.algebra import ArrayType
from sbp.factors import Call, nd_signatures
from sbp.rules import find_rule

TINY = gpt.GPTConfig(vocab=16, sequence=8, num_layers=2, num_heads=4, d_model=16, dropout=0.1)

CONTROL_FLOW = {"scan", "while", "cond", "jit", "remat2", "custom_jvp_call", "custom_vjp_call"}
"""What the flat graph enters; no call of these is opaque."""


def train_step(loss, state, *batch):
    """Loss, gradient and AdamW."""
    params, optimizer_state = state
    optimizer = optax.adamw(1e-3)
    value, gradient = jax.value_and_grad(loss)(params, *batch)
    with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer
        updates, optimizer_state = optimizer.update(gradient, optimizer_state, params)
    return (optax.apply_updates(params, updates), optimizer_state), value


def traced(loss, init, *batch):
    """The jaxpr of a train step."""
    params = jax.eval_shape(init, jax.random.key(0))
    state = (params, jax.eval_shape(optax.adamw(1e-3).init, params))
    return jax.make_jaxpr(functools.partial(train_step, loss))(state, *batch)


def gpt_step(**options):
    """A GPT with dropout."""
    config = replace(TINY, **options)
    tokens = jax.ShapeDtypeStruct((4, config.sequence + 1), jnp.int32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    return traced(
        lambda p, batch, key: gpt.loss(p, batch, config, key),
        functools.partial(gpt.init, config=config), tokens, key,
    )  # fmt: skip


def labelled(name, *shape):
    """A batch of images or vectors with labels."""
    return {
        name: jax.ShapeDtypeStruct(shape, jnp.float32),
        "labels": jax.ShapeDtypeStruct(shape[:1], jnp.int32),
    }


def conv_step():
    """The convolutional network."""
    config = conv_net.ConvNetConfig()
    batch = labelled("images", 8, config.side, config.side, config.channels[0])
    return traced(conv_net.loss, functools.partial(conv_net.init, config=config), batch)


def mlp_step():
    """The multilayer perceptron."""
    config = mlp.MLPConfig()
    return traced(
        mlp.loss, functools.partial(mlp.init, config=config), labelled("inputs", 8, config.inputs)
    )


STEPS = {
    "mlp": mlp_step,
    "conv net": conv_step,
    "gpt": gpt_step,
    "gpt unrolled": functools.partial(gpt_step, scan_layers=False, tied_embedding=False),
    "gpt learned positions": functools.partial(gpt_step, positions="learned"),
    "gpt remat": functools.partial(gpt_step, remat=True),
    "gpt unrolled remat": functools.partial(gpt_step, scan_layers=False, remat=True),
}


def equations(jaxpr):
    """All equations, those of nested jaxprs included."""
    for equation in _compat.open_jaxpr(jaxpr)[0].eqns:
        nested = [
            inner
            for value in equation.params.values()
            for inner in (value if isinstance(value, tuple | list) else [value])
            if hasattr(getattr(inner, "jaxpr", inner), "eqns")
        ]
        if equation.primitive.name in CONTROL_FLOW:
            for inner in nested:
                yield from equations(inner)
        else:
            yield equation


def call_of(equation):
    """The call that a rule sees."""

    def types(atoms):
        return tuple(ArrayType(tuple(a.aval.shape), a.aval.dtype) for a in atoms)

    name = equation.primitive.name
    return Call(name, types(equation.invars), types(equation.outvars), equation.params)


@pytest.mark.parametrize("name", STEPS)
def test_every_primitive_of_a_train_step_has_a_rule(name):
    found = {equation.primitive.name for equation in equations(STEPS[name]())}
    assert found
    assert {primitive for primitive in found if find_rule(primitive) is None} == set()


@pytest.mark.parametrize("name", STEPS)
def test_every_equation_of_a_train_step_can_be_planned(name):
    """Rules accept the parameters that real functions have, cost included."""
    calls = {repr(call := call_of(equation)): call for equation in equations(STEPS[name]())}
    for call in calls.values():
        rule = find_rule(call.primitive)
        assert rule.flops(call) >= 0
        found = nd_signatures(call, (2, 2), rule.signatures, rule.localize)
        large = max((array.size for array in call.outputs), default=0) >= 256
        assert len(found) > 1 or not large, call


def kinds_of(signatures):
    """Signatures without the order of their axes."""

    def kind(signature):
        return tuple(sorted(str(signature.axis(axis)) for axis in range(len(signature.outputs[0]))))

    return {kind(signature) for signature in signatures if signature.outputs}


@pytest.mark.parametrize("name", STEPS)
def test_with_exchangeable_axes_one_signature_of_each_kind_is_found(name):
    calls = {repr(call := call_of(equation)): call for equation in equations(STEPS[name]())}
    for number, call in enumerate(calls.values()):
        rule = find_rule(call.primitive)
        sizes = (2, 2, 2) if number % 5 == 0 else (2, 2)
        found = nd_signatures(call, sizes, rule.signatures, rule.localize)
        few = nd_signatures(call, sizes, rule.signatures, rule.localize, None, range(len(sizes)))
        assert set(few) <= set(found)
        assert kinds_of(few) == kinds_of(found)
        if len(found) > 9:
            assert len(few) < 0.9 * len(found)
