"""Coverage of 80 % intervals of the objective by rules that attribute the excess of spread.

The runs and conclusions are in ``benchmarks/protocols/objective_coverage.md``.

    python -m benchmarks.studies.objective_coverage
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.models import SingleTaskGP
from botorch.posteriors import GPyTorchPosterior
from botorch.utils.sampling import draw_sobol_samples, manual_seed
from torch import Tensor
from tqdm.auto import tqdm

from benchmarks.calibration import misspecified, wellspecified
from benchmarks.framework.landscapes import GaussianNoise, Landscape, NoisyLandscape, ReferenceGP
from benchmarks.framework.markdown import table
from benchmarks.framework.replicate import OBSERVE, PROPOSE, stream_seed
from benchmarks.framework.sequential import Problem, bounds_of, posterior_mean, sobol_design
from benchmarks.framework.statistics import student_interval
from benchmarks.framework.stored_results import write_atomically
from benchmarks.framework.surrogates import Fixed
from benchmarks.studies.command_line import study_parser
from botorch_calib.calibration import LocalizedConformal
from botorch_calib.distributions.denoised_piecewise import SmoothedPredictive
from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.distributions.scoring_rules import interval_score
from botorch_calib.models.predict import predict
from botorch_calib.models.residuals import forecast_history
from botorch_calib.posteriors import CalibratedPosterior

ALPHA = 0.2
NORMAL_WIDTH = float(torch.special.ndtri(torch.tensor(1 - ALPHA / 2, dtype=torch.double)))
CHECKPOINTS = (20, 35, 50)
NUM_CANDIDATES, NUM_SPACE = 256, 512
MIN_NOISE = 1.001e-4
MULTIPLIERS = 10 ** torch.linspace(-2, 3, 101, dtype=torch.double)
SEEDS = range(10)
COMMAND = "python -m benchmarks.studies.objective_coverage"

# The noise, and the factors of the process' lengthscale and noise variance.
CASES: dict[str, tuple[GaussianNoise, float, float]] = {
    "right": (GaussianNoise(0.5, 0.5), 1.0, 1.0),
    "noise": (GaussianNoise(0.5, 0.5), 1.0, 0.1),
    "heteroscedastic": (GaussianNoise(0.05, 0.8), 1.0, 1.0),
    "lengthscale": (GaussianNoise(0.1, 0.1), 5.0, 1.0),
}
FUNCTIONS = ("branin", "hartmann3", "ackley")
DESIGNS = ("random", "search")
PLACES = ("in the box", "at visited points")


def case_problem(function: str, case: str) -> Problem:
    """The problem with one function in one of `CASES`."""
    noise, lengthscale_factor, noise_factor = CASES[case]
    build = misspecified.FUNCTIONS[function]
    made: Any = build()
    bounds = bounds_of(made)
    objective = NoisyLandscape(Landscape(build, bounds), noise)
    return Problem(
        name=f"{function}_{case}",
        build=objective,
        bounds=bounds,
        optimal_value=math.nan,
        initial_design=partial(sobol_design, bounds=bounds),
        num_initial=5 if len(bounds) == 2 else 8,
        num_evaluations=max(CHECKPOINTS),
        surrogate=Fixed(ReferenceGP(objective), lengthscale_factor, noise_factor),
    )


def problems() -> dict[str, tuple[Problem, ...]]:
    drawn = tuple(
        wellspecified.wellspecified(dim, Fixed(wellspecified.TrueGP(dim)))
        for dim in wellspecified.LENGTHSCALES
    )
    fitted = {case: tuple(case_problem(name, case) for name in FUNCTIONS) for case in CASES}
    return {"drawn": drawn, **fitted}


# ------------------------------------------------------------ data


@torch.no_grad()
def most_promising(gp: SingleTaskGP, X: Tensor, candidates: Tensor) -> Tensor:
    """The candidate with the largest log expected improvement, ``1 x d``."""
    value = LogExpectedImprovement(gp.eval(), best_f=posterior_mean(gp, X).max())
    return candidates[value(candidates.unsqueeze(-2)).argmax()].unsqueeze(0)


@dataclass(frozen=True)
class Data:
    """The data at a checkpoint, and points of the box at which coverage is checked."""

    gp: SingleTaskGP
    num_initial: int
    X: Tensor  # all points, n x d
    space: Tensor  # points of the box, m x d
    truth: Callable[[Tensor], Tensor]

    @cached_property
    def with_fitted_noise(self) -> Data:
        """The same data with the most likely noise variance."""
        return replace(self, gp=noise_fitted(self.gp))

    def calibrator(self, by_gain: bool, alpha: float = ALPHA) -> LocalizedConformal:
        """A calibrator that has replayed the history; ``by_gain`` adds the gain as an input."""
        return self._calibrators[by_gain, alpha]

    @cached_property
    def _calibrators(self) -> dict[tuple[bool, float], LocalizedConformal]:
        inputs, residuals, deviations = forecast_history(self.gp)
        # The variance of a forecast is the sum of the objective's and the noise's variance.
        gains = 1 - self.gp.likelihood.noise / deviations.square()
        with_gains = torch.cat([inputs, gains.unsqueeze(-1)], dim=-1)
        replayed = {}
        for by_gain, alpha in ((False, ALPHA), (True, ALPHA), (False, ALPHA / 2)):
            calibrator = LocalizedConformal(alpha).to(residuals)
            X = with_gains if by_gain else inputs
            calibrator.update(X[self.num_initial :], residuals[self.num_initial :])
            replayed[by_gain, alpha] = calibrator
        return replayed


def histories(problem: Problem, design: str, seed: int) -> Iterator[Data]:
    """The data at each checkpoint."""
    oracle, bounds = problem.build(seed), problem.bounds_tensor()
    space = draw_sobol_samples(bounds, n=NUM_SPACE, q=1, seed=0).squeeze(-2)
    X = problem.initial_design(problem.num_initial, seed)
    with manual_seed(stream_seed(seed, OBSERVE)):
        Y = oracle.observe(X)
    gp: SingleTaskGP | None = None
    for step in range(max(CHECKPOINTS)):
        gp = problem.surrogate(X, Y, bounds, step, gp)
        with manual_seed(stream_seed(seed, PROPOSE, step)):
            U = torch.rand(NUM_CANDIDATES, bounds.shape[-1], dtype=torch.double)
        candidates = bounds[0] + (bounds[1] - bounds[0]) * U
        x = candidates[:1]
        if design == "search":
            x = most_promising(gp, X, candidates)
        with manual_seed(stream_seed(seed, OBSERVE, step + 1)):
            y = oracle.observe(x)
        X, Y = torch.cat([X, x]), torch.cat([Y, y])
        if step + 1 in CHECKPOINTS:
            gp = problem.surrogate(X, Y, bounds, step + 1, gp)
            gp.eval()
            yield Data(gp, problem.num_initial, X, space, oracle.truth)


def noise_fitted(gp: SingleTaskGP) -> SingleTaskGP:
    """The process with the most likely noise variance, with other hyperparameters fixed.

    With ``K = Q diag(e) Q^T`` and the residuals ``r``, the log likelihood is, up to a constant,
    ``-(sum log(e + n) + sum (Q^T r)^2 / (e + n)) / 2`` for noise variance ``n``.
    """
    fitted = deepcopy(gp).eval()
    inputs = fitted.train_inputs[0]
    values, vectors = torch.linalg.eigh(fitted.covar_module(inputs).to_dense())
    squares = (vectors.mT @ (fitted.train_targets - fitted.mean_module(inputs))).square()
    # BoTorch's lower bound of the noise
    choices = (fitted.likelihood.noise * MULTIPLIERS).clamp(min=MIN_NOISE)
    total = values.clamp(min=0.0) + choices.unsqueeze(-1)
    fitted.likelihood.noise = choices[(total.log() + squares / total).sum(dim=-1).argmin()]
    fitted.train()  # clears caches that depend on the noise
    return fitted.eval()


# ------------------------------------------------------------ rules


@dataclass(frozen=True)
class Statement:
    """The predictions of the Gaussian process and the calibrator at points ``X``, ``n x d``."""

    data: Data
    X: Tensor

    @cached_property
    def base(self) -> GPyTorchPosterior:
        """The process' posterior of the objective, with each point as a batch."""
        posterior = self.data.gp.posterior(self.X.unsqueeze(-2))
        assert isinstance(posterior, GPyTorchPosterior)
        return posterior

    @cached_property
    def noise(self) -> Tensor:
        """The process' noise variance."""
        stated = predict(self.data.gp, self.X.unsqueeze(-2), objective=False)
        return stated.spread().of_noise.square()

    @cached_property
    def gain(self) -> Tensor:
        """The objective's share of the predictive variance, ``n x 1 x 1``."""
        return self.base.variance / (self.base.variance + self.noise)

    def predictive(self, by_gain: bool = False, widen: bool = False) -> PiecewisePredictive:
        """The calibrated distribution of an observation.

        Args:
            by_gain: Whether thresholds are localized on the gain, too.
            widen: Whether its interval is at least as wide as the interval of the process.
        """
        X = self.data.gp.transform_inputs(self.X.unsqueeze(-2))
        if by_gain:
            X = torch.cat([X, self.gain], dim=-1)
        width = self.data.calibrator(by_gain).half_width(X)
        width = width.clamp(min=NORMAL_WIDTH) if widen else width
        return PiecewisePredictive.conformal(ALPHA, width, max_width=50.0, tails="stretched")


