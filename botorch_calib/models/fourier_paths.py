"""Functions drawn from one Gaussian process, evaluated together.

BoTorch draws a function by Matheron's rule: ``m(x)``, plus random Fourier features with random
weights, plus the covariances with the training points with weights that make it agree with the
data. It evaluates each draw alone. Draws of one process share ``m`` and the covariances: computing
these once takes half of the time of a calibrated draw
(``benchmarks/studies/simpler_forms_robust.py``). The posterior at a point has them in common with
the draws as well.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from botorch.models import SingleTaskGP
from botorch.models.utils import gpt_posterior_settings
from botorch.sampling.pathwise.features.maps import KernelEvaluationMap, KernelFeatureMap
from botorch.sampling.pathwise.posterior_samplers import MatheronPath
from gpytorch.lazy import LazyEvaluatedKernelTensor
from torch import Tensor
from torch.autograd import Function
from torch.nn import Module

from botorch_calib.models.inspection import raw_train_inputs
from botorch_calib.models.kept_factor import factor_of, may_serve
from botorch_calib.models.marginals import in_outcome_units
from botorch_calib.models.radial_kernels import radial_between
from botorch_calib.posteriors.single_points import SinglePointPosterior

# Largest difference from the values of BoTorch's paths, in units of the largest of them.
_TOLERANCE = {torch.double: 1e-8, torch.float: 1e-3}
_CHUNK = 2**15  # features at a time, few enough to stay in a CPU's cache


class FourierPaths(Module):
    """Single functions drawn from one process by ``draw_matheron_paths``, evaluated together.

    Values are those of the functions one by one up to rounding, with derivatives of every order.
    The features keep the hyperparameters that they have now.
    """

    points: Tensor
    frequencies: Tensor
    shifts: Tensor
    amplitudes: Tensor
    weights: Tensor

    def __init__(
        self, gp: Any, waves: list[tuple[Tensor, Tensor]], updates: list[Any], output_transform: Any
    ) -> None:
        super().__init__()
        self.gp, self.output_transform = gp, output_transform
        self.register_buffer("points", updates[0].feature_map.points)
        self.register_buffer("frequencies", torch.stack([each for each, _ in waves]))
        # Sine and cosine of a phase make one cosine, shifted, at half of the time of two functions.
        sines, cosines = torch.stack([each for _, each in waves], dim=1)
        self.register_buffer("shifts", -torch.atan2(sines, cosines).unsqueeze(-2))
        self.register_buffer("amplitudes", torch.hypot(sines, cosines).unsqueeze(-1))
        self.register_buffer("weights", torch.stack([each.weight for each in updates], dim=-1))

    @classmethod
    @torch.no_grad()
    def of(cls, gp: Any, *paths: Any) -> Self | None:
        """Functions drawn from ``gp``, or None where their values together are not those alone."""
        if type(gp) is not SingleTaskGP or any(type(each) is not MatheronPath for each in paths):
            return None
        parts = [list(each.paths.values()) for each in paths]
        waves = [found for pair in parts if (found := _waves(*pair)) is not None]
        data = raw_train_inputs(gp)
        if len(waves) < len(paths) or data is None or gp.transform_inputs(data).shape != data.shape:
            return None
        together = cls(gp, waves, [update for _, update in parts], paths[0].output_transform)
        X = torch.lerp(data[:4], data[-4:].flip(0), 0.3).to(gp.train_targets)
        values, expected = together(X), torch.stack([each(X) for each in paths])
        error = (values - expected).abs().amax() / expected.abs().amax()
        return together if error <= _TOLERANCE.get(X.dtype, 0.0) else None

    def forward(self, X: Tensor) -> Tensor:
        """Values ``num_paths x batch_shape x q`` at ``batch_shape x q x d``, in outcome units.

        Those of a single path are ``batch_shape x q``.
        """
        return self._values(X, *self._shared(X)[:3])

    def with_posterior(self, X: Tensor) -> tuple[Tensor, SinglePointPosterior | None]:
        """The values, and the posterior at each point alone, ``batch_shape x q x 1 x 1``.

        The covariances with the training points serve both. None where it is not known how.
        """
        rows, mean, covariance, variance = self._shared(X)
        values, posterior = self._values(X, rows, mean, covariance), None
        with gpt_posterior_settings():
            factor = factor_of(self.gp) if may_serve(self.gp) else None
        if factor is not None and variance is not None:
            moments = factor.given_data(mean, covariance.mT, variance)
            each = (v.view(*X.shape[:-1], 1, v.shape[-1]) for v in (*moments, rows))
            posterior = in_outcome_units(self.gp, X.unsqueeze(-2), *each)
        return values, posterior

    def _shared(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | float | None]:
        """What the draws share: transformed inputs, prior mean, covariances with the data.

        Of ``N`` points, ``N x d``, ``N`` and ``n x N``; and the prior variance, if it is a number.
        """
        # The process may be less precise than X.
        rows = self.gp.transform_inputs(X).reshape(-1, X.shape[-1]).to(self.points)
        cross: Any = self.gp.covar_module(self.points, rows)
        is_lazy = isinstance(cross, LazyEvaluatedKernelTensor)
        radial = radial_between(cross.x1, cross) if is_lazy else None
        covariance, variance = (cross.to_dense(), None) if radial is None else radial
        return rows, self.gp.mean_module(rows), covariance, variance

    def _values(self, X: Tensor, rows: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
        waves = _SumOfWaves.apply(rows, self.frequencies, self.shifts, self.amplitudes)
        shared = mean + self.weights.mT @ covariance
        values = (waves + shared).unflatten(-1, X.shape[:-1])
        if self.output_transform is not None:
            values = self.output_transform(values)
        return values.squeeze(0)


class _SumOfWaves(Function):
    """Draws from the prior without its mean, ``num_paths x n`` at rows ``n x d``.

    Their derivatives by the rows come with the values, part by part, while the phases are in the
    cache of a CPU: autograd would keep the phases and pass through them again and again.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, frequencies: Tensor, shifts: Tensor, amplitudes: Tensor
    ) -> Tensor:
        num = len(rows) if rows.is_cuda else _CHUNK // frequencies.shape[-1]
        by_phase, values, slopes = _slopes_by_sine(frequencies, amplitudes), [], []
        for part in rows.split(max(num, 1)):
            phases = _phases(part, frequencies, shifts)
            if ctx.needs_input_grad[0]:
                slopes.append(phases.sin() @ by_phase)
            values.append((phases.cos_() @ amplitudes).squeeze(-1))
        if slopes:
            saved = torch.cat(slopes, dim=1)
            ctx.save_for_backward(saved, rows, frequencies, shifts, amplitudes)
        return torch.cat(values, dim=-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        slopes, rows, frequencies, shifts, amplitudes = ctx.saved_tensors
        if torch.is_grad_enabled():  # with a graph for derivatives of higher order
            sines = _phases(rows, frequencies, shifts).sin()
            slopes = sines @ _slopes_by_sine(frequencies, amplitudes)
        return (grad.unsqueeze(-1) * slopes).sum(dim=0), None, None, None


def _phases(rows: Tensor, frequencies: Tensor, shifts: Tensor) -> Tensor:
    """Phases of all waves, ``num_paths x n x m``."""
    return torch.baddbmm(shifts, rows.expand(len(shifts), -1, -1), frequencies)


def _slopes_by_sine(frequencies: Tensor, amplitudes: Tensor) -> Tensor:
    """Derivatives of a draw by the inputs over the sines of its phases, ``num_paths x m x d``."""
    return -amplitudes * frequencies.mT


def _waves(prior: Any, update: Any) -> tuple[Tensor, Tensor] | None:
    """Frequencies ``d x m`` and amplitudes ``2 x m`` of a draw from the prior, if made of waves."""
    # Its input transforms are linear, and its output transforms scale: images of unit vectors, and
    # of sines and cosines of 0, reveal them.
    maps: list[Any] = [getattr(each, "feature_map", None) for each in (prior, update)]
    if [type(each) for each in maps] != [KernelFeatureMap, KernelEvaluationMap]:
        return None
    units = torch.eye(maps[1].points.shape[-1]).to(maps[1].points)
    frequencies = maps[0].forward(maps[0].input_transform(units))
    num = frequencies.shape[-1]
    scale = maps[0].output_transform(torch.zeros_like(frequencies[:1])).flatten()
    if not len(scale) == prior.weight.numel() == 2 * num or prior.weight.dim() != 1:
        return None
    return frequencies, (scale[num:].repeat(2) * prior.weight).view(2, num)
