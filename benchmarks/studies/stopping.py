"""How often a stopping rule is right when it stops, and when it stops, if the model is wrong.

    python -m benchmarks.studies.stopping [--seeds 10]

Protocol (fixed before any run; nothing is to be tuned on its seeds, 10000 and on).

* Functions, maximised on the unit box, each divided by its range: ``waves``, one input, several
  local maxima; ``branin``, two inputs, negated and scaled. Noise: standard deviation 0.05.
* Situations: ``right``; ``understated``: the stated standard deviation is a fifth of the true one;
  ``varies``: the true one rises from 0.01 to 0.15 along the first input, and 0.05 is stated;
  ``long``: the lengthscale is 2.5 times the one fitted to 200 values without noise. In all others
  it is that one; so no model is fitted.
* Runs: 4 d + 2 Sobol points, then log expected improvement of the plain model, to 40 evaluations.
  All rules judge the same runs, at 10, 14, ... 38 evaluations; a rule stops at the first time that
  it says so.
* Rules, with eps = 0.1 and delta = 0.05: `remaining_gain` (128 paths) of the plain model, of the
  model calibrated by ``LocalizedConformal(0.2)``, and of that with ``excess="objective"``; Optuna's
  ``RegretBoundEvaluator`` <= eps (its own model, to which no noise is stated); Ax's
  ``ImprovementGlobalStoppingStrategy`` by default.
* The recommended point: the best mean for `remaining_gain`, the best observation for the others.
* Measures: the share of runs in which a rule stops, of these the share in which the true regret of
  the recommended point is at most eps, with a 95 % interval by Clopper and Pearson, and the median
  number of evaluations at the stop. A rule keeps its word if that interval reaches 0.95.
"""

from __future__ import annotations

import argparse
import math
import statistics
import warnings
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.mlls import ExactMarginalLogLikelihood
from scipy.stats import beta
from torch import Tensor

from botorch_calib import CalibratedModel, LocalizedConformal
from botorch_calib.decisions import remaining_gain

NOISE, EPS, DELTA, BUDGET = 0.05, 0.1, 0.05, 40
CHECKS = range(10, BUDGET, 4)
RULES = ("plain", "calibrated", 'excess="objective"', "Optuna", "Ax")
SITUATIONS = ("right", "understated", "varies", "long")


def waves(X: Tensor) -> Tensor:
    """One input; range about 1."""
    return (torch.sin(18.0 * X) * (0.3 + X) + 0.5 * torch.cos(5.0 * X)).squeeze(-1) / 2.2


def branin(X: Tensor) -> Tensor:
    """Two inputs; negated, range about 1."""
    a, b = 15.0 * X[..., 0] - 5.0, 15.0 * X[..., 1]
    bend = b - 5.1 / (4.0 * math.pi**2) * a**2 + 5.0 / math.pi * a - 6.0
    return -(bend**2 + 10.0 * (1.0 - 1.0 / (8.0 * math.pi)) * a.cos() + 10.0) / 308.0


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "waves": (waves, 1),
    "branin": (branin, 2),
}


def cube(dim: int) -> Tensor:
    """Its bounds, ``2 x d``."""
    return torch.tensor([[0.0], [1.0]], dtype=torch.double).expand(2, dim)


@cache
def true_kernel(name: str) -> tuple[float, Any]:
    """The largest value, and the hyperparameters of a model of 200 values without noise."""
    f, dim = FUNCTIONS[name]
    X = draw_sobol_samples(cube(dim), n=200, q=1, seed=0).squeeze(-2)
    Y = f(X).unsqueeze(-1)
    gp = SingleTaskGP(X, Y, torch.full_like(Y, 1e-6), outcome_transform=None)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    grid = draw_sobol_samples(cube(dim), n=2**16, q=1, seed=1).squeeze(-2)
    return f(grid).max().item(), {
        key: value
        for key, value in gp.state_dict().items()
        if key.startswith(("covar_module", "mean_module")) and "prior" not in key
    }


def model_of(name: str, situation: str, X: Tensor, Y: Tensor) -> SingleTaskGP:
    """The model of a situation."""
    stated = NOISE / 5.0 if situation == "understated" else NOISE
    gp = SingleTaskGP(X, Y, torch.full_like(Y, stated**2), outcome_transform=None)
    gp.load_state_dict(true_kernel(name)[1], strict=False)
    if situation == "long":
        gp.covar_module.lengthscale = 2.5 * gp.covar_module.lengthscale.detach()
    return gp.eval()


def observed(name: str, situation: str, X: Tensor) -> Tensor:
    """Values ``n x 1`` with noise."""
    sd = 0.01 + 0.14 * X[:, 0] if situation == "varies" else torch.full_like(X[:, 0], NOISE)
    return (FUNCTIONS[name][0](X) + sd * torch.randn_like(sd)).unsqueeze(-1)


