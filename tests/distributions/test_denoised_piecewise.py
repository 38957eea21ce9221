"""The smoothed distribution against quadrature, its derivatives, limits and consistency."""

import math

import pytest
import torch
from torch import Generator, Tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

from botorch_calib.distributions import _denoised_integrals
from botorch_calib.distributions._piece_integrals import log_integrals_by_pieces
from botorch_calib.distributions.denoised_piecewise import SmoothedPredictive, UnsmoothedPredictive
from botorch_calib.distributions.form import Pieces
from botorch_calib.distributions.piecewise import PiecewisePredictive
from tests import oracles
from tests.long_grids import mostly_slow
from tests.predictive_examples import KINDS, SOME_KINDS, random_predictive, smoothed_by
from tests.random_numbers import uniform

FUNCTIONS = ["log_excess", "log_survival", "cdf", "log_prob"]
# Knots at the cap are moved apart by a millionth, and their difference is rounded.
TOLERANCE = {"recalibrated": 2e-6}


def random_case(kind: str, num: int) -> tuple[SmoothedPredictive, Tensor]:
    """Smoothed distributions and points at and beyond knots, in the bulk, and far out."""
    distribution, generator = random_predictive(kind, num, seed=1), Generator().manual_seed(2)
    ratio = 10 ** (6 * uniform(num, generator=generator) - 4)
    normal = torch.randn(num, dtype=torch.double, generator=generator)
    pick = torch.randint(distribution.form.num_pieces + 1, (num, 1), generator=generator)
    knots = distribution.knots.expand(num, -1).nan_to_num(posinf=0.0, neginf=0.0)
    edge = knots.gather(-1, pick).squeeze(-1)
    deviation = (distribution.variance + ratio.square()).sqrt()
    u = uniform(num, generator=generator)
    kinds = [
        edge + 2 * ratio * normal,
        distribution.mean + 2 * deviation * normal,
        edge,
        0 * u,
        -10 * u,
    ]
    points = torch.stack([*kinds, 37 * u * deviation, knots.amax(-1) + 37 * ratio * u])
    row = torch.arange(num).remainder(len(points)).unsqueeze(0)
    return SmoothedPredictive(distribution, ratio), points.gather(0, row).squeeze(0)


