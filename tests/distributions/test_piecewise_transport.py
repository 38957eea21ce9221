"""The monotone map: the formula for stretched tails, and the one for any pieces."""

import pytest
import torch
from botorch.utils.probability.utils import log_ndtr
from torch import Generator, Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from botorch_calib.distributions._piecewise_transport import transported
from botorch_calib.distributions.piecewise import MIN_HALF_WIDTH, PiecewisePredictive

DOUBLE, SINGLE = torch.double, torch.float32
CUT = 1.2815515655446004  # of alpha = 0.2
MAX_WIDTH = 3.375  # exact in both types


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = DOUBLE) -> Tensor:
    return torch.randn(shape, generator=Generator().manual_seed(seed), dtype=DOUBLE).to(dtype)


def by_pieces(predictive: PiecewisePredictive, z: Tensor) -> Tensor:
    """The map as any distribution has it."""
    flags = predictive.form.is_uniform(z.device)
    value = transported(z, predictive.standardized().knots, predictive.masses, flags)
    return value if predictive.scale is None else value * predictive.scale


def value_and_gradients(
    function, *inputs: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, ...]:
    inputs = tuple(x.clone().requires_grad_() for x in inputs)
    value = function(*inputs)
    weights = torch.ones_like(value) if weights is None else weights
    return value.detach(), *torch.autograd.grad((weights * value).sum(), inputs)


class TestStretched:
    """Conformal intervals with the tails of a scaled normal distribution."""

    widths = torch.tensor([1e-9, 0.01, 0.3, 1.0, CUT, 2.0, 3.3, MAX_WIDTH, 70.0], dtype=DOUBLE)

    @staticmethod
    def predictive(half_width: Tensor, alpha: float = 0.2) -> PiecewisePredictive:
        width = half_width.clamp(MIN_HALF_WIDTH, MAX_WIDTH)
        return PiecewisePredictive.conformal(
            alpha, width, max_width=MAX_WIDTH, tails="stretched", validate=False
        )

    def points(self, dtype: torch.dtype) -> Tensor:
        ends = torch.tensor([-37.0, -9.0, -CUT - 1e-9, CUT - 1e-9, 0.0, 1e-12, 37.0], dtype=dtype)
        return torch.cat([ends, 2 * normal(200, dtype=dtype)]).unsqueeze(-1)

    @pytest.mark.parametrize("alpha", [0.01, 0.2, 0.9])
    @pytest.mark.parametrize(("dtype", "tol"), [(DOUBLE, 1e-14), (SINGLE, 1e-6)])
    def test_values(self, alpha, dtype, tol):
        predictive, z = self.predictive(self.widths.to(dtype), alpha), self.points(dtype)
        assert predictive.form.stretched
        value = predictive.transport(z)
        assert value.dtype == dtype and value.shape == (len(z), len(self.widths))
        exact = by_pieces(self.predictive(self.widths.to(dtype).double(), alpha), z.double())
        assert_close(value.double(), exact, rtol=tol, atol=tol)

    @pytest.mark.parametrize(("dtype", "tol"), [(DOUBLE, 1e-13), (SINGLE, 2e-5)])
    def test_gradients_also_at_the_caps(self, dtype, tol):
        """Gradients by ``z``, and by half-widths below, within and above the clamp's range."""
        z = 2 * normal(60, len(self.widths), dtype=dtype)
        weights = normal(*z.shape, seed=1, dtype=dtype)
        widths = self.widths.to(dtype)
        short, general = (
            value_and_gradients(
                lambda z, width, way=way: way(self.predictive(width), z),
                z.to(kind),
                widths.to(kind),
                weights=weights.to(kind),
            )
            for way, kind in ((PiecewisePredictive.transport, dtype), (by_pieces, DOUBLE))
        )
        for ours, theirs in zip(short, general, strict=True):
            assert_close(ours.double(), theirs, rtol=tol, atol=50 * tol)
        by_width = short[2]
        assert (by_width[[0, -1]] == 0).all() and (by_width[1:-2] != 0).all()


class TestManyNormalPieces:
    """Recalibrated distributions, whose masses are common to the batch."""

    levels = torch.linspace(0.05, 0.95, 19, dtype=DOUBLE)

    def knots(self, *batch: int, spread: float = 1.0, shift: float = 0.0) -> Tensor:
        return torch.special.ndtri(self.levels) * spread + shift + 0.2 * normal(*batch, 19, seed=4)

    def predictive(self, knots: Tensor, tails: str = "stretched") -> PiecewisePredictive:
        return PiecewisePredictive.recalibrated(self.levels, knots, tails=tails, validate=False)

    @pytest.mark.parametrize("tails", ["gaussian", "stretched"])
    @pytest.mark.parametrize(
        ("spread", "shift"),
        [(1.0, 0.0), (2.0, -1.0), (0.0, 0.0), (0.05, 6.0), (0.05, -6.0), (9.0, 0.0)],
    )
    def test_values_and_gradients(self, tails, spread, shift):
        """Values solve ``F(T) = Phi(z)``; derivatives follow from the implicit function theorem."""
        z, knots = 2 * normal(80, 7), self.knots(7, spread=spread, shift=shift)
        far = torch.linspace(-36, 36, 10, dtype=DOUBLE)  # where Phi is not yet zero
        z = torch.cat([z, far.unsqueeze(-1).expand(-1, 7)])
        value, by_z, by_knots = value_and_gradients(
            lambda z, knots: self.predictive(knots, tails).transport(z), z, knots
        )
        knots = knots.requires_grad_()
        predictive = self.predictive(knots, tails)
        upper = z > 0
        tail = torch.where(upper, predictive.mirrored().cdf(-value), predictive.cdf(value))
        assert_close(tail, log_ndtr(-z.abs()).exp(), rtol=1e-10, atol=0.0)
        density = predictive.log_prob(value).exp()
        assert_close(
            by_z, (-z.square() / 2).exp() / (2 * torch.pi) ** 0.5 / density, rtol=1e-8, atol=1e-9
        )
        weights = torch.where(upper, 1.0, -1.0) / density.detach()
        (expected,) = torch.autograd.grad((weights * tail).sum(), knots)
        assert_close(by_knots, expected, rtol=1e-7, atol=1e-7)

    def test_derivatives(self):
        """First and second ones, by the masses too."""
        z, knots = 2 * normal(4, 1, seed=7), self.knots(2)[:, [3, 9, 15]]
        masses = torch.tensor([0.2, 0.3, 0.4, 0.1], dtype=DOUBLE)

        def function(z, knots, masses):
            return PiecewisePredictive(knots, masses, [False] * 4, validate=False).transport(z)

        inputs = tuple(v.clone().requires_grad_() for v in (z, knots, masses))
        assert gradcheck(function, inputs, atol=1e-6)
        assert gradgradcheck(function, inputs, atol=1e-5)

    def test_extremes_are_finite(self):
        """Distributions far from zero and without width, at any point."""
        knots = torch.stack([torch.full((19,), x, dtype=DOUBLE) for x in (-8.0, 0.0, 8.0)])
        z = torch.tensor([-300.0, -38.0, 0.0, 38.0, 300.0], dtype=DOUBLE).unsqueeze(-1)
        for tails in ("gaussian", "stretched"):
            results = value_and_gradients(
                lambda z, knots, tails=tails: self.predictive(knots, tails).transport(z),
                z.expand(5, 3),
                knots,
            )
            assert all(result.isfinite().all() for result in results)
            assert (results[0].diff(dim=0) >= 0).all()