Interval = tuple[Tensor, Tensor]


def central(quantile: Callable[[float], Tensor]) -> Interval:
    """The ends of the central interval, each of length ``n``."""
    return quantile(ALPHA / 2).flatten(), quantile(1 - ALPHA / 2).flatten()


def plain(at: Statement) -> Interval:
    """The interval of the Gaussian process."""
    reach = NORMAL_WIDTH * at.base.variance.sqrt()
    return (at.base.mean - reach).flatten(), (at.base.mean + reach).flatten()


def calibrated(at: Statement, excess: str = "noise", **settings: bool) -> Interval:
    """The package's posterior with the settings of `Statement.predictive`."""
    posterior = CalibratedPosterior(at.base, at.predictive(**settings), at.noise, excess=excess)
    return central(lambda level: posterior.quantile(torch.tensor(level, dtype=torch.double)))


def without_floor(at: Statement) -> Interval:
    """The calibrated gain without a lower bound: where it is negative, the variance is 0."""
    predictive, total = at.predictive(), at.base.variance + at.noise
    gain = (1 - at.noise / (predictive.variance * total)).clamp(min=1e-9)
    law = SmoothedPredictive(predictive, (at.noise / gain / total).sqrt())
    return central(lambda level: at.base.mean + gain * total.sqrt() * law.quantile(level))


