"""Quantile recalibration: its distribution, its bound, and leave-one-out residuals."""

import math
import pickle
from copy import deepcopy
from itertools import product

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from torch import Tensor
from torch.testing import assert_close

from botorch_calib import CalibratedModel
from botorch_calib.calibration import GaussianScore, LocalizedConformal, QuantileRecalibrator, pit
from botorch_calib.calibration.learners.kernel_quantile_regression import pinball_minimizer
from botorch_calib.distributions.denoised_piecewise import SmoothedPredictive
from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.models.residuals import loo_residuals
from tests.calibration.sequences import STRATEGIES, play
from tests.contracts import CalibratorContract
from tests.long_grids import mostly_slow

DOUBLE = {"dtype": torch.double}
PAPER = {"score": GaussianScore(), "tails": "gaussian", "step_size": 0.1}


def make_data(num=60, spread=2.5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(num, 2, generator=generator, **DOUBLE)
    return X, 0.5 + spread * torch.randn(num, generator=generator, **DOUBLE)


class TestGlobal(CalibratorContract):
    def make_calibrator(self):
        return QuantileRecalibrator()


class TestLocalized(CalibratorContract):
    def make_calibrator(self):
        return QuantileRecalibrator([0.1, 0.5, 0.9], lengthscale=0.3, regularization=0.1)


class TestMixed(CalibratorContract):
    def make_calibrator(self):
        return QuantileRecalibrator(lengthscale="auto")


class TestExact(CalibratorContract):
    def make_calibrator(self):
        return QuantileRecalibrator(method="exact", lengthscale=0.4)


class TestAsPublished(CalibratorContract):
    def make_calibrator(self):
        return QuantileRecalibrator(**PAPER)


KINDS = {
    "global": {},
    "localized": {"lengthscale": 0.3},
    "mixed": {"lengthscale": "auto"},
    "exact": {"method": "exact"},
    "exact, localized": {"method": "exact", "lengthscale": 0.3},
    "paper": PAPER,
}
kinds = pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)


@pytest.mark.parametrize("calibrator", [QuantileRecalibrator([0.9]), LocalizedConformal(0.2)])
def test_levels_and_residuals_are_checked(calibrator):
    X = make_data(3)[0]
    for level in (0.0, 1.0, 2.0, math.nan, None):
        with pytest.raises(InputDataError, match="`level`"):
            calibrator.quantile(X.unsqueeze(-2), level)
    with pytest.raises(InputDataError, match="`z` must be a tensor, got list"):
        calibrator.update(X, [0.1, 0.2, 0.3])
    with pytest.raises(InputDataError, match="`X` must be a tensor, got NoneType"):
        calibrator.predictive(None)
    with pytest.raises(InputDataError, match="`u` must be a tensor, got list"):
        calibrator.tracker.update(X, [0.1, 0.2, 0.3])


@kinds
def test_initial_distribution_is_the_gaussian_one(settings):
    calibrator = QuantileRecalibrator(**settings)
    assert torch.equal(calibrator.levels, torch.arange(1, 20, **DOUBLE) / 20)
    predictive = calibrator.predictive(make_data(3)[0])
    z = torch.linspace(-4, 4, 33, **DOUBLE).view(-1, 1, 1).expand(-1, 3, 1)
    torch.testing.assert_close(predictive.cdf(z), torch.special.ndtr(z), atol=1e-9, rtol=1e-6)


@kinds
def test_distribution_has_the_learned_quantiles_in_order(settings):
    calibrator = QuantileRecalibrator(**settings)
    calibrator.update(*make_data())
    X = make_data(5, seed=1)[0]
    quantiles = calibrator.quantiles(X)
    assert quantiles.shape == (5, 19) and (quantiles.diff(dim=-1) >= 0).all()
    predictive = calibrator.predictive(X)
    assert predictive.batch_shape == (5, 1)
    stated = predictive.quantile(calibrator.levels.view(-1, 1, 1)).squeeze(-1).T
    torch.testing.assert_close(stated, quantiles, atol=1e-4, rtol=1e-4)
    fine = torch.linspace(0.001, 0.999, 400, **DOUBLE).view(-1, 1, 1)
    assert (predictive.quantile(fine).diff(dim=0) >= 0).all()


