"""Value at risk and its conditional mean: quadrature, samples, BoTorch's convention, extremes."""

import math
from typing import Any

import pytest
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.acquisition.risk_measures import CVaR, VaR
from botorch.exceptions.errors import InputDataError
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from torch import Tensor
from torch.testing import assert_close

from botorch_calib import CalibratedModel, CalibratedUpperConfidenceBound, LocalizedConformal
from botorch_calib.acquisition import CalibratedExpectedShortfall
from tests.contracts import AcquisitionContract
from tests.gps import DOUBLE, GaussianLaw, far_from_gaussian, make_data, make_gp, make_model


def value_at_risk(model: Any, alpha: float = 0.9, **kwargs: Any) -> CalibratedUpperConfidenceBound:
    """The outcome that is exceeded with probability ``alpha``."""
    return CalibratedUpperConfidenceBound(model, 1.0 - alpha, observation_noise=True, **kwargs)


CLASSES: list[Any] = [value_at_risk, CalibratedExpectedShortfall]
each = pytest.mark.parametrize("acqf_class", CLASSES)


def grid(num: int = 6, transforms: bool = False) -> Tensor:
    """Test points ``num x 1 x d``."""
    return make_data(num, transforms, seed=21)[0].unsqueeze(-2)


class Contract(AcquisitionContract):
    acqf_class: Any

    def make_acquisition(self, dtype: torch.dtype, maximize: bool = True) -> AcquisitionFunction:
        acqf: AcquisitionFunction = self.acqf_class(make_model(dtype), maximize=maximize)
        return acqf

    def make_negated_acquisition(self, dtype: torch.dtype) -> AcquisitionFunction:
        acqf: AcquisitionFunction = self.acqf_class(make_model(dtype, sign=-1.0))
        return acqf


class TestValueAtRisk(Contract):
    acqf_class = staticmethod(value_at_risk)


class TestConditionalValueAtRisk(Contract):
    acqf_class = CalibratedExpectedShortfall


@each
@pytest.mark.parametrize("maximize", [False, True])
def test_of_the_outcome_whatever_the_model_describes(acqf_class, maximize):
    gp, X = make_gp(transforms=True), grid(transforms=True)
    values = [
        acqf_class(CalibratedModel(gp, far_from_gaussian(), denoise=denoise), maximize=maximize)(X)
        for denoise in (True, False)
    ]
    assert_close(*values, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("alpha", "maximize"),
    [(1e-6, True), (0.1, False), (0.5, True), (0.9, True), (0.9, False), (1 - 1e-6, False)],
)
def test_against_quadrature(alpha, maximize):
    """The integral of the density below the quantile, on a grid that ends there."""
    X, sign = grid(4), 1.0 if maximize else -1.0
    model = CalibratedModel(make_gp(), far_from_gaussian(), denoise=False)
    posterior = model.posterior(X)
    var = value_at_risk(model, alpha, maximize=maximize)(X)
    cvar = CalibratedExpectedShortfall(model, alpha, maximize=maximize)(X)
    worst = sign * var.view(4, 1, 1)
    mass = posterior.cdf(worst) if maximize else 1.0 - posterior.cdf(worst)
    assert_close(mass.flatten(), torch.full_like(var, 1.0 - alpha), rtol=1e-7, atol=1e-9)
    assert (cvar < var).all()
    deviation = posterior.variance.sqrt()
    distance = torch.linspace(0.0, 1.0, 400_001, **DOUBLE).square() * 40
    points = worst - sign * distance.view(-1, 1, 1, 1) * deviation
    with torch.no_grad():
        density = torch.cat([posterior.density(part) for part in points.split(50_000)])
    total = torch.trapezoid(density, sign * points, dim=0)
    mean = torch.trapezoid(density * points, sign * points, dim=0) / total
    assert_close(cvar, sign * mean.flatten(), rtol=0, atol=2e-5)


