"""Problems with a well-specified Gaussian process: the objective is drawn from its prior.

Here the plain GP is right, and calibration can only do harm; the question is how much. The
comparisons and seeds are in ``benchmarks/protocols/wellspecified.md``. Objectives are paths of a
Matern-5/2 prior on the unit cube in 1, 2 and 3 dimensions with lengthscales 0.2, 0.3 and 0.4 and
variance 1. Each seed has its own path. The noise is Gaussian with standard deviation 0.1. There are
5 initial points (8 in three dimensions), scrambled Sobol, and 40 evaluations. Methods use the true
hyperparameters. A further problem in two dimensions fits them at every fifth evaluation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from botorch.models import SingleTaskGP
from botorch.sampling.pathwise import draw_kernel_feature_paths
from botorch.utils.sampling import draw_sobol_samples, manual_seed
from gpytorch.kernels import MaternKernel, ScaleKernel
from scipy.optimize import minimize
from torch import Tensor

from benchmarks.framework.replicate import stream_seed
from benchmarks.framework.sequential import Oracle, Problem, sobol_design
from benchmarks.framework.surrogates import Fixed, Refitted, Surrogate

LENGTHSCALES = {1: 0.2, 2: 0.3, 3: 0.4}
NOISE_SD = 0.1
NUM_FEATURES = 2048
NUM_GRID = 8192
NUM_POLISHED = 16

# Number of a random stream, which must not change, see `framework.replicate`.
PATH = 3


@dataclass(frozen=True)
class TrueGP:
    """Makes the Gaussian process with the hyperparameters of the prior, on the unit cube."""

    dim: int

    def __call__(self) -> SingleTaskGP:
        kernel = ScaleKernel(MaternKernel(nu=2.5))
        X = torch.full((1, self.dim), 0.5, dtype=torch.double)
        gp = SingleTaskGP(
            X, torch.zeros_like(X[:, :1]), covar_module=kernel, outcome_transform=None
        )
        kernel.base_kernel.lengthscale = LENGTHSCALES[self.dim]
        kernel.outputscale = 1.0
        gp.likelihood.noise = NOISE_SD**2
        return gp.requires_grad_(False)


@dataclass(frozen=True)
class PriorPath:
    """Makes the oracle of a seed: a path of the prior, with noise."""

    dim: int

    def __call__(self, seed: int) -> Oracle:
        return _oracle(self.dim, seed)


# All methods of a seed share a path, and its maximum takes longer than an evaluation.
@lru_cache(maxsize=64)
def _oracle(dim: int, seed: int) -> Oracle:
    with manual_seed(stream_seed(seed, PATH)):
        path = draw_kernel_feature_paths(
            TrueGP(dim)(), sample_shape=torch.Size([]), num_features=NUM_FEATURES
        )
    truth = partial(evaluate, path)
    return Oracle(partial(observe, path), truth, maximum(path, dim))


@torch.no_grad()
def evaluate(path: Any, X: Tensor) -> Tensor:
    """Values ``n x 1`` of a path at ``n x d`` points."""
    value: Tensor = path(X)
    return value.reshape(-1, 1)


def observe(path: Any, X: Tensor) -> Tensor:
    """Noisy values ``n x 1`` of a path at ``n x d`` points."""
    return evaluate(path, X) + NOISE_SD * torch.randn_like(X[:, :1])


def maximum(path: Any, dim: int) -> float:
    """The largest value of a path on the unit cube.

    It is found by gradient searches from the best of many Sobol points.
    """
    cube = torch.tensor([[0.0] * dim, [1.0] * dim], dtype=torch.double)
    X = draw_sobol_samples(cube, n=NUM_GRID, q=1, seed=0).squeeze(-2)
    starts = X[evaluate(path, X).squeeze(-1).topk(NUM_POLISHED).indices]

    def descent(x: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.from_numpy(x).reshape(1, dim).requires_grad_()
        value = -path(point).sum()
        (gradient,) = torch.autograd.grad(value, point)
        return value.item(), gradient.flatten().numpy()

    found = [
        minimize(descent, start.numpy(), jac=True, method="L-BFGS-B", bounds=[(0.0, 1.0)] * dim)
        for start in starts
    ]
    return -min(result.fun for result in found)


def wellspecified(dim: int, surrogate: Surrogate, suffix: str = "") -> Problem:
    """Paths in ``dim`` dimensions."""
    bounds = ((0.0, 1.0),) * dim
    return Problem(
        name=f"matern_{dim}d{suffix}",
        build=PriorPath(dim),
        bounds=bounds,
        optimal_value=math.nan,
        initial_design=partial(sobol_design, bounds=bounds),
        num_initial=8 if dim == 3 else 5,
        num_evaluations=40,
        surrogate=surrogate,
    )


def problems() -> tuple[Problem, ...]:
    exact = tuple(wellspecified(dim, Fixed(TrueGP(dim))) for dim in LENGTHSCALES)
    return (*exact, wellspecified(2, Refitted(every=5), "_refitted"))
