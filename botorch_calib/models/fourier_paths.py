r"""Functions drawn from one Gaussian process, evaluated together and with its posterior.

BoTorch draws a function by Matheron's rule: ``m(x)``, plus random Fourier features with random
weights, plus the covariances with the training points with weights that make it agree with the
data. It evaluates each draw alone, and keeps a graph through every step of a thousand features a
point. Draws of one process share ``m`` and the covariances, the posterior needs nothing else, and
the derivative of the features is one line. So here all that is shared is computed once, and of the
features a Jacobian is kept.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from botorch.models import SingleTaskGP
from botorch.models.utils.assorted import gpt_posterior_settings
from botorch.posteriors import GPyTorchPosterior
from botorch.sampling.pathwise.features.maps import KernelEvaluationMap, KernelFeatureMap
from botorch.sampling.pathwise.paths import GeneralizedLinearPath
from botorch.sampling.pathwise.posterior_samplers import MatheronPath
from botorch.sampling.pathwise.utils import (
    ChainedTransform,
    FeatureSelector,
    InverseLengthscaleTransform,
    OutputscaleTransform,
    SineCosineTransform,
)
from gpytorch.distributions import MultivariateNormal
from torch import Tensor
from torch.autograd import Function
from torch.nn import Module

_LINEAR = (InverseLengthscaleTransform, FeatureSelector)
_CHUNK = 2**15  # features at a time, few enough to stay in a CPU's cache


class FourierPaths(Module):
    """Single functions drawn from one process by ``draw_matheron_paths``, evaluated together.

    Values are those of the functions one by one, and of the process' posterior, up to rounding,
    with derivatives of every order. The features keep the hyperparameters that they have now.

    Args:
        gp: The process.
        paths: The functions, of which `of` knows that they are as described.
    """

    points: Tensor
    frequencies: Tensor
    amplitudes: Tensor
    weights: Tensor

    @torch.no_grad()
    def __init__(self, gp: Any, paths: tuple[Any, ...]) -> None:
        super().__init__()
        self.gp, self.output_transform = gp, paths[0].output_transform
        priors, updates = zip(*(each.paths.values() for each in paths), strict=True)
        features = [each.feature_map for each in priors]
        self.register_buffer("points", updates[0].feature_map.points)
        self._inputs = gp.train_inputs[0]  # equal to these, as `of` has seen
        # What the transforms of inputs do is linear, and those of outputs scale: each is known by
        # what it makes of unit vectors, and of sines and cosines of 0.
        like: Any = {"dtype": self.points.dtype, "device": self.points.device}
        units = torch.eye(self.points.shape[-1], **like)
        waves = [each.forward(each.input_transform(units)) for each in features]
        num = waves[0].shape[-1]
        scales = [each.output_transform(torch.zeros(1, num, **like))[0, num:] for each in features]
        scaled = [scale.repeat(2) * each.weight for scale, each in zip(scales, priors, strict=True)]
        self.register_buffer("frequencies", torch.stack(waves))
        self.register_buffer("amplitudes", torch.stack(scaled).unflatten(-1, (2, num)))
        self.register_buffer("weights", torch.stack([each.weight for each in updates], dim=-1))

    @classmethod
    def of(cls, gp: Any, *paths: Any) -> Self | None:
        """The functions together, or None where they are not of the kind that is known here.

        Args:
            gp: The process, in evaluation mode.
            paths: Functions drawn from it.
        """
        known = type(gp) is SingleTaskGP and all(_is_known(each, gp) for each in paths)
        return cls(gp, paths) if known else None

    def forward(self, X: Tensor) -> Tensor:
        """Evaluate the functions.

        Args:
            X: ``batch_shape x q x d``.

        Returns:
            Values in units of the outcome, ``num_paths x batch_shape x q``.
        """
        return self._evaluate(X)[0]

    def with_posterior(self, X: Tensor) -> tuple[Tensor, GPyTorchPosterior]:
        """Evaluate the functions, and with them the posterior of the process at each point alone.

        Args:
            X: ``batch_shape x q x d``.

        Returns:
            Values in units of the outcome, ``num_paths x batch_shape x q``, and the posterior, of
            batch shape ``batch_shape x q`` and for a single point each.
        """
        values, rows, mean, covariance = self._evaluate(X)
        strategy, shape = self.gp.prediction_strategy, X.shape[:-1]
        if self.gp.training or strategy is None or not self._has_its_points():
            return values, self.gp.posterior(X.unsqueeze(-2))  # what it keeps has to be made
        prior = self.gp.covar_module(rows, diag=True)
        with gpt_posterior_settings():
            moments = strategy.exact_prediction(
                mean.reshape(*shape, 1), prior.reshape(*shape, 1, 1), covariance.view(*shape, 1, -1)
            )
        posterior = GPyTorchPosterior(MultivariateNormal(*moments))
        transform = getattr(self.gp, "outcome_transform", None)
        if transform is not None:
            posterior = transform.untransform_posterior(posterior, X=X.unsqueeze(-2))
        return values, posterior

    def _has_its_points(self) -> bool:
        """Whether the process has the inputs from which the functions were drawn, still."""
        inputs = self.gp.train_inputs[0]
        if inputs is not self._inputs:  # a comparison of numbers is a host read
            if not torch.equal(inputs, self.points):
                return False
            self._inputs = inputs
        return True

    def _evaluate(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Values, and for each point its transformed input, prior mean and covariances."""
        rows = self.gp.transform_inputs(X).reshape(-1, X.shape[-1])
        mean = self.gp.mean_module(rows)
        covariance = self.gp.covar_module(rows, self.points).to_dense()
        num = len(rows) if rows.is_cuda else _CHUNK // self.frequencies.shape[-1]
        waves = [
            WaveSums.apply(part, self.frequencies, self.amplitudes)
            for part in rows.split(max(num, 1))
        ]
        values = torch.cat(waves, dim=-1) + (mean + (covariance @ self.weights).mT)
        values = values.view(-1, *X.shape[:-1])
        if self.output_transform is not None:
            values = self.output_transform(values)
        return values, rows, mean, covariance


