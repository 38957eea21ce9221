"""The quantile of each method, by another computation."""

from __future__ import annotations

import math

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.utils.sampling import manual_seed
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.decisions.methods import (
    SPREAD,
    Budgeted,
    GaussianQuantile,
    LeaveOneOut,
    budgeted,
    fixed_width,
    leave_one_out_factor,
)
from benchmarks.decisions.tasks import DecisionTask, task
from benchmarks.framework.surrogates import Fixed, NoiseRefitted, SpreadLearned, with_data
from botorch_calib import ChanceConstraint
from botorch_calib.models import loo_residuals
from botorch_calib.models.spread_likelihood import LearnedSpreadLikelihood

METHODS = {method.name: method for method in budgeted()}
TASK = task("ackley", "noise")
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)


def data(t: DecisionTask, num: int = 20) -> tuple[Tensor, Tensor]:
    with manual_seed(0):
        X = torch.rand(num, t.dim, dtype=torch.double)
        return X, t.outcome.observe(X, time=0.0)


@pytest.fixture(scope="module")
def gp() -> SingleTaskGP:
    return TASK.surrogate(*data(TASK), BOUNDS, 0, None)


def test_leave_one_out_by_leaving_out(gp: SingleTaskGP) -> None:
    X, Y = data(TASK)
    residuals = []
    for i in range(len(X)):
        kept = torch.arange(len(X)) != i
        rest = with_data(gp, X[kept], Y[kept]).eval()
        with torch.no_grad():
            posterior = rest.posterior(X[i : i + 1], observation_noise=True)
            residuals.append((Y[i] - posterior.mean) / posterior.variance.sqrt())
    expected = torch.cat(residuals).square().mean().sqrt().item()
    assert leave_one_out_factor(gp) == pytest.approx(expected, rel=1e-6)
    constraint = LeaveOneOut("loo").start(TASK.outcome).constraint(gp)
    wider = GaussianQuantile("wider", expected).start(TASK.outcome).constraint(gp)
    X = torch.rand(9, 1, 2, dtype=torch.double)
    assert torch.allclose(constraint.margin(X), wider.margin(X), atol=1e-6)


def test_refitting_changes_the_noise_alone_and_finds_its_maximum(gp: SingleTaskGP) -> None:
    assert isinstance(TASK.surrogate, Fixed)
    surrogate = NoiseRefitted(TASK.surrogate, 10)
    X, Y = data(TASK, 60)
    fitted = surrogate(X, Y, BOUNDS, 0, None)
    before, after = gp.state_dict(), fitted.state_dict()
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert changed == {"likelihood.noise_covar.raw_noise"}
    # The given variance was a tenth of the true one.
    assert 3.0 < (fitted.likelihood.noise / gp.likelihood.noise).item() < 30.0

    def likelihood(factor: float) -> float:
        twin = surrogate.given(X, Y, BOUNDS, 0, None)
        twin.likelihood.noise = factor * fitted.likelihood.noise.detach()
        twin.train()
        with torch.no_grad():
            mll = ExactMarginalLogLikelihood(twin.likelihood, twin)
            return mll(twin(*twin.train_inputs), twin.train_targets).item()

    values = {factor: likelihood(factor) for factor in (0.5, 0.8, 0.97, 1.0, 1.03, 1.25, 2.0)}
    assert max(values, key=values.__getitem__) == 1.0


def test_the_rule_is_the_default_of_the_package(gp: SingleTaskGP) -> None:
    constraint = METHODS["budget"].start(TASK.outcome).constraint(gp)
    default = ChanceConstraint(gp, TASK.outcome.limit, level=0.9)
    X = torch.rand(9, 1, 2, dtype=torch.double)
    assert torch.equal(constraint.margin(X), default.margin(X))
    assert constraint.violation_bound(50) == default.violation_bound(50) == pytest.approx(15.9)
    method = METHODS["budget"]
    assert isinstance(method, Budgeted)
    assert method.constants == (10.0, 1.05, 0.2, 0.1, 7, -2.0, 8.0, 0.15, 1.1)


def test_the_rule_before_counts_misses(gp: SingleTaskGP) -> None:
    """Outcomes beyond the quantile, though within the limit, make it wider."""
    certifier = METHODS["misses"].start(TASK.outcome)
    constraint = certifier.constraint(gp)
    z = loo_residuals(gp)
    factor = ((8 + z.square().sum()) / (8 + len(z))).sqrt().clamp(max=3.0).item()
    X = torch.rand(64, 1, 2, dtype=torch.double)

    def stated(k: float) -> Tensor:
        return fixed_width(gp, TASK.outcome, factor * k).margin(X)

    assert torch.allclose(constraint.margin(X), stated(1.05), atol=1e-9)
    best = X[constraint.margin(X).argmax()]
    for number in (1, 2):
        certifier.observe(constraint, best, torch.full((1, 1), TASK.outcome.limit).double())
        expected = stated(1.05 * math.exp(0.2 * 0.9 * number))
        assert torch.allclose(constraint.margin(X), expected, atol=1e-9)
    assert (constraint.num_certified, constraint.num_violations) == (2, 0)
    confident = constraint.margin(X, 0.95)
    assert (confident < constraint.margin(X)).all()


@pytest.mark.parametrize("case", ["noise", "heteroscedastic"])
def test_noise_by_input_is_learned_every_fifth_step_and_kept_between(case: str) -> None:
    t = task("ackley", case)
    surrogate = SPREAD.surrogate(t.surrogate)
    assert isinstance(surrogate, SpreadLearned)
    gp, learned = None, []
    for step in (0, 1, 4, 5):
        X, Y = data(t, 20 + step)
        gp = surrogate(X, Y, BOUNDS, step, gp).eval()
        assert isinstance(gp.likelihood, LearnedSpreadLikelihood)
        assert len(gp.train_targets) == 20 + step
        learned.append(gp.likelihood.variances(X[:5]))
    assert torch.equal(learned[0], learned[1]) and torch.equal(learned[0], learned[2])
    assert not torch.allclose(learned[0], learned[3])
