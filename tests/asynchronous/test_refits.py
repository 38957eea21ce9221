"""The schedule of fits, their starts, and the model in between."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor
from torch.testing import assert_close

from botorch_calib.asynchronous import DelayAwareProposer, DelayStrategy, SearchSettings, refits
from botorch_calib.asynchronous.refits import (
    ScheduledFit,
    WarmStartedFit,
    fitted_count,
    with_later_values,
)
from botorch_calib.calibration import OnlineConformal
from botorch_calib.ledger import FeedbackLedger
from botorch_calib.models import CalibratedModel
from tests.gps import DOUBLE

BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], **DOUBLE)
CHEAP = SearchSettings(2, 16)

# Outcomes are not transformed, so that models of few and of many values have the same units.
pytestmark = pytest.mark.filterwarnings("ignore:Data.*not standardized")


def data(num: int) -> tuple[Tensor, Tensor]:
    X = draw_sobol_samples(BOUNDS, n=num, q=1, seed=3).squeeze(-2)
    return X, torch.sin(5 * X[:, :1]) + X[:, 1:] ** 2


def fit(X: Tensor, Y: Tensor) -> SingleTaskGP:
    """Set hyperparameters, and no outcome transform that would depend on the number of values."""
    gp = SingleTaskGP(X, Y, outcome_transform=None)
    gp.covar_module.lengthscale = 0.4
    gp.likelihood.noise = 1e-2
    return gp.eval()


class CountedFit:
    """Counts the values of its calls."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, X: Tensor, Y: Tensor) -> SingleTaskGP:
        self.sizes.append(len(Y))
        return fit(X, Y)


# ------------------------------------------------------------------ the schedule


@pytest.mark.parametrize("every", [1, 7, 1.05, 1.5, 3.7])
def test_the_schedule(every):
    """Each number of the schedule follows from the previous number."""
    counts = [2]
    while counts[-1] < 300:
        step = every if isinstance(every, int) else max(1, int(counts[-1] * every) - counts[-1])
        counts.append(counts[-1] + step)
    for num in range(2, 300):
        assert fitted_count(num, every) == max(count for count in counts if count <= num)


@pytest.mark.parametrize("value", [0, 1.0, torch.inf, "always", True])
def test_bad_schedules_are_named(value):
    with pytest.raises(InputDataError, match="`refit_every`"):
        DelayAwareProposer(BOUNDS, refit_every=value)
    for number, kind in ((np.int64(3), int), (np.float64(1.5), float)):
        found = DelayAwareProposer(BOUNDS, refit_every=number).refit_every
        assert found == number and type(found) is kind


# ------------------------------------------------------------------ in a proposer


@pytest.mark.parametrize("every", [1.5, 4])
def test_a_proposer_fits_by_its_schedule_and_knows_every_value(every):
    """Between fits the model has all values, and the hyperparameters of the first values."""
    counted = CountedFit()
    strategy = DelayStrategy()
    ledger = FeedbackLedger(2, censor_value=-2.0)
    X, Y = data(16)
    for x in X:
        ledger.submit(x)
    for trial, y in enumerate(Y):
        ledger.observe(trial, y.item(), time=21.0 + trial)
    propose = DelayAwareProposer(
        BOUNDS, strategy, counted, num_initial=0, search=CHEAP, refit_every=every
    )
    expected = []
    for num in range(2, 16):
        known = ledger.to_observations(20.0 + num)
        model = propose._ledger_model(ledger, 20.0 + num, strategy)
        expected = sorted({*expected, fitted_count(num, every)})
        assert counted.sizes == expected
        assert torch.equal(model.X_pending, X[num:])
        assert len(model.model.train_targets) == num
        want = fit(*known).posterior(X).mean
        assert_close(model.model.posterior(X).mean, want, rtol=0, atol=1e-9)


