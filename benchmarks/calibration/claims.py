"""Claims of the model at the end of a run, tested against the true objective.

All runs record the coverage of the objective. This module adds the coverage of new outcomes and
claims of superiority. The recommended point is the evaluated point with the largest posterior mean.
A model claims that it is better than another evaluated point if the model gives this a probability
of at least 90 %. For calibrated models, all records about the objective are made a second time with
the excess of spread attributed to the objective (see `CalibratedPosterior`).
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

# Number of a random stream, which must not change, see `framework.replicate`.
JUDGE = 40
NUM_SAMPLES = 4096

# The smallest probability at which superiority is claimed.
CLAIM = 0.9

# Suffix of records for which the excess of spread is attributed to the objective.
EXCESS = "_excess"


def replicate(problem: Problem, method: Method, seed: int) -> Result:
    """Run ``method`` on ``problem`` and test the claims of its last model."""
    return JudgedReplicate(problem, method, seed).run()


class JudgedReplicate(SequentialReplicate):
    """Sequential optimization of a landscape with Gaussian noise, whose last model is tested."""

    def judge(self, model: Model | None) -> None:
        """Record the coverage of new outcomes and claims of superiority as further extras.

        Extras with one entry: the ``spread`` of the objective over the box; the mean probability
        that a new outcome lies in its stated interval, at the evaluated points
        (``outcome_covered``) and in the box (``outcome_covered_in_box``). Extras with one entry for
        each evaluated point (``None`` for the recommended point): the stated probability that the
        recommended point is better (``superiority``), whether this is a claim (``claimed``), and
        whether the recommended point is truly ``better``.
        """
        super().judge(model)
        objective = self.problem.build
        if model is None or not self.by_mean or not isinstance(objective, NoisyLandscape):
            raise TypeError("Claims are tested for a model and a landscape with noise.")
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
    """The models whose statements about the objective are tested, by the suffix of the records."""
    if not isinstance(model, CalibratedModel):
        return {"": model}
    return {"": model, EXCESS: CalibratedModel(model.model, model.calibrator, excess="objective")}


@torch.no_grad()
def outcome_coverage(model: Model, X: Tensor, objective: NoisyLandscape) -> Tensor:
    """The true probability that the stated interval contains a new outcome.

    It is computed from the true distribution, without draws: ``n`` values for ``n x d`` points.
    """
    tails = torch.tensor([ALPHA / 2, 1 - ALPHA / 2], dtype=X.dtype)
    # Each point is a batch, since only marginals are needed.
    bounds = model.posterior(X.unsqueeze(-2), observation_noise=True).quantile(tails).flatten(1)
    truth = torch.distributions.Normal(objective.landscape(X), noise_deviation(objective, X))
    lower, upper = truth.cdf(bounds.T).unbind(-1)
    return upper - lower


@torch.no_grad()
def superiority(model: Model, X: Tensor, index: int) -> Tensor:
    """The stated probabilities ``n`` that point ``index`` of ``n x d`` is better than each point.

    They come from joint samples. Their standard error is 0.005 at a probability of 90 %.
    """
    samples = model.posterior(X).rsample(torch.Size([NUM_SAMPLES])).squeeze(-1)
    return (samples[:, index, None] > samples).double().mean(dim=0)


def _but(index: int, values: Tensor) -> list[float | None]:
    """The values of all points except one, which becomes ``None``."""
    return [None if i == index else v for i, v in enumerate(values.double().tolist())]


# ------------------------------------------------------------ scores


@dataclass(frozen=True)
class Share:
    """The mean of a record; NaN if a run does not have it.

    Args:
        name: The name of the record.
    """

    name: str

    def __call__(self, result: Result) -> float:
        if self.name not in result.extras:
            return math.nan
        values = trace(result, self.name)
        return math.fsum(values) / len(values)


@dataclass(frozen=True)
class Claims:
    """The number of claims of superiority in a run, or the number of false claims.

    Args:
        over: The points with which the recommended point is compared: ``"start"`` (the initial
            point with the largest outcome), ``"incumbent"`` (the point with the largest outcome)
            or ``"visited"`` (all evaluated points). It is not compared with itself.
        ending: `EXCESS` for statements with the excess attributed to the objective.
        false: Whether to count false claims only.
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


# The last regrets with the digits that their logarithms need, and flags.
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
