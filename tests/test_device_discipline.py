"""No tensor is created on the default device or read back from it; the tests need no GPU.

Objects are built on the CPU. They are evaluated while PyTorch's default device is ``meta``, whose
tensors have no values: creating a tensor without a device raises an error at once.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from botorch.sampling.normal import SobolQMCNormalSampler
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.perf.operation_counts import count_operations
from botorch_calib import acquisition, calibration, decisions, robust
from botorch_calib.acquisition import (
    CalibratedExpectedImprovement,
    CalibratedExpectedShortfall,
    CalibratedProbabilityOfImprovement,
    CalibratedUpperConfidenceBound,
    DelayedThompsonSampling,
    DelayedUpperConfidenceBound,
    LogCalibratedConstrainedExpectedImprovement,
    LogCalibratedExpectedImprovement,
    LogCalibratedProbabilityOfFeasibility,
    RobustAcquisition,
    RobustUpperConfidenceBound,
    WassersteinUpperConfidenceBound,
    qLogCalibratedNoisyExpectedHypervolumeImprovement,
    qLogCalibratedNoisyExpectedImprovement,
)
from botorch_calib.calibration import (
    AggregatedQuantileTracker,
    Calibrator,
    ExactQuantileLearner,
    GaussianScore,
    LocalizedConformal,
    NoCalibration,
    OnlineConformal,
    OnlineQuantileTracker,
    QuantileRecalibrator,
)
from botorch_calib.calibration.learners.quantile_learner import QuantileLearner
from botorch_calib.decisions import CertifiedSetExpansion, ChanceConstraint
from botorch_calib.decisions.chance_constrained_search import LeastMargin
from botorch_calib.models import CalibratedModel, CalibratedModelList, CensoredDelayModel
from botorch_calib.robust import (
    AmbiguitySet,
    ChiSquaredBall,
    ConditionalValueAtRisk,
    ContextDistribution,
    KLBall,
    TotalVariationBall,
    WassersteinBall,
    WorstCase,
)
from tests.gps import DOUBLE, make_data, make_gp

pytestmark = pytest.mark.device

X = make_data(5, seed=21)[0].unsqueeze(-2)
DECISIONS = X[..., :1]
PENDING = make_data(3, seed=22)[0]
CONTEXTS = torch.linspace(0, 1, 9, **DOUBLE).unsqueeze(-1)


def here(points: Tensor) -> Tensor:
    """Points on the default device."""
    return points.to(torch.get_default_device())


def calibrated(calibrator: Calibrator | None = None, **kwargs: Any) -> CalibratedModel:
    calibrator = LocalizedConformal(0.2, lengthscale=0.5) if calibrator is None else calibrator
    return CalibratedModel.from_history(make_gp(), calibrator, **kwargs)


def outcomes() -> CalibratedModelList:
    return CalibratedModelList(make_gp(), calibrated(), calibrated(QuantileRecalibrator()))


def sampler() -> SobolQMCNormalSampler:
    return SobolQMCNormalSampler(torch.Size([8]), seed=0)


def constraint() -> ChanceConstraint:
    return ChanceConstraint.from_history(make_gp(), upper=0.5, lower=-2.0)


def draw(model: Model) -> AcquisitionFunction:
    """A draw while some points are pending."""
    pending = here(PENDING)
    delayed = CensoredDelayModel(model, pending, -1.5)
    return DelayedThompsonSampling(delayed, 0.7, pending, feedback_bound=0.2, seed=3)


def robust_bound(ambiguity: AmbiguitySet) -> AcquisitionFunction:
    weights = torch.tensor([0.1, 0.2, 0.05, 0.15, 0.0, 0.1, 0.1, 0.2, 0.1], **DOUBLE)
    contexts = ContextDistribution(here(CONTEXTS), weights)
    return RobustUpperConfidenceBound(make_gp(), 2.25, ambiguity, contexts)


LIMITS = {1: (None, 0.9), 2: (0.1, 0.4)}
ACQUISITIONS: dict[str, Callable[[], AcquisitionFunction]] = {
    "CalibratedExpectedShortfall": lambda: CalibratedExpectedShortfall(calibrated()),
    "CalibratedExpectedImprovement": lambda: CalibratedExpectedImprovement(calibrated(), 0.5),
    "CalibratedProbabilityOfImprovement": (
        lambda: CalibratedProbabilityOfImprovement(calibrated(), 0.5)
    ),
    "CalibratedUpperConfidenceBound": lambda: CalibratedUpperConfidenceBound(calibrated()),
    "CalibratedUpperConfidenceBound, many levels": (
        lambda: CalibratedUpperConfidenceBound(calibrated(QuantileRecalibrator()))
    ),
    "CalibratedUpperConfidenceBound, of observations, many levels": (
        lambda: CalibratedUpperConfidenceBound(
            calibrated(QuantileRecalibrator(lengthscale=0.3)), 0.1, observation_noise=True
        )
    ),
    "CertifiedSetExpansion": lambda: CertifiedSetExpansion(constraint()),
    "LeastMargin": lambda: LeastMargin(constraint()),
    "DelayedThompsonSampling": lambda: draw(make_gp()),
    "DelayedThompsonSampling, calibrated": lambda: draw(calibrated()),
    "DelayedUpperConfidenceBound, calibrated": (
        lambda: DelayedUpperConfidenceBound(
            CensoredDelayModel(calibrated(), here(PENDING), -1.5), 0.7, here(PENDING)
        )
    ),
    "LogCalibratedConstrainedExpectedImprovement": (
        lambda: LogCalibratedConstrainedExpectedImprovement(outcomes(), 0.3, 0, LIMITS)
    ),
    "LogCalibratedExpectedImprovement": lambda: LogCalibratedExpectedImprovement(calibrated(), 0.5),
    "LogCalibratedExpectedImprovement, pending": (
        lambda: LogCalibratedExpectedImprovement(calibrated(), 0.5, X_pending=here(PENDING))
    ),
    "LogCalibratedExpectedImprovement, objective's excess": (
        lambda: LogCalibratedExpectedImprovement(calibrated(excess="objective"), 0.5)
    ),
    "LogCalibratedExpectedImprovement, observation": (
        lambda: LogCalibratedExpectedImprovement(calibrated(denoise=False), 0.5)
    ),
    "LogCalibratedProbabilityOfFeasibility": (
        lambda: LogCalibratedProbabilityOfFeasibility(outcomes(), LIMITS)
    ),
    "RobustAcquisition": (
        lambda: RobustAcquisition(
            LogCalibratedExpectedImprovement(calibrated(), 0.5),
            WassersteinBall(0.1),
            here(CONTEXTS),
        )
    ),
    "RobustAcquisition, Lipschitz": (
        lambda: RobustAcquisition(
            LogCalibratedExpectedImprovement(calibrated(), 0.5),
            WassersteinBall(0.1, "lipschitz"),
            here(CONTEXTS),
        )
    ),
    "RobustUpperConfidenceBound": lambda: robust_bound(TotalVariationBall(0.1)),
    "RobustUpperConfidenceBound, calibrated": (
        lambda: RobustUpperConfidenceBound(
            calibrated(), 2.25, TotalVariationBall(0.1), here(CONTEXTS)
        )
    ),
    "WassersteinUpperConfidenceBound": (
        lambda: WassersteinUpperConfidenceBound(make_gp(), 2.25, 0.1, here(CONTEXTS))
    ),
    "WassersteinUpperConfidenceBound, Lipschitz contexts": (
        lambda: WassersteinUpperConfidenceBound(
            make_gp(), 2.25, 0.1, here(CONTEXTS), lipschitz_contexts=here(CONTEXTS[::2])
        )
    ),
    "qLogCalibratedNoisyExpectedHypervolumeImprovement": (
        lambda: qLogCalibratedNoisyExpectedHypervolumeImprovement(
            CalibratedModelList(calibrated(), calibrated(QuantileRecalibrator())),
            [-1.0, -1.0],
            make_data()[0],
            sampler=sampler(),
            prune_baseline=False,
        )
    ),
    "qLogCalibratedNoisyExpectedImprovement": (
        lambda: qLogCalibratedNoisyExpectedImprovement(
            calibrated(), make_data()[0], sampler=sampler(), prune_baseline=False
        )
    ),
}
SETS: dict[str, AmbiguitySet] = {
    "ChiSquaredBall": ChiSquaredBall(0.1),
    "ConditionalValueAtRisk": ConditionalValueAtRisk(0.3),
    "KLBall": KLBall(0.1),
    "KLBall, far": KLBall(5.0),
    "TotalVariationBall": TotalVariationBall(0.3),
    "WassersteinBall": WassersteinBall(0.1),
    "WassersteinBall, Lipschitz": WassersteinBall(0.1, method="lipschitz"),
    "WorstCase": WorstCase(),
}
CALIBRATORS: dict[str, Callable[[], Calibrator]] = {
    "NoCalibration": NoCalibration,
    "LocalizedConformal": lambda: LocalizedConformal(0.2, lengthscale=0.5),
    "LocalizedConformal, mixed": lambda: LocalizedConformal(0.2),
    "LocalizedConformal, as published": (
        lambda: LocalizedConformal(0.2, lengthscale=0.5, score=GaussianScore(), tails="gaussian")
    ),
    "OnlineConformal": lambda: OnlineConformal(0.2),
    "QuantileRecalibrator": lambda: QuantileRecalibrator(),
    "QuantileRecalibrator, local": lambda: QuantileRecalibrator(lengthscale=0.5),
    "QuantileRecalibrator, exact": lambda: QuantileRecalibrator(method="exact"),
}
LEARNERS: dict[str, Callable[[], QuantileLearner]] = {
    "AggregatedQuantileTracker": lambda: AggregatedQuantileTracker([0.2]),
    "ExactQuantileLearner": lambda: ExactQuantileLearner([0.2, 0.7], 0.05),
    "OnlineQuantileTracker": (
        lambda: OnlineQuantileTracker([0.2, 0.7], 0.05, scale=1.0, lengthscale=0.5)
    ),
}
# Functions that iterate, with a number of steps that depends on values.
ITERATIVE = ("WassersteinBall",)
# Functions with a worst case that is found by iteration.
ITERATED = ("RobustAcquisition",)


def forget_constants() -> None:
    """Empty the caches of constants, so that constants are created again."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "botorch_calib":
            for _, function in inspect.getmembers(module, lambda f: hasattr(f, "cache_clear")):
                function.cache_clear()


