"""The demonstration's fourth part: decisions with a stated probability.

The classifier of `demo.screening` is tuned for precision under a limit on the rate of malignant
cases that it misses. Each round tries a setting that keeps the limit with a probability of 90 %.
The methods differ in the quantile that decides this. The first method trusts the reported standard
errors; the second estimates one noise level; the third uses 1.5 times the quantile of the first, a
fixed safety margin. The fourth is a `ChanceConstraint` with the first model, which learns from the
rounds. The data, the model of the precision and the choice are the same for all methods. The limit
and the numbers of training records and rounds were chosen on seeds 0 to 109, before the first run
on the seeds shown. After that run, the constraint's rule was changed twice because of other
problems (``benchmarks/protocols/decisions_budget.md``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from botorch.acquisition import PosteriorMean, UpperConfidenceBound
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from gpytorch.mlls import ExactMarginalLogLikelihood
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.demo.common import (
    TITLE_SIZE,
    Budget,
    Figures,
    Runs,
    align,
    difference,
    run_all,
    show,
)
from benchmarks.demo.screening import (
    BOUNDS,
    LOG_PENALTIES,
    SETTINGS,
    THRESHOLDS,
    Screening,
    Trial,
    Truth,
)
from benchmarks.framework.metrics import trace
from benchmarks.framework.plots import draw_mean, panel_grid
from benchmarks.framework.replicate import OBSERVE, Record, Replicate, stream_seed
from benchmarks.framework.replicate_result import Result, Score, by_seed
from benchmarks.framework.runner import Task
from benchmarks.framework.statistics import paired_test
from botorch_calib import ChanceConstraint, optimize_chance_constrained
from botorch_calib.decisions.budget import SIZE
from botorch_calib.decisions.chance_constrained_search import LeastMargin, Place, best_certified
from botorch_calib.plotting import COLORS

TITLE = "Decisions: limits that are kept as often as stated"
ROUNDS = 60
NUM_EARLIER = 20  # random settings tried before the rounds
LIMIT = 0.08
RISK = 0.1  # stated probability of a violation
LEVEL = 1.0 - RISK
REFIT_EVERY = 20
# Offset to the seeds of other parts, on which this part was run before its settings were changed.
FRESH_SEEDS = 500
# Number of the random stream of the settings tried before the rounds, see `framework.replicate`.
EARLIER = 30


@dataclass(frozen=True)
class ScreeningTask:
    """The task, with its number of rounds."""

    name: str = "screening"
    num_rounds: int = ROUNDS


@dataclass(frozen=True)
class Guard:
    """A method, which decides whether a setting keeps the limit.

    Args:
        name: The name.
        uses_reported: Whether the model uses the reported standard errors or fits its noise.
        width: Factor of the model's quantile; None if it is learned from the rounds.
    """

    name: str
    uses_reported: bool
    width: float | None = None


GUARDS = {
    "reported": Guard("reported", uses_reported=True, width=1.0),
    "fitted": Guard("fitted", uses_reported=False, width=1.0),
    "wide": Guard("wide", uses_reported=True, width=1.5),
    "budget": Guard("budget", uses_reported=True),
}
NAMES = {
    "reported": "GP, reported errors",
    "fitted": "GP, fitted noise",
    "wide": "reported errors x 1.5",
    "budget": "reported, budget rule",
}
CONFIDENCE = 0.95


def run(budget: Budget) -> Figures:
    """Run the part, print its results and return its figure."""
    task = ScreeningTask(num_rounds=budget.rounds_of(ROUNDS))
    print(
        "Tune a classifier of tumours for precision; at most "
        f"{100 * LIMIT:.0f} % of the malignant ones may be missed,\nwith a probability of "
        f"{100 * LEVEL:.0f} %: {budget.seeds} runs of {task.num_rounds} rounds\n",
        flush=True,
    )
    # All methods have the same earlier data and the same training records in each round.
    seeds = (seed + FRESH_SEEDS for seed in budget.later_seeds())
    tasks = [Task(task, guard, seed, replicate) for seed in seeds for guard in GUARDS.values()]
    runs = run_all(tasks, budget.jobs, "limits")
    truth = Screening.load().truth(LIMIT)
    print(decisions_report(runs, truth), flush=True)
    return {"decisions.png": decisions_figure(runs, truth)}


# ------------------------------------------------------------ one run


def replicate(task: ScreeningTask, guard: Guard, seed: int) -> Result:
    """Tune with one method; the result is deterministic, except for wall times."""
    return ScreeningReplicate(task, guard, seed).run()


class Models(NamedTuple):
    """The models of both outcomes in a round, and the constraint on the first outcome."""

    missed: SingleTaskGP
    precision: SingleTaskGP
    constraint: ChanceConstraint


class ScreeningReplicate(Replicate[ScreeningTask, Guard, Models]):
    """Each round chooses and tries a certified setting."""

    models: Models | None = None  # of the last round

    def __init__(self, task: ScreeningTask, guard: Guard, seed: int) -> None:
        super().__init__(task, guard, seed, task.num_rounds)
        self.screening = Screening.load()
        rng = np.random.default_rng(stream_seed(seed, EARLIER))
        self.settings = SETTINGS[rng.choice(len(SETTINGS), NUM_EARLIER, replace=False)]
        self.trials = [self._try(x, index) for index, x in enumerate(self.settings)]
        self.certified: list[float | None] = []

    def _try(self, x: Tensor, index: int) -> Trial:
        rng = np.random.default_rng(stream_seed(self.seed, OBSERVE, index))
        return self.screening.try_setting(x, rng)

    def _column(self, name: str) -> Tensor:
        return torch.tensor([[getattr(trial, name)] for trial in self.trials], dtype=torch.double)

    def fit(self, step: int) -> Models:
        last = self.models
        kept = None if last is None or step % REFIT_EVERY == 0 else last
        Yvar = self._column("reported_variance") if self.method.uses_reported else None
        missed = process(self.settings, self._column("missed"), Yvar, kept and kept.missed)
        precision = process(self.settings, self._column("precision"), None, kept and kept.precision)
        if last is None:
            constraint = constraint_on(missed, self.method.width)
        else:
            constraint = last.constraint.with_model(missed)
        self.models = Models(missed, precision, constraint)
        return self.models

    def propose(self, model: Models) -> Tensor:
        acqf = UpperConfidenceBound(model.precision, beta=1.0)
        x, _, certified = optimize_chance_constrained(
            acqf, model.constraint, None, choices=SETTINGS
        )
        self.certified.append(float(certified))
        return x.squeeze(0)

    def evaluate(self, x: Tensor, model: Models, step: int) -> None:
        trial = self._try(x, len(self.trials))
        self.trials.append(trial)
        self.settings = torch.cat([self.settings, x.unsqueeze(0)])
        if self.method.width is None:
            x, missed = x.unsqueeze(0), x.new_tensor([[trial.missed]])
            model.constraint.observe(x, missed, condition=False)

    def record(self) -> Record:
        """The record, whose outcomes are the missed rates; ``X`` ends with the final setting.

        The extras are whether the setting of each round was ``certified``, and the ``bound`` on the
        number of violations (or None) with one entry.
        """
        final, learns = self.fit(step=0), self.method.width is None
        margin = LeastMargin(final.constraint, CONFIDENCE if learns else None)
        acqf = PosteriorMean(final.precision)
        kept, _ = best_certified(acqf, margin, Place(None, choices=SETTINGS))
        return Record(
            num_initial=NUM_EARLIER,
            X=torch.cat([self.settings, kept]).tolist(),
            y=[trial.missed for trial in self.trials],
            f=[],
            extras={
                "certified": self.certified,
                "bound": [final.constraint.violation_bound(self.num_steps) if learns else None],
            },
        )


def process(
    X: Tensor, Y: Tensor, Yvar: Tensor | None, previous: SingleTaskGP | None
) -> SingleTaskGP:
    """A Gaussian process of ``n x 2`` settings, fitted or with the hyperparameters of another."""
    gp = SingleTaskGP(
        X, Y, Yvar, input_transform=Normalize(2, bounds=BOUNDS), outcome_transform=Standardize(1)
    )
    if previous is None:
        fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
        return gp
    # Not the whole state, which includes the standardisation of the earlier data.
    gp.covar_module.load_state_dict(previous.covar_module.state_dict())
    gp.mean_module.load_state_dict(previous.mean_module.state_dict())
    if Yvar is None:
        gp.likelihood.load_state_dict(previous.likelihood.state_dict())
    return gp.eval()


def constraint_on(gp: SingleTaskGP, width: float | None) -> ChanceConstraint:
    """The limit on the missed rate, with learned quantiles or ``width`` times the model's."""
    budget = SIZE if width is None else math.inf
    return ChanceConstraint(gp, upper=LIMIT, level=LEVEL, width=width, budget=budget, rows=())