def test_queries_and_failures_are_no_reason_to_fit():
    counted, (X, Y) = CountedFit(), data(6)
    propose = DelayAwareProposer(BOUNDS, fit=counted, num_initial=0, choices=X, search=CHEAP)
    ledger = FeedbackLedger(2, censor_value=-2.0)
    ledger.add(X, Y)
    for _ in range(3):
        ledger.submit(propose(ledger))
    ledger.fail(7)
    propose(ledger)
    assert counted.sizes == [6]
    ledger.observe(8, 1.0)
    propose(ledger)
    propose(ledger)
    assert counted.sizes == [6, 7]
    other = FeedbackLedger(2, censor_value=-2.0)
    other.add(X, -Y)
    propose(other)
    assert counted.sizes == [6, 7, 6]


def test_a_model_is_conditioned_once_on_later_values():
    fit, (X, Y) = ScheduledFit(CountedFit(), 4, torch.device("cpu"), (0,)), data(5)
    model = fit.of_data(X, Y)
    assert model is fit.of_data(X, Y)
    other = fit.of_data(X, torch.cat([Y[:4], -Y[4:]]))
    assert model is not other is not fit.of_data(X, Y)
    assert copy.deepcopy(fit).of_data(X, Y) is not model


# ------------------------------------------------------------------ starts of the default fit