def of_gain(model: Any, dim: int) -> tuple[bool, Tensor]:
    """Whether `remaining_gain` stops, and where."""
    gain = remaining_gain(model, cube(dim))
    return gain.bound(DELTA) <= EPS, gain.candidate


def optuna_stops(X: Tensor, Y: Tensor, seed: int) -> bool:
    """Optuna's regret bound, of trials made of the data."""
    import optuna
    from optuna.terminator import RegretBoundEvaluator

    space: dict[str, Any] = {
        f"x{i}": optuna.distributions.FloatDistribution(0.0, 1.0) for i in range(X.shape[-1])
    }
    trials = [
        optuna.trial.create_trial(
            params=dict(zip(space, x, strict=True)), distributions=space, value=y
        )
        for x, (y,) in zip(X.tolist(), Y.tolist(), strict=True)
    ]
    bound = RegretBoundEvaluator(seed=seed).evaluate(trials, optuna.study.StudyDirection.MAXIMIZE)
    return float(bound) <= EPS


def ax_stops(X: Tensor, Y: Tensor) -> bool:
    """Ax's rule of improvement, of an experiment made of the data."""
    from ax.api.client import Client
    from ax.api.configs import RangeParameterConfig
    from ax.global_stopping.strategies.improvement import ImprovementGlobalStoppingStrategy

    client = Client(random_seed=0)
    names = [f"x{i}" for i in range(X.shape[-1])]
    client.configure_experiment(
        [RangeParameterConfig(name, (0.0, 1.0), "float") for name in names], name="stopping"
    )
    client.configure_optimization("y")
    for x, (y,) in zip(X.tolist(), Y.tolist(), strict=True):
        client.complete_trial(client.attach_trial(dict(zip(names, x, strict=True))), {"y": y})
    strategy = ImprovementGlobalStoppingStrategy(min_trials=CHECKS[0])
    return strategy.should_stop_optimization(client._experiment)[0]


def stops(name: str, situation: str, seed: int) -> dict[str, tuple[int, float]]:
    """Evaluations and true regret at the stop of each rule, of those that stop."""
    f, dim = FUNCTIONS[name]
    best, _ = true_kernel(name)
    torch.manual_seed(seed)
    X = draw_sobol_samples(cube(dim), n=4 * dim + 2, q=1, seed=seed).squeeze(-2)
    Y = observed(name, situation, X)
    pool = draw_sobol_samples(cube(dim), n=2048, q=1, seed=seed + 1)
    found: dict[str, tuple[int, float]] = {}
    while len(X) < BUDGET:
        gp = model_of(name, situation, X, Y)
        if len(X) in CHECKS:
            models = {"plain": gp} | {
                rule: CalibratedModel.from_history(gp, LocalizedConformal(0.2), excess=excess)
                for rule, excess in (("calibrated", "noise"), (RULES[2], "objective"))
            }
            top = X[Y.argmax()].unsqueeze(0)
            for rule in RULES:
                if rule in found:
                    continue
                if rule == "Optuna":
                    stop, candidate = optuna_stops(X, Y, seed), top
                elif rule == "Ax":
                    stop, candidate = ax_stops(X, Y), top
                else:
                    stop, candidate = of_gain(models[rule], dim)
                if stop:
                    found[rule] = len(X), best - f(candidate).item()
        with torch.no_grad():
            best_f = gp.posterior(X).mean.max()
            x = pool[LogExpectedImprovement(gp, best_f)(pool).argmax()]
        X, Y = torch.cat([X, x]), torch.cat([Y, observed(name, situation, x)])
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="How often stopping rules are right.")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=10_000, help="first seed; 1000 for a trial")
    arguments = parser.parse_args()
    num, first = arguments.seeds, arguments.first
    warnings.simplefilter("ignore")
    print("| situation | rule | stopped | right | 95 % interval | evaluations |")
    print("|---|---|---|---|---|---|")
    for situation in SITUATIONS:
        rows: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for name in FUNCTIONS:
            for seed in range(first, first + num):
                for rule, row in stops(name, situation, seed).items():
                    rows[rule].append(row)
        for rule in RULES:
            ends = rows[rule]
            n, right = len(ends), sum(regret <= EPS for _, regret in ends)
            total = num * len(FUNCTIONS)
            low = beta.ppf(0.025, right, n - right + 1) if right else 0.0
            high = beta.ppf(0.975, right + 1, n - right) if right < n else 1.0
            when = f"{statistics.median(count for count, _ in ends):g}" if ends else "-"
            share = f"{right}/{n} | {low:.2f} to {high:.2f}" if n else "- | -"
            print(f"| {situation} | {rule} | {n}/{total} | {share} | {when} |", flush=True)


if __name__ == "__main__":
    main()
