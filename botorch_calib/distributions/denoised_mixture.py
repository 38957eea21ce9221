r"""`DenoisedMixture`: the objective under a calibrated mixture of normal predictions.

Member ``s`` says ``f ~ N(mu_s, v_s)`` and ``y ~ N(mu_s, v_s + n_s)``; together they are a mixture
of cdf ``F``, and the normal score of ``y`` is ``z = Phi^{-1}(F(y))``. With ``T`` the map from the
standard normal to the calibrated distribution of ``z``, a calibrated draw takes a member ``s`` and
``(f, y)`` from it, and moves both,

    ``y~ = F^{-1}(Phi(T(z)))``,  ``f~ = f + a_s (y~ - y)``,  ``a_s = v_s / (v_s + n_s)``,

so that ``y~`` has the calibrated distribution, and a calibrator that corrects nothing leaves
``f~ = f``. Given ``z`` and the member, of probability ``p_s(z)`` at ``y = F^{-1}(Phi(z))``, ``f~``
is ``N(mu_s + a_s (y~ - mu_s), a_s n_s)``. Whatever is asked is therefore an integral over the
standard normal ``z``, the same nodes serving all members:

    ``E g(f~) = sum_s int phi(z) p_s(z) E g(N(mu_s + a_s (y~(z) - mu_s), a_s n_s)) dz``.

A rule for it makes ``f~`` a mixture of (nodes x members) normal distributions. Panels end where
``T`` has kinks and are graded towards the value that is asked about, so that the narrowest of the
noises is resolved; each member keeps its mass exactly. Where members lie apart, ``y~(z)`` and
``p_s(z)`` climb like steps, and the rule errs by up to a node's share of a step.
"""

from __future__ import annotations

import math
from functools import cached_property, lru_cache
from statistics import NormalDist

import torch
from botorch.utils.probability.utils import log_ndtr, log_phi
from torch import Tensor

from botorch_calib.distributions._normal_functions import (
    log_h,
    ndtri_exp,
    unit_legendre,
)
from botorch_calib.distributions.mixture import (
    ScoreTable,
    align_members,
    log_shares,
    mixture_quantile,
    mixture_score,
)
from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.distributions.smoothed import UnsmoothedPredictive, _WithTails

_ORDER = 4  # nodes of a panel
_BULK = (-7.0, -4.5, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.5, 7.0)  # ends of panels, in scores
_AROUND = (0.3, 1.0, 3.0, 8.0)  # and around the value asked about, in widths of the noise there
_NUM_GRADED = 4  # between these and 8 scores away
_LEAST_WIDTH = 1e-6  # of the noise, in scores
_FARTHEST = 40.0  # score about which panels are graded
_LEAST_NOISE = 1e-12  # over the deviation of the observation, which stands for none
_QUANTILE_STEPS = 12
_CLOSE = 1e-10  # distance in scores from a quantile


