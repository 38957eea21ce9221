"""What is tried with each model, and the verdict."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.acquisition.objective import LinearMCObjective
from botorch.exceptions import BotorchError
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


class Verdict(NamedTuple):
    """Whether an operation is supported; if not, the error says what to do."""

    supported: bool
    error: str = ""


def verdict(entry: Entry, operation: Callable[[Case], None]) -> Verdict:
    """The verdict on a model, made anew; errors that are not meant for users are raised."""
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
    """A calibrated model around it predicts."""
    _check_finite(_wrapped(case).posterior(case.X))


def replay(case: Case) -> None:
    """Its training data teach the calibrator."""
    _check_finite(_replayed(case).posterior(case.X))


def observe(case: Case) -> None:
    """New observations teach the calibrator."""
    model = _wrapped(case)
    model.observe(case.X, case.Y, condition=False)
    _check_finite(model.posterior(case.X))


def condition(case: Case) -> None:
    """The model takes new observations in without a refit."""
    model = _wrapped(case)
    before = model.posterior(case.X).mean
    model.observe(case.X, case.Y)
    assert not torch.allclose(model.posterior(case.X).mean, before)


def fantasize(case: Case) -> None:
    """It is conditioned on draws of its own, as for pending points and look-ahead."""
    sampler = SobolQMCNormalSampler(torch.Size([2]), seed=0)
    _check_finite(_wrapped(case).fantasize(case.X[:1], sampler).posterior(case.X))


def sample(case: Case) -> None:
    """Joint samples, and BoTorch's Monte Carlo acquisition functions."""
    model = _wrapped(case)
    assert model.posterior(case.X).rsample(torch.Size([4])).isfinite().all()
    objective = LinearMCObjective(torch.ones(case.Y.shape[-1], dtype=torch.double))
    _check_value(qLogExpectedImprovement(model, case.Y.sum(-1).min(), objective=objective), case)


def improvement(case: Case) -> None:
    """Closed-form expected improvement of the objective."""
    _check_value(LogCalibratedExpectedImprovement(_wrapped(case), case.Y.min()), case)


def constraint(case: Case) -> None:
    """A chance constraint on an outcome."""
    limit = float(case.Y.max())
    margin = ChanceConstraint(_wrapped(case, denoise=False), upper=limit).margin
    assert margin(case.X.unsqueeze(-2)).isfinite().all()


def report(case: Case) -> None:
    """A calibration report on new observations."""
    str(calibration_report(_wrapped(case), case.X, case.Y))


def save_and_load(case: Case) -> None:
    """A state dictionary carries it over, and so does pickling."""
    model = _wrapped(case)
    expected = model.posterior(case.X).mean
    other = pickle.loads(pickle.dumps(model))
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other.posterior(case.X).mean, expected)


#: Operations by the heading of their columns.
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
}


# ------------------------------------------------------------ helpers


def _wrapped(case: Case, **options: Any) -> Any:
    """The model with a calibrator that has learned nothing."""
    model: Any = case.model
    if model.num_outputs == 1:
        return CalibratedModel(model, LocalizedConformal(0.2), **options)
    return CalibratedModelList(
        *(CalibratedModel(each, LocalizedConformal(0.2), **options) for each in _outcomes(model))
    )


def _outcomes(model: Any) -> list[Any]:
    """Models of one outcome each."""
    if hasattr(model, "models"):
        return list(model.models)
    return [model.subset_output([i]) for i in range(model.num_outputs)]


def _replayed(case: Case) -> Any:
    kind = CalibratedModelList if case.model.num_outputs > 1 else CalibratedModel
    return kind.from_history(case.model, LocalizedConformal(0.2))


def _check_finite(posterior: Any) -> None:
    assert posterior.mean.isfinite().all() and (posterior.variance > 0).all()


def _check_value(acquisition: Any, case: Case) -> None:
    X = case.X.unsqueeze(-2).clone().requires_grad_()
    value = acquisition(X)
    (gradient,) = torch.autograd.grad(value.sum(), X)
    assert value.isfinite().all() and gradient.isfinite().all()
