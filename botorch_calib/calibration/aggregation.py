r"""Online aggregation of trackers with different settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_calib._validation import check_nonnegative, check_positive
from botorch_calib.calibration.descent import (
    Local,
    Localization,
    descend,
    extended,
    gaussian_correlation,
)
from botorch_calib.calibration.hedging import adahedge, adahedge_weights
from botorch_calib.calibration.learner import QuantileLearner
from botorch_calib.calibration.pinball import pinball_loss
from botorch_calib.calibration.tracker import OnlineQuantileTracker

#: Default settings of a bank: from nearly global to sharply local, from slow to fast.
LENGTHSCALES = (0.1, 0.25, math.inf)
SCALES = (1.0,)
STEP_SIZES = (0.02, 0.05, 0.15)

#: A setting of a tracker: a number, or several to choose from.
Setting = float | Sequence[float]


class Member(NamedTuple):
    """Settings of one tracker of a bank."""

    lengthscale: float
    scale: float
    step_size: float


class AggregatedQuantileTracker(QuantileLearner):
    r"""A bank of trackers, mixed online by exponential weights on their pinball losses.

    Each of the ``K`` members is an `OnlineQuantileTracker` with its own lengthscale, scale and
    step; all run side by side in one loop. Their thresholds are averaged with weights
    ``w_k ~ exp(-gamma_t L_k)``, ``L_k`` the member's pinball loss so far, summed over the levels;
    ``gamma_t = ln K / Delta_t`` is AdaHedge's rate [deRooij2014], with ``Delta_t`` the
    accumulated gap between the loss of the weights and their mix loss, so nothing is left to
    tune. The pinball loss is convex: the average loses no more than the best member plus
    ``2 sqrt(V ln K)`` and lower orders, ``V`` the accumulated variance of the members' losses.
    Dynamically-tuned adaptive conformal inference [Gibbs2024] mixes step sizes in this way;
    here lengthscales and scales take part.

    An average of calibrated thresholds need not be calibrated, so a last tracker without
    localization corrects it: with ``b_t(x)`` the average, held to [0, 1], the threshold is
    ``theta_t(x) = b_t(x) + c_t``, ``c_{t+1} = c_t + eta_t (p - o_t)``.

    **Guarantee.** For *any* sequence, ``|mean(o) - p| <= coverage_bound(T)``: where ``c > 1`` the
    threshold exceeds every score, where ``c < -1`` none, so ``c`` is driven back and
    stays in an interval of length ``2 + eta_1``; the rest is as for `OnlineQuantileTracker`.

    Buffers: as `OnlineQuantileTracker`, with ``constants`` ``K x M`` and ``coefficients``
    ``t x K M`` of the members, the ``correction`` ``M``, the members' ``losses`` ``K`` and
    the accumulated ``mixability_gap``.

    Args:
        levels: See `OnlineQuantileTracker`.
        lengthscales: Lengthscales of the members; infinity is a member without localization.
        scales: Strengths ``k(x, x) > 0`` of the localized members.
        step_sizes: First steps of the members.
        step_decay: Exponent of the decay of all steps.
        correction_step: ``eta_1`` of the last tracker.
        initial: See `OnlineQuantileTracker`.

    .. [deRooij2014]
        S. de Rooij, T. van Erven, P. Grunwald and W. Koolen. Follow the leader if you can,
        hedge if you must. JMLR, 2014.
    .. [Gibbs2024]
        I. Gibbs and E. Candes. Conformal inference for online prediction with arbitrary
        distribution shifts. JMLR, 2024.
    """

    constants: Tensor
    coefficients: Tensor
    correction: Tensor
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
        step_decay: float = 0.0,
        correction_step: float = 0.02,
        initial: Tensor | Sequence[float] | None = None,
    ) -> None:
        members = _members(lengthscales, scales, step_sizes)
        super().__init__(levels, initial, num_columns=len(members) * len(levels))
        self.members = members
        self.step_decay = check_nonnegative("step_decay", step_decay)
        self.correction_step = check_positive("correction_step", correction_step)
        self._localizations = _localizations(members, len(self.levels))
        # Settings of each column, which move with the module but are no state
        columns = [member for member in members for _ in range(len(self.levels))]
        for name in ("scale", "step_size"):
            values = self.levels.new_tensor([getattr(member, name) for member in columns])
            self.register_buffer(f"_{name}s", values, persistent=False)
        self.register_buffer("constants", self._initial_constants())
        self.register_buffer("correction", torch.zeros_like(self.levels))
        self.register_buffer("losses", torch.zeros(len(members), dtype=torch.double))
        self.register_buffer("mixability_gap", torch.zeros((), dtype=torch.double))

    def _initial_constants(self) -> Tensor:
        return self.initial.expand(len(self.members), -1).clone()

    @property
    def localized(self) -> bool:
        """Whether some members' thresholds depend on the inputs."""
        return bool(self._localizations)

    @property
    def weights(self) -> Tensor:
        """Present weights of the ``members``, ``K``."""
        return adahedge_weights(self.losses, self.mixability_gap)

    def threshold(self, X: Tensor) -> Tensor:
        """Raw thresholds at ``X``, differentiable in it.

        Args:
            X: Inputs of shape ``... x d``.

        Returns:
            Thresholds of shape ``... x M``, in the tracker's dtype.
        """
        self._check_width(X)
        weights = self.weights.to(self.levels).unsqueeze(-1)
        constants = (weights * self.constants).sum(dim=-2)
        mixed = constants.expand(*X.shape[:-1], -1)
        if len(self.coefficients):
            # The members' coefficients are mixed first, so M columns are evaluated, not K M.
            coefficients = self.coefficients * self._scales
            coefficients = coefficients.unflatten(-1, (len(self.members), -1)) * weights
            X, num_levels = X.to(self.centers), len(self.levels)
            for columns, lengthscale in self._localizations:
                part = slice(columns.start // num_levels, columns.stop // num_levels)
                correlation = gaussian_correlation(X, self.centers, lengthscale)
                mixed = mixed + correlation @ coefficients[:, part].sum(dim=-2)
        return mixed.clamp(0.0, 1.0) + self.correction

    def reset(self) -> None:
        """Forget everything learned."""
        super().reset()
        self.constants = self._initial_constants()
        self.correction = torch.zeros_like(self.correction)
        self.losses = torch.zeros_like(self.losses)
        self.mixability_gap = torch.zeros_like(self.mixability_gap)

    def coverage_bound(self, num_steps: int) -> Tensor:
        """Bound on ``|mean(o) - p|`` after ``num_steps`` steps from the start, shape ``M``."""
        if num_steps < 1:
            raise InputDataError(f"`num_steps` must be at least 1, got {num_steps}.")
        last = math.pow(num_steps, 1.0 - self.step_decay)
        bound = (2.0 + self.correction_step) / (self.correction_step * last)
        return torch.full_like(self.levels, bound)

    def _learn(self, X: Tensor, u: Tensor) -> Tensor:
        times = torch.arange(1, len(u) + 1, dtype=u.dtype, device=u.device) + self.num_updates
        decay = times.pow(-self.step_decay).unsqueeze(-1)
        thresholds, constants, coefficients = self._run_members(X, u, decay)
        losses = pinball_loss(u.view(-1, 1, 1), thresholds.clamp(0.0, 1.0), self.levels)
        weights, total, gap = adahedge(losses.sum(dim=-1), self.losses, self.mixability_gap)
        mixed = (weights.to(u).unsqueeze(-1) * thresholds).sum(dim=-2).clamp(0.0, 1.0)
        steps = self.correction_step * decay
        # Nothing moves the average but the members: it is a local part without kernels.
        fixed = Local(mixed, [], [], torch.ones_like(u[:1]), [])
        used, _, correction = descend(u, self.levels, steps, self.correction, fixed)

        self.constants, self.correction = constants, correction
        self.losses, self.mixability_gap = total, gap
        self._store(X, coefficients)
        return used

    def _run_members(self, X: Tensor, u: Tensor, decay: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Thresholds met ``n x K x M``, and new constants and coefficients of the members."""
        shape = (len(self.members), len(self.levels))
        local = self._local(X) if self.localized and len(X) else None
        thresholds, deltas, constants = descend(
            u,
            self.levels.repeat(shape[0]),
            decay * self._step_sizes,
            self.constants.flatten(),
            local,
        )
        coefficients = self.coefficients
        if local is not None:
            coefficients = extended(coefficients, deltas, local.shrink)
        return thresholds.view(len(u), *shape), constants.view(shape), coefficients

    def _local(self, X: Tensor) -> Local:
        """What `descend` needs of the members' local parts at ``X``."""
        values = X.new_zeros(len(X), len(self.members) * len(self.levels))
        kernels = [gaussian_correlation(X, X, at.lengthscale) for at in self._localizations]
        if len(self.centers):
            coefficients = self.coefficients * self._scales
            for columns, lengthscale in self._localizations:
                correlation = gaussian_correlation(X, self.centers, lengthscale)
                values[:, columns] = correlation @ coefficients[:, columns]
        return Local(values, kernels, self._localizations, self._scales, [1.0] * len(X))


def _members(
    lengthscales: Sequence[float], scales: Sequence[float], step_sizes: Sequence[float]
) -> list[Member]:
    """All combinations, those of one lengthscale next to each other."""
    for name, values in (("scales", scales), ("step_sizes", step_sizes)):
        if not values:
            raise InputDataError(f"`{name}` must not be empty.")
        for value in values:
            check_positive(name, value)
    if not lengthscales:
        raise InputDataError("`lengthscales` must not be empty.")
    members = []
    for lengthscale in sorted(
        {check_positive("lengthscales", s, allow_inf=True) for s in lengthscales}
    ):
        # Without localization there is no scale to choose.
        strengths = [0.0] if math.isinf(lengthscale) else scales
        members += [Member(lengthscale, *rest) for rest in product(strengths, step_sizes)]
    return members


def _localizations(members: list[Member], num_levels: int) -> list[Localization]:
    """The columns of each finite lengthscale."""
    found = []
    for lengthscale in dict.fromkeys(m.lengthscale for m in members):
        own = [i for i, member in enumerate(members) if member.lengthscale == lengthscale]
        if math.isfinite(lengthscale):
            columns = slice(own[0] * num_levels, (own[-1] + 1) * num_levels)
            found.append(Localization(columns, lengthscale))
    return found


def quantile_learner(
    levels: Sequence[float] | Tensor,
    initial: Sequence[float] | Tensor,
    lengthscale: Setting | str,
    scale: Setting | None = None,
    step_size: Setting | None = None,
    step_decay: float = 0.0,
    regularization: float = 0.0,
) -> OnlineQuantileTracker | AggregatedQuantileTracker:
    """A tracker if every setting is a number, a bank of them if some are left to choose.

    Args:
        levels: See `OnlineQuantileTracker`.
        initial: See `OnlineQuantileTracker`.
        lengthscale: A number, several to choose from, or ``"auto"`` for the default ones.
        scale: Likewise; None is the default, 1.
        step_size: Likewise; None is the default: 0.05, or in a bank `STEP_SIZES`.
        step_decay: See `OnlineQuantileTracker`.
        regularization: See `OnlineQuantileTracker`; a bank has none.
    """
    if isinstance(lengthscale, str) and lengthscale != "auto":
        raise InputDataError(f"`lengthscale` must be numbers or 'auto', got {lengthscale!r}.")
    settings = (lengthscale, scale, step_size)
    if not any(isinstance(setting, (str, Sequence)) for setting in settings):
        local = math.isfinite(lengthscale)  # type: ignore[arg-type]
        return OnlineQuantileTracker(
            levels,
            step_size=0.05 if step_size is None else step_size,  # type: ignore[arg-type]
            step_decay=step_decay,
            scale=(1.0 if scale is None else scale) if local else 0.0,  # type: ignore[arg-type]
            lengthscale=lengthscale,  # type: ignore[arg-type]
            regularization=regularization,
            initial=initial,
        )
    if regularization:
        raise InputDataError("`regularization` needs settings that are single numbers.")
    return AggregatedQuantileTracker(
        levels,
        lengthscales=LENGTHSCALES if isinstance(lengthscale, str) else _several(lengthscale),
        scales=SCALES if scale is None else _several(scale),
        step_sizes=STEP_SIZES if step_size is None else _several(step_size),
        step_decay=step_decay,
        initial=initial,
    )


def _several(setting: Setting) -> Sequence[float]:
    return setting if isinstance(setting, Sequence) else [setting]
