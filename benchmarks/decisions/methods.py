"""The methods of suite `decisions`: ways to state the outcome's quantile that decides.

All but the last two take the quantile of a Gaussian, ``mean + k z deviation`` with ``z`` that of
the level:

* ``plain``: ``k = 1``, what the Gaussian process states.
* ``wide``: ``k = 1.5``, a margin of safety by hand.
* ``loo``: ``k^2`` is the mean square of the leave-one-out residuals so far.
* ``refit``: ``k = 1``, and the noise variance is a parameter fitted in every tenth round, whatever
  was given. Where the task fits its Gaussian process anyway it is ``plain`` over again.
* ``plain_050``, ``plain_075``, ``plain_200`` and ``plain_300``: ``k`` in percent. Which of them
  violates the limit as often as another method does is known in hindsight alone: they are not
  rivals, but what rewards are compared with.
* ``recalibrated``: `ChanceConstraint.from_history` at its defaults, kept from round to round.
* ``localized``: likewise, with a quantile that depends on the inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist

import torch
from botorch.models import SingleTaskGP
from torch import Tensor

from benchmarks.decisions.replicate import Certifier
from benchmarks.decisions.tasks import REFIT_EVERY, LimitedOutcome
from benchmarks.framework.surrogates import Fixed, NoiseRefitted, Surrogate
from botorch_calib import CalibratedModel, ChanceConstraint
from botorch_calib.calibration import Calibrator, QuantileRecalibrator
from botorch_calib.decisions.chance_constraints import INTEGRAL_GAIN, STEP_SIZE
from botorch_calib.models import loo_residuals

# Factors of the plain quantile that are no methods of their own.
MULTIPLES = (0.5, 0.75, 2.0, 3.0)


@dataclass(frozen=True)
class GaussianQuantile:
    """The Gaussian's quantile times a factor, the same throughout.

    Args:
        name: Names the method.
        factor: The factor.
        noise_every: Rounds from one fit of the noise variance to the next, where the task gives it;
            ``None`` leaves it as given.
    """

    name: str
    factor: float = 1.0
    noise_every: int | None = None

    def surrogate(self, given: Surrogate) -> Surrogate:
        """See `DecisionMethod`."""
        if self.noise_every is not None and isinstance(given, Fixed):
            return NoiseRefitted(given, self.noise_every)
        return given

    def start(self, outcome: LimitedOutcome) -> Certifier:
        """See `DecisionMethod`."""
        return Unlearning(outcome, lambda gp: self.factor)


@dataclass(frozen=True)
class LeaveOneOut:
    """The Gaussian's quantile times the root mean square of leave-one-out residuals.

    Args:
        name: Names the method.
    """

    name: str

    def surrogate(self, given: Surrogate) -> Surrogate:
        """See `DecisionMethod`."""
        return given

    def start(self, outcome: LimitedOutcome) -> Certifier:
        """See `DecisionMethod`."""
        return Unlearning(outcome, leave_one_out_factor)


def leave_one_out_factor(gp: SingleTaskGP) -> float:
    """The factor of all deviations with which leave-one-out residuals have the variance 1."""
    return float(loo_residuals(gp).square().mean().sqrt())


@dataclass(frozen=True)
class Unlearning:
    """States a multiple of the Gaussian's quantile, by the present model alone.

    Args:
        outcome: The outcome.
        factor: Maps the model to the multiple.
    """

    outcome: LimitedOutcome
    factor: Callable[[SingleTaskGP], float]

    def constraint(self, gp: SingleTaskGP) -> ChanceConstraint:
        """See `Certifier`."""
        quantile = fixed_quantile(self.outcome.level, self.factor(gp))
        model = CalibratedModel(gp, quantile, denoise=False)
        return ChanceConstraint(model, self.outcome.limit, level=self.outcome.level)

    def observe(self, constraint: ChanceConstraint, x: Tensor, y: Tensor) -> None:
        """There is nothing to learn."""


def fixed_quantile(level: float, factor: float) -> Calibrator:
    """A recalibrator that has learned nothing but to start at ``factor`` times the Gaussian's."""
    calibrator = QuantileRecalibrator([level])
    knot = torch.tensor([factor * NormalDist().inv_cdf(level)], dtype=torch.double)
    calibrator.tracker.constants = calibrator.score.signed(knot)
    return calibrator


@dataclass(frozen=True)
class Recalibrated:
    """A chance constraint that learns, carried on from round to round.

    Args:
        name: Names the method.
        calibrator: Makes its calibrator from a list of one level.
        integral_gain: How fast violations in excess are made up for.
    """

    name: str
    calibrator: Callable[[list[float]], Calibrator]
    integral_gain: float = INTEGRAL_GAIN

    def surrogate(self, given: Surrogate) -> Surrogate:
        """See `DecisionMethod`."""
        return given

    def start(self, outcome: LimitedOutcome) -> Certifier:
        """See `DecisionMethod`."""
        return Learning(outcome, self.calibrator, self.integral_gain)


class Learning:
    """Keeps one constraint, warmed up by the initial points and then taught by its own rounds.

    Args:
        outcome: The outcome.
        calibrator: See `Recalibrated`.
        integral_gain: See `Recalibrated`.
    """

    def __init__(
        self,
        outcome: LimitedOutcome,
        calibrator: Callable[[list[float]], Calibrator],
        integral_gain: float,
    ) -> None:
        self.outcome, self.integral_gain = outcome, integral_gain
        self.calibrator = calibrator([outcome.level])
        self.kept: ChanceConstraint | None = None

    def constraint(self, gp: SingleTaskGP) -> ChanceConstraint:
        """See `Certifier`."""
        if self.kept is None:
            self.kept = ChanceConstraint.from_history(
                gp,
                self.outcome.limit,
                level=self.outcome.level,
                calibrator=self.calibrator,
                integral_gain=self.integral_gain,
            )
        else:
            self.kept = self.kept.with_model(gp)
        return self.kept

    def observe(self, constraint: ChanceConstraint, x: Tensor, y: Tensor) -> None:
        """See `Certifier`."""
        # The next round has a model of all data, so this one need not be conditioned.
        constraint.observe(x, y, condition=False)


# ------------------------------------------------------------ those that are compared

DecisionMethods = tuple[GaussianQuantile | LeaveOneOut | Recalibrated, ...]


def compared() -> DecisionMethods:
    """The methods of the suite, and the multiples of the plain quantile."""
    # Settings are bound here, defaults of the package too, so that a changed one is noticed.
    learner = partial(QuantileRecalibrator, step_size=STEP_SIZE)
    # Lengthscale in units of the cube; forgetting is what the bound on the violations rests on.
    local = partial(learner, lengthscale=0.25, regularization=0.01)
    return (
        GaussianQuantile("plain"),
        GaussianQuantile("wide", factor=1.5),
        LeaveOneOut("loo"),
        GaussianQuantile("refit", noise_every=REFIT_EVERY),
        Recalibrated("recalibrated", learner),
        Recalibrated("localized", local),
        *multiples(),
    )


def multiples() -> tuple[GaussianQuantile, ...]:
    """The plain quantile times other factors."""
    return tuple(GaussianQuantile(f"plain_{100 * k:03.0f}", factor=k) for k in MULTIPLES)


def factors() -> dict[str, float]:
    """The factors of the plain quantile that are run, by the names of their methods, in order."""
    found = {
        method.name: method.factor
        for method in compared()
        if isinstance(method, GaussianQuantile) and method.noise_every is None
    }
    return dict(sorted(found.items(), key=lambda item: item[1]))
