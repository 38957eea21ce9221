"""Data are on a device that is not the default one, as in a user's session with a GPU.

Each path is run on the CPU and, with ``--device``, on that device, with the same hyperparameters or
the same seeds, so that results can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import matplotlib
import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.sampling.pathwise import draw_matheron_paths
from torch import Tensor
from torch.testing import assert_close

from botorch_calib import (
    CalibratedModel,
    ChanceConstraint,
    DelayAwareProposer,
    FeedbackLedger,
    LocalizedConformal,
    OnlineConformal,
    QuantileRecalibrator,
    calibration_report,
    noise_diagnosis,
    optimize_chance_constrained,
    optimize_robust,
)
from botorch_calib.asynchronous import SearchSettings
from botorch_calib.plotting import (
    plot_intervals,
    plot_noise_likelihood,
    plot_pit_histogram,
    plot_reliability,
    plot_threshold_map,
)
from tests.gps import CONSTANT, DOUBLE, LENGTHSCALES, NOISE
from tests.test_device_discipline import ACQUISITIONS, decisions_of

pytestmark = pytest.mark.device(is_default=False)

NUM = 20


def data(device: torch.device, num: int = NUM) -> tuple[Tensor, Tensor, Tensor]:
    """Bounds, points and outcomes in a box that is not the unit square."""
    generator = torch.Generator().manual_seed(1)
    bounds = torch.tensor([[-1.0, 0.0], [2.0, 5.0]], **DOUBLE)
    X = bounds[0] + (bounds[1] - bounds[0]) * torch.rand(num, 2, **DOUBLE, generator=generator)
    Y = 3.0 * X.sin().sum(dim=-1, keepdim=True)
    Y = Y + 0.3 * torch.randn(num, 1, **DOUBLE, generator=generator)
    return bounds.to(device), X.to(device), Y.to(device)


def fitted(bounds: Tensor, X: Tensor, Y: Tensor, noise: Tensor | None = None) -> SingleTaskGP:
    """A GP with set hyperparameters, instead of a fit."""
    gp = SingleTaskGP(
        X,
        Y,
        train_Yvar=noise,
        input_transform=Normalize(2, bounds=bounds),
        outcome_transform=Standardize(1),
    )
    gp.covar_module.lengthscale = X.new_tensor(LENGTHSCALES)
    gp.mean_module.initialize(constant=CONSTANT)
    if noise is None:
        gp.likelihood.noise = X.new_tensor([NOISE])
    return gp.eval()


def gp_on(device: torch.device) -> SingleTaskGP:
    return fitted(*data(device))


def points_on(device: torch.device, num: int = 6) -> Tensor:
    bounds = data(device)[0]
    unit = torch.rand(num, 2, **DOUBLE, generator=torch.Generator().manual_seed(7))
    return bounds[0] + (bounds[1] - bounds[0]) * unit.to(device)


def with_gradient(function: Callable[[Tensor], Tensor], X: Tensor) -> tuple[Tensor, ...]:
    X = X.clone().requires_grad_()
    value = function(X)
    return (value, *torch.autograd.grad(value.sum(), X))


def same_as_on_cpu(path: Callable[[torch.device], Any], device: torch.device) -> None:
    """Run a path on both devices: the tensors are on the right device, and they agree."""
    expected, results = path(torch.device("cpu")), path(device)
    assert len(results) > 0
    for here, there in zip(expected, results, strict=True):
        assert there.device.type == device.type
        assert here.isfinite().all()
        assert_close(there.cpu(), here, rtol=1e-6, atol=1e-8)


CALIBRATORS: dict[str, Callable[[torch.device], Any]] = {
    "OnlineConformal": lambda device: OnlineConformal(0.2),
    "LocalizedConformal": lambda device: LocalizedConformal(0.2),
    "LocalizedConformal, lengthscale": lambda device: LocalizedConformal(0.2, lengthscale=0.3),
    "QuantileRecalibrator": lambda device: QuantileRecalibrator(),
    "QuantileRecalibrator, local": lambda device: QuantileRecalibrator(lengthscale=0.3),
    "QuantileRecalibrator, exact": lambda device: QuantileRecalibrator(method="exact"),
}


@pytest.mark.parametrize("residuals", ["prequential", "loo"])
@pytest.mark.parametrize("name", CALIBRATORS)
def test_calibrated_models(name: str, residuals: str, device: torch.device) -> None:
    def path(device: torch.device) -> list[Tensor]:
        model = CalibratedModel.from_history(
            gp_on(device), CALIBRATORS[name](device), residuals=residuals
        )
        X = points_on(device)
        posterior = model.posterior(X)
        outcome = model.posterior(X, observation_noise=True)
        model.observe(X[:2], data(device)[2][:2])
        return [
            posterior.mean,
            posterior.variance,
            posterior.cdf(1.0),
            posterior.density(1.0),
            outcome.quantile(X.new_tensor([0.1, 0.9])),
            model.posterior(X).mean,
        ]

    same_as_on_cpu(path, device)


@pytest.mark.parametrize("name", ["LocalizedConformal", "QuantileRecalibrator"])
def test_a_model_moves_with_its_state(name: str, device: torch.device) -> None:
    cpu = torch.device("cpu")
    model = CalibratedModel.from_history(gp_on(cpu), CALIBRATORS[name](cpu))
    expected = model.posterior(points_on(cpu)).mean
    state = {key: value.clone() for key, value in model.state_dict().items()}
    moved = model.to(device).posterior(points_on(device)).mean
    assert moved.device.type == device.type
    assert_close(moved.cpu(), expected)
    other = CalibratedModel(gp_on(device), CALIBRATORS[name](device))
    other.load_state_dict(state)
    loaded = other.posterior(points_on(device)).mean
    assert loaded.device.type == device.type
    assert_close(loaded.cpu(), expected)


def calibrated(device: torch.device, **kwargs: Any) -> CalibratedModel:
    return CalibratedModel.from_history(gp_on(device), LocalizedConformal(0.2), **kwargs)


def acquisition_on(device: torch.device, name: str) -> Any:
    """An acquisition function that was built while its device was the default."""
    with device:
        return ACQUISITIONS[name]()


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_acquisition_functions(name: str, device: torch.device) -> None:
    def path(device: torch.device) -> tuple[Tensor, ...]:
        acqf = acquisition_on(device, name)
        return with_gradient(acqf, decisions_of(acqf).to(device))

    if name.startswith("DelayedThompsonSampling"):  # other devices draw other numbers
        assert all(each.device.type == device.type for each in path(device))
    else:
        same_as_on_cpu(path, device)


@pytest.mark.parametrize(
    "name",
    [
        "LogCalibratedExpectedImprovement, pending",
        "DelayedThompsonSampling, calibrated",
        "qLogCalibratedNoisyExpectedImprovement",
        "RobustUpperConfidenceBound",
        "WassersteinUpperConfidenceBound, Lipschitz contexts",
    ],
)
def test_search(name: str, device: torch.device) -> None:
    acqf = acquisition_on(device, name)
    width = decisions_of(acqf).shape[-1]
    bounds = torch.tensor([[0.0] * width, [1.0] * width], **DOUBLE, device=device)
    searches: list[Any] = [partial(optimize_acqf, q=1)]
    searches += [optimize_robust] if hasattr(acqf, "ambiguity") else []
    for search in searches:
        candidate, value = search(acqf, bounds=bounds, num_restarts=2, raw_samples=8)
        assert candidate.device.type == value.device.type == device.type
        assert ((bounds[0] <= candidate) & (candidate <= bounds[1])).all()
    if name == "RobustUpperConfidenceBound":
        assert acqf.worst_case_weights(candidate).device.type == device.type


def test_chance_constraints(device: torch.device) -> None:
    bounds, X, Y = data(device)
    constraint = ChanceConstraint.from_history(gp_on(device), upper=1.0, level=0.9, num_initial=5)
    acqf = UpperConfidenceBound(gp_on(device), beta=4.0)
    candidate, value, certified = optimize_chance_constrained(acqf, constraint, bounds)
    assert candidate.device.type == value.device.type == device.type
    constraint.observe(candidate, Y[:1])
    constraint = constraint.with_model(
        fitted(bounds, torch.cat([X, candidate]), torch.cat([Y, Y[:1]]))
    )
    optimize_chance_constrained(acqf, constraint, bounds)
    assert constraint.violation_bound(200) > 0
    assert isinstance(certified, bool)  # not a tensor, which would wait for the device


def test_chance_constraints_go_on_from_rows(device: torch.device) -> None:
    X = points_on(device)
    saved = ChanceConstraint(gp_on(torch.device("cpu")), upper=1.0)
    constraint = ChanceConstraint(gp_on(device), upper=1.0, rows=saved.decide(X.cpu()))
    for each, at in ((saved, X.cpu()), (constraint, X)):
        each.decide(at)
        each.observe(at, at.sum(dim=-1, keepdim=True), condition=False)
    X = X.unsqueeze(-2)
    assert_close(constraint.margin(X).cpu(), saved.margin(X.cpu()), rtol=1e-6, atol=1e-8)
    assert constraint.optimism(X).device == constraint.margin(X, 0.95).device == X.device


def test_paths_and_fantasies(device: torch.device) -> None:
    model, X = calibrated(device), points_on(device)
    paths = draw_matheron_paths(model, torch.Size([3]))
    assert paths(X).device.type == device.type
    assert model.posterior(X).rsample(torch.Size([4])).device.type == device.type
    fantasies = model.fantasize(X[:2], SobolQMCNormalSampler(torch.Size([3]), seed=0))
    assert fantasies.posterior(X).mean.device.type == device.type


def test_diagnoses_and_their_plots(device: torch.device) -> None:
    matplotlib.use("Agg")
    bounds, X, Y = data(device)
    told = fitted(bounds, X, Y, torch.full_like(Y, 0.01))
    model = CalibratedModel.from_history(told, LocalizedConformal(0.2))
    report = calibration_report(model)
    assert "coverage" in str(report)
    calibration_report(model, X, Y)
    diagnosis = noise_diagnosis(told)
    on_cpu = noise_diagnosis(fitted(*(each.cpu() for each in (bounds, X, Y, 0 * Y + 0.01))))
    assert diagnosis.multiplier == pytest.approx(on_cpu.multiplier, rel=1e-4)
    plot_noise_likelihood(diagnosis)
    plot_reliability(report)
    plot_pit_histogram(report)
    plot_threshold_map(model, bounds)


def test_intervals_of_one_input(device: torch.device) -> None:
    matplotlib.use("Agg")
    _, X, Y = data(device)
    gp = SingleTaskGP(X[:, :1], Y, input_transform=Normalize(1), outcome_transform=Standardize(1))
    model = CalibratedModel.from_history(gp.eval(), LocalizedConformal(0.2))
    grid = torch.linspace(-1, 2, 9, **DOUBLE, device=device).unsqueeze(-1)
    axes = plot_intervals(model, grid, X[:, :1], Y, truth=grid.sin())
    assert len(axes.lines) > 0


def ledger_of(device: torch.device) -> FeedbackLedger:
    ledger = FeedbackLedger(dim=2, censor_value=-6.0)
    ledger.add(*data(device)[1:])
    return ledger


@pytest.mark.parametrize("strategy", ["hallucinate", "ucb", "ts"])
def test_proposer_with_a_model_on_the_device(strategy: str, device: torch.device) -> None:
    """The ledger and its queries stay on the CPU, also with a model on another device."""
    bounds = data(device)[0]

    def fit(X: Tensor, Y: Tensor) -> SingleTaskGP:
        return fitted(bounds, X.to(device), Y.to(device))

    search = SearchSettings(num_restarts=2, raw_samples=8)
    propose = DelayAwareProposer(bounds, strategy, fit=fit, search=search)
    ledger = ledger_of(device)
    for number in range(4):
        trial = ledger.submit(propose(ledger))
        if number == 1:
            ledger.fail(trial)
    asked = ledger.pending()
    assert asked.shape == (3, 2)
    assert asked.device.type == "cpu"
    choices = DelayAwareProposer(bounds, strategy, fit=fit, choices=points_on(device))
    assert any(torch.equal(choices(ledger), each) for each in points_on(device).cpu())


@pytest.mark.parametrize("strategy", ["hallucinate", "ucb", "ts"])
def test_proposer_with_its_own_model(strategy: str, device: torch.device) -> None:
    """Proposals are on the device of the bounds, repeatable, and do not change the random state."""
    search = SearchSettings(num_restarts=2, raw_samples=8)

    def propose(ledger: FeedbackLedger) -> Tensor:
        proposer = DelayAwareProposer(data(device)[0], strategy, search=search)
        point = proposer(ledger)
        assert proposer._ledger_model._first.model is not None
        parameters = proposer._ledger_model._first.model.parameters()
        assert {parameter.device.type for parameter in parameters} == {device.type}
        return point

    def numbers() -> Tensor:
        return torch.rand(3, device=device)

    ledger = ledger_of(device)
    ledger.submit(points_on(device)[0])
    torch.manual_seed(5)
    expected = numbers()
    torch.manual_seed(5)
    point = propose(ledger)
    assert torch.equal(numbers(), expected)
    assert point.device.type == "cpu"
    assert torch.equal(propose(ledger), point)
