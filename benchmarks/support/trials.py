"""The operations that are tried with each model, and the verdict."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.acquisition.objective import LinearMCObjective
from botorch.acquisition.risk_measures import Expectation
from botorch.exceptions import BotorchError, UnsupportedError
from botorch.models.gpytorch import BatchedMultiOutputGPyTorchModel
from botorch.models.model import ModelList
from botorch.sampling.normal import SobolQMCNormalSampler

from benchmarks.support.models import Case, Entry
from botorch_calib import (
    CalibratedModel,
    CalibratedModelList,
    ChanceConstraint,
    LocalizedConformal,
    LogCalibratedExpectedImprovement,
    calibration_report,
)

#: The start of errors that BoTorch's model raises without this package.
BOTORCHS = "BoTorch's own"


class Verdict(NamedTuple):
    """Whether an operation is supported; if not, the error names the remedy."""

    supported: bool
    error: str = ""


def verdict(entry: Entry, operation: Callable[[Case], None]) -> Verdict:
    """The verdict on a new copy of a model; errors that are not meant for users are raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = entry.make()
        try:
            operation(case)
        except BotorchError as error:
            return Verdict(False, str(error))
    return Verdict(True)


# ------------------------------------------------------------ operations


def wrap(case: Case) -> None:
    """Predict with a calibrated model around it."""
    _check_finite(_wrapped(case).posterior(case.X))


def replay(case: Case) -> None:
    """Calibrate from its training data."""
    _check_finite(_replayed(case).posterior(case.X))


def observe(case: Case) -> None:
    """Calibrate from new observations."""
    model = _wrapped(case)
    model.observe(case.X, case.Y, condition=False)
    _check_finite(model.posterior(case.X))


def condition(case: Case) -> None:
    """Condition the model on new observations without a refit."""
    model = _wrapped(case)
    before = model.posterior(case.X).mean
    model.observe(case.X, case.Y)
    assert not torch.allclose(model.posterior(case.X).mean, before)


def fantasize(case: Case) -> None:
    """Condition the model on its own draws, as for pending points and look-ahead."""
    sampler = SobolQMCNormalSampler(torch.Size([2]), seed=0)
    _check_finite(_wrapped(case).fantasize(case.X[:1], sampler).posterior(case.X))


def sample(case: Case) -> None:
    """Draw joint samples, and evaluate BoTorch's Monte Carlo acquisition functions."""
    model = _wrapped(case)
    assert model.posterior(case.X).rsample(torch.Size([4])).isfinite().all()
    objective: Any = LinearMCObjective(torch.ones(case.Y.shape[-1], dtype=torch.double))
    if case.num_points > 1:
        objective = Expectation(n_w=case.num_points)
    _check_value(qLogExpectedImprovement(model, case.Y.sum(-1).min(), objective=objective), case)


def improvement(case: Case) -> None:
    """Evaluate closed-form expected improvement of each outcome."""
    for model in _outcomes(_wrapped(case)):
        _check_value(LogCalibratedExpectedImprovement(model, case.Y.min()), case)


def constraint(case: Case) -> None:
    """Use a chance constraint on an outcome."""
    for model in _outcomes(_wrapped(case, denoise=False)):
        limited = ChanceConstraint(model, upper=float(case.Y.max()))
        assert limited.margin(case.X.unsqueeze(-2)).isfinite().all()


def report(case: Case) -> None:
    """Make a calibration report on new observations."""
    for i, model in enumerate(_outcomes(_wrapped(case))):
        str(calibration_report(model, case.X, case.Y[:, i : i + 1]))


def save_and_load(case: Case) -> None:
    """Load the state dictionary into another model of the same data."""
    model, other = _wrapped(case), _wrapped(case)
    try:
        case.model.load_state_dict(case.model.state_dict())
    except (RuntimeError, AttributeError) as error:
        raise UnsupportedError(f"{BOTORCHS} cannot be loaded.") from error
    for each in _outcomes(model):
        each.calibrator.update(case.X, torch.tensor([3.0, -2.0, 4.0], dtype=torch.double))
    expected = model.posterior(case.X).variance
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other.posterior(case.X).variance, expected)


def pickled(case: Case) -> None:
    """Pickle the calibrated model, if BoTorch's model can be pickled."""
    try:
        pickle.dumps(case.model)
    except (AttributeError, pickle.PicklingError) as error:
        raise UnsupportedError(f"{BOTORCHS} cannot be pickled.") from error
    model = _wrapped(case)
    expected = model.posterior(case.X).mean
    other = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(other.posterior(case.X).mean, expected)


#: Operations, by the headings of their columns.
OPERATIONS: dict[str, Callable[[Case], None]] = {
    "wrap": wrap,
    "replay": replay,
    "observe": observe,
    "condition": condition,
    "fantasize": fantasize,
    "sample": sample,
    "closed-form EI": improvement,
    "chance constraint": constraint,
    "report": report,
    "save and load": save_and_load,
    "pickle": pickled,
}


# ------------------------------------------------------------ helpers


def _wrapped(case: Case, **options: Any) -> Any:
    """The model with new calibrators."""
    options = {"denoise": case.denoise} | options

    def calibrated(model: Any) -> CalibratedModel:
        return CalibratedModel(model, LocalizedConformal(0.2), **options)

    model: Any = case.model
    if isinstance(model, ModelList):
        return CalibratedModelList(*map(calibrated, model.models))
    if isinstance(model, BatchedMultiOutputGPyTorchModel) and model.num_outputs > 1:
        parts = [model.subset_output([i]) for i in range(model.num_outputs)]
        return CalibratedModelList(*map(calibrated, parts))
    return calibrated(model)


def _replayed(case: Case) -> Any:
    kind = CalibratedModelList if case.model.num_outputs > 1 else CalibratedModel
    return kind.from_history(case.model, LocalizedConformal(0.2), denoise=case.denoise)


def _outcomes(model: Any) -> list[Any]:
    """The calibrated models of each outcome."""
    return list(model.models) if isinstance(model, CalibratedModelList) else [model]


def _check_finite(posterior: Any) -> None:
    assert posterior.mean.isfinite().all() and (posterior.variance > 0).all()


def _check_value(acquisition: Any, case: Case) -> None:
    X = case.X.unsqueeze(-2).clone().requires_grad_()
    value = acquisition(X)
    (gradient,) = torch.autograd.grad(value.sum(), X)
    assert value.isfinite().all() and gradient.isfinite().all()
