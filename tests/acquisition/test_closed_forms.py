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
from torch.utils._python_dispatch import TorchDispatchMode

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
fixed = pytest.mark.parametrize("fixed_noise", [False, True], ids=["learned", "fixed"])
transformed = pytest.mark.parametrize("transforms", [False, True], ids=["plain", "transforms"])


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
@fixed
@transformed
def test_closed_forms(name, fixed_noise, transforms):
    model = make_model(fixed_noise=fixed_noise, transforms=transforms)
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


@each
@pytest.mark.parametrize("maximize", [False, True])
def test_monte_carlo(name, maximize):
    """Against the posterior's own samples, within four standard errors."""
    model = make_model()
    X = grid()
    torch.manual_seed(3)
    num = 40_000
    sign = 1.0 if maximize else -1.0
    with torch.no_grad():
        samples = sign * model.posterior(X).rsample(torch.Size([num])).reshape(num, 6)
        value = build(name, model, maximize=maximize)(X)
    excess = samples - sign * BEST
    if name == "UCB":
        below = (samples <= value).double().mean(dim=0)
        assert ((below - LEVEL).abs() <= 4 * math.sqrt(LEVEL * (1 - LEVEL) / num)).all()
        return
    draws = (excess > 0).double() if name == "PI" else excess.clamp(min=0.0)
    error = draws.std(dim=0) / math.sqrt(num)
    value = value.exp() if name == "logEI" else value
    assert (value > 10 * error).sum() >= 3  # the comparison means something
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
@fixed
@transformed
@pytest.mark.parametrize("maximize", [False, True])
def test_without_calibration_they_are_botorchs(name, fixed_noise, transforms, maximize):
    gp = make_gp(fixed_noise, transforms)
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
@fixed
@transformed
def test_minimisation(name, fixed_noise, transforms):
    """``maximize=False``, a weight of -1 and negated outcomes say the same."""
    best = threshold(transforms)
    gps = [make_gp(fixed_noise, transforms, sign=sign) for sign in (1.0, -1.0)]
    models = [CalibratedModel(gp, far_from_gaussian()) for gp in gps]
    weight = ScalarizedPosteriorTransform(torch.tensor([-1.0], **DOUBLE))
    X = grid(transforms=transforms)
    value = build(name, models[1], -best)(X)
    flagged = build(name, models[0], best, maximize=False)
    torch.testing.assert_close(flagged(X), value)
    weighted = build(name, models[0], -best, posterior_transform=weight)
    torch.testing.assert_close(weighted(X), value)
    # Both cancel.
    twice = build(name, models[0], -best, posterior_transform=weight, maximize=False)
    torch.testing.assert_close(twice(X), build(name, models[0], best)(X))
    assert not torch.allclose(value, build(name, models[0], best)(X))


@each
def test_scale_and_offset_of_a_posterior_transform(name):
    model = make_model()
    transform = ScalarizedPosteriorTransform(torch.tensor([2.0], **DOUBLE), offset=1.0)
    X = grid()
    plain = build(name, model)(X)
    expected = {
        "EI": 2.0 * plain,
        "logEI": math.log(2.0) + plain,
        "PI": plain,
        "UCB": 1.0 + 2.0 * plain,
    }[name]
    moved = build(name, model, 1.0 + 2.0 * BEST, posterior_transform=transform)(X)
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
@pytest.mark.parametrize("shape", [(5,), (2, 3)])
def test_batch_shapes_with_pending_points(name, shape):
    acqf = build(name, make_model(), X_pending=grid(2, seed=5).squeeze(-2), num_fantasies=4)
    X = grid(math.prod(shape))
    value = acqf(X.view(*shape, 1, 2))
    assert value.shape == shape
    torch.testing.assert_close(value.flatten(), acqf(X))


# ------------------------------------------------------------------ pending points


