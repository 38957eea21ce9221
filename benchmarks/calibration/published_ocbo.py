"""OCBO as in its experiments (Algorithm 4), compared with plain and replayed models.

* ``bo``: the plain process.
* ``ocbo``: the package's `QuantileRecalibrator`, which replays the history one step ahead and
  predicts the objective.
* ``ocbo_loo``: isotonic regression on the leave-one-out PITs of all outcomes, which are computed in
  closed form with the hyperparameters fitted to all data. It predicts the observation.
* ``ocbo_loo_trained``: the same, with hyperparameters fitted to the training part of each split,
  as in Algorithm 4. This needs N fits in each step.
* ``ocbo_series_trained``: the version of the paper's table 4. Its splits are in time, so each
  outcome is predicted from the earlier outcomes, and the recalibrator is a Gaussian process.

For table 4 the search is the search of GPyOpt, which the paper uses. Improvement is over the best
posterior mean at the evaluated points, by at least 0.01 standard deviations of the outcomes. The
confidence bound is two deviations from the mean. The plain process predicts the observation, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from statistics import NormalDist
from typing import Any

import torch
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.test_functions.synthetic import Ackley
from torch import Tensor

from benchmarks.baselines import RecalibratedCdf
from benchmarks.baselines.recalibrated_cdf import gaussian_process
from benchmarks.calibration.ackley import ACKLEY_BOX, heteroscedastic_ackley
from benchmarks.calibration.methods import CHEAP
from benchmarks.framework.sequential import Method, Problem, botorch_oracle, posterior_mean
from benchmarks.framework.strategies import ACQUISITIONS, AcquisitionStrategy
from benchmarks.framework.surrogates import DefaultPriors, Refitted, fit_gp
from botorch_calib import CalibratedModel, CalibratedUpperConfidenceBound
from botorch_calib.calibration import QuantileRecalibrator
from botorch_calib.calibration.base import NoCalibration


@dataclass
class Algorithm4Strategy(AcquisitionStrategy):
    """Maximizes an acquisition function of the recalibrated distribution of the observation.

    Args:
        splits: ``"loo"``, or ``"prequential"`` for splits in time.
        trained: Whether hyperparameters are fitted to the training part of each split.
    """

    splits: str = "loo"
    trained: bool = False
    # Residuals of the splits in time, which the next step needs again.
    earlier: list[Tensor] = field(default_factory=list, init=False, repr=False)

    def fit(self, X: Tensor, Y: Tensor) -> Model:
        gp, calibrator = self.update_gp(X, Y), self.made()
        first = 1 if self.splits == "prequential" else 0
        if not self.trained:
            return CalibratedModel.from_history(
                gp, calibrator, num_initial=first, denoise=False, residuals=self.splits
            )
        calibrator.update(gp.transform_inputs(X[first:]), self.trained_residuals(X, Y, first))
        return CalibratedModel(gp, calibrator, denoise=False)

    def made(self) -> RecalibratedCdf:
        assert self.calibrator is not None
        calibrator = self.calibrator()
        assert isinstance(calibrator, RecalibratedCdf)
        return calibrator

    def trained_residuals(self, X: Tensor, Y: Tensor, first: int) -> Tensor:
        """Standardised residuals from row ``first`` on, each from a process fitted to its split."""
        rows = torch.arange(len(X))
        if self.splits == "loo":
            return torch.cat([self.trained_residual(X, Y, i, rows != i) for i in range(len(X))])
        # A later step has the same splits in time, and one more.
        for i in range(first + len(self.earlier), len(X)):
            self.earlier.append(self.trained_residual(X, Y, i, rows < i))
        return torch.cat(self.earlier)

    @torch.no_grad()
    def trained_residual(self, X: Tensor, Y: Tensor, i: int, train: Tensor) -> Tensor:
        with torch.enable_grad():
            gp = self.problem.surrogate(X[train], Y[train], self.problem.bounds_tensor(), 0, None)
        posterior = gp.posterior(X[i : i + 1], observation_noise=True)
        return (Y[i] - posterior.mean[0]) / posterior.variance[0].sqrt()


class GPyOptSearch(AcquisitionStrategy):
    """GPyOpt's acquisition functions for a model with a calibrated posterior."""

    def propose(self, model: Model | None, X: Tensor, Y: Tensor) -> Tensor:
        assert model is not None
        if self.acquisition == "ucb":
            return self.maximise(CalibratedUpperConfidenceBound(model, level=CONFIDENCE))
        best = posterior_mean(model, X).max() + JITTER * Y.std()
        return self.maximise(ACQUISITIONS[self.acquisition, True](model, best))