# ------------------------------------------------------------ results


def violated(result: Result) -> np.ndarray:
    """Whether each round violated the limit; False for rounds without a certified setting."""
    above = np.array(result.y[result.num_initial :]) > LIMIT
    return above & (np.array(result.extras["certified"]) == 1.0)


def share_violated(result: Result) -> float:
    """The share of the certified rounds that violated the limit; NaN if there are none."""
    certified = sum(trace(result, "certified"))
    return float(violated(result).sum() / certified) if certified else math.nan


def share_certified(result: Result) -> float:
    """The share of the rounds in which there was a certified setting."""
    return float(np.mean(trace(result, "certified")))


def at_settings(values: np.ndarray, result: Result) -> np.ndarray:
    """The values at the settings of the rounds and, last, at the final setting."""
    X = torch.tensor(result.X[result.num_initial :], dtype=torch.double)
    index = torch.cdist(X, SETTINGS).argmin(dim=-1).numpy()
    return np.asarray(values.reshape(-1)[index])


def columns_of(truth: Truth) -> dict[str, tuple[Score, bool]]:
    """The scores in the table, and whether they are in percent."""
    return {
        "certified rounds": (share_certified, True),
        "violated": (share_violated, True),
        "precision": (lambda r: float(at_settings(truth.precision, r)[:-1].mean()), False),
        "kept: violates": (lambda r: float(at_settings(truth.violating, r)[-1]), True),
        "its precision": (lambda r: float(at_settings(truth.precision, r)[-1]), False),
    }


