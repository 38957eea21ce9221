"""The calibrated posterior: contract, oracle, Gaussian special case, limits, samples, errors."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch
from botorch.acquisition import (
    ExpectedImprovement,
    LogExpectedImprovement,
    ProbabilityOfImprovement,
)
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models import SingleTaskGP
from botorch.posteriors import GPyTorchPosterior, TransformedPosterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from torch import Generator, Size, Tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

from botorch_calib.posteriors import CalibratedPosterior
from botorch_calib.posteriors.calibrated import EXCESS
from tests import oracles
from tests.contracts import PosteriorContract
from tests.posteriors.examples import (
    CORRECTED,
    KINDS,
    draws_for,
    make,
    make_base,
    make_points,
    make_predictive,
)
from tests.random_numbers import uniform

BEST = 0.4


class ContractOfCalibrated(PosteriorContract):
    batch_shapes: ClassVar[tuple[Size, ...]] = (Size([2, 3]),)  # others: of one kind
    kind: str
    denoise = True

    def make_posterior(self, batch_shape, q, dtype):
        X = make_points(*batch_shape, q=q, dtype=dtype).requires_grad_()
        return make(self.kind, X, denoise=self.denoise)


class TestConformal(ContractOfCalibrated):
    batch_shapes = PosteriorContract.batch_shapes
    kind = "conformal"


class TestRecalibrated(ContractOfCalibrated):
    kind = "recalibrated"


class TestStretchedObservation(ContractOfCalibrated):
    kind = "stretched"
    denoise = False


class TestSkewedObservation(ContractOfCalibrated):
    kind = "skewed"
    denoise = False


class TestGaussianPredictive:
    """With a distribution of one normal piece, values equal the Gaussian process's values."""

    X = make_points(3, q=1)

    @pytest.fixture
    def model(self) -> SingleTaskGP:
        train_X = uniform(8, 2, generator=Generator().manual_seed(1))
        train_Y = (4 * train_X).sin().sum(dim=-1, keepdim=True)
        train_Y = (train_Y - train_Y.mean()) / train_Y.std()
        model = SingleTaskGP(train_X, train_Y, outcome_transform=None)
        model.likelihood.noise = torch.tensor([0.05])
        return model.eval()

    @pytest.mark.filterwarnings("ignore:ExpectedImprovement has known numerical issues")
    def test_acquisition_functions(self, model):
        base = model.posterior(self.X)
        posterior = CalibratedPosterior(base, make_predictive("gaussian", self.X), 0.05)
        best = torch.tensor([-30.0, 0.4, 1.0, 25.0], dtype=torch.double)
        for function, name in (
            (LogExpectedImprovement, "log_expected_improvement"),
            (ExpectedImprovement, "expected_improvement"),
            (ProbabilityOfImprovement, "probability_of_improvement"),
        ):
            for best_f in best:
                expected = function(model, best_f)(self.X)
                value = getattr(posterior, name)(best_f)
                assert value.shape == (3, 1, 1)
                assert_close(value.view(-1), expected.detach(), rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("denoise", [True, False])
    def test_marginals(self, model, denoise):
        base = model.posterior(self.X, observation_noise=not denoise)
        posterior = CalibratedPosterior(
            model.posterior(self.X), make_predictive("gaussian", self.X), 0.05, denoise=denoise
        )
        assert_close(posterior.mean, base.mean)
        assert_close(posterior.variance, base.variance)
        levels = torch.tensor([1e-6, 0.2, 0.5, 0.99], dtype=torch.double)
        values = base.quantile(levels)
        assert_close(posterior.quantile(levels), values, rtol=1e-6, atol=1e-6)
        for level, value in zip(levels, values, strict=True):
            assert_close(posterior.cdf(value), level.expand(3, 1, 1), rtol=1e-5, atol=0.0)
            normal = torch.distributions.Normal(base.mean, base.variance.sqrt())
            density = normal.log_prob(value).exp()
            assert_close(posterior.density(value), density, rtol=1e-5, atol=1e-12)


def standard_units(
    posterior: CalibratedPosterior, noise: float, excess: str = "noise"
) -> tuple[Tensor, Tensor, Tensor]:
    """Location, unit and noise ratio, from the definitions in the design."""
    mean, variance = posterior.target_mean, posterior.target_variance
    total = variance + noise
    gain = variance / total
    if excess == "objective" and posterior.predictive is not None:
        gain = torch.maximum(gain, 1 - noise / (posterior.predictive.variance * total))
    return mean, gain * total.sqrt(), (noise / (gain * total)).sqrt()


@pytest.mark.parametrize("kind", CORRECTED)
@pytest.mark.parametrize("noise", [1e-4, 0.3, 50.0])
@pytest.mark.parametrize("excess", EXCESS)
def test_against_quadrature(kind, noise, excess):
    double, single = (
        make(kind, make_points(2, q=3, dtype=dtype), noise, excess=excess)
        for dtype in (torch.double, torch.float)
    )
    location, unit, ratio = standard_units(double, noise, excess)
    value = double.quantile(torch.tensor(0.8, dtype=torch.double)) + 0.2
    x = ((value - location) / unit).flatten().tolist()
    rows = zip(oracles.unbatched(double.predictive), ratio.flatten().tolist(), x, strict=True)
    exact = [oracles.smoothed(*row) for row in rows]

    def expected(name: str, factor: Any = 1.0, offset: Any = 0.0) -> Tensor:
        numbers = torch.tensor([getattr(e, name) for e in exact], dtype=torch.double)
        return factor * numbers.view(2, 3, 1) + offset

    for posterior, tol in ((double, 1e-7), (single, 2e-3)):
        for got, want in (
            (posterior.log_expected_improvement(value), expected("log_excess", 1.0, unit.log())),
            (posterior.expected_improvement(value).log(), expected("log_excess", 1.0, unit.log())),
            (posterior.probability_of_improvement(value).log(), expected("log_survival")),
            (posterior.log_probability_between(None, value), expected("log_cdf")),
            (posterior.cdf(value).log(), expected("log_cdf")),
            (posterior.density(value).log(), expected("log_prob", 1.0, -unit.log())),
            (posterior.mean, expected("mean", unit, location)),
            (posterior.variance, expected("variance", unit.square())),
        ):
            assert got.dtype == posterior.dtype
            assert_close(got.double(), want, rtol=tol, atol=tol)


@pytest.mark.parametrize("kind", KINDS)
class TestEachKind:
    @pytest.mark.parametrize("excess", EXCESS)
    def test_affine(self, kind, excess):
        X, value = make_points(3, q=2), torch.tensor([-0.5, 0.2, 1.7], dtype=torch.double)
        posterior = make(kind, X, excess=excess)
        levels = torch.tensor([0.1, 0.6], dtype=torch.double)
        mirror, scaled = posterior.affine(-1.0), posterior.affine(2.5, offset=-1.0)
        assert mirror.excess == scaled.excess == excess
        assert_close(mirror.mean, -posterior.mean)
        assert_close(mirror.variance, posterior.variance)
        assert_close(mirror.cdf(-value), 1 - posterior.cdf(value))
        assert_close(mirror.density(-value), posterior.density(value))
        assert_close(mirror.quantile(levels), -posterior.quantile(1 - levels))
        assert_close(mirror.affine(-1.0).quantile(levels), posterior.quantile(levels))
        assert_close(scaled.mean, 2.5 * posterior.mean - 1.0)
        assert_close(scaled.quantile(levels), 2.5 * posterior.quantile(levels) - 1.0)
        assert_close(scaled.cdf(2.5 * value - 1.0), posterior.cdf(value))
        # E(c - f)+ is the improvement of the mirrored posterior.
        gain = posterior.expected_improvement(BEST) - mirror.expected_improvement(-BEST)
        assert_close(gain, posterior.mean - BEST)
        draws = draws_for(posterior, 5)
        samples = posterior.rsample_from_base_samples(Size([5]), draws)
        assert_close(mirror.rsample_from_base_samples(Size([5]), -draws), -samples)
        assert_close(scaled.rsample_from_base_samples(Size([5]), draws), 2.5 * samples - 1.0)

    @pytest.mark.parametrize("weight", [-(2.0**-24), 2.0**24])
    def test_affine_in_other_units(self, kind, weight):
        """Values scale with the units, even if variances are below GPyTorch's minimum."""
        X, level = make_points(3, q=2), 0.8
        posterior = make(kind, X)
        scaled, same = posterior.affine(weight), posterior.affine(math.copysign(1.0, weight))
        assert_close(scaled.mean / abs(weight), same.mean)
        assert_close(scaled.variance / weight**2, same.variance)
        assert_close(scaled.quantile(level) / abs(weight), same.quantile(level))
        improvement = scaled.log_expected_improvement(BEST * abs(weight)) - math.log(abs(weight))
        assert_close(improvement, same.log_expected_improvement(BEST))
        draws = draws_for(posterior, 5)
        samples, others = (p.rsample_from_base_samples(Size([5]), draws) for p in (scaled, same))
        assert_close(samples / abs(weight), others)

    def test_without_noise(self, kind):
        """No noise: the objective is the observation, also under maps."""
        X, value = make_points(3, q=2), torch.tensor(0.7, dtype=torch.double)
        posterior = make(kind, X, 0.0)
        observed = make(kind, X, 0.0, denoise=False)
        location, deviation, _ = standard_units(posterior, 0.0)
        predictive, z = make_predictive(kind, X), (value - location) / deviation
        assert_close(posterior.mean, location + deviation * predictive.mean)
        assert_close(posterior.variance, deviation.square() * predictive.variance)
        for other in (posterior, observed):
            assert_close(other.cdf(value), predictive.cdf(z), rtol=1e-5, atol=1e-5)
            quantile = location + deviation * predictive.quantile(0 * z + 0.3)
            level = torch.tensor(0.3, dtype=torch.double)
            assert_close(other.quantile(level), quantile, rtol=1e-5, atol=1e-5)
        draws = draws_for(posterior, 5)
        for exact, other in (
            (posterior, observed),
            (posterior.affine(-2.0), observed.affine(-2.0)),
        ):
            log_ei = [p.log_expected_improvement(BEST) for p in (exact, other)]
            assert torch.equal(*log_ei)
            samples = [p.rsample_from_base_samples(Size([5]), draws) for p in (exact, other)]
            assert_close(*samples)
        little = make(kind, X, torch.tensor(0.0)).log_expected_improvement(BEST)
        assert_close(posterior.log_expected_improvement(BEST), little, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("noise", [0.0, 1e-6, 1e12])
    def test_gradients_are_finite(self, kind, noise):
        X = torch.cat([make_points(4, q=1), torch.zeros(1, 1, 2).double()]).requires_grad_()
        posterior = make(kind, X, noise)
        level = torch.tensor(0.9, dtype=torch.double)
        values = [
            posterior.mean,
            posterior.variance,
            posterior.quantile(level),
            posterior.rsample(),
        ]
        for best in (-5.0, 0.4, 15.0):
            values += [posterior.log_expected_improvement(best), posterior.cdf(level * best)]
        for value in values:
            (grad,) = torch.autograd.grad(value.sum(), X, retain_graph=True)
            assert value.isfinite().all() and grad.isfinite().all()

    def test_gradcheck(self, kind):
        def function(X, noise, best):
            posterior = make(kind, X, noise)
            return (
                posterior.log_expected_improvement(best),
                posterior.probability_of_improvement(best),
                posterior.density(best),
                posterior.mean,
                posterior.variance,
                posterior.rsample_from_base_samples(Size([2]), draws),
            )

        X, noise = make_points(2, q=2), torch.full((2, 2, 1), 0.2, dtype=torch.double)
        draws = torch.randn(2, 2, 2, 2, dtype=torch.double, generator=Generator().manual_seed(0))
        best = torch.tensor(0.6, dtype=torch.double)
        inputs = tuple(v.requires_grad_() for v in (X, noise, best))
        assert gradcheck(function, inputs, atol=1e-5, rtol=1e-3)


X = make_points(3, q=2)
PREDICTIVE = make_predictive("conformal", X)
WIDE = torch.ones(4, 3, 2, 1, dtype=torch.double)


def two_outputs() -> GPyTorchPosterior:
    return GPyTorchPosterior(
        MultitaskMultivariateNormal(torch.zeros(2, 2).double(), torch.eye(4).double())
    )


FINITE = "NaN or infinite"
BAD_ARGUMENTS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "transformed": (
        {"posterior": TransformedPosterior(make_base(X), torch.exp)},
        UnsupportedError,
        "Transformed",
    ),
    "two outputs": ({"posterior": two_outputs()}, BotorchTensorDimensionError, "single output"),
    "fewer points": (
        {"predictive": make_predictive("conformal", X[:2])},
        BotorchTensorDimensionError,
        "predict",
    ),
    "wide noise": ({"noise_variance": WIDE}, BotorchTensorDimensionError, "`noise_variance`"),
    "short noise": (
        {"noise_variance": WIDE[0, :2]},
        BotorchTensorDimensionError,
        "`noise_variance`",
    ),
    "negative noise": ({"noise_variance": -0.1}, InputDataError, "`noise_variance`"),
    "infinite noise": ({"noise_variance": math.inf}, InputDataError, "`noise_variance`.*inf"),
    "bool for noise": ({"noise_variance": True}, InputDataError, "`noise_variance`.*denoise=False"),
    "NaN in noise": ({"noise_variance": WIDE[0] * math.nan}, InputDataError, FINITE),
    "negative in noise": (
        {"noise_variance": torch.tensor(-0.1)},
        InputDataError,
        "`noise_variance`.*at least 0",
    ),
    "complex noise": ({"noise_variance": torch.tensor(1j)}, InputDataError, "`noise_variance`"),
    "predictive": ({"predictive": "gaussian"}, UnsupportedError, "`predictive`.*got str"),
    "no posterior": ({"posterior": None}, UnsupportedError, "`posterior`.*got NoneType"),
    "denoise": ({"denoise": "no"}, InputDataError, "`denoise`"),
    "excess": ({"excess": "everyone"}, InputDataError, "`excess`"),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_wrong_arguments_are_named(name: str) -> None:
    given, error, message = BAD_ARGUMENTS[name]
    arguments: dict[str, Any] = {
        "posterior": make_base(X),
        "predictive": PREDICTIVE,
        "noise_variance": 0.1,
    }
    CalibratedPosterior(**arguments)
    with pytest.raises(error, match=message):
        CalibratedPosterior(**arguments | given)


def test_noise_that_overflows_in_single_precision() -> None:
    base = make_base(X)
    normal = MultivariateNormal(
        base.mean.squeeze(-1).float(), base.distribution.lazy_covariance_matrix.float()
    )
    single = GPyTorchPosterior(normal)
    with pytest.raises(InputDataError, match="`noise_variance`.*infinite"):
        CalibratedPosterior(single, PREDICTIVE, 1e40)
    assert CalibratedPosterior(single, PREDICTIVE, 1e30).variance.isfinite().all()


def test_no_limits_hold_surely() -> None:
    posterior = make("conformal", X)
    assert_close(posterior.log_probability_between(None, None), torch.zeros_like(posterior.mean))


def test_method_errors():
    posterior = make("conformal", X)
    for level in (0.0, 1.0, -0.1, math.nan):
        with pytest.raises(InputDataError, match="`value`"):
            posterior.quantile(torch.tensor(level))
    for level in (None, "median"):
        with pytest.raises(InputDataError, match="`value`"):
            posterior.quantile(level)
    with pytest.raises(InputDataError, match="`weight`"):
        posterior.affine(0.0)
    with pytest.raises(RuntimeError, match="sample_shape"):
        posterior.rsample_from_base_samples(Size([3]), torch.zeros(2, *posterior.base_sample_shape))


@pytest.mark.parametrize("kind", KINDS)
def test_many_values_at_once_and_none(kind):
    """A vector of ``k`` numbers gains a leading dimension, whatever ``k`` and the batch."""
    for batch_shape in ((), (2,), (3,), (0,), (2, 0)):
        posterior = make(kind, make_points(*batch_shape, q=2))
        for k in (0, 2, 3):
            values = torch.linspace(-1, 2, k, dtype=torch.double)
            for function in (posterior.cdf, posterior.density):
                rows = [function(value) for value in values]
                expected = torch.stack(rows) if rows else values.new_empty(0, *batch_shape, 2, 1)
                assert_close(function(values), expected)
            levels = torch.linspace(0.1, 0.9, k, dtype=torch.double)
            assert posterior.quantile(levels).shape == (k, *batch_shape, 2, 1)