def shared(at: Statement) -> Interval:
    """The calibrated distribution of an observation, in standard deviations of the objective."""
    predictive, deviation = at.predictive(), at.base.variance.sqrt()
    levels = torch.full_like(deviation, 0.0)
    return central(lambda level: at.base.mean + deviation * predictive.quantile(levels + level))


def of_observation(at: Statement) -> Interval:
    """An interval of the observation, which misses the objective at most twice as often."""
    X = at.data.gp.transform_inputs(at.X.unsqueeze(-2))
    width = at.data.calibrator(False, ALPHA / 2).half_width(X)
    reach = width * (at.base.variance + at.noise).sqrt()
    return (at.base.mean - reach).flatten(), (at.base.mean + reach).flatten()


def refitted(at: Statement, rule: Rule) -> Interval:
    """A rule applied to the process with fitted noise."""
    return rule(Statement(at.data.with_fitted_noise, at.X))


Rule = Callable[[Statement], Interval]
RULES: dict[str, Rule] = {
    "plain": plain,
    "noise": calibrated,
    "objective": partial(calibrated, excess="objective"),
    "objective, no floor": without_floor,
    "widened only": partial(calibrated, widen=True),
    "objective, widened only": partial(calibrated, excess="objective", widen=True),
    "gain-localized": partial(calibrated, excess="objective", by_gain=True),
    "shared": shared,
    "observation at 90 %": of_observation,
    "noise fitted": partial(refitted, rule=plain),
    "noise fitted, calibrated": partial(refitted, rule=calibrated),
}

# ------------------------------------------------------------ scores

# Coverage, mean width and mean interval score
Judged = tuple[float, float, float]
# By case, design, place and rule, with one row for each seed
Outcomes = dict[tuple[str, str, str, str], np.ndarray]


@torch.no_grad()
def judged(rule: Rule, data: Data, X: Tensor) -> Judged:
    """The scores of a rule's intervals at ``n x d`` points."""
    lower, upper = rule(Statement(data, X))
    f = data.truth(X).flatten()
    score = interval_score(lower, upper, f, ALPHA).mean()
    covered = ((lower <= f) & (f <= upper)).double().mean()
    return covered.item(), (upper - lower).mean().item(), score.item()