def decisions_report(runs: Runs, truth: Truth) -> str:
    """A table of stated and observed violations, and of the cost of keeping the limit."""
    columns = columns_of(truth)
    rows = [["", *columns]]
    for method, results in runs.items():
        cells = [cell(results, score, percent) for score, percent in columns.values()]
        rows.append([NAMES[method], *cells])
    own = runs["budget"]
    rounds = len(trace(own[0], "certified"))
    bound = math.floor(max(trace(result, "bound")[0] for result in own) + 1e-6)
    most = max(int(violated(result).sum()) for result in own)
    return "\n".join(
        [
            *align(rows),
            "",
            *(own_minus(runs, other, truth) for other in runs if other != "budget"),
            f"Proved for the budget rule, whatever happens: at most {bound} violations in "
            f"{rounds} certified rounds;",
            f"there were {most} at most. Best precision of a setting that violates in "
            f"{100 * RISK:.0f} %: {truth.best_precision(RISK):.3f}.",
            "",
            f"Stated: violations in {100 * RISK:.0f} % of the certified rounds. Mean ± "
            "standard error over the",
            "runs, with Wilcoxon's p-value of paired differences in parentheses. Precision is the",
            "expected one of the settings tried, or of the one that is kept after the last round.",
        ]
    )


def cell(results: Sequence[Result], score: Score, percent: bool) -> str:
    """Mean ± standard error over the runs that have the score."""
    values = list(by_seed(results, score).values())
    return show(values, percent=percent, digits=3) if values else "?"


