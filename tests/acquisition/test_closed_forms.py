"""The closed-form acquisition functions against their distributions, samples and BoTorch's own."""

import copy
import inspect
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
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.models import ModelList, SingleTaskGP
from botorch.models.transforms.input import AppendFeatures, InputPerturbation
from botorch.sampling.get_sampler import get_sampler
from torch import Tensor

from benchmarks.perf.operation_counts import count_operations
from botorch_calib import (
    CalibratedExpectedImprovement,
    CalibratedModel,
    CalibratedProbabilityOfImprovement,
    CalibratedUpperConfidenceBound,
    DelayedThompsonSampling,
    DelayedUpperConfidenceBound,
    LogCalibratedExpectedImprovement,
    LogCalibratedProbabilityOfFeasibility,
)
from botorch_calib.calibration import LocalizedConformal, OnlineConformal, QuantileRecalibrator
from botorch_calib.testing import AcquisitionContract
from tests.gps import (
    DOUBLE,
    GaussianLaw,
    far_from_gaussian,
    make_data,
    make_gp,
    make_model,
    make_variational,
)
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
    """What all four have in common."""

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


# ------------------------------------------------------------------ values


@each
@each_model
def test_closed_forms(name, settings):
    model, transforms = make_model(**settings), is_transformed(settings)
    X = grid(transforms=transforms)
    best = threshold(transforms)
    posterior = model.posterior(X)
    expected = {
        "EI": lambda: posterior.expected_improvement(best),
        "logEI": lambda: posterior.expected_improvement(best).log(),
        "PI": lambda: 1.0 - posterior.cdf(torch.tensor(best, **DOUBLE)),
        "UCB": lambda: posterior.quantile(torch.tensor(LEVEL, **DOUBLE)),
    }[name]()
    value = build(name, model, best)(X)
    assert value.shape == (6,)
    torch.testing.assert_close(value, expected.flatten())
    if name == "UCB":
        level = posterior.cdf(value.reshape(6, 1, 1))
        torch.testing.assert_close(level, torch.full_like(level, LEVEL))


def recalibrated() -> CalibratedModel:
    """Of observations whose distribution is wide, skewed and not where the Gaussian one is."""
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
    """The logarithm stays finite, with its gradient, where the improvement itself is 0."""
    model = make_model()
    X = grid().requires_grad_()
    for best in (6.0, 12.0):
        value = build("logEI", model, best)(X)
        (gradient,) = torch.autograd.grad(value.sum(), X)
        assert value.isfinite().all() and gradient.isfinite().all() and (gradient != 0).any()
    assert (value < -20).all()


# ------------------------------------------------------------------ directions, best_f


@each
@pytest.mark.parametrize("weight", [2.0, -2.0])
@pytest.mark.parametrize("maximize", [False, True])
def test_posterior_transform(name, weight, maximize):
    """A negative weight and ``maximize=False`` say the same, and both together cancel."""
    transform = ScalarizedPosteriorTransform(torch.tensor([weight], **DOUBLE), offset=1.0)
    plain = build(name, make_model(), maximize=maximize == (weight > 0))(grid())
    expected = {
        "EI": 2.0 * plain,
        "logEI": math.log(2.0) + plain,
        "PI": plain,
        "UCB": (1.0 if maximize else -1.0) + 2.0 * plain,
    }[name]
    kwargs = {"posterior_transform": transform, "maximize": maximize}
    moved = build(name, make_model(), 1.0 + weight * BEST, **kwargs)(grid())
    torch.testing.assert_close(moved, expected)


@improvements
@pytest.mark.parametrize("pending", [False, True])
def test_shapes_of_best_f(name, pending):
    """A number, a tensor of any single element, or one value for each point of the batch."""
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


@each
def test_batch_shapes_with_pending_points(name):
    acqf = build(name, make_model(), X_pending=grid(2, seed=5).squeeze(-2), num_fantasies=4)
    X = grid(6)
    value = acqf(X.view(2, 3, 1, 2))
    assert value.shape == (2, 3)
    torch.testing.assert_close(value.flatten(), acqf(X))


# ------------------------------------------------------------------ pending points


@each
@pytest.mark.parametrize(
    ("settings", "maximize"), [({}, True), ({"fixed_noise": True, "transforms": True}, False)]
)
def test_pending_points_average_over_fantasies(name, settings, maximize):
    """Equal to one conditioned model per fantasy, each with its own incumbent."""
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


@each
def test_evaluation_is_deterministic_and_leaves_the_model_alone(name):
    model = make_model()
    state = copy.deepcopy(model.state_dict())
    pending = grid(2, seed=5).squeeze(-2)
    values = [build(name, model, X_pending=pending)(grid()) for _ in range(2)]
    torch.testing.assert_close(*values, rtol=0, atol=0)
    acqf = build(name, model, X_pending=pending)
    torch.testing.assert_close(acqf(grid()), acqf(grid()), rtol=0, atol=0)
    assert model.train_targets.shape == (12,)
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())


