"""Closed-form acquisition functions compared with distributions, samples and BoTorch's functions.

Value at risk and its conditional mean: quadrature, samples, BoTorch's convention, extremes.
"""

import math
from typing import Any

import pytest
import torch
from botorch.acquisition import (
    AcquisitionFunction,
    ExpectedImprovement,
    LogExpectedImprovement,
    ProbabilityOfImprovement,
    UpperConfidenceBound,
)
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.acquisition.risk_measures import CVaR, VaR
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models import ModelList, SingleTaskGP
from botorch.models.transforms.input import AppendFeatures, InputPerturbation
from botorch.optim import optimize_acqf
from botorch.sampling.get_sampler import get_sampler
from torch import Tensor
from torch.testing import assert_close

from botorch_calib import (
    CalibratedExpectedImprovement,
    CalibratedModel,
    CalibratedProbabilityOfImprovement,
    CalibratedUpperConfidenceBound,
    DelayedThompsonSampling,
    DelayedUpperConfidenceBound,
    LocalizedConformal,
    LogCalibratedExpectedImprovement,
    LogCalibratedProbabilityOfFeasibility,
)
from botorch_calib.acquisition import CalibratedExpectedShortfall
from botorch_calib.calibration import QuantileRecalibrator
from tests.contracts import AcquisitionContract
from tests.gps import DOUBLE, GaussianLaw, far_from_gaussian, make_data, make_gp, make_model
from tests.random_numbers import normal, uniform

LEVEL = 0.85
BEST = 0.6
IMPROVEMENTS: dict[str, type[Any]] = {
    "EI": CalibratedExpectedImprovement,
    "logEI": LogCalibratedExpectedImprovement,
    "PI": CalibratedProbabilityOfImprovement,
}
NAMES = (*IMPROVEMENTS, "UCB")

each = pytest.mark.parametrize("name", NAMES)
improvements = pytest.mark.parametrize("name", IMPROVEMENTS)
each_model = pytest.mark.parametrize(
    "settings", [{}, {"fixed_noise": True, "transforms": True}], ids=["plain", "transforms"]
)


def build(name: str, model: Any, best_f: Any = BEST, **kwargs: Any) -> Any:
    if name == "UCB":
        return CalibratedUpperConfidenceBound(model, level=LEVEL, **kwargs)
    if name == "CVaR":
        return CalibratedExpectedShortfall(model, **kwargs)
    # A tensor, since a number would be kept in the default precision.
    best_f = torch.as_tensor(best_f, **DOUBLE) if isinstance(best_f, float) else best_f
    return IMPROVEMENTS[name](model, best_f, **kwargs)


def grid(num: int = 6, transforms: bool = False, seed: int = 21) -> Tensor:
    """Test points ``num x 1 x d``."""
    return make_data(num, transforms, seed)[0].unsqueeze(-2)


def threshold(transforms: bool) -> float:
    return 34.0 if transforms else BEST


def is_transformed(settings: dict[str, Any]) -> bool:
    return settings.get("transforms", False)


class Contract(AcquisitionContract):
    """What all of them have in common."""

    name: str

    def make_acquisition(self, dtype: torch.dtype, maximize: bool = True) -> AcquisitionFunction:
        acqf: AcquisitionFunction = build(self.name, make_model(dtype), maximize=maximize)
        return acqf

    def make_negated_acquisition(self, dtype: torch.dtype) -> AcquisitionFunction:
        acqf: AcquisitionFunction = build(self.name, make_model(dtype, sign=-1.0), -BEST)
        return acqf


class TestExpectedImprovement(Contract):
    name = "EI"


class TestLogExpectedImprovement(Contract):
    name = "logEI"


class TestProbabilityOfImprovement(Contract):
    name = "PI"


class TestUpperConfidenceBound(Contract):
    name = "UCB"


class TestExpectedShortfall(Contract):
    name = "CVaR"


# ------------------------------------------------------------------ values


def recalibrated() -> CalibratedModel:
    """A model of observations with a wide, skewed distribution, shifted from the Gaussian one."""
    generator = torch.Generator().manual_seed(5)
    X, z = uniform(40, 2, generator=generator), normal(40, generator=generator)
    calibrator = QuantileRecalibrator([0.1, 0.4, 0.8], lengthscale=0.4)
    calibrator.update(X, (1.5 * z).exp() - 1.5)
    return CalibratedModel(make_gp(), calibrator, denoise=False)


