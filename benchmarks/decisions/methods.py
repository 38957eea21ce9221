"""The methods of the suites on decisions, which state the quantile of the outcome that decides.

Some methods use a Gaussian quantile ``mean + k z deviation`` with the standard normal quantile
``z`` at the level:

* ``plain``: ``k = 1``, the quantile of the Gaussian process.
* ``wide``: ``k = 1.5``, a fixed safety margin.
* ``loo``: ``k^2`` is the mean square of the leave-one-out residuals so far.
* ``plain_075``, ``plain_200`` and ``plain_300``: the name has ``k`` in percent. Rewards of other
  methods are compared with the ``k`` that violates the limit equally often, which is only known in
  hindsight. These methods are therefore no competitors.

Other methods learn between rounds:

* ``budget``: `ChanceConstraint` at its defaults.
* ``budget_sharp``: ``budget``, with `sharpened` correcting given hyperparameters in every fifth
  round. It equals ``budget`` if the task fits its Gaussian process.
* ``budget_spread``: ``budget_sharp``, with a noise variance that depends on the input; it is
  learned in every fifth round by `with_learned_spread`.
* ``misses``: the previous rule, see `rule_of_misses`.

Methods that learn recommend a point with a confidence of 95 %, as ``recommend`` does. Other methods
recommend the certified point with the best mean.
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

# Number of rounds between corrections of given hyperparameters, and settings of `sharpened`.
SHARPENING = (5, NOISE_WIDTH, LENGTHSCALE_WIDTH, EVIDENCE)

# Factors of the plain quantile that only serve to compare rewards.
MULTIPLES = (0.75, 2.0, 3.0)


@dataclass(frozen=True)
class GaussianQuantile(DecisionMethod):
    """The Gaussian quantile with a fixed factor of the standard deviation.

    Args:
        name: The name, unique within a suite.
        factor: The factor.
    """

    factor: float = 1.0

    def start(self, outcome: Limited) -> Certifier:
        return Unlearning(lambda gp, time: fixed_width(gp, outcome, self.factor))


@dataclass(frozen=True)
class LeaveOneOut(DecisionMethod):
    """The Gaussian quantile with the root mean square of leave-one-out residuals as the factor.

    Args:
        name: The name, unique within a suite.
    """

    def start(self, outcome: Limited) -> Certifier:
        return Unlearning(lambda gp, time: fixed_width(gp, outcome, leave_one_out_factor(gp)))


def leave_one_out_factor(gp: SingleTaskGP) -> float:
    """The factor of standard deviations that gives leave-one-out residuals the variance 1."""
    return float(loo_residuals(gp).square().mean().sqrt())


def fixed_width(gp: SingleTaskGP, outcome: Limited, factor: float) -> ChanceConstraint:
    """A constraint with ``factor`` times the Gaussian quantile, without a budget."""
    return ChanceConstraint(
        gp, outcome.limit, level=outcome.level, width=factor, budget=math.inf, rows=()
    )


@dataclass(frozen=True)
class Budgeted(DecisionMethod):
    """A chance constraint at its defaults, continued in each round.

    Args:
        name: The name, unique within a suite.
        sharpening: Number of rounds between corrections of given hyperparameters, and settings
            of `sharpened`; ``None`` for no corrections.
        confidence: The confidence with which the recommended point is safe.
        constants: Constants of the package's rule, so that a change of them changes the
            configuration.
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
    """The previous rule, see `rule_of_misses`, continued in each round.

    Args:
        name: The name, unique within a suite.
        confidence: The confidence with which the recommended point is safe.
    """

    confidence: float | None = 0.95

    def start(self, outcome: Limited) -> Certifier:
        return Learning(outcome, RuleOfMisses)


@dataclass(frozen=True)
class SpreadBudgeted(Budgeted):
    """A chance constraint on a process whose noise depends on the input and is learned.

    Args:
        every: Number of rounds between updates of the noise.
    """

    every: int = 5

    def surrogate(self, given: Surrogate) -> Surrogate:
        return SpreadLearned(super().surrogate(given), self.every)


SPREAD = SpreadBudgeted("budget_spread", SHARPENING)


class Learning:
    """A certifier that continues one constraint in each round.

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
        # The next round has a model of all data, so the present model need not be conditioned.
        constraint.decide(x)  # a point may be chosen again and have an equal outcome
        constraint.observe(x, y, condition=False)


# ------------------------------------------------------------ methods of the suites

DecisionMethods = tuple[GaussianQuantile | LeaveOneOut | ByMisses | Budgeted, ...]


def budgeted() -> DecisionMethods:
    """The methods of suite `decisions_budget`, including multiples of the plain quantile."""
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
    """The factors of the plain quantile by the name of the method, in increasing order."""
    found = {
        method.name: method.factor for method in budgeted() if isinstance(method, GaussianQuantile)
    }
    return dict(sorted(found.items(), key=lambda item: item[1]))
