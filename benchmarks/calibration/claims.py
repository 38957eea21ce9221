"""What the model says of the objective at the end of a run, tested against the truth.

Beside the coverage of the objective, which all runs record: the coverage of new outcomes, and
claims of superiority. A model claims that the recommended point, the one with the largest
posterior mean, is better than another evaluated one if it gives this a probability of at least
90 %. For calibrated models everything about the objective is judged a second time with the excess
of spread attributed to the objective, see `CalibratedPosterior`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from botorch.models.model import Model
from botorch.utils.sampling import manual_seed
from torch import Tensor

from benchmarks.calibration.methods import ALPHA
from benchmarks.framework.landscapes import NoisyLandscape, noise_deviation
from benchmarks.framework.metrics import regret_evaluated, trace
from benchmarks.framework.replicate import stream_seed
from benchmarks.framework.replicate_result import Result
from benchmarks.framework.sequential import Method, Problem, SequentialReplicate
from benchmarks.framework.stored_results import (
    EXACT,
    FLAGS,
    Condensation,
    Derived,
    average,
    significant,
)
from benchmarks.framework.strategies import within_interval
from botorch_calib import CalibratedModel

# Number of a random stream, see `framework.replicate`. Never renumber.
JUDGE = 40
NUM_SAMPLES = 4096

# Probability from which on superiority is claimed.
CLAIM = 0.9

# Ending of the records of calibrated models with the excess attributed to the objective.
EXCESS = "_excess"


def replicate(problem: Problem, method: Method, seed: int) -> Result:
    """Run ``method`` on ``problem`` and judge its last model."""
    return JudgedReplicate(problem, method, seed).run()


class JudgedReplicate(SequentialReplicate):
    """Ordinary sequential optimization of a landscape with Gaussian noise, judged at the end."""

    def judge(self, model: Model | None) -> None:
        """Record the coverage of new outcomes and claims of superiority, beside what all record.

        The extras, of one entry unless said otherwise: the ``spread`` of the objective over the
        box; the mean probability that a new outcome lies in its stated interval,
        ``outcome_covered`` at the points visited and ``outcome_covered_in_box``; with one entry
        for each point visited, ``None`` for the recommended one, the ``superiority`` of the
        recommended one that was stated, whether that is a claim (``claimed``), and whether it is
        truly ``better``.
        """
        super().judge(model)
        objective = self.problem.build
        if model is None or not self.by_mean or not isinstance(objective, NoisyLandscape):
            raise TypeError("Statements are judged of a model and a landscape with noise.")
        self.extras["spread"] = [objective.landscape.spread()]
        for name, X in (("outcome_covered", self.X), ("outcome_covered_in_box", self.space())):
            self.extras[name] = [outcome_coverage(model, X, objective).mean().item()]
        recommended = self.by_mean[-1]
        f = self.oracle.truth(self.X).squeeze(-1)
        self.extras["better"] = _but(recommended, f[recommended] > f)
        for ending, statement in statements(model).items():
            with manual_seed(stream_seed(self.seed, JUDGE)):
                stated = superiority(statement, self.X, recommended)
            self.extras[f"superiority{ending}"] = _but(recommended, stated)
            self.extras[f"claimed{ending}"] = _but(recommended, stated >= CLAIM)
            if ending:
                visited, space = (
                    within_interval(statement, X, self.oracle.truth(X), ALPHA).double()
                    for X in (self.X, self.space())
                )
                self.extras[f"objective_covered{ending}"] = visited.tolist()
                self.extras[f"objective_covered_in_box{ending}"] = [space.mean().item()]


def statements(model: Model) -> dict[str, Model]:
    """The models whose statements about the objective are judged, by the ending of the records."""
    if not isinstance(model, CalibratedModel):
        return {"": model}
    return {"": model, EXCESS: CalibratedModel(model.model, model.calibrator, excess="objective")}


@torch.no_grad()
def outcome_coverage(model: Model, X: Tensor, objective: NoisyLandscape) -> Tensor:
    """The probability ``n`` of a new outcome at ``n x d`` points in its stated interval.

    Under the true distribution of the outcome, without drawing any.
    """
    tails = torch.tensor([ALPHA / 2, 1 - ALPHA / 2], dtype=X.dtype)
    # One point a batch: only marginals are needed.
    bounds = model.posterior(X.unsqueeze(-2), observation_noise=True).quantile(tails).flatten(1)
    truth = torch.distributions.Normal(objective.landscape(X), noise_deviation(objective, X))
    lower, upper = truth.cdf(bounds.T).unbind(-1)
    return upper - lower


@torch.no_grad()
def superiority(model: Model, X: Tensor, index: int) -> Tensor:
    """The probabilities ``n`` that the point ``index`` of ``n x d`` is better than each.

    From joint samples: their standard error is 0.005 at a probability of 90 %.
    """
    samples = model.posterior(X).rsample(torch.Size([NUM_SAMPLES])).squeeze(-1)
    return (samples[:, index, None] > samples).double().mean(dim=0)


def _but(index: int, values: Tensor) -> list[float | None]:
    """Values by point, without that of one point."""
    return [None if i == index else v for i, v in enumerate(values.double().tolist())]


# ------------------------------------------------------------ what a run is judged by


@dataclass(frozen=True)
class Share:
    """The mean of a record, NaN where a run does not have it.

    Args:
        name: Of the record.
    """

    name: str

    def __call__(self, result: Result) -> float:
        if self.name not in result.extras:
            return math.nan
        values = trace(result, self.name)
        return math.fsum(values) / len(values)


@dataclass(frozen=True)
class Claims:
    """The number of claims of superiority in a run, or of those among them that are false.

    Args:
        over: Over which points: the ``"start"``, which has the largest outcome of the initial
            design, the ``"incumbent"``, which has the largest outcome of all, or all that were
            ``"visited"``. There is no claim over the recommended point itself.
        ending: `EXCESS` for statements with the excess attributed to the objective.
        false: Whether false claims alone count.
    """

    over: str
    ending: str = ""
    false: bool = False

    def __call__(self, result: Result) -> float:
        if f"claimed{self.ending}" not in result.extras:
            return math.nan
        claimed, better = trace(result, f"claimed{self.ending}"), trace(result, "better")
        points = {
            "start": [result.inference_by_outcome[0]],
            "incumbent": [result.inference_by_outcome[-1]],
            "visited": range(len(claimed)),
        }[self.over]
        counted = [i for i in points if claimed[i] == 1.0]
        return float(sum(not (self.false and better[i] == 1.0) for i in counted))


# The last regrets to the digits of their logarithms, and flags.
ARCHIVED = Condensation(
    fields={
        "inference_by_outcome": EXACT,
        "regret_by_mean": significant(5),
        "fit_seconds": average(),
        "acquisition_seconds": average(),
    },
    extras={
        "spread": significant(6),
        "covered": FLAGS,
        "better": FLAGS,
        **{f"claimed{ending}": FLAGS for ending in ("", EXCESS)},
        **{f"objective_covered{ending}": FLAGS for ending in ("", EXCESS)},
        **{f"objective_covered_in_box{ending}": EXACT for ending in ("", EXCESS)},
        "outcome_covered": significant(5),
        "outcome_covered_in_box": significant(5),
    },
    derived={"regret_evaluated": Derived(regret_evaluated, significant(5))},
)
