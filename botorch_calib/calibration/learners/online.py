"""`OnlineQuantileTracker`: quantiles tracked by online descent of the pinball loss.

`descend` updates many independent *columns* in one loop over the observations. Each column is a
threshold function. It belongs to a level of a single tracker, or to a level of a member of a bank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_calib._validation import check_count, check_nonnegative, check_positive
from botorch_calib.calibration.learners.quantile_learner import QuantileLearner, Thresholds
from botorch_calib.calibration.learners.radial_sum import RadialSum, gaussian_correlation


class OnlineQuantileTracker(QuantileLearner):
    r"""Tracks thresholds ``theta_j(x)`` with a fraction ``p_j`` of the scores at or below them.

    It is used for localized online conformal prediction (LOCBO, one level) and for quantile
    recalibration (OCBO and OCBO-L, many levels). The threshold function (LOCBO eq. 24) is

        ``theta_t(x) = c + sum_i B_i k(x_i, x)``,
        ``k(x, x') = scale * exp(-|x - x'|^2 / lengthscale^2)``.

    Step ``t``, with ``o = 1{u_t <= theta_t(x_t)}`` and ``eta_t = step_size * t^{-step_decay}``,
    descends the pinball loss (LOCBO eq. 28):

        ``delta = eta_t (p - o)``,  ``c <- c + delta``,
        ``B <- (1 - regularization * eta_t) B``,  then ``delta`` is appended to ``B``.

    The sign is from OCBO's Lemma 4: ``mean(o)`` converges to ``p``. The printed formulas have
    errors: OCBO's running sum has the opposite sign and diverges, and LOCBO eq. 21 drives
    ``mean(o)`` to ``1 - p``, in contradiction to its eq. 22. OCBO starts every quantile at 0; here
    ``c`` starts at ``initial``, by default at ``p``, the threshold of a calibrated model.

    **Guarantee.** For *any* sequence ``(x_t, u_t)`` with ``u_t`` in [0, 1], even an adversarial
    one, ``|mean(o) - p| <= coverage_bound(T)`` after ``T`` steps (:meth:`coverage_bound`). Without
    localization this bound is at most ``(1 + 2 eta_1) / (T eta_T)``. With localization and ``eta_t
    = eta_1 t^{-1/2}``, LOCBO's Lemma 1 holds too: the share of misses (``o = 0``) is at most ``1 -
    p + beta / sqrt(T) + scale``, with the lemma's constant ``beta``. Without regularization and
    decay (``eta_t = eta``), coverage is also local. Let ``g`` be the sum over centers in
    ``theta``. Around every ``x`` the kernel-weighted error ``sum_t (p - o_t) k(x_t, x) / T`` equals
    ``g_{T+1}(x) / (eta T)``, and is of order ``1 / sqrt(T)``.

    Thresholds are raw: they may be outside [0, 1], and thresholds of neighbouring levels may cross.
    They are clamped and sorted when a distribution is built. Clamping or sorting them in the
    tracker would void the guarantee. A state dict does not contain the step size, the kernel or the
    regularization.

    Args:
        levels: Strictly increasing levels in (0, 1), ``M``.
        step_size: ``eta_1``, the first step.
        step_decay: Exponent of the decay of steps. With 0 the tracker keeps adapting to drift.
        scale: ``k(x, x)``, the strength of localization; with 0 no centers are stored.
        lengthscale: Lengthscale of ``k``; with infinity ``k`` is the constant ``scale``.
        regularization: Rate at which local corrections decay; ``regularization * step_size`` must
            be less than 1.
        initial: Initial constants in [0, 1], of shape ``M`` (default: ``levels``).

    Example:
        >>> tracker = OnlineQuantileTracker(levels=[0.9], step_size=0.05)
        >>> before = tracker.update(torch.zeros(50, 2), torch.rand(50))  # thresholds, 50 x 1
        >>> theta = tracker.threshold(torch.zeros(1, 2))
    """

    constants: Tensor
    coefficients: Tensor

    def __init__(
        self,
        levels: Tensor | Sequence[float],
        step_size: float,
        step_decay: float = 0.0,
        scale: float = 0.0,
        lengthscale: float = math.inf,
        regularization: float = 0.0,
        initial: Tensor | Sequence[float] | None = None,
    ) -> None:
        super().__init__(levels, initial)
        self.step_size = check_positive("step_size", step_size)
        self.step_decay = check_nonnegative("step_decay", step_decay)
        self.scale = check_nonnegative("scale", scale)
        self.lengthscale = check_positive("lengthscale", lengthscale, allow_inf=True)
        self.regularization = check_nonnegative("regularization", regularization)
        if self.regularization * self.step_size >= 1.0:
            raise InputDataError(
                "`regularization * step_size` must be less than 1, got "
                f"{self.regularization} * {self.step_size}."
            )
        self.register_buffer("constants", self.initial.clone())

    @property
    def localized(self) -> bool:
        return self.scale > 0.0

    @property
    def shortest_lengthscale(self) -> float:
        return self.lengthscale if self.localized else math.inf

    def _derive(self) -> Thresholds:
        if not len(self.centers):
            return Thresholds(self.constants)
        coefficients = self.scale * self.coefficients
        radial = RadialSum(self.constants, self.centers, [self.lengthscale], coefficients)
        return Thresholds(self.constants, radial)

    def extra_repr(self) -> str:
        local = f", scale={self.scale:g}, lengthscale={self.lengthscale:g}"
        return (
            f"levels={[round(level, 6) for level in self.levels.tolist()]}, "
            f"step_size={self.step_size:g}, step_decay={self.step_decay:g}"
            f"{local if self.localized else ''}, regularization={self.regularization:g}"
        )

    def reset(self) -> None:
        super().reset()
        self.constants = self.initial.clone()

    def coverage_bound(self, num_steps: int) -> Tensor:
        r"""Return a bound on ``|mean(o) - p|`` of each level after the first ``num_steps`` steps.

        The bound holds for every sequence, localized or not. Let ``m = max(p, 1 - p)``, and let
        ``c`` be the constants. Since ``p - o_t = (c_{t+1} - c_t) / eta_t`` and steps do not
        increase, summation by parts gives ``|mean(o) - p| <= R / (T eta_T)``, where ``R`` is the
        length of any interval that contains ``c_1, ..., c_{T+1}``. The smaller of two such lengths
        is used:

        * With regularization (or ``scale = 0``), ``sum_i |B_i| <= m / regularization``, so the
          local part is at most ``G = scale m / regularization``. A threshold outside [0, 1] is
          pushed back, hence ``R = 1 + 2 G + eta_1``.
        * In all cases, the squared norm ``(c - 1/2)^2 + |g|^2`` starts at 1/4 or less, and grows by
          at most ``eta_t m + eta_t^2 m^2 (1 + 2 scale)`` per step. ``R`` is twice the square root
          of the sum of 1/4 and these terms.
        """
        check_count("num_steps", num_steps)
        m = torch.maximum(self.levels, 1.0 - self.levels)
        times = torch.arange(1, num_steps + 1, dtype=torch.double, device=m.device)
        eta = self.step_size * times.pow(-self.step_decay)
        # The second length of the docstring, then the first one if it applies
        growth = m * eta.sum() + m.square() * eta.square().sum() * (1.0 + 2.0 * self.scale)
        length = 2.0 * (0.25 + growth).sqrt()
        if self.scale == 0.0 or self.regularization > 0.0:
            local = self.scale * m / self.regularization if self.scale else torch.zeros_like(m)
            length = torch.minimum(length, 1.0 + 2.0 * local + self.step_size)
        return (length / (num_steps * eta[-1])).to(self.levels)

    def _learn(self, X: Tensor, u: Tensor) -> Tensor:
        times = range(self.num_updates + 1, self.num_updates + 1 + len(u))
        steps = [self.step_size * math.pow(t, -self.step_decay) for t in times]
        shrink = [1.0 - self.regularization * step for step in steps]
        column = torch.tensor(steps, dtype=u.dtype, device=u.device).unsqueeze(-1)
        state = self.constants, self.centers, self.coefficients
        scale = self.levels.new_tensor([self.scale])
        local = [Localization(slice(None), self.lengthscale)] if self.localized else []
        found = descend(X, u, self.levels, column, shrink, state, scale, local)
        thresholds, self.constants, coefficients = found
        self._store(X, coefficients)
        return thresholds


# ------------------------------------------------------------ the descent, without state


class Localization(NamedTuple):
    """Columns that share a kernel ``scale * exp(-|x - x'|^2 / lengthscale^2)``."""

    columns: slice
    lengthscale: float


def descend(
    X: Tensor,
    u: Tensor,
    levels: Tensor,
    steps: Tensor,
    shrink: Sequence[float],
    state: tuple[Tensor, Tensor, Tensor],
    scale: Tensor,
    localizations: Sequence[Localization],
) -> tuple[Tensor, Tensor, Tensor]:
    """Descend the pinball loss of ``C`` columns through ``n`` observations.

    Args:
        X: Inputs ``n x d``.
        u: Scores ``n``.
        levels: Levels ``C``.
        steps: Steps ``n x C`` or ``n x 1``.
        shrink: Factors ``n``; each step multiplies earlier coefficients by its factor.
        state: Constants ``C``, centers ``t x d`` and coefficients ``t x C``.
        scale: ``k(x, x)`` of each column, of shape ``C`` or 1.
        localizations: The columns that have a local part.

    Returns:
        The thresholds before each observation, ``n x C``, and the constants ``C`` and coefficients
        ``(t + n) x C`` at the end (``t x C`` without localization).
    """
    constants, centers, coefficients = state
    # delta = eta (p - o) has two possible values, which are computed before the loop.
    hits, misses = steps * (levels - 1.0), steps * levels
    if not len(u):
        return hits, constants, coefficients
    # The loop updates the local part at the new points only.
    local, parts = X.new_zeros(len(X), len(levels)), []
    for columns, lengthscale in localizations:
        part = local[:, columns]
        if len(centers):
            correlation = gaussian_correlation(X, centers, lengthscale)
            part.copy_(correlation @ (coefficients * scale)[:, columns])
        # `unbind` splits the rows once: indexing in the loop would cost more than the arithmetic.
        parts.append((columns, part, gaussian_correlation(X, X, lengthscale).unbind()))
    thresholds, deltas = [], []
    for i, (u_i, hit, miss) in enumerate(
        zip(u.unbind(), hits.unbind(), misses.unbind(), strict=True)
    ):
        theta = constants + local[i] if parts else constants
        delta = torch.where(u_i <= theta, hit, miss)
        constants = constants + delta
        thresholds.append(theta)
        deltas.append(delta)
        if parts:
            move = delta * scale
            for columns, part, kernel in parts:
                part.addr_(kernel[i], move[columns], beta=shrink[i])
    if parts:
        # Row i is the product of the factors of step i and all later steps. It multiplies all
        # coefficients made before step i.
        remaining = u.new_tensor([*shrink, 1.0]).flip(0).cumprod(0).flip(0).unsqueeze(-1)
        increments = torch.stack(deltas) * remaining[1:]
        coefficients = torch.cat([coefficients * remaining[0], increments])
    return torch.stack(thresholds), constants, coefficients