class PlainGPyOptStrategy(GPyOptSearch):
    """The plain process, which predicts the observation."""

    def fit(self, X: Tensor, Y: Tensor) -> Model:
        return CalibratedModel(self.update_gp(X, Y), NoCalibration(), denoise=False)


@dataclass
class Algorithm4GPyOptStrategy(GPyOptSearch, Algorithm4Strategy):
    """GPyOpt's search by the recalibrated distribution of the observation."""


@dataclass(frozen=True, kw_only=True)
class StudyProblem(Problem):
    """A problem that determines the acquisition function of all methods."""

    acquisition: str = "ei"


def in_study(problem: Problem, seed: int, strategy: Any, **settings: Any) -> AcquisitionStrategy:
    """A strategy with the acquisition function of the problem, if it determines one."""
    if isinstance(problem, StudyProblem):
        settings["acquisition"] = problem.acquisition
    made: AcquisitionStrategy = strategy(problem, seed, **settings)
    return made


def study_method(name: str, strategy: Any, settings: dict[str, Any], **more: Any) -> Method:
    return Method(name, partial(in_study, strategy=strategy, **settings, **more))


# GPyOpt's settings: the smallest improvement, and the level of the confidence bound.
JITTER, CONFIDENCE = 0.01, NormalDist().cdf(2.0)

# Without noise, improvement is over the largest outcome.
OUTCOME: dict[str, Any] = {**CHEAP, "incumbent": "outcome"}


def compared(
    plain: Any = AcquisitionStrategy,
    published: Any = Algorithm4Strategy,
    settings: dict[str, Any] = OUTCOME,
) -> tuple[Method, ...]:
    """The plain process, replayed calibration, and leave-one-out calibration."""
    return (
        study_method("bo", plain, settings),
        study_method("ocbo", plain, settings, calibrator=QuantileRecalibrator),
        study_method("ocbo_loo", published, settings, calibrator=RecalibratedCdf),
    )


def compared_in_table_4() -> tuple[Method, ...]:
    """The methods of `compared` with GPyOpt's search, and two that train models for each split."""
    published = partial(study_method, strategy=Algorithm4GPyOptStrategy, settings=CHEAP)
    series: dict[str, Any] = {
        "calibrator": partial(RecalibratedCdf, gaussian_process),
        "splits": "prequential",
    }
    return (
        study_method("bo", PlainGPyOptStrategy, CHEAP),
        study_method("ocbo", GPyOptSearch, CHEAP, calibrator=QuantileRecalibrator),
        published("ocbo_loo", calibrator=RecalibratedCdf),
        published("ocbo_loo_trained", calibrator=RecalibratedCdf, trained=True),
        published("ocbo_series_trained", trained=True, **series),
    )


# ------------------------------------------------------------ the example of the paper on LOCBO


@dataclass(frozen=True)
class RawInputs(Refitted):
    """A Gaussian process with priors for the unit cube on inputs as they are, as published."""

    def fit(self, X: Tensor, Y: Tensor, bounds: Tensor) -> SingleTaskGP:
        unit = bounds.new_tensor([[0.0], [1.0]]).expand_as(bounds)
        return fit_gp(X, Y, unit)


PROCESSES: dict[str, Refitted] = {
    "raw": RawInputs(every=5, at_first=10),
    "normalized": Refitted(every=5, at_first=10),
    "default": DefaultPriors(every=5, at_first=10),
}


def ackley_problems() -> tuple[Problem, ...]:
    """Ackley with each process: with noise that grows outwards, and without noise."""
    noisy = heteroscedastic_ackley()
    oracle = partial(botorch_oracle, cls=Ackley, dim=2, bounds=list(ACKLEY_BOX), negate=True)
    functions = {"heteroscedastic": noisy, "noise_free": replace(noisy, build=oracle)}
    return tuple(
        replace(problem, name=f"{function}_{name}", surrogate=process)
        for function, problem in functions.items()
        for name, process in PROCESSES.items()
    )
