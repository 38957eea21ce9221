"""Where should the noise in joint samples come from? Four choices, on one Gaussian process.

Samples ``f~ = f + a sigma_y (T(z) - z)`` of the objective need noise for ``z``. Whatever its joint
distribution, each marginal is the calibrated one; what differs are correlations, and what a
second copy of a point seems to be worth. Compared are noise that is independent from row to row,
one number for all rows, a path of the process' prior and one of its posterior, which is what
`CalibratedPosterior` takes.

The process has a Matern-5/2 kernel with lengthscale 0.3 and variance 1, conditioned on 20 random
points of the unit square. Its statements are corrected by conformal intervals of one width, given
in units of the right one. Reported for 12 further points: the largest error of a rank correlation
of two points to that of the process, and the mean of these errors; and by how much the expected
improvement, over the best posterior mean, of two copies of a point exceeds that of one, for the
best of these points.

    python -m benchmarks.studies.joint_samples
"""

from __future__ import annotations

import math

import torch
from botorch.models import SingleTaskGP
from botorch.posteriors import GPyTorchPosterior
from gpytorch.kernels import MaternKernel, ScaleKernel
from torch import Generator, Tensor

from benchmarks.framework.markdown import table
from botorch_calib.distributions.piecewise import PiecewisePredictive

NUM_DATA, NUM_POINTS, NUM_SAMPLES = 20, 12, 40_000
NOISES = (0.05, 1.0)
WIDTHS = (0.5, 1.0, 2.0, 3.0)
SOURCES = ("independent", "one number", "prior path", "posterior path")
ALPHA = 0.2
JITTER = 1e-9


def process(noise: float) -> SingleTaskGP:
    """The Gaussian process."""
    X = torch.rand(NUM_DATA, 2, dtype=torch.double, generator=Generator().manual_seed(0))
    kernel = ScaleKernel(MaternKernel(nu=2.5))
    Y = (6 * X).sin().sum(dim=-1, keepdim=True)
    gp = SingleTaskGP(X, Y, covar_module=kernel, outcome_transform=None)
    kernel.base_kernel.lengthscale, kernel.outputscale = 0.3, 1.0
    gp.likelihood.noise = noise
    return gp.eval()


def posterior_covariance(gp: SingleTaskGP, X: Tensor) -> Tensor:
    """Posterior covariance of the objective at ``q x d`` points, ``q x q``."""
    posterior = gp.posterior(X)
    assert isinstance(posterior, GPyTorchPosterior)
    covariance: Tensor = posterior.distribution.covariance_matrix
    return covariance


def normal(covariance: Tensor, seed: int) -> Tensor:
    """Draws of a normal distribution, ``NUM_SAMPLES x q``."""
    root = torch.linalg.cholesky(covariance + JITTER * torch.eye(len(covariance)).double())
    draws = torch.randn(
        NUM_SAMPLES, len(covariance), dtype=torch.double, generator=Generator().manual_seed(seed)
    )
    return draws @ root.mT


@torch.no_grad()
def samples(gp: SingleTaskGP, X: Tensor, width: float, source: str) -> Tensor:
    """Joint samples of the objective less its mean at ``q x d`` points, ``NUM_SAMPLES x q``."""
    covariance = posterior_covariance(gp, X)
    variance, noise = covariance.diagonal(), gp.likelihood.noise
    one = torch.ones_like(covariance)
    of_noise = {
        "independent": torch.eye(len(X)).double(),
        "one number": one,
        "prior path": gp.covar_module(X).to_dense(),
        "posterior path": covariance / variance.sqrt() / variance.sqrt().unsqueeze(-1),
    }[source]
    path, eps = normal(covariance, 1), normal(of_noise, 2)
    deviation = (variance + noise).sqrt()
    z = (path + noise.sqrt() * eps) / deviation
    half_width = torch.full((1, 1), -width, dtype=torch.double)
    half_width = half_width * torch.special.ndtri(half_width.new_tensor(ALPHA / 2))
    predictive = PiecewisePredictive.conformal(ALPHA, half_width, tails="stretched", max_width=50.0)
    return path + variance / deviation * (predictive.transport(z) - z)


@torch.no_grad()
def correlation_errors(gp: SingleTaskGP, X: Tensor, width: float, source: str) -> Tensor:
    """Errors of the rank correlations of all pairs of points.

    Those of normal variables with correlation ``r`` are ``6 / pi asin(r / 2)``.
    """
    covariance = posterior_covariance(gp, X)
    deviation = covariance.diagonal().sqrt()
    correlation = covariance / deviation / deviation.unsqueeze(-1)
    ranks = samples(gp, X, width, source).argsort(dim=0).argsort(dim=0).double()
    errors = torch.corrcoef(ranks.mT) - 6 / math.pi * torch.asin((correlation / 2).clamp(max=0.5))
    i, j = torch.triu_indices(len(X), len(X), offset=1)
    return errors[i, j]


@torch.no_grad()
def phantom_improvement(gp: SingleTaskGP, x: Tensor, width: float, source: str) -> float:
    """By which fraction two copies of a point improve on one, in expectation."""
    threshold = gp.posterior(gp.train_inputs[0]).mean.max() - gp.posterior(x).mean
    excess = (samples(gp, x.expand(2, -1), width, source) - threshold).clamp(min=0.0)
    return float(excess.amax(dim=-1).mean() / excess[:, 0].mean()) - 1


def report() -> str:
    """A table with a row for each setting."""
    X = torch.rand(NUM_POINTS, 2, dtype=torch.double, generator=Generator().manual_seed(3))
    rows = []
    for noise in NOISES:
        gp = process(noise)
        best = X[gp.posterior(X).mean.argmax()].unsqueeze(0)
        for width in WIDTHS:
            for source in SOURCES:
                errors = correlation_errors(gp, X, width, source).abs()
                phantom = phantom_improvement(gp, best, width, source)
                numbers = [f"{errors.max():.3f}", f"{errors.mean():.3f}", f"{100 * phantom:.1f} %"]
                rows.append([f"{noise:g}", f"{width:g}", source, *numbers])
    header = ["noise variance", "width", "noise from", "largest error", "mean error", "phantom EI"]
    return "\n".join(table(header, rows))


if __name__ == "__main__":
    print(report())
