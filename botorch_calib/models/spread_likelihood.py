"""`LearnedSpreadLikelihood`: Gaussian noise whose variance depends on the input."""

from __future__ import annotations

from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from gpytorch.likelihoods.gaussian_likelihood import _GaussianLikelihoodBase
from gpytorch.likelihoods.noise_models import HomoskedasticNoise, Noise
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

# `LENGTHSCALES` of the kernels of ``g`` (see `SpreadNoise`), in units of ``sqrt(d)``. ``g`` is
# clamped to [`LEAST`, `MOST`], so the noise variance is between 1/150 and 20 times ``sigma^2``.
LENGTHSCALES, LEAST, MOST = (0.3, 0.8), -5.0, 3.0


class SpreadNoise(Noise):
    """Noise with the variance ``sigma^2 exp g(x)``.

    ``g(x) = shift + sum_l sum_i weights[l, i] k_l(x, x_i)``, clamped to [-5, 3]. Here ``x_i`` are
    the rows of ``X``, and ``k_l`` are RBF kernels with the lengthscales ``0.3 sqrt(d)`` and ``0.8
    sqrt(d)`` on the unit cube. ``shift`` and ``weights`` are buffers, and initially 0.

    Args:
        level: The noise model of ``sigma^2``, with prior and constraint. It is shared, not copied.
        X: Transformed training inputs ``n x d``. Coordinates with a range above 1 are divided by
            their range.
    """

    points: Tensor
    scale: Tensor
    shift: Tensor
    weights: Tensor
    constant_probability: Tensor

    def __init__(self, level: HomoskedasticNoise, X: Tensor) -> None:
        super().__init__()
        self.level = level
        self.register_buffer("scale", (X.amax(dim=-2) - X.amin(dim=-2)).clamp_min(1.0))
        self.register_buffer("points", X / self.scale)
        self.register_buffer("shift", X.new_zeros(()))
        self.register_buffer("weights", X.new_zeros(len(LENGTHSCALES), len(X)))
        self.register_buffer("constant_probability", X.new_ones(()))

    def g(self, X: Tensor) -> Tensor:
        """Return ``g`` (see the class docstring) at transformed inputs ``X``.

        ``X`` is ``... x q x d``, and the result is ``... x q``.
        """
        g = self.shift
        for correlation, weights in zip(self.correlations(X), self.weights, strict=True):
            g = g + correlation @ weights
        return g.clamp(LEAST, MOST)

    def correlations(self, X: Tensor) -> list[Tensor]:
        """Return the values of each kernel between inputs and the ``n`` training points.

        The transformed inputs ``X`` are ``... x q x d``. The list contains one tensor ``... x q x
        n`` for each of `LENGTHSCALES`.
        """
        # Subtract the first point everywhere: far from 0, differences of squares would lose all
        # digits.
        points = self.points - self.points[:1]
        X = X / self.scale - self.points[:1]
        squares = X.square().sum(dim=-1, keepdim=True) + points.square().sum(dim=-1)
        squares = (squares - 2.0 * X @ points.mT).clamp_min(0.0) / X.shape[-1]
        return [(squares / (-2.0 * lengthscale**2)).exp() for lengthscale in LENGTHSCALES]

    def forward(
        self,
        *params: Any,
        shape: torch.Size | None = None,
        noise: Tensor | None = None,
        **kwargs: Any,
    ) -> DiagLinearOperator:
        if noise is None:
            noise = self.level.noise * self.g(self._inputs(params, shape)).exp()
        return DiagLinearOperator(noise)

    def _inputs(self, params: tuple[Any, ...], shape: torch.Size | None) -> Tensor:
        if params:
            return params[0] if isinstance(params[0], Tensor) else params[0][0]
        # As in GPyTorch's `FixedNoiseGaussianLikelihood`, missing inputs are assumed to be the
        # training points if the shape has as many points. (BoTorch passes inputs when it fits.)
        points = self.points * self.scale
        if shape is None or shape[-1] != len(points):
            raise UnsupportedError(
                f"The noise depends on the input, and was learned from {len(points)} observations. "
                "Pass the inputs to the likelihood, as in `likelihood(model(X), X)`; or fit the "
                "process to all data, and learn the noise again by `with_learned_spread`."
            )
        return points.expand(*shape[:-1], *points.shape)


class LearnedSpreadLikelihood(_GaussianLikelihoodBase):
    """Gaussian noise with the input-dependent variance of a `SpreadNoise`, its ``noise_covar``.

    `with_learned_spread` makes such likelihoods.
    """

    @property
    def constant_probability(self) -> float:
        """The posterior probability that the noise variance is constant; 1 before any learning."""
        return float(self.noise_covar.constant_probability)

    def variances(self, inputs: Tensor) -> Tensor:
        """Return the noise variances at transformed inputs.

        The inputs are ``... x q x d``, and the variances are ``... x q``.
        """
        return self.noise_covar(inputs).diagonal(dim1=-1, dim2=-2)
