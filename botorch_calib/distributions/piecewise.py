r"""`PiecewisePredictive`: the distribution of a standardised observation, given by pieces.

Every calibrator returns the predictive distribution of ``z = (y - mu) / sigma_y``, where the
Gaussian process predicts the mean ``mu`` and the standard deviation ``sigma_y`` of the observation
``y``. Knots ``k_0 < ... < k_K`` divide the line into ``K`` pieces; the outer knots may be infinite.
Between ``k_{j-1}`` and ``k_j``, piece ``j`` has the mass ``m_j`` and the shape of a uniform or a
truncated normal density. The *scale* is the standard deviation of normal pieces before truncation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.utils.probability.utils import log_phi
from torch import Tensor

from botorch_calib._validation import (
    check_instance,
    check_levels,
    check_numbers,
    check_one_of,
    check_open_unit,
    check_positive,
    check_tensor,
    in_double,
)
from botorch_calib.distributions import _normal_functions as nf
from botorch_calib.distributions._piecewise_transport import cuts, probabilities, transported
from botorch_calib.distributions.form import PiecewiseForm
from botorch_calib.exceptions import warn

# Smallest half-width of an interval and smallest gap between knots. Smaller widths and gaps are
# increased to these limits, which keeps densities finite. The thresholds in a calibrator's state
# are not changed.
MIN_HALF_WIDTH = 1e-3
MIN_GAP = 1e-6
# Smallest mass of an open outer piece for which differences of tail integrals lose few digits in
# inner pieces. If a mass may be smaller, the form is `hollow`: each piece is integrated separately.
MIN_COVER = 1e-6
# Largest half-width, in units of the scale, for which one quadrature rule integrates a stretched
# form exactly. Wider distributions are integrated like other piecewise distributions.
_LARGEST_STRETCHED = 3.5
_FAR = 1e30  # replaces an infinite knot where a finite number is needed
NO_BATCH = torch.Size()


class WithMoments:
    """A distribution whose mean and variance are computed together, by `moments`."""

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the mean and the variance, which share one computation."""
        raise NotImplementedError

    @property
    def mean(self) -> Tensor:
        """Mean, the first result of `moments`."""
        return self.moments()[0]

    @property
    def variance(self) -> Tensor:
        """Variance, the second result of `moments`."""
        return self.moments()[1]


