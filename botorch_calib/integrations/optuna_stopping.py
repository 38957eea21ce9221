"""`RemainingGainEvaluator`: when to stop a study of Optuna, by its terminator."""

from __future__ import annotations

from typing import Any

from botorch_calib.integrations.optuna import fit_in_unit_cube

# isort: split
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from optuna.search_space import intersection_search_space
from optuna.study import StudyDirection
from optuna.terminator import BaseImprovementEvaluator
from optuna.trial import FrozenTrial, TrialState

from botorch_calib.calibration import LocalizedConformal
from botorch_calib.decisions import RemainingGain, remaining_gain
from botorch_calib.decisions.remaining_gain import check_paths
from botorch_calib.integrations._optuna_search_space import SearchSpace, unit_cube
from botorch_calib.integrations.optuna_delays import is_finite, known_noise
from botorch_calib.models import CalibratedModel
from botorch_calib.models.fit_to_ledger import Fit


def fit_calibrated(X: Any, Y: Any, Yvar: Any = None) -> CalibratedModel:
    """A calibrated Gaussian process of inputs ``n x d`` in the unit cube and values ``n x 1``.

    Example:
        >>> model = fit_calibrated(X, Y)
    """
    gp = fit_in_unit_cube(X, Y, Yvar)
    return CalibratedModel.from_history(gp, LocalizedConformal(0.2), excess="objective")


class RemainingGainEvaluator(BaseImprovementEvaluator):
    """The `remaining_gain` by a calibrated model, in units of the objective.

    ``Terminator(RemainingGainEvaluator(), StaticErrorEvaluator(eps))`` stops a study once less than
    ``eps`` is to be gained over `recommended`, with a probability of ``1 - delta`` of the model.
    ``study.best_trial`` may merely have been lucky: nothing is stated of it. Trials that run, have
    failed, were pruned or have an infinite value are left out.

    Args:
        delta: Probability, in (0, 1), with which more may be gained.
        num_paths: As in `remaining_gain`: at least ``3 / delta``.
        fit: As in `DelayAwareSampler`, but for ``Y`` in the direction of the study (default: a
            Gaussian process under a ``LocalizedConformal(0.2)``, with ``excess="objective"``).

    Attributes:
        recommended: Parameters of the point that was last judged; None before.
        gain: Its `RemainingGain`; the candidate is in the unit cube.

    Raises:
        InputDataError: If an argument is malformed; when called, if fewer than two trials are
            complete or they share no parameter.
        UnsupportedError: When called, if trials have constraints or several objectives.

    Example:
        >>> study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        >>> study.optimize(lambda trial: trial.suggest_float("x", 0, 1) ** 2, n_trials=8)
        >>> gain = RemainingGainEvaluator(num_paths=64).evaluate(study.trials, study.direction)
    """

    recommended: dict[str, Any] | None = None
    gain: RemainingGain | None = None

    def __init__(
        self, delta: float = 0.05, num_paths: int = 128, fit: Fit = fit_calibrated
    ) -> None:
        self._delta, self._num_paths = check_paths(delta, num_paths)
        self._fit: Any = fit  # with a third argument where noise is known

    def evaluate(self, trials: list[FrozenTrial], study_direction: StudyDirection) -> float:
        """The bound at ``delta`` on the remaining gain."""
        complete = [t for t in trials if t.state is TrialState.COMPLETE and is_finite(t)]
        shared = intersection_search_space(complete)
        searched = {name: each for name, each in shared.items() if not each.single()}
        if len(complete) < 2 or not searched:
            raise InputDataError("Two trials with a parameter in common must be complete.")
        if any(trial.constraints or len(trial.values) > 1 for trial in complete):
            raise UnsupportedError("The gain is that of one objective without constraints.")
        space = SearchSpace(searched)
        X = space.encoded(trial.params for trial in complete)
        Y = torch.tensor([trial.values for trial in complete], dtype=torch.double)
        noise = known_noise(complete, 0)
        model = self._fit(X, Y) if noise is None else self._fit(X, Y, noise)
        choices = space.expressible(X)
        self.gain = remaining_gain(
            model,
            unit_cube(X) if choices is None else None,
            choices,
            num_paths=self._num_paths,
            maximize=study_direction is StudyDirection.MAXIMIZE,
        )
        fixed = {name: complete[-1].params[name] for name in shared if name not in searched}
        self.recommended = fixed | space.parameters(self.gain.candidate.squeeze(0))
        return self.gain.bound(self._delta)
