r"""`PiecewisePredictive`: the law of a standardised observation, given by pieces.

Every calibration system in this package states one thing: the law of
``z = (y - mu) / sigma_y``, with ``mu`` and ``sigma_y`` the mean and standard deviation of
the Gaussian process' prediction of the observation ``y``. It does so by pieces: knots
``k_0 < ... < k_K`` (the outer ones may be infinite) and masses ``m_1, ..., m_K``; within a
piece the density is either constant or that of a truncated normal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.utils.probability.utils import log_ndtr, log_phi, ndtr
from torch import Tensor

from botorch_calib._validation import check_levels, check_open_unit, check_positive
from botorch_calib.distributions._special import LOG_ZERO, log_normal_interval, ndtri_exp

# Smallest half-width and smallest gap between knots of a law. Both only keep densities
# finite: the learners' raw thresholds are never changed.
MIN_HALF_WIDTH = 1e-3
MIN_GAP = 1e-6
_FAR = 1e30


class PiecewisePredictive:
    """A law on the real line made of uniform and truncated normal pieces.

    Args:
        knots: Ends of the pieces, increasing along the last dimension: either all
            ``K + 1`` (``batch_shape x (K + 1)``; the outer ones may be infinite) or only the
            ``K - 1`` inner ones, the outer ones then being infinite.
        masses: ``batch_shape x K``, nonnegative with sum 1; broadcast against ``knots``.
        uniform: For each of the ``K`` pieces, whether its density is constant
            (its knots must then be finite) or that of a truncated normal.
        scale: ``batch_shape``: standard deviation of the truncated normal pieces;
            1 if omitted.
        validate: Whether to check the values. Off where the caller guarantees them,
            since a check reads the data back from the device.

    All methods are differentiable in ``knots``, ``masses`` and ``scale``; ``batch_shape`` is
    ``posterior.mean.shape`` where the law belongs to a posterior.

    Raises:
        InputDataError: If knots decrease or are NaN, masses do not form a distribution, or
            a uniform piece is unbounded.
        BotorchTensorDimensionError: If the numbers of knots, masses and flags disagree.
    """

    def __init__(
        self,
        knots: Tensor,
        masses: Tensor,
        uniform: Sequence[bool],
        scale: Tensor | None = None,
        validate: bool = True,
    ) -> None:
        num_pieces = masses.shape[-1]
        # What is known throughout the batch: which of the outer knots are infinite, and
        # whether zero lies between the finite ones
        self.open_ends, self.around_zero = (False, False), False
        self._inner: Tensor | None = None
        if knots.shape[-1] == num_pieces - 1:
            ends = knots.new_full((*knots.shape[:-1], 1), math.inf)
            self._inner, self.open_ends = knots, (True, True)
            knots = torch.cat([-ends, knots, ends], dim=-1)
        if knots.shape[-1] != num_pieces + 1 or len(uniform) != num_pieces:
            raise BotorchTensorDimensionError(
                f"{num_pieces} `masses` need {num_pieces + 1} `knots` (or {num_pieces - 1} inner "
                f"ones) and {num_pieces} `uniform` flags, got {knots.shape[-1]} and {len(uniform)}."
            )
        self.knots = knots
        self.masses = masses.to(knots)
        self.uniform = tuple(bool(flag) for flag in uniform)
        self.scale = scale
        if validate:
            self._validate()

    def _validate(self) -> None:
        gaps = self.knots.diff(dim=-1)
        if self.knots.isnan().any() or not (gaps >= 0).all():
            raise InputDataError("`knots` must increase along the last dimension.")
        total = self.masses.sum(dim=-1)
        tol = 10 * torch.finfo(total.dtype).eps * self.num_pieces
        if not ((self.masses >= 0).all() and ((total - 1).abs() <= tol).all()):
            raise InputDataError("`masses` must be nonnegative and sum to 1.")
        if not gaps[..., list(self.uniform)].isfinite().all():
            raise InputDataError("A `uniform` piece needs finite `knots` at both ends.")
        if not (gaps >= MIN_GAP).all():
            self.knots, self._inner = _spread(self.knots), None
        low, high = (bool(self.knots[..., i].isinf().all()) for i in (0, -1))
        self.open_ends = (low, high)

    # ---------------------------------------------------------------- constructors

    @classmethod
    def gaussian(
        cls,
        shape: Sequence[int] | torch.Size = (),
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> PiecewisePredictive:
        """The standard normal law: no calibration."""
        dtype = torch.get_default_dtype() if dtype is None else dtype
        inner = torch.empty(*shape, 0, dtype=dtype, device=device)
        masses = torch.ones(1, dtype=dtype, device=device)
        return cls(inner, masses, (False,), validate=False)

    @classmethod
    def conformal(
        cls,
        alpha: float,
        threshold: Tensor | None = None,
        half_width: Tensor | None = None,
        max_width: float = 3.4,
        tails: str = "gaussian",
    ) -> PiecewisePredictive:
        r"""Law that spreads mass ``1 - alpha`` evenly over a conformal interval (LOCBO eq. 29).

        Args:
            alpha: Miscoverage level, in (0, 1).
            threshold: ``batch_shape`` threshold on the p-value ``2 Phi(-|z|)``: the interval
                is ``|z| <= Phi^-1(1 - threshold / 2)``. May leave [0, 1], as the online
                thresholds do: it is clamped here.
            half_width: ``batch_shape`` half-width of the interval, as an alternative.
            max_width: Cap of the half-width, in standard deviations of the observation.
            tails: Outside the interval, ``"gaussian"`` keeps the shape of the normal law
                (far out, a sliver at the end of the interval), ``"stretched"`` scales
                it such that its own ``1 - alpha`` interval is the conformal one.

        Raises:
            InputDataError: If ``alpha`` is outside (0, 1), ``max_width`` is not positive,
                ``tails`` is unknown, or not exactly one of ``threshold`` and
                ``half_width`` is given.
        """
        check_open_unit("alpha", alpha)
        check_positive("max_width", max_width)
        if tails not in ("gaussian", "stretched"):
            raise InputDataError(f"`tails` must be 'gaussian' or 'stretched', got {tails!r}.")
        if (threshold is None) == (half_width is None):
            raise InputDataError("Give exactly one of `threshold` and `half_width`.")
        if half_width is None:
            assert threshold is not None
            half_width = half_width_from_p_value(threshold, max_width)
        width = half_width.clamp(min=MIN_HALF_WIDTH, max=max_width)
        knots = torch.stack([-width, width], dim=-1)
        masses = width.new_tensor([alpha / 2, 1 - alpha, alpha / 2])
        scale = width / -torch.special.ndtri(masses[0]) if tails == "stretched" else None
        law = cls(knots, masses, (False, True, False), scale=scale, validate=False)
        law.around_zero = True
        return law

    @classmethod
    def recalibrated(
        cls,
        levels: Tensor,
        thresholds: Tensor | None = None,
        knots: Tensor | None = None,
        max_width: float = 8.0,
        tails: str = "gaussian",
        validate: bool = True,
    ) -> PiecewisePredictive:
        """Law whose ``levels[j]``-quantile is the ``thresholds[j]``-quantile of the normal law.

        Thresholds of neighbouring levels may cross, as those of an online learner do: they
        are sorted here (monotone rearrangement), which never worsens a quantile estimate.

        Args:
            levels: ``M`` increasing levels in (0, 1).
            thresholds: ``batch_shape x M`` on the scale of the probability integral
                transform ``Phi(z)``; clamped to the open unit interval.
            knots: ``batch_shape x M`` quantiles in units of ``z``, as an alternative.
            max_width: Cap of the absolute value of the quantiles.
            tails: ``"gaussian"`` keeps the shape of the normal law between and beyond the
                quantiles; ``"stretched"`` scales it with their spread, the distance of the
                outermost two over that of the normal law.
            validate: Whether to check ``levels``, which reads them back from the device.

        Raises:
            InputDataError: If ``levels`` do not increase inside (0, 1), ``tails`` is unknown or
                needs two levels and there is one, or not exactly one of ``thresholds`` and
                ``knots`` is given.
        """
        if validate:
            check_levels("levels", levels)
        check_positive("max_width", max_width)
        if (thresholds is None) == (knots is None):
            raise InputDataError("Give exactly one of `thresholds` and `knots`.")
        if knots is None:
            assert thresholds is not None
            edge = 0.5 * math.erfc(max_width / math.sqrt(2))
            edge = max(edge, torch.finfo(thresholds.dtype).eps)
            knots = torch.special.ndtri(thresholds.clamp(min=edge, max=1 - edge))
        if knots.shape[-1] != levels.shape[-1]:
            raise BotorchTensorDimensionError(
                f"`levels` has {levels.shape[-1]} entries, the thresholds {knots.shape[-1]}."
            )
        inner = _spread(knots.clamp(min=-max_width, max=max_width).sort(dim=-1).values)
        padded = torch.cat([levels.new_zeros(1), levels, levels.new_ones(1)])
        flags = (False,) * (levels.shape[-1] + 1)
        masses, scale = padded.diff().to(knots), _tail_scale(tails, levels, inner)
        return cls(inner, masses, flags, scale=scale, validate=False)

    # ---------------------------------------------------------------- description

    @property
    def num_pieces(self) -> int:
        """Number of pieces ``K``."""
        return len(self.uniform)

    @property
    def is_gaussian(self) -> bool:
        """Whether the law has the form of a single normal piece without bounds."""
        return self.uniform == (False,) and self.open_ends == (True, True)

    @property
    def batch_shape(self) -> torch.Size:
        """Common shape of the laws in this batch."""
        shape = self.knots.shape[:-1]
        others = [self.masses.shape[:-1], () if self.scale is None else self.scale.shape]
        if any(other not in ((), shape) for other in others):
            shape = torch.broadcast_shapes(shape, *others)
        return shape

    def mirrored(self) -> PiecewisePredictive:
        """The law of ``-z``."""
        knots, masses, flags = -self.knots.flip(-1), self.masses.flip(-1), self.uniform[::-1]
        law = PiecewisePredictive(knots, masses, flags, scale=self.scale, validate=False)
        law.open_ends, law.around_zero = self.open_ends[::-1], self.around_zero
        return law

    def to(self, ref: torch.dtype) -> PiecewisePredictive:
        """The same law in another floating point type."""
        if self.knots.dtype == ref and (self.scale is None or self.scale.dtype == ref):
            return self
        scale = None if self.scale is None else self.scale.to(ref)
        knots = self.knots.to(ref)
        if torch.finfo(ref).eps > torch.finfo(self.knots.dtype).eps:
            knots = _spread(knots)  # rounding may have merged some
        law = PiecewisePredictive(knots, self.masses, self.uniform, scale=scale, validate=False)
        law.open_ends, law.around_zero = self.open_ends, self.around_zero
        return law

    def __repr__(self) -> str:
        kinds = "".join("u" if flag else "g" for flag in self.uniform)
        return f"PiecewisePredictive(batch_shape={tuple(self.batch_shape)}, pieces={kinds!r})"

    @property
    def finite_knots(self) -> Tensor:
        """Knots without those of ``open_ends``; an infinite one left is moved far out."""
        if self._inner is not None:
            return self._inner
        low, high = self.open_ends
        knots = self.knots[..., int(low) : self.num_pieces + 1 - int(high)]
        return knots if low and high else knots.clamp(min=-_FAR, max=_FAR)

    @property
    def standard_knots(self) -> Tensor:
        """Knots in units of the scale of the normal pieces, ``batch_shape x (K + 1)``."""
        if self.scale is None:
            return self.knots
        infinite = self.knots.isinf()  # they stay, without a gradient
        scaled = self.knots.masked_fill(infinite, 0.0) / self.scale.unsqueeze(-1)
        return torch.where(infinite, self.knots, scaled)

    @property
    def log_masses(self) -> Tensor:
        """Logarithm of the masses, ``batch_shape x K``; that of 0 is finite, without gradient."""
        log_masses = self.masses.clamp(min=torch.finfo(self.masses.dtype).tiny).log()
        return log_masses.masked_fill(self.masses == 0, LOG_ZERO)

    @property
    def log_weights(self) -> Tensor:
        """Logarithm of mass over natural mass, ``batch_shape x K``.

        The natural mass of a normal piece is that of the normal law, of a uniform piece
        its width: the density is the weight times the normal density, or times 1.
        """
        low, high = self.standard_knots[..., :-1], self.standard_knots[..., 1:]
        flags = torch.tensor(self.uniform, device=low.device)
        low_u = (self.knots[..., :-1]).masked_fill(~flags, 0.0)
        width = (self.knots[..., 1:]).masked_fill(~flags, 1.0) - low_u
        natural = torch.where(flags, width.log(), log_normal_interval(low, high))
        return self.log_masses - natural

    # ---------------------------------------------------------------- the law itself

    def cdf(self, z: Tensor) -> Tensor:
        """``P(Z <= z)``; ``z`` broadcasts against ``batch_shape``."""
        if self.knots.dtype != torch.float64:  # narrow pieces need the digits
            return self.to(torch.float64).cdf(z.double()).to(z.dtype)
        z = z.unsqueeze(-1)
        low, high = self.knots[..., :-1], self.knots[..., 1:]
        inside = torch.minimum(torch.maximum(z, low), high)
        scale = 1.0 if self.scale is None else self.scale.unsqueeze(-1)
        normal = log_normal_interval(self.standard_knots[..., :-1], inside / scale)
        normal = torch.exp(normal + self.log_weights)
        flags = torch.tensor(self.uniform, device=low.device)
        low_u = low.masked_fill(~flags, 0.0)
        width = high.masked_fill(~flags, 1.0) - low_u
        flat = self.masses * (inside.masked_fill(~flags, 0.0) - low_u) / width
        part = torch.where(flags, flat, normal).where(inside > low, torch.zeros_like(inside))
        return part.sum(dim=-1).clamp(max=1.0)

    def log_prob(self, z: Tensor) -> Tensor:
        """Log density at ``z``; at a knot, that of the piece to its left."""
        index = (z.unsqueeze(-1) > self.knots[..., 1:-1]).sum(dim=-1, keepdim=True)
        weight = _pick(self.log_weights, index)
        scale = torch.ones_like(z) if self.scale is None else self.scale
        flags = torch.tensor(self.uniform, device=z.device)[index.squeeze(-1)]
        normal = log_phi(z / scale) - scale.log()
        value = weight + torch.where(flags, torch.zeros_like(normal), normal)
        outside = (z < self.knots[..., 0]) | (z > self.knots[..., -1])
        return value.masked_fill(outside, -math.inf)

    def quantile(self, p: Tensor) -> Tensor:
        """The ``p``-quantile; ``p`` in (0, 1) broadcasts against ``batch_shape``."""
        return self.transport(torch.special.ndtri(p))

    def transport(self, z: Tensor) -> Tensor:
        r"""``Q(Phi(z))``: the monotone map that takes a standard normal ``z`` to this law.

        Works on ``z`` rather than on ``Phi(z)``, so both tails keep their digits. ``z``
        broadcasts against ``batch_shape`` (samples in front).
        """
        if self.is_gaussian:
            z = z.expand(torch.broadcast_shapes(z.shape, self.batch_shape))
            return z if self.scale is None else z * self.scale
        below = torch.cat([torch.zeros_like(self.masses[..., :1]), self.masses.cumsum(-1)], -1)
        above = self.masses.flip(-1).cumsum(-1).flip(-1)
        above = torch.cat([above, torch.zeros_like(above[..., :1])], dim=-1)
        half = below[..., 1:-1] < 0.5
        cuts = torch.where(
            half,
            torch.special.ndtri(below[..., 1:-1].clamp(0.0, 1.0)),
            -torch.special.ndtri(above[..., 1:-1].clamp(0.0, 1.0)),
        )
        index = (z.unsqueeze(-1) > cuts).sum(dim=-1, keepdim=True)
        knots = self.standard_knots
        low, high = _pick(knots[..., :-1], index), _pick(knots[..., 1:], index)
        mass = _pick(self.masses, index)
        p_low, p_high = _pick(below[..., :-1], index), _pick(above[..., 1:], index)
        flip = low + high > 0
        z_side = torch.where(flip, -z, z)
        low, high = torch.where(flip, -high, low), torch.where(flip, -low, high)
        p_side = torch.where(flip, p_high, p_low)
        flags = torch.tensor(self.uniform, device=z.device)[index.squeeze(-1)]
        value = _piece_quantile(z_side, low, high, mass, p_side, flags)
        value = torch.where(flip, -value, value)
        return value if self.scale is None else value * self.scale

    @property
    def mean(self) -> Tensor:
        """``E[Z]``, of shape ``batch_shape``."""
        if self.knots.dtype != torch.float64:  # narrow pieces need the digits
            return self.to(torch.float64).mean.to(self.knots.dtype)
        return (self.masses * self._piece_moments()[0]).sum(dim=-1)

    @property
    def variance(self) -> Tensor:
        """``Var[Z]``, of shape ``batch_shape``."""
        if self.knots.dtype != torch.float64:
            return self.to(torch.float64).variance.to(self.knots.dtype)
        mean, var = self._piece_moments()
        center = (self.masses * mean).sum(dim=-1, keepdim=True)
        return (self.masses * (var + (mean - center).square())).sum(dim=-1)

    def _piece_moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance within each piece, ``batch_shape x K``."""
        flags = torch.tensor(self.uniform, device=self.knots.device)
        low, high = self.standard_knots[..., :-1], self.standard_knots[..., 1:]
        log_mass = log_normal_interval(low, high)

        def edge(knot: Tensor) -> tuple[Tensor, Tensor]:
            finite = knot.isfinite()
            safe = knot.masked_fill(~finite, 0.0)
            # Masked on either side: beyond 37 deviations the exponential would overflow
            log_ratio = (log_phi(safe) - log_mass).masked_fill(~finite, 0.0)
            ratio = log_ratio.exp().where(finite, torch.zeros_like(knot))
            return ratio, safe * ratio

        (ratio_low, slope_low), (ratio_high, slope_high) = edge(low), edge(high)
        mean = ratio_low - ratio_high
        var = (1 + slope_low - slope_high - mean.square()).clamp(min=0.0)
        low_u, high_u = low.masked_fill(~flags, 0.0), high.masked_fill(~flags, 1.0)
        mean = torch.where(flags, (low_u + high_u) / 2, mean)
        var = torch.where(flags, (high_u - low_u).square() / 12, var)
        if self.scale is None:
            return mean, var
        scale = self.scale.unsqueeze(-1)
        return mean * scale, var * scale.square()


