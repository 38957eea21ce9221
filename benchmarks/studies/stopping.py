"""How often a stopping rule is right when it stops, and when it stops, if the model is wrong.

    python -m benchmarks.studies.stopping [--seeds 10000:10010]

Protocol (fixed before any run that counts; nothing is to be tuned on its seeds, 10000 and on).

* Functions, maximised on the unit box, each divided by its range: ``waves``, one input, several
  local maxima; ``branin``, two inputs, negated and scaled. Noise: standard deviation 0.05.
* Situations: ``right``; ``understated``: the stated standard deviation is a fifth of the true one;
  ``varies``: the true one rises from 0.01 to 0.15 along the first input, and 0.05 is stated;
  ``long``: the lengthscale is 2.5 times the one fitted to 200 values without noise. In all others
  it is that one; so no model is fitted.
* Runs: 4 d + 2 Sobol points, then log expected improvement of the plain model. All rules judge the
  same runs, at 10, 16, 22, 28 and 34 evaluations; a rule stops at the first time that it says so.
* Rules, with delta = 0.05 and two values of eps, 0.1 and 0.05: `remaining_gain` (by default) of the
  plain model, of the model calibrated by ``LocalizedConformal(0.2)``, and of that with
  ``excess="objective"``; Optuna's ``RegretBoundEvaluator`` <= eps (its own model, to which no noise
  is stated); Ax's ``ImprovementGlobalStoppingStrategy`` by default, which has no eps and is judged
  by both.
* The recommended point: the best mean for `remaining_gain`, the best observation for the others.
* Measures: the share of runs in which a rule stops, of these the share in which the true regret of
  the recommended point is at most eps, with a 95 % interval by Clopper and Pearson, and the median
  number of evaluations at the stop. A rule keeps its word if that interval reaches 0.95.
* Seeds: ten. They are run one after the other, all situations of each; where the machine's time
  ends before that, the report is on the whole seeds so far, and says how many.

Runs are kept in ``benchmarks/results/stopping.jsonl``, so a study that was interrupted goes on.
"""

from __future__ import annotations

import logging
import math
import statistics
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.mlls import ExactMarginalLogLikelihood
from scipy.stats import binomtest
from torch import Tensor

from benchmarks.framework.markdown import table
from benchmarks.studies.command_line import run_study
from botorch_calib import CalibratedModel, LocalizedConformal
from botorch_calib.decisions import remaining_gain

NOISE, DELTA = 0.05, 0.05
EPS = (0.1, 0.05)
CHECKS = range(10, 35, 6)
SEEDS = range(10_000, 10_010)
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


def bound_of_gain(model: Any, dim: int) -> tuple[float, Tensor]:
    """The bound of `remaining_gain`, and its candidate."""
    gain = remaining_gain(model, cube(dim))
    return gain.bound(DELTA), gain.candidate


def optuna_bound(X: Tensor, Y: Tensor, seed: int) -> float:
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
    direction = optuna.study.StudyDirection.MAXIMIZE
    return float(RegretBoundEvaluator(seed=seed).evaluate(trials, direction))


def ax_bound(X: Tensor, Y: Tensor) -> float:
    """0 if Ax's rule of improvement says stop, of an experiment made of the data, else infinity."""
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
    return 0.0 if strategy.should_stop_optimization(client._experiment)[0] else math.inf


def run(name: str, situation: str, seed: int) -> dict[str, list[tuple[int, float, float]]]:
    """Evaluations, bound and true regret at each check of each rule, to the last stop."""
    f, dim = FUNCTIONS[name]
    best, _ = true_kernel(name)
    torch.manual_seed(seed)
    X = draw_sobol_samples(cube(dim), n=4 * dim + 2, q=1, seed=seed).squeeze(-2)
    Y = observed(name, situation, X)
    pool = draw_sobol_samples(cube(dim), n=2048, q=1, seed=seed + 1)
    found: dict[str, list[tuple[int, float, float]]] = {rule: [] for rule in RULES}
    running = [*RULES]
    while running and len(X) <= CHECKS[-1]:
        gp = model_of(name, situation, X, Y)
        if len(X) in CHECKS:
            models = {"plain": gp} | {
                rule: CalibratedModel.from_history(gp, LocalizedConformal(0.2), excess=excess)
                for rule, excess in (("calibrated", "noise"), (RULES[2], "objective"))
                if rule in running
            }
            top = X[Y.argmax()].unsqueeze(0)
            for rule in running:
                if rule == "Optuna":
                    bound, candidate = optuna_bound(X, Y, seed), top
                elif rule == "Ax":
                    bound, candidate = ax_bound(X, Y), top
                else:
                    bound, candidate = bound_of_gain(models[rule], dim)
                found[rule].append((len(X), bound, best - f(candidate).item()))
            running = [rule for rule in running if found[rule][-1][1] > min(EPS)]
        with torch.no_grad():
            best_f = gp.posterior(X).mean.max()
            x = pool[LogExpectedImprovement(gp, best_f)(pool).argmax()]
        X, Y = torch.cat([X, x]), torch.cat([Y, observed(name, situation, x)])
    return found


def markdown(runs: Sequence[dict[str, Any]]) -> str:
    """The report: a row for each value of eps, situation and rule."""
    seeds = sorted({each["seed"] for each in runs})
    rows = []
    for eps in EPS:
        for situation in SITUATIONS:
            own = [each["checks"] for each in runs if each["situation"] == situation]
            for rule in RULES:
                stops = (
                    next((check for check in checks[rule] if check[1] <= eps), None)
                    for checks in own
                )
                ends = [(count, regret <= eps) for count, _, regret in filter(None, stops)]
                cells = ["–"] * 3
                if ends:
                    right = sum(good for _, good in ends)
                    interval = binomtest(right, len(ends)).proportion_ci(0.95)
                    cells = [
                        f"{right} of {len(ends)}",
                        f"{interval.low:.2f} to {interval.high:.2f}",
                        f"{statistics.median(count for count, _ in ends):g}",
                    ]
                rows.append([f"{eps:g}", situation, rule, f"{len(ends)} of {len(own)}", *cells])
    head = ["eps", "situation", "rule", "stopped", "right", "95 % interval", "evaluations"]
    legend = (
        f"Stopping rules on {len(FUNCTIONS)} functions, {len(seeds)} of {len(SEEDS)} seeds: the "
        "runs that they stopped; of these the ones in which the recommended point was within eps "
        "of the optimum; and the median number of evaluations at the stop."
    )
    reproduce = "Reproduce with `python -m benchmarks.studies.stopping`."
    return "\n".join([reproduce, "", legend, "", *table(head, rows), ""])


def main(argv: Sequence[str] | None = None) -> int:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # Ax tells of each trial

    def kept(cell: Mapping[str, str], seed: int) -> dict[str, object]:
        return {"checks": run(cell["name"], cell["situation"], seed)}

    cells = [{"situation": each, "name": name} for each in SITUATIONS for name in FUNCTIONS]
    command = "python -m benchmarks.studies.stopping"
    return run_study(command, __doc__, SEEDS, cells, kept, markdown, argv)


if __name__ == "__main__":
    sys.exit(main())
