"""Claims of `sbp.signature` hold in the plan, or are refused with repairs that work."""

import ast
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

import flowjax
import sbp
from tests.one_device import MESH, assert_same, check, whole

X, W, V = whole(8, 16), whole(16, 8, seed=1), whole(8, 16, seed=2)


@sbp.signature(dp="S(0), B -> S(0)", tp="B, S(1) -> S(1)")
def column(x, w):
    return jax.nn.relu(x @ w)


@sbp.signature(dp="S(0), B -> S(0)", tp="S(-1), S(0) -> P")
def row(x, w):
    return x @ w


def both(x, w, v):
    return row(column(x, w), v)


def sent(step, *args):
    return [r for r in step.plan(*args).boxings if not r.is_local]


def refusal(fn, *args, mesh=MESH, **options):
    with pytest.raises(sbp.SignatureError) as raised:
        sbp.parallelize(fn, mesh=mesh, **options).plan(*args)
    return raised.value


def test_claims_make_megatrons_layers():
    step = check(both, X, W, V)
    (reduction,) = sent(step, X, W, V)
    assert (reduction.reader, reduction.src) == ("the result", "(tp: P)")
    words = {path: str(w) for path, w in step.plan(X, W, V).arguments}
    assert words == {
        "x": "(dp: S(0), tp: B)", "w": "(dp: B, tp: S(1))", "v": "(dp: B, tp: S(0))"
    }  # fmt: skip


def test_outside_a_plan_a_function_is_an_ordinary_one():
    assert_same(both(X, W, V), np.maximum(X @ W, 0) @ V)
    assert_same(jax.jit(both)(X, W, V), jnp.asarray(np.maximum(X @ W, 0) @ V))
    assert column.__name__ == "column"
    assert column(X, w=W).shape == (8, 8)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_under_jit_with_a_mesh_set_claims_are_constraints(kind):
    mesh = flowjax.make_mesh("dp=2,tp=4", axis_types=kind)
    with jax.sharding.set_mesh(mesh):
        got = jax.jit(column)(X, W)
    assert_same(got, jnp.asarray(np.maximum(X @ W, 0)))
    assert sbp.words(got) == sbp.NdSbp(dp=sbp.S(0), tp=sbp.S(1))


def test_nothing_is_boxed_inside_though_that_were_cheaper():
    def heavy(x, w):
        for _ in range(4):
            x = jnp.tanh(x @ w)
        return x

    x, w = (jax.ShapeDtypeStruct((2048, 2048), jnp.float32) for _ in range(2))
    mesh = AbstractMesh((4,), ("tp",))
    options = {"mesh": mesh, "hardware": "h100", "in_sbp": "tp: B", "out_sbp": "tp: B"}
    free = sbp.parallelize(heavy, **options).plan(x, w)
    claimed = sbp.parallelize(sbp.signature(tp="B, B -> B")(heavy), **options).plan(x, w)
    loose = sbp.parallelize(sbp.signature(tp="B, B -> B", strict=False)(heavy), **options)
    assert free.boxings
    assert not claimed.boxings
    assert claimed.cost_seconds > free.cost_seconds
    assert loose.plan(x, w).cost_seconds == free.cost_seconds


def test_loops_inside_are_sealed_too():
    def turned(x, w):
        return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=4)[0]

    x, w = (jax.ShapeDtypeStruct((2048, 2048), jnp.float32) for _ in range(2))
    options = {"mesh": AbstractMesh((4,), ("tp",)), "hardware": "h100", "in_sbp": "tp: B"}
    assert sbp.parallelize(turned, out_sbp="tp: B", **options).plan(x, w).boxings
    claimed = sbp.signature(tp="B, B -> B")(turned)
    assert not sbp.parallelize(claimed, out_sbp="tp: B", **options).plan(x, w).boxings


def test_what_is_read_outside_too_may_be_boxed_there():
    held = []

    @sbp.signature(tp="B, S(1) -> S(1)")
    def leaking(x, w):
        y = x @ w
        held.append(y)
        return jnp.tanh(y)

    def fn(x, w, v):
        z = leaking(x, w)
        y = held.pop()
        return z, jnp.sum(y * v, axis=1) @ y

    held.clear()
    check(fn, X, W, whole(8, 8, seed=3), out_sbp=("tp: S(1)", "tp: B"))