def half_width_from_p_value(threshold: Tensor, max_width: float) -> Tensor:
    """``Phi^-1(1 - threshold / 2)``, clamped to at most ``max_width`` and never below 0."""
    # In float32 the p-value of a wide interval underflows to a number ndtri cannot invert.
    floor = max(math.erfc(max_width / math.sqrt(2)), 2 * torch.finfo(threshold.dtype).tiny)
    return -torch.special.ndtri(threshold.clamp(min=floor, max=1.0) / 2)


def _tail_scale(tails: str, levels: Tensor, knots: Tensor) -> Tensor | None:
    """For stretched tails, the spread of the quantiles over the normal one, ``batch_shape``."""
    if tails == "gaussian":
        return None
    if tails != "stretched" or levels.shape[-1] < 2:
        raise InputDataError(
            f"`tails` must be 'gaussian' or, with two or more `levels`, 'stretched': got {tails!r}."
        )
    normal = torch.special.ndtri(levels.to(knots))
    ratio = (knots[..., -1] - knots[..., 0]) / (normal[-1] - normal[0])
    return ratio.clamp(min=MIN_HALF_WIDTH)


def _spread(knots: Tensor) -> Tensor:
    """Sorted knots, moved apart to at least a small gap (infinite ones stay)."""
    gap = max(MIN_GAP, 1e4 * torch.finfo(knots.dtype).eps)  # so that a piece has inner points
    steps = gap * torch.arange(knots.shape[-1], dtype=knots.dtype, device=knots.device)
    return (knots - steps).cummax(dim=-1).values + steps


