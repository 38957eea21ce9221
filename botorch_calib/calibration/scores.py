"""Scores of observations against a GP's predictions.

Everything here works on *standardised residuals* ``z = (y - mu) / s_y``, where ``mu`` and
``s_y`` are the predictive mean and standard deviation of ``y`` (noise included). A fitted
GP yields the residuals of its own training data without refitting
(:func:`prequential_residuals`, :func:`loo_residuals`); a :class:`Score` then maps residuals
monotonically to [0, 1], where the online tracker works, and thresholds back to z units.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar, NamedTuple

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.utils.probability.utils import ndtr
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.models import ExactGP
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.nn import Module

from botorch_calib._validation import check_open_unit, check_positive

_SQRT_HALF = math.sqrt(0.5)


def pit(z: Tensor) -> Tensor:
    """Probability integral transform ``Phi(z)`` of residuals of any shape, same shape.

    Uniform on [0, 1] when the model is calibrated. Accurate in the lower tail; the upper
    tail is resolved as finely as numbers near 1 are.
    """
    return ndtr(z)


def two_sided_p_value(z: Tensor) -> Tensor:
    """Conformity score ``2 Phi(-|z|)`` (LOCBO eq. 26) of residuals of any shape, same shape.

    It lies in [0, 1] and is accurate however far out ``z`` is.
    """
    return 2.0 * ndtr(-z.abs())


@torch.no_grad()
def prequential_residuals(model: Module) -> Tensor:
    r"""One-step-ahead standardised residuals of a GP's own training data, in its order.

    With ``K + noise = L L^T``, the residuals are ``e = L^{-1} (y - mean)``: ``e_t`` equals
    ``(y_t - mu_t) / s_t``, with ``mu_t`` and ``s_t`` predicted from the observations before
    ``t`` alone. One Cholesky factorisation and one triangular solve replace ``n`` refits.

    The hyperparameters are the model's current ones at every step. The residuals live in
    the space of the model's targets: an increasing affine outcome transform such as
    ``Standardize`` leaves them unchanged, and any increasing one leaves ``pit`` unchanged.

    Args:
        model: An exact GP with one output and no batch dimension (such as
            ``SingleTaskGP``), in train or eval mode; it is left in the mode it was in.

    Returns:
        A tensor of shape ``n``, without gradient.
    """
    return _whitened(*_factorized_prior(model))


@torch.no_grad()
def loo_residuals(model: Module) -> Tensor:
    r"""Leave-one-out standardised residuals of a GP's own training data.

    ``z_i = [K^{-1} (y - mean)]_i / sqrt([K^{-1}]_ii)``, with ``K`` the prior covariance of
    the observations, noise included (Rasmussen & Williams 2006, eqs. 5.10-5.12): the
    numbers of ``botorch.cross_validation.efficient_loo_cv`` without the cancellation in
    ``y - mu_i``. This is OCBO's Algorithm 4 at the price of one factorisation.

    Args:
        model: As in :func:`prequential_residuals`.

    Returns:
        A tensor of shape ``n``, without gradient.
    """
    return _left_out(*_factorized_prior(model))[0]


class History(NamedTuple):
    """Forecasts of a GP's own training data, in its order, in the space of its targets."""

    inputs: Tensor  # n x d, transformed as the GP sees them
    residuals: Tensor  # n, standardised
    deviations: Tensor  # n, predictive standard deviations of the observations


@torch.no_grad()
def forecast_history(model: Module, leave_one_out: bool = False) -> History:
    r"""Inputs, standardised residuals and predictive deviations of a GP's own training data.

    The deviations come with the residuals: ``L_tt`` one step ahead and
    ``1 / sqrt([K^{-1}]_ii)`` leave-one-out, so that the prediction's mean is
    ``y - deviation * residual``.

    Args:
        model: As in :func:`prequential_residuals`.
        leave_one_out: Whether each observation is predicted from all others, instead of
            from those before it.
    """
    cholesky, deviation = _factorized_prior(model)
    with _eval_mode(model):
        inputs: Tensor = _as_exact(model).train_inputs[0].detach()
    if leave_one_out:
        return History(inputs, *_left_out(cholesky, deviation))
    return History(inputs, _whitened(cholesky, deviation), cholesky.diagonal().clone())


