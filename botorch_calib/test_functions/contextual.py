r"""Problems with a context that the environment draws after the decision is made.

The learner chooses ``x``, then ``c`` is drawn from an unknown distribution. The aim is to maximise
the expectation of ``f(x, c)`` under this distribution (`ContextualProblem.evaluate_stochastic`), as
in [Micheli2025wdrbo, eq. 10, sections 5 and 9].

The columns of an input are the decisions, then the contexts. All problems are *maximised* by
default: a function to be minimised has ``negate=True``. A normal distribution that is clipped to an
interval has atoms at both ends, which all expectations include.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from statistics import NormalDist

import torch
from botorch.exceptions import InputDataError
from botorch.test_functions.base import BaseTestProblem
from torch import Tensor

from botorch_calib._validation import check_count, check_width
from botorch_calib.robust.contexts import ContextDistribution

Icdf = Callable[[Tensor], Tensor]


def clipped_normal(
    u: Tensor, mean: float, std: float, lower: float = 0.0, upper: float = 1.0
) -> Tensor:
    """Return quantiles of N(mean, std^2) at levels ``u``, clipped to [lower, upper]."""
    return (mean + std * torch.special.ndtri(u)).clamp(lower, upper)


class ContextualProblem(BaseTestProblem):
    """Base class of test problems with columns of decisions ``x``, then of contexts ``c``.

    The contexts are independent of each other, and the environment draws them from a distribution
    that the learner does not know.

    Args:
        noise_std: Standard deviation of the observation noise (None: no noise).
        negate: Whether values are multiplied by -1 (None: only if the function is to be minimised).
        dtype: The dtype of the bounds.
    """

    bounds: Tensor  # 2 x d
    num_objectives = 1
    num_decisions: int  # d_x
    # Inverse distribution functions, one for each context
    _icdfs: tuple[Icdf, ...]
    # Maximum of the expectation if the function is maximised, else of minus the expectation
    _stochastic_optimum: float
    _stochastic_optimizer: tuple[float, ...]

    def __init__(
        self,
        noise_std: float | None = None,
        negate: bool | None = None,
        dtype: torch.dtype = torch.double,
    ) -> None:
        self.dim = len(self._bounds)
        self.continuous_inds = list(range(self.dim))
        if negate is None:
            negate = self._is_minimization_by_default
        super().__init__(noise_std=noise_std, negate=negate, dtype=dtype)

    @property
    def num_contexts(self) -> int:
        """The number ``d_c`` of context columns, which follow the decisions."""
        return len(self._icdfs)

    @property
    def decision_bounds(self) -> Tensor:
        """The box of the decisions, ``2 x d_x``."""
        return self.bounds[:, : self.num_decisions]

    @property
    def context_bounds(self) -> Tensor:
        """The box of the contexts, ``2 x d_c``."""
        return self.bounds[:, self.num_decisions :]

    def context_icdf(self, U: Tensor) -> Tensor:
        """Return the true quantiles of the contexts at levels ``U`` in [0, 1].

        Levels and quantiles are ``... x d_c``, with one column for each context.
        """
        return _apply(self._icdfs, U)

    def sample_contexts(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw contexts ``n x d_c`` from the true distribution."""
        check_count("n", n, least=0)
        # Draw in double precision, so that problems of either dtype have the same contexts.
        U = torch.rand(n, self.num_contexts, generator=generator, dtype=torch.double)
        return self.context_icdf(U).to(self.bounds)

    def context_distribution(self, n: int, seed: int = 0) -> ContextDistribution:
        """Return the true distribution as ``n`` quasi-Monte Carlo points of equal weight.

        Equal points become one atom. The points depend on ``seed`` only.
        """
        return self._as_points(self._icdfs, n, seed)

    def _as_points(self, icdfs: Sequence[Icdf], n: int, seed: int) -> ContextDistribution:
        quantiles, num = partial(_apply, icdfs), len(icdfs)
        distribution = ContextDistribution.from_icdf(quantiles, num_points=n, dim=num, seed=seed)
        return distribution.to(self.bounds.dtype, self.bounds.device)

    def evaluate_stochastic(self, X: Tensor) -> Tensor:
        """Return the noise-free expectation over the true contexts, negated if ``negate`` is True.

        Decisions ``X``, ``batch_shape x d_x``, must be within their bounds. The result, of shape
        ``batch_shape``, is differentiable. Its absolute error is below 2e-7 in double precision.
        """
        check_width(X, self.num_decisions)
        lower, upper = self.decision_bounds.to(X)
        if not ((X >= lower) & (X <= upper)).all():
            raise InputDataError("`X` must lie within the bounds of the decisions.")
        expected = self._expectation(X)
        return -expected if self.negate else expected

    @abstractmethod
    def _expectation(self, X: Tensor) -> Tensor:
        """Return the expectation of ``evaluate_true``: ``batch_shape x d_x -> batch_shape``."""

    @property
    def stochastic_optimal_value(self) -> float:
        """The optimum of `evaluate_stochastic` over the decisions: the maximum by default.

        It is the minimum if `is_minimization_problem` is True.
        """
        optimum = self._stochastic_optimum
        return -optimum if self.is_minimization_problem else optimum

    @property
    def stochastic_optimizer(self) -> Tensor:
        """Decisions at which `evaluate_stochastic` is optimal, of length ``d_x``."""
        return torch.tensor(self._stochastic_optimizer).to(self.bounds)