@pytest.mark.parametrize("make", [make_model, recalibrated])
@pytest.mark.parametrize("maximize", [False, True])
def test_monte_carlo(make, maximize):
    """Against the posterior's own samples, within four standard errors."""
    model, X, num = make(), grid(), 40_000
    torch.manual_seed(3)
    sign = 1.0 if maximize else -1.0
    with torch.no_grad():
        samples = sign * model.posterior(X).rsample(torch.Size([num])).reshape(num, 6)
        best = sign * samples.median(dim=0).values  # one for each point
        values = {name: build(name, model, best, maximize=maximize)(X) for name in NAMES}
    below = (samples <= values["UCB"]).double().mean(dim=0)
    assert ((below - LEVEL).abs() <= 4 * math.sqrt(LEVEL * (1 - LEVEL) / num)).all()
    excess = samples - sign * best
    gain = excess.clamp(min=0.0)
    for draws, value in (
        (gain, values["EI"]),
        (gain, values["logEI"].exp()),
        ((excess > 0).double(), values["PI"]),
    ):
        error = draws.std(dim=0) / math.sqrt(num)
        assert (value > 10 * error).all()  # the comparison means something
        assert ((draws.mean(dim=0) - value).abs() <= 4 * error + 1e-12).all()


def botorch_counterpart(name: str, gp: Any, best_f: Tensor, maximize: bool) -> Any:
    beta = torch.special.ndtri(torch.tensor(LEVEL, **DOUBLE)) ** 2
    if name == "UCB":
        return UpperConfidenceBound(gp, beta=beta, maximize=maximize)
    classes: dict[str, Any] = {
        "EI": ExpectedImprovement,
        "logEI": LogExpectedImprovement,
        "PI": ProbabilityOfImprovement,
    }
    return classes[name](gp, best_f, maximize=maximize)


@pytest.mark.filterwarnings("ignore:ExpectedImprovement has known numerical issues")
@each
@each_model
@pytest.mark.parametrize("maximize", [False, True])
def test_without_calibration_they_are_botorchs(name, settings, maximize):
    gp, transforms = make_gp(**settings), is_transformed(settings)
    best = torch.tensor(threshold(transforms), **DOUBLE)
    ours = build(name, CalibratedModel(gp, GaussianLaw()), best, maximize=maximize)
    theirs = botorch_counterpart(name, gp, best, maximize)
    X = grid(20, transforms).requires_grad_()
    values = ours(X), theirs(X)
    # BoTorch's lower confidence bound is not negated.
    torch.testing.assert_close(*values)
    gradients = [torch.autograd.grad(value.sum(), X)[0] for value in values]
    torch.testing.assert_close(*gradients)


def test_log_where_the_improvement_underflows():
    """The logarithm and its gradient are finite if the improvement rounds to 0."""
    model = make_model()
    X = grid().requires_grad_()
    for best in (6.0, 12.0):
        value = build("logEI", model, best)(X)
        (gradient,) = torch.autograd.grad(value.sum(), X)
        assert value.isfinite().all() and gradient.isfinite().all() and (gradient != 0).any()
    assert (value < -20).all()


# ------------------------------------------------------------------ directions, best_f


@pytest.mark.parametrize("name", [*NAMES, "CVaR"])
@pytest.mark.parametrize("weight", [2.0, -2.0])
@pytest.mark.parametrize("maximize", [False, True])
def test_posterior_transform(name, weight, maximize):
    """A negative weight has the same effect as ``maximize=False``, and both together cancel."""
    transform = ScalarizedPosteriorTransform(torch.tensor([weight], **DOUBLE), offset=1.0)
    plain = build(name, make_model(), maximize=maximize == (weight > 0))(grid())
    expected = {
        "EI": 2.0 * plain,
        "logEI": math.log(2.0) + plain,
        "PI": plain,
        "UCB": (1.0 if maximize else -1.0) + 2.0 * plain,
        "CVaR": (1.0 if maximize else -1.0) + 2.0 * plain,
    }[name]
    kwargs = {"posterior_transform": transform, "maximize": maximize}
    moved = build(name, make_model(), 1.0 + weight * BEST, **kwargs)(grid())
    torch.testing.assert_close(moved, expected)


@pytest.mark.parametrize(("name", "pending"), [("EI", False), ("logEI", True), ("PI", False)])
def test_shapes_of_best_f(name, pending):
    """``best_f`` is a number, a tensor of one element, or a tensor with a value for each point."""
    kwargs = {"X_pending": grid(2, seed=5).squeeze(-2), "num_fantasies": 4} if pending else {}
    X = grid(3)
    expected = build(name, make_model(), **kwargs)(X)
    for best in (torch.tensor(BEST, **DOUBLE), torch.tensor([BEST], **DOUBLE)):
        torch.testing.assert_close(build(name, make_model(), best, **kwargs)(X), expected)
    torch.testing.assert_close(
        IMPROVEMENTS[name](make_model(), BEST, **kwargs)(X), expected, rtol=1e-6, atol=1e-6
    )
    batch = torch.tensor([BEST, 0.2, 1.0], **DOUBLE)
    values = build(name, make_model(), batch, **kwargs)(X)
    assert values.shape == (3,)
    for value, best, x in zip(values, batch, X, strict=True):
        alone = build(name, make_model(), best, **kwargs)(x.unsqueeze(0))
        torch.testing.assert_close(value, alone.squeeze(0))


