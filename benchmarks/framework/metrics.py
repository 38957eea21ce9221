"""Scores: numbers that a finished replicate is judged by, each a pure function of its result."""

from __future__ import annotations

import math

import numpy as np
import torch

from benchmarks.framework.replicate_result import Result
from botorch_calib.distributions import scoring_rules

# The levels at which PITs are compared with the uniform distribution.
CALIBRATION_LEVELS = tuple(j / 20 for j in range(1, 20))


def trace(result: Result, name: str) -> list[float]:
    """A trace among the records of a result, NaN where it has no value."""
    return [math.nan if value is None else value for value in result.extras[name]]


def regret_trace(result: Result, inference: str) -> list[float]:
    """Regret at the point reported.

    That is the point with the largest ``"outcome"`` or posterior ``"mean"``, or simply the best
    one ``"evaluated"``: the last asks what was found, whatever is made of it under noise.
    """
    if inference == "outcome":
        return result.regret_by_outcome
    if inference == "evaluated":
        # What an archive keeps in place of the values themselves.
        if "regret_evaluated" in result.extras:
            return trace(result, "regret_evaluated")
        found = regret_evaluated(result)
        if found is None:
            raise ValueError(f"{result.problem} has no single optimum.")
        return found
    if inference != "mean":
        raise ValueError(f"Unknown inference {inference!r}.")
    if result.regret_by_mean is None:
        raise ValueError(f"{result.method} has no posterior mean to infer by.")
    return result.regret_by_mean


def regret_evaluated(result: Result) -> list[float] | None:
    """Regret at the best point evaluated so far; ``None`` without a single optimum."""
    if not result.inference_by_outcome:
        return None
    optimum = result.regret_by_outcome[0] + result.f[result.inference_by_outcome[0]]
    best = np.maximum.accumulate(result.f)[result.num_initial - 1 :]
    return (optimum - best).tolist()


def seconds(result: Result) -> float:
    """Time of a whole run, fits and choices together."""
    return sum(result.fit_seconds) + sum(result.acquisition_seconds)


def seconds_per_evaluation(result: Result) -> float:
    """Mean time of an evaluation's fit and choice."""
    return float(np.mean(np.add(result.fit_seconds, result.acquisition_seconds)))


def miscoverage(result: Result) -> float:
    """Fraction of outcomes outside the stated interval, over the last half of the evaluations."""
    covered = _recorded(result, "covered")
    return 1.0 - float(np.mean(covered[len(covered) // 2 :])) if len(covered) else math.nan


def objective_coverage(result: Result, place: str) -> float:
    """Fraction of the objective's values inside the final model's intervals; NaN if not recorded.

    Args:
        result: A result; older ones hold no record.
        place: ``"visited"`` for the points evaluated, or ``"box"`` for all of the box.
    """
    names = {"visited": "objective_covered", "box": "objective_covered_in_box"}
    covered = _recorded(result, names[place])
    return float(np.mean(covered)) if len(covered) else math.nan


def calibration_error(result: Result) -> float:
    """``sum_j (p_j - phat_j)^2``, with ``phat_j`` the fraction of PITs up to level ``p_j``.

    A calibrated forecaster of ``n`` outcomes has a mean of ``sum_j p_j (1 - p_j) / n``, which
    is 3.325 / n at these levels.
    """
    pits = _recorded(result, "pit")
    if not len(pits):
        return math.nan
    levels = torch.tensor(CALIBRATION_LEVELS, dtype=torch.double)
    # Older results hold values that rounding took beyond 1.
    kept = torch.from_numpy(pits).clamp(0.0, 1.0)
    return float(scoring_rules.calibration_error(kept, levels))


def _recorded(result: Result, name: str) -> np.ndarray:
    return np.array([value for value in result.extras.get(name, []) if value is not None])
