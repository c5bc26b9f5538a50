"""Loss, gradients, dropout and training equal one device, with the plan's collectives only.

A subset of the table of `scripts/check_parity.py`, in which every pair of choices occurs together:
of kind of model, remat, dropout, mesh, plan and lowering; and every model occurs.
"""

import itertools

import jax
import numpy as np
import optax
import pytest

import flowjax
import sbp
from models import gpt
from scripts import check_parity, parity_cases
from scripts.parity_cases import Case


def choices_of(case: Case) -> dict[str, object]:
    kind, *options = case.model.replace("gpt-", "gpt ").split("-")
    choices = {"kind": kind, "mesh": case.mesh, "plan": case.plan, "lowering": case.lowering}
    if kind.startswith("gpt"):
        choices |= {"remat": "remat" in options, "dropout": "dropout" in options}
    return choices


def pairs_of(case: Case) -> set[tuple]:
    return {(case.model,), *itertools.combinations(sorted(choices_of(case).items()), 2)}


def price_of(case: Case) -> float:
    """About how long a case takes, which is how long its plan takes."""
    size = {"mlp": 2, "conv": 2, "gpt scan": 3, "gpt unrolled": 4}[choices_of(case)["kind"]]
    return size + 4 * (len(case.mesh) == 3 and not case.model.startswith("mlp"))


def pairwise_cover(cases: list[Case]) -> list[Case]:
    """Cases, chosen greedily, that hold every pair of choices that any case holds."""
    missing = set().union(*map(pairs_of, cases))
    chosen = []
    while missing:
        best = max(cases, key=lambda case: len(pairs_of(case) & missing) / price_of(case))
        chosen.append(best)
        missing -= pairs_of(best)
    return chosen


COVER = pairwise_cover(parity_cases.all_cases())


def assert_audited(plan: sbp.Plan, audit) -> None:
    assert audit.unplanned == ()
    assert audit.missing == ()
    if not audit.merged:
        # A plan rounds the bytes of each of its rows up.
        num_rows = sum(row.count for row in plan.boxings if not row.is_local)
        assert 0 <= plan.wire_nbytes - audit.total_nbytes < num_rows + 1


def test_the_cover_is_small_and_holds_every_pair():
    cases = parity_cases.all_cases()
    assert len(cases) == 10 * 4 * 4 * 2
    assert set().union(*map(pairs_of, COVER)) == set().union(*map(pairs_of, cases))
    assert len(COVER) <= 22  # 4 meshes times 4 plans is the least


@pytest.mark.parametrize("case", COVER, ids=str)
def test_loss_and_gradients_are_those_of_one_device(case):
    outcome = parity_cases.run_case(case, quick=True)
    assert outcome.failures == ()
    if outcome.audit is not None:
        assert_audited(outcome.plan, outcome.audit)


@pytest.mark.parametrize("lowering", parity_cases.LOWERINGS)
@pytest.mark.parametrize("mesh", parity_cases.MESHES, ids=str)
def test_dropout_masks_are_those_of_one_device(mesh, lowering):
    assert parity_cases.masks_differ(mesh, lowering, quick=True) == 0


def test_training_is_that_of_one_device():
    config = gpt.GPTConfig(vocab=64, sequence=16, num_layers=2, num_heads=8, d_model=32)
    optimizer = optax.adamw(1e-3)

    def train_step(state, batch):
        params, moments = state
        loss, gradients = jax.value_and_grad(gpt.loss)(params, batch, config)
        updates, moments = optimizer.update(gradients, moments, params)
        return (optax.apply_updates(params, updates), moments), loss

    def initial_state(key):
        params = gpt.init(key, config)
        return params, optimizer.init(params)

    rng = np.random.default_rng(0)
    batches = rng.integers(0, 64, (3, 16, 17)).astype(np.int32)
    # optax's bias correction raises a float to an int32 array
    with jax.numpy_dtype_promotion("standard"):
        mesh = flowjax.make_mesh("dp=2,tp=4")
        step = sbp.parallelize(train_step, mesh=mesh, donate_argnums=0)
        plan = step.plan(jax.eval_shape(initial_state, jax.random.key(0)), batches[0])
        one_device = jax.jit(train_step, compiler_options=parity_cases.QUICK)
        state = step.init(initial_state, jax.random.key(0))
        expected = jax.jit(initial_state)(jax.random.key(0))
        assert len(plan.ties) == len(jax.tree.leaves(state))
        for batch in batches:
            before = state
            state, loss = step(state, batch)
            expected, expected_loss = one_device(expected, batch)
            np.testing.assert_allclose(loss, expected_loss, rtol=parity_cases.LOSS_TOLERANCE)
            assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
        assert_audited(plan, sbp.audit(step.lower(state, batches[0]).compile(), plan))
    error, leaf = parity_cases.largest_error(jax.device_get(state), jax.device_get(expected))
    assert error <= parity_cases.GRADIENT_TOLERANCE, leaf


def test_an_error_in_one_element_is_found():
    right = {"a": np.linspace(-2.0, 1.0, 7), "b": np.zeros(3)}
    assert parity_cases.largest_error(right, right) == (0.0, "a")
    for off, expected in ((2e-3, 1e-3), (np.nan, np.inf)):
        wrong = {"a": right["a"].copy(), "b": right["b"]}
        wrong["a"][3] += off
        error, leaf = parity_cases.largest_error(wrong, right)
        np.testing.assert_allclose(error, expected)
        assert leaf == "a"


def test_a_wrong_gradient_makes_the_script_fail(monkeypatch, capsys):
    one_device = parity_cases.one_device

    def off_by_a_thousandth(name, quick):
        loss, gradients = one_device(name, quick)
        return loss, jax.tree.map(lambda leaf: leaf * 1.001, gradients)

    only = ["--models", "mlp", "--meshes", "8", "--plans", "dp", "--quick"]
    assert check_parity.main([*only, "--lowerings", "manual"]) == 0
    out = capsys.readouterr().out
    assert "0 unplanned collectives" in out
    assert "WRONG" not in out
    monkeypatch.setattr(parity_cases, "one_device", off_by_a_thousandth)
    assert check_parity.main([*only, "--lowerings", "auto"]) == 1
    assert "WRONG: gradient" in capsys.readouterr().out


def test_unknown_model_is_one_clear_error(capsys):
    with pytest.raises(SystemExit):
        check_parity.main(["--models", "transformer"])
    assert "no model 'transformer': mlp, conv, gpt-scan," in capsys.readouterr().err
