"""Counts for two theorems in searches: observed and stated gains, and misses of the objective.

The runs and conclusions are in ``benchmarks/protocols/two_theorems.md``.

    python -m benchmarks.studies.two_theorems
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from botorch.models import SingleTaskGP
from botorch.utils.sampling import manual_seed

from benchmarks.framework.markdown import mean_with_interval, table
from benchmarks.framework.replicate import OBSERVE, PROPOSE, stream_seed
from benchmarks.framework.sequential import Problem
from benchmarks.framework.statistics import pooled_ratio
from benchmarks.studies import objective_coverage
from benchmarks.studies.command_line import run_study
from benchmarks.theory import stated_gains
from botorch_calib import CalibratedModel
from botorch_calib.calibration import (
    Calibrator,
    LocalizedConformal,
    NoCalibration,
    QuantileRecalibrator,
)
from botorch_calib.decisions import objective_coverage_bound
from botorch_calib.exceptions import CalibrationWarning

ALPHA = 0.2
ROUNDS, NUM_CANDIDATES = 50, 256
RATIOS = (2.0, 5.0, 10.0)
EVIDENCE = 20.0
LEAST = 1e-300  # smallest stated gain, which may underflow otherwise
SEEDS = range(10000, 10015)
COMMAND = "python -m benchmarks.studies.two_theorems"

MODELS: dict[str, Callable[[], Calibrator]] = {
    "plain": NoCalibration,
    "recalibrated": QuantileRecalibrator,
    "localized": partial(LocalizedConformal, ALPHA),
}


@cache
def problems() -> dict[str, dict[str, Problem]]:
    cases = objective_coverage.problems()
    return {case: {each.name: each for each in found} for case, found in cases.items()}


def run(problem: Problem, calibrator: Calibrator, seed: int) -> dict[str, Any]:
    """Run one search; return counts over its rounds, and the evidence against the stated gains.

    Args:
        problem: The problem.
        calibrator: A new calibrator.
        seed: The seed.

    Returns:
        ``reached`` and ``above``, numbers of rounds for each of `RATIOS`; ``evidence``; and the
        numbers of rounds whose interval missed the outcome (``y_missed``) and the objective
        (``f_missed``).
    """
    oracle, bounds = problem.build(seed), problem.bounds_tensor()
    X = problem.initial_design(problem.num_initial, seed)
    with manual_seed(stream_seed(seed, OBSERVE)):
        Y = oracle.observe(X)
    ends = torch.tensor([ALPHA / 2, 1 - ALPHA / 2], dtype=torch.double)
    gp: SingleTaskGP | None = None
    stated, gains, pits, missed = [], [], [], []
    for step in range(ROUNDS):
        gp = problem.surrogate(X, Y, bounds, step, gp)
        model = CalibratedModel(gp.eval(), calibrator, denoise=False)
        with manual_seed(stream_seed(seed, PROPOSE, step)):
            U = torch.rand(NUM_CANDIDATES, bounds.shape[-1], dtype=torch.double)
        candidates = bounds[0] + (bounds[1] - bounds[0]) * U
        with torch.no_grad():
            improvement: Any = model.posterior(candidates.unsqueeze(-2))
            value = improvement.log_expected_improvement(Y.max()).flatten()
            x = candidates[value.argmax()].unsqueeze(0)
            with manual_seed(stream_seed(seed, OBSERVE, step + 1)):
                y = oracle.observe(x)
            posterior: Any = model.posterior(x)
            lower, upper = posterior.quantile(ends).flatten()
            pits.append(posterior.cdf(y).item())
        stated.append(max(value.max().exp().item(), LEAST))
        gains.append(max((y - Y.max()).item(), 0.0))
        missed.append([not lower <= at <= upper for at in (y, oracle.truth(x))])
        model.observe(x, y, condition=False)
        X, Y = torch.cat([X, x]), torch.cat([Y, y])
    found = stated_gains(torch.DoubleTensor(stated), torch.DoubleTensor(gains), RATIOS)
    y_missed, f_missed = np.sum(missed, axis=0).tolist()
    return {
        "reached": [round(ROUNDS * share) for share in found.shares],
        "above": [sum(pit >= 1 - 1 / r for pit in pits) for r in RATIOS],
        "evidence": min(found.evidence, 1e9),
        "y_missed": y_missed,
        "f_missed": f_missed,
    }


def kept(cell: Mapping[str, str], seed: int) -> dict[str, Any]:
    """The stored results of a cell."""
    problem = problems()[cell["case"]][cell["problem"]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)  # in the first rounds
        return run(problem, MODELS[cell["model"]](), seed)


Runs = Sequence[Mapping[str, Any]]


def by_seed(runs: Runs, value: Callable[[Mapping[str, Any]], float]) -> list[float]:
    """Means over the functions, for each seed."""
    seeds = sorted({each["seed"] for each in runs})
    return [float(np.mean([value(e) for e in runs if e["seed"] == seed])) for seed in seeds]


def share(runs: Runs, name: str, index: int | None = None) -> str:
    """The mean share of rounds that a count has, in percent."""

    def value(each: Mapping[str, Any]) -> float:
        count = each[name] if index is None else each[name][index]
        return 100 * count / ROUNDS

    return mean_with_interval(by_seed(runs, value), ".1f")


def markdown(runs: Runs) -> str:
    """The report, with tables of gains and misses by case and model."""
    gains, misses = [], []
    for case in dict.fromkeys(each["case"] for each in runs):
        for model in MODELS:
            own = [e for e in runs if (e["case"], e["model"]) == (case, model)]
            doubted = sum(each["evidence"] >= EVIDENCE for each in own)
            gains.append(
                [
                    case,
                    model,
                    *(
                        share(own, name, index)
                        for index in range(len(RATIOS))
                        for name in ("reached", "above")
                    ),
                    f"{doubted} of {len(own)}",
                ]
            )
            counts = (by_seed(own, itemgetter(name)) for name in ("f_missed", "y_missed"))
            ratio, low, high = pooled_ratio(*counts)
            misses.append(
                [
                    case,
                    model,
                    share(own, "y_missed"),
                    share(own, "f_missed"),
                    f"{ratio:.2f} ({low:.2f} to {high:.2f})",
                ]
            )
    tracker = LocalizedConformal(ALPHA).tracker
    bound = ALPHA + tracker.coverage_bound(ROUNDS).item()
    heads = [f"{name} {1 / r:.0%}" for r in RATIOS for name in ("gains,", "outcomes,")]
    seeds = {each["seed"] for each in runs}
    return "\n".join(
        [
            f"Reproduce with `{COMMAND}`.",
            "",
            f"Shares of {ROUNDS} rounds in percent: means over three functions and {len(seeds)} "
            "seeds, with Student's 95 % intervals over seeds.",
            "",
            "## Observed and stated gains",
            "",
            "Columns give shares of rounds for r = 2, 5 and 10: gains of at least r times the "
            "stated gain, and outcomes at or above the stated (1 - 1/r)-quantile, which include "
            "these gains. With calibration both shares are at most 1/r, the percentage in the head "
            "of the column. A run is doubted if its evidence against the stated gains reaches "
            f"{EVIDENCE:g}.",
            "",
            *table(["case", "model", *heads, "doubted"], gains),
            "",
            "## Misses of 80 % intervals of the observation",
            "",
            f"By Lemma 1 the localized intervals miss at most {100 * bound:.0f} % of {ROUNDS} "
            "outcomes. It follows that they miss the objective in at most "
            f"{100 * objective_coverage_bound(bound):.0f} % of the rounds in expectation. By Lemma "
            "2 the objective is missed at most twice as often as outcomes.",
            "",
            *table(["case", "model", "outcomes", "objective", "ratio"], misses),
            "",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    cells = [
        {"case": case, "problem": name, "model": model}
        for case, found in problems().items()
        for name in found
        for model in MODELS
    ]
    return run_study(COMMAND, __doc__, SEEDS, cells, kept, markdown, argv)


if __name__ == "__main__":
    sys.exit(main())