@kinds
def test_update_returns_the_distributions_that_were_met(settings):
    X, z = make_data(12)
    predictives = QuantileRecalibrator(**settings).update(X, z)
    calibrator = QuantileRecalibrator(**settings)
    for t in range(12):
        torch.testing.assert_close(
            predictives.knots[t], calibrator.predictive(X[t : t + 1]).knots[0]
        )
        calibrator.update(X[t : t + 1], z[t : t + 1])


@pytest.mark.parametrize(
    ("strategy", "step_size"),
    mostly_slow(product(STRATEGIES, [0.05, 2.0]), [("waves", 0.05), ("above", 2.0)]),
)
def test_theorem_3_with_the_corrected_update(strategy, step_size):
    """``|frequency - p| <= (1 + 2 eta) / (eta T)`` at every level, for any sequence."""
    calibrator = QuantileRecalibrator(step_size=step_size, score=GaussianScore())
    outcomes = play(calibrator.tracker, strategy, 400, target=4).double()
    for T in (1, 20, 100, 400):
        error = (outcomes[:T].mean(dim=0) - calibrator.levels).abs()
        assert (error <= (1 + 2 * step_size) / (step_size * T) + 1e-12).all()
        assert (error <= calibrator.tracker.coverage_bound(T) + 1e-12).all()


def test_neighbouring_thresholds_cross_and_their_distribution_does_not():
    """A counterexample to Lemma 4 of the paper: the raw thresholds of two levels cross."""
    calibrator = QuantileRecalibrator([0.48, 0.52], step_size=0.5, score=GaussianScore())
    # A score between the thresholds is a miss for the lower level and a hit for the higher level.
    calibrator.update(torch.zeros(1, 1, **DOUBLE), torch.zeros(1, **DOUBLE))
    low, high = calibrator.tracker.threshold(torch.zeros(1, 1, **DOUBLE)).squeeze(0)
    assert low > high
    quantiles = calibrator.quantiles(torch.zeros(1, 1, **DOUBLE))
    assert (quantiles.diff(dim=-1) > 0).all()


def make_gp(num=30, noise=0.05):
    X, _ = make_data(num)
    Y = torch.sin(6 * X.sum(dim=-1, keepdim=True)) + noise * torch.randn(num, 1, **DOUBLE)
    gp = SingleTaskGP(X, Y, input_transform=Normalize(2), outcome_transform=Standardize(1))
    gp.covar_module.lengthscale = 0.5
    gp.likelihood.noise = 0.01
    return gp.eval()


def test_leave_one_out_recalibration():
    """OCBO's Algorithm 4: the minimiser over leave-one-out PITs."""
    torch.manual_seed(0)
    gp = make_gp()
    template = QuantileRecalibrator(method="exact", **PAPER)
    model = CalibratedModel.from_history(gp, template, residuals="loo")
    u = pit(loo_residuals(gp))
    levels = template.levels
    expected = pinball_minimizer(u, levels, levels, 0.1)
    X = gp.train_inputs[0][:2]
    theta = model.calibrator.tracker.threshold(X)
    torch.testing.assert_close(theta, expected.expand(2, 19))
    assert template.num_updates == 0
    with pytest.raises(InputDataError, match="residuals"):
        CalibratedModel.from_history(gp, template, residuals="bootstrap")


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"levels": [0.5, 0.2]}, "levels"),
        ({"score": "gaussian"}, "score"),
        ({"method": "isotonic"}, "method"),
        ({"tails": "heavy"}, "tails"),
        ({"lengthscale": "best"}, "lengthscale"),
        ({"method": "exact", "lengthscale": "auto"}, "exact"),
        ({"method": "exact", "step_size": [0.1, 0.2]}, "exact"),
        ({"method": "exact", "step_decay": 0.1}, "online"),
        ({"step_size": "auto"}, "step_size"),
        ({"levels": [0.5], "tails": "stretched"}, "`levels`: omit `tails` for a single level"),
    ],
)
def test_bad_settings(settings, name):
    with pytest.raises(InputDataError, match=name):
        QuantileRecalibrator(**settings).predictive(torch.zeros(1, 1, **DOUBLE))