@each
def test_pending_points_that_cannot_be_fantasised(name):
    model = CalibratedModel(make_variational(), far_from_gaussian())
    assert build(name, model)(grid()).isfinite().all()
    with pytest.raises(UnsupportedError, match="SingleTaskVariationalGP"):
        build(name, model, X_pending=grid(2).squeeze(-2))
    acqf = build(name, model)
    with pytest.raises(UnsupportedError):
        acqf.set_X_pending(grid(2).squeeze(-2))
    assert acqf.X_pending is None


# ------------------------------------------------------------------ gradients, precision


@each
@pytest.mark.parametrize(("transforms", "maximize"), [(False, False), (True, True)])
def test_gradients_with_pending_points(name, transforms, maximize):
    pending = grid(1, transforms, seed=5).squeeze(-2)
    kwargs: dict[str, Any] = {"maximize": maximize, "X_pending": pending, "num_fantasies": 2}
    model = make_model(transforms=transforms)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    acqf = build(name, model, threshold(transforms), **kwargs)
    X = grid(2, transforms).requires_grad_()
    assert torch.autograd.gradcheck(acqf, X)


@each
@pytest.mark.parametrize(
    ("settings", "pending"), [({}, False), ({"fixed_noise": True, "transforms": True}, True)]
)
def test_single_precision(name, settings, pending):
    values, transforms = {}, is_transformed(settings)
    for dtype in (torch.float32, torch.double):
        model = make_model(dtype, **settings)
        kwargs: dict[str, Any] = {}
        if pending:
            kwargs["X_pending"] = grid(1, transforms, seed=5).squeeze(-2).to(dtype)
        best = torch.tensor(threshold(transforms), dtype=dtype)
        X = grid(4, transforms).to(dtype).requires_grad_()
        value = build(name, model, best, **kwargs)(X)
        (gradient,) = torch.autograd.grad(value.sum(), X)
        assert value.dtype == gradient.dtype == dtype
        assert gradient.isfinite().all()
        values[dtype] = value.detach().double()
    torch.testing.assert_close(*values.values(), rtol=1e-2, atol=1e-3)


# ------------------------------------------------------------------ what is refused


@each
def test_other_models_are_refused(name):
    with pytest.raises(UnsupportedError, match="needs a calibrated posterior.*SingleTaskGP"):
        build(name, make_gp())(grid())
    with pytest.raises(UnsupportedError, match="one output, got 2"):
        build(name, ModelList(make_model(), make_model()))


def test_several_values_for_each_point_are_refused():
    """Closed forms have no risk measure; a single set of features makes one value of each point."""
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
        with pytest.raises(UnsupportedError, match="3 points of each: .*risk_measures"):
            make(model(3))(x)
    perturbed = SingleTaskGP(X, Y, input_transform=InputPerturbation(0.05 * X[:3])).eval()
    for gp in (perturbed, CalibratedModel(perturbed, far_from_gaussian())):
        with pytest.raises(UnsupportedError, match="3 points of each: .*risk_measures"):
            DelayedThompsonSampling(gp)(X[:4].unsqueeze(-2))


def test_level_is_checked():
    for level in (0.0, 1.0, math.nan):
        with pytest.raises(InputDataError, match="`level`"):
            CalibratedUpperConfidenceBound(make_model(), level=level)


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


@pytest.mark.parametrize("acquisition", [*IMPROVEMENTS.values(), CalibratedUpperConfidenceBound])
def test_docstrings_describe_every_argument_once(acquisition):
    """Those of improvement functions are composed, and Sphinx must find their sections."""
    lines = (inspect.getdoc(acquisition) or "").splitlines()
    assert lines.count("Args:") == lines.count("Raises:") == 1
    for name in inspect.signature(acquisition).parameters:
        assert sum(line.startswith(f"    {name}: ") for line in lines) == 1


CALIBRATORS = {
    "global": lambda: OnlineConformal(alpha=0.2),
    "local": lambda: LocalizedConformal(alpha=0.2),
    "gaussian tails": lambda: LocalizedConformal(alpha=0.2, lengthscale=0.3, tails="gaussian"),
    "quantiles": lambda: QuantileRecalibrator(),
    "local quantiles": lambda: QuantileRecalibrator(lengthscale=0.3),
}


@pytest.mark.parametrize("name", CALIBRATORS)
def test_quantile_reads_nothing_back(name):
    """Value and gradient of the quantile wait for the device as often as the Gaussian process."""
    gp = make_gp()
    model = CalibratedModel.from_history(gp, CALIBRATORS[name](), 5)

    def reads(acquisition: AcquisitionFunction, batch: int) -> int:
        points = torch.rand(batch, 1, 2, **DOUBLE).requires_grad_()
        return count_operations(
            lambda: torch.autograd.grad(acquisition(points).sum(), points)
        ).host_reads

    plain = UpperConfidenceBound(gp, 2.0)
    for level in (0.9, 0.3):
        own = CalibratedUpperConfidenceBound(model, level=level)
        reads(own, 3), reads(plain, 3)  # caches
        for batch in (3, 40):
            assert reads(own, batch) <= reads(plain, batch)