# ------------------------------------------------------------------ pending points


@pytest.mark.parametrize(
    ("name", "settings", "maximize"),
    [
        ("EI", {}, True),
        ("logEI", {"fixed_noise": True, "transforms": True}, False),
        ("PI", {"fixed_noise": True, "transforms": True}, True),
        ("UCB", {}, False),
    ],
)
def test_pending_points_average_over_fantasies(name, settings, maximize):
    """The value is the mean over models conditioned on each fantasy, each with an incumbent."""
    model, transforms = make_model(**settings), is_transformed(settings)
    pending = grid(2, transforms, seed=5).squeeze(-2)
    best, num, sign = threshold(transforms), 4, 1.0 if maximize else -1.0
    acqf = build(name, model, best, maximize=maximize, X_pending=pending.clone(), num_fantasies=num)
    X = torch.cat([grid(2, transforms), pending.unsqueeze(-2) + 1e-3])
    observation = model.posterior(pending, observation_noise=True)
    outcomes = get_sampler(observation, torch.Size([num]), seed=0)(observation)
    kwargs = {}
    if "fixed_noise" in settings:
        kwargs["noise"] = model.likelihood.noise.mean().expand(2, 1)
    values = []
    for Y in outcomes:
        fantasy = model.condition_on_observations(pending, Y, **kwargs)
        means = sign * fantasy.posterior(pending).mean
        incumbent = sign * max(sign * best, means.max().item())
        values.append(build(name, fantasy, incumbent, maximize=maximize)(X))
    brute = torch.stack(values)
    average = torch.logsumexp(brute, dim=0) - math.log(num) if name == "logEI" else brute.mean(0)
    torch.testing.assert_close(acqf(X), average, rtol=1e-6, atol=1e-8)

    without = build(name, model, best, maximize=maximize)(X)
    assert acqf(X).isfinite().all() and not torch.allclose(acqf(X), without, rtol=1e-3)
    if name in ("EI", "logEI"):  # next to a pending point little is left to gain
        assert (acqf(X)[-2:] < without[-2:]).all()
    acqf.set_X_pending(None)
    assert acqf.X_pending is None
    torch.testing.assert_close(acqf(X), without, rtol=0, atol=0)
    acqf.set_X_pending(pending)
    torch.testing.assert_close(acqf(X), average, rtol=1e-6, atol=1e-8)


# ------------------------------------------------------------------ measures of risk


def value_at_risk(model: Any, alpha: float = 0.9, **kwargs: Any) -> CalibratedUpperConfidenceBound:
    """The outcome that is exceeded with probability ``alpha``."""
    return CalibratedUpperConfidenceBound(model, 1.0 - alpha, observation_noise=True, **kwargs)


RISKS: list[Any] = [value_at_risk, CalibratedExpectedShortfall]
risks = pytest.mark.parametrize("acqf_class", RISKS)


@risks
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
def test_risks_against_quadrature(alpha, maximize):
    """Risk measures equal integrals of the density on a grid that ends at the quantile."""
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


@pytest.mark.parametrize(("acqf_class", "maximize"), [(RISKS[0], True), (RISKS[1], False)])
def test_against_sampling_by_botorchs_risk_measures(acqf_class, maximize):
    """BoTorch's measures at the same ``alpha``, of samples of the outcome."""
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
        # The error of a tail mean has two parts: the spread of the tail, and the quantile's error.
        gap = worst[:, -1] - worst.mean(dim=-1)
        error = ((worst.var(dim=-1) + alpha * gap.square()) / worst.shape[-1]).sqrt()
    else:
        density = model.posterior(X, observation_noise=True).density(sign * value.view(3, 1, 1))
        error = math.sqrt(alpha * (1 - alpha) / num) / density.flatten()
    assert ((measure(y).squeeze(-1) - value).abs() < 4 * error).all()


@risks
@pytest.mark.parametrize("alpha", [1e-6, 0.3, 0.9, 1 - 1e-6])
def test_risks_without_calibration(acqf_class, alpha):
    gp, X = make_gp(fixed_noise=True), grid()
    posterior = gp.posterior(X, observation_noise=True)
    z = torch.special.ndtri(torch.tensor(1.0 - alpha, **DOUBLE))
    factor = z
    if acqf_class is CalibratedExpectedShortfall:
        factor = -torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi) / (1.0 - alpha)
    expected = (posterior.mean + factor * posterior.variance.sqrt()).flatten()
    value = acqf_class(CalibratedModel(gp, GaussianLaw()), alpha)(X)
    assert_close(value, expected, rtol=1e-9, atol=1e-9)


