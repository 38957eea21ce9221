"""What a replicate is judged by, and comparisons of methods over seeds.

Everything here is a pure function of results and numbers read off them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats

from benchmarks.framework.result import Result
from botorch_calib.distributions import scoring

# A number that a finished replicate is judged by.
Score = Callable[[Result], float]

SIGNIFICANCE = 0.05

# Of so many differences, with ties, all signs are enumerated; of more the normal distribution is
# taken, as scipy does.
NUM_ENUMERATED = 13

# The levels at which PITs are compared with the uniform distribution.
CALIBRATION_LEVELS = tuple(j / 20 for j in range(1, 20))


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error (NaN for fewer than two values)."""

    mean: float
    standard_error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Estimate from independent values."""
        if len(values) == 0:
            return cls(math.nan, math.nan)
        error = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        return cls(float(np.mean(values)), float(error))


@dataclass(frozen=True)
class PairedTest:
    """Differences ``method - baseline`` over common seeds, and two-sided p-values.

    A negative difference of regrets is in favour of the method. The p-values are NaN where
    a test says nothing: fewer than two pairs, or differences that are all equal.
    """

    pairs: int
    difference: Estimate
    t_p_value: float
    wilcoxon_p_value: float


def paired_test(values: dict[int, float], baseline: dict[int, float]) -> PairedTest:
    """Compare values by seed with the baseline's values of the same seeds."""
    a, b = _pairs(values, baseline)
    differences = a - b
    t_p = wilcoxon_p = math.nan
    if len(a) > 1 and np.ptp(differences) > 0:
        t_p = float(stats.ttest_rel(a, b).pvalue)
        wilcoxon_p = wilcoxon_p_value(differences)
    return PairedTest(len(a), Estimate.of(differences.tolist()), t_p, wilcoxon_p)


def wilcoxon_p_value(differences: np.ndarray) -> float:
    """Two-sided p-value of Wilcoxon's signed ranks; differences of 0 count for neither sign.

    As by `scipy.stats.wilcoxon`, which takes seconds where few differences have ties.
    """
    ranked = differences[differences != 0.0]
    tied = len(np.unique(np.abs(ranked))) < len(differences)
    if len(differences) > NUM_ENUMERATED or not tied:
        return float(stats.wilcoxon(differences).pvalue)
    ranks = stats.rankdata(np.abs(ranked))
    signs = np.arange(2 ** len(ranks))[:, None] >> np.arange(len(ranks)) & 1
    # Sums of multiples of a half, without rounding errors.
    sums, observed = signs @ ranks, ranks[ranked > 0.0].sum()
    return float(min(2.0 * min(np.mean(sums <= observed), np.mean(sums >= observed)), 1.0))


def pooled_test(
    values: Sequence[dict[int, float]], baselines: Sequence[dict[int, float]]
) -> PairedTest:
    """One paired test over several problems, each in units of its baseline's mean.

    A seed draws the same designs and noise streams on all problems, so its differences are not
    independent: they are averaged, over the problems that have the seed, before the test.
    """
    scaled: list[dict[int, list[float]]] = [{}, {}]
    for own, reference in zip(values, baselines, strict=True):
        unit = float(np.mean(list(reference.values())))
        for seed in own.keys() & reference.keys():
            for target, source in zip(scaled, (own, reference), strict=True):
                target.setdefault(seed, []).append(source[seed] / unit)
    means = [{seed: float(np.mean(v)) for seed, v in by_seed.items()} for by_seed in scaled]
    return paired_test(means[0], means[1])


def fraction_won(values: dict[int, float], baseline: dict[int, float]) -> float:
    """The fraction of common seeds on which the value is below the baseline's; ties are halves."""
    a, b = _pairs(values, baseline)
    return float(np.mean((a < b) + 0.5 * (a == b))) if len(a) else math.nan


def _pairs(values: dict[int, float], baseline: dict[int, float]) -> tuple[np.ndarray, np.ndarray]:
    seeds = sorted(values.keys() & baseline.keys())
    return np.array([values[s] for s in seeds]), np.array([baseline[s] for s in seeds])


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for their number (Holm 1979). NaN, a test that says nothing, is 1."""
    p = np.nan_to_num(np.asarray(p_values, dtype=float), nan=1.0)
    order = np.argsort(p)
    steps = (len(p) - np.arange(len(p))) * p[order]
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted.tolist()


def count_significant(tests: Sequence[PairedTest]) -> tuple[int, int]:
    """How many differences are significantly negative, and how many significantly positive.

    Significant is Wilcoxon's test at 5 % after Holm's correction for the number of tests.
    """
    adjusted = holm([test.wilcoxon_p_value for test in tests])
    signs = [
        math.copysign(1.0, test.difference.mean)
        for test, p in zip(tests, adjusted, strict=True)
        if p < SIGNIFICANCE
    ]
    return signs.count(-1.0), signs.count(1.0)


def student_interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's 95 % interval of the mean of at least two values."""
    mean, error = float(np.mean(values)), float(stats.sem(values))
    reach = float(stats.t.ppf(0.975, len(values) - 1)) * error
    return mean - reach, mean + reach


def by_seed(results: Sequence[Result], score: Score) -> dict[int, float]:
    """A score for each seed, those without one left out."""
    scores = {result.seed: score(result) for result in results}
    return {seed: value for seed, value in scores.items() if not math.isnan(value)}


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
        optimum = result.regret_by_outcome[0] + result.f[result.inference_by_outcome[0]]
        best = np.maximum.accumulate(result.f)[result.num_initial - 1 :]
        return (optimum - best).tolist()
    if inference != "mean":
        raise ValueError(f"Unknown inference {inference!r}.")
    if result.regret_by_mean is None:
        raise ValueError(f"{result.method} has no posterior mean to infer by.")
    return result.regret_by_mean


def final_regrets(results: Sequence[Result], inference: str) -> dict[int, float]:
    """The last regret by seed."""
    return {r.seed: regret_trace(r, inference)[-1] for r in results}


def initial_scale(results: Sequence[Result], inference: str) -> float:
    """The mean regret after the initial design: a unit for areas under regret curves."""
    return float(np.mean([regret_trace(r, inference)[0] for r in results]))


def area_under_regret(result: Result, inference: str, scale: float) -> float:
    """The mean over evaluations of the least regret so far, in units of ``scale``.

    The least so far is taken since an inference from noisy outcomes may get worse again.
    """
    best = np.minimum.accumulate(regret_trace(result, inference))
    return float(np.mean(best[1:])) / scale


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
    return float(scoring.calibration_error(kept, levels))


def _recorded(result: Result, name: str) -> np.ndarray:
    return np.array([value for value in result.extras.get(name, []) if value is not None])