class _AsUsual(TorchDispatchMode):
    """Changes nothing."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        return func(*args, **(kwargs or {}))


class _NothingWithoutDevice(TorchDispatchMode):
    """Raises if an operation returns a tensor on ``meta``, the default device.

    Otherwise some operations on this tensor and a CPU tensor would continue with garbage.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.is_meta:
                raise RuntimeError(f"{func} made a tensor on the default device.")
        return result


@contextmanager
def nothing_without_device() -> Iterator[None]:
    """Make ``meta`` the default device, and its use an error."""
    forget_constants()
    try:
        with torch.device("meta"), _NothingWithoutDevice():
            yield
    finally:
        forget_constants()


def value_and_gradient(function: Callable[[Tensor], Tensor], points: Tensor) -> Tensor:
    points = points.clone().requires_grad_()
    value = function(points)
    (gradient,) = torch.autograd.grad(value.sum(), points)
    return gradient


def decisions_of(function: AcquisitionFunction) -> Tensor:
    return DECISIONS if hasattr(function, "ambiguity") else X


def exported(module: Any, base: type) -> set[str]:
    """Names of the classes that a module exports, except abstract classes."""
    known = {name: getattr(module, name) for name in module.__all__}
    return {
        name
        for name, found in known.items()
        if inspect.isclass(found) and issubclass(found, base) and not inspect.isabstract(found)
    }


