"""Quantiles of the smoothed distribution: accurate in a fixed number of steps, all derivatives."""

import math
from itertools import product
from statistics import NormalDist

import pytest
import torch
from torch import Generator, Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from botorch_calib.distributions._normal_functions import ndtri_exp
from botorch_calib.distributions.denoised_piecewise import SmoothedPredictive, _table_of
from botorch_calib.distributions.piecewise import PiecewisePredictive
from tests.long_grids import mostly_slow
from tests.predictive_examples import SOME_KINDS, random_predictive, smoothed_by
from tests.random_numbers import uniform

LEVELS = [1e-12, 1e-9, 1e-6, 1e-3, 0.05, 0.1, 0.3, 0.5, 0.6, 0.77, 0.9, 0.95, 0.999]
LEVELS += [1 - 1e-6, 1 - 1e-9, 1 - 1e-12]


def score_errors(distribution: SmoothedPredictive, level: float) -> Tensor:
    """Distance of the quantile's own probability from the level, in normal scores."""
    x = distribution.quantile(level)
    if level < 0.5:
        log_tail, tail = distribution.mirrored().log_survival(-x), level
    else:
        log_tail, tail = distribution.log_survival(x), 1 - level
    return (ndtri_exp(log_tail.clamp(max=-1e-300)) - NormalDist().inv_cdf(tail)).abs()


def smoothed(kind: str, num: int, seed: int, ratios: tuple[float, float]) -> SmoothedPredictive:
    """Random distributions and ratios, the latter between two powers of ten."""
    low, high = ratios
    ratio = 10 ** (low + (high - low) * uniform(num, generator=Generator().manual_seed(seed)))
    return SmoothedPredictive(random_predictive(kind, num, seed=seed), ratio)


@pytest.mark.parametrize("kind", SOME_KINDS)
@pytest.mark.parametrize("ratios", [(-6.0, 6.0), pytest.param((-2.0, 1.0), marks=pytest.mark.slow)])
def test_accuracy_over_1000_distributions(kind, ratios):
    distribution = smoothed(kind, 50, 3, ratios)
    for level in LEVELS:
        assert score_errors(distribution, level).max() <= 1e-8


ALPHAS = [*product([1e-3, 0.01, 0.1, 0.5, 0.9, 0.99], ["stretched", "gaussian"])]


@pytest.mark.parametrize(("alpha", "tails"), mostly_slow(ALPHAS, ALPHAS[::5]))
def test_accuracy_by_miscoverage(alpha, tails):
    half_width = torch.logspace(-3, 1.6, 12, dtype=torch.double).unsqueeze(-1)
    predictive = PiecewisePredictive.conformal(alpha, half_width, max_width=50.0, tails=tails)
    ratio = torch.logspace(-6, 6, 49, dtype=torch.double)
    distribution = SmoothedPredictive(predictive, ratio)
    for level in (*LEVELS, alpha / 2, 1 - alpha / 2):
        assert score_errors(distribution, level).max() <= 1e-8


NARROW = [*product([0.05, 0.0909832, 0.1139555, 0.3], ["stretched", "gaussian"])]


@pytest.mark.parametrize(("alpha", "tails"), mostly_slow(NARROW, NARROW[3:5]))
def test_accuracy_next_to_the_mass_of_a_narrow_interval(alpha, tails):
    """The score is steep there, and Newton steps at the ends of the steep part oscillate."""
    half_width = torch.logspace(-2.65, -0.5, 12, dtype=torch.double).unsqueeze(-1)
    predictive = PiecewisePredictive.conformal(alpha, half_width, tails=tails)
    distribution = SmoothedPredictive(predictive, torch.logspace(-5, 1, 61, dtype=torch.double))
    for distance in (1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2):
        for level in (1 - alpha / 2 + distance, 1 - alpha / 2 - distance, alpha / 2 - distance):
            assert score_errors(distribution, level).max() <= 1e-8


