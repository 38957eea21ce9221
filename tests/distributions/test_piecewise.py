"""The piecewise distribution itself: construction, functions, derivatives, errors."""

import math

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Generator
from torch.autograd import gradcheck, gradgradcheck
from torch.special import log_ndtr, ndtr, ndtri
from torch.testing import assert_close

from botorch_calib.distributions.piecewise import MIN_GAP, MIN_HALF_WIDTH, PiecewisePredictive
from botorch_calib.exceptions import CalibrationWarning
from tests import oracles
from tests.predictive_examples import DECILES, KINDS, SOME_KINDS, from_pits, random_predictive
from tests.random_numbers import uniform


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.double)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.double, generator=Generator().manual_seed(seed))


class TestConstructors:
    @pytest.mark.parametrize("tails", ["gaussian", "stretched"])
    def test_conformal(self, tails):
        half_width = double(-0.4, 0.0, 1e-9, 0.2, 0.9, 3.99, 1e6)
        with pytest.warns(CalibrationWarning, match="capped at 4"):
            predictive = PiecewisePredictive.conformal(0.2, half_width, max_width=4.0, tails=tails)
        width = half_width.clamp(min=MIN_HALF_WIDTH, max=4.0)
        assert_close(predictive.knots[:, 1:3], torch.stack([-width, width], dim=-1))
        assert (predictive.knots[:, 0] == -math.inf).all() and (
            predictive.knots[:, 3] == math.inf
        ).all()
        assert_close(predictive.masses.expand(7, 3), double(0.1, 0.8, 0.1).expand(7, 3))
        assert predictive.uniform == (False, True, False)
        # The interval keeps its coverage; stretched tails start where they should.
        assert_close(predictive.cdf(width) - predictive.cdf(-width), torch.full_like(width, 0.8))
        if tails == "stretched":
            assert_close(ndtr(-width / predictive.scale), torch.full_like(width, 0.1))
        else:
            assert predictive.scale is None

    @pytest.mark.parametrize("form", ["thresholds", "knots"])
    def test_recalibrated_has_the_quantiles_asked_for(self, form):
        thresholds = uniform(40, 19, generator=Generator().manual_seed(0))
        if form == "thresholds":
            predictive = from_pits(DECILES, thresholds)
        else:
            predictive = PiecewisePredictive.recalibrated(DECILES, ndtri(thresholds))
        quantiles = predictive.quantile(DECILES.unsqueeze(-1)).mT
        assert_close(quantiles, ndtri(thresholds).sort(dim=-1).values, rtol=0.0, atol=1e-5)
        assert (predictive.knots.diff(dim=-1) >= 0.99 * MIN_GAP).all()

    def test_gaussian(self):
        predictive = PiecewisePredictive.gaussian((2, 3), dtype=torch.double)
        z = normal(5, 2, 3)
        assert predictive.form.is_gaussian and predictive.batch_shape == (2, 3)
        assert torch.equal(predictive.transport(z), z)
        assert_close(predictive.cdf(z), ndtr(z))
        assert_close(predictive.log_prob(z), torch.distributions.Normal(0.0, 1.0).log_prob(z))
        assert_close(predictive.mean, torch.zeros(2, 3).double())
        assert_close(predictive.variance, torch.ones(2, 3).double())
        assert PiecewisePredictive.gaussian().knots.dtype == torch.get_default_dtype()

    def test_equal_knots_are_moved_apart(self):
        predictive = PiecewisePredictive(
            double(0.0, 0.0), double(0.3, 0.4, 0.3), (False, True, False)
        )
        assert (predictive.knots.diff() >= 0.99 * MIN_GAP).all()
        assert_close(predictive.cdf(predictive.knots[1:3]), double(0.3, 0.7))


