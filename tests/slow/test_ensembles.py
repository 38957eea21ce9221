"""Calibrated ensembles: coverage over sequences, and hyperparameters drawn by NUTS."""

import pytest
import torch
from botorch.fit import fit_fully_bayesian_model_nuts
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from botorch.models.transforms import Standardize

from botorch_calib import (
    CalibratedModel,
    LocalizedConformal,
    LogCalibratedExpectedImprovement,
    OnlineConformal,
)
from botorch_calib.models.predict import history

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

SEQUENCES, NUM, ALPHA = 40, 100, 0.2


def sequence(seed: int) -> EnsembleMapSaasSingleTaskGP:
    """A noisy sine; members have various lengthscales, and noise 2 to 50 times too small."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(NUM, 2, generator=generator, dtype=torch.double)
    Y = (6 * X).sin().sum(dim=-1, keepdim=True)
    Y = Y + 0.5 * torch.randn(NUM, 1, generator=generator, dtype=torch.double)
    model = EnsembleMapSaasSingleTaskGP(X, Y, num_taus=4)
    lengthscales = torch.tensor([0.1, 0.3, 0.5, 1.0], dtype=torch.double).view(4, 1, 1)
    model.covar_module.base_kernel.lengthscale = lengthscales.expand(4, 1, 2)
    model.covar_module.outputscale = torch.ones(4, dtype=torch.double)
    model.likelihood.noise = torch.tensor([[0.003], [0.01], [0.03], [0.1]], dtype=torch.double)
    return model.eval()


def test_coverage_of_sequences():
    """Within the tracker's bound for each of 40 sequences, and to 0.02 on average.

    Without a calibrator, coverage is wrong.
    """
    plain, calibrated = [], []
    for seed in range(SEQUENCES):
        X, z, *_ = history(sequence(seed))
        calibrator = OnlineConformal(ALPHA)
        misses = []
        for x, score in zip(X.split(1), z.split(1), strict=True):
            predictive = calibrator.predictive(x.unsqueeze(0))
            ends = [predictive.quantile(p).item() for p in (ALPHA / 2, 1 - ALPHA / 2)]
            misses.append(not ends[0] <= score.item() <= ends[1])
            calibrator.update(x, score)
        rate = sum(misses) / NUM
        bound = float(calibrator.tracker.coverage_bound(NUM)[0])
        assert abs(rate - ALPHA) <= bound + 1e-9
        assert 0.0 < bound < 0.8
        calibrated.append(rate)
        plain.append((z.abs() > 1.2816).double().mean().item())
    assert abs(sum(calibrated) / SEQUENCES - ALPHA) < 0.02
    assert sum(plain) / SEQUENCES > ALPHA + 0.05


def test_draws_by_nuts():
    pytest.importorskip("numpyro", reason="needs the extra fully-bayesian")
    from botorch.models.fully_bayesian import SaasFullyBayesianSingleTaskGP

    generator = torch.Generator().manual_seed(1)
    X = torch.rand(20, 4, generator=generator, dtype=torch.double)
    Y = (6 * X[:, :1]).sin() + 0.1 * torch.randn(20, 1, generator=generator, dtype=torch.double)
    model = SaasFullyBayesianSingleTaskGP(X, Y, outcome_transform=Standardize(1))
    fit_fully_bayesian_model_nuts(
        model, warmup_steps=64, num_samples=64, thinning=8, disable_progbar=True
    )
    calibrated = CalibratedModel.from_history(model, LocalizedConformal(ALPHA, lengthscale=0.5))
    assert calibrated.calibrator.num_updates == 20
    new = torch.rand(50, 1, 4, generator=generator, dtype=torch.double)
    posterior = calibrated.posterior(new)
    error = posterior.mixture_mean.squeeze() - (6 * new[:, 0, 0]).sin()
    assert error.abs().mean() < 0.3
    assert LogCalibratedExpectedImprovement(calibrated, Y.max())(new).isfinite().all()
    calibrated.observe(new[:2, 0], error[:2, None].detach())
    assert calibrated.model.train_targets.shape == (8, 22)