@pytest.mark.parametrize(
    "level", mostly_slow([0.5, 0.55, 0.7, 0.9, 0.95, 0.99, 1 - 1e-6], [0.55, 0.95])
)
def test_accuracy_of_thresholds_in_clusters(level):
    """Nineteen levels whose gaps differ by factors of up to 1e8."""
    generator = torch.Generator().manual_seed(0)
    levels = torch.arange(1, 20, dtype=torch.double) / 20
    normal = torch.randn(1000, 19, generator=generator, dtype=torch.double)
    knots = (3 * normal - 3).exp().cumsum(dim=-1)
    knots = knots - knots.median(dim=-1, keepdim=True).values
    ratio = (12 * uniform(1000, generator=generator) - 8).exp()
    predictive = PiecewisePredictive.recalibrated(levels, knots)
    assert score_errors(SmoothedPredictive(predictive, ratio), level).max() <= 1e-7


@pytest.mark.parametrize(
    ("thresholds", "ratio"),
    [
        ([-1.5, -0.69999, 1.70002, 1.70003, 1.70004], 0.0232),
        ([-1.5, 0.30001, 0.30002, 0.40003, 0.50004], 0.2765),
        ([-1.8, -0.29999, 2e-5, 3e-5, 0.80004], 0.00237),
    ],
)
def test_a_root_that_was_found_is_not_left_again(thresholds, ratio):
    """Rounding changes a steep score, and must not be mistaken for a failed step."""
    levels = torch.tensor([0.001, 0.1, 0.5, 0.9, 0.999], dtype=torch.double)
    knots = torch.tensor(thresholds, dtype=torch.double).expand(500, 1, 5)
    ratios = ratio * torch.linspace(0.9, 1.1, 500, dtype=torch.double).unsqueeze(-1)
    distribution = SmoothedPredictive(PiecewisePredictive.recalibrated(levels, knots=knots), ratios)
    assert score_errors(distribution, 0.999).max() <= 1e-8


def arguments(kind: str) -> tuple[Tensor, Tensor]:
    generator = Generator().manual_seed(5)
    u, v = uniform(2, generator=generator), uniform(2, 3, generator=generator)
    parameters = {"recalibrated": 0.1 + 0.8 * v, "masses": 0.1 + 0.2 * v}.get(kind, 2 * u + 0.3)
    ratio = 0.2 + 1.5 * uniform(2, generator=generator)
    return parameters.requires_grad_(), ratio.requires_grad_()


CASES = [*product(["gaussian", "stretched", "recalibrated", "masses"], [0.02, 0.77])]


