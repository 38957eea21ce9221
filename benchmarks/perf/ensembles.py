"""Speed of log expected improvement of a calibrated ensemble of 16 Gaussian processes.

Importing this module registers the comparisons with `perf.measure`.
"""

from __future__ import annotations

from functools import partial

import torch
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from botorch.models.transforms import Normalize

from benchmarks.perf.calibrated_and_delayed import CALIBRATORS
from benchmarks.perf.measure import Workload, comparison
from benchmarks.perf.single_points import log_ei_pair

NUM_MEMBERS = 16
SIZES = ((50, 20), (100, 512))  # training points, and points in a batch


def ensemble(work: Workload) -> EnsembleMapSaasSingleTaskGP:
    """An ensemble whose hyperparameters are spread like posterior draws, without a slow fit."""
    dim = work.X.shape[-1]
    model = EnsembleMapSaasSingleTaskGP(
        work.X, work.Y, num_taus=NUM_MEMBERS, input_transform=Normalize(dim, bounds=work.bounds)
    )
    generator = torch.Generator().manual_seed(0)
    spread = (0.4 * torch.randn(NUM_MEMBERS, 1, dim, generator=generator)).exp().to(work.X)
    model.covar_module.base_kernel.lengthscale = 0.3 * spread
    model.likelihood.noise = 0.05 * spread[..., 0]
    model.eval()
    return model


for _size in SIZES:
    for _name, _template in CALIBRATORS.items():
        comparison(
            f"{_name} / plain log EI, {NUM_MEMBERS} members, n = {_size[0]}, b = {_size[1]}",
            repetitions=30,
            warm_up=3,
        )(partial(log_ei_pair, size=_size, make_model=ensemble, template=_template))
