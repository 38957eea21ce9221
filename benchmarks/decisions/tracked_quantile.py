"""The rule of chance constraints before the budget: a quantile tracked from the rounds it decided.

Kept to compare with, for one upper limit and one point a round. The tracker's constant ``c`` moves
by ``eta (p - o)`` with each certified outcome, ``o`` being 1 if it was within the quantile, and an
integral term makes up for misses in excess of the stated share. From the fourth round in a row
without a certified point on, these teach as well as long as

    ``V + (1 - p) <= (1 - p) T + (c - a) / eta``

with ``a`` the lower end of the interval that the constant stays in. Of the first ``T`` certified
rounds at most ``(1 - p) T + (1 + eta) / eta`` then violate the limit.
"""

from __future__ import annotations

import math

import torch
from botorch.models import SingleTaskGP
from torch import Tensor

from botorch_calib import CalibratedModel, ChanceConstraint
from botorch_calib.calibration import OnlineQuantileTracker, QuantileRecalibrator
from botorch_calib.decisions.chance_constraint import spread_of, stated_outcomes

INTEGRAL_GAIN = 0.05
STEP_SIZE = 0.05
LEEWAY, PATIENCE = 0.5, 3


class TrackedConstraint(ChanceConstraint):
    """The limit by the calibrator's own quantile, and a search for the largest margin."""

    def margins(self, X: Tensor, confidence: float | None = None) -> list[Tensor]:
        """At most minus one standard deviation where the quantile is at its cap."""
        outcome = spread_of(stated_outcomes(self.model, X))
        calibrator = self.model.calibrator
        score = calibrator.quantile(self.model.transform_inputs(X), self.level)
        ((_, upper),) = self.limits.values()
        assert upper is not None
        margin = upper - outcome.center - outcome.deviation * score.flatten()
        at_cap = score.flatten() >= calibrator.max_width
        return [torch.where(at_cap, torch.minimum(margin, -outcome.deviation), margin)]

    optimism = ChanceConstraint.margin


class TrackedQuantile:
    """One limit, from round to round.

    Args:
        limit: The upper limit.
        level: Stated probability of being below it.
        calibrator: Has learned nothing; its tracker has the one level.
        integral_gain: How fast misses in excess are made up for.
    """

    def __init__(
        self,
        limit: float,
        level: float,
        calibrator: QuantileRecalibrator,
        integral_gain: float = INTEGRAL_GAIN,
    ) -> None:
        self.limit, self.level, self.calibrator = limit, level, calibrator
        self.integral_gain = integral_gain
        self.num_certified = self.num_violations = self.num_misses = self.num_idle = 0
        self.ends: tuple[float, float] | None = None

    def constraint(self, gp: SingleTaskGP, time: float = 1.0) -> TrackedConstraint:
        if self.ends is None:
            model = CalibratedModel.from_history(gp, self.calibrator, denoise=False)
            self.calibrator = model.calibrator  # type: ignore[assignment]
            self.ends = self._reach()
        model = CalibratedModel(gp, self.calibrator, denoise=False)
        return TrackedConstraint(model, self.limit, level=self.level, budget=math.inf, rows=())

    @property
    def _tracker(self) -> OnlineQuantileTracker:
        tracker = self.calibrator.tracker
        assert isinstance(tracker, OnlineQuantileTracker)
        return tracker

    def _reach(self) -> tuple[float, float]:
        """The interval that the constant stays in: it rises only below a threshold of 1.

        A localized tracker's terms add up to ``max(p, 1 - p) / regularization`` at the most, or to
        what they are at the start.
        """
        tracker = self._tracker
        c, local, eta = float(tracker.constants), 0.0, next_step(tracker)
        if tracker.localized:
            bound = max(self.level, 1.0 - self.level) / tracker.regularization
            local = tracker.scale * max(float(tracker.coefficients.abs().sum()), bound)
        return min(c, -local - eta * (1.0 - self.level)), max(c, 1.0 + local + eta * self.level)

    @torch.no_grad()
    def observe(self, constraint: ChanceConstraint, x: Tensor, y: Tensor) -> None:
        assert self.ends is not None
        margin = float(constraint.margin(x.unsqueeze(0)))
        certified, outcome = margin >= 0.0, float(y)
        violated = certified and outcome > self.limit
        quantile, tracker = self.limit - margin, self._tracker
        share, eta = 1.0 - self.level, next_step(tracker)
        low, high = self.ends
        spare = share * self.num_certified + (float(tracker.constants) - low) / eta
        spare -= self.num_violations
        if certified or (self.num_idle >= PATIENCE and spare >= share):
            at = spread_of(stated_outcomes(constraint.model, x.unsqueeze(0)))
            z = (y.flatten() - at.center) / at.deviation
            if violated:  # beyond the quantile, whatever the last digit says
                z = torch.full_like(z, torch.finfo(z.dtype).max)
            self.calibrator.update(constraint.model.transform_inputs(x), z)
        self.num_idle = 0 if certified else self.num_idle + 1
        if not certified:
            return
        self.num_certified += 1
        self.num_violations += violated
        self.num_misses += violated or outcome > quantile
        excess = self.integral_gain * (self.num_misses - share * self.num_certified)
        move = eta * min(max(excess, -LEEWAY * share), LEEWAY * share)
        # Never out of the interval, nor back into it where several outcomes have left it.
        c = float(tracker.constants)
        moved = max(c, min(c + move, high)) if move > 0.0 else min(c, max(c + move, low))
        tracker.constants = torch.full_like(tracker.constants, moved)


def next_step(tracker: OnlineQuantileTracker) -> float:
    """Step size of the next observation."""
    return float(tracker.step_size * (tracker.num_updates + 1) ** -tracker.step_decay)
