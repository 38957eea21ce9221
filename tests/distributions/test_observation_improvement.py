"""The distribution without noise: quadrature, narrow pieces, derivatives, limits, both ends."""

import math

import mpmath
import pytest
import torch
from torch import Generator, Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from botorch_calib.distributions._denoised_integrals import MIN_RATIO
from botorch_calib.distributions._normal_functions import LOG_ZERO
from botorch_calib.distributions.denoised_piecewise import SmoothedPredictive, UnsmoothedPredictive
from botorch_calib.distributions.piecewise import PiecewisePredictive
from tests import oracles
from tests.long_grids import mostly_slow
from tests.predictive_examples import DECILES, KINDS, SOME_KINDS, random_predictive
from tests.random_numbers import uniform

FUNCTIONS = ["log_excess", "log_survival", "cdf", "log_prob"]


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.double)


def random_case(kind: str, num: int) -> tuple[UnsmoothedPredictive, Tensor]:
    """Distributions and points: at knots, close to them, in the bulk, far out to both sides."""
    distribution, generator = random_predictive(kind, num, seed=1), Generator().manual_seed(2)
    u = uniform(num, generator=generator)
    pick = torch.randint(distribution.form.num_pieces + 1, (num, 1), generator=generator)
    knots = distribution.knots.expand(num, -1).nan_to_num(posinf=0.0, neginf=0.0)
    edge = knots.gather(-1, pick).squeeze(-1)
    normal = torch.randn(num, dtype=torch.double, generator=generator)
    near = [
        edge,
        edge + 1e-7 * u,
        edge - 1e-4 * u,
        edge + 0.2 * u - 0.1,
        distribution.transport(normal),
    ]
    far = [37 * u, -37 * u, knots.amax(-1) + 20 * u]
    points = torch.stack([*near, *(v.expand(num) for v in far)])
    row = torch.arange(num).remainder(len(points)).unsqueeze(0)
    return UnsmoothedPredictive(distribution), points.gather(0, row).squeeze(0)


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_against_quadrature(kind):
    """Wherever the logarithm is above -700; the oracle is accurate to about 1e-13."""
    distribution, x = random_case(kind, 24 if "calibrated" in kind else 40)
    rows = zip(oracles.unbatched(distribution.predictive), x.tolist(), strict=True)
    exact = double(*(v for row in rows for v in oracles.log_tail(*row))).view(-1, 2).unbind(-1)
    for got, expected in zip(
        (distribution.log_excess(x), distribution.log_survival(x)), exact, strict=True
    ):
        seen = expected > -700
        assert seen.sum() > len(x) / 3
        assert_close(got[seen], expected[seen], rtol=0.0, atol=1e-10)
        if distribution.predictive.knots.isfinite().all():  # the oracle cuts open tails off
            assert (got[expected == -math.inf] == LOG_ZERO).all()
    rows = zip(oracles.unbatched(distribution.mirrored().predictive), (-x).tolist(), strict=True)
    lower = double(*(oracles.log_tail(*row)[1] for row in rows))
    # A node of the oracle that rounds to a point 1e-8 from an end is lost.
    assert_close(distribution.cdf(x), lower.exp(), rtol=1e-7, atol=0.0)
    assert_close(distribution.log_prob(x), distribution.predictive.log_prob(x))


def normal_mass(low: float, high: float) -> mpmath.mpf:
    """Of the interval, from the tail in which it lies."""
    low, high = (low, high) if low > 0 else (-high, -low)
    return mpmath.ncdf(-low) - mpmath.ncdf(-high)


def exact_tail(knots: list[float], masses: list[float], x: float) -> tuple[float, float]:
    """``log E(z - x)+`` and ``log P(z > x)`` of normal pieces, with digits enough to cancel."""
    with mpmath.workdps(60):
        excess = survival = mpmath.mpf(0)
        for low, high, mass in zip(knots, knots[1:], masses, strict=False):
            if high > x:
                start = max(low, x)
                above = normal_mass(start, high)
                first = mpmath.npdf(start) - mpmath.npdf(high)  # integral of z times the density
                natural = normal_mass(low, high)
                survival += mass * above / natural
                excess += mass * (first - x * above) / natural
        return float(mpmath.log(excess)), float(mpmath.log(survival))


@pytest.mark.parametrize("center", [-40.0, -1e-3, 0.7])
@pytest.mark.parametrize("width", [1e-6, 1e-3, 3e-3, 7e-3, 0.02, 0.3])
def test_narrow_pieces(center, width):
    """On both sides of where the series takes over, also where nothing lies above."""
    knots = center + width * double(-1.0, -0.4, 0.0, 0.6, 1.0)
    shares = double(-2.0, -0.9, -0.2, 0.0, 0.1, 0.59, 0.7, 0.99)
    x = center + width * shares
    for masses in ([0.1, 0.2, 0.3, 0.4], [0.5, 0.3, 0.2, 0.0]):
        distribution = PiecewisePredictive(knots, double(*masses), (False,) * 4, validate=False)
        distribution = UnsmoothedPredictive(distribution)
        points = x if masses[-1] else x[:6]
        exact = [exact_tail(knots.tolist(), masses, v) for v in points.tolist()]
        excess, survival = double(*(v for row in exact for v in row)).view(-1, 2).unbind(-1)
        assert_close(distribution.log_excess(points), excess, rtol=0.0, atol=1e-10)
        assert_close(distribution.log_survival(points), survival, rtol=0.0, atol=1e-10)


