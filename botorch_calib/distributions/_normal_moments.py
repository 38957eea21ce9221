r"""Mean and variance of many normal pieces with common masses, with the derivatives written down.

`PiecewisePredictive.moments` finds them for any pieces, in logarithms and with a graph through each
step. A recalibrated distribution has twenty pieces, and a localized one differs by point.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import pad

_SQRT_HALF, _SQRT_HALF_PI = math.sqrt(0.5), math.sqrt(0.5 * math.pi)
_LEAST = torch.finfo(torch.float64).tiny


class NormalMoments(Function):
    r"""Mean and variance of the distribution with the given knots and masses, all pieces normal.

    With ``a = phi(low) / N`` and ``b = phi(high) / N``, where ``N`` is the natural mass
    ``Phi(high) - Phi(low)``, a piece has the mean ``mu = a - b`` and the second moment
    ``q = 1 + a low - b high``, and their derivatives are ``dmu/dlow = a (mu - low)``,
    ``dmu/dhigh = b (high - mu)``, ``dq/dlow = a (q - low^2)`` and ``dq/dhigh = b (high^2 - q)``.
    Masses and densities are in units of the density at the end of the piece nearer to zero, so that
    none underflows however far out.

    Differentiated twice, it is the general formula. There are no derivatives by the masses.
    """

    @staticmethod
    def forward(
        ctx: Any, knots: Tensor, masses: Tensor, general: Callable[[Tensor], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Both, ``batch_shape``.

        Args:
            ctx: Of autograd.
            knots: ``batch_shape x (K - 1)``, finite and increasing, ``K > 1``, float64.
            masses: ``K``.
            general: Makes both of knots, twice differentiable.
        """
        low, high, around = _sides(knots)
        mills = torch.special.erfcx(knots.abs() * _SQRT_HALF).mul_(_SQRT_HALF_PI)
        tails = pad(mills.mul_(knots.sign()), (1, 1))
        half = pad(0.5 * knots.square(), (1, 1), value=math.inf)
        depth = torch.minimum(half[..., :-1], half[..., 1:]).mul_(1.0 - around)
        a = (depth - half[..., :-1]).exp_()
        b = (depth - half[..., 1:]).exp_()
        natural = around.mul_(2.0 * _SQRT_HALF_PI)
        natural.addcmul_(a, tails[..., :-1]).addcmul_(b, tails[..., 1:], value=-1.0)
        natural.clamp_(min=_LEAST)
        a, b = a.div_(natural), b.div_(natural)
        mean = a - b
        second = torch.addcmul(a * low, b, high, value=-1.0).add_(1.0)
        center = torch.linalg.vecdot(mean, masses)
        spread = (second - mean.square()).clamp_(min=0.0)
        spread.add_((mean - center.unsqueeze(-1)).square_())
        ctx.save_for_backward(knots, masses, a, b, mean, second, center)
        ctx.general = general
        return center, torch.linalg.vecdot(spread, masses)

    @staticmethod
    def backward(ctx: Any, by_mean: Tensor, by_variance: Tensor) -> tuple[Tensor, None, None]:
        """See the class."""
        knots, masses, a, b, mean, second, center = ctx.saved_tensors
        if torch.is_grad_enabled():
            found = torch.autograd.grad(
                ctx.general(knots), knots, (by_mean, by_variance), create_graph=True
            )
            return found[0], None, None
        # Of the mean, and of the second moment, which the mean around which it is taken enters.
        second_factor = by_variance.unsqueeze(-1)
        factor = (by_mean - 2.0 * by_variance * center).unsqueeze(-1)
        inner = factor * mean + second_factor * second
        at_knots = knots * (factor + second_factor * knots)
        lower = (inner[..., 1:] - at_knots) * (a * masses)[..., 1:]
        upper = (at_knots - inner[..., :-1]) * (b * masses)[..., :-1]
        return lower + upper, None, None


def _sides(knots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Lower and upper ends of the pieces, 0 for infinite ones, and which have zero inside.

    The latter is 1 where zero is inside, 1/2 where it is an end, and else 0.
    """
    padded = pad(knots, (1, 1))
    sides = pad(pad(knots.sign(), (1, 0), value=-1.0), (0, 1), value=1.0)
    return padded[..., :-1], padded[..., 1:], sides.diff(dim=-1).mul_(0.5)
