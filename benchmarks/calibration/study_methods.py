"""Methods of suite `calibration`, which `ocbo_designs` and `locbo_full` take parts of.

Each keeps its problem's acquisition function and the optimiser of all methods, so that it
differs from plain BO in its model alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from botorch.models.model import Model
from torch import Tensor

from benchmarks.baselines import ClassifierDensityRatio, WeightedConformal, proposal_samples
from benchmarks.calibration.methods import ALPHA, CHEAP
from benchmarks.calibration.synthetic import StudyProblem
from benchmarks.framework.sequential import Method, Problem, Strategy
from benchmarks.framework.strategies import ACQUISITIONS, AcquisitionStrategy
from botorch_calib import CalibratedModel, LocalizedConformal, QuantileRecalibrator

# Without noise the largest outcome is the value to improve upon.
SETTINGS: dict[str, Any] = {**CHEAP, "incumbent": "outcome"}

NUM_PROPOSALS = 256


def in_study(
    problem: Problem, seed: int, strategy: Callable[..., Strategy], **options: Any
) -> Strategy:
    """A strategy with the acquisition function that the problem's protocol names."""
    if not isinstance(problem, StudyProblem):
        raise TypeError(f"{problem.name!r} is not a problem of the calibration study.")
    return strategy(problem, seed, acquisition=problem.acquisition, **options)


def study_method(
    name: str, strategy: Callable[..., Strategy] = AcquisitionStrategy, **options: Any
) -> Method:
    """A method of the calibration study."""
    return Method(name, partial(in_study, strategy=strategy, **SETTINGS, **options))


@dataclass
class ConformalStrategy(AcquisitionStrategy):
    """Conformal Bayesian optimization: weighted by where the plain GP would query next."""

    def fit(self, X: Tensor, Y: Tensor) -> Model:
        gp = self.update_gp(X, Y)
        plain = ACQUISITIONS[self.acquisition, False](gp, Y.max())
        proposals = proposal_samples(plain, self.problem.bounds_tensor(), NUM_PROPOSALS)
        ratio = ClassifierDensityRatio(gp.transform_inputs(X), gp.transform_inputs(proposals))
        calibrator = WeightedConformal(self.alpha, density_ratio=ratio)
        return CalibratedModel.from_history(gp, calibrator, self.problem.num_initial)

    @property
    def calibrated(self) -> bool:
        return True


def study_methods() -> tuple[Method, ...]:
    """All methods of the calibration study, the baseline first."""
    return (
        study_method("bo"),
        study_method("locbo", calibrator=partial(LocalizedConformal, alpha=ALPHA)),
        study_method("ocbo", calibrator=QuantileRecalibrator),
        study_method("cbo", ConformalStrategy),
    )
