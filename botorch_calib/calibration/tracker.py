"""Online tracking of quantiles, globally and locally in the inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor
from torch.nn import Module

from botorch_calib._validation import (
    check_inputs,
    check_levels,
    check_nonnegative,
    check_positive,
    check_unit_interval,
)


class OnlineQuantileTracker(Module):
    r"""Thresholds ``theta_j(x)`` below which a fraction ``p_j`` of the scores falls.

    One learner serves localized online conformal prediction (LOCBO: one level, the score a
    two-sided p-value), and quantile recalibration with and without localization (OCBO-L,
    OCBO: many levels, the score a PIT). The threshold function (LOCBO eq. 24) is

        ``theta_t(x) = c + sum_i B_i k(x_i, x)``,
        ``k(x, x') = scale * exp(-|x - x'|^2 / lengthscale^2)``,

    and at step ``t``, with ``o = 1{u_t <= theta_t(x_t)}`` and
    ``eta_t = step_size * t^{-step_decay}``, it descends the pinball loss (LOCBO eq. 28):

        ``delta = eta_t (p - o)``,  ``c <- c + delta``,
        ``B <- (1 - regularization * eta_t) B``,  then ``delta`` is appended to ``B``.

    The sign is that of OCBO's Lemma 4, which drives ``mean(o)`` to ``p``; OCBO's running
    sum and LOCBO eq. 21 as printed have the opposite sign. OCBO's regulariser is centred
    at 0, so that every quantile would start there; here ``c`` starts at ``initial``, by
    default at ``p``, the correct threshold of a calibrated model.

    **Guarantee.** For *any* sequence ``(x_t, u_t)`` with ``u_t`` in [0, 1], even an
    adversary's, ``|mean(o) - p| <= coverage_bound(T)`` after ``T`` steps, see
    :meth:`coverage_bound`. Without localization this is at most
    ``(1 + 2 eta_1) / (T eta_T)``. With it, and ``eta_t = eta_1 t^{-1/2}``, also LOCBO's
    Lemma 1 holds: ``mean(miss) <= alpha + beta / sqrt(T) + scale``. Without regularization
    and decay, coverage is also local: around every ``x``, the kernel-weighted error
    ``sum_t (p - o_t) k(x_t, x) / T`` equals ``g_{T+1}(x) / (eta T)``, with ``g`` the sum
    over centers, and is of order ``1 / sqrt(T)``.

    Thresholds are raw: they may leave [0, 1], and those of neighbouring levels may cross.
    Clamp or sort them where a law is built, never here, or the guarantee is lost.

    Buffers: ``levels`` ``M``, ``constants`` ``M``, ``centers`` ``t x d``, ``coefficients``
    ``t x M`` and the scalar ``step_count``. A state dict may be loaded whatever the length
    of its history; step size, kernel and regularization are not part of it.

    Args:
        levels: Strictly increasing levels in (0, 1): a tensor of shape ``M`` or a sequence
            of numbers (then in double precision).
        step_size: ``eta_1``, the first step.
        step_decay: Exponent of the steps' decay; 0 keeps adapting to drift for ever.
        scale: ``k(x, x)``, the strength of localization; at 0 no centers are stored.
        lengthscale: Lengthscale of ``k``; at infinity ``k`` is the constant ``scale``.
        regularization: Rate at which local corrections are forgotten;
            ``regularization * step_size`` must be less than 1.
        initial: Initial constants in [0, 1], of shape ``M`` (default: ``levels``).

    Example:
        >>> tracker = OnlineQuantileTracker([0.2], step_size=0.05, scale=1.0, lengthscale=0.25)
        >>> tracker.update(X, two_sided_p_value(z))
        >>> tracker.threshold(X_new)  # ... x 1
    """

    levels: Tensor
    constants: Tensor
    centers: Tensor
    coefficients: Tensor
    step_count: Tensor

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
        super().__init__()
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
        p = check_levels("levels", _as_vector(levels))
        self.register_buffer("levels", p.clone())
        self.register_buffer("constants", _initial_constants(initial, p))
        # Before the first update the width of the inputs is unknown: 0 stands for any.
        self.register_buffer("centers", p.new_zeros(0, 0))
        self.register_buffer("coefficients", p.new_zeros(0, p.shape[-1]))
        self.register_buffer("step_count", torch.zeros((), dtype=torch.long, device=p.device))

    @property
    def num_updates(self) -> int:
        """Number of observations seen."""
        return int(self.step_count)

    def threshold(self, X: Tensor) -> Tensor:
        """Raw thresholds at ``X``, differentiable in it.

        Args:
            X: Inputs of shape ``... x d``.

        Returns:
            Thresholds of shape ``... x M``, in the tracker's dtype.
        """
        self._check_width(X)
        if self.coefficients.shape[-2] == 0:
            return self.constants.expand(*X.shape[:-1], -1)
        correlation = self._correlation(X.to(self.centers), self.centers)
        return self.constants + correlation @ (self.scale * self.coefficients)

    @torch.no_grad()
    def update(self, X: Tensor, u: Tensor) -> Tensor:
        """Learn from observations, strictly in order: later ones see earlier ones' effect.

        A call that raises leaves the tracker as it was.

        Args:
            X: Inputs of shape ``n x d``.
            u: Scores in [0, 1] of shape ``n``.

        Returns:
            The raw thresholds ``n x M`` that the observations were compared with, each
            from before its own update: ``u.unsqueeze(-1) <= result`` are the outcomes.
        """
        check_inputs("X", X)
        self._check_width(X)
        if u.shape != X.shape[:1]:
            raise BotorchTensorDimensionError(
                f"`u` must have shape {tuple(X.shape[:1])}, one score for each row of `X`, "
                f"got {tuple(u.shape)}."
            )
        check_unit_interval("u", u)
        X, u = X.to(self.constants), u.to(self.constants)
        start = self.num_updates
        steps = [self._step(start + 1 + i) for i in range(len(u))]
        thresholds, deltas, constants = self._run(X, u, steps)

        centers, coefficients = self._extended(X, deltas, steps)
        self.constants, self.centers, self.coefficients = constants, centers, coefficients
        self.step_count = self.step_count + len(u)
        return thresholds

    def coverage_bound(self, num_steps: int) -> Tensor:
        r"""Bound on ``|mean(o) - p|`` after ``num_steps`` steps from the start, shape ``M``.

        It holds for every sequence, localized or not. Write ``m = max(p, 1 - p)``, and
        ``c`` for the constants: since ``p - o_t = (c_{t+1} - c_t) / eta_t`` and steps do not
        grow, summation by parts gives ``|mean(o) - p| <= R / (T eta_T)``, where ``R`` is
        the length of any interval that contains ``c_1, ..., c_{T+1}``. Two such lengths:

        * With regularization (or ``scale = 0``), ``sum_i |B_i| <= m / regularization``, so
          the local part is at most ``G = scale m / regularization``. A threshold outside
          [0, 1] is pushed back, hence ``R = 1 + 2 G + eta_1``.
        * Always: the squared norm ``(c - 1/2)^2 + |g|^2`` grows by at most
          ``eta_t m + eta_t^2 m^2 (1 + 2 scale)`` per step; ``R`` is twice the root of the
          sum, started at 1/4.

        The first is sharper than LOCBO's Lemma 1 in that it tends to 0 for any ``scale``.
        """
        if num_steps < 1:
            raise InputDataError(f"`num_steps` must be at least 1, got {num_steps}.")
        m = torch.maximum(self.levels, 1.0 - self.levels)
        times = torch.arange(1, num_steps + 1, dtype=torch.double, device=m.device)
        eta = self.step_size * times.pow(-self.step_decay)
        growth = m * eta.sum() + m.square() * eta.square().sum() * (1.0 + 2.0 * self.scale)
        length = 2.0 * (0.25 + growth).sqrt()
        if self.scale == 0.0 or self.regularization > 0.0:
            local = self.scale * m / self.regularization if self.scale else torch.zeros_like(m)
            length = torch.minimum(length, 1.0 + 2.0 * local + self.step_size)
        return (length / (num_steps * eta[-1])).to(self.levels)

    def _step(self, t: int) -> float:
        return self.step_size * math.pow(t, -self.step_decay)

    def _correlation(self, X1: Tensor, X2: Tensor) -> Tensor:
        """``exp(-|x - x'|^2 / lengthscale^2)``, ``... x n`` for ``... x d`` and ``n x d``.

        The squared distance is expanded into a single matrix product, about a common shift
        that keeps cancellation small, and in double precision, in which it is harmless unless
        the inputs spread over more than 1e6 lengthscales. It is not clamped at 0, since that
        would falsify second derivatives where points coincide.
        """
        dtype, shift = X1.dtype, X2[0].double()
        X1, X2 = (X1.double() - shift) / self.lengthscale, (X2.double() - shift) / self.lengthscale
        # Squares go in elementwise on the left: summing the larger side would cost more.
        left = torch.cat([X1, X1 * X1, X1.new_ones(*X1.shape[:-1], 1)], dim=-1)
        squares = -(X2 * X2).sum(dim=-1, keepdim=True)
        right = torch.cat([2.0 * X2, torch.full_like(X2, -1.0), squares], dim=-1)
        return (left @ right.mT).exp().to(dtype)

    def _run(self, X: Tensor, u: Tensor, steps: list[float]) -> tuple[Tensor, Tensor, Tensor]:
        """The sequential part: thresholds ``n x M``, increments ``n x M``, new constants."""
        eta = torch.tensor(steps, dtype=u.dtype, device=u.device).unsqueeze(-1)
        hits, misses = eta * (self.levels - 1.0), eta * self.levels
        constants = self.constants
        local, kernel = self._local_parts(X)
        thresholds, deltas = [], []
        # Rows are split once: indexing inside the loop would cost more than the arithmetic.
        rows = zip(u.unbind(), hits.unbind(), misses.unbind(), steps, strict=True)
        for i, (u_i, hit, miss, step) in enumerate(rows):
            theta = constants if local is None else constants + local[i]
            delta = torch.where(u_i <= theta, hit, miss)
            constants = constants + delta
            thresholds.append(theta)
            deltas.append(delta)
            if local is not None and kernel is not None:
                # Only the batch's own points need the local part, so it is carried along.
                local.addr_(kernel[i], delta, beta=1.0 - self.regularization * step)
        if not deltas:
            return hits, hits, constants
        return torch.stack(thresholds), torch.stack(deltas), constants

    def _local_parts(self, X: Tensor) -> tuple[Tensor | None, tuple[Tensor, ...] | None]:
        """Local part of the threshold at ``X`` (``n x M``) and rows of ``X``'s kernel matrix."""
        if self.scale == 0.0 or len(X) == 0:
            return None, None
        local = X.new_zeros(len(X), self.levels.shape[-1])
        if len(self.centers):
            local = self._correlation(X, self.centers) @ (self.scale * self.coefficients)
        return local, (self.scale * self._correlation(X, X)).unbind()

    def _extended(self, X: Tensor, deltas: Tensor, steps: list[float]) -> tuple[Tensor, Tensor]:
        """Centers and coefficients after the increments ``deltas`` at ``X``."""
        if len(X) == 0:
            return self.centers, self.coefficients
        if self.scale == 0.0:
            # An empty matrix of the right width remembers the width.
            return self.centers.new_zeros(0, X.shape[-1]), self.coefficients
        # Each new coefficient shrinks at the steps after its own, each old one at all.
        shrink = torch.tensor(
            [*(1.0 - self.regularization * step for step in steps), 1.0],
            dtype=deltas.dtype,
            device=deltas.device,
        )
        remaining = shrink.flip(0).cumprod(0).flip(0).unsqueeze(-1)
        old = self.centers.reshape(-1, X.shape[-1])
        coefficients = torch.cat([self.coefficients * remaining[0], deltas * remaining[1:]])
        return torch.cat([old, X]), coefficients

    def _check_width(self, X: Tensor) -> None:
        width = self.centers.shape[-1]
        if X.dim() == 0 or (width and X.shape[-1] != width):
            raise BotorchTensorDimensionError(
                f"`X` must have shape ... x {width or 'd'}, got {tuple(X.shape)}."
            )

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Give the buffers the incoming shapes before they are copied, or copy none."""
        incoming = {
            name: state_dict[prefix + name]
            for name, _ in self.named_buffers()
            if prefix + name in state_dict
        }
        if message := self._mismatch(incoming):
            error_msgs.append(f"Tracker state `{prefix}` was not loaded: {message}")
            return
        for name, value in incoming.items():
            # New tensors, since thresholds and state dicts handed out may share the old ones.
            setattr(self, name, getattr(self, name).new_empty(value.shape))
        super()._load_from_state_dict(
            state_dict,
            prefix,
            local_metadata,
            strict,
            missing_keys,
            unexpected_keys,
            error_msgs,
        )

    def _mismatch(self, incoming: dict[str, Tensor]) -> str | None:
        """What keeps ``incoming`` from being a state of this tracker, if anything."""
        if not incoming:
            return None
        if missing := {name for name, _ in self.named_buffers()} - incoming.keys():
            return f"it lacks {sorted(missing)}."
        shapes = {name: tuple(value.shape) for name, value in incoming.items()}
        num_levels = self.levels.shape[-1]
        if shapes["levels"] != (num_levels,) or shapes["constants"] != (num_levels,):
            return f"`levels` and `constants` must have shape ({num_levels},)."
        centers, coefficients = shapes["centers"], shapes["coefficients"]
        if len(centers) != 2 or coefficients != (centers[0], num_levels):
            return f"`centers` and `coefficients` must have shapes t x d and t x {num_levels}."
        if self.scale == 0.0 and coefficients[0]:
            return "it is localized, and this tracker is not."
        own, theirs = self.levels.double(), incoming["levels"].to(self.levels).double()
        if not torch.allclose(own, theirs, rtol=0.0, atol=1e-6):
            return f"it tracks the levels {theirs.tolist()}, not {own.tolist()}."
        return None


def _as_vector(values: Tensor | Sequence[float]) -> Tensor:
    """``values`` as a detached floating-point tensor (double precision unless a tensor)."""
    if not isinstance(values, Tensor):
        values = torch.tensor(values, dtype=torch.double)
    if not values.is_floating_point():
        raise InputDataError(f"Levels must be floating-point numbers, got {values.dtype}.")
    return values.detach()


def _initial_constants(initial: Tensor | Sequence[float] | None, levels: Tensor) -> Tensor:
    if initial is None:
        return levels.clone()
    constants = _as_vector(initial).to(levels, copy=True)
    if constants.shape != levels.shape:
        raise BotorchTensorDimensionError(
            f"`initial` must have the shape {tuple(levels.shape)} of `levels`, "
            f"got {tuple(constants.shape)}."
        )
    return check_unit_interval("initial", constants)
