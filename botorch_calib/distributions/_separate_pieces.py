r"""Improvement under normal pieces with noise, each integrated on its own.

Where both ends of the support are open and hold mass, the pieces' integrals may be differences of
those over tails (`botorch_calib.distributions._denoised_pieces`): what cancels between two
knots is small against what the tail beyond them adds. Beyond a bounded support there is no such
tail, and the integrals over a piece ``[k-, k+]`` are needed to a relative error however small they
are. With ``t = (z - x) / r`` and the normal mass ``N`` of the piece,

    ``e = E(z - x)+ + r / N int phi(z) h(-|t|) dz``,
    ``s = P(z > x) + 1 / N int phi(z) Phi(-|t|) sign(x - z) dz``,
    ``p = 1 / (N r) int phi(z) phi(t) dz``,

since ``h(t)`` and ``Phi(t)`` are ``t`` and 1 plus or minus the same at ``-t``. The first terms
are known without noise. The integrals are at most half of them where they are subtracted, and all
that is left where ``x`` lies beyond the piece: nothing cancels.

With ``norm^2 = 1 + r^2``, ``c = x / norm`` and ``nu = (t + r z) / norm`` the integrands are
``exp(-(c^2 + nu^2) / 2) / (2 pi)`` times ratios of ``h``, ``Phi`` and ``phi`` to the normal density
at ``|t| = |nu - r c| / norm``, which change slowly but for the kink at ``x``, that is ``nu = r c``.
So there are three panels. Turned over where ``x < 0``, they run from 0 downward, from 0 up to
``r c``, and from there upward, each cut to the piece. On each the integrand falls off like a normal
density. Lengths of the panels, and where they start, are minima and maxima of numbers that are
known to rounding each.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from botorch_calib.distributions._bivariate_tails import graded_rule
from botorch_calib.distributions._normal_functions import LEAST, LOG_ZERO, first_tails
from botorch_calib.distributions._observation_improvement import normal_pieces_above
from botorch_calib.distributions.form import PiecewiseForm

_ORDER = 24  # of the rule on a panel: relative error about 1e-13
_CUT = 72.0  # a panel ends where the integrand has fallen by exp(-36)
_FAR = 1e150  # stands for what belongs to an infinite knot; its square does not overflow
_LOG_2PI = math.log(2 * math.pi)


class SeparatePieces:
    """All pieces as if they were normal ones, with a scale of its own for each.

    Args:
        x: ``n`` thresholds, float64.
        r: ``n`` positive ratios of the noise to the scale of the normal pieces.
        knots: ``num_finite_knots x n``.
        t: ``(knots - x) / r``, of the shape of ``knots``.
        form: Form of the distribution.
    """

    def __init__(self, x: Tensor, r: Tensor, knots: Tensor, t: Tensor, form: PiecewiseForm) -> None:
        self.pieces = list(range(form.num_pieces))
        self.r, norm = r, (r * r).add_(1.0).sqrt_()
        c, side = (x / norm).abs_(), torch.where(x < 0.0, -1.0, 1.0).to(x)
        self._log_natural, self.log_share, self.rise = normal_pieces_above(x, knots, form)
        panels = _Panels(c, r, norm, _ends(knots, t, r, norm, side, form))
        self.integrals = panels.integrals()
        self.integrals[1].mul_(side)
        # With dz = (r / norm) dnu
        exponent = (panels.depth * panels.depth + c * c).mul_(0.5)
        self.log_unit = (r / norm).log() - _LOG_2PI - self._log_natural - exponent
        #: Logarithms of the scales of the pieces, ``num_pieces x n``.
        self.levels = torch.maximum(self.log_unit, self.log_share)

    def log_natural(self) -> Tensor:
        """Logarithm of the normal mass of each piece, ``num_pieces x n``."""
        return self._log_natural

    def values(self, log_scale: Tensor) -> Tensor:
        """``e, s, p`` of the pieces over ``exp(log_scale)``, ``3 x num_pieces x n``."""
        share = (self.log_share - log_scale).clamp_(LEAST, -LEAST).exp_()
        share.masked_fill_(self.log_share <= 0.5 * LOG_ZERO, 0.0)
        unit = (self.log_unit - log_scale).clamp_(LEAST, -LEAST).exp_()
        excess, survival, density = (self.integrals * unit).unbind()
        excess = torch.addcmul(share * self.rise, excess, self.r)
        return torch.stack([excess, survival + share, density / self.r])


def _ends(
    knots: Tensor, t: Tensor, r: Tensor, norm: Tensor, side: Tensor, form: PiecewiseForm
) -> Tensor:
    """``nu``, ``t`` and ``z`` at the lower and at the upper ends, ``3 x 2 x num_pieces x n``.

    They are turned over where ``x < 0``.
    """
    nu = torch.addcmul(t, r, knots).div_(norm)
    values = form.pad(torch.stack([nu, t, knots]), -_FAR, _FAR, dim=1)
    low, high = values[:, :-1], values[:, 1:]
    return torch.where(side < 0.0, torch.stack([-high, -low], 1), torch.stack([low, high], 1))


class _Panels:
    """The three panels of each piece; all is turned over where ``x < 0``.

    Args:
        c: ``|x| / norm``, ``n`` numbers.
        r: ``n`` ratios.
        norm: ``sqrt(1 + r^2)``.
        ends: See `_ends`.
    """

    def __init__(self, c: Tensor, r: Tensor, norm: Tensor, ends: Tensor) -> None:
        (low, high), (low_t, high_t), (low_z, high_z) = ends
        kink = (c * r).expand_as(low)
        self.norm, top, width = norm, kink / norm, (high_z - low_z) * (norm / r)
        #: Distance of the highest point from ``nu = 0``, ``num_pieces x n``.
        self.depth = torch.maximum(low, -high).clamp_(min=0.0)
        below_kink = torch.minimum(kink, -low_t * norm)
        # Of each panel, with the distance from nu = 0 and |t| where it starts
        lengths = [-low, torch.minimum(high, below_kink), high_t * norm]
        starts = [-high, low, torch.maximum(kink, low)]
        places = [torch.maximum(top, -high_t), torch.minimum(top, -low_t), low_t]
        self.lengths = torch.minimum(torch.stack(lengths), width).clamp_(min=0.0)
        self.starts = torch.stack(starts).clamp_(min=0.0)
        self.places = torch.stack(places).clamp_(min=0.0)

    def integrals(self) -> Tensor:
        """Of the three ratios times ``exp((depth^2 - nu^2) / 2)``, ``3 x num_pieces x n``.

        That of the ratio of ``Phi`` is multiplied with the sign of ``x - z``, where ``x >= 0``.
        """
        start = self.starts
        reach = _CUT / (start.square().add_(_CUT).sqrt_().add_(start))
        length = torch.minimum(self.lengths, reach)
        fall = ((start - self.depth) * (start + self.depth)).mul_(0.5)
        unit = length * fall.neg_().clamp_(LEAST, 0.0).exp_()
        nodes, weights = graded_rule(_ORDER, length.dtype, length.device)
        y = nodes[:, 0].view(-1, 1, 1, 1) * length
        t = y / self.norm
        t[:, 1].neg_()  # towards the kink
        t = t.add_(self.places).clamp_(min=0.0)
        mass = torch.addcmul(y * start, y, y, value=0.5).neg_().exp_().mul_(unit)
        mass.mul_(weights.view(-1, 1, 1, 1))
        mills, ramp = first_tails(t)
        excess, survival, density = ((mass * ratio).sum(dim=0) for ratio in (ramp, mills, 1.0))
        # Panels below and above x
        survival = survival[0] + survival[1] - survival[2]
        return torch.stack([excess.sum(dim=0), survival, density.sum(dim=0)])