def _pick(values: Tensor, index: Tensor) -> Tensor:
    """``values`` (``... x K``) at ``index`` (``shape x 1``), broadcast to ``shape``."""
    shape = torch.broadcast_shapes(values.shape[:-1], index.shape[:-1])
    values = values.expand(*shape, values.shape[-1])
    return values.gather(-1, index.expand(*shape, 1)).squeeze(-1)


def _piece_quantile(
    z: Tensor, low: Tensor, high: Tensor, mass: Tensor, p_low: Tensor, uniform: Tensor
) -> Tensor:
    """Quantile at ``Phi(z)`` of the piece ``[low, high]`` in which it falls (lower side)."""
    open_low = low.isneginf()
    tiny = torch.finfo(z.dtype).tiny
    mass = mass.clamp(min=tiny)
    inside = ((ndtr(z) - p_low) / mass).clamp(min=0.0, max=1.0)
    low_safe = low.masked_fill(open_low, 0.0)
    flat = low_safe + (high.masked_fill(~uniform, 1.0) - low_safe) * inside
    # log(Phi(low) + inside * mass of [low, high]); an open piece needs log Phi(z) itself.
    log_inside = torch.where(open_low, log_ndtr(z) - mass.log(), inside.clamp(min=tiny).log())
    log_low = log_ndtr(low.masked_fill(open_low, -1.0)).masked_fill(open_low, LOG_ZERO)
    log_p = torch.logaddexp(log_low, log_inside + log_normal_interval(low, high))
    # At the upper end rounding may exceed Phi(high) slightly.
    normal = ndtri_exp(log_p.clamp(max=-tiny))
    normal = torch.minimum(torch.maximum(normal, low), high)
    return torch.where(uniform, flat, normal)