class PiecewisePredictive(WithMoments):
    """A distribution on the real line made of uniform and truncated normal pieces.

    In a posterior, it is the distribution of standardised observations ``z = (y - mu) / sigma_y``,
    and its batch shape can be broadcast to the shape of the posterior mean. All methods are
    differentiable in ``knots``, ``masses`` and ``scale``. Numbers that are not tensors are
    converted to double precision, and masses and scales to the precision of the knots.

    Args:
        knots: Ends of the ``K`` pieces, increasing along the last dimension. Give all knots,
            ``batch_shape x (K + 1)``, where the first and the last may be infinite, or only the
            ``K - 1`` inner knots if both outer knots are infinite.
        masses: Probabilities of the pieces, ``batch_shape x K``, nonnegative with sum 1. Their
            batch shape broadcasts against the batch shape of ``knots``.
        uniform: For each piece, whether the piece is uniform; otherwise it is a truncated normal
            distribution. The knots of a uniform piece must be finite.
        scale: Standard deviation of the normal pieces before truncation, ``batch_shape`` (default:
            1).
        validate: Whether to check the values, which reads them back from the device.

    Raises:
        InputDataError: If knots decrease or are NaN, masses are negative or do not sum to 1,
            ``scale`` is not positive, or a uniform piece is unbounded.
        BotorchTensorDimensionError: If the numbers of knots, masses and ``uniform`` flags disagree.

    Example:
        >>> predictive = PiecewisePredictive([-1.0, 1.0], [0.1, 0.8, 0.1], [False, True, False])
        >>> predictive.cdf(0.0)
        tensor(0.5000, dtype=torch.float64)
    """

    form: PiecewiseForm
    masses: Tensor
    scale: Tensor | None
    _knots: Tensor  # the finite knots, divided by the scale
    _expanded: torch.Size = NO_BATCH
    # Mean and variance of ``z / scale``, if computed in advance
    _moments: tuple[Tensor, Tensor] | None = None

    def __init__(
        self,
        knots: Tensor | Sequence[float],
        masses: Tensor | Sequence[float],
        uniform: Sequence[bool],
        scale: Tensor | float | None = None,
        validate: bool = True,
    ) -> None:
        knots, masses = _as_tensor("knots", knots), _as_tensor("masses", masses)
        scale = None if scale is None else _as_tensor("scale", scale).to(knots)
        num_pieces, num_knots = masses.shape[-1], knots.shape[-1]
        only_inner = num_knots == num_pieces - 1
        if not (only_inner or num_knots == num_pieces + 1) or len(uniform) != num_pieces:
            raise BotorchTensorDimensionError(
                f"{num_pieces} `masses` need {num_pieces + 1} `knots` (or {num_pieces - 1} inner "
                f"ones) and {num_pieces} `uniform` flags, got {num_knots} and {len(uniform)}."
            )
        flags = tuple(bool(flag) for flag in uniform)
        form = PiecewiseForm(flags, open_low=only_inner, open_high=only_inner)
        if validate and scale is not None and not (scale > 0).all():
            raise InputDataError("`scale` must be positive.")
        masses = masses.to(knots)
        if validate:
            knots, form = _validated(knots, masses, form)
        if scale is not None:
            knots = _times(knots, scale.reciprocal())
        self._knots, self.masses, self.form, self.scale = knots, masses, form, scale

    @classmethod
    def from_form(
        cls, knots: Tensor, masses: Tensor, form: PiecewiseForm, scale: Tensor | None = None
    ) -> PiecewisePredictive:
        """Make a distribution without checks; ``knots`` are the finite knots over the scale."""
        self = cls.__new__(cls)
        self._knots, self.masses, self.form, self.scale = knots, masses.to(knots), form, scale
        return self

    def _viewed(self, scale: Tensor | None, expanded: torch.Size = NO_BATCH) -> PiecewisePredictive:
        """Return a distribution with these knots and masses, and another scale and expansion."""
        view = copy(self)
        view.scale, view._expanded = scale, expanded
        return view

    # ---------------------------------------------------------------- constructors

    @classmethod
    def gaussian(
        cls,
        shape: Sequence[int] | torch.Size = (),
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> PiecewisePredictive:
        """Make a batch of standard normal distributions, which leave predictions unchanged."""
        knots = torch.empty(*shape, 0, dtype=dtype, device=device)
        masses = torch.ones(1, dtype=dtype, device=device)
        return cls.from_form(knots, masses, _GAUSSIAN)

    @classmethod
    def conformal(
        cls,
        alpha: float,
        half_width: Tensor | float,
        max_width: float = 3.4,
        tails: str = "gaussian",
        validate: bool = True,
    ) -> PiecewisePredictive:
        r"""Make a distribution from a conformal interval [Kim2024locbo, eq. 29].

        The mass ``1 - alpha`` is distributed uniformly over the interval, and each side outside
        the interval has the mass ``alpha / 2``.

        Args:
            alpha: Miscoverage level, in (0, 1).
            half_width: Half-width ``w`` of the interval ``|z| <= w``, ``batch_shape``.
            max_width: Cap on the half-width, in standard deviations of the observation.
            tails: Shape of the density outside the interval. ``"gaussian"`` truncates the standard
                normal density, so the outer mass is close to the ends of a wide interval.
                ``"stretched"`` truncates a normal density of the scale at which its central ``1 -
                alpha`` interval is the conformal interval.
            validate: Whether to check and cap ``half_width``, which reads it back from the device.
                If False, ``half_width`` must be between `MIN_HALF_WIDTH` and ``max_width``.

        Warns:
            CalibrationWarning: If a half-width exceeds ``max_width``.
        """
        check_open_unit("alpha", alpha)
        check_positive("max_width", max_width)
        check_one_of("tails", tails, ("gaussian", "stretched"))
        width = _as_tensor("half_width", half_width)
        if validate:
            if width.isnan().any():
                raise InputDataError("`half_width` contains NaN.")
            if (width > max_width).any():
                warn(
                    f"`half_width` reaches {width.detach().max().item():.3g}, beyond `max_width`: "
                    f"capped at {max_width:g}, the interval has less than its nominal coverage. "
                    "Increase `max_width`."
                )
            width = width.clamp(min=MIN_HALF_WIDTH, max=max_width)
        standard = _standard_conformal(alpha, width.dtype, width.device)
        if tails == "stretched":
            return standard._viewed(width / standard._knots[1])
        knots = torch.stack([-width, width], dim=-1)
        return cls.from_form(knots, standard.masses, _CONFORMAL)

    @classmethod
    def recalibrated(
        cls,
        levels: Tensor | Sequence[float],
        knots: Tensor | Sequence[float],
        max_width: float = 8.0,
        tails: str = "gaussian",
        validate: bool = True,
        hollow: bool = False,
    ) -> PiecewisePredictive:
        """Make the distribution whose ``levels[j]``-quantile is ``knots[..., j]``.

        Knots of an online learner may cross. They are sorted (monotone rearrangement), which does
        not increase the error of the quantile estimates.

        Args:
            levels: ``M`` increasing levels in (0, 1).
            knots: Quantiles at these levels, ``batch_shape x M``.
            max_width: Cap on the absolute values of the quantiles.
            tails: ``"gaussian"`` truncates the standard normal density between and beyond the
                quantiles. ``"stretched"`` truncates a normal density whose standard deviation is
                the distance between the outermost knots, divided by the distance between the
                standard normal quantiles at the same levels.
            validate: Whether to check ``levels`` and ``knots``, which reads them back from the
                device, to cap ``knots``, and to set ``hollow`` if needed.
            hollow: Whether a tail may have less mass than `MIN_COVER`. With noise, each piece is
                then integrated separately, which takes longer.
        """
        levels, knots = _as_tensor("levels", levels), _as_tensor("knots", knots)
        if validate:
            check_levels("levels", levels)
            if knots.isnan().any():
                raise InputDataError("`knots` contains NaN.")
            knots = knots.clamp(-max_width, max_width)
            hollow = hollow or has_rare_ends(levels)
        check_positive("max_width", max_width)
        if knots.shape[-1] != levels.shape[-1]:
            raise BotorchTensorDimensionError(
                f"`levels` has {levels.shape[-1]} entries, `knots` {knots.shape[-1]}."
            )
        ordered = _spread(knots.sort(dim=-1).values)
        padded = torch.cat([levels.new_zeros(1), levels, levels.new_ones(1)])
        masses = padded.diff().to(ordered)
        form = PiecewiseForm((False,) * len(masses), open_low=True, open_high=True, hollow=hollow)
        if tails == "gaussian":
            return cls.from_form(ordered, masses, form)
        if tails != "stretched" or len(levels) < 2:
            raise InputDataError(
                "`tails` must be 'gaussian' or, with two or more `levels`, 'stretched': got "
                f"{tails!r}."
            )
        outermost = slice(None, None, len(levels) - 1)
        normal = torch.special.ndtri(levels.to(ordered)[outermost]).diff()
        scale = (ordered[..., outermost].diff(dim=-1) / normal).clamp(min=MIN_HALF_WIDTH)
        return cls.from_form(ordered * scale.reciprocal(), masses, form, scale.squeeze(-1))

    # ---------------------------------------------------------------- description

    @property
    def uniform(self) -> tuple[bool, ...]:
        """For each piece, whether its density is constant."""
        return self.form.uniform

    @property
    def is_standard_normal(self) -> bool:
        """Whether the only piece is a normal piece without bounds, and ``scale`` is None."""
        return self.form.is_gaussian and self.scale is None

    @property
    def batch_shape(self) -> torch.Size:
        """Common shape of the distributions in this batch."""
        shapes = {self._knots.shape[:-1], self.masses.shape[:-1], self._expanded}
        if self.scale is not None:
            shapes.add(self.scale.shape)
        shapes.discard(NO_BATCH)
        # `broadcast_shapes` takes as long as ten tensor operations, so equal shapes skip it.
        return torch.broadcast_shapes(*shapes) if len(shapes) > 1 else next(iter(shapes), NO_BATCH)

    def mirrored(self) -> PiecewisePredictive:
        """Return the distribution of ``-z``."""
        knots, masses = -self._knots.flip(-1), self.masses.flip(-1)
        twin = PiecewisePredictive.from_form(knots, masses, self.form.mirrored())
        return twin._viewed(self.scale, self._expanded)

    def standardized(self) -> PiecewisePredictive:
        """Return the distribution of ``z / scale``, which has scale 1 and is not expanded."""
        return self if self.scale is None and not self._expanded else self._viewed(None)

    def times(self, factor: Tensor) -> PiecewisePredictive:
        """Return the distribution of ``factor z``.

        ``factor`` is positive, and broadcasts against the batch shape.
        """
        check_tensor("factor", factor)
        scale = factor if self.scale is None else factor * self.scale
        shape = torch.broadcast_shapes(self._expanded, factor.shape) if self._expanded else NO_BATCH
        return self._viewed(scale, shape)

    def expand(self, shape: torch.Size) -> PiecewisePredictive:
        """Return the same distribution, broadcast to a batch shape without a copy."""
        return self._viewed(self.scale, shape)

    @property
    def is_expanded(self) -> bool:
        """Whether `expand` set the batch shape, so that points may share one distribution."""
        return bool(self._expanded)

    def to(self, dtype: torch.dtype) -> PiecewisePredictive:
        """Return the same distribution in another floating-point type."""
        check_instance("dtype", dtype, torch.dtype, "torch.float64")
        if self._knots.dtype == dtype and (self.scale is None or self.scale.dtype == dtype):
            return self
        knots, scale = self._knots.to(dtype), None if self.scale is None else self.scale.to(dtype)
        if torch.finfo(dtype).eps > torch.finfo(self._knots.dtype).eps:
            # Rounding may have made knots equal, so they are moved apart again.
            knots = _without_open_ends(_spread(self.form.pad(knots, dim=-1)), self.form)
        twin = PiecewisePredictive.from_form(knots, self.masses, self.form)
        return twin._viewed(scale, self._expanded)

    def __repr__(self) -> str:
        kinds = "".join("u" if flag else "g" for flag in self.uniform)
        return f"PiecewisePredictive(batch_shape={tuple(self.batch_shape)}, pieces={kinds!r})"

    @property
    def knots(self) -> Tensor:
        """All knots, ``batch_shape x (K + 1)``; the outer knots may be infinite."""
        knots = self._unit_knots if self.scale is None else _times(self._unit_knots, self.scale)
        return knots.expand(*self._expanded, -1) if self._expanded else knots

    @property
    def _unit_knots(self) -> Tensor:
        """All knots divided by the scale, ``... x (K + 1)``."""
        return self.form.pad(self._knots, dim=-1)

    @property
    def finite_knots(self) -> Tensor:
        """All knots except outer knots that are infinite throughout the batch.

        The shape is ``batch_shape x num_finite_knots``. An outer knot that is infinite in only a
        part of the batch is clamped to a large number.
        """
        knots = self._knots if self.form.is_open else self._knots.clamp(min=-_FAR, max=_FAR)
        knots = knots if self.scale is None else knots * self.scale.unsqueeze(-1)
        return knots.expand(*self._expanded, -1) if self._expanded else knots

    @property
    def log_masses(self) -> Tensor:
        """Log masses, ``batch_shape x K``; `LOG_ZERO`, without a gradient, for a mass of 0."""
        log_masses = self.masses.clamp(min=torch.finfo(self.masses.dtype).tiny).log()
        return log_masses.masked_fill(self.masses == 0, nf.LOG_ZERO)

    def _log_weights(self, knots: Tensor) -> Tensor:
        """Return ``log(mass / natural mass)`` of all pieces (natural mass: see `piece_logs`)."""
        flags, low, high = self.form.is_uniform(knots.device), knots[..., :-1], knots[..., 1:]
        width = high.masked_fill(~flags, 1.0) - low.masked_fill(~flags, 0.0)
        return self.log_masses - torch.where(flags, width.log(), nf.log_normal_interval(low, high))

    # ---------------------------------------------------------------- the distribution itself

    def _in_own_units(self, value: Tensor | float) -> Tensor:
        """Return ``value / scale`` as a tensor, expanded if this distribution is expanded."""
        if isinstance(value, Tensor):
            z = value
        else:
            z = in_double("z", value, self._knots.device).to(self._knots)
        z = z if self.scale is None else z / self.scale
        return z.expand(torch.broadcast_shapes(z.shape, self._expanded)) if self._expanded else z

    def cdf(self, z: Tensor | float) -> Tensor:
        """Return ``P(Z <= z)``; ``z`` broadcasts against ``batch_shape``."""
        if self._knots.dtype != torch.float64:  # narrow pieces need double precision
            dtype = z.dtype if isinstance(z, Tensor) else self._knots.dtype
            z = z.double() if isinstance(z, Tensor) else z
            return self.to(torch.float64).cdf(z).to(dtype)
        z, knots = self._in_own_units(z).unsqueeze(-1), self._unit_knots
        low, high = knots[..., :-1], knots[..., 1:]
        inside = torch.minimum(torch.maximum(z, low), high)
        normal = torch.exp(nf.log_normal_interval(low, inside) + self._log_weights(knots))
        flags = self.form.is_uniform(low.device)
        low_u = low.masked_fill(~flags, 0.0)
        width = high.masked_fill(~flags, 1.0) - low_u
        flat = self.masses * (inside.masked_fill(~flags, 0.0) - low_u) / width
        # `<=` is false for NaN, so NaN stays NaN.
        below = inside <= low
        part = torch.where(below, torch.zeros_like(inside), torch.where(flags, flat, normal))
        return part.sum(dim=-1).clamp(max=1.0)

    def log_prob(self, z: Tensor | float) -> Tensor:
        """Return the log density at ``z``; at a knot, the log density of the piece to its left."""
        z, knots = self._in_own_units(z), self._unit_knots
        z = z.expand(torch.broadcast_shapes(z.shape, self.batch_shape))
        index = (z.unsqueeze(-1) > knots[..., 1:-1]).sum(dim=-1, keepdim=True)
        weights = self._log_weights(knots).expand(*z.shape, -1)
        weight, index = weights.gather(-1, index).squeeze(-1), index.squeeze(-1)
        flags = self.form.is_uniform(z.device)
        value = weight + torch.where(flags[index], torch.zeros_like(z), log_phi(z))
        outside = (z < knots[..., 0]) | (z > knots[..., -1])
        value = value.masked_fill(outside, -math.inf)
        return value if self.scale is None else value - self.scale.log()

    def quantile(self, p: Tensor | float) -> Tensor:
        """Return the ``p``-quantile; ``p`` broadcasts against ``batch_shape``.

        Levels ``p`` are in (0, 1). The check of a tensor synchronizes with its device. If ``p`` is
        a number, its normal score ``Phi^-1(p)`` is computed in double precision, so that ``p`` may
        be closer to 0 or 1 than the precision of the knots resolves.
        """
        if not isinstance(p, Tensor):
            level = self._knots.new_tensor(check_open_unit("p", p), dtype=torch.float64)
            return self.transport(torch.special.ndtri(level).to(self._knots.dtype))
        if not ((p > 0) & (p < 1)).all():
            raise InputDataError("`p` must contain levels in the open interval (0, 1).")
        return self.transport(torch.special.ndtri(p))

    def transport(self, z: Tensor) -> Tensor:
        r"""Return ``Q(Phi(z))``, with ``Q`` the quantile function of this distribution.

        This is the monotone map from the standard normal to this distribution. The argument is
        ``z`` instead of ``Phi(z)``, so both tails keep their digits. ``z`` broadcasts against
        ``batch_shape``; sample dimensions come first.
        """
        check_tensor("z", z)
        if self._expanded:
            z = z.expand(torch.broadcast_shapes(z.shape, self._expanded))
        if self.form.is_gaussian:
            z = z.expand(torch.broadcast_shapes(z.shape, self.batch_shape))
        elif self.form.stretched:
            z = self._transport_stretched(z)
        else:
            flags = self.form.is_uniform(z.device) if any(self.uniform) else None
            z = transported(z, self._unit_knots, self.masses, flags)
        return z if self.scale is None else z * self.scale

    def breaks(self) -> Tensor:
        """Return the normal scores that `transport` maps to the inner knots, ``... x (K - 1)``."""
        return cuts(*probabilities(self.masses))

    def _transport_stretched(self, z: Tensor) -> Tensor:
        """Return `transport` of a conformal distribution with stretched tails.

        In units of the scale, the interval is ``[-c, c]`` with ``c = Phi^-1(1 - alpha/2)``. Both
        tails are standard normal, so ``|z| > c`` maps to itself. Otherwise the value ``T`` in the
        interval has the fraction ``(T + c) / (2 c) = (Phi(z) - alpha/2) / (1 - alpha)`` of the
        interval below it, so ``T = c (2 Phi(z) - 1) / (1 - alpha)``.
        """
        tail, center, _ = self.masses.unbind(-1)
        end = -torch.special.ndtri(tail)
        inside = torch.erf(z * math.sqrt(0.5)) * (end / center)
        return torch.where(z.abs() > end, z, inside)

    def moments(self) -> tuple[Tensor, Tensor]:
        dtype = self._knots.dtype
        if dtype != torch.float64:  # narrow pieces need double precision
            mean, variance = self.to(torch.float64).moments()
            return mean.to(dtype), variance.to(dtype)
        mean, variance = self._moments or self._moments_of_pieces()
        if self.scale is not None:
            mean, variance = mean * self.scale, variance * self.scale.square()
        if self._expanded:
            mean, variance = mean.expand(self.batch_shape), variance.expand(self.batch_shape)
        return mean, variance

    def _moments_of_pieces(self) -> tuple[Tensor, Tensor]:
        """Return the mean and the variance of ``z / scale``.

        For a uniform piece, the mean square of ``z - c`` is ``(l^2 + l h + h^2) / 3`` for any
        number ``c``, with ``l = low - c`` and ``h = high - c``. For normal pieces see
        `normal_moments`.
        """
        finite, masses, form = self.standardized().finite_knots, self.masses, self.form
        if form.is_gaussian:
            shape = torch.broadcast_shapes(finite.shape[:-1], masses.shape[:-1])
            return masses.new_zeros(shape), masses.new_ones(shape)
        dim = max(finite.dim(), masses.dim())
        finite, masses = (v[(None,) * (dim - v.dim())].movedim(-1, 0) for v in (finite, masses))
        knots = form.pad(finite, -_FAR, _FAR)
        low, high = knots[:-1], knots[1:]
        normal = masses * form.is_normal(knots.device).view(-1, *[1] * (knots.dim() - 1))
        mean, square = nf.normal_moments(knots, normal)
        if not any(form.uniform):
            return mean, (1 + square - mean.square()).clamp(min=0.0)
        pieces = [k for k, flag in enumerate(form.uniform) if flag]
        flat, low, high = masses[pieces], low[pieces], high[pieces]
        normal_mean, mean = mean, mean + (flat * (low + high) / 2).sum(dim=0)
        low, high = low - mean, high - mean
        spread = (flat * (low.square() + low * high + high.square())).sum(dim=0) / 3
        around = normal.sum(dim=0) * (1 + mean.square()) + square - 2 * mean * normal_mean
        return mean, (around + spread).clamp(min=0.0)


_GAUSSIAN = PiecewiseForm((False,), open_low=True, open_high=True)
_CONFORMAL = PiecewiseForm((False, True, False), open_low=True, open_high=True)


@nf.cached_constant
def _standard_conformal(
    alpha: float, dtype: torch.dtype, device: torch.device
) -> PiecewisePredictive:
    """Return the conformal predictive of scale 1, whose interval has the mass ``1 - alpha``.

    A uniform piece of mass ``1 - alpha`` is between two standard normal tails of mass ``alpha / 2``
    each.
    """
    masses = torch.tensor([alpha / 2, 1 - alpha, alpha / 2], dtype=dtype, device=device)
    quantile = -torch.special.ndtri(masses[0])
    knots = torch.stack([-quantile, quantile])
    is_narrow = quantile <= _LARGEST_STRETCHED
    form = replace(_CONFORMAL, stretched=alpha if is_narrow else 0.0)
    standard = PiecewisePredictive.from_form(knots, masses, form)
    standard._moments = standard.moments()
    return standard


def _times(knots: Tensor, factor: Tensor) -> Tensor:
    """Return ``factor * knots``, in which infinite knots stay infinite and have no gradient."""
    infinite = knots.isinf()
    return torch.where(infinite, knots, knots.masked_fill(infinite, 0.0) * factor.unsqueeze(-1))


def _without_open_ends(knots: Tensor, form: PiecewiseForm) -> Tensor:
    return knots[..., int(form.open_low) : knots.shape[-1] - int(form.open_high)]


def _as_tensor(name: str, value: Tensor | Sequence[float] | float) -> Tensor:
    """Return a tensor unchanged; check other numbers for NaN, and convert them to float64."""
    return value if isinstance(value, Tensor) else check_numbers(name, value)


def _validated(knots: Tensor, masses: Tensor, form: PiecewiseForm) -> tuple[Tensor, PiecewiseForm]:
    """Return the finite knots, at least `MIN_GAP` apart, and the form with all of its flags.

    Raise ``InputDataError`` if values are invalid. ``form`` has the flags ``uniform``, and marks
    both outer knots as infinite if ``knots`` are the inner knots.
    """
    knots = form.pad(knots, dim=-1)
    gaps = knots.diff(dim=-1)
    if knots.isnan().any() or not (gaps >= 0).all():
        raise InputDataError("`knots` must increase along the last dimension.")
    total = masses.sum(dim=-1)
    tol = 10 * torch.finfo(total.dtype).eps * form.num_pieces
    if not ((masses >= 0).all() and ((total - 1).abs() <= tol).all()):
        raise InputDataError("`masses` must be nonnegative and sum to 1.")
    if not gaps[..., list(form.uniform)].isfinite().all():
        raise InputDataError("A `uniform` piece needs finite `knots` at both ends.")
    if not (gaps >= MIN_GAP).all():
        knots = _spread(knots)
    low, high = (bool(knots[..., i].isinf().all()) for i in (0, -1))
    hollow = bool((masses[..., [0, -1]] < MIN_COVER).any())
    form = PiecewiseForm(form.uniform, open_low=low, open_high=high, hollow=hollow)
    return _without_open_ends(knots, form), form


def has_rare_ends(levels: Tensor) -> bool:
    """Return whether the mass below the first or above the last level is below `MIN_COVER`.

    Cancellation errors of inner pieces are then too large compared with the mass of the outer
    pieces. The increasing ``levels`` are read back from their device.
    """
    return bool(min(levels[0], 1.0 - levels[-1]) < MIN_COVER)


def _spread(knots: Tensor) -> Tensor:
    """Return sorted knots, moved apart to at least a small gap. Infinite knots do not move.

    After ``j`` gaps are subtracted from knot ``j``, a knot that is too close to its left neighbour
    is smaller than this neighbour. The running maximum raises it, and the gaps are added back.
    """
    gap = max(MIN_GAP, 1e4 * torch.finfo(knots.dtype).eps)  # 1e4 or more floats per gap near 1
    steps = gap * torch.arange(knots.shape[-1], dtype=knots.dtype, device=knots.device)
    return (knots - steps).cummax(dim=-1).values + steps