def compare(kind: str, num: int, atol: float, floor: float) -> None:
    """Compare with quadrature wherever the logarithm is above ``floor``."""
    distribution, x = random_case(kind, num)
    rows = zip(
        oracles.unbatched(distribution.predictive),
        distribution.noise.tolist(),
        x.tolist(),
        strict=True,
    )
    exact = [oracles.smoothed(*row) for row in rows]
    for name in FUNCTIONS:
        got = getattr(distribution, name)(x)
        got = got.log() if name == "cdf" else got
        field = "log_cdf" if name == "cdf" else name
        expected = torch.tensor([getattr(e, field) for e in exact], dtype=torch.double)
        seen = expected > floor
        assert seen.sum() > num / 2
        assert_close(got[seen], expected[seen], rtol=0.0, atol=atol, msg=lambda m: f"{name}: {m}")  # noqa: B023
    mean = torch.tensor([e.mean for e in exact], dtype=torch.double)
    variance = torch.tensor([e.variance for e in exact], dtype=torch.double)
    assert_close((distribution.mean - mean) / variance.sqrt(), 0 * mean, rtol=0.0, atol=1e-9)
    assert_close(distribution.variance, variance, rtol=1e-8, atol=0.0)


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_against_quadrature(kind):
    compare(kind, 21 if "calibrated" in kind else 42, TOLERANCE.get(kind, 1e-9), floor=-700.0)


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_quantiles_at_many_levels(kind):
    """Found together they are as exact as each alone, in the order of the levels."""
    distribution, _ = random_case(kind, 35)
    levels = torch.tensor([0.77, 1e-12, 0.5, 1 - 1e-9, 0.01, 0.3], dtype=torch.double)
    values = distribution.quantile(levels.view(-1, 1))
    assert values.shape == (6, 35)
    for level, x in zip(levels.tolist(), values, strict=True):
        if level < 0.5:
            probability, tail = distribution.cdf(x), level
        else:
            probability, tail = distribution.log_survival(x).exp(), 1 - level
        tail = torch.full_like(x, tail)
        assert_close(probability, tail, rtol=TOLERANCE.get(kind, 1e-7), atol=0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_mirrored(kind):
    distribution, x = random_case(kind, 50)
    twin = distribution.mirrored()
    assert_close(twin.mean, -distribution.mean)
    assert_close(twin.variance, distribution.variance)
    assert_close(twin.log_prob(-x), distribution.log_prob(x))
    assert_close(twin.cdf(-x), distribution.log_survival(x).exp())
    assert_close(twin.quantile(0.2), -distribution.quantile(0.8), rtol=1e-8, atol=1e-8)
    assert_close(twin.mirrored().log_excess(x), distribution.log_excess(x))


@pytest.mark.parametrize("kind", SOME_KINDS)
@pytest.mark.parametrize("level", [1e-6, 0.77])
@pytest.mark.parametrize("noise", [True, False])
def test_mean_below(kind, level, noise):
    smoothed, _ = random_case(kind, 6)
    if not noise:
        smoothed = UnsmoothedPredictive(smoothed.predictive)
    value, q = smoothed.mean_below(level), smoothed.quantile(level)
    ratios = smoothed.noise.tolist() if noise else [0.0] * 6
    rows = zip(oracles.unbatched(smoothed.predictive), ratios, q.tolist(), strict=True)
    expected = torch.tensor([oracles.mean_below(*row) for row in rows], dtype=torch.double)
    scale = smoothed.variance.sqrt()
    assert_close(value / scale, expected / scale, rtol=1e-7, atol=1e-8)
    # The greatest value of the function of q that is taken at the quantile.
    for shift in (-0.1, 0.1):
        other = q + shift * scale
        bound = other - smoothed.mirrored().log_excess(-other).exp() / level
        assert (bound <= value + 1e-8 * scale).all()


@pytest.mark.parametrize("kind", ["gaussian", "stretched", "recalibrated"])
@pytest.mark.parametrize("level", mostly_slow([0.1, 1 - 1e-6], [0.1]))
def test_derivative_of_mean_below(kind, level):
    """The quantile moves as well, which is not felt to first order."""
    parameters, ratio, _ = parameters_of(kind, 4)
    for function in (
        lambda p, r: smoothed_by(kind, p, r).mean_below(level),
        lambda p, r: UnsmoothedPredictive(smoothed_by(kind, p, r).predictive).mean_below(level),
    ):
        assert gradcheck(function, (parameters, ratio), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("kind", ["gaussian", "stretched", "recalibrated", "uniform"])
def test_points_broadcast_against_the_batch(kind):
    distribution, _ = random_case(kind, 4)
    x = torch.randn(2, 3, 4, dtype=torch.double, generator=Generator().manual_seed(0))
    for name in FUNCTIONS:
        function = getattr(distribution, name)
        rows = torch.stack([function(row) for row in x.reshape(-1, 4)])
        assert_close(function(x), rows.view(x.shape))


def parameters_of(kind: str, num: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = Generator().manual_seed(3)
    u, v = uniform(num, generator=generator), uniform(num, 3, generator=generator)
    parameters = 0.1 + 0.8 * v if kind == "recalibrated" else 0.1 + 3 * u
    ratio = 10 ** (2.5 * uniform(num, generator=generator) - 1.7)
    x = 2 * torch.randn(num, dtype=torch.double, generator=generator)
    return parameters.requires_grad_(), ratio.requires_grad_(), x.requires_grad_()


FORMS = ["gaussian", "stretched", "recalibrated"]


@pytest.mark.parametrize("kind", FORMS)
class TestDerivatives:
    def test_first(self, kind):
        def function(parameters, ratio, x):
            return [getattr(smoothed_by(kind, parameters, ratio), name)(x) for name in FUNCTIONS]

        assert gradcheck(function, parameters_of(kind, 5), atol=1e-5, rtol=1e-4)

    def test_moments(self, kind):
        def function(parameters, ratio):
            distribution = smoothed_by(kind, parameters, ratio)
            return distribution.mean + 0.0 * ratio, distribution.variance

        assert gradcheck(function, parameters_of(kind, 5)[:2], atol=1e-6, rtol=1e-5)

    @pytest.mark.parametrize("ratio", [0.0, 1e-12, 1e-3, 1e3, 1e12])
    def test_finite_everywhere(self, kind, ratio):
        """At clamped widths and thresholds and wherever ``log_excess`` is above -700."""
        far = [-300.0, -10.0, -1.0, 0.0, 1e-8, 0.5, 3.4, 20.0, 35.0]
        x = torch.tensor(far, dtype=torch.double) * math.sqrt(1 + min(ratio, 1e6) ** 2)
        distribution, inputs = self.extreme(kind, ratio, x)
        seen = distribution.log_excess(inputs[2]) > -700
        assert seen.sum() > 40
        values = [getattr(distribution, name)(inputs[2])[seen] for name in FUNCTIONS]
        values += [
            distribution.mean,
            distribution.variance,
            distribution.quantile(0.01),
            distribution.quantile(0.9),
        ]
        self.check_finite(values, inputs)

    @pytest.mark.parametrize("ratio", [0.0, 1.0, 1e3])
    def test_finite_where_nothing_can_be_gained(self, kind, ratio):
        """Where a noise-free model has seen the point, ``x`` is as large as 1e6."""
        x = torch.tensor([1e2, 1e3, 1e4, 1e5, 1e6], dtype=torch.double)
        distribution, inputs = self.extreme(kind, ratio, x)
        self.check_finite(
            [distribution.log_excess(inputs[2]), distribution.log_survival(inputs[2])], inputs
        )
        self.check_finite([distribution.cdf(-inputs[2]), distribution.cdf(inputs[2])], inputs)

    @staticmethod
    def extreme(kind, ratio, x):
        values = torch.tensor([-0.5, 0.0, 1e-12, 0.5, 1.0, 1.7, 60.0], dtype=torch.double)
        parameters = values.unsqueeze(-1).repeat(1, len(x))
        if kind == "recalibrated":
            parameters = torch.stack([parameters, parameters, 1 - parameters], dim=-1)
        noise = torch.full((7, 1), ratio, dtype=torch.double, requires_grad=True)
        inputs = (parameters.requires_grad_(), noise, x.repeat(7, 1).requires_grad_())
        return smoothed_by(kind, parameters, noise), inputs

    @staticmethod
    def check_finite(values, inputs):
        for value in values:
            assert value.isfinite().all()
            grads = torch.autograd.grad(value.sum(), inputs, retain_graph=True, allow_unused=True)
            assert all(grad is None or grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("ratio", [0.0, 0.5, 1e12])
@pytest.mark.parametrize("masses", [(0.0, 1.0, 0.0), (0.5, 0.0, 0.5), (0.0, 0.4, 0.6)])
@pytest.mark.parametrize("center", [True, False], ids=["uniform", "normal"])
def test_finite_with_zero_masses(center, masses, ratio):
    knots = torch.tensor([-1.0, 0.7], dtype=torch.double, requires_grad=True)
    weights = torch.tensor(masses, dtype=torch.double, requires_grad=True)
    noise = torch.tensor(ratio, dtype=torch.double, requires_grad=True)
    x = torch.tensor([-8.0, -1.0, 0.0, 0.5, 0.7], dtype=torch.double, requires_grad=True)
    distribution = SmoothedPredictive(
        PiecewisePredictive(knots, weights, (False, center, False)), noise
    )
    values = [getattr(distribution, name)(x) for name in FUNCTIONS]
    inputs = (knots, weights, noise, x)
    for value in (*values[:3], values[3].exp(), distribution.quantile(0.3)):
        grads = torch.autograd.grad(value.sum(), inputs, retain_graph=True, allow_unused=True)
        assert all(v is None or v.isfinite().all() for v in (value, *grads))


@pytest.mark.parametrize("kind", ["conformal", "stretched", "recalibrated"])
def test_slopes_of_the_excess_far_out(kind):
    """The tail is normal far out, where slopes are ``-x / n^2`` and ``r x^2 / n^4``.

    Beyond 1e5 ``x^2`` is rounded; slopes still have the right sign and magnitude.
    """
    predictive = random_predictive(kind, 1, seed=5).standardized()
    x = torch.logspace(3, 12, 10, dtype=torch.double).requires_grad_()
    ratio = torch.full_like(x, 0.5).requires_grad_()
    value = SmoothedPredictive(predictive, ratio).log_excess(x)
    by_x, by_ratio = torch.autograd.grad(value.sum(), (x, ratio))
    at, norm2 = x.detach(), 1.25
    for own, expected in ((-by_x, at / norm2), (by_ratio, 0.5 * at.square() / norm2**2)):
        assert_close(own[:3], expected[:3], rtol=1e-5, atol=0.0)
        assert (own > 0).all() and (own < 1.001 * expected).all()


@pytest.mark.parametrize("kind", ["conformal", "stretched", "recalibrated", "knots", "mixed"])
@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize("graph", [False, True])
def test_the_short_way_and_that_by_pieces(kind, common, graph):
    """Values and derivatives, with and without a graph.

    The short way computes the mass of a normal piece as a difference. For a narrow piece of width
    ``w`` and mass ``m`` the relative error is ``eps / w``, and so is the relative error of the
    slopes by both ends, of size ``m / w``. (A comparison in 50 digits attributes all of these
    errors to the short way.)
    """
    row = random_predictive(kind, 7, seed=8).standardized()
    knots, masses = row.finite_knots.expand(7, -1).t(), row.masses.expand(7, -1).t()
    if common:
        knots, masses = knots[:, :1], masses[:, :1]
    x, ratio = torch.linspace(-2.0, 9.0, 7).double(), torch.logspace(-2, 1, 7).double()
    width, mass = knots.diff(dim=0).min().item(), masses[1:-1].max().item()
    lost = 2.0 * torch.finfo(torch.double).eps / width
    tolerances = [1e-12 + lost, 1e-12 + lost, 1e-12 + lost * mass / width, 1e-12 + lost]
    inputs = [v.clone().requires_grad_() for v in (x, ratio, knots, masses)]
    pieces = Pieces(*inputs[2:], row.form)
    by_pieces = log_integrals_by_pieces(*inputs[:2], pieces)
    for way, expected in zip(
        (_denoised_integrals.log_excess, _denoised_integrals.log_survival), by_pieces, strict=True
    ):
        value = way(*inputs[:2], pieces)
        assert_close(value, expected, rtol=tolerances[0], atol=tolerances[0])
        slopes, wanted = (
            torch.autograd.grad(v.sum(), inputs, create_graph=graph, retain_graph=True)
            for v in (value, expected)
        )
        for own, other, tolerance in zip(slopes, wanted, tolerances, strict=True):
            assert_close(own.detach(), other.detach(), rtol=tolerance, atol=tolerance)
