"""Scores of finished replicates: pure functions of a `Result`."""

from __future__ import annotations

import math

import numpy as np
import torch

from benchmarks.framework.replicate_result import Result
from botorch_calib.distributions import scoring_rules

# The levels at which PITs are compared with the uniform distribution.
CALIBRATION_LEVELS = tuple(j / 20 for j in range(1, 20))


def trace(result: Result, name: str) -> list[float]:
    """The values of the extra ``name`` of a result, with NaN for missing values."""
    return [math.nan if value is None else value for value in result.extras[name]]


def regret_trace(result: Result, inference: str) -> list[float]:
    """Regret of the recommended point after each evaluation.

    The recommended point has the largest ``"outcome"`` or posterior ``"mean"``, or it is the best
    point ``"evaluated"``. A method cannot know the best point if there is noise: its regret
    measures the search alone.
    """
    if inference == "outcome":
        return result.regret_by_outcome
    if inference == "evaluated":
        # Archives keep the regret in place of the values.
        if "regret_evaluated" in result.extras:
            return trace(result, "regret_evaluated")
        found = regret_evaluated(result)
        if found is None:
            raise ValueError(f"{result.problem} has no single optimum.")
        return found
    if inference != "mean":
        raise ValueError(f"Unknown inference {inference!r}.")
    if result.regret_by_mean is None:
        raise ValueError(f"{result.method} has no model and no posterior means.")
    return result.regret_by_mean


def regret_evaluated(result: Result) -> list[float] | None:
    """Regret of the best point evaluated so far; ``None`` without a single optimum."""
    if not result.inference_by_outcome:
        return None
    optimum = result.regret_by_outcome[0] + result.f[result.inference_by_outcome[0]]
    best = np.maximum.accumulate(result.f)[result.num_initial - 1 :]
    return (optimum - best).tolist()


def seconds(result: Result) -> float:
    """Total time of the fits and choices of a replicate, in seconds."""
    return sum(result.fit_seconds) + sum(result.acquisition_seconds)


def seconds_per_evaluation(result: Result) -> float:
    """Mean time of a fit and a choice, in seconds."""
    return float(np.mean(np.add(result.fit_seconds, result.acquisition_seconds)))


def miscoverage(result: Result) -> float:
    """Fraction of outcomes outside the predicted interval, in the second half of a replicate."""
    covered = _recorded(result, "covered")
    return 1.0 - float(np.mean(covered[len(covered) // 2 :])) if len(covered) else math.nan


def objective_coverage(result: Result, place: str) -> float:
    """Fraction of the objective's values inside the final model's intervals; NaN if not recorded.

    Args:
        result: A result; older results have no record of the coverage.
        place: ``"visited"`` for the evaluated points, or ``"box"`` for points all over the box.
    """
    names = {"visited": "objective_covered", "box": "objective_covered_in_box"}
    covered = _recorded(result, names[place])
    return float(np.mean(covered)) if len(covered) else math.nan


def calibration_error(result: Result) -> float:
    """``sum_j (p_j - phat_j)^2``, where ``phat_j`` is the fraction of PITs up to level ``p_j``.

    For a calibrated forecaster of ``n`` outcomes its mean is ``sum_j p_j (1 - p_j) / n``, which is
    ``3.325 / n`` at the `CALIBRATION_LEVELS`.
    """
    pits = _recorded(result, "pit")
    if not len(pits):
        return math.nan
    levels = torch.tensor(CALIBRATION_LEVELS, dtype=torch.double)
    # Older results have values slightly above 1, due to rounding.
    kept = torch.from_numpy(pits).clamp(0.0, 1.0)
    return float(scoring_rules.calibration_error(kept, levels))


def _recorded(result: Result, name: str) -> np.ndarray:
    return np.array([value for value in result.extras.get(name, []) if value is not None])