@pytest.mark.parametrize(("acqf_class", "maximize"), [(CLASSES[0], True), (CLASSES[1], False)])
def test_against_sampling_by_botorchs_risk_measures(acqf_class, maximize):
    """Its ``alpha``, over samples of the outcome in place of an environment."""
    X, num, alpha = grid(3), 400_000, 0.85
    model, sign = make_model(), 1.0 if maximize else -1.0
    torch.manual_seed(0)
    with torch.no_grad():
        y = sign * model.posterior(X, observation_noise=True).rsample(torch.Size([num]))
    y = y.reshape(num, 3).mT.unsqueeze(-1)  # 3 x (q n_w) x 1
    conditional = acqf_class is CalibratedExpectedShortfall
    measure = (CVaR if conditional else VaR)(alpha, n_w=num)
    value = acqf_class(model, alpha, maximize=maximize)(X)
    worst = y.squeeze(-1).sort(dim=-1).values[:, : round(num * (1 - alpha))]
    if conditional:
        # Of the mean of the worst: their spread, and that of the quantile below which they lie.
        gap = worst[:, -1] - worst.mean(dim=-1)
        error = ((worst.var(dim=-1) + alpha * gap.square()) / worst.shape[-1]).sqrt()
    else:
        density = model.posterior(X, observation_noise=True).density(sign * value.view(3, 1, 1))
        error = math.sqrt(alpha * (1 - alpha) / num) / density.flatten()
    assert ((measure(y).squeeze(-1) - value).abs() < 4 * error).all()


@each
@pytest.mark.parametrize("alpha", [1e-6, 0.3, 0.9, 1 - 1e-6])
def test_without_calibration(acqf_class, alpha):
    gp, X = make_gp(fixed_noise=True), grid()
    posterior = gp.posterior(X, observation_noise=True)
    z = torch.special.ndtri(torch.tensor(1.0 - alpha, **DOUBLE))
    factor = z
    if acqf_class is CalibratedExpectedShortfall:
        factor = -torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi) / (1.0 - alpha)
    expected = (posterior.mean + factor * posterior.variance.sqrt()).flatten()
    value = acqf_class(CalibratedModel(gp, GaussianLaw()), alpha)(X)
    assert_close(value, expected, rtol=1e-9, atol=1e-9)


@each
@pytest.mark.parametrize("alpha", [1e-6, 1 - 1e-6])
def test_single_precision(acqf_class, alpha):
    values = []
    for dtype in (torch.float32, torch.double):
        X = grid().to(dtype).requires_grad_()
        value = acqf_class(make_model(dtype), alpha)(X)
        (gradient,) = torch.autograd.grad(value.sum(), X)
        assert value.dtype == gradient.dtype == dtype and gradient.isfinite().all()
        values.append(value.detach().double())
    assert_close(*values, rtol=1e-3, atol=1e-3)


@each
def test_scale_of_a_posterior_transform(acqf_class):
    transform = ScalarizedPosteriorTransform(torch.tensor([-2.0], **DOUBLE), offset=1.0)
    turned = acqf_class(make_model(), posterior_transform=transform)(grid())
    assert_close(turned, 1.0 + 2.0 * acqf_class(make_model(), maximize=False)(grid()))


@each
def test_local_noise_counts_against_a_point(acqf_class):
    """The process knows one noise; calibration tells where observations scatter more than that."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(120, 1, **DOUBLE, generator=generator)
    noise = torch.where(X > 0.5, 1.0, 0.05)
    Y = X + noise * torch.randn(120, 1, **DOUBLE, generator=generator)
    gp = SingleTaskGP(X, Y)
    gp.covar_module.lengthscale, gp.likelihood.noise = 1.0, 0.5
    model = CalibratedModel.from_history(
        gp.eval(), LocalizedConformal(0.2, lengthscale=0.2, step_size=0.1)
    )
    places = torch.tensor([[0.45], [0.95]], **DOUBLE)
    low, high = model.posterior(places).mean.flatten()
    assert low < high
    bounds = torch.tensor([[0.0], [1.0]], **DOUBLE)
    torch.manual_seed(0)
    chosen, _ = optimize_acqf(acqf_class(model), bounds, q=1, num_restarts=1, raw_samples=64)
    assert chosen.item() < 0.55
    plain, _ = optimize_acqf(
        acqf_class(CalibratedModel(gp, GaussianLaw())), bounds, q=1, num_restarts=1, raw_samples=64
    )
    assert plain.item() > 0.9


def test_alpha_is_checked():
    for alpha in (0.0, 1.0, math.nan):
        with pytest.raises(InputDataError, match="`alpha`"):
            CalibratedExpectedShortfall(make_model(), alpha=alpha)