@risks
@pytest.mark.parametrize("alpha", [1e-6, 1 - 1e-6])
def test_risks_in_single_precision(acqf_class, alpha):
    values = []
    for dtype in (torch.float32, torch.double):
        X = grid().to(dtype).requires_grad_()
        value = acqf_class(make_model(dtype), alpha)(X)
        (gradient,) = torch.autograd.grad(value.sum(), X)
        assert value.dtype == gradient.dtype == dtype and gradient.isfinite().all()
        values.append(value.detach().double())
    assert_close(*values, rtol=1e-3, atol=1e-3)


@risks
def test_local_noise_counts_against_a_point(acqf_class):
    """The process has one noise level; calibration learns where observations scatter more."""
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


# ------------------------------------------------------------------ what is refused


@each
def test_other_models_are_refused(name):
    with pytest.raises(UnsupportedError, match="needs a calibrated posterior.*SingleTaskGP"):
        build(name, make_gp())(grid())
    with pytest.raises(UnsupportedError, match="one output, got 2"):
        build(name, ModelList(make_model(), make_model()))


def test_several_values_for_each_point_are_refused():
    """Closed forms need one value at each point, so only a single set of features works."""
    (X, Y, _), x = make_data(), torch.tensor([[[0.4]], [[0.7]]], **DOUBLE)

    def model(num):
        features = torch.linspace(0.2, 0.9, num, **DOUBLE).unsqueeze(-1)
        gp = SingleTaskGP(X, Y, input_transform=AppendFeatures(features)).eval()
        return CalibratedModel(gp, far_from_gaussian())

    functions = {
        **{name: lambda m, name=name: build(name, m) for name in NAMES},
        "constrained": lambda m: LogCalibratedProbabilityOfFeasibility(m, {0: (None, 1.0)}),
        "delayed": lambda m: DelayedUpperConfidenceBound(m),
    }
    for make in functions.values():
        assert make(model(1))(x).isfinite().all()
        with pytest.raises(UnsupportedError, match="each point into 3: .*risk_measures"):
            make(model(3))(x)
    perturbed = SingleTaskGP(X, Y, input_transform=InputPerturbation(0.05 * X[:3])).eval()
    for gp in (perturbed, CalibratedModel(perturbed, far_from_gaussian())):
        for choices in (None, X[:4]):
            with pytest.raises(UnsupportedError, match="each point into 3: .*risk_measures"):
                DelayedThompsonSampling(gp, choices=choices)(X[:4].unsqueeze(-2))


def test_levels_are_checked():
    for level in (0.0, 1.0, math.nan):
        with pytest.raises(InputDataError, match="`level`"):
            CalibratedUpperConfidenceBound(make_model(), level=level)
        with pytest.raises(InputDataError, match="`alpha`"):
            CalibratedExpectedShortfall(make_model(), alpha=level)


@improvements
def test_best_f_is_checked(name):
    for best_f in (torch.tensor([0.1, math.nan], **DOUBLE), None, 1j, torch.zeros(0)):
        with pytest.raises(InputDataError, match="`best_f`"):
            build(name, make_model(), best_f)


@improvements
def test_best_f_is_one_number_or_one_for_each_point(name):
    acqf = build(name, make_model(), torch.zeros(2, **DOUBLE))
    with pytest.raises(BotorchTensorDimensionError, match=r"`best_f` of shape \(2,\)"):
        acqf(grid(5))
    assert torch.equal(acqf(grid(2)), build(name, make_model(), 0.0)(grid(2)))


@each
def test_inputs_that_do_not_fit_are_named(name):
    with pytest.raises(BotorchTensorDimensionError, match="`X` must have 2 columns"):
        build(name, make_model())(torch.zeros(4, 1, 3, **DOUBLE))
    with pytest.raises(BotorchTensorDimensionError, match="`X_pending` must have shape n x 2"):
        build(name, make_model()).set_X_pending(torch.zeros(4, 3, **DOUBLE))
    with pytest.raises(InputDataError, match="`X_pending` must be a tensor, got ndarray"):
        build(name, make_model()).set_X_pending(torch.zeros(4, 2, **DOUBLE).numpy())
    with pytest.raises(UnsupportedError, match="`model` must be a BoTorch model.*NoneType"):
        build(name, None)


def test_posterior_transform_that_does_not_apply():
    transform = ScalarizedPosteriorTransform(torch.ones(2, **DOUBLE))
    with pytest.raises(UnsupportedError, match="posterior_transform"):
        build("EI", make_model(), posterior_transform=transform)(grid())
