"""Why does a small m cost so much: by what never arrives, or by what stays censored for it?

In figure 1b of Verma, Dai and Low (2022) GP-UCB-SDF has far more regret at m = 5 than at m = 20,
with Poisson delays of mean 10: at m = 5 no more than 7 % of the values arrive in time. All others
stay censored at 0, so the mean estimates not f but ``rho f``, with the probability ``rho`` that a
value arrives in time (their Theorem 1). The problem is that of suite `sdf_sweeps`, on its seeds,
from whose archive the rules of that suite are taken.

* At m = 5: GP-UCB-SDF; the same if queries whose wait is over are left out of the model, so that
  only pending ones are censored; random search; and expected improvement on the censored model,
  with the mean as it is and rescaled (`CensoredDelayModel.rescaling`) by the ledger's estimate of
  ``rho``. Upper confidence bounds rank points in the same way with and without it.
* At m = 20, where all arrive: GP-UCB-SDF and hallucination with `confidence_multiplier`, for a
  failure probability of 0.1, the true noise, and a norm of 5, about that of such a function.

Recorded: the simple regret of what has arrived, averaged over the 100 rounds; and after the last
round of GP-UCB-SDF at m = 5 the estimate of ``rho``, and the root mean squared error, at the
queries that brought no value in time, of four predictions: the mean, rescaled, rescaled where
hyperparameters are fitted to censored values as well, and without the queries whose wait is over.

    python -m benchmarks.studies.never_arriving
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction, LogExpectedImprovement
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from scipy.stats import poisson
from torch import Tensor
from tqdm.auto import tqdm

from benchmarks.delay import objectives
from benchmarks.delay.methods import DelayedAcquisition, DelayedAcquisitionStrategy, sdf
from benchmarks.delay.replicate import DelayedReplicate, DelayedTask
from benchmarks.framework.markdown import mean_and_half_width, table
from benchmarks.framework.report import collect
from benchmarks.framework.result_store import (
    ARCHIVES_DIR,
    RESULTS_DIR,
    ResultStore,
    write_atomically,
)
from benchmarks.framework.runner import one_torch_thread
from benchmarks.framework.statistics import student_interval
from benchmarks.studies.command_line import study_parser
from benchmarks.suites import get_suite
from benchmarks.theory import confidence_multiplier
from botorch_calib.acquisition import DelayedUpperConfidenceBound
from botorch_calib.ledger import FeedbackLedger
from botorch_calib.models import CensoredDelayModel
from botorch_calib.test_functions.delayed import PoissonDelay

MEAN, SHORT, LONG = 10.0, 5, 20
SEEDS = range(10000, 10010)
COMMAND = "python -m benchmarks.studies.never_arriving"
# Of the confidence bound that is proven
DELTA, NOISE_STD, NORM = 0.1, 0.01, 5.0


@dataclass(frozen=True)
class Rule(DelayedAcquisition):
    """A method of suite `delay` with one change, named by ``variant``."""

    variant: str = ""

    def start(self, task: DelayedTask, bounds: Tensor) -> RuleStrategy:
        """The strategy of one replicate."""
        return RuleStrategy(self, task, bounds)


class RuleStrategy(DelayedAcquisitionStrategy):
    """`Rule` at work."""

    def fit(self, ledger: FeedbackLedger, step: int) -> Model:
        """As usual, or without the queries whose wait is over."""
        if self._variant == "random":
            return SingleTaskGP(*ledger.to_observations(), outcome_transform=None)
        model: Any = super().fit(ledger, step)
        if self._variant != "expired left out":
            return model
        return CensoredDelayModel(model.model, ledger.pending(), ledger.censor_value)

    def acquisition_function(
        self, model: Any, ledger: FeedbackLedger, choices: Tensor | None
    ) -> AcquisitionFunction:
        """The changed one."""
        if self._variant == "random":
            return _RandomValues(model)
        if self._variant.startswith("improvement"):
            rho = ledger.arrival_probability().estimate
            # Until one has arrived in time nothing is known of rho.
            rescales = self._variant.endswith("rescaled") and rho > 0.0
            transform = model.rescaling(rho) if rescales else None
            best = ledger.to_observations()[1].max()
            return LogExpectedImprovement(model, best, posterior_transform=transform)
        if self._variant == "proven":
            is_censored = self.settings.imputation == "censor"
            delta, bound = (DELTA / 2, NOISE_STD + 1.0) if is_censored else (DELTA, NOISE_STD)
            beta = confidence_multiplier(model, delta, bound, NORM).item()
            return DelayedUpperConfidenceBound.from_ledger(
                model,
                ledger,
                window=self.settings.window,
                beta=beta,
                feedback_bound=self.settings.feedback_bound / self._outcome_scale(),
            )
        return super().acquisition_function(model, ledger, choices)

    @property
    def _variant(self) -> str:
        return getattr(self.settings, "variant", "")


class _RandomValues(AcquisitionFunction):
    """Any value at any point."""

    def forward(self, X: Tensor) -> Tensor:
        return torch.rand(len(X), dtype=X.dtype)


def rule(name: str, variant: str, **changes: Any) -> Rule:
    """GP-UCB-SDF with a change."""
    return Rule(**{**vars(sdf(name, "ucb")), **changes, "variant": variant})


HALLUCINATED: dict[str, Any] = {"imputation": "hallucinate", "window": None, "feedback_bound": 0.0}
# Methods with m, the first of which all others are compared with, and rules of suite `sdf_sweeps`
CELLS: dict[tuple[str, int], DelayedAcquisition] = {
    ("GP-UCB-SDF", SHORT): sdf("ucb_sdf", "ucb"),
    ("GP-UCB-SDF, expired queries left out", SHORT): rule("left_out", "expired left out"),
    ("random search", SHORT): rule("random", "random"),
    ("expected improvement, censored", SHORT): rule("ei", "improvement"),
    ("expected improvement, rescaled", SHORT): rule("ei_rescaled", "improvement rescaled"),
    ("GP-UCB-SDF, proven multiplier", LONG): rule("proven", "proven"),
    ("GP-BUCB, proven multiplier", LONG): rule("proven_hallucinate", "proven", **HALLUCINATED),
}
ARCHIVED = {
    ("GP-BUCB", SHORT): "ucb_hallucinate",
    ("GP-UCB", SHORT): "ucb",
    ("GP-UCB-SDF", LONG): "ucb_sdf",
    ("GP-BUCB", LONG): "ucb_hallucinate",
}
FIRST = next(iter(CELLS))
PREDICTIONS = (
    "the mean of the censored model",
    "rescaled",
    "rescaled, hyperparameters fitted to censored values as well",
    "the mean without expired queries",
)


@dataclass(frozen=True)
class Outcome:
    """Regret of one run and, of GP-UCB-SDF at m = 5, errors of predictions and ``rho``."""

    regret: float
    errors: tuple[float, ...] = ()
    rho: float = math.nan
    covered: bool = False


def run(cell: tuple[str, int], seed: int) -> Outcome:
    """One run."""
    task = DelayedTask("gp_sample", objectives.gp_sample(), PoissonDelay(MEAN), cell[1])
    replicate = DelayedReplicate(task, CELLS[cell], seed)
    extras: Any = replicate.run().extras
    regret = float(np.mean(extras["simple_regret"]))
    if cell != FIRST:
        return Outcome(regret)
    found = replicate.ledger.arrival_probability()
    return Outcome(
        regret,
        prediction_errors(replicate, found.estimate),
        found.estimate,
        found.lower <= true_probability() <= found.upper,
    )


def true_probability() -> float:
    """That a value arrives within m = 5."""
    return float(poisson.cdf(SHORT, MEAN))


@torch.no_grad()
def prediction_errors(replicate: DelayedReplicate, rho: float) -> tuple[float, ...]:
    """Root mean squared errors of `PREDICTIONS`; NaN for the rescaled ones without a ``rho``."""
    ledger, bounds = replicate.ledger, replicate.domain.bounds

    def fit(X: Tensor, Y: Tensor) -> SingleTaskGP:
        return replicate.problem.surrogate(X, Y, bounds, 0, None)

    models = {
        kind: CensoredDelayModel.from_ledger(ledger, fit, hyperparameters=kind)
        for kind in ("observed", "censored")
    }
    late = [trial.x for trial in ledger if trial.status == "expired"]
    X = torch.stack(late)
    truth = torch.tensor([replicate.evaluator.truth(x) for x in late], dtype=torch.double)

    def error(model: Any, transform: Any = None) -> float:
        mean = model.posterior(X, posterior_transform=transform).mean.squeeze(-1)
        return float((mean - truth).square().mean().sqrt())

    rescaled = [
        error(model, model.rescaling(rho)) if rho > 0.0 else math.nan for model in models.values()
    ]
    return error(models["observed"]), *rescaled, error(models["observed"].model)


def archived(seeds: Sequence[int]) -> dict[tuple[str, int], list[Outcome]]:
    """Regrets of the suite's own rules."""
    found, _ = collect(get_suite("sdf_sweeps"), ResultStore(RESULTS_DIR, ARCHIVES_DIR))
    outcomes = {}
    for (name, max_wait), method in ARCHIVED.items():
        results = {each.seed: each for each in found[f"mean_{MEAN:g}_m_{max_wait}"][method]}
        regrets: list[Any] = [results[seed].extras["simple_regret"] for seed in seeds]
        outcomes[name, max_wait] = [Outcome(float(np.mean(each))) for each in regrets]
    return outcomes


