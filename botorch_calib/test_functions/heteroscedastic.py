r"""Problems whose noise variance depends on the input.

A Gaussian process with one noise level is overconfident where the noise is large, and
underconfident where the noise is small. All problems are *maximised* by default.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from botorch.test_functions.base import BaseTestProblem
from botorch.test_functions.synthetic import Ackley, SyntheticTestFunction
from torch import Tensor


class HeteroscedasticNoise(BaseTestProblem):
    """Mixin that adds Gaussian noise of variance ``noise_variance(X)``, ignoring ``noise_std``."""

    bounds: Tensor  # 2 x d
    optimizers: Tensor  # number of optimizers x d

    @abstractmethod
    def noise_variance(self, X: Tensor) -> Tensor:
        """Return the variance of the observation noise: ``batch_shape x d -> batch_shape``."""

    def forward(self, X: Tensor, noise: bool = True) -> Tensor:
        f = super().forward(X, noise=False)
        if not noise:
            return f
        return f + self.noise_variance(X).sqrt() * torch.randn_like(f)


class HeteroscedasticAckley(HeteroscedasticNoise, Ackley):
    r"""The negated Ackley function on ``[-10, 10]^d`` with noise variance ``(|x| + 10) / 20``.

    ``|x|`` is the Euclidean norm. The maximum, 0, and the least noise variance, 1/2, are at the
    origin.

    Example:
        >>> problem = HeteroscedasticAckley(dim=2)
        >>> observed, true = problem(10 * X), problem(10 * X, noise=False)
    """

    def __init__(
        self, dim: int = 2, negate: bool = True, dtype: torch.dtype = torch.double
    ) -> None:
        super().__init__(dim=dim, negate=negate, bounds=[(-10.0, 10.0)] * dim, dtype=dtype)

    def noise_variance(self, X: Tensor) -> Tensor:
        return (torch.linalg.vector_norm(X, dim=-1) + 10.0) / 20.0


class IntervalStudy1d(HeteroscedasticNoise, SyntheticTestFunction):
    r"""``x sin(2x) + cos(pi x)`` on ``[-5, 5]`` with noise variance ``(|x| + 1) / 10``.

    The function is even, so it has two maximisers, with opposite signs.

    Example:
        >>> problem = IntervalStudy1d()
        >>> observed = problem(10 * X[:, :1] - 5)
    """

    dim = 1
    continuous_inds = [0]
    _bounds = [(-5.0, 5.0)]
    _is_minimization_by_default = False
    _optimal_value = 4.958013609943399
    _optimizers = [(-3.9933485208154305,), (3.9933485208154305,)]

    def __init__(self, negate: bool = False, dtype: torch.dtype = torch.double) -> None:
        super().__init__(negate=negate, dtype=dtype)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        x = X.squeeze(-1)
        return x * torch.sin(2.0 * x) + torch.cos(math.pi * x)

    def noise_variance(self, X: Tensor) -> Tensor:
        return (X.squeeze(-1).abs() + 1.0) / 10.0