class WaveSums(Function):
    """``sum_k a_k sin(w_k x) + b_k cos(w_k x)`` of several functions, with all derivatives by x."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, frequencies: Tensor, amplitudes: Tensor) -> Tensor:
        """The values, ``num_functions x n``.

        Args:
            ctx: Of autograd.
            rows: ``n x d``.
            frequencies: ``w``, ``num_functions x d x m``.
            amplitudes: ``a`` and ``b``, ``num_functions x 2 x m``.
        """
        phase = rows @ frequencies
        sine, cosine = phase.sin(), phase.cos_()
        a, b = amplitudes.unsqueeze(2).unbind(1)
        values = (sine @ a.mT + cosine @ b.mT).squeeze(-1)
        if ctx.needs_input_grad[0]:
            slopes = cosine.mul_(a).addcmul_(sine, b, value=-1.0)
            ctx.save_for_backward(rows, frequencies, amplitudes, slopes @ frequencies.mT)
        return values

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """By the rows alone."""
        rows, frequencies, amplitudes, jacobian = ctx.saved_tensors
        if torch.is_grad_enabled():  # then it needs a graph
            phase = rows @ frequencies
            a, b = amplitudes.unsqueeze(2).unbind(1)
            jacobian = (a * phase.cos() - b * phase.sin()) @ frequencies.mT
        return (grad.unsqueeze(-1) * jacobian).sum(dim=0), None, None


def _is_known(path: Any, gp: Any) -> bool:
    """Whether a path is a single function by Matheron's rule, of sines, cosines and ``gp``."""
    inputs, outcomes = (getattr(gp, f"{name}_transform", None) for name in ("input", "outcome"))
    if (
        type(path) is not MatheronPath
        or path.input_transform is not None
        or getattr(path.output_transform, "transform", None) is not outcomes
        or getattr(inputs, "is_one_to_many", False)
    ):
        return False
    parts: list[Any] = list(path.paths.values())
    if not all(
        type(each) is GeneralizedLinearPath and each.weight.dim() == 1 and not each.is_ensemble
        for each in parts
    ):
        return False
    prior, update = parts
    features, evaluation = prior.feature_map, update.feature_map
    *scalings, waves = _chain(features.output_transform)
    return (
        type(features) is KernelFeatureMap
        and features.bias is None
        and all(isinstance(each, _LINEAR) for each in _chain(features.input_transform))
        and all(isinstance(each, OutputscaleTransform) for each in scalings)
        and isinstance(waves, SineCosineTransform)
        and prior.bias_module is gp.mean_module
        and prior.input_transform is inputs
        and type(evaluation) is KernelEvaluationMap
        and evaluation.kernel is gp.covar_module
        and evaluation.input_transform is inputs
        and torch.equal(evaluation.points, gp.train_inputs[0])
        and update.bias_module is None
        and all(each.output_transform is None for each in (prior, update, evaluation))
    )


def _chain(transform: Any) -> list[Any]:
    """The transforms that one is made of, the last to be applied first."""
    if not isinstance(transform, ChainedTransform):
        return [transform]
    return [part for each in transform.transforms for part in _chain(each)]
