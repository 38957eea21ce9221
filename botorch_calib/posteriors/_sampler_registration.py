"""Registration of the sampler of calibrated posteriors with BoTorch's ``get_sampler``."""

from __future__ import annotations

import torch
from botorch.sampling.get_sampler import GetSampler
from botorch.sampling.normal import IIDNormalSampler, NormalMCSampler, SobolQMCNormalSampler
from torch.quasirandom import SobolEngine

from botorch_calib.posteriors.base import StatedPosterior
from botorch_calib.posteriors.posterior_list import CalibratedPosteriorList
from botorch_calib.posteriors.transformed import TransformedOutcomePosterior


# A transformed one is named, as BoTorch registers its base class too.
@GetSampler.register((StatedPosterior, TransformedOutcomePosterior, CalibratedPosteriorList))
def _get_sampler_calibrated(
    posterior: StatedPosterior | CalibratedPosteriorList,
    sample_shape: torch.Size,
    *,
    seed: int | None = None,
) -> NormalMCSampler:
    """Quasi-Monte Carlo over the base samples of a t-batch; i.i.d. if too many for Sobol."""
    if posterior.base_sample_shape[-2:].numel() > SobolEngine.MAXDIM:
        return IIDNormalSampler(sample_shape=sample_shape, seed=seed)
    return SobolQMCNormalSampler(sample_shape=sample_shape, seed=seed)