class DenoisedMixture(_WithTails):
    """The distribution of ``f~``, or of ``y~``, in units of the outcome, in float64.

    Args:
        mean: Means of the members, ``num_members x shape``.
        variance: Variances of ``f``, positive, ``num_members x shape``.
        noise: Variances of the noise, broadcasting to that.
        predictive: The calibrated distribution of ``z``, broadcasting to ``shape``.
        denoise: Whether it is that of ``f~``.
        growth: Factors by which the members' variances of ``f`` grow first, for
            ``excess="objective"``; broadcasting to ``num_members x shape``.
    """

    def __init__(
        self,
        mean: Tensor,
        variance: Tensor,
        noise: Tensor,
        predictive: PiecewisePredictive,
        denoise: bool,
        growth: Tensor | None = None,
    ) -> None:
        self.mean_of_members = mean
        self.variance_of_members, self.noise = variance, noise.expand_as(variance)
        self.predictive, self.denoise, self.growth = predictive.to(torch.float64), denoise, growth
        self.total = variance + self.noise
        self.deviation = self.total.sqrt()

    @property
    def corrects_nothing(self) -> bool:
        """Whether the calibrated distribution is the standard normal one."""
        return self.predictive.is_gaussian and self.predictive.scale is None

    @cached_property
    def table(self) -> ScoreTable:
        """Scores of observations, and back."""
        return ScoreTable(self.mean_of_members, self.deviation)

    def gain_and_rest(self) -> tuple[Tensor, Tensor]:
        """The gains ``a_s``, and the standard deviations of ``f~`` given ``y~``."""
        least = _LEAST_NOISE * self.deviation
        if not self.denoise:
            return torch.ones_like(self.deviation), least
        variance = self.variance_of_members
        if self.growth is not None:
            variance = variance * self.growth
        gain = variance / (variance + self.noise)
        return gain, (gain * self.noise).clamp_min(least.square()).sqrt()

    def last_points(self, num: int) -> DenoisedMixture:
        """Of ``shape = ... x q x 1``, that at the last ``num`` of the ``q`` points."""
        if self.deviation.shape[-2] == num:
            return self
        members = self.mean_of_members, self.variance_of_members, self.noise
        growth = None if self.growth is None else self.growth[..., -num:, :]
        predictive = self.predictive.last_points(num)
        mean, variance, noise = (values[..., -num:, :] for values in members)
        return DenoisedMixture(mean, variance, noise, predictive, self.denoise, growth)

    # ------------------------------------------------------------ the mixture it is made of

    def components(self, x: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights, means and deviations of normal components, for questions about ``x``.

        Each is ``num_members x num_nodes x shape``; a member's weights add up to one over their
        number. ``x`` broadcasts against ``shape``, with further dimensions in front.
        """
        if self.corrects_nothing:
            deviation = self.variance_of_members.sqrt() if self.denoise else self.deviation
            log_weight = torch.full_like(deviation, -math.log(len(deviation)))
            mean = self.mean_of_members.unsqueeze(1)
            return log_weight.unsqueeze(1), mean, deviation.unsqueeze(1)
        z, log_weight = self._rule(x)
        mean = align_members(self.mean_of_members, z.dim())
        gain, rest = (align_members(values, z.dim()) for values in self.gain_and_rest())
        scores = torch.cat(torch.broadcast_tensors(z, self.predictive.transport(z)))
        y, moved = self.table.quantile(scores).chunk(2)
        log_share, _ = log_shares(y, self.mean_of_members, self.deviation)
        log_weight = log_weight + log_share
        log_weight = log_weight - log_weight.logsumexp(dim=1, keepdim=True)
        return log_weight - math.log(len(mean)), mean + gain * (moved - mean), rest

    @torch.no_grad()
    def _rule(self, x: Tensor | None) -> tuple[Tensor, Tensor]:
        """Nodes and log weights over the standard normal ``z``, ``num_nodes x shape`` each.

        Given the member, ``f~ = x`` is likeliest for ``z`` about ``a_s`` times its score, within
        ``sqrt(1 - a_s)``, if ``T`` is the identity. The largest gain has the narrowest noise.
        """
        shape = self.deviation.shape[1:] if x is None else self._shape_with(x)
        breaks = self.predictive.breaks().movedim(-1, 0).clamp(_BULK[0], _BULK[-1])
        ends = [_constants(_BULK, breaks.device), breaks]
        if x is not None:
            at = self._score_before(x)
            gain = self.gain_and_rest()[0].amax(dim=0)
            width = (1.0 - gain).clamp(min=0.0).sqrt_()
            width = torch.minimum(width, at.abs().clamp_(min=1.0).reciprocal_())
            width = width.clamp_(min=_LEAST_WIDTH)
            ratio = (8.0 / _AROUND[-1] / width).pow_(1.0 / _NUM_GRADED)
            away = [width * factor for factor in _AROUND]
            for _ in range(_NUM_GRADED):
                away.append(away[-1] * ratio)
            center, distance = gain * at, torch.stack(away)
            ends += [at.unsqueeze(0), center.unsqueeze(0), center - distance, center + distance]
        edges = torch.cat([align_members(end, len(shape)).expand(-1, *shape) for end in ends])
        edges = edges.sort(dim=0).values
        low, span = edges[:-1].unsqueeze(1), edges.diff(dim=0).unsqueeze(1)
        nodes, weights = (
            align_members(v, len(shape)) for v in unit_legendre(_ORDER, edges.dtype, edges.device)
        )
        z = torch.addcmul(low, span, nodes).flatten(0, 1)
        log_weight = (span * weights).clamp_(min=1e-300).log_().flatten(0, 1)
        return z, log_weight.add_(log_phi(z))

    def _score_before(self, x: Tensor) -> Tensor:
        """The score ``z`` at which ``y~ = x``, of the shape of ``x`` broadcast."""
        score = self._score(x)
        calibrated = UnsmoothedPredictive(self.predictive)
        above = calibrated.log_survival(score)
        below = calibrated.mirrored().log_survival(-score)
        z = ndtri_exp(torch.minimum(above, below)).clamp(min=-_FARTHEST)
        return torch.where(below < above, z, -z)

    def _score(self, x: Tensor) -> Tensor:
        return mixture_score(x.expand(self._shape_with(x)), self.mean_of_members, self.deviation)

    def _shape_with(self, x: Tensor) -> torch.Size:
        return torch.broadcast_shapes(x.shape, self.deviation.shape[1:])

    # ------------------------------------------------------------ what it states

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance, of ``shape``."""
        log_weight, mean, deviation = self.components()
        return _moments(log_weight.exp(), mean, deviation, (0, 1))

    def moments_of_members(self) -> tuple[Tensor, Tensor]:
        """Mean and variance given the member, ``num_members x shape``."""
        log_weight, mean, deviation = self.components()
        return _moments(log_weight.exp() * len(mean), mean, deviation, (1,))

    def mirrored(self) -> DenoisedMixture:
        """The distribution of ``-f~``."""
        return DenoisedMixture(
            -self.mean_of_members,
            self.variance_of_members,
            self.noise,
            self.predictive.mirrored(),
            self.denoise,
            self.growth,
        )

    def log_excess(self, x: Tensor) -> Tensor:
        """``log E(f~ - x)+``."""
        log_weight, mean, deviation = self.components(x)
        each = log_weight + log_h((mean - x) / deviation) + deviation.log()
        return each.flatten(0, 1).logsumexp(dim=0)

    def log_survival(self, x: Tensor) -> Tensor:
        """``log P(f~ > x)``."""
        if not self.denoise:
            return UnsmoothedPredictive(self.predictive).log_survival(self._score(x))
        log_weight, mean, deviation = self.components(x)
        each = log_weight + log_ndtr((mean - x) / deviation)
        return each.flatten(0, 1).logsumexp(dim=0)

    def log_prob(self, x: Tensor) -> Tensor:
        """Log density at ``x``."""
        if not self.denoise:
            score = self._score(x)
            _, log_density = log_shares(
                x.expand(self._shape_with(x)), self.mean_of_members, self.deviation
            )
            return self.predictive.log_prob(score) + log_density - log_phi(score)
        log_weight, mean, deviation = self.components(x)
        each = log_weight + log_phi((mean - x) / deviation) - deviation.log()
        return each.flatten(0, 1).logsumexp(dim=0)

    def quantile(self, level: float) -> Tensor:
        """The ``level``-quantile, with first derivatives where it is that of ``f~``."""
        zeta = NormalDist().inv_cdf(level)
        if self.corrects_nothing:
            _, mean, deviation = (values.squeeze(1) for values in self.components())
            return mixture_quantile(mean.new_tensor(zeta), mean, deviation)
        if not self.denoise:
            z = self.predictive.transport(self.deviation.new_tensor(zeta))
            return mixture_quantile(z, self.mean_of_members, self.deviation)
        x = self._solve(level, zeta)
        log_side = self.log_survival(x) if level > 0.5 else self.mirrored().log_survival(-x)
        # On the way to the root: its derivatives are those of the equation that defines it.
        tail = min(level, 1.0 - level)
        step = (tail - log_side.exp()) / self.log_prob(x).detach().exp()
        return x - step if level > 0.5 else x + step

    @torch.no_grad()
    def _solve(self, level: float, zeta: float) -> Tensor:
        """The quantile of ``f~`` by Newton's method in scores, within a bracket.

        Given the member, ``P(y~ > Y) <= S P(y~ > Y)`` of the mixture. So with tails that hold less
        than half of ``level / S`` each, no member's ``f~`` is beyond both bounds together.
        """
        gain, rest = self.gain_and_rest()
        tail = min(level, 1.0 - level) / 2.0
        u, w = (NormalDist().inv_cdf(p) for p in (tail, tail / len(gain)))
        low, high = (
            self.mean_of_members
            + gain * (self._observation_at(-sign * w) - self.mean_of_members)
            - sign * u * rest
            for sign in (-1.0, 1.0)
        )
        low, high = low.amin(dim=0), high.amax(dim=0)
        mean, variance = self.moments()
        x = torch.minimum(torch.maximum(mean + zeta * variance.sqrt(), low), high)
        last = torch.full_like(x, math.inf)
        for _ in range(_QUANTILE_STEPS):
            log_weight, means, deviation = self.components(x)
            t = (means - x) / deviation
            above, below = (
                (log_weight + log_ndtr(side)).flatten(0, 1).logsumexp(dim=0) for side in (t, -t)
            )
            log_p = (log_weight + log_phi(t) - deviation.log()).flatten(0, 1).logsumexp(dim=0)
            score = ndtri_exp(torch.minimum(above, below))
            score = torch.where(below < above, score, -score)
            gap = zeta - score
            size = gap.abs()
            low, high = torch.where(gap >= 0, x, low), torch.where(gap <= 0, x, high)
            new = x + gap * (log_phi(score) - log_p).exp()
            good = (new >= low) & (new <= high) & (size < 0.5 * last)
            x = torch.where(size <= _CLOSE, x, torch.where(good, new, 0.5 * (low + high)))
            last = size
            if x.device.type == "cpu" and bool((size <= _CLOSE).all()):
                break
        return x

    def _observation_at(self, zeta: float) -> Tensor:
        z = self.predictive.transport(self.deviation.new_tensor(zeta))
        return mixture_quantile(z, self.mean_of_members, self.deviation)


def _moments(
    weight: Tensor, mean: Tensor, deviation: Tensor, dims: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    center = (weight * mean).sum(dim=dims, keepdim=True)
    variance = (weight * ((mean - center).square() + deviation.square())).sum(dim=dims)
    return center.squeeze(dims), variance


@lru_cache(maxsize=8)
def _constants(values: tuple[float, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # else no graph could use what the cache holds
        return torch.tensor(values, dtype=torch.float64, device=device)