def _whitened(cholesky: Tensor, deviation: Tensor) -> Tensor:
    """``L^{-1} (y - mean)``, of length ``n``."""
    residuals: Tensor = torch.linalg.solve_triangular(cholesky, deviation, upper=False)
    return residuals.squeeze(-1)


def _left_out(cholesky: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
    """Leave-one-out residuals and deviations, each of length ``n``."""
    eye = torch.eye(cholesky.shape[-1], dtype=cholesky.dtype, device=cholesky.device)
    inverse: Tensor = torch.linalg.solve_triangular(cholesky, eye, upper=False)
    precision = inverse.square().sum(dim=-2)
    weighted = inverse.mT @ (inverse @ deviation)
    return weighted.squeeze(-1) / precision.sqrt(), precision.rsqrt()


def history_residuals(model: Module, kind: str) -> Tensor:
    """`prequential_residuals` or `loo_residuals`, by ``kind``: ``"prequential"`` or ``"loo"``."""
    functions = {"prequential": prequential_residuals, "loo": loo_residuals}
    if kind not in functions:
        raise InputDataError(f"`residuals` must be one of {sorted(functions)}, got {kind!r}.")
    return functions[kind](model)


def _factorized_prior(model: Module) -> tuple[Tensor, Tensor]:
    """Cholesky factor ``n x n`` of ``K + noise`` and deviations ``y - mean`` as ``n x 1``."""
    gp = _as_exact(model)
    with _eval_mode(gp):
        # Eval mode swaps the training inputs for their transforms, which `forward` expects.
        inputs = list(gp.train_inputs)
        prior = gp.forward(*inputs)
        if not isinstance(prior, MultivariateNormal):
            raise UnsupportedError(
                f"The prior of `model` must be multivariate normal, got {type(prior).__name__}."
            )
        if isinstance(prior, MultitaskMultivariateNormal) or prior.mean.dim() != 1:
            raise _unsupported(model, "has several outputs or a batch dimension")
        predictive = gp.likelihood(prior, inputs)
        cholesky = psd_safe_cholesky(predictive.lazy_covariance_matrix.to_dense())
        return cholesky, (gp.train_targets - predictive.mean).unsqueeze(-1)


def _as_exact(model: Module) -> ExactGP:
    """``model`` if it is a single-output, non-batched exact GP with training data."""
    if not isinstance(model, ExactGP):
        raise _unsupported(model, "is no exact GP, so it has no training data with a GP prior")
    if getattr(model, "num_outputs", 1) != 1:
        raise _unsupported(model, "has several outputs")
    targets = model.train_targets
    if model.train_inputs is None or targets is None or targets.numel() == 0:
        raise InputDataError("`model` has no training data: its history is empty.")
    if targets.dim() != 1 or getattr(model, "_is_ensemble", False):
        raise _unsupported(model, "is batched or an ensemble")
    return model


def _unsupported(model: Module, reason: str) -> UnsupportedError:
    return UnsupportedError(
        f"Residuals of past data need a single-output, non-batched exact GP, but "
        f"{type(model).__name__} {reason}. Calibrate it online instead, by calling "
        "`CalibratedModel.observe` with each new observation (several outputs: one "
        "calibrated model per output in a `ModelList`)."
    )


@contextmanager
def _eval_mode(model: Module) -> Iterator[None]:
    """Switch ``model`` to eval mode and put back every submodule's mode afterwards."""
    if not model.training:
        yield
        return
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        model.train()
        for module, training in modes:
            module.training = training


class Score(ABC):
    """A monotone map between residuals ``z`` and [0, 1], for intervals and for quantiles.

    The online guarantee holds for any score with values in [0, 1]; the choice decides how
    finely a threshold resolves wide intervals. Two-sided use tracks one quantile of the
    score of ``|z|`` at :meth:`two_sided_level` and reads off :meth:`half_width`; signed use
    tracks the score of ``z`` at each quantile level and reads off :meth:`knots`.

    Thresholds are raw: the tracker may drive them outside [0, 1], where the width or knot
    stays at its bound with zero gradient. Scores hold no state and compare equal by class.
    """

    #: Half-width, in predictive standard deviations, beyond which intervals stop growing.
    default_max_width: ClassVar[float]

    @abstractmethod
    def two_sided(self, z: Tensor) -> Tensor:
        """Score of ``|z|`` in [0, 1], of the shape of ``z``."""

    @abstractmethod
    def two_sided_level(self, alpha: float) -> float:
        """Level at which the tracker follows the two-sided score for miscoverage ``alpha``."""

    @abstractmethod
    def initial_two_sided(self, alpha: float) -> float:
        """Threshold at which the Gaussian model itself has coverage ``1 - alpha``."""

    @abstractmethod
    def signed(self, z: Tensor) -> Tensor:
        """Score of ``z`` in [0, 1], increasing, of the shape of ``z``."""

    def initial_signed(self, levels: Tensor) -> Tensor:
        """Thresholds at which the Gaussian model's own quantiles lie, of ``levels``' shape."""
        return self.signed(_ndtri(levels))

    def half_width(
        self, theta: Tensor, max_width: float | None = None, min_width: float = 1e-3
    ) -> Tensor:
        """Half-width in z units of the interval with threshold ``theta``.

        Args:
            theta: Raw two-sided thresholds of any shape.
            max_width: Largest half-width (default: ``default_max_width``).
            min_width: Smallest half-width, which keeps the interval's law proper.

        Returns:
            Half-widths in ``[min_width, max_width]`` of the shape of ``theta``,
            differentiable inside and with zero gradient at the bounds.
        """
        widths = (check_positive("min_width", min_width), self._max_width(max_width))
        if widths[0] >= widths[1]:
            raise InputDataError(f"`min_width` must be less than `max_width`, got {widths}.")
        ends = [(self._two_sided_at(width), width) for width in widths]
        return _bounded_inverse(theta, self._width, ends)

    def knots(self, theta: Tensor, max_width: float | None = None) -> Tensor:
        """Quantiles in z units at signed thresholds ``theta``, clamped to ``+-max_width``.

        Args:
            theta: Raw signed thresholds of any shape.
            max_width: Largest absolute knot (default: ``default_max_width``).

        Returns:
            Knots of the shape of ``theta``, increasing in it; gradients as in
            :meth:`half_width`.
        """
        width = self._max_width(max_width)
        ends = [(self._signed_at(knot), knot) for knot in (-width, width)]
        return _bounded_inverse(theta, self._knot, ends)

    def _max_width(self, max_width: float | None) -> float:
        return check_positive(
            "max_width", self.default_max_width if max_width is None else max_width
        )

    @abstractmethod
    def _two_sided_at(self, width: float) -> float:
        """The two-sided score of one residual, as a number."""

    @abstractmethod
    def _signed_at(self, knot: float) -> float:
        """The signed score of one residual, as a number."""

    @abstractmethod
    def _width(self, theta: Tensor) -> Tensor:
        """Inverse of the two-sided score for ``theta`` in the open (0, 1)."""

    @abstractmethod
    def _knot(self, theta: Tensor) -> Tensor:
        """Inverse of the signed score for ``theta`` in the open (0, 1)."""


@dataclass(frozen=True)
class GaussianScore(Score):
    """The papers' scores: two-sided p-value (LOCBO eq. 26) and PIT (OCBO).

    Natural where the model is nearly right. Far out it saturates: thresholds near 0 jump
    from a half-width of 2.6 to the cap, so a badly overconfident model is better served
    by :class:`RationalScore`.
    """

    default_max_width: ClassVar[float] = 3.4

    def two_sided(self, z: Tensor) -> Tensor:
        """``2 Phi(-|z|)``: small for surprising observations, so tracked at ``alpha``."""
        return two_sided_p_value(z)

    def two_sided_level(self, alpha: float) -> float:
        """``alpha``: an observation at or below the threshold is a miss."""
        return check_open_unit("alpha", alpha)

    def initial_two_sided(self, alpha: float) -> float:
        """``alpha``, since the p-value of a correct model is uniform."""
        return check_open_unit("alpha", alpha)

    def signed(self, z: Tensor) -> Tensor:
        """The PIT ``Phi(z)``."""
        return pit(z)

    def initial_signed(self, levels: Tensor) -> Tensor:
        """The levels themselves, since the PIT of a correct model is uniform."""
        return levels.clone()

    def _two_sided_at(self, width: float) -> float:
        return math.erfc(_SQRT_HALF * width)

    def _signed_at(self, knot: float) -> float:
        return 0.5 * math.erfc(-_SQRT_HALF * knot)

    def _width(self, theta: Tensor) -> Tensor:
        return -_ndtri(0.5 * theta)

    def _knot(self, theta: Tensor) -> Tensor:
        return _ndtri(theta)


@dataclass(frozen=True)
class RationalScore(Score):
    """``|z| / (1 + |z|)`` and its signed form ``(1 + z / (1 + |z|)) / 2``.

    The score keeps its resolution at any width: near a half-width ``w`` a threshold step
    ``d`` changes it by ``d (1 + w)^2``. It grows with surprise, so the tracked level of
    intervals is ``1 - alpha``. Being in [0, 1], it inherits the tracker's guarantee.
    """

    default_max_width: ClassVar[float] = 50.0

    def two_sided(self, z: Tensor) -> Tensor:
        """``|z| / (1 + |z|)``: large for surprising observations."""
        return _softsign(z.abs())

    def two_sided_level(self, alpha: float) -> float:
        """``1 - alpha``: an observation at or below the threshold is covered."""
        return 1.0 - check_open_unit("alpha", alpha)

    def initial_two_sided(self, alpha: float) -> float:
        """``w / (1 + w)`` at the Gaussian half-width ``w = Phi^{-1}(1 - alpha/2)``."""
        return self._two_sided_at(-NormalDist().inv_cdf(0.5 * check_open_unit("alpha", alpha)))

    def signed(self, z: Tensor) -> Tensor:
        """``(1 + z / (1 + |z|)) / 2``, tracked at the quantile level itself."""
        return 0.5 * (1.0 + _softsign(z))

    def _two_sided_at(self, width: float) -> float:
        return width / (1.0 + width)

    def _signed_at(self, knot: float) -> float:
        return 0.5 * (1.0 + knot / (1.0 + abs(knot)))

    def _width(self, theta: Tensor) -> Tensor:
        return theta / (1.0 - theta)

    def _knot(self, theta: Tensor) -> Tensor:
        # Near 0 the lower knot overflows (theta near 1 is as coarse as the dtype already).
        centred = 2.0 * theta.clamp(min=torch.finfo(theta.dtype).eps) - 1.0
        return centred / (1.0 - centred.abs())


def _ndtri(p: Tensor) -> Tensor:
    """Standard normal quantile."""
    quantile: Tensor = torch.special.ndtri(p)
    return quantile


def _softsign(z: Tensor) -> Tensor:
    """``z / (1 + |z|)``, also for infinite ``z``."""
    limit = torch.finfo(z.dtype).max
    z = z.clamp(-limit, limit)
    return z / (1.0 + z.abs())


def _bounded_inverse(
    theta: Tensor, inverse: Callable[[Tensor], Tensor], ends: list[tuple[float, float]]
) -> Tensor:
    """``inverse(theta)`` between two (threshold, value) ends, held at their values beyond.

    The argument of ``inverse`` is clamped first (double ``where``), so that neither values
    nor gradients of the masked branch are infinite.
    """
    (lower, at_lower), (upper, at_upper) = sorted(ends)
    info = torch.finfo(theta.dtype)
    inside = theta.clamp(max(lower, info.tiny), min(upper, 1.0 - info.eps))
    # An extra clamp: rounding in the inverse may overshoot an end by an ulp.
    value = inverse(inside).clamp(min(at_lower, at_upper), max(at_lower, at_upper))
    value = torch.where(theta <= lower, at_lower, value)
    return torch.where(theta >= upper, at_upper, value)
