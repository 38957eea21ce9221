"""`OnlineQuantileTracker`: quantiles tracked by online descent of the pinball loss.

`descend` updates many independent *columns* in one loop over the observations. A column is one
threshold function. A single tracker has a column for each level, and a bank of trackers
(`AggregatedQuantileTracker`) has a column for each level of each tracker. LOCBO is [Kim2024locbo],
OCBO is [Deshpande2024], and OCBO-L is the localized form of OCBO.
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

    The tracker is used for localized online conformal prediction (LOCBO, one level) and for
    quantile recalibration (OCBO and OCBO-L, many levels). Each level ``p`` has its own threshold
    function (LOCBO eq. 24)

        ``theta_t(x) = c_t + sum_{i < t} B_i k(x_i, x)``,
        ``k(x, x') = scale * exp(-|x - x'|^2 / lengthscale^2)``,

    with a constant ``c_t`` and coefficients ``B_i`` at the inputs ``x_i`` of earlier observations
    (the centers). Step ``t`` learns from the score ``u_t`` at ``x_t``. With the outcome ``o_t =
    1{u_t <= theta_t(x_t)}`` and the step size ``eta_t = step_size * t^{-step_decay}``, it descends
    the pinball loss (LOCBO eq. 28):

        ``delta = eta_t (p - o_t)``,  ``c_{t+1} = c_t + delta``,
        ``B <- (1 - regularization * eta_t) B``,  then ``delta`` is appended to ``B``.

    The sign is from OCBO's Lemma 4: ``mean(o)``, the mean of ``o_1, ..., o_T``, converges to ``p``.
    The printed formulas have errors: OCBO's running sum has the opposite sign and diverges, and
    LOCBO eq. 21 drives ``mean(o)`` to ``1 - p``, in contradiction to its eq. 22. OCBO starts every
    quantile at 0; here ``c_1`` is ``initial``, by default ``p``, the threshold of a calibrated
    model.

    **Guarantee.** For *any* sequence ``(x_t, u_t)`` with ``u_t`` in [0, 1], even an adversarial
    sequence, ``|mean(o) - p| <= coverage_bound(T)`` after ``T`` steps (:meth:`coverage_bound`).
    Without localization this bound is at most ``(1 + 2 eta_1) / (T eta_T)``. With localization and
    ``eta_t = eta_1 t^{-1/2}``, LOCBO's Lemma 1 holds too: the share of misses (``o_t = 0``) is at
    most ``1 - p + beta / sqrt(T) + scale``, with the lemma's constant ``beta``. Without
    regularization and decay (``eta_t = eta``), coverage is also local. Let ``g_t`` be the local
    part of the threshold, ``theta_t(x) = c_t + g_t(x)``. Around every ``x`` the kernel-weighted
    error ``sum_t (p - o_t) k(x_t, x) / T`` equals ``g_{T+1}(x) / (eta T)``, and is of order
    ``1 / sqrt(T)``.

    Thresholds are raw: they may be outside [0, 1], and thresholds of neighbouring levels may cross.
    They are clamped and sorted when a distribution is built. Clamping or sorting them in the
    tracker would void the guarantee. A state dict does not contain the step size, the kernel or the
    regularization.

    Args:
        levels: Strictly increasing levels in (0, 1), ``M``.
        step_size: The first step size, ``eta_1``.
        step_decay: Exponent with which step sizes decay. With 0 the tracker keeps adapting to
            drift.
        scale: ``k(x, x)``, the strength of localization; with 0 no centers are stored.
        lengthscale: Lengthscale of ``k``; with infinity ``k`` is the constant ``scale``.
        regularization: Rate at which the coefficients ``B`` decay; ``regularization * step_size``
            must be less than 1.
        initial: Initial constants ``c_1`` in [0, 1], of shape ``M`` (default: ``levels``).

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
        return Thresholds(RadialSum(self.constants, self.centers, [self.lengthscale], coefficients))

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
        r"""Return, for each level ``p``, an upper bound on ``|mean(o) - p|``, of shape ``M``.

        Here ``mean(o)`` is the fraction of the first ``T = num_steps`` scores that were at or below
        the threshold (notation as in the class docstring). The bound is valid for every sequence of
        inputs and of scores in [0, 1], with and without localization.

        **Proof.** Let ``m = max(p, 1 - p)``. The step sizes ``eta_t`` never increase, and ``p - o_t
        = (c_{t+1} - c_t) / eta_t``. Therefore summation by parts gives ``|mean(o) - p| <= R / (T
        eta_T)``, where ``R`` is the length of any interval that contains all constants ``c_1, ...,
        c_{T+1}``. The result uses the smaller of two lengths ``R``:

        * With regularization, the coefficients satisfy ``sum_i |B_i| <= m / regularization``, so
          the local part of the threshold is at most ``G = scale m / regularization``. (If ``scale``
          is 0, ``G`` is 0.) A threshold above 1 makes ``c`` decrease, as the outcome is then 1, and
          a threshold below 0 makes ``c`` increase. Hence ``R = 1 + 2 G + eta_1``.
        * In all cases, let ``|g|^2 = sum_ij B_i B_j k(x_i, x_j)`` be the squared norm of the local
          part. The sum ``(c - 1/2)^2 + |g|^2`` is at most 1/4 at the start, and step ``t``
          increases it by at most ``eta_t m + eta_t^2 m^2 (1 + 2 scale)``. ``R`` is twice the square
          root of the resulting bound on this sum.
        """
        check_count("num_steps", num_steps)
        m = torch.maximum(self.levels, 1.0 - self.levels)
        times = torch.arange(1, num_steps + 1, dtype=torch.double, device=m.device)
        eta = self.step_size * times.pow(-self.step_decay)
        # `length` is R: first the length for all cases, then the other length if it applies.
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
    """Columns (see the module) whose kernels ``k`` have the same lengthscale."""

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

    A column is one threshold function, ``c + sum_i B_i k(x_i, x)``, with a constant ``c``,
    coefficients ``B_i`` at centers ``x_i`` and a kernel ``k``: see `OnlineQuantileTracker`.

    Args:
        X: Inputs ``n x d``, in the order of observation.
        u: Scores ``n``.
        levels: Level of each column, ``C``.
        steps: Step sizes ``n x C``, or ``n x 1`` if they are the same for all columns.
        shrink: ``n`` factors, one for each step, by which earlier coefficients are multiplied.
        state: Constants ``C``, centers ``t x d`` and coefficients ``t x C`` before the first step.
        scale: ``k(x, x)`` of each column, of shape ``C``, or of shape 1 for all columns.
        localizations: The columns that have coefficients, grouped by lengthscale.

    Returns:
        The thresholds before each observation, ``n x C``, and after the last step the constants,
        ``C``, and the coefficients, ``(t + n) x C`` (unchanged without localization).
    """
    constants, centers, coefficients = state
    # An update, eta (p - o), has one of two values: o is 1 if the score does not exceed the
    # threshold, otherwise 0. Both values are computed before the loop, to save time in the loop.
    hits, misses = steps * (levels - 1.0), steps * levels
    if not len(u):
        return hits, constants, coefficients
    # The loop needs the local part of the thresholds at the new points only, and updates it there.
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
        # Element i is the product of the factors of step i and of all later steps. Coefficients
        # made before step i shrink by this product: old coefficients by element 0, and the
        # coefficient of step i by element i + 1.
        remaining = u.new_tensor([*shrink, 1.0]).flip(0).cumprod(0).flip(0).unsqueeze(-1)
        increments = torch.stack(deltas) * remaining[1:]
        coefficients = torch.cat([coefficients * remaining[0], increments])
    return torch.stack(thresholds), constants, coefficients