class Starts:
    """Records the starts of `fit_single_task_gp` by the number of values."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[int, Any]] = []
        fitted = refits.fit_single_task_gp

        def recorded(
            X: Tensor, Y: Tensor, bounds: Tensor, Yvar: Tensor | None = None, start: Any = None
        ) -> SingleTaskGP:
            self.seen.append((len(Y), start))
            return fitted(X, Y, bounds, Yvar, start)

        monkeypatch.setattr(refits, "fit_single_task_gp", recorded)


def test_starts_are_fits_to_half_of_the_values(monkeypatch):
    monkeypatch.setattr(refits, "LEAST_FOR_WARM_START", 8)
    starts, (X, Y) = Starts(monkeypatch), data(16)
    WarmStartedFit(BOUNDS, 1.1)(X, Y)
    assert [num for num, _ in starts.seen] == [4, 8, 16]  # the innermost first
    assert starts.seen[0][1] is None
    for (_, start), half in zip(starts.seen[1:], (4, 8), strict=True):
        gp_of_half = WarmStartedFit(BOUNDS, 1.1)(X[:half], Y[:half])
        for part, state in start.items():
            for name, value in getattr(gp_of_half, part).state_dict().items():
                assert torch.equal(state[name], value)


def test_a_warm_start_ends_within_tenths_of_the_maximum(monkeypatch):
    """Of the log likelihood, from a start that is several away from it."""
    X, Y = data(24)
    found = []
    for least in (100, 16):
        monkeypatch.setattr(refits, "LEAST_FOR_WARM_START", least)
        gp = WarmStartedFit(BOUNDS, 1)(X, Y).train()
        mll = ExactMarginalLogLikelihood(gp.likelihood, gp)
        found.append(len(Y) * mll(gp(*gp.train_inputs), gp.train_targets).item())
    assert found[1] == pytest.approx(found[0], abs=0.3)


def test_inputs_are_measured_in_widths_of_the_box():
    """The part of the box that points cover does not matter; without a box they are not scaled."""
    X, Y = data(8)
    unit = refits.fit_single_task_gp(0.5 * X, Y)
    for low, width in ((0.0, 1.0), (-5.0, 10.0)):
        gp = refits.fit_single_task_gp(low + 0.5 * width * X, Y, low + width * BOUNDS)
        found = gp.posterior(low + width * X).mean
        assert_close(found, unit.posterior(X).mean, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("level", "spread", "is_equal"),
    [(1e3, 1e-13, True), (1e3, 1e-10, False), (0.0, 1e-155, True), (0.0, 1e-152, False)],
)
def test_values_that_differ_by_rounding_or_by_next_to_nothing_are_equal(level, spread, is_equal):
    """Other values are standardised, in any unit."""
    X = data(4)[0]
    Y = level + spread * torch.tensor([[0.0], [2.0], [0.0], [2.0]], **DOUBLE)
    gp = refits.fit_single_task_gp(X, Y, BOUNDS)
    expected = torch.ones(1, 1, **DOUBLE) if is_equal else Y.std().view(1, 1)
    assert torch.equal(gp.outcome_transform.stdvs, expected)


# ------------------------------------------------------------------ values after a fit


@pytest.mark.parametrize("dtype", [torch.double, torch.float32])
def test_later_values(dtype):
    X, Y = data(12)
    gp = fit(X[:8], Y[:8]).to(dtype)
    extended: Any = with_later_values(gp, X[8:], Y[8:])
    assert len(gp.train_targets) == 8 and len(extended.train_targets) == 12
    tolerance = {torch.double: 1e-10, torch.float32: 1e-3}[dtype]
    want = fit(X, Y).posterior(X)
    found = extended.posterior(X.to(dtype))
    assert found.mean.dtype == dtype
    assert_close(found.mean.double(), want.mean, rtol=0, atol=tolerance)
    assert_close(found.variance.double(), want.variance, rtol=0, atol=tolerance)


def test_a_calibrator_learns_from_later_values_in_turn():
    X, Y = data(12)

    def calibrated(num: int) -> CalibratedModel:
        return CalibratedModel.from_history(fit(X[:num], Y[:num]), OnlineConformal(0.2))

    model, reference = calibrated(8), calibrated(8)
    before = copy.deepcopy(model.calibrator.state_dict())
    extended: Any = with_later_values(model, X[8:], Y[8:])
    for i in range(8, 12):
        reference.observe(X[i : i + 1], Y[i : i + 1])
    learned = extended.calibrator.state_dict()
    for name, value in reference.calibrator.state_dict().items():
        assert torch.equal(learned[name], value)
        assert torch.equal(model.calibrator.state_dict()[name], before[name])
    assert any(not torch.equal(learned[name], value) for name, value in before.items())
    assert_close(extended.posterior(X).mean, reference.posterior(X).mean)


# ------------------------------------------------------------------ known noise


def noise_of(gp: Any) -> Tensor:
    """Variances of the training noise in the units of the outcome."""
    variances: Tensor = gp.likelihood.noise_covar.noise * gp.outcome_transform.stdvs.squeeze() ** 2
    return variances.flatten()


def test_known_noise_of_later_values():
    X, Y = data(12)
    Yvar = torch.linspace(0.01, 0.1, 12, dtype=torch.double).unsqueeze(-1)
    gp = WarmStartedFit(BOUNDS, 1.1)(X[:9], Y[:9], Yvar[:9])
    extended = with_later_values(gp, X[9:], Y[9:], Yvar[9:])
    assert_close(noise_of(extended), Yvar.flatten())
    calibrated = CalibratedModel.from_history(gp, OnlineConformal(0.2))
    extended = with_later_values(calibrated, X[9:], Y[9:], Yvar[9:])
    assert_close(noise_of(extended.model), Yvar.flatten())
    assert_close(noise_of(gp), Yvar[:9].flatten())  # left unchanged


def test_a_model_that_learns_the_noise_has_no_use_for_known_noise():
    X, Y = data(12)
    Yvar = torch.full((4, 1), 0.1, **DOUBLE)
    plain = fit(X[:8], Y[:8])
    for model in (plain, CalibratedModel.from_history(plain, OnlineConformal(0.2))):
        given: Any = with_later_values(model, X[8:], Y[8:], Yvar)
        without: Any = with_later_values(model, X[8:], Y[8:])
        assert_close(given.posterior(X).mean, without.posterior(X).mean)


class Unlikely(Model):
    """A model without a likelihood, which only holds its data."""

    def __init__(self, X: Tensor, Y: Tensor) -> None:
        super().__init__()
        self.X, self.Y = X, Y

    def posterior(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> "Unlikely":
        return Unlikely(torch.cat([self.X, X]), torch.cat([self.Y, Y]))


def test_a_model_without_a_likelihood_is_conditioned_too():
    X, Y = data(6)
    model: Any = with_later_values(Unlikely(X[:4], Y[:4]), X[4:], Y[4:], 0 * Y[4:])
    assert_close((model.X, model.Y), (X, Y))