@pytest.mark.parametrize("kind", SOME_KINDS)
class TestFunctions:
    def test_against_quadrature(self, kind):
        predictive = random_predictive(kind, 12)
        z = predictive.transport(normal(12))
        predictives = list(zip(oracles.unbatched(predictive), z.tolist(), strict=True))
        assert_close(
            predictive.cdf(z),
            double(*(oracles.cdf(*row) for row in predictives)),
            rtol=1e-9,
            atol=1e-9,
        )
        density = double(*(oracles.log_density(*row) for row in predictives))
        assert_close(predictive.log_prob(z), density, rtol=1e-5, atol=1e-5)
        exact = [oracles.smoothed(row, 1.0, 0.0) for row, _ in predictives]
        mean, var = double(*(e.mean for e in exact)), double(*(e.variance - 1 for e in exact))
        assert_close(predictive.mean, mean, rtol=1e-8, atol=1e-8)
        assert_close(predictive.variance, var, rtol=1e-7, atol=1e-9)

    def test_transport_inverts_cdf_in_both_tails(self, kind):
        predictive, z = (
            random_predictive(kind, 50),
            torch.linspace(-37, 37, 149, dtype=torch.double),
        )
        value = predictive.transport(z.unsqueeze(-1).expand(-1, 50))
        assert value.isfinite().all() and (value.diff(dim=0) >= -1e-12).all()
        assert_close(
            predictive.cdf(value), ndtr(z).unsqueeze(-1).expand(-1, 50), rtol=0.0, atol=1e-8
        )
        if (
            predictive.knots.isinf().any()
        ):  # else the ends of the distribution are what its tails round to
            left, right = z < 0, z > 0
            lower, upper = (
                predictive.cdf(value)[left].log(),
                predictive.mirrored().cdf(-value)[right].log(),
            )
            assert_close(lower, log_ndtr(z[left, None]).expand_as(lower), rtol=1e-8, atol=1e-8)
            assert_close(upper, log_ndtr(-z[right, None]).expand_as(upper), rtol=1e-8, atol=1e-8)

    def test_mirrored(self, kind):
        predictive, z = random_predictive(kind, 30), normal(4, 30)
        twin = predictive.mirrored()
        assert_close(twin.mean, -predictive.mean)
        assert_close(twin.variance, predictive.variance)
        assert_close(twin.transport(-z), -predictive.transport(z), rtol=1e-9, atol=1e-9)
        assert_close(twin.cdf(-z), 1 - predictive.cdf(z))
        assert torch.equal(twin.mirrored().knots, predictive.knots)

    def test_single_precision(self, kind):
        predictive, z = random_predictive(kind, 30), normal(4, 30)
        single = predictive.to(torch.float32)
        assert single.knots.dtype == single.masses.dtype == torch.float32
        for name in ("mean", "variance"):
            value = getattr(single, name)
            assert value.dtype == torch.float32
            assert_close(value.double(), getattr(predictive, name), rtol=2e-3, atol=2e-3)
        value = single.transport(z.float())
        assert value.dtype == torch.float32
        assert_close(single.cdf(value).double(), ndtr(z), rtol=0.0, atol=1e-4)


class TestDerivatives:
    z = normal(5, seed=1).requires_grad_()
    knots = (normal(5, 2, seed=2).sort(dim=-1).values + double(-0.4, 0.4)).requires_grad_()
    masses = double(0.25, 0.45, 0.3).expand(5, 3).clone().requires_grad_()
    scale = (1 + 0.3 * normal(5, seed=3).square()).requires_grad_()

    @classmethod
    def predictive(cls, knots, masses, scale):
        flags = (False, True, False)
        return PiecewisePredictive(knots, masses, flags, scale=scale, validate=False)

    def test_functions(self):
        def function(*args):
            predictive, z = self.predictive(*args[:3]), args[3]
            return predictive.cdf(z), predictive.log_prob(z), predictive.transport(z)

        inputs = (self.knots, self.masses, self.scale, self.z)
        assert gradcheck(function, inputs, atol=1e-5, rtol=1e-4)

    def test_moments(self):
        def function(*args):
            predictive = self.predictive(*args)
            points = self.z.detach().unsqueeze(-1)  # every piece at every distribution
            return predictive.log_prob(points), *predictive.moments()

        inputs = (self.knots, self.masses, self.scale)
        assert gradcheck(function, inputs, atol=1e-6, rtol=1e-5)
        assert gradgradcheck(function, inputs, atol=1e-5, rtol=1e-4)

    @pytest.mark.parametrize("tails", ["gaussian", "stretched"])
    def test_conformal(self, tails):
        def function(half_width):
            predictive = PiecewisePredictive.conformal(0.2, half_width, tails=tails)
            return predictive.transport(double(-2.0, 0.3, 1.5)), predictive.variance

        assert gradcheck(function, (double(0.05, 0.3, 0.9).requires_grad_(),), atol=1e-6, rtol=1e-5)

    def test_recalibrated(self):
        values = double(0.4, 0.2, 0.9).requires_grad_()  # neighbours cross

        def function(knots):
            predictive = PiecewisePredictive.recalibrated(double(0.2, 0.5, 0.7), knots)
            return (predictive.transport(double(-2.0, 0.3, 1.5)), *predictive.moments())

        assert gradcheck(function, (values,), atol=1e-6, rtol=1e-5)

    @pytest.mark.parametrize(
        ("masses", "flags"),
        [
            ((0.0, 1.0, 0.0), (False, True, False)),
            ((0.0, 0.4, 0.6), (False, False, False)),
            ((0.5, 0.0, 0.5), (False, True, False)),
        ],
    )
    def test_finite_with_zero_masses(self, masses, flags):
        knots = double(-1.0, 0.7).requires_grad_()
        predictive = PiecewisePredictive(knots, double(*masses).requires_grad_(), flags)
        z = double(-8.0, -1.0, 0.0, 0.5, 8.0).requires_grad_()
        for value in (
            predictive.cdf(z),
            predictive.transport(z),
            predictive.mean,
            predictive.variance,
            predictive.quantile(ndtr(z)),
        ):
            grads = torch.autograd.grad(value.sum(), (knots, z), allow_unused=True)
            assert value.isfinite().all()
            assert all(grad is None or grad.isfinite().all() for grad in grads)
        inside = torch.tensor([True, *(m > 0 for m in masses)])[1:]
        drawn = predictive.transport(normal(400))
        ends = double(-math.inf, -1.0, 0.7, math.inf)
        counts = ((drawn.unsqueeze(-1) > ends[:-1]) & (drawn.unsqueeze(-1) < ends[1:])).sum(0)
        assert torch.equal(counts > 0, inside)


