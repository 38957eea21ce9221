"""`AggregatedQuantileTracker`: a weighted average of trackers with different settings.

The trackers are called members, and all members of one average are called a bank. The weight of a
member depends on its losses so far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from numbers import Real
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor
from torch.nn.functional import hardtanh

from botorch_calib._validation import check_count, check_nonnegative, check_positive
from botorch_calib.calibration.learners.online import Localization, OnlineQuantileTracker, descend
from botorch_calib.calibration.learners.quantile_learner import QuantileLearner, Thresholds
from botorch_calib.calibration.learners.radial_sum import RadialSum

#: Default step size of a single tracker.
STEP_SIZE = 0.05
#: Default settings of a bank of trackers; its members have all combinations of the first three.
LENGTHSCALES = (0.1, 0.25, math.inf)
SCALES = (1.0,)
STEP_SIZES = (0.05, 0.1, 0.2)
STEP_DECAY = 0.3

# Constants of the safety net of `AggregatedQuantileTracker`. The net has no effect on a threshold
# while the shortfall of its outcomes is within a width, which is initially _ROOM. Beyond the width
# it shifts the threshold by the excess, divided by _RAMP.
_ROOM, _RAMP = 8.0, 2.0
# Lower limit of the gap, which is the denominator of AdaHedge's rate, ln K / gap, for K members. At
# this limit a member whose loss exceeds the least loss by 1e-10 has a weight below 1e-30, so only
# the best members have weight, as they should at gap 0.
_LEAST_GAP = 1e-12

# `_net` takes NumPy arrays in a loop over observations, which is faster, and otherwise tensors.
Array = TypeVar("Array", np.ndarray, Tensor)

#: A setting of a tracker: one number, or several numbers for a bank of trackers.
Setting = float | Sequence[float]


class Member(NamedTuple):
    """Settings of one tracker of a bank: see `OnlineQuantileTracker`."""

    lengthscale: float
    scale: float
    step_size: float


class AggregatedQuantileTracker(QuantileLearner):
    r"""A bank of trackers, averaged online with weights that depend on their pinball losses.

    Each of the ``K`` trackers (members) is an `OnlineQuantileTracker` with its own lengthscale,
    scale and step size. The members' thresholds are averaged. After the observations before ``t``,
    member ``k`` has the weight ``w_k ~ exp(-gamma_t L_k)``, where ``L_k`` is the member's
    accumulated pinball loss, summed over the levels. The rate ``gamma_t = ln K / Delta_t`` is
    AdaHedge's [deRooij2014] and needs no tuning. ``Delta_t``, the accumulated gap, is the sum over
    the observations of the weighted mean of the members' losses ``l_k``, minus their mix loss
    ``-ln(sum_k w_k exp(-gamma l_k)) / gamma``. The pinball loss is convex, and clamping the average
    to [0, 1] does not increase the loss. Therefore the loss of the average is at most the loss of
    the best member plus ``2 sqrt(V ln K)`` and lower-order terms, where ``V`` is the accumulated
    variance of the members' losses. Dynamically-tuned adaptive conformal inference [Gibbs2024]
    averages over step sizes in the same way.

    An average of calibrated thresholds need not be calibrated, so a safety net is added, separately
    for each level ``p``. The outcome ``o_t`` is 1 if the score of observation ``t`` is at or below
    its threshold, and otherwise 0. Let ``b_t(x)`` be the average, clamped to [0, 1], and ``S_t =
    sum_{s < t} (p - o_s)`` the shortfall of the outcomes. The threshold is ``theta_t(x) = b_t(x) +
    r_t(S_t)`` with

        ``r_t(S) = sign(S) max(|S| - h_t, 0) / 2``,  ``h_t = 8 + 2 sqrt(p (1 - p) t)``.

    This is the saturated error integration of conformal PID control [Angelopoulos2023]. The net has
    no effect if ``|S_t| <= h_t``. The width ``h_t`` is twice the standard deviation of ``S_t`` for
    independent outcomes, plus 8 for the first steps.

    **Guarantee.** For *any* sequence of observations, ``|S_{T+1}| <= h_T + 3`` after ``T`` steps,
    so the mean outcome differs from ``p`` by at most ``(h_T + 3) / T``. If ``S_t`` exceeds
    ``h_t + 2``, the threshold is at least 1 and the outcome is 1, so ``S`` decreases. Likewise,
    ``S`` increases if it is below ``-(h_t + 2)``. One step changes ``S`` by less than 1.

    Args:
        levels: Strictly increasing levels in (0, 1), ``M``.
        lengthscales: Lengthscales of the members; infinity means a member without localization.
            There is a member for each combination of lengthscale, scale and step size.
        scales: Strengths of localization ``k(x, x) > 0`` of the members with finite lengthscales.
        step_sizes: First step sizes of the members.
        step_decay: Exponent of the decay of all members' step sizes over time.
        initial: Initial constants of all members in [0, 1], of shape ``M`` (default: ``levels``).

    Example:
        >>> tracker = AggregatedQuantileTracker(levels=[0.9])
        >>> before = tracker.update(X, torch.rand(20))  # thresholds before each score, 20 x 1
        >>> theta = tracker.threshold(X)

    .. [Angelopoulos2023]
        A. Angelopoulos, E. Candes and R. Tibshirani. Conformal PID control for time series
        prediction. NeurIPS, 2023.
    .. [deRooij2014]
        S. de Rooij, T. van Erven, P. Grunwald and W. Koolen. Follow the leader if you can,
        hedge if you must. JMLR, 2014.
    .. [Gibbs2024]
        I. Gibbs and E. Candes. Conformal inference for online prediction with arbitrary
        distribution shifts. JMLR, 2024.
    """

    constants: Tensor
    coefficients: Tensor
    shortfall: Tensor
    _settings = ("levels", "initial", "member_settings")
    losses: Tensor
    mixability_gap: Tensor
    _scales: Tensor
    _step_sizes: Tensor

    def __init__(
        self,
        levels: Tensor | Sequence[float],
        lengthscales: Sequence[float] = LENGTHSCALES,
        scales: Sequence[float] = SCALES,
        step_sizes: Sequence[float] = STEP_SIZES,
        step_decay: float = STEP_DECAY,
        initial: Tensor | Sequence[float] | None = None,
    ) -> None:
        members = _members(lengthscales, scales, step_sizes)
        super().__init__(levels, initial, num_columns=len(members) * len(levels))
        self.members = members
        self.step_decay = check_nonnegative("step_decay", step_decay)
        self._localizations = _localizations(members, len(self.levels))
        settings = self.levels.new_tensor(members)
        self.register_buffer("member_settings", settings)
        # Settings of each column (a member and a level of it). As buffers they move with the
        # module; they are not in the state dict, since `member_settings` determines them.
        columns = settings.repeat_interleave(len(self.levels), dim=0)
        self.register_buffer("_scales", columns[:, 1].clone(), persistent=False)
        self.register_buffer("_step_sizes", columns[:, 2].clone(), persistent=False)
        self.register_buffer("constants", self.initial.repeat(len(members), 1))
        self.register_buffer("shortfall", torch.zeros_like(self.levels))
        zeros = torch.zeros(len(members), dtype=torch.double, device=self.levels.device)
        self.register_buffer("losses", zeros)
        self.register_buffer("mixability_gap", zeros[0].clone())

    def extra_repr(self) -> str:
        levels = [round(level, 6) for level in self.levels.tolist()]
        return f"levels={levels}, members={len(self.members)}, step_decay={self.step_decay:g}"

    @property
    def localized(self) -> bool:
        """Whether some members' thresholds depend on the inputs."""
        return bool(self._localizations)

    @property
    def shortest_lengthscale(self) -> float:
        return min(member.lengthscale for member in self.members)

    @property
    def weights(self) -> Tensor:
        """Weights of the ``members`` for the next observation, ``K``, with sum 1."""
        return adahedge_weights(self.losses, self.mixability_gap)

    def _finished(self, sums: Tensor, shift: Tensor | float) -> Tensor:
        """Raw thresholds ``... x M``: ``sums`` clamped to [0, 1], plus the safety net's ``shift``.

        ``sums`` has the weighted average of the members' thresholds, ``... x M``.
        """
        # `hardtanh` is used as a clamp because its derivative is a single operation.
        return hardtanh(sums, 0.0, 1.0) + shift

    def _derive(self) -> Thresholds:
        """The members' average as ``M`` functions, so that ``K M`` functions need no evaluation."""
        shift = _net(self.shortfall, self._room(self.step_count + 1))
        weights, num = self.weights.to(self.levels), len(self.levels)
        constants = (weights.unsqueeze(-1) * self.constants).sum(dim=-2)
        if not len(self.centers):
            return Thresholds(self._finished(constants, shift))
        coefficients = self.coefficients * self._scales * weights.repeat_interleave(num)
        # Members with the same lengthscale have the same terms, so their coefficients are added.
        # The result has a block of t rows, one for each center, for each lengthscale.
        blocks = [
            coefficients[:, at.columns].unflatten(-1, (-1, num)).sum(dim=-2)
            for at in self._localizations
        ]
        lengthscales = [at.lengthscale for at in self._localizations]
        radial = RadialSum(constants, self.centers, lengthscales, torch.cat(blocks))
        return Thresholds(radial, shift)

    def reset(self) -> None:
        super().reset()
        self.constants = self.initial.repeat(len(self.members), 1)
        self.shortfall = torch.zeros_like(self.shortfall)
        self.losses = torch.zeros_like(self.losses)
        self.mixability_gap = torch.zeros_like(self.mixability_gap)

    def coverage_bound(self, num_steps: int) -> Tensor:
        """Return, for each level ``p``, an upper bound on ``|mean(o) - p|``, of shape ``M``.

        Here ``mean(o)`` is the fraction of the first ``num_steps`` scores that were at or below the
        threshold. The bound is valid for every sequence of inputs and of scores in [0, 1].
        """
        check_count("num_steps", num_steps)
        return (self._room(torch.tensor(num_steps)) + _RAMP + 1.0) / num_steps

    def _room(self, t: Tensor) -> Tensor:
        """The width ``h_t`` of the safety net (see the class) at step ``t``, for each level."""
        return _ROOM + 2.0 * (self.levels * (1.0 - self.levels) * t).sqrt()

    def _learn(self, X: Tensor, u: Tensor) -> Tensor:
        # Members learn independently of each other, so they can process all observations first. The
        # losses then give the weights before each observation.
        times = torch.arange(1, len(u) + 1, dtype=u.dtype, device=u.device) + self.num_updates
        decay = times.pow(-self.step_decay).unsqueeze(-1)
        levels, steps = self.levels.repeat(len(self.members)), decay * self._step_sizes
        state = self.constants.flatten(), self.centers, self.coefficients
        local = self._scales, self._localizations
        found = descend(X, u, levels, steps, [1.0] * len(u), state, *local)
        thresholds, constants, coefficients = found
        thresholds = thresholds.view(len(u), *self.constants.shape)
        scores = u.view(-1, 1, 1)
        losses = (scores - thresholds) * (self.levels - (scores <= thresholds).to(u))
        weights, total, gap = adahedge(losses.sum(dim=-1), self.losses, self.mixability_gap)
        # Scores are in [0, 1], so clamping the average does not increase its loss.
        mixed = (weights.to(u).unsqueeze(-1) * thresholds).sum(dim=-2).clamp(0.0, 1.0)
        used, shortfall = self._caught(u, mixed)

        self.constants, self.shortfall = constants.view_as(self.constants), shortfall
        self.losses, self.mixability_gap = total, gap
        self._store(X, coefficients)
        return used

    def _caught(self, u: Tensor, mixed: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the safety net to the members' averages ``mixed``, ``n x M``, for scores ``u``.

        Returns:
            The thresholds ``n x M``, and the shortfall ``M`` after the last observation.
        """
        t = torch.arange(1, len(u) + 1, dtype=u.dtype, device=u.device).unsqueeze(-1)
        room, levels, shortfall, scores, used = (
            values.cpu().numpy()
            for values in (self._room(t + self.num_updates), self.levels, self.shortfall, u, mixed)
        )
        used = used.copy()
        for score, theta, h in zip(scores, used, room, strict=True):
            theta += _net(shortfall, h)
            shortfall = shortfall + levels - (score <= theta)
        return torch.from_numpy(used).to(mixed), torch.from_numpy(shortfall).to(mixed)


def _members(
    lengthscales: Sequence[float], scales: Sequence[float], step_sizes: Sequence[float]
) -> list[Member]:
    """A member for each combination of settings, in increasing order of the lengthscale."""
    given = {"lengthscales": lengthscales, "scales": scales, "step_sizes": step_sizes}
    for name, values in given.items():
        if not values:
            raise InputDataError(f"`{name}` must not be empty.")
        for value in values:
            check_positive(name, value, allow_inf=name == "lengthscales")
    members = []
    for lengthscale in sorted(set(map(float, lengthscales))):
        # A member without localization has scale 0, so it is not repeated for each scale.
        strengths = [0.0] if math.isinf(lengthscale) else scales
        members += [Member(lengthscale, *rest) for rest in product(strengths, step_sizes)]
    return members


def _localizations(members: list[Member], num_levels: int) -> list[Localization]:
    """For each finite lengthscale, the columns of the members with this lengthscale.

    A column is a pair of a member and a level; the levels of a member are adjacent.
    """
    own = [member.lengthscale for member in members for _ in range(num_levels)]
    return [
        Localization(slice(own.index(scale), own.index(scale) + own.count(scale)), scale)
        for scale in dict.fromkeys(own)
        if math.isfinite(scale)
    ]


def _net(shortfall: Array, room: Array) -> Array:
    """The shift ``sign(S) max(|S| - h, 0) / 2`` of thresholds, where ``S`` is the shortfall.

    The width ``h`` of the safety net is ``room``. Both have an element for each level.
    """
    return (shortfall - shortfall.clip(-room, room)) / _RAMP


def quantile_learner(
    levels: Sequence[float] | Tensor,
    initial: Sequence[float] | Tensor,
    lengthscale: Setting | str,
    scale: Setting | None = None,
    step_size: Setting | None = None,
    step_decay: float | None = None,
    regularization: float = 0.0,
) -> OnlineQuantileTracker | AggregatedQuantileTracker:
    """Return a single tracker if every setting is a number or None, otherwise a bank of trackers.

    None selects the default of a single tracker (``scale`` 1, ``step_size`` `STEP_SIZE`,
    ``step_decay`` 0) or of a bank (`SCALES`, `STEP_SIZES`, `STEP_DECAY`). The ``lengthscale``
    ``"auto"`` selects a bank with `LENGTHSCALES`. A bank has a tracker for each combination of
    settings, and accepts no ``regularization`` except 0. For the other arguments see
    `OnlineQuantileTracker`.
    """
    several = any(isinstance(setting, Sequence) for setting in (scale, step_size))
    if isinstance(lengthscale, Real) and not several:
        strength = check_nonnegative("scale", 1.0 if scale is None else scale)
        local = strength if math.isfinite(lengthscale) else 0.0, float(lengthscale)
        steps = STEP_SIZE if step_size is None else step_size, step_decay or 0.0
        return OnlineQuantileTracker(levels, *steps, *local, regularization, initial)
    choices = (
        _choices("lengthscale", lengthscale, "auto", LENGTHSCALES),
        _choices("scale", scale, None, SCALES),
        _choices("step_size", step_size, None, STEP_SIZES),
    )
    if check_nonnegative("regularization", regularization):
        raise InputDataError(
            "`regularization` needs a single tracker: give `lengthscale` as one number, and omit "
            "`scale` and `step_size` or give one number for each."
        )
    step_decay = STEP_DECAY if step_decay is None else step_decay
    return AggregatedQuantileTracker(levels, *choices, step_decay, initial)


def _choices(
    name: str, setting: Setting | str | None, default: str | None, values: Sequence[float]
) -> Sequence[float]:
    """The setting called ``name`` as a sequence of positive numbers.

    The result is ``values`` if the setting equals ``default``. Infinity is allowed only for the
    lengthscale. Raises ``InputDataError`` for other settings.
    """
    if setting is None or isinstance(setting, str):
        if setting == default:
            return values
    elif isinstance(setting, Real | Sequence):
        numbers = setting if isinstance(setting, Sequence) else [setting]
        if not numbers:
            raise InputDataError(f"`{name}` must not be empty.")
        return [check_positive(name, each, allow_inf=name == "lengthscale") for each in numbers]
    given = repr(setting) if isinstance(setting, str | None) else type(setting).__name__
    raise InputDataError(
        f"`{name}` must be a number, a list of numbers or {default!r}, got {given}."
    )


# ------------------------------------------------------------ weights of the members


def adahedge_weights(losses: Tensor, gap: Tensor) -> Tensor:
    """AdaHedge's weights ``K`` of members with accumulated losses ``K`` and an accumulated gap.

    At gap 0 the members with the least loss share all weight equally.
    """
    # The computation stays in PyTorch, as predictions need the weights, and a copy to NumPy would
    # make them wait for the device.
    rate = math.log(max(len(losses), 2)) / gap.clamp(min=_LEAST_GAP)
    return torch.softmax(-rate * losses, dim=0)


def adahedge(rounds: Tensor, losses: Tensor, gap: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Run AdaHedge [deRooij2014], which needs no tuning, on ``n`` rounds of losses.

    The gap of a round is the weighted mean of the ``K`` losses less their mix loss: see
    `AggregatedQuantileTracker`.

    Args:
        rounds: Losses in each round, ``n x K``.
        losses: Accumulated losses before the first round, ``K``.
        gap: Accumulated gap before the first round, a scalar.

    Returns:
        Weights before each round, ``n x K``, and the accumulated losses, ``K``, and the accumulated
        gap after the last round.
    """
    # The loop is in NumPy, since rows are short: in PyTorch a whole history takes 1.7 times as
    # long.
    total, now, rows = losses.cpu().numpy(), float(gap), rounds.to(losses).cpu().numpy()
    weights = np.empty_like(rows)
    for row, loss in zip(weights, rows, strict=True):
        # The computation uses the logarithms of weights, since the weights of all members but the
        # best may underflow. The least loss of a round is subtracted before `exp` and added to the
        # mix loss, which otherwise would lose digits.
        rate = math.log(max(len(total), 2)) / max(now, _LEAST_GAP)
        log_weights = -rate * (total - total.min())
        log_weights -= np.logaddexp.reduce(log_weights)
        row[:], least = np.exp(log_weights), loss.min()
        mix = least - np.logaddexp.reduce(log_weights - rate * (loss - least)) / rate
        now += max(float(row @ loss - mix), 0.0)
        total = total + loss
    stacked, after = (torch.from_numpy(values).to(losses) for values in (weights, total))
    return stacked, after, gap.new_tensor(now)
