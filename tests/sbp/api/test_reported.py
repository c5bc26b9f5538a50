"""What users ran into once: each stays mended."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import flowjax
import sbp

MESH = flowjax.make_mesh("dp=2,tp=4")
X = np.arange(64, dtype=np.float32).reshape(8, 8)


def explicit_mesh():
    return flowjax.make_mesh("dp=8", axis_types=AxisType.Explicit)


def test_gradient_of_a_step_with_a_partial_end_is_refused_not_multiplied():
    step = sbp.parallelize(jnp.multiply, mesh=explicit_mesh(), in_sbp=(None, "dp: P"))
    with pytest.raises(sbp.SignatureError, match="differentiated from outside, with partial"):
        jax.jit(jax.grad(lambda x, z: step(x, z).sum(), (0, 1)))(X, X)


def test_gradient_inside_a_step_with_a_partial_argument_is_right():
    def gradient(x, z):
        return jax.grad(lambda x: (x * z).sum())(x)

    step = sbp.parallelize(gradient, mesh=explicit_mesh(), in_sbp=(None, "dp: P"))
    np.testing.assert_array_equal(step(X, X + 1), X + 1)


@pytest.mark.parametrize("request_of", [None, {"y": "dp: B"}, {"y": "dp: S(1)"}])
@pytest.mark.parametrize("explicit", [False, True])
def test_a_partial_array_is_taken_by_a_step_that_wants_none(request_of, explicit):
    partial = sbp.box(X, "dp: P", explicit_mesh())
    mesh = explicit_mesh() if explicit else flowjax.make_mesh("dp=8")
    step = sbp.parallelize(lambda y: jnp.maximum(y, 3.0), mesh=mesh, in_sbp=request_of)
    np.testing.assert_array_equal(step(partial), np.maximum(X, 3.0))
    np.testing.assert_array_equal(step.place(partial), X)


def test_a_linear_solve_runs_its_solver():
    matrix, right = 4 * np.eye(8, dtype=np.float32), np.arange(8, dtype=np.float32)

    def solve(a, b):
        return jax.scipy.sparse.linalg.cg(lambda v: a @ v, b)[0]

    step = sbp.parallelize(solve, mesh=MESH, in_sbp={"a": "tp: S(1)"})
    np.testing.assert_allclose(step(matrix, right), right / 4)


def test_closing_over_what_is_differentiated_is_refused():
    def loss(q):
        return sbp.parallelize(lambda y: y * q, mesh=MESH)(X).sum()

    with pytest.raises(sbp.SbpError, match="closes over a value that is being differentiated"):
        jax.grad(loss)(X)


def test_a_pattern_behind_one_that_takes_all_its_leaves_is_an_error():
    words = {"a*": "dp: S(0)", "ab": "dp: S(1)"}
    with pytest.raises(sbp.SignatureError, match="pattern 'ab' counts for nothing"):
        sbp.parallelize(lambda a, ab: a + ab, mesh=MESH, in_sbp=words).plan(X, X)
    reordered = {"ab": "dp: S(1)", "a*": "dp: S(0)"}
    plan = sbp.parallelize(lambda a, ab: a + ab, mesh=MESH, in_sbp=reordered).plan(X, X)
    assert [words["dp"] for _, words in plan.arguments] == [sbp.S(0), sbp.S(1)]


def test_words_may_be_text_wherever_they_become_a_sharding():
    assert sbp.partition_spec("dp: S(1)", 2) == jax.sharding.PartitionSpec(None, "dp")
    assert sbp.named_sharding(MESH, "tp: S(0)", 1).spec == jax.sharding.PartitionSpec("tp")


def test_signatures_name_maxima_of_results():
    found = map(str, sbp.signatures(lambda a: a.max(0), X))
    assert list(found) == ["S(0) -> P.max", "S(1) -> S(0)", "B -> B"]


def test_a_step_says_what_it_is():
    step = sbp.parallelize(jnp.tanh, mesh=MESH)
    assert repr(step) == "<sbp.Step tanh on mesh dp=2, tp=4, not planned yet>"
    step.plan(X)
    assert repr(step).endswith("planned>")


def test_audit_of_what_is_no_program_says_what_to_pass():
    with pytest.raises(sbp.SbpError, match="audit is given a Step"):
        sbp.audit(sbp.parallelize(jnp.tanh, mesh=MESH))