def markdown(outcomes: dict[tuple[str, int], list[Outcome]], num_seeds: int) -> str:
    """The report: regrets, errors of predictions, and the estimate of ``rho``."""
    first = outcomes[FIRST]
    regrets = [
        [
            name,
            str(max_wait),
            mean_and_half_width([each.regret for each in found], 3),
            "" if found is first else _ratio(found, first),
        ]
        for (name, max_wait), found in sorted(outcomes.items(), key=lambda item: item[0][1])
    ]
    known = [each for each in first if each.rho > 0.0]
    errors = [
        [name, mean_and_half_width([each.errors[i] for each in known], 2)]
        for i, name in enumerate(PREDICTIONS)
    ]
    covered = sum(each.covered for each in first)
    rho = mean_and_half_width([each.rho for each in first], 3)
    return "\n".join(
        [
            f"Reproduce with `{COMMAND}`.",
            "",
            "Simple regret of what has arrived, averaged over 100 rounds, on draws of a Gaussian "
            f"process with values in [0, 1]; delays are Poisson with mean {MEAN:g}. Means over "
            f"{num_seeds} seeds ± half of Student's 95 % interval; beside GP-UCB-SDF at m = "
            f"{SHORT}, the ratio of geometric means with its 95 % interval, paired by seed.",
            "",
            *table(["method", "m", "regret", f"beside GP-UCB-SDF at m = {SHORT}"], regrets),
            "",
            "Root mean squared errors at the queries of GP-UCB-SDF whose values did not arrive "
            f"within m = {SHORT}, after the last round ({len(known)} seeds on which one did):",
            "",
            *table(["prediction", "error"], errors),
            "",
            f"The ledger's estimate of rho is {rho}; the true "
            f"one, {true_probability():.3f}, lies in its 95 % interval in {covered} of "
            f"{num_seeds} runs.",
            "",
        ]
    )


def _ratio(found: Sequence[Outcome], first: Sequence[Outcome]) -> str:
    logs = [math.log(a.regret / b.regret) for a, b in zip(found, first, strict=True)]
    low, high = student_interval(logs)
    return f"{math.exp((low + high) / 2):.2f} ({math.exp(low):.2f} to {math.exp(high):.2f})"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the study, print the report and write it."""
    args = study_parser(COMMAND, __doc__, SEEDS).parse_args(argv)
    found: dict[tuple[str, int], list[Outcome]] = {cell: [] for cell in CELLS}
    with one_torch_thread():
        for num, seed in enumerate(tqdm(args.seeds, desc="never arriving"), start=1):
            for cell in CELLS:
                found[cell].append(run(cell, seed))
            if num > 1:  # what is there, should the run be cut short
                text = markdown(found | archived(args.seeds[:num]), num)
                write_atomically(args.tables / "never_arriving.md", text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
