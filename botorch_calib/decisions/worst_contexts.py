r"""Quantiles of an outcome under the worst distribution of an uncontrolled context.

The outcome of decision ``x`` in context ``c`` has the predictive distribution ``F_{x,c}``. Joint
inputs of a model are the ``d_x`` columns of a decision and the ``d_c`` columns of a context. For an
ambiguity set ``P`` of distributions of ``c``,

    ``q(x) = min {t : min_{p in P} E_{c ~ p}[F_{x,c}(t)] >= level}``

is the smallest upper limit that the outcome keeps with probability at least ``level`` under every
distribution in the set. So ``q(x) <= limit`` if and only if the worst-case expectation of
``F_{x,c}(limit)`` is at least ``level``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, UnsupportedError
from botorch.models.model import Model
from botorch.utils.probability.utils import ndtr
from torch import Tensor

from botorch_calib._roots import bracketed_root
from botorch_calib._validation import check_instance
from botorch_calib.acquisition.robust import at_observations, columns_of
from botorch_calib.models.process import raw_width
from botorch_calib.robust.contexts import ContextDistribution, as_distribution
from botorch_calib.robust.joint_inputs import Columns, join_contexts
from botorch_calib.robust.sets.base import AmbiguitySet

# Largest number of safeguarded Newton steps. A few steps suffice unless contexts differ widely.
_STEPS = 30
# Probabilities are clamped to this range, where normal scores are finite in double precision.
_LEAST, _MOST = 1e-300, 1.0 - 2.0**-53


class WorstContexts:
    """An ambiguity set around a distribution of contexts, for a ``model`` on joint inputs."""

    def __init__(
        self, ambiguity: AmbiguitySet, contexts: ContextDistribution | Tensor, model: Model
    ) -> None:
        check_instance("ambiguity", ambiguity, AmbiguitySet, "TotalVariationBall(0.1)")
        self.ambiguity, self.centre = ambiguity, as_distribution(contexts)
        if (width := raw_width(model)) is not None:
            columns_of(model, self.centre, width)  # raises if columns are wrong
        try:
            at_observations(ambiguity, model).worst_case_weights(self.centre.weights, self.centre)
        except UnsupportedError as error:
            raise UnsupportedError(
                "A chance constraint needs an ambiguity set with a known worst distribution, such "
                f"as WassersteinBall(radius, method='exact'). {error}"
            ) from error

    def pairs(self, X: Tensor) -> Tensor:
        """Pair decisions ``... x 1 x d_x`` with all ``M`` contexts: returns ``... x M x 1 x d``."""
        points = self.centre.to(X.dtype, X.device).points.unsqueeze(-2)
        return join_contexts(X.unsqueeze(-3), points, self.centre.indices)

    def decisions(self, Z: Tensor) -> Tensor:
        """Return the decisions ``... x d_x`` in joint inputs ``... x d``."""
        columns = Columns(Z.shape[-1], self.centre.points.shape[-1], self.centre.indices)
        return Z[..., columns.decision]

    def check_decisions(self, name: str, X: Tensor, model: Model) -> Tensor:
        """Return decisions ``... x d_x`` with the first context; raise if ``d_x`` is wrong."""
        width, num = raw_width(model), self.centre.points.shape[-1]
        if width is not None and X.shape[-1] != width - num:
            raise BotorchTensorDimensionError(
                f"`{name}` must have the {width - num} columns of decisions alone, got "
                f"{X.shape[-1]}: contexts are filled in."
            )
        return join_contexts(X, self.centre.to(X.dtype, X.device).points[0], self.centre.indices)

    def expectation(self, values: Tensor, model: Model) -> Tensor:
        """Return the smallest expectations ``...`` of ``values`` over the ambiguity set.

        The ``values``, ``... x M``, are those in each of the ``M`` contexts.
        """
        centre = self.centre.to(values.dtype, values.device)
        ambiguity = at_observations(self.ambiguity, model)
        rows = values.reshape(-1, values.shape[-1])
        worst = ambiguity.evaluate(lambda *_: rows, rows, centre)  # type: ignore[arg-type]
        return worst.view(values.shape[:-1])

    def score(self, scores: Tensor, model: Model) -> Tensor:
        """Return the normal scores of `expectation` at ``Phi(scores)``, with the same shapes."""
        return _score_beyond(-self.expectation(-ndtr(-scores), model))

    def quantile(
        self, z: Tensor, model: Model, score: Callable[[Tensor], Tensor], ends: Tensor
    ) -> Tensor:
        r"""Return the smallest ``t`` that the outcome keeps with worst-case probability ``Phi(z)``.

        An outcome keeps ``t`` if it is at most ``t``. The result has shape ``...`` and a gradient,
        and ``z`` can be broadcast to ``... x 1``. ``score`` maps ``t``, as ``... x 1``, to the
        normal scores ``... x M`` of the probability that the outcome keeps ``t`` in each context.
        ``ends`` holds the outcome's quantile at ``Phi(z)`` in each context, ``... x M``: they
        bracket ``t``.

        The normal score of the worst-case probability is nearly linear in ``t``, which suits Newton
        steps. Only the result records a graph: it has the gradient of the implicit function, with
        the worst distribution treated as constant (Danskin's theorem).
        """
        dtype, ends = ends.dtype, ends.double()
        wanted = z.to(ends).expand(ends[..., :1].shape)[..., 0]
        level = -ndtr(-wanted)  # minus the probability of exceeding `t`
        low, high = (end.detach() for end in ends.aminmax(dim=-1))
        start = (-self.expectation(-ends.detach(), model)).clamp(low, high)

        def kept_and_slope(t: Tensor) -> tuple[Tensor, Tensor]:
            """Minus the worst-case probability of exceeding ``t``, and its derivative in ``t``."""
            with torch.enable_grad():
                t = t.detach().requires_grad_()
                p = self.expectation(-ndtr(-score(t.unsqueeze(-1))), model)
                (slope,) = torch.autograd.grad(p.sum(), t, retain_graph=True)
            return p, slope

        def excess_score(t: Tensor) -> tuple[Tensor, Tensor, float]:
            p, slope = kept_and_slope(t)
            reached = _score_beyond(-p.detach())
            density = (-0.5 * reached.square()).exp() / (2.0 * torch.pi) ** 0.5
            return reached - wanted.detach(), slope / density, 0.0

        t = bracketed_root(excess_score, start, low, high, _STEPS)
        p, slope = kept_and_slope(t)
        # The difference is 0, with the gradient of ``level - p``: `t` is exact up to rounding. If
        # it is between contexts that are far apart, the slope may be far below the rounding errors.
        change = (level - level.detach()) - (p - p.detach())
        return (t + change / torch.where(slope > 0.0, slope, torch.inf)).to(dtype)


def _score_beyond(p: Tensor) -> Tensor:
    """Normal scores of numbers that are exceeded with probability ``p``."""
    return -torch.special.ndtri(p.clamp(_LEAST, _MOST))
