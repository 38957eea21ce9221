"""LOCBO in its stateful form: one calibrator for the whole run.

A replay of the history (``CalibratedModel.from_history``) scores past outcomes with the present
hyperparameters, which were fitted to these outcomes, so a model that was overconfident at the time
looks better in hindsight. Here, as in the paper, each outcome is scored once, by the model that
predicted it, and the next model takes over the calibrator. The coverage bounds hold in this
setting.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from botorch.models.model import Model
from torch import Tensor

from benchmarks.framework.sequential import Method, Problem
from benchmarks.framework.strategies import AcquisitionStrategy, CalibratorFactory
from botorch_calib import CalibratedModel, LocalizedConformal


class StatefulStrategy:
    """Log calibrated expected improvement with a calibrator that is kept between steps.

    Args:
        problem: The problem.
        seed: The seed of the replicate.
        calibrator: Makes the calibrator.
        settings: Further arguments of `AcquisitionStrategy`.
    """

    def __init__(
        self, problem: Problem, seed: int, calibrator: CalibratorFactory, **settings: Any
    ) -> None:
        self.problem = problem
        self.calibrator = calibrator()
        # Everything except the fit is the same as for a replayed calibrator.
        self.stateless = AcquisitionStrategy(problem, seed, calibrator, **settings)
        self.model: CalibratedModel | None = None
        self.num_seen = 0

    def fit(self, X: Tensor, Y: Tensor) -> CalibratedModel:
        if self.model is not None and len(X) > self.num_seen:
            # The next model is fitted to all data, so the last model need not be conditioned.
            self.model.observe(X[self.num_seen :], Y[self.num_seen :], condition=False)
        self.num_seen = len(X)
        self.model = CalibratedModel(self.stateless.update_gp(X, Y), self.calibrator)
        return self.model

    def propose(self, model: Model | None, X: Tensor, Y: Tensor) -> Tensor:
        return self.stateless.propose(model, X, Y)

    def extras(self, model: Model | None, x: Tensor, y: Tensor) -> dict[str, float]:
        return self.stateless.extras(model, x, y)

    def objective_covered(self, model: Model | None, X: Tensor, f: Tensor) -> Tensor | None:
        return self.stateless.objective_covered(model, X, f)


def locbo_stateful() -> Method:
    """Localized calibration that scores each outcome when it arrives."""
    calibrator = partial(LocalizedConformal, alpha=0.2, lengthscale=0.25)
    return Method("locbo_stateful", partial(StatefulStrategy, calibrator=calibrator))
