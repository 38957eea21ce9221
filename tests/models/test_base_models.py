"""Base models, states and inputs that are unusual, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.models import MultiTaskGP, SingleTaskGP
from botorch.models.transforms.input import FilterFeatures
from botorch.sampling.normal import SobolQMCNormalSampler

from botorch_calib import (
    CalibratedExpectedImprovement,
    CalibratedModel,
    CalibratedProbabilityOfImprovement,
    GaussianScore,
    LocalizedConformal,
    LogCalibratedExpectedImprovement,
    OnlineConformal,
)
from botorch_calib.calibration.learners.radial_sum import gaussian_correlation
from tests.gps import (
    DOUBLE,
    far_from_gaussian,
    make_data,
    make_gp,
    make_multitask,
    stated_noise,
)


def test_observe_with_a_transform_that_drops_columns() -> None:
    X = torch.rand(12, 3, **DOUBLE)
    Y = X.sum(dim=-1, keepdim=True).sin()
    gp = SingleTaskGP(X, Y, input_transform=FilterFeatures(torch.tensor([0, 1])))
    model = CalibratedModel.from_history(gp, LocalizedConformal(0.2, 0.25))
    for i in range(3):
        model.observe(X[i : i + 1] * 0.9, Y[i : i + 1])
    assert model.calibrator.num_updates == 15


@pytest.mark.parametrize(
    ("source", "target", "match"),
    [
        (LocalizedConformal(0.5, 0.25), LocalizedConformal(0.01, 0.25), "levels"),
        (
            LocalizedConformal(0.2, 0.25),
            LocalizedConformal(0.2, 0.25, score=GaussianScore()),
            "lev",
        ),
        (far_from_gaussian(0.2), OnlineConformal(0.2), "localized"),
    ],
    ids=["alpha", "score", "localized"],
)
def test_states_of_another_calibrator_are_refused(source, target, match) -> None:
    before = target.tracker.constants.clone()
    with pytest.raises(RuntimeError, match=match):
        target.load_state_dict(source.state_dict())
    assert torch.equal(target.tracker.constants, before)


@pytest.mark.parametrize("incumbent", [-torch.inf, torch.inf])
def test_infinite_incumbents(incumbent: float) -> None:
    model, X = CalibratedModel(make_gp(), far_from_gaussian()), torch.rand(4, 1, 2, **DOUBLE)
    values = {
        cls: cls(model, best_f=incumbent)(X)
        for cls in (
            CalibratedExpectedImprovement,
            LogCalibratedExpectedImprovement,
            CalibratedProbabilityOfImprovement,
        )
    }
    low = incumbent < 0
    assert (values[LogCalibratedExpectedImprovement] == (torch.inf if low else -torch.inf)).all()
    assert (values[CalibratedExpectedImprovement] == (torch.inf if low else 0.0)).all()
    assert (values[CalibratedProbabilityOfImprovement] == (1.0 if low else 0.0)).all()


def test_pending_points_without_rows_are_none() -> None:
    model, X = CalibratedModel(make_gp(), far_from_gaussian()), torch.rand(4, 1, 2, **DOUBLE)
    plain = CalibratedExpectedImprovement(model, best_f=0.1)
    empty = CalibratedExpectedImprovement(model, best_f=0.1, X_pending=X[:0, 0])
    assert torch.equal(plain(X), empty(X))
    with pytest.raises(InputDataError, match="num_fantasies"):
        CalibratedExpectedImprovement(model, best_f=0.1, num_fantasies=0)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_pending_points_of_a_multi_task_model() -> None:
    X, _, _ = make_data()
    model = CalibratedModel(make_multitask(), far_from_gaussian(task=0.0))
    acquisition = CalibratedExpectedImprovement(model, best_f=0.1, X_pending=X[:2])
    assert acquisition(X.unsqueeze(-2)).isfinite().all()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_given_noise_of_several_tasks() -> None:
    """It is the mean of each row's task, as BoTorch has it, and known for fantasies too."""
    X, _, _ = make_data()
    gp = make_multitask(fixed_noise=True)
    both = torch.cat([X, (torch.arange(len(X)) % 2).to(X).unsqueeze(-1)], dim=-1)
    noisy = gp.posterior(both, observation_noise=True).variance
    posterior: Any = gp.posterior(both)
    found = stated_noise(gp, both)
    torch.testing.assert_close(found, noisy - posterior.variance)
    assert found[0] != found[1]
    model = CalibratedModel(gp, far_from_gaussian(task=0.0))
    fantasies = model.fantasize(X[:2], SobolQMCNormalSampler(torch.Size([3]), seed=0))
    assert fantasies.posterior(X, observation_noise=True).variance.shape == (3, len(X), 1)
    value = LogCalibratedExpectedImprovement(model, 0.1, X_pending=X[:2])(X.unsqueeze(-2))
    assert value.shape == (len(X),) and value.isfinite().all()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_given_noise_of_a_task_without_observations() -> None:
    """It is the mean of all tasks, while BoTorch returns NaN."""
    X = torch.cat([torch.rand(6, 2, **DOUBLE), torch.tensor([[0.0], [1.0]] * 3, **DOUBLE)], dim=-1)
    noise = 0.1 + 0.1 * X[:, 2:]
    gp = MultiTaskGP(X, X.sum(-1, keepdim=True), 2, noise, all_tasks=[0, 1, 2], output_tasks=[2])
    unseen = torch.rand(4, 1, 2, **DOUBLE)
    posterior: Any = gp.posterior(unseen)
    found = stated_noise(gp, unseen)
    torch.testing.assert_close(found, torch.full_like(posterior.variance, noise.mean().item()))
    stated = CalibratedModel(gp, LocalizedConformal(0.2)).posterior(unseen)
    assert stated.mean.isfinite().all() and stated.variance.isfinite().all()


def test_kernel_keeps_its_diagonal_in_single_precision() -> None:
    X = torch.rand(20, 2)
    diagonal = gaussian_correlation(X, X, 1e-3).diagonal()
    torch.testing.assert_close(diagonal, torch.ones(20), rtol=1e-5, atol=0.0)