@each
@fixed
@transformed
@pytest.mark.parametrize("maximize", [False, True])
def test_pending_points_average_over_fantasies(name, fixed_noise, transforms, maximize):
    """Equal to one conditioned model per fantasy, each with its own incumbent."""
    model = make_model(fixed_noise=fixed_noise, transforms=transforms)
    pending = grid(2, transforms, seed=5).squeeze(-2)
    best, num, sign = threshold(transforms), 4, 1.0 if maximize else -1.0
    acqf = build(name, model, best, maximize=maximize, X_pending=pending.clone(), num_fantasies=num)
    X = torch.cat([grid(2, transforms), pending.unsqueeze(-2) + 1e-3])
    observation = model.posterior(pending, observation_noise=True)
    outcomes = get_sampler(observation, torch.Size([num]), seed=0)(observation)
    kwargs = {}
    if fixed_noise:
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
@pytest.mark.parametrize(
    ("transforms", "pending", "maximize"),
    [(False, False, True), (True, False, False), (False, True, False), (True, True, True)],
)
def test_gradients(name, transforms, pending, maximize):
    kwargs: dict[str, Any] = {"maximize": maximize}
    if pending:
        kwargs |= {"X_pending": grid(1, transforms, seed=5).squeeze(-2), "num_fantasies": 2}
    model = make_model(transforms=transforms)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    acqf = build(name, model, threshold(transforms), **kwargs)
    X = grid(2, transforms).requires_grad_()
    assert torch.autograd.gradcheck(acqf, X)


@each
@fixed
@transformed
@pytest.mark.parametrize("pending", [False, True])
def test_single_precision(name, fixed_noise, transforms, pending):
    values = {}
    for dtype in (torch.float32, torch.double):
        model = make_model(dtype, fixed_noise=fixed_noise, transforms=transforms)
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


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, math.nan])
def test_level_is_checked(level):
    with pytest.raises(InputDataError, match="`level`"):
        CalibratedUpperConfidenceBound(make_model(), level=level)


@pytest.mark.parametrize(
    "best_f", [math.nan, torch.tensor([0.1, math.nan], **DOUBLE), None, "1", 1j, torch.zeros(0)]
)
@improvements
def test_best_f_is_checked(name, best_f):
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


@pytest.mark.parametrize(
    "acquisition",
    [
        CalibratedExpectedImprovement,
        LogCalibratedExpectedImprovement,
        CalibratedProbabilityOfImprovement,
        CalibratedUpperConfidenceBound,
    ],
)
def test_docstrings_describe_every_argument_once(acquisition):
    """Those of improvement functions are composed, and Sphinx must find their sections."""
    lines = (inspect.getdoc(acquisition) or "").splitlines()
    assert lines.count("Args:") == lines.count("Raises:") == 1
    for name in inspect.signature(acquisition).parameters:
        assert sum(line.startswith(f"    {name}: ") for line in lines) == 1


class HostReads(TorchDispatchMode):
    """Counts operations that wait for the device, or whose result has a shape that is read."""

    NAMES = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::unique")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        by_mask = func.name().startswith("aten::index.") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        self.count += by_mask or func.name().split(".")[0] in self.NAMES
        return func(*args, **(kwargs or {}))


CALIBRATORS = {
    "global": lambda: OnlineConformal(alpha=0.2),
    "local": lambda: LocalizedConformal(alpha=0.2),
    "gaussian tails": lambda: LocalizedConformal(alpha=0.2, lengthscale=0.3, tails="gaussian"),
    "quantiles": lambda: QuantileRecalibrator(),
    "local quantiles": lambda: QuantileRecalibrator(lengthscale=0.3),
}


@pytest.mark.parametrize("name", CALIBRATORS)
@pytest.mark.parametrize("level", [0.9, 0.3])
def test_quantile_reads_nothing_back(name, level):
    """Value and gradient of the quantile wait for the device as often as the Gaussian process."""
    gp = make_gp()
    model = CalibratedModel.from_history(gp, CALIBRATORS[name](), 5)

    def reads(acquisition: AcquisitionFunction, batch: int) -> int:
        points = torch.rand(batch, 1, 2, **DOUBLE).requires_grad_()
        with HostReads() as mode:
            torch.autograd.grad(acquisition(points).sum(), points)
        return mode.count

    own, plain = CalibratedUpperConfidenceBound(model, level=level), UpperConfidenceBound(gp, 2.0)
    reads(own, 3), reads(plain, 3)  # caches
    for batch in (3, 40):
        assert reads(own, batch) <= reads(plain, batch)
    with HostReads() as mode:  # the instrument itself
        ones = torch.ones(3)
        float(ones.sum()), ones[ones > 0], ones.nonzero()
    assert mode.count >= 3