def test_a_claim_that_does_not_hold_names_what_does():
    @sbp.signature(tp="B, S(0) -> S(0)")
    def wrong(x, w):
        return jnp.tanh(x @ w)

    def fn(x, w):
        return wrong(x, w)

    error = refusal(fn, X, W)
    line = fn.__code__.co_firstlineno + 1
    assert str(error) == (
        f"wrong does not keep tp='B, S(0) -> S(0)' without boxing inside "
        f"(tests/sbp/api/test_claims.py:{line}).\n"
        "  x f32[8,16], w f32[16@tp,8] -> the result f32[8@tp,8]\n"
        "  No signatures inside lead from the one to the other on tp: "
        f"tests/sbp/api/test_claims.py:{line - 3} needs all-to-all of f32[16@tp,8], "
        "(tp: S(0)) -> (tp: S(1)).\n"
        "Fix one of: tp='B, S(1) -> S(1)', boxed outside: 144 B a device | strict=False, which "
        "boxes inside: 144 B a device | tp='B, B -> B', boxed outside: 384 B a device"
    )


def unequal(tree, x):
    return jnp.tanh(x @ tree["w"] + tree["b"][None]), jnp.sum(x)


WRONG = {
    "one word": (lambda x, w: x @ w, "S(1), B -> P", (X, W)),
    "a result": (lambda x, w: x @ w, "S(1), S(0) -> B", (X, W)),
    "a tree": (unequal, "B, S(1) -> B, B", ({"w": W, "b": W[0]}, X)),
    "leaf by leaf": (
        unequal, (({"w": "S(1)", "b": "B"}, "B"), ("S(1)", "B")), ({"w": W, "b": W[0]}, X)
    ),
    "partial": (lambda x, w: jnp.tanh(x @ w), "S(1), S(0) -> P", (X, W)),
    "two words": (lambda x: jnp.cumsum(x, 0) + jnp.cumsum(x, 1), "S(0) -> S(1)", (X,)),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_repairs_work_and_send_what_they_say(name):
    fn, claim, args = WRONG[name]
    error = refusal(sbp.signature(tp=claim)(fn), *args)
    assert len(error.how) >= 2
    for how in error.how:
        if how.startswith("strict=False"):
            step = sbp.parallelize(sbp.signature(tp=claim, strict=False)(fn), mesh=MESH)
        else:
            text = how.removeprefix("tp=").rpartition(", boxed outside")[0]
            step = sbp.parallelize(sbp.signature(tp=ast.literal_eval(text))(fn), mesh=MESH)
        assert step.plan(*args).name == getattr(fn, "__name__", "<lambda>")


def test_words_are_inferred_trees_have_one_word_and_axes_may_lack():
    @sbp.signature(tp="_, S(-1) -> S(1), _", pp="B, B -> B, B")
    def heads(tree, x):
        return x * tree["scale"][None], jnp.sum(tree["w"] @ x)

    tree = {"scale": whole(16), "w": whole(4, 8)}
    step = check(heads, tree, X)
    plan = step.plan(tree, X)
    words = {path: w["tp"] for path, w in plan.arguments}
    assert (words["x"], words["tree.scale"]) == (sbp.S(1), sbp.S(0))
    (note,) = plan.notes
    assert note.startswith("heads claims words on pp, which the mesh lacks (")
    assert note in plan.explain()


def test_claims_nest():
    @sbp.signature(dp="S(0), _, _ -> S(0)", tp="B, S(1), S(0) -> P")
    def outer(x, w, v):
        return both(x, w, v)

    assert len(sent(check(outer, X, W, V), X, W, V)) == 1
    wrong = sbp.signature(tp="B, S(1), S(0) -> B")(both)
    assert "needs all-reduce" in str(refusal(wrong, X, W, V))


def test_static_arguments_defaults_and_keywords():
    @sbp.signature(tp="S(1), _, _ -> S(1)")
    def scaled(x, kind, power=2, *, shift=0.0):
        assert isinstance(power, int)
        return {"double": x * 2, "same": x}[kind] ** power + shift

    check(lambda x: scaled(x, "double") + scaled(x, "same", 3, shift=1.0), X)


def test_methods_may_claim():
    @dataclasses.dataclass(frozen=True)
    class Layer:
        width: int

        @sbp.signature(tp="_, S(0) -> S(0)")
        def apply(self, x):
            return x * self.width

    step = check(lambda x: Layer(3).apply(x), X)
    assert step.plan(X).arguments[0][1]["tp"] == sbp.S(0)


TRANSFORMED = {
    "grad": lambda x, w, v: jax.grad(lambda *a: jnp.sum(both(*a) ** 2), (0, 1, 2))(x, w, v),
    "jvp": lambda x, w, v: jax.jvp(both, (x, w, v), (x, w, v)),
    "second": lambda x, w, v: jax.jvp(
        lambda y: jax.grad(lambda z: jnp.sum(both(z, w, v) ** 2))(y), (x,), (x,)
    ),
    "vmap": lambda x, w, v: jax.vmap(lambda r: both(r[None], w, v)[0], 0)(x[:, None])[:, 0],
    "vmapped weights": lambda x, w, v: jax.vmap(both, (None, 0, None))(x, jnp.stack([w, w]), v),
    "checkpoint": lambda x, w, v: jax.grad(
        lambda y: jnp.sum(jax.checkpoint(both)(y, w, v) ** 2))(x),
    "jit twice": lambda x, w, v: jax.jit(both)(jax.jit(both)(x, w, v), w, v),
    "scan": lambda x, w, v: jax.lax.scan(lambda c, _: (both(c, w, v) % 5, None), x, None, 3)[0],
    "linearize": lambda x, w, v: jax.linearize(lambda y: both(y, w, v), x)[1](x),
}  # fmt: skip


@pytest.mark.parametrize("name", [n for n in TRANSFORMED if n != "vmap"])
def test_claims_under_transformations(name):
    check(TRANSFORMED[name], X, W, V)


def test_a_row_alone_cannot_be_split():
    error = refusal(TRANSFORMED["vmap"], X, W, V)
    assert "argument" not in error.what
    assert "dp: S(0)" in error.what


BAD = {
    "no arrow": ("B, B", "cannot be read"),
    "two arrows": ("B -> B -> B", "cannot be read"),
    "no word": ("B, Q -> B", "'Q' is not a word"),
    "too few": ("B -> B", "words for 1 argument; it is called with 2"),
    "too many": ("B, B, B -> B", "words for 3 arguments; it is called with 2"),
    "a dim": ("S(2), B -> B", "splits a dim that does not exist"),
    "results": ("B, B -> B, B", "not a prefix"),
    "a number": (3, "cannot be read"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_claims_are_one_clear_error(name):
    claim, expected = BAD[name]

    def matmul(x, w):
        return x @ w

    with pytest.raises(sbp.SignatureError) as raised:
        sbp.parallelize(sbp.signature(tp=claim)(matmul), mesh=MESH).plan(X, W)
    assert expected in str(raised.value)
    assert raised.value.how


def test_a_claim_of_nothing_and_of_no_function():
    with pytest.raises(sbp.SignatureError, match="claims nothing"):
        sbp.signature()
    with pytest.raises(sbp.SignatureError, match="no function"):
        sbp.signature(tp="B -> B")(3)


def test_what_has_words_is_an_array():
    @sbp.signature(tp="S(1), B -> S(1)")
    def named(x, kind):
        return x * len(kind)

    with pytest.raises(sbp.SbpError, match="kind of named") as raised:
        sbp.parallelize(lambda x: named(x, "abc"), mesh=MESH).plan(X)
    assert raised.value.how == ("claim _ for what is no array",)


@pytest.mark.parametrize("axes", ["dp=2,tp=2,pp=2", "dp=8,tp=1", "dp=1,tp=8"])
def test_claims_on_other_meshes(axes):
    x, w, v = whole(16, 16), whole(16, 16, seed=1), whole(16, 16, seed=2)
    step = check(both, x, w, v, mesh=flowjax.make_mesh(axes))
    assert all(row.axes == ("tp",) for row in sent(step, x, w, v))


def test_the_fingerprint_knows_claims_but_not_how_often_they_were_read():
    prints = [sbp.parallelize(both, mesh=MESH).plan(X, W, V).fingerprint for _ in range(2)]
    free = sbp.parallelize(lambda x, w, v: jax.nn.relu(x @ w) @ v, mesh=MESH)
    assert prints[0] == prints[1] != free.plan(X, W, V).fingerprint
    loose = sbp.signature(tp="B, B, B -> B", strict=False)(both)
    strict = sbp.signature(tp="B, _, _ -> P")(both)
    assert len({sbp.parallelize(f, mesh=MESH).plan(X, W, V).fingerprint
                for f in (loose, strict, both)}) == 3  # fmt: skip


def test_a_saved_plan_keeps_claims(tmp_path):
    plan = sbp.parallelize(both, mesh=MESH).plan(X, W, V)
    plan.save(tmp_path / "plan.json")
    again = sbp.parallelize(both, mesh=MESH, plan=sbp.Plan.load(tmp_path / "plan.json"))
    assert again.plan(X, W, V).boxings == plan.boxings
    assert_same(again(X, W, V), np.maximum(X @ W, 0) @ V)
