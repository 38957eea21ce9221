"""What each method states, by another computation."""

from __future__ import annotations

from statistics import NormalDist

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.utils.sampling import manual_seed
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.decisions.methods import (
    GaussianQuantile,
    LeaveOneOut,
    Recalibrated,
    compared,
    factors,
    leave_one_out_factor,
)
from benchmarks.decisions.tasks import DecisionTask, task
from benchmarks.framework.surrogates import Fixed, NoiseRefitted, with_data
from botorch_calib import ChanceConstraint

METHODS = {method.name: method for method in compared()}
Z = NormalDist().inv_cdf(0.9)
TASK = task("ackley", "noise")
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)


def data(t: DecisionTask, num: int = 20) -> tuple[Tensor, Tensor]:
    with manual_seed(0):
        X = torch.rand(num, t.dim, dtype=torch.double)
        return X, t.outcome.observe(X, time=0.0)


@pytest.fixture(scope="module")
def gp() -> SingleTaskGP:
    return TASK.surrogate(*data(TASK), BOUNDS, 0, None)


def test_the_names_are_those_of_the_protocol() -> None:
    assert list(METHODS) == [
        "plain",
        "wide",
        "loo",
        "refit",
        "recalibrated",
        "localized",
        "plain_050",
        "plain_075",
        "plain_200",
        "plain_300",
    ]
    assert list(factors().values()) == [0.5, 0.75, 1.0, 1.5, 2.0, 3.0]
    assert factors()["plain"] == 1.0
    assert factors()["wide"] == 1.5


@pytest.mark.parametrize(("name", "factor"), factors().items())
def test_multiples_of_the_gaussian_quantile(gp: SingleTaskGP, name: str, factor: float) -> None:
    constraint = METHODS[name].start(TASK.outcome).constraint(gp)
    X = torch.rand(50, 1, 2, dtype=torch.double)
    with torch.no_grad():
        posterior = gp.posterior(X, observation_noise=True)
        quantile = posterior.mean + factor * Z * posterior.variance.sqrt()
        margin = constraint.margin(X)
    assert torch.allclose(margin, TASK.outcome.limit - quantile.flatten(), atol=1e-10)


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
    surrogate = METHODS["refit"].surrogate(TASK.surrogate)
    assert isinstance(surrogate, NoiseRefitted)
    X, Y = data(TASK, 60)
    fitted = surrogate(X, Y, BOUNDS, 0, None)
    before, after = gp.state_dict(), fitted.state_dict()
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert changed == {"likelihood.noise_covar.raw_noise"}
    # Given was a tenth of the true variance.
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


def test_the_noise_is_fitted_in_every_tenth_round() -> None:
    surrogate = METHODS["refit"].surrogate(TASK.surrogate)
    X, Y = data(TASK, 40)
    noises, previous = [], None
    for step in (0, 1, 9, 10, 11):
        previous = surrogate(X[: 20 + step], Y[: 20 + step], BOUNDS, step, previous)
        noises.append(previous.likelihood.noise.item())
    assert noises[0] == noises[1] == noises[2] != noises[3] == noises[4]


def test_where_the_model_is_fitted_anyway_refitting_is_plain() -> None:
    given = task("ackley", "drift").surrogate
    assert METHODS["refit"].surrogate(given) is given
    for name in METHODS.keys() - {"refit"}:
        assert METHODS[name].surrogate(TASK.surrogate) is TASK.surrogate


def test_recalibrated_is_the_default_of_the_package(gp: SingleTaskGP) -> None:
    constraint = METHODS["recalibrated"].start(TASK.outcome).constraint(gp)
    default = ChanceConstraint.from_history(gp, TASK.outcome.limit, level=0.9)
    X = torch.rand(9, 1, 2, dtype=torch.double)
    assert torch.equal(constraint.margin(X), default.margin(X))
    assert repr(constraint.calibrator) == repr(default.calibrator)
    assert constraint.violation_bound(50) == default.violation_bound(50) < 50


@pytest.mark.parametrize("name", ["recalibrated", "localized"])
def test_learners_are_carried_on_and_have_a_bound(gp: SingleTaskGP, name: str) -> None:
    method = METHODS[name]
    assert isinstance(method, Recalibrated)
    certifier = method.start(TASK.outcome)
    first = certifier.constraint(gp)
    seen = first.calibrator.num_updates
    assert seen == 20
    with torch.no_grad():
        X = torch.rand(200, 1, 2, dtype=torch.double)
        x = X[first.margin(X).argmax()]
        stated = first.margin(x.unsqueeze(0)).item()
    assert stated > 0.0
    certifier.observe(first, x, torch.full((1, 1), TASK.outcome.limit + 5.0, dtype=torch.double))
    second = certifier.constraint(gp)
    assert (second.num_observed, second.num_violations) == (1, 1)
    assert second.calibrator.num_updates == seen + 1
    # A violation makes it more cautious there.
    assert second.margin(x.unsqueeze(0)).item() < stated
    assert 0.0 < second.violation_bound(10**5) < 0.15 * 10**5
    # Replicates do not share what they learn.
    assert method.start(TASK.outcome).constraint(gp).calibrator.num_updates == seen
