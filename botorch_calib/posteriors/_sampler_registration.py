"""Registration of the sampler of calibrated posteriors with BoTorch's ``get_sampler``."""

from __future__ import annotations

import torch
from botorch.sampling.get_sampler import GetSampler
from botorch.sampling.normal import IIDNormalSampler, NormalMCSampler, SobolQMCNormalSampler
from torch.quasirandom import SobolEngine

from botorch_calib.posteriors.calibrated import CalibratedPosterior
from botorch_calib.posteriors.transformed_outcomes import TransformedOutcomePosterior


@GetSampler.register(CalibratedPosterior)
@GetSampler.register(TransformedOutcomePosterior)
def _get_sampler_calibrated(
    posterior: CalibratedPosterior | TransformedOutcomePosterior,
    sample_shape: torch.Size,
    *,
    seed: int | None = None,
) -> NormalMCSampler:
    """Quasi-Monte Carlo over the ``2 q`` base samples; i.i.d. if they are too many for Sobol."""
    num_points = posterior._extended_shape()[-2]
    if 2 * num_points > SobolEngine.MAXDIM:
        return IIDNormalSampler(sample_shape=sample_shape, seed=seed)
    return SobolQMCNormalSampler(sample_shape=sample_shape, seed=seed)