@pytest.mark.parametrize(("kind", "level"), mostly_slow(CASES, CASES[3:6:2]))
class TestDerivatives:
    def test_first_and_second(self, kind, level):
        def function(parameters, ratio):
            return smoothed_by(kind, parameters, ratio).quantile(level)

        assert gradcheck(function, arguments(kind), atol=1e-7, rtol=1e-6)
        assert gradgradcheck(function, arguments(kind), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", ["stretched", "recalibrated", "knots"])
@pytest.mark.parametrize("batch", [(1,), (1, 1), (2, 1)])
def test_distributions_have_fewer_dimensions_than_the_noise(kind, batch):
    """As those without a local part, where ``standardized`` leaves out how often they repeat."""
    row, ratio = random_predictive(kind, 2, seed=2), torch.logspace(-3, 3, 6).double()
    scale = None if row.scale is None else row.scale[: batch[0]].view(batch)
    knots, masses = (
        v if v.dim() == 1 else v[: batch[0]].view(*batch, -1)
        for v in (row.standardized().finite_knots, row.masses)
    )
    few = PiecewisePredictive.from_form(knots, masses, row.form, scale=scale)
    shape = torch.Size([3, 2, 1])
    many = PiecewisePredictive.from_form(
        *(v if v.dim() == 1 else v.expand(*shape, -1).clone() for v in (knots, masses)),
        row.form,
        scale=None if scale is None else scale.expand(shape).clone(),
    )
    for level in (0.02, 0.9):
        values = [SmoothedPredictive(p, ratio.view(shape)).quantile(level) for p in (few, many)]
        assert_close(*values, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("ratio", [0.0, 1e-12, 1e12])
@pytest.mark.parametrize("kind", SOME_KINDS)
def test_finite_at_the_limits(kind, ratio):
    noise = torch.full((30,), ratio, dtype=torch.double, requires_grad=True)
    for level in (1e-15, 0.4, 0.9, 1 - 1e-15):
        distribution = SmoothedPredictive(random_predictive(kind, 30, seed=4), noise)
        value = distribution.quantile(level)
        (slope,) = torch.autograd.grad(value.sum(), noise)
        assert value.isfinite().all() and slope.isfinite().all()
        assert (value.abs() < 400 * math.hypot(1.0, ratio)).all()
        if ratio > 1e9:  # noise alone, beside pieces within ten millionths of it
            expected = noise * NormalDist().inv_cdf(level)
            assert_close(value, expected, rtol=0.0, atol=1e-5 * ratio)
            assert_close(slope, value / noise, rtol=1e-9, atol=0.0)


@pytest.mark.parametrize(
    ("alpha", "tails", "level", "half_width", "ratio"),
    [
        (1e-12, "stretched", 5e-13, 16.042, 3.16e-6),
        (1e-8, "gaussian", 5.0005e-9, 16.042, 1.995e-5),
        (1e-5, "gaussian", 4.9995e-6, 0.526, 1.2589e-4),
        (1e-4, "gaussian", 4.9995e-5, 0.00976, 7.94e-4),
        (0.00999, "gaussian", 0.0049945005, 0.001, 1.2589e-4),
        (1 - 1e-10, "gaussian", 0.49999999995, 50.1187, 10.0),
    ],
)
def test_levels_at_the_edge_of_a_piece_that_holds_next_to_nothing(
    alpha: float, tails: str, level: float, half_width: float, ratio: float
) -> None:
    """The score climbs like a cliff there."""
    width = torch.tensor([half_width], dtype=torch.double)
    predictive = PiecewisePredictive.conformal(alpha, width, max_width=60.0, tails=tails)
    ratios = ratio * 10 ** torch.linspace(-0.02, 0.02, 41, dtype=torch.double)
    assert (score_errors(SmoothedPredictive(predictive, ratios), level) <= 1e-8).all()


def common(kind: str, num: int) -> PiecewisePredictive:
    """One random distribution for ``num`` points."""
    many = random_predictive(kind, 5, seed=3).standardized()
    knots, masses = (v if v.dim() == 1 else v[3] for v in (many.finite_knots, many.masses))
    return PiecewisePredictive.from_form(knots, masses, many.form).expand(torch.Size([num]))


class TestCommonDistribution:
    """Quantiles of a distribution that all points share are polynomials of ``log r``."""

    ratio = torch.logspace(-9, 11, 201, dtype=torch.double)[torch.randperm(201)]

    @pytest.mark.parametrize("kind", [kind for kind in SOME_KINDS if kind != "gaussian"])
    def test_agrees_with_a_search(self, kind):
        predictive = common(kind, len(self.ratio))
        knots = predictive.knots[:, 1:-1] if predictive.form.is_open else predictive.knots
        searched = PiecewisePredictive(knots, predictive.masses, predictive.form.uniform)
        for level in LEVELS:
            pair = [
                SmoothedPredictive(p, self.ratio).quantile(level) for p in (predictive, searched)
            ]
            assert ((pair[0] - pair[1]).abs() <= 1e-9 * (1.0 + self.ratio)).all()
            assert _table_of(searched, 0.1) is None
        assert (_table_of(predictive, 0.1) is not None) == predictive.form.covered

    @pytest.mark.parametrize("level", [0.02, 0.77])
    def test_derivatives(self, level):
        ratio = torch.tensor([0.05, 0.4, 0.9, 7.0], dtype=torch.double, requires_grad=True)

        def function(ratio):
            return SmoothedPredictive(common("knots", 4), ratio).quantile(level)

        assert gradcheck(function, (ratio,), atol=1e-7, rtol=1e-6)
        assert gradgradcheck(function, (ratio,), atol=1e-6, rtol=1e-5)

    def test_nan_stays_nan(self):
        """And leaves the others; as an index into the table it would be an error."""
        value, same = (
            SmoothedPredictive(common("knots", 3), torch.tensor(r).double()).quantile(0.77)
            for r in ([0.5, math.nan, 0.0], [0.5, 1.0, 0.0])
        )
        assert value[1].isnan() and torch.equal(value[::2], same[::2])

    def test_gradients_of_the_distribution_are_not_lost(self):
        masses = torch.tensor([0.2, 0.5, 0.3], dtype=torch.double, requires_grad=True)
        row = PiecewisePredictive([-1.0, 0.5], masses, (False, True, False), validate=False)
        value = SmoothedPredictive(row.expand(torch.Size([2])), torch.ones(2).double()).quantile(
            0.9
        )
        assert torch.autograd.grad(value.sum(), masses)[0].abs().min() > 0.0
