"""Helpers for BoTorch's tutorials: one sampler for plain and calibrated models."""

from __future__ import annotations

from typing import Any

import torch
from botorch.sampling.normal import NormalMCSampler
from torch import Size, Tensor

from botorch_calib.posteriors import CalibratedPosterior, CalibratedPosteriorList

DOUBLE: dict[str, Any] = {"dtype": torch.double}


def value_and_gradient(acquisition: Any, X: Tensor) -> tuple[Tensor, Tensor]:
    """Values at ``X``, and the gradient of their sum."""
    at = X.clone().requires_grad_()
    value = acquisition(at)
    return value.detach(), torch.autograd.grad(value.sum(), at)[0]


class PathSampler(NormalMCSampler):
    """Draws the same paths of a Gaussian process with and without calibration.

    Each base sample depends only on the index of the point and on the outcome. A calibrated
    posterior has a second base sample for the noise, which has no effect if nothing is corrected.
    """

    def __init__(self, num: int = 32, seed: int = 0) -> None:
        super().__init__(Size([num]), seed=seed)

    def _construct_base_samples(self, posterior: Any) -> None:
        shape = self._get_collapsed_shape(posterior=posterior)
        if self.base_samples is not None and self.base_samples.shape == shape:
            return
        calibrated = isinstance(posterior, (CalibratedPosterior, CalibratedPosteriorList))
        q, num_outputs = posterior._extended_shape()[-2:]
        per_outcome = 2 if calibrated else 1
        columns = [
            torch.stack([self._numbers(point, j) for point in range(q)], dim=-1)
            for j in range(num_outputs)
            for _ in range(per_outcome)
        ]
        base = torch.stack(columns, dim=-1)  # num x q x columns
        self.register_buffer("base_samples", base.view(len(base), *shape[1:]))

    def _numbers(self, point: int, outcome: int) -> Tensor:
        seed = 100_000 * (self.seed or 0) + 1_000 * outcome + point
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(self.sample_shape, generator=generator, **DOUBLE)
