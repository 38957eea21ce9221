"""`WeightedConformal`: weighted conformal prediction, as in conformal Bayesian optimization."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from botorch_calib._validation import check_width
from botorch_calib.calibration.base import Calibrator, check_residuals
from botorch_calib.distributions.piecewise import MIN_HALF_WIDTH, PiecewisePredictive

# Relative slack of comparisons of sums of weights, so that rounding never skips a residual.
_SLACK = 1e-12


class WeightedConformal(Calibrator):
    r"""Weighted conformal prediction (CBO) [Kim2024locbo, section III-A, eqs. 11-14].

    With the densities ``p`` of the past inputs and ``p'`` of the next input, and their ratio
    ``w(x) = p'(x) / p(x)``, the half-width at ``x`` is the smallest ``s`` with

        ``sum_{i: |z_i| <= s} w(x_i) >= (1 - alpha) (w(x) + sum_i w(x_i))``,

    the weighted ``1 - alpha`` quantile of the past ``|z_i|`` and an infinite residual for ``x``
    itself (Tibshirani et al. 2019, corollary 1). LOCBO eq. 12 prints the mass ``w(x)`` of the
    infinite residual outside the fraction, but all masses have the same denominator. If no ``s`` is
    large enough, the half-width is `max_width` (in the paper, the interval is the whole line).

    The quantile jumps between residuals as ``x`` moves, where line searches fail. Therefore
    ``s / (1 + s)`` is interpolated linearly: while the right-hand side moves from one partial sum
    of the weights to the next, it moves from the quantile to the next larger residual. This
    increases the coverage by at most the weight of one residual.

    The interval contains ``y`` with a probability of at least ``1 - alpha`` if the past
    ``(x_i, y_i)`` are independent draws, all ``z_i`` come from one model that was not fitted to
    them, and ``w`` is right up to a factor. In an optimization, whose queries are not independent,
    it is a heuristic.

    Args:
        alpha: Miscoverage level, in (0, 1).
        density_ratio: The ratio ``w``, up to a factor. It maps inputs ``... x d`` of the base
            model's transformed space to positive values ``...``.
    """

    max_width = 50.0
    inputs: Tensor
    residuals: Tensor

    def __init__(self, alpha: float, density_ratio: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.alpha = alpha
        self.density_ratio = density_ratio
        # Before the first update the number of inputs is unknown: 0 means any number.
        self.register_buffer("inputs", torch.zeros(0, 0, dtype=torch.double))
        self.register_buffer("residuals", torch.zeros(0, dtype=torch.double))

    def half_width(self, X: Tensor) -> Tensor:
        """Half-width of the interval in predictive standard deviations, ``... x 1``."""
        check_width(X, self.inputs.shape[-1])
        X = X.to(self.inputs)
        if not self.num_updates:
            return X.new_full((*X.shape[:-1], 1), -NormalDist().inv_cdf(0.5 * self.alpha))
        sizes, order = self.residuals.abs().sort()
        sizes = pad(sizes, (0, 1), value=self.max_width).clamp(max=self.max_width)
        # The past weights do not depend on X, so they need no gradient.
        with torch.no_grad():
            sums = self.density_ratio(self.inputs)[order].double().cumsum(dim=-1)
        own = self.density_ratio(X).double()
        needed = (1.0 - self.alpha) * (1.0 - _SLACK) * (sums[-1] + own)
        index = torch.searchsorted(sums, needed.detach())
        # The partial sums on both sides; beyond the last residual the share is zero.
        below, above = pad(sums, (1, 0))[index], pad(sums, (0, 1), value=torch.inf)[index]
        share = (needed - below) / (above - below)
        # On the rational scale a cap of 50 is not far from a residual of 5, so that the half-width
        # approaches the cap only where nearly all mass is used.
        scores = sizes.double() / (1.0 + sizes.double())
        score = torch.lerp(scores[index], scores[(index + 1).clamp(max=len(sums))], share)
        # Rounding must not bring it below the quantile, which would lose ties.
        return torch.maximum((score / (1.0 - score)).to(sizes), sizes[index]).unsqueeze(-1)

    def predictive(self, X: Tensor) -> PiecewisePredictive:
        return self._predictive_from(self.half_width(X))

    def _predictive_from(self, half_width: Tensor) -> PiecewisePredictive:
        """The conformal distribution with half-widths that have been checked."""
        width = half_width.clamp(min=MIN_HALF_WIDTH)
        cap = self.max_width
        return PiecewisePredictive.conformal(self.alpha, width, cap, "stretched", validate=False)

    @torch.no_grad()
    def update(self, X: Tensor, z: Tensor) -> PiecewisePredictive:
        check_residuals(X, z)
        check_width(X, self.inputs.shape[-1])
        X, z = X.to(self.inputs), z.to(self.residuals)
        widths = X.new_empty(len(X), 1)
        for i in range(len(X)):
            widths[i] = self.half_width(X[i])
            inputs = self.inputs.reshape(-1, X.shape[-1])
            self.inputs = torch.cat([inputs, X[i : i + 1]])
            self.residuals = torch.cat([self.residuals, z[i : i + 1]])
        return self._predictive_from(widths)

    def reset(self) -> None:
        self.inputs, self.residuals = self.inputs.new_zeros(0, 0), self.residuals.new_zeros(0)

    @property
    def num_updates(self) -> int:
        return len(self.residuals)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Resize the buffers to the length of the stored history."""
        for name in ("inputs", "residuals"):
            value = state_dict[prefix + name]
            setattr(self, name, getattr(self, name).new_empty(value.shape))
        super()._load_from_state_dict(state_dict, prefix, *rest)
