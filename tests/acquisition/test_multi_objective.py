"""BoTorch's acquisition functions of several outcomes take a `CalibratedModelList`.

That values are those of the processes where nothing is corrected: tests/test_botorch_tutorials.py.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from botorch.acquisition.multi_objective.hypervolume_knowledge_gradient import (
    qHypervolumeKnowledgeGradient,
)
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.sampling.normal import SobolQMCNormalSampler
from gpytorch.kernels import MaternKernel
from torch import Generator, Size
from torch.testing import assert_close

from botorch_calib import (
    CalibratedModel,
    CalibratedModelList,
    LogCalibratedProbabilityOfFeasibility,
    qLogCalibratedNoisyExpectedHypervolumeImprovement,
)
from tests.botorch_tutorials import value_and_gradient
from tests.gps import DOUBLE, far_from_gaussian, make_data

X, Y, _ = make_data(10)
Y = torch.cat([Y, X[:, :1] - Y, X.sum(dim=-1, keepdim=True)], dim=-1)
REF_POINT = torch.tensor([-1.0, -1.0], **DOUBLE)
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], **DOUBLE)
PENDING = torch.tensor([[0.2, 0.8]], **DOUBLE)
NEW = torch.tensor([[[0.1, 0.4], [0.7, 0.6]], [[0.9, 0.3], [0.35, 0.95]]], **DOUBLE)


def gps(num: int) -> list[SingleTaskGP]:
    """Well conditioned at their data, the last with fewer of them."""
    models = []
    for i in range(num):
        rows = slice(7 if i == num - 1 else None)
        kernel = MaternKernel(nu=2.5, ard_num_dims=2)
        gp = SingleTaskGP(X[rows], Y[rows, i : i + 1], covar_module=kernel, outcome_transform=None)
        gp.covar_module.lengthscale = 0.2 + 0.1 * i
        gp.likelihood.noise = 0.1
        models.append(gp.eval())
    return models


def corrected(num: int) -> Any:
    models = [CalibratedModel(gp, far_from_gaussian()) for gp in gps(num)]
    return CalibratedModelList(*models[:-1], gps(num)[-1])


def seeded() -> Generator:
    return Generator().manual_seed(5)


def test_samples_estimate_the_closed_form() -> None:
    """The probability that two calibrated outcomes are within limits, by 4096 samples.

    Its standard error would be at most 0.008 if they were independent.
    """
    model = corrected(2)
    exact = LogCalibratedProbabilityOfFeasibility(model, {0: (None, 0.3), 1: (-0.5, None)})
    point = NEW[:, :1]
    samples = SobolQMCNormalSampler(Size([4096]), seed=0)(model.posterior(point)).squeeze(-2)
    share = ((samples[..., 0] <= 0.3) & (samples[..., 1] >= -0.5)).double().mean(dim=0)
    assert_close(share, exact(point).exp(), rtol=0.0, atol=0.01)


class TestKnowledgeGradient:
    """Fantasies of all outcomes, and models that are conditioned on them."""

    @pytest.mark.filterwarnings("ignore:Non-strict enforcement")  # of an outcome without points
    @pytest.mark.parametrize(
        ("use_posterior_mean", "decoupled"), [(True, False), (False, False), (True, True)]
    )
    def test_of_the_hypervolume(self, use_posterior_mean: bool, decoupled: bool) -> None:
        mask: Any = torch.tensor([[True, False]]) if decoupled else None
        function = qHypervolumeKnowledgeGradient(
            corrected(2),
            REF_POINT,
            num_fantasies=2,
            num_pareto=3,
            use_posterior_mean=use_posterior_mean,
            X_evaluation_mask=mask,
            X_pending=None if decoupled else PENDING,
        )
        generator = seeded()
        points = torch.rand(2, 7, 2, generator=generator, **DOUBLE)
        value, gradient = value_and_gradient(function, points)
        assert value.isfinite().all() and gradient.isfinite().all() and (gradient != 0).any()


@pytest.mark.filterwarnings("ignore:A not p.d.")
def test_search() -> None:
    """With raw samples around the best points, one candidate after the other."""
    function = qLogCalibratedNoisyExpectedHypervolumeImprovement(corrected(2), REF_POINT, X)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Failed to")
        candidates, _ = optimize_acqf(
            function,
            BOUNDS,
            q=2,
            num_restarts=1,
            raw_samples=8,
            sequential=True,
            options={"sample_around_best": True, "maxiter": 5},
        )
    assert candidates.shape == (2, 2)