@pytest.mark.parametrize(
    ("module", "base", "covered", "abstract"),
    [
        (acquisition, AcquisitionFunction, ACQUISITIONS, set()),
        (decisions, AcquisitionFunction, ACQUISITIONS, set()),
        (robust, AmbiguitySet, SETS, {"AmbiguitySet"}),
        (calibration, Calibrator, CALIBRATORS, set()),
        (calibration, QuantileLearner, LEARNERS, set()),
    ],
)
def test_every_class_is_covered(module, base, covered, abstract) -> None:
    names = {name.partition(",")[0] for name in covered}
    assert exported(module, base) - abstract <= names


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_acquisition_functions(name, device) -> None:
    # A dispatch mode makes torch use other branches of derivatives, which round differently.
    with torch.device("cpu"), _AsUsual():
        function = ACQUISITIONS[name]()
        expected = value_and_gradient(function, decisions_of(function))
    # Build the function again, so that it has no cached results.
    function = ACQUISITIONS[name]()
    points = decisions_of(function).to(device)
    with nothing_without_device():
        gradient = value_and_gradient(function, points)
    assert gradient.device.type == device.type
    if device.type == "cpu":
        assert torch.equal(gradient, expected)
    elif not name.startswith("DelayedThompsonSampling"):  # devices draw different numbers
        assert_close(gradient.cpu(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", SETS)
def test_ambiguity_sets(name, device) -> None:
    with torch.device("cpu"):
        expected = value_and_gradient(robust_bound(SETS[name]), DECISIONS)
    function, points = robust_bound(SETS[name]), DECISIONS.to(device)
    with nothing_without_device():
        gradient = value_and_gradient(function, points)
    assert gradient.device.type == device.type
    assert_close(gradient.cpu(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", CALIBRATORS)
def test_calibrators(name, device) -> None:
    calibrator, at = CALIBRATORS[name](), here(X)
    points, z = make_data()[0], torch.linspace(-2, 2, 12, **DOUBLE)
    with nothing_without_device():
        calibrator.update(points, z)
        gradient = value_and_gradient(
            lambda x: calibrator.predictive(x).log_prob(0.3 + 0 * x[..., :1]), at
        )
        quantile = calibrator.quantile(at, 0.9)
    assert gradient.device.type == quantile.device.type == device.type


@pytest.mark.parametrize("name", LEARNERS)
def test_learners(name, device) -> None:
    learner, at = LEARNERS[name](), here(X)
    points, u = make_data()[0], torch.linspace(0.05, 0.95, 12, **DOUBLE)
    with nothing_without_device():
        learner.update(points, u)
        thresholds = learner.threshold(at)
    assert thresholds.device.type == device.type


def own_host_reads(function: AcquisitionFunction) -> int:
    """The number of waits for the device in an evaluation with filled caches."""
    points = here(decisions_of(function))
    value_and_gradient(function, points)
    return count_operations(lambda: value_and_gradient(function, points)).own_host_reads


@pytest.mark.parametrize("name", [name for name in ACQUISITIONS if name not in ITERATED])
def test_acquisition_functions_read_nothing_back(name) -> None:
    # A closed form is built in each call, and reads the condition number of its covariance once.
    closed_form = "ConfidenceBound" in name and name.startswith(("Robust", "Wasserstein"))
    assert own_host_reads(ACQUISITIONS[name]()) <= int(closed_form)


@pytest.mark.parametrize("name", [name for name in SETS if name not in ITERATIVE])
def test_robust_bounds_read_once_at_most(name) -> None:
    assert own_host_reads(robust_bound(SETS[name])) <= 1
