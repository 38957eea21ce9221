"""`WeightedConformal`: weighted conformal prediction, that of conformal Bayesian optimization."""

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

# Relative slack in comparing sums of weights, so that rounding never skips a residual.
_SLACK = 1e-12


class WeightedConformal(Calibrator):
    r"""Weighted conformal prediction (CBO) [Kim2024locbo, section III-A, eqs. 11-14].

    With ``p`` the distribution of the past inputs, ``p'`` that of the next one and
    ``w(x) = p'(x) / p(x)``, the half-width at ``x`` is the smallest ``s`` with

        ``sum_{i: |z_i| <= s} w(x_i) >= (1 - alpha) (w(x) + sum_i w(x_i))``,

    the weighted ``1 - alpha`` quantile of the past ``|z_i|`` and of an infinite one, which
    stands for ``x`` itself (Tibshirani et al. 2019, corollary 1). LOCBO eq. 12 prints the
    infinite one's mass ``w(x)`` outside the fraction; it has the same denominator as the others.
    Where no ``s`` is large enough, the half-width is `max_width` (the paper's set is the whole
    line).

    The quantile jumps between residuals as ``x`` moves, and line searches fail there. So, while the
    right-hand side runs from one partial sum of the weights to the next, ``s / (1 + s)`` runs from
    the quantile to the next larger residual: the coverage is larger by one residual's weight at
    most.

    If the past ``(x_i, y_i)`` are independent draws, each ``z_i`` comes from one model that saw
    none of them, and ``w`` is right up to a factor, the interval holds ``y`` with a probability of
    at least ``1 - alpha``. In an optimization, whose queries are not independent, it is a
    heuristic.

    Args:
        alpha: Miscoverage level, in (0, 1).
        density_ratio: ``w``, up to a factor: maps inputs ``... x d`` of the base model's
            transformed space to positive values ``...``.
    """

    max_width = 50.0
    inputs: Tensor
    residuals: Tensor

    def __init__(self, alpha: float, density_ratio: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.alpha = alpha
        self.density_ratio = density_ratio
        # Before the first update the width of the inputs is unknown: 0 stands for any.
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
        # The past weights do not depend on X, so no gradient is kept for them.
        with torch.no_grad():
            sums = self.density_ratio(self.inputs)[order].double().cumsum(dim=-1)
        own = self.density_ratio(X).double()
        needed = (1.0 - self.alpha) * (1.0 - _SLACK) * (sums[-1] + own)
        index = torch.searchsorted(sums, needed.detach())
        # The partial sums on either side; beyond the last residual the share is zero.
        below, above = pad(sums, (1, 0))[index], pad(sums, (0, 1), value=torch.inf)[index]
        share = (needed - below) / (above - below)
        # Interpolated on the rational scale, where a cap of 50 is not far from a residual of 5: the
        # half-width rises towards the cap only where the mass is nearly spent.
        scores = sizes.double() / (1.0 + sizes.double())
        score = torch.lerp(scores[index], scores[(index + 1).clamp(max=len(sums))], share)
        # Rounding must not bring it below the quantile, where ties would be lost.
        return torch.maximum((score / (1.0 - score)).to(sizes), sizes[index]).unsqueeze(-1)

    def predictive(self, X: Tensor) -> PiecewisePredictive:
        return self._predictive_from(self.half_width(X))

    def _predictive_from(self, half_width: Tensor) -> PiecewisePredictive:
        """The conformal distribution of checked half-widths."""
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
        """Make room for a history of any length."""
        for name in ("inputs", "residuals"):
            value = state_dict[prefix + name]
            setattr(self, name, getattr(self, name).new_empty(value.shape))
        super()._load_from_state_dict(state_dict, prefix, *rest)
