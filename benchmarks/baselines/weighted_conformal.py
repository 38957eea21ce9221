"""`WeightedConformal`: weighted conformal prediction, that of conformal Bayesian optimization."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from statistics import NormalDist
from typing import Any

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor, nn

from botorch_calib._validation import (
    check_flag,
    check_one_of,
    check_open_unit,
    check_positive,
    check_width,
)
from botorch_calib.calibration.base import TAILS, Calibrator, check_residuals
from botorch_calib.distributions.piecewise import MIN_HALF_WIDTH, PiecewisePredictive

DensityRatio = Callable[[Tensor], Tensor]

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

    If the past ``(x_i, y_i)`` are independent draws, each ``z_i`` comes from one model that saw
    none of them, and ``w`` is right up to a factor, the interval holds ``y`` with a probability of
    at least ``1 - alpha``. In an optimization, whose queries are not independent, it is a
    heuristic; `LocalizedConformal` needs no such assumption.

    * **Too few residuals.** Where no ``s`` is large enough, as with fewer than
      ``(1 - alpha) / alpha`` residuals of equal weight, or at an ``x`` of overwhelming weight,
      the half-width is ``max_width`` (the paper's set is the whole line). Before the first
      residual the distribution is the Gaussian model's own.
    * **Continuity.** The quantile jumps between residuals as ``x`` moves, and line searches fail
      there. By default, while the right-hand side runs from one partial sum of the weights to the
      next, ``s / (1 + s)`` runs from the quantile to the next larger residual, never below the
      quantile: the coverage is larger by one residual's weight at most.

    Args:
        alpha: Miscoverage level, in (0, 1).
        density_ratio: ``w``, up to a factor: maps inputs ``... x d`` of the base model's
            transformed space to finite values ``...`` of at least 0. A ``Module`` becomes part of
            the state, which `reset` leaves alone. None is ``w = 1``: split conformal prediction.
        tails: The normal tails outside of the interval: ``"stretched"`` scales them with its
            width, ``"gaussian"`` leaves them as the model has them.
        max_width: Cap of the half-width in standard deviations. Coverage is lost
            where the residuals exceed it.
        continuous: Whether the half-width is continuous in ``x``. If not, and without a density
            ratio, it is the quantile itself.

    Example:
        >>> ratio = ClassifierDensityRatio(X, torch.rand(64, 2, dtype=torch.double))
        >>> model = CalibratedModel.from_history(gp, WeightedConformal(0.2, density_ratio=ratio))
    """

    inputs: Tensor
    residuals: Tensor

    def __init__(
        self,
        alpha: float,
        density_ratio: DensityRatio | None = None,
        tails: str = "stretched",
        max_width: float = 50.0,
        continuous: bool = True,
    ) -> None:
        super().__init__()
        self.alpha = check_open_unit("alpha", alpha)
        if density_ratio is not None and not callable(density_ratio):
            raise InputDataError(
                f"`density_ratio` must be callable or None, got {type(density_ratio).__name__}."
            )
        self.density_ratio = density_ratio
        self.tails = check_one_of("tails", tails, TAILS)
        self.max_width = check_positive("max_width", max_width)
        self.continuous = check_flag("continuous", continuous)
        # Before the first update the width of the inputs is unknown: 0 stands for any.
        self.register_buffer("inputs", torch.zeros(0, 0, dtype=torch.double))
        self.register_buffer("residuals", torch.zeros(0, dtype=torch.double))

    def extra_repr(self) -> str:
        settings = f"alpha={self.alpha:g}, tails={self.tails!r}, max_width={self.max_width:g}"
        return f"{settings}, continuous={self.continuous}, {super().extra_repr()}"

    def half_width(self, X: Tensor) -> Tensor:
        """Half-width of the interval in predictive standard deviations, ``... x 1``."""
        check_width(X, self.inputs.shape[-1])
        X = X.to(self.inputs)
        shape = (*X.shape[:-1], 1)
        if not self.num_updates:
            return X.new_full(shape, self._initial_width)
        sizes, order = self.residuals.abs().sort()
        # The past weights do not depend on X, so no gradient is kept for them.
        with torch.no_grad():
            cumulative = self._weights(self.inputs)[order].cumsum(dim=-1)
        widths = self._quantile(sizes, cumulative.unsqueeze(0), self._weights(X).reshape(1, -1))
        return widths.reshape(shape)

    def predictive(self, X: Tensor) -> PiecewisePredictive:
        """The conformal distribution of the half-width at ``X``."""
        return self._predictive_from(self.half_width(X))

    @torch.no_grad()
    def update(self, X: Tensor, z: Tensor) -> PiecewisePredictive:
        """Add residuals to the history, see `Calibrator.update`.

        Raises:
            InputDataError, BotorchTensorDimensionError: If an argument is malformed, or the density
                ratio is negative, not finite or of the wrong shape at ``X`` or an earlier input.
        """
        check_residuals(X, z)
        check_width(X, self.inputs.shape[-1])
        inputs = torch.cat([self.inputs.reshape(-1, X.shape[-1]), X.to(self.inputs)])
        residuals = torch.cat([self.residuals, z.to(self.residuals)])
        weights = self._weights(inputs)
        if not (weights.isfinite() & (weights >= 0)).all():
            raise InputDataError("`density_ratio` must be finite and at least 0 at past inputs.")
        stated = self._predictive_from(self._widths_stated(residuals, weights))
        self.inputs, self.residuals = inputs, residuals
        return stated

    def reset(self) -> None:
        """Forget the history; the density ratio stays."""
        # New tensors, since state dicts handed out may share the old ones.
        self.inputs, self.residuals = self.inputs.new_zeros(0, 0), self.residuals.new_zeros(0)

    @property
    def num_updates(self) -> int:
        return len(self.residuals)

    @property
    def num_needed(self) -> int:
        """Number of residuals needed: with fewer of equal weight the half-width is the cap."""
        return math.ceil((1 - self.alpha) / self.alpha - 1e-9)

    @property
    def _initial_width(self) -> float:
        return min(-NormalDist().inv_cdf(0.5 * self.alpha), self.max_width)

    def _predictive_from(self, half_width: Tensor) -> PiecewisePredictive:
        return PiecewisePredictive.conformal(
            self.alpha,
            half_width=half_width.clamp(MIN_HALF_WIDTH, self.max_width),
            max_width=self.max_width,
            tails=self.tails,
            validate=False,
        )

    def _weights(self, X: Tensor) -> Tensor:
        """Density ratio at ``X`` (``... x d``), in double precision, of shape ``...``."""
        if self.density_ratio is None:
            return X.new_ones(X.shape[:-1], dtype=torch.double)
        weights = self.density_ratio(X)
        if not isinstance(weights, Tensor) or weights.shape != X.shape[:-1]:
            got = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
            raise BotorchTensorDimensionError(
                f"`density_ratio` must map inputs of shape {tuple(X.shape)} to a tensor of shape "
                f"{tuple(X.shape[:-1])}, got {got}."
            )
        return weights.double()

    def _quantile(self, sizes: Tensor, cumulative: Tensor, own: Tensor) -> Tensor:
        """Half-widths ``n x k``, which are ``max_width`` where the weights fall short.

        From sorted ``|z_i|``, ``N``, partial sums of their weights, ``n x N``, and the weights
        ``own`` of the inputs in question, ``n x k``.
        """
        bounded = sizes.clamp(max=self.max_width)
        bounded = torch.cat([bounded, bounded.new_full((1,), self.max_width)])
        mass = (1.0 - self.alpha) * (1.0 - _SLACK) * (cumulative[:, -1:] + own)
        # Residuals of no weight must not count as enough where nothing has any.
        mass = mass.clamp(min=torch.finfo(mass.dtype).tiny)
        index = torch.searchsorted(cumulative, mass.detach())
        if self.density_ratio is None or not self.continuous:
            return bounded[index]
        # The partial sums on either side of the mass; the last one's other side is infinite.
        sums = nn.functional.pad(cumulative, (1, 0))
        below = sums.gather(-1, index)
        above = sums.gather(-1, (index + 1).clamp(max=len(sizes)))
        # Residuals of no weight in between are not the next larger ones.
        following = torch.searchsorted(cumulative, above, right=True)
        beyond = index == len(sizes)
        share = ((mass - below) / (above - below).masked_fill(beyond, 1.0)).clamp(max=1.0)
        # Interpolated on the rational scale, where a cap of 50 is not far from a residual of 5: the
        # half-width rises towards the cap only where the mass is nearly spent.
        scores = bounded.double() / (1.0 + bounded.double())
        score = torch.lerp(scores[index], scores[following], share.masked_fill(beyond, 0.0))
        # Rounding must not bring it below the quantile, where ties would be lost.
        return torch.maximum((score / (1.0 - score)).to(bounded), bounded[index])

    def _widths_stated(self, residuals: Tensor, weights: Tensor) -> Tensor:
        """Half-widths that stood before each new residual, ``n x 1``, from all ``N`` of them."""
        start, num = self.num_updates, len(residuals)
        if start == num:
            return residuals.new_zeros(0, 1)
        sizes, order = residuals.abs().sort()
        now = torch.arange(start, num, device=order.device).unsqueeze(-1)
        # Row t masks what came at t or later, so that one table replays the whole history.
        earlier = (order < now).to(weights)
        cumulative = (weights[order] * earlier).cumsum(dim=-1)
        widths = self._quantile(sizes, cumulative, weights[start:].unsqueeze(-1))
        return widths.masked_fill(now == 0, self._initial_width)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load a state with a history of any length; one that is refused changes nothing."""
        before = deepcopy(self.state_dict())
        try:
            return super().load_state_dict(state_dict, strict=strict, assign=assign)
        except Exception:
            super().load_state_dict(before)
            raise

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Give the buffers the incoming shapes before they are copied."""
        names = [name for name in ("inputs", "residuals") if prefix + name in state_dict]
        shapes = [tuple(state_dict[prefix + name].shape) for name in names]
        if len(names) == 2 and (len(shapes[0]) != 2 or shapes[1] != shapes[0][:1]):
            rest[-1].append(
                f"State `{prefix}` of WeightedConformal was not loaded: `inputs` and `residuals` "
                f"must have shapes n x d and n, not {shapes[0]} and {shapes[1]}."
            )
            return
        for name, shape in zip(names, shapes, strict=True):
            # New tensors, since state dicts handed out may share the old ones.
            setattr(self, name, getattr(self, name).new_empty(shape))
        super()._load_from_state_dict(state_dict, prefix, *rest)