def _apply(icdfs: Sequence[Icdf], U: Tensor) -> Tensor:
    """Apply each context's inverse distribution function to its column of ``U``, ``... x d_c``."""
    check_width(U, len(icdfs))
    columns = [icdf(u) for icdf, u in zip(icdfs, U.unbind(dim=-1), strict=True)]
    return torch.stack(columns, dim=-1)


class ContextShift(ContextualProblem):
    r"""``1 - |c - 0.5| / (|x| + 0.2) - sqrt(|x| + 0.05)`` with a wrong reference distribution.

    The learner has the reference distribution N(0.5, 0.1^2), but the true distribution is N(0.6,
    0.2^2). The best decision is 0 under the reference distribution, and about +-0.24 under the true
    one. The paper's 0.1 and 0.2 (section 5) are interpreted as standard deviations. If they were
    variances, over a tenth of the contexts would be outside [0, 1] even under the reference
    distribution. With standard deviations, the Wasserstein distance between the distributions is
    0.117, about the paper's radius. Decisions are in [-1, 1], which the paper does not specify.
    Contexts are in [-0.4, 1.6], the true mean plus or minus five standard deviations.

    Example:
        >>> problem = ContextShift()
        >>> stated, true = problem.reference_distribution(64), problem.context_distribution(64)
    """

    num_decisions = 1
    _is_minimization_by_default = False
    _bounds = [(-1.0, 1.0), (-0.4, 1.6)]
    _icdfs = (partial(clipped_normal, mean=0.6, std=0.2, lower=-0.4, upper=1.6),)
    _reference = (partial(clipped_normal, mean=0.5, std=0.1, lower=-0.4, upper=1.6),)
    _stochastic_optimum = 0.05439784354145077
    _stochastic_optimizer = (0.238747900981,)

    def reference_distribution(self, n: int, seed: int = 0) -> ContextDistribution:
        """Return the reference distribution as ``n`` quasi-Monte Carlo points of equal weight.

        Equal points become one atom. The points depend on ``seed`` only.
        """
        return self._as_points(self._reference, n, seed)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        return self._value(X[..., 0].abs(), (X[..., 1] - 0.5).abs())

    def _expectation(self, X: Tensor) -> Tensor:
        # E |c - 0.5| is the mean of a folded normal distribution, corrected for clipping ``c`` at
        # five standard deviations (of 0.2) from its mean 0.6.
        normal, z = NormalDist(), 0.5
        folded = 2.0 * normal.pdf(z) + z * (1.0 - 2.0 * normal.cdf(-z))
        distance = 0.2 * (folded - 2.0 * (normal.pdf(5.0) - 5.0 * normal.cdf(-5.0)))
        return self._value(X[..., 0].abs(), distance)

    @staticmethod
    def _value(size: Tensor, distance: Tensor | float) -> Tensor:
        return 1.0 - distance / (size + 0.2) - (size + 0.05).sqrt()


class Newsvendor(ContextualProblem):
    r"""``9 min(c, x) - 5 x + max(0, x - c)``: profit of a stock ``x`` in [0, 1] at a demand ``c``.

    The demand has the Burr distribution of type XII with parameters 2 and 20. One value in a
    million is above 1, and is clipped to 1. Expectations remain the same, since ``x <= 1``. The
    expectation is ``8 I(x) - 4 x``, where ``I(x)`` is the integral of ``(1 + s^2)^-20`` from 0 to
    ``x``, which has a closed form. The maximum is at ``sqrt(2^(1/20) - 1)``.

    Example:
        >>> problem = Newsvendor()
        >>> contexts = problem.context_distribution(64)
        >>> best = problem.stochastic_optimal_value
    """

    num_decisions = 1
    _is_minimization_by_default = False
    _bounds = [(0.0, 1.0)] * 2
    # P(c > s) = (1 + s^2)^-20
    _icdfs = (lambda u: torch.expm1(-torch.log1p(-u) / 20.0).sqrt().clamp(max=1.0),)
    _stochastic_optimum = 0.4639430729022731
    _stochastic_optimizer = (math.sqrt(math.expm1(math.log(2.0) / 20.0)),)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        x, c = X.unbind(dim=-1)
        return 9.0 * torch.minimum(c, x) - 5.0 * x + (x - c).clamp(min=0.0)

    def _expectation(self, X: Tensor) -> Tensor:
        x = X[..., 0]
        # Integration by parts gives the integral of ``(1 + s^2)^-n`` from the integral of ``(1 +
        # s^2)^(1 - n)``. The integral for ``n = 1`` is the arctangent.
        square, sold = 1.0 + x.square(), x.atan()
        for n in range(2, 21):
            sold = (x * square.pow(1 - n) + (2 * n - 3) * sold) / (2 * n - 2)
        return 8.0 * sold - 4.0 * x
