"""Fits in logarithms end where BoTorch's do, or higher, after fewer evaluations."""

from __future__ import annotations

import time
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.exceptions.warnings import OptimizationWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from botorch.optim.core import OptimizationStatus
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood, LeaveOneOutPseudoLikelihood
from gpytorch.priors import GammaPrior
from torch import Tensor

from botorch_calib.asynchronous.refits import fit_single_task_gp
from botorch_calib.models.hyperparameter_fits import fit_in_logarithms
from botorch_calib.models.marginal_likelihood import MarginalLikelihood

SQUARE = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)


def data(n: int, noise: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Values of a function of the first input, with noise."""
    X = draw_sobol_samples(SQUARE, n=n, q=1, seed=seed).squeeze(-2)
    generator = torch.Generator().manual_seed(seed)
    Y = (3.0 * X[:, :1]).sin() + X[:, 1:].square()
    return X, Y + noise * torch.randn(n, 1, dtype=torch.double, generator=generator)


def likelihood(gp: Any) -> Tensor:
    """The log marginal likelihood with its priors, for each datum, of each start."""
    mll = ExactMarginalLogLikelihood(gp.likelihood, gp)
    mll.train()
    with torch.no_grad():
        return mll(gp(*gp.train_inputs), gp.train_targets)


def fitted(gp: Any, **options: Any) -> tuple[float, int]:
    """The log marginal likelihood of the (first) model, and the evaluations."""
    mll = ExactMarginalLogLikelihood(gp.likelihood, gp)
    called, num = MarginalLikelihood.__call__, 0

    def counted(self: MarginalLikelihood, rows: Any) -> Any:
        nonlocal num
        num += 1
        return called(self, rows)

    with (
        mock.patch.object(MarginalLikelihood, "__call__", counted),
        mock.patch.object(mll, "forward", side_effect=mll.forward) as forward,
    ):
        fit_gpytorch_mll(mll, **options)
    assert not gp.training
    return likelihood(gp).flatten()[0].item(), num + forward.call_count


def starts(gp_of: Any, X: Tensor, Y: Tensor, noises: list[float]) -> Any:
    """A batch of models, one for each start of the noise."""
    batch = len(noises)
    gp = gp_of(X.expand(batch, *X.shape), Y.expand(batch, *Y.shape))
    gp.likelihood.noise = torch.tensor(noises, dtype=X.dtype).unsqueeze(-1)
    return gp


def standardized(X: Tensor, Y: Tensor) -> SingleTaskGP:
    outcome_transform = Standardize(1, batch_shape=X.shape[:-2])
    return SingleTaskGP(X, Y, outcome_transform=outcome_transform)


LOGARITHMS: dict[str, Any] = {"optimizer": fit_in_logarithms}


def test_the_same_maximum_in_a_third_of_the_evaluations() -> None:
    X, Y = data(24, noise=0.01)
    models = [SingleTaskGP(X, Y, outcome_transform=Standardize(1)) for _ in range(2)]
    (theirs, slow) = fitted(models[0])
    (ours, fast) = fitted(models[1], **LOGARITHMS)
    assert fast < 0.5 * slow
    assert ours == pytest.approx(theirs, abs=1e-6)
    for name, value in models[0].state_dict().items():
        torch.testing.assert_close(models[1].state_dict()[name], value, rtol=5e-3, atol=5e-3)


def test_each_start_is_searched_from_on_its_own() -> None:
    X, Y = data(20, 0.3, seed=1)
    noises, values, evaluations = [0.005, 0.1, 0.5], [], []
    for noise in noises:
        value, num = fitted(starts(standardized, X, Y, [noise]), **LOGARITHMS)
        values.append(value)
        evaluations.append(num)
    together = starts(standardized, X, Y, noises)
    best, num = fitted(together, **LOGARITHMS)
    assert best == pytest.approx(max(values), abs=1e-9)
    assert num == max(evaluations) < sum(evaluations)
    # All models have the best hyperparameters.
    torch.testing.assert_close(likelihood(together), torch.full((3,), best, dtype=torch.double))


def test_the_better_one_of_two_maxima() -> None:
    """If one search takes noise for signal, or signal for noise, a second search finds more."""
    found = []
    for seed in (0, 3):  # a better maximum than BoTorch's, and than a single search's
        X, Y = data(20, 0.3, seed)
        twice = 20 * likelihood(fit_single_task_gp(X, Y)).item()
        once = 20 * fitted(standardized(X, Y), **LOGARITHMS)[0]
        theirs = 20 * fitted(standardized(X, Y))[0]
        found.append([twice, once, theirs])
    both = torch.tensor(found, dtype=torch.double)
    gain = both[:, :1] - both[:, 1:]
    assert (gain > -1e-3).all() and (gain.amax(dim=0) > torch.tensor([0.5, 5.0])).all()


def test_other_priors_and_given_noise() -> None:
    X, Y = data(16, noise=0.1)
    values = []
    for options in ({}, LOGARITHMS):
        bounds: list[Any] = [Interval(1e-2, 1e2, transform=None, initial_value=1.0) for _ in "12"]
        kernel = RBFKernel(
            ard_num_dims=2,
            lengthscale_prior=GammaPrior(3.0, 6.0),
            lengthscale_constraint=bounds[0],
        )
        scaled = ScaleKernel(
            kernel, outputscale_prior=GammaPrior(2.0, 0.15), outputscale_constraint=bounds[1]
        )
        noise = torch.full_like(Y, 0.01)
        gp = SingleTaskGP(
            X, Y, noise, covar_module=scaled.double(), outcome_transform=Standardize(1)
        )
        values.append(fitted(gp, **options)[0])
    assert values[1] == pytest.approx(values[0], abs=1e-6)


def test_the_tolerance_reaches_the_search() -> None:
    X, Y = data(24, noise=0.1)
    found = [
        fitted(standardized(X, Y), **LOGARITHMS, optimizer_kwargs={"options": {"ftol": ftol}})
        for ftol in (2.2e-9, 1e-2)
    ]
    assert found[1][1] < found[0][1] - 3 and found[1][0] < found[0][0] - 1e-5
    assert found[0] == fitted(standardized(X, Y), **LOGARITHMS)


def test_other_objectives_are_refused() -> None:
    gp = standardized(*data(8, noise=0.1))
    with pytest.raises(UnsupportedError, match="LeaveOneOutPseudoLikelihood"):
        fit_in_logarithms(LeaveOneOutPseudoLikelihood(gp.likelihood, gp))


def test_single_precision() -> None:
    X, Y = (each.float() for each in data(16, noise=0.1))
    gp: Any = SingleTaskGP(X, Y, outcome_transform=Standardize(1))
    fitted(gp, **LOGARITHMS)
    assert gp.likelihood.noise.dtype is torch.float
    double: Any = SingleTaskGP(X.double(), Y.double(), outcome_transform=Standardize(1))
    fitted(double, **LOGARITHMS)
    torch.testing.assert_close(
        gp.likelihood.noise.double(), double.likelihood.noise, rtol=0.1, atol=0.0
    )


class Failing:
    """A likelihood that is NaN where the noise is one of the given variances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, noises: list[float], within: float) -> None:
        self.num = 0
        called = MarginalLikelihood.__call__

        def fails(likelihood: MarginalLikelihood, rows: Any) -> Any:
            values, slopes = called(likelihood, rows)
            is_given = np.abs(np.exp(rows[:, 1:2]) / np.array([noises]) - 1.0).min(axis=1) < within
            self.num += int(is_given.sum())
            return np.where(is_given, np.nan, values), np.where(is_given[:, None], np.nan, slopes)

        monkeypatch.setattr(MarginalLikelihood, "__call__", fails)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_start_that_fails_leaves_the_other(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = data(16, noise=0.1)
    noises = [0.01, 0.2]
    alone, _ = fitted(starts(standardized, X, Y, [noises[1 - failing]]), **LOGARITHMS)
    failures = Failing(monkeypatch, [noises[failing]], within=1e-12)
    value, _ = fitted(starts(standardized, X, Y, noises), **LOGARITHMS, max_attempts=1)
    assert failures.num
    assert value == pytest.approx(alone, abs=1e-12)


def test_a_fit_from_which_no_start_succeeds_is_repeated_from_the_priors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, Y = data(16, noise=0.1)
    alone, _ = fitted(standardized(X, Y), **LOGARITHMS)
    failures = Failing(monkeypatch, [0.01, 0.2], within=1e-6)
    torch.manual_seed(0)
    value, _ = fitted(starts(standardized, X, Y, [0.01, 0.2]), **LOGARITHMS)
    assert failures.num
    assert value > alone - 1e-4


def test_equal_points_with_almost_no_noise() -> None:
    """The covariance is singular but for the noise, and the least variance is 1e-4."""
    X, Y = data(8, noise=0.0)
    gp = standardized(X.repeat(20, 1), Y.repeat(20, 1))
    gp.covar_module.lengthscale = 10.0
    value, _ = fitted(gp, **LOGARITHMS)
    assert np.isfinite(value) and value > -10.0


def test_the_timeout_is_for_all_starts() -> None:
    X, Y = data(16, noise=0.1)
    gp = starts(standardized, X, Y, [0.01, 0.2, 0.5])
    mll = ExactMarginalLogLikelihood(gp.likelihood, gp)
    before, called, num = likelihood(gp), MarginalLikelihood.__call__, 0

    def slow(self: MarginalLikelihood, rows: Any) -> Any:
        nonlocal num
        num += 1
        time.sleep(0.2)
        return called(self, rows)

    with (
        mock.patch.object(MarginalLikelihood, "__call__", slow),
        pytest.warns(OptimizationWarning, match="out"),
    ):
        result = fit_in_logarithms(mll, timeout_sec=0.5)
    # Three evaluations take longer; each step is of one or two, where whole searches take twelve.
    assert result.status is OptimizationStatus.STOPPED and num <= 6
    assert -result.fval > before.max()


def test_a_fit_without_enough_time_is_kept_with_a_warning() -> None:
    X, Y = data(16, noise=0.1)
    gp = standardized(X, Y)
    with pytest.warns(OptimizationWarning, match="^Optimization timed out after ") as warned:
        _, num = fitted(gp, **LOGARITHMS, optimizer_kwargs={"timeout_sec": 0.0})
    assert len(warned) == 1 and num <= 4  # nothing was tried again


@pytest.mark.parametrize("least", [-0.5, 0.5], ids=["better", "worse"])
def test_a_search_that_gives_up_counts_by_its_likelihood(
    least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two searches ends at a wall, before or beyond the maximum that the other finds."""
    X, Y = data(20, 0.3)
    noises = [0.005, 0.5]
    found = [-fitted(starts(standardized, X, Y, [noise]), **LOGARITHMS)[0] for noise in noises]
    low, high = sorted((0, 1), key=lambda i: found[i])
    assert found[high] - found[low] > 0.01
    wall = found[high] + least * (found[high] - found[low])
    called, gave_up = MarginalLikelihood.__call__, []

    def with_wall(self: MarginalLikelihood, rows: Any) -> Any:
        values, slopes = called(self, rows)
        # The search that starts with less noise stays at less noise.
        is_low = (rows[:, 1] < np.log(np.sqrt(noises[0] * noises[1]))) == (low == 0)
        beyond = (-values / len(Y) < wall) & is_low
        gave_up.append(beyond.any())
        return np.where(beyond, np.nan, values), slopes

    monkeypatch.setattr(MarginalLikelihood, "__call__", with_wall)
    gp = starts(standardized, X, Y, noises)
    mll = ExactMarginalLogLikelihood(gp.likelihood, gp)
    result = fit_in_logarithms(mll)  # without a warning, as the other search succeeds
    assert any(gave_up)
    assert result.status is not OptimizationStatus.FAILURE
    loss = -likelihood(gp)
    torch.testing.assert_close(loss, torch.full_like(loss, result.fval))
    if least < 0.0:
        assert wall <= result.fval < found[high] - 1e-3
    else:
        assert loss[0].item() == pytest.approx(found[high], abs=1e-9)


def test_a_bound_of_each_lengthscale() -> None:
    X, Y = data(24, noise=0.1)
    least = torch.tensor([[0.5, 0.1]], dtype=torch.double)
    values = []
    for options in ({}, LOGARITHMS):
        kernel = RBFKernel(
            ard_num_dims=2,
            lengthscale_constraint=GreaterThan(least, transform=None, initial_value=2.0 * least),
        )
        gp = SingleTaskGP(X, Y, covar_module=kernel.double(), outcome_transform=Standardize(1))
        value, _ = fitted(gp, **options)
        assert (kernel.lengthscale > least * (1.0 - 1e-9)).all()
        values.append(value)
    assert values[1] == pytest.approx(values[0], abs=1e-5)
