"""Calibrated probabilities of yes or no outcomes as a model beside that of an objective."""

from __future__ import annotations

import pickle
from copy import deepcopy
from typing import Any

import pytest
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.acquisition.objective import GenericMCObjective
from botorch.exceptions import BotorchTensorDimensionError, UnsupportedError
from botorch.models import ModelList, SingleTaskGP, SingleTaskVariationalGP
from botorch.models.pairwise_gp import PairwiseGP
from gpytorch.likelihoods import BernoulliLikelihood
from torch import Tensor
from torch.testing import assert_close

from botorch_calib import CalibratedModel, OnlineConformal
from botorch_calib.calibration import ProbabilityCalibrator
from botorch_calib.models import OutcomeProbability
from tests import random_numbers

pytestmark = pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized")


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return random_numbers.uniform(*shape, generator=torch.Generator().manual_seed(seed))


def classifier() -> SingleTaskVariationalGP:
    X = uniform(20, 2)
    happened = (X[:, :1] > 0.5).double()
    likelihood = BernoulliLikelihood()
    model = SingleTaskVariationalGP(X, happened, likelihood=likelihood, inducing_points=8)
    return model.double().eval()


def preferences() -> PairwiseGP:
    return PairwiseGP(uniform(6, 2), torch.tensor([[0, 1], [2, 3], [4, 5], [0, 5]])).eval()


def test_a_classifier() -> None:
    model = classifier()
    probability = OutcomeProbability.of_classifier(model, ProbabilityCalibrator())
    X = uniform(3, 4, 2, seed=1)
    expected = model.likelihood(model.posterior(X.unsqueeze(-2)).distribution).probs
    assert_close(probability(X), expected, rtol=1e-5, atol=1e-6)
    before = probability(X)
    happened = torch.zeros(5, 1, dtype=torch.bool)
    probability.observe(uniform(5, 2, seed=2), happened)
    assert (probability(X) <= before).all() and probability.calibrator.num_updates == 5
    assert_close(probability.posterior(X).mean, probability(X))


def test_preferences_against_samples() -> None:
    model, reference = preferences(), torch.tensor([0.4, 0.6], dtype=torch.double)
    probability = OutcomeProbability.of_preference(model, reference, ProbabilityCalibrator())
    X = uniform(4, 2, seed=3)
    stated = probability(X).squeeze(-1)
    pairs = torch.stack([X, reference.expand(4, 2)], dim=-2)
    draws = model.posterior(pairs).rsample(torch.Size([40000])).squeeze(-1)
    noisy = draws + torch.randn_like(draws)  # each utility with a variance of 1
    share = (noisy[..., 0] > noisy[..., 1]).double().mean(dim=0)
    assert_close(stated, share, rtol=0.0, atol=4 * 0.5 / 40000**0.5)  # four standard errors
    equal = probability(reference.view(1, 2))
    assert_close(equal, torch.full_like(equal, 0.5), rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("kind", ["classifier", "preference"])
def test_copies(kind: str) -> None:
    """They have a model and a calibrator of their own."""
    calibrator, X = ProbabilityCalibrator(), uniform(5, 2, seed=4)
    if kind == "classifier":
        model = OutcomeProbability.of_classifier(classifier(), calibrator)
    else:
        model = OutcomeProbability.of_preference(preferences(), X[0], calibrator)
    before = model(X)
    copies = [pickle.loads(pickle.dumps(model))]
    if kind == "preference":  # caches of a variational model cannot be copied otherwise
        copies.append(deepcopy(model))
    for copied in copies:
        copied.observe(X, torch.zeros(5, 1))
        assert not torch.equal(copied(X), before)
        assert torch.equal(model(X), before)


def test_a_constraint_beside_an_objective() -> None:
    X, Y = uniform(12, 2), uniform(12, 1, seed=5)
    objective = CalibratedModel.from_history(SingleTaskGP(X, Y), OnlineConformal(0.2))
    feasible = OutcomeProbability.of_classifier(classifier(), ProbabilityCalibrator())
    arguments: Any = {
        "best_f": 0.5,
        "objective": GenericMCObjective(lambda samples, X: samples[..., 0]),
        "constraints": [lambda samples: 0.9 - samples[..., 1]],
    }
    points = uniform(6, 1, 2, seed=6).requires_grad_()
    before = qLogExpectedImprovement(ModelList(objective, feasible), **arguments)(points)
    (slope,) = torch.autograd.grad(before.sum(), points)
    assert slope.isfinite().all() and (slope != 0.0).any()
    feasible.observe(uniform(40, 2, seed=7), torch.zeros(40, 1))
    after = qLogExpectedImprovement(ModelList(objective, feasible), **arguments)(points)
    assert (after < before).all()


def test_errors() -> None:
    calibrator = ProbabilityCalibrator()
    gp = SingleTaskGP(uniform(5, 2), uniform(5, 1))
    with pytest.raises(UnsupportedError, match="no BernoulliLikelihood: give .* a function"):
        OutcomeProbability.of_classifier(gp, calibrator)
    with pytest.raises(UnsupportedError, match="no PairwiseProbitLikelihood"):
        OutcomeProbability.of_preference(gp, torch.zeros(2), calibrator)
    own = OutcomeProbability(lambda X: X[..., 0], calibrator)
    with pytest.raises(BotorchTensorDimensionError, match="`happened` must have shape 3 x 1"):
        own.observe(uniform(3, 2), torch.zeros(3))
    wrong: Any
    for wrong in (classifier(), 0.5):
        with pytest.raises(UnsupportedError, match="`probability` .* take `of_classifier`"):
            OutcomeProbability(wrong, calibrator)
    wrong = OnlineConformal(0.2)
    with pytest.raises(UnsupportedError, match="`calibrator` must be a ProbabilityCalibrator"):
        OutcomeProbability(own.probability, wrong)
    column = OutcomeProbability(lambda X: X[..., :1], calibrator)
    for call in (column, lambda X: column.observe(X, torch.ones(3, 1))):
        with pytest.raises(BotorchTensorDimensionError, match="`probability` must give one number"):
            call(uniform(3, 2))
    own.observe(uniform(3, 2), torch.ones(3, 1))
    assert calibrator.num_updates == 3
    for base in (classifier(), preferences()):
        with pytest.raises(UnsupportedError, match="OutcomeProbability"):
            CalibratedModel(base, OnlineConformal(0.2))