def own_minus(runs: Runs, other: str, truth: Truth) -> str:
    """Paired differences of violations and of precision."""
    precision, _ = columns_of(truth)["precision"]
    violations, gain = (
        paired_test(by_seed(runs["budget"], score), by_seed(runs[other], score))
        for score in (lambda r: 100.0 * share_violated(r), precision)
    )
    change = difference(violations, digits=1) if violations.pairs else "?"
    return (
        f"Budget rule minus {NAMES[other]}: violations (%) {change}, "
        f"precision {difference(gain, digits=3)}."
    )


def decisions_figure(runs: Runs, truth: Truth) -> Figure:
    """Violations by round, the settings that were tried, and their precision."""
    figure, (left, middle, right) = panel_grid(3, 3, (5.0, 4.0))
    draw_violations(left, runs)
    draw_settings(middle, runs, truth)
    draw_price(right, runs, truth)
    figure.suptitle(
        f"At most {100 * LIMIT:.0f} % missed, with a probability of {100 * LEVEL:.0f} %",
        fontsize=TITLE_SIZE,
    )
    figure.legend(
        handles=left.get_lines(), loc="outside lower center", ncols=len(runs) + 1, frameon=False
    )
    return figure


def draw_violations(panel: Axes, runs: Runs) -> None:
    """The number of violations so far, with bands of one standard error."""
    panel.set_prop_cycle(color=COLORS)
    for method, results in runs.items():
        curves = np.array([violated(result).cumsum() for result in results])
        draw_mean(panel, NAMES[method], curves, first=1, alpha=0.15)
    rounds = np.arange(1, len(trace(results[0], "certified")) + 1)
    panel.plot(rounds, RISK * rounds, "--", color="black", label="as stated")
    panel.set(xlabel="round", ylabel="violations so far", title="mean ± 1 standard error")


def draw_settings(panel: Axes, runs: Runs, truth: Truth) -> None:
    """The probability of a violation at each setting, and the settings of later rounds."""
    mesh = panel.pcolormesh(
        THRESHOLDS, LOG_PENALTIES, truth.violating, cmap="Greys", vmin=0, vmax=1, shading="nearest"
    )
    panel.figure.colorbar(mesh, ax=panel, label="probability of a violation")
    panel.contour(THRESHOLDS, LOG_PENALTIES, truth.violating, levels=[RISK], colors="black")
    for (method, results), color in zip(runs.items(), COLORS, strict=False):
        kept = np.array([r.X[-1] for r in results])
        panel.scatter(kept[:, 1], kept[:, 0], marker="*", s=60, color=color, edgecolor="white")
        if method not in ("reported", "budget"):
            continue  # four clouds of points would be indistinguishable
        late = [np.array(r.X[r.num_initial : -1])[-len(violated(r)) // 2 :] for r in results]
        points, counts = np.unique(np.concatenate(late), axis=0, return_counts=True)
        panel.scatter(points[:, 1], points[:, 0], s=6.0 * counts, color=color, alpha=0.6)
    panel.set(xlabel="threshold", ylabel="log10 of the penalty")
    panel.set_title(f"later rounds; stars: kept; line: {100 * RISK:.0f} %")


def draw_price(panel: Axes, runs: Runs, truth: Truth) -> None:
    """Precision against violations: a point for each run, and the best possible precision."""
    columns = columns_of(truth)
    (share, _), (precision, _) = columns["violated"], columns["precision"]
    for (method, results), color in zip(runs.items(), COLORS, strict=False):
        points = [[score(result) for score in (share, precision)] for result in results]
        panel.plot(*np.transpose(points), "o", color=color, alpha=0.8, label=NAMES[method])
    # Fixed widths trade precision for violations along this line, so a point above it is better.
    fixed = [name for name in ("reported", "wide") if name in runs]
    means = [[np.mean([s(r) for r in runs[name]]) for s in (share, precision)] for name in fixed]
    panel.plot(*np.transpose(means), "-", color="black", linewidth=1.0)
    panel.axvline(RISK, linestyle="--", color="black")
    risks = np.linspace(0.01, 0.5, 50)
    best = [truth.best_precision(risk) for risk in risks]
    panel.plot(risks, best, color="0.6", zorder=0)
    panel.set(xlabel="share of rounds violated", ylabel="expected precision")
    panel.set_title("each run; line: fixed widths; grey: best")
