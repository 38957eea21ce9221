"""Coverage, and the learned noise, when half of the errors are known."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood

from botorch_calib.models import PartlyKnownNoiseGP
from tests.gps import DOUBLE, LENGTHSCALES
from tests.random_numbers import normal, uniform


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized")
def test_coverage_when_half_of_the_errors_are_known() -> None:
    """With data from the prior, intervals for new observations and the objective cover 80 %.

    The errors of rows with known noise are half or three times as large as the other errors. A
    model without the known noise would have to average both. The model has the true kernel and
    mean, so only the noise affects the coverage.
    """
    generator = torch.Generator().manual_seed(21)
    scale, n, num = torch.tensor(LENGTHSCALES, **DOUBLE), 40, 25
    inside, learned = torch.zeros(num, 2, **DOUBLE), torch.zeros(num, 2, **DOUBLE)
    known = torch.arange(n) % 2 == 0
    errors = torch.where(torch.arange(n) % 4 == 0, 0.1, 0.6).to(torch.double)
    deviations = torch.where(known, errors, 0.2)
    for i in range(num):
        X = uniform(n + 50, 2, generator=generator)
        K = (-0.5 * torch.cdist(X / scale, X / scale).square()).exp()
        root = torch.linalg.cholesky(K + 1e-10 * torch.eye(n + 50, **DOUBLE))
        f = root @ normal(n + 50, generator=generator)
        Y = (f[:n] + deviations * normal(n, generator=generator)).unsqueeze(-1)
        y_new = f[n:] + 0.2 * normal(50, generator=generator)
        Yvar = torch.where(known, deviations.square(), torch.nan).unsqueeze(-1)
        models: list[Any] = [
            PartlyKnownNoiseGP(X[:n], Y, Yvar, outcome_transform=None),
            SingleTaskGP(X[:n], Y, outcome_transform=None),
        ]
        for j, gp in enumerate(models):
            gp.covar_module.lengthscale = scale
            gp.mean_module.initialize(constant=0.0)
            for part in (gp.covar_module, gp.mean_module):
                part.requires_grad_(False)
            fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
            learned[i, j] = gp.likelihood.noise.detach().flatten()[0]
        for j, (values, noise) in enumerate([(f[n:], False), (y_new, True)]):
            stated = models[0].posterior(X[n:], observation_noise=noise)
            z = (values - stated.mean.squeeze(-1)) / stated.variance.squeeze(-1).sqrt()
            inside[i, j] = (z.abs() < 1.2815515655446004).double().mean().detach()
    # Four standard errors over data sets, since the points of a data set are dependent.
    error = (inside.mean(dim=0) - 0.8) / (inside.std(dim=0) / math.sqrt(num))
    assert error.abs().max() < 4.0
    logs = (learned / 0.04).log()
    bias = logs.mean(dim=0) / (logs.std(dim=0) / math.sqrt(num))
    assert bias[0].abs() < 4.0 < bias[1]