class TestBeyondTheEnds:
    knots, masses = double(-1.0, 0.5, 2.0), double(0.4, 0.6)

    @pytest.mark.parametrize("flags", [(True, True), (False, False), (False, True)])
    def test_below_and_above(self, flags):
        knots, masses = self.knots.clone().requires_grad_(), self.masses.clone().requires_grad_()
        distribution = UnsmoothedPredictive(PiecewisePredictive(knots, masses, flags))
        x = double(-50.0, -1.0, 2.0, 2.0 + 1e-12, 60.0).requires_grad_()
        for name in ("log_excess", "log_survival"):
            value = getattr(distribution, name)(x)
            grads = torch.autograd.grad(value.sum(), (x, knots, masses), retain_graph=True)
            assert (value[2:] == LOG_ZERO).all() and (grads[0][2:] == 0).all()
            assert all(grad.isfinite().all() for grad in grads)
        assert_close(distribution.log_excess(x)[:2].exp(), distribution.mean - x[:2])
        assert_close(distribution.log_survival(x)[:2].exp(), double(1.0, 1.0))
        assert_close(distribution.cdf(x), double(0.0, 0.0, 1.0, 1.0, 1.0))
        assert (distribution.log_prob(x)[[0, 4]] == -math.inf).all()


FORMS = ["gaussian", "stretched", "recalibrated", "pieces"]


def make(kind: str, parameters: Tensor, scale: Tensor) -> UnsmoothedPredictive:
    """A distribution as a function of ``n x 4`` numbers and a scale."""
    if kind == "recalibrated":
        predictive = PiecewisePredictive.recalibrated(DECILES[[1, 6, 9, 15]], knots=parameters)
    elif kind == "pieces":
        masses = parameters[..., :3].softmax(dim=-1)
        knots = parameters.square().add(0.1).cumsum(dim=-1) - 2.0
        predictive = PiecewisePredictive(knots, masses, (False, True, False), validate=False)
    else:
        width = (parameters[..., 0].abs() + 0.1).clamp(max=3.4)  # as scores hold it
        predictive = PiecewisePredictive.conformal(
            0.2, half_width=width, tails=kind, validate=False
        )
    if kind != "stretched":
        knots = predictive.finite_knots / scale.unsqueeze(-1)
        pieces = (knots, predictive.masses, predictive.form)
        predictive = PiecewisePredictive.from_form(*pieces, scale=scale)
    return UnsmoothedPredictive(predictive)


def inputs_of(num: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = Generator().manual_seed(3)
    parameters = torch.randn(num, 4, dtype=torch.double, generator=generator)
    scale = 0.5 + uniform(num, generator=generator)
    x = 1.5 * torch.randn(num, dtype=torch.double, generator=generator)
    return parameters.requires_grad_(), scale.requires_grad_(), x.requires_grad_()


@pytest.mark.parametrize("kind", mostly_slow(FORMS, ["stretched", "recalibrated"]))
class TestDerivatives:
    def test_first(self, kind):
        def function(parameters, scale, x):
            distribution = make(kind, parameters, scale)
            values = [getattr(distribution, name)(x) for name in FUNCTIONS]
            return [torch.where(value > -1e9, value, 0.0) for value in values]

        assert gradcheck(function, inputs_of(8), atol=1e-6, rtol=1e-5)

    def test_second(self, kind):
        def function(parameters, scale, x):
            distribution = make(kind, parameters, scale)
            values = distribution.log_excess(x), distribution.log_survival(x)
            return [value.clamp(min=-1e9) for value in values]

        assert gradgradcheck(function, inputs_of(2), atol=1e-5, rtol=1e-4)

    @pytest.mark.parametrize("size", [1e-3, 1.0, 20.0])
    def test_finite_everywhere(self, kind, size):
        far = double(-1e6, -300.0, -1.0, 0.0, 1e-8, 3.4, 35.0, 1e3, 1e6).requires_grad_()
        parameters, scale, _ = inputs_of(7)
        parameters = (size * parameters.detach()).requires_grad_()
        distribution = make(kind, parameters.unsqueeze(-2), scale.unsqueeze(-1))
        for name in ("log_excess", "log_survival", "cdf"):
            value = getattr(distribution, name)(far)
            grads = torch.autograd.grad(value.sum(), (parameters, scale, far), allow_unused=True)
            assert all(v is None or v.isfinite().all() for v in (value, *grads))
            distribution = make(kind, parameters.unsqueeze(-2), scale.unsqueeze(-1))


@pytest.mark.parametrize("kind", KINDS)
class TestConsistency:
    def test_limit_of_little_noise(self, kind):
        """At the smallest ratio, away from the knots: the noise adds 1e-12 to the variance."""
        distribution, x = random_case(kind, 56)
        noisy = SmoothedPredictive(distribution.predictive, torch.zeros(56, dtype=torch.double))
        gap = (x.unsqueeze(-1) - distribution.predictive.knots).abs().amin(dim=-1)
        seen = (gap > 100 * MIN_RATIO) & (distribution.log_survival(x) > -12)
        for name in FUNCTIONS:
            got, expected = getattr(distribution, name)(x), getattr(noisy, name)(x)
            seen = seen & (got > -100)  # no density beyond the ends
            assert seen.sum() > 10
            assert_close(got[seen], expected[seen], rtol=1e-5, atol=1e-5)
        assert_close(distribution.mean, noisy.mean)
        assert_close(distribution.variance, noisy.variance, rtol=1e-9, atol=1e-9)