def run(problem: Problem, design: str, seed: int) -> dict[tuple[str, str], np.ndarray]:
    """Means over checkpoints by place and rule. Widths and scores are relative to ``plain``."""
    rows: dict[tuple[str, str], list[Judged]] = {}
    for data in histories(problem, design, seed):
        for place, X in zip(PLACES, (data.space, data.X), strict=True):
            for name, rule in RULES.items():
                rows.setdefault((place, name), []).append(judged(rule, data, X))
    means = {key: np.mean(values, axis=0) for key, values in rows.items()}
    units = {place: [1.0, *means[place, "plain"][1:]] for place in PLACES}
    return {(place, name): mean / units[place] for (place, name), mean in means.items()}


def study(seeds: Sequence[int]) -> Outcomes:
    """The scores of all runs, averaged over functions for each seed."""
    outcomes: Outcomes = {}
    for case, of_case in tqdm(problems().items(), desc="cases"):
        for design in DESIGNS:
            runs = [[run(problem, design, seed) for problem in of_case] for seed in seeds]
            for place, name in runs[0][0]:
                values = [[result[place, name] for result in of_seed] for of_seed in runs]
                outcomes[case, design, place, name] = np.array(values).mean(axis=1)
    return outcomes


# ------------------------------------------------------------ report

LEGEND = (
    "Coverage of central 80 % intervals of the *objective*, mean over three functions and three "
    "times of a run, with Student's 95 % interval over {seeds} seeds (half of its length after ±)."
)
SUMMARY = (
    "The shortfall is the distance by which coverage falls short of 0.8, as a mean over all 20 "
    "cells (case, points, place). Width and interval score (less is better) are in units of the "
    "plain process's own, as geometric means over cells. Harm is how much larger the shortfall is "
    "than the plain process's, in the worst cell where that process is right (`drawn`, `right`)."
)


def markdown(outcomes: Outcomes, num_seeds: int) -> str:
    """The report."""
    cases = list(dict.fromkeys(case for case, *_ in outcomes))
    lines = ["# Coverage of the objective", "", f"Reproduce with `{COMMAND}`.", ""]
    lines += [LEGEND.format(seeds=num_seeds), "", "## All cells", "", SUMMARY, ""]
    header = ["rule", "shortfall", "harm", "least coverage", "width", "interval score"]
    lines += table(header, [summary(outcomes, cases, name) for name in RULES])
    for place in PLACES:
        for design in DESIGNS:
            lines += ["", f"## Coverage {place}, {design} points", ""]
            rows = [
                [name, *(coverage(outcomes[case, design, place, name]) for case in cases)]
                for name in RULES
            ]
            lines += table(["rule", *cases], rows)
    return "\n".join([*lines, ""])


def coverage(values: np.ndarray) -> str:
    """Mean coverage, and half the length of its interval."""
    mean = values[:, 0].mean()
    if len(values) < 2:
        return f"{mean:.2f}"
    return f"{mean:.2f} ± {student_interval(values[:, 0].tolist())[1] - mean:.2f}"


def summary(outcomes: Outcomes, cases: Sequence[str], name: str) -> list[str]:
    """The row of a rule in the table over all cells."""
    cells = [(case, design, place) for case in cases for design in DESIGNS for place in PLACES]
    means = np.array([outcomes[*cell, name].mean(axis=0) for cell in cells])
    plain_means = np.array([outcomes[*cell, "plain"][:, 0].mean() for cell in cells])
    right = [case in ("drawn", "right") for case, *_ in cells]
    lacks = np.maximum(0.8 - means[:, 0], 0.0)
    harm = np.max((lacks - np.maximum(0.8 - plain_means, 0.0))[right], initial=0.0)
    ratios = np.exp(np.log(means[:, 1:]).mean(axis=0))
    numbers = [lacks.mean(), harm, means[:, 0].min(), *ratios]
    return [name, *(f"{value:.2f}" for value in numbers)]


def main(argv: Sequence[str] | None = None) -> int:
    args = study_parser(COMMAND, __doc__, SEEDS).parse_args(argv)
    text = markdown(study(args.seeds), len(args.seeds))
    print(text)
    write_atomically(args.tables / "objective_coverage.md", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
