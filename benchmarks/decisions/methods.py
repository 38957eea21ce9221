"""The methods of the suites on decisions: ways to state the outcome's quantile that decides.

All but the learners take the quantile of a Gaussian, ``mean + k z deviation`` with ``z`` that of
the level:

* ``plain``: ``k = 1``, what the Gaussian process states.
* ``wide``: ``k = 1.5``, a margin of safety by hand.
* ``loo``: ``k^2`` is the mean square of the leave-one-out residuals so far.
* ``plain_075``, ``plain_200`` and ``plain_300``: ``k`` in percent. Which of them violates the limit
  as often as another method does is known in hindsight alone: they are not rivals, but what rewards
  are compared with.

Learners, kept from round to round:

* ``budget``: `ChanceConstraint` at its defaults.
* ``budget_sharp``: likewise, with hyperparameters that were given corrected by `sharpened` in every
  fifth round. Where the task fits its Gaussian process anyway it is ``budget`` over again.
* ``budget_spread``: likewise, with noise by input, learned in every fifth round by
  `with_learned_spread`.
* ``misses``: the rule before it, `rule_of_misses`.

What is recommended in the end is ``recommend``'s choice for learners, at a confidence of 95 %, and
for the others the certified point with the best mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from botorch.models import SingleTaskGP
from torch import Tensor

from benchmarks.decisions.replicate import Certifier, DecisionMethod, Limited, Unlearning
from benchmarks.decisions.rule_of_misses import RuleOfMisses
from benchmarks.framework.surrogates import Fixed, Sharpened, SpreadLearned, Surrogate
from botorch_calib import ChanceConstraint
from botorch_calib.decisions import budget, widening
from botorch_calib.models import loo_residuals
from botorch_calib.models.sharpened_hyperparameters import EVIDENCE, LENGTHSCALE_WIDTH, NOISE_WIDTH

# Rounds from one correction of given hyperparameters to the next, and how far these are trusted.
SHARPENING = (5, NOISE_WIDTH, LENGTHSCALE_WIDTH, EVIDENCE)

# Factors of the plain quantile that are no methods of their own.
MULTIPLES = (0.75, 2.0, 3.0)


@dataclass(frozen=True)
class GaussianQuantile(DecisionMethod):
    """The Gaussian's quantile times a factor, the same throughout.

    Args:
        name: Names the method.
        factor: The factor.
    """

    factor: float = 1.0

    def start(self, outcome: Limited) -> Certifier:
        return Unlearning(lambda gp, time: fixed_width(gp, outcome, self.factor))


@dataclass(frozen=True)
class LeaveOneOut(DecisionMethod):
    """The Gaussian's quantile times the root mean square of leave-one-out residuals.

    Args:
        name: Names the method.
    """

    def start(self, outcome: Limited) -> Certifier:
        return Unlearning(lambda gp, time: fixed_width(gp, outcome, leave_one_out_factor(gp)))


def leave_one_out_factor(gp: SingleTaskGP) -> float:
    """The factor of all deviations with which leave-one-out residuals have the variance 1."""
    return float(loo_residuals(gp).square().mean().sqrt())


def fixed_width(gp: SingleTaskGP, outcome: Limited, factor: float) -> ChanceConstraint:
    """The limit by ``factor`` times the Gaussian's own quantile, without a budget."""
    return ChanceConstraint(
        gp, outcome.limit, level=outcome.level, width=factor, budget=math.inf, rows=()
    )


@dataclass(frozen=True)
class Budgeted(DecisionMethod):
    """A chance constraint at its defaults, carried on from round to round.

    Args:
        name: Names the method.
        sharpening: Rounds from one correction of given hyperparameters to the next, and the
            settings of `sharpened`; ``None`` leaves them as they are.
        confidence: With which the point that is recommended is safe.
        constants: Those of the rule, in the package, so that changed ones are noticed.
    """

    sharpening: tuple[int, float, float, float] | None = None
    confidence: float | None = 0.95
    constants: tuple[float, ...] = (
        *(budget.SIZE, widening.START, widening.GAIN, widening.RELIEF),
        *(budget.MOST_RELIEF, budget.LEAST_EXCESS),
        *(widening.PRIOR_COUNT, widening.SMOOTHING, widening.OF_ONE_POINT),
    )

    def surrogate(self, given: Surrogate) -> Surrogate:
        if self.sharpening is not None and isinstance(given, Fixed):
            return Sharpened(given, self.sharpening[0], self.sharpening[1:])
        return given

    def start(self, outcome: Limited) -> Certifier:
        return Learning(outcome, ChanceConstraint)


@dataclass(frozen=True)
class ByMisses(DecisionMethod):
    """The rule before, see `rule_of_misses`, carried on from round to round.

    Args:
        name: Names the method.
        confidence: With which the point that is recommended is safe.
    """

    confidence: float | None = 0.95

    def start(self, outcome: Limited) -> Certifier:
        return Learning(outcome, RuleOfMisses)


@dataclass(frozen=True)
class SpreadBudgeted(Budgeted):
    """A chance constraint on a process whose noise by input is learned.

    Args:
        every: Rounds from one learning to the next.
    """

    every: int = 5

    def surrogate(self, given: Surrogate) -> Surrogate:
        return SpreadLearned(super().surrogate(given), self.every)


SPREAD = SpreadBudgeted("budget_spread", SHARPENING)


class Learning:
    """Keeps one constraint.

    Args:
        outcome: The outcome.
        kind: The class of the constraint.
    """

    def __init__(self, outcome: Limited, kind: type[ChanceConstraint]) -> None:
        self.outcome, self.kind = outcome, kind
        self.kept: ChanceConstraint | None = None

    def constraint(self, gp: SingleTaskGP, time: float = 1.0) -> ChanceConstraint:
        if self.kept is None:
            self.kept = self.kind(gp, self.outcome.limit, level=self.outcome.level, rows=())
        else:
            self.kept = self.kept.with_model(gp)
        return self.kept

    def observe(self, constraint: ChanceConstraint, x: Tensor, y: Tensor) -> None:
        # The next round has a model of all data, so this one need not be conditioned.
        constraint.decide(x)  # a point may come again, with an equal outcome
        constraint.observe(x, y, condition=False)


# ------------------------------------------------------------ those that are compared

DecisionMethods = tuple[GaussianQuantile | LeaveOneOut | ByMisses | Budgeted, ...]


def budgeted() -> DecisionMethods:
    """The methods of suite `decisions_budget`, and the multiples of the plain quantile."""
    return (
        Budgeted("budget_sharp", SHARPENING),
        Budgeted("budget"),
        ByMisses("misses"),
        GaussianQuantile("plain"),
        GaussianQuantile("wide", factor=1.5),
        *multiples(),
    )


def multiples() -> tuple[GaussianQuantile, ...]:
    """The plain quantile times other factors."""
    return tuple(GaussianQuantile(f"plain_{100 * k:03.0f}", factor=k) for k in MULTIPLES)


def factors() -> dict[str, float]:
    """The factors of the plain quantile that are run, by the names of their methods, in order."""
    found = {
        method.name: method.factor for method in budgeted() if isinstance(method, GaussianQuantile)
    }
    return dict(sorted(found.items(), key=lambda item: item[1]))