KNOTS, MASSES, FLAGS = double(-1.0, 1.0), double(0.3, 0.4, 0.3), (False, True, False)
VALUES, SHAPES = InputDataError, BotorchTensorDimensionError
conformal, recalibrated = PiecewisePredictive.conformal, PiecewisePredictive.recalibrated


@pytest.mark.parametrize(
    ("constructor", "args", "kwargs", "error", "name"),
    [
        (PiecewisePredictive, (KNOTS.flip(0), MASSES, FLAGS), {}, VALUES, "knots"),
        (PiecewisePredictive, (double(0.0, math.nan), MASSES, FLAGS), {}, VALUES, "knots"),
        (PiecewisePredictive, (KNOTS, MASSES + 0.1, FLAGS), {}, VALUES, "masses"),
        (PiecewisePredictive, (KNOTS, double(-0.1, 0.8, 0.3), FLAGS), {}, VALUES, "masses"),
        (PiecewisePredictive, (KNOTS, MASSES, (True, True, False)), {}, VALUES, "uniform"),
        (PiecewisePredictive, (double(0.0), MASSES, FLAGS), {}, SHAPES, "knots"),
        (PiecewisePredictive, (KNOTS, MASSES, (False, True)), {}, SHAPES, "uniform"),
        (conformal, (1.0, KNOTS), {}, VALUES, "alpha"),
        (conformal, (0.1, KNOTS), {"max_width": math.inf}, VALUES, "max_width"),
        (conformal, (0.1, KNOTS), {"tails": "heavy"}, VALUES, "tails"),
        (recalibrated, (double(0.5, 0.5), KNOTS), {}, VALUES, "levels"),
        (recalibrated, (double(0.0, 0.5), KNOTS), {}, VALUES, "levels"),
        (recalibrated, (double(0.5, math.nan), KNOTS), {}, VALUES, "levels"),
        (recalibrated, (double(0.2, 0.5).unsqueeze(0), KNOTS), {}, SHAPES, "levels"),
        (recalibrated, (double(0.2, 0.4, 0.5), KNOTS), {}, SHAPES, "levels"),
        (recalibrated, (double(0.2, 0.5), KNOTS), {"max_width": -1.0}, VALUES, "max_width"),
        (recalibrated, (double(0.2, 0.5), KNOTS * math.nan), {}, VALUES, "knots"),
        (recalibrated, ("deciles", KNOTS), {}, VALUES, "levels"),
        (conformal, (0.1, "wide"), {}, VALUES, "half_width"),
        (conformal, (0.1, math.nan), {}, VALUES, "half_width"),
        (conformal, (0.1, KNOTS * math.nan), {}, VALUES, "half_width"),
    ],
)
def test_errors_name_the_argument(constructor, args, kwargs, error, name):
    with pytest.raises(error, match=f"`{name}`"):
        constructor(*args, **kwargs)


@pytest.mark.parametrize(("p", "convert"), [(0.0, float), (math.nan, float), (1.0, double)])
def test_quantile_refuses_levels_outside(p, convert):
    with pytest.raises(InputDataError, match="`p`"):
        conformal(0.2, KNOTS[1:]).quantile(convert(p))


@pytest.mark.parametrize("uniform", [False, True])
def test_cdf_of_nan_is_nan(uniform):
    predictive = PiecewisePredictive([-1.0, 0.0, 2.0], [0.3, 0.7], [uniform, False])
    found = predictive.cdf(double(math.nan, 0.0, math.inf, -math.inf))
    assert_close(found, double(math.nan, 0.3, 1.0, 0.0), equal_nan=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_distribution_keeps_its_form(kind):
    predictive = random_predictive(kind, 5)
    form = predictive.form
    assert predictive.mirrored().form == form.mirrored()
    assert predictive.mirrored().mirrored().form == form
    assert predictive.to(torch.float32).form == form
    assert predictive.to(torch.float64) is predictive
    assert predictive.finite_knots.isfinite().all()
    padded = form.pad(predictive.finite_knots, -math.inf, math.inf, dim=-1)
    assert torch.equal(padded, predictive.knots)
    pieces = (predictive.standardized().finite_knots, predictive.masses, form)
    twin = PiecewisePredictive.from_form(*pieces, scale=predictive.scale)
    z = torch.linspace(-3, 3, 5).double()
    assert torch.equal(twin.cdf(z), predictive.cdf(z))