def test_a_level_is_found_and_read_off_raw():
    X = torch.rand(4, 1, 2, dtype=torch.double)
    made = QuantileRecalibrator([0.2, 0.9])
    assert (made.index_of(0.9), made.index_of(1 - 0.8), made.index_of(0.5)) == (1, 0, None)
    made.tracker.constants = torch.tensor([0.7, 0.6]).double()
    knots = made.score.knots(torch.tensor([0.7, 0.6]).double())
    # The distribution sorts crossed thresholds; `quantile` returns the level's raw threshold.
    torch.testing.assert_close(made.quantile(X, 0.9), knots[1].expand(4, 1, 1))
    stated = made.predictive(X).quantile(torch.tensor(0.9).double())
    torch.testing.assert_close(stated, knots[0].expand(4, 1, 1), atol=1e-5, rtol=0)
    between = made.quantile(X, 0.5)
    assert (between > knots[1]).all() and (between < knots[0]).all()


def test_levels_are_told_apart_relative_to_the_rarer_side():
    made = QuantileRecalibrator([1e-7, 0.999999, 0.9999995])
    assert [made.index_of(p) for p in (0.9999995, 0.999999, 1e-7, 2e-7)] == [2, 1, 0, None]
    assert made.index_of(1 - 1e-6) == 1 and made.index_of(0.9999992) is None
    # Levels in single precision are found by their rounded values.
    single = QuantileRecalibrator(torch.tensor([0.9, 0.9999, 0.999999]))
    assert [single.index_of(p) for p in (0.9, 0.9999, 0.999999)] == [0, 1, 2]
    assert single.index_of(0.9999995) is None


def test_a_single_level_needs_no_thought_about_tails():
    assert QuantileRecalibrator([0.9]).tails == "gaussian"
    assert QuantileRecalibrator([0.1, 0.9]).tails == "stretched"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", ["online", "exact"])
def test_quantiles_with_noise_follow_every_change_of_the_state(method, dtype):
    """Tables are keyed by the distribution's numbers, so a changed state uses a new table."""
    X, z = (v.to(dtype) for v in make_data(40))
    calibrator = QuantileRecalibrator(torch.linspace(0.1, 0.9, 9, dtype=dtype), method=method)

    def check(calibrator: QuantileRecalibrator) -> Tensor:
        predictive = calibrator.predictive(X)
        knots = predictive.standardized().finite_knots.expand(40, 1, -1).clone()
        each = PiecewisePredictive.from_form(
            knots, predictive.masses, predictive.form, predictive.scale
        )
        ratio = torch.logspace(-3, 2, 40, dtype=torch.double).unsqueeze(-1)
        values = [SmoothedPredictive(p, ratio).quantile(0.83) for p in (predictive, each)]
        assert_close(*values, rtol=1e-9, atol=1e-9)
        return values[0]

    assert calibrator.predictive(X.view(20, 2, -1)[:, :0]).batch_shape == (20, 0, 1)
    before = check(calibrator)
    calibrator.update(X, z)
    after = check(calibrator)
    assert (after - before).abs().max() > 1e-3
    twins = [deepcopy(calibrator), pickle.loads(pickle.dumps(calibrator)), calibrator.fresh()]
    twins[-1].load_state_dict(calibrator.state_dict())
    assert all(torch.equal(check(twin), after) for twin in twins)
    assert_close(check(twins[0].double()), after, rtol=0, atol=1e-5)
    for buffer in twins[1].tracker.buffers():
        if buffer.is_floating_point():
            buffer.mul_(0.9)
    assert (check(twins[1]) - after).abs().max() > 1e-3
    calibrator.reset()
    assert torch.equal(check(calibrator), before)
