"""The situations of BoTorch's tutorials, with one changed line each.

An acquisition function is built as in a tutorial, for the plain model and for a calibrated model
whose calibrator changes nothing. Values and gradients are equal. With an effective calibrator they
are finite and different.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.acquisition import (
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qSimpleRegret,
    qUpperConfidenceBound,
)
from botorch.acquisition.cost_aware import InverseCostWeightedUtility
from botorch.acquisition.fixed_feature import FixedFeatureAcquisitionFunction
from botorch.acquisition.knowledge_gradient import qMultiFidelityKnowledgeGradient
from botorch.acquisition.multi_objective.hypervolume_knowledge_gradient import (
    qHypervolumeKnowledgeGradient,
)
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.acquisition.multi_objective.objective import IdentityMCMultiOutputObjective
from botorch.acquisition.multi_objective.parego import qLogNParEGO
from botorch.acquisition.objective import GenericMCObjective, LinearMCObjective
from botorch.acquisition.risk_measures import CVaR, VaR
from botorch.acquisition.utils import project_to_target_fidelity
from botorch.generation.sampling import ConstrainedMaxPosteriorSampling
from botorch.models import ModelListGP, SingleTaskGP, SingleTaskMultiFidelityGP
from botorch.models.cost import AffineFidelityCostModel
from botorch.models.model import Model
from botorch.models.multitask import MultiTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.models.transforms.input import AppendFeatures, InputPerturbation
from botorch.sampling.list_sampler import ListSampler
from torch import Tensor
from torch.testing import assert_close

from botorch_calib import (
    CalibratedModel,
    CalibratedModelList,
    LocalizedConformal,
    qLogCalibratedNoisyExpectedHypervolumeImprovement,
)
from botorch_calib.calibration import NoCalibration
from tests.botorch_tutorials import DOUBLE, PathSampler, value_and_gradient

N = 14
Acquisition = Callable[[Tensor], Tensor]


def data(num_outputs: int = 1, dim: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(N, dim, generator=generator, **DOUBLE)
    phases = torch.arange(num_outputs, **DOUBLE)
    noise = 0.1 * torch.randn(N, num_outputs, generator=generator, **DOUBLE)
    return X, torch.sin(4 * X.sum(-1, keepdim=True) + phases) + noise


def candidates(q: int = 2, dim: int = 2, num: int = 3) -> Tensor:
    return torch.rand(num, q, dim, generator=torch.Generator().manual_seed(1), **DOUBLE)


def single(**options: Any) -> Model:
    X, Y = data()
    options = {"input_transform": Normalize(2), "outcome_transform": Standardize(1)} | options
    return SingleTaskGP(X, Y, **options).eval()


def several(num_outputs: int = 2, **options: Any) -> ModelListGP:
    X, Y = data(num_outputs)
    columns = Y.split(1, dim=-1)
    return ModelListGP(*(SingleTaskGP(X, column, **options) for column in columns)).eval()


# Fantasies are observations. Plain and calibrated models draw their noise from different base
# samples. The noise is therefore tiny here, and values agree up to its standard deviation.
QUIET: dict[str, Any] = {"train_Yvar": torch.full((N, 1), 2e-6, **DOUBLE)}
NEARLY = 1e-2


def calibrated(model: Model, calibrator: Any) -> Any:
    """The changed line."""
    kind = CalibratedModel if model.num_outputs == 1 else CalibratedModelList
    return kind.from_history(model, calibrator)


def check(model: Model, make: Callable[[Any], Acquisition], X: Tensor) -> None:
    """Values and gradients are those of the plain model if nothing is corrected."""
    expected = value_and_gradient(make(model), X)
    uncorrected = value_and_gradient(make(calibrated(model, NoCalibration())), X)
    for value, own in zip(uncorrected, expected, strict=True):
        assert_close(value, own, rtol=1e-8, atol=1e-8)
    corrected = value_and_gradient(
        make(calibrated(model, LocalizedConformal(0.2, step_size=0.2))), X
    )
    assert all(value.isfinite().all() for value in corrected)
    assert not torch.allclose(corrected[0], expected[0], rtol=1e-6)


def check_fantasies(model: Model, make: Callable[[Any], Acquisition], X: Tensor) -> None:
    """Values agree with the plain model, and gradients with difference quotients.

    By default GPyTorch leaves out a part of the gradient with respect to points on which a model
    was conditioned, here the first of each batch. The plain model's gradients are therefore no
    oracle.
    """
    values, _ = value_and_gradient(make(model), X)
    for calibrator in (NoCalibration(), LocalizedConformal(0.2, step_size=0.2)):
        acquisition: Any = make(calibrated(model, calibrator))
        own, gradient = value_and_gradient(acquisition, X)
        close = torch.allclose(own, values, rtol=NEARLY, atol=NEARLY)
        assert close == isinstance(calibrator, NoCalibration)
        generator = torch.Generator().manual_seed(3)
        step = torch.zeros_like(X)
        step[:, 0] = 1e-5 * torch.randn(X[:, 0].shape, generator=generator, **DOUBLE)
        difference = (acquisition(X + step) - acquisition(X - step)).detach()
        assert_close(difference, (2 * step * gradient).sum((-2, -1)), rtol=1e-5, atol=1e-10)


X, Y = data()
BATCH = candidates()
REFERENCE = [-1.2, -1.2]
TARGET = torch.tensor([0.2, -0.3, 0.1], **DOUBLE)


def improvement(model: Any, **options: Any) -> Acquisition:
    return qLogExpectedImprovement(model, sampler=PathSampler(), **{"best_f": 0.5, **options})


def noisy_improvement(model: Any, **options: Any) -> Acquisition:
    options = {"sampler": PathSampler(), "prune_baseline": False, **options}
    return qLogNoisyExpectedImprovement(model, X, **options)


def hypervolume_improvement(model: Any, **options: Any) -> Acquisition:
    """The function of plain models, or the class of calibrated models that caches their roots."""
    kind: type[qLogNoisyExpectedHypervolumeImprovement] = qLogNoisyExpectedHypervolumeImprovement
    if isinstance(model, CalibratedModelList) and not options:
        kind = qLogCalibratedNoisyExpectedHypervolumeImprovement
    options = {"sampler": PathSampler(), "prune_baseline": False, **options}
    return kind(model, REFERENCE, X, **options)


def tasks() -> Model:
    task = torch.arange(N, **DOUBLE).remainder(2).unsqueeze(-1)
    return MultiTaskGP(torch.cat([X, task], -1), Y, task_feature=2, output_tasks=[0]).eval()


Situation = tuple[Callable[[], Model], Callable[[Any], Acquisition], Tensor]
SITUATIONS: dict[str, Situation] = {
    "closed loop with a batch": (single, improvement, BATCH),
    "noisy closed loop with pending points": (
        single,
        lambda model: noisy_improvement(model, X_pending=X[:2] / 2),
        BATCH,
    ),
    "constraint by a second outcome": (
        several,
        lambda model: noisy_improvement(
            model,
            objective=GenericMCObjective(lambda Z, X: Z[..., 0]),
            constraints=[lambda Z: Z[..., 1] - 0.2],
        ),
        BATCH,
    ),
    "composite objective": (
        lambda: several(3),
        lambda model: improvement(
            model,
            best_f=-0.5,
            objective=GenericMCObjective(lambda Z, X: -(Z - TARGET).square().sum(-1)),
        ),
        BATCH,
    ),
    "upper confidence bound with a fixed feature": (
        single,
        lambda model: FixedFeatureAcquisitionFunction(
            qUpperConfidenceBound(model, 2.0, sampler=PathSampler()),
            d=2,
            columns=[1],
            values=[0.4],
        ),
        BATCH[..., :1],
    ),
    "several tasks of which one is optimised": (tasks, improvement, BATCH),
    "hypervolume improvement with cached roots": (several, hypervolume_improvement, BATCH),
    "hypervolume improvement with constraints": (
        lambda: several(3),
        lambda model: hypervolume_improvement(
            model,
            objective=IdentityMCMultiOutputObjective(outcomes=[0, 1]),
            constraints=[lambda Z: Z[..., 2] - 0.5],
        ),
        BATCH,
    ),
    "one model of several outcomes": (
        lambda: SingleTaskGP(*data(2)).eval(),
        lambda model: hypervolume_improvement(model, cache_root=False),
        BATCH,
    ),
    "random scalarizations": (
        several,
        lambda model: qLogNParEGO(
            model,
            X,
            scalarization_weights=torch.tensor([0.4, 0.6], **DOUBLE),
            sampler=PathSampler(),
            prune_baseline=False,
            cache_root=False,
        ),
        BATCH,
    ),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_values_and_gradients(name: str) -> None:
    model, make, at = SITUATIONS[name]
    check(model(), make, at)


def test_risk_under_perturbed_inputs() -> None:
    """The set of perturbations is replaced before the acquisition function is made."""
    generator = torch.Generator().manual_seed(2)
    perturbations = [0.1 * torch.randn(4, 2, generator=generator, **DOUBLE) for _ in range(2)]
    gp = single(input_transform=InputPerturbation(perturbations[0]))

    def acquisition(model: Any) -> Acquisition:
        model.input_transform = InputPerturbation(perturbations[1]).eval()
        return qSimpleRegret(model, objective=CVaR(alpha=0.7, n_w=4), sampler=PathSampler())

    check(gp, acquisition, BATCH)


# ------------------------------------------------------------ knowledge gradients


def of_fidelities() -> Model:
    return SingleTaskMultiFidelityGP(*data(dim=3), data_fidelities=[2], **QUIET).eval()


def over_an_environment() -> Model:
    features = AppendFeatures(torch.tensor([[0.1], [0.5], [0.9]], **DOUBLE))
    return SingleTaskGP(X, Y, input_transform=features, **QUIET).eval()


FANTASIES: dict[str, Situation] = {
    "one shot": (
        lambda: single(**QUIET),
        lambda model: qKnowledgeGradient(
            model,
            num_fantasies=3,
            sampler=PathSampler(3),
            inner_sampler=PathSampler(),
            objective=LinearMCObjective(torch.ones(1, **DOUBLE)),
        ),
        candidates(q=4),
    ),
    "multi-fidelity": (
        of_fidelities,
        lambda model: qMultiFidelityKnowledgeGradient(
            model,
            num_fantasies=3,
            sampler=PathSampler(3),
            current_value=torch.tensor(0.0, **DOUBLE),
            cost_aware_utility=InverseCostWeightedUtility(
                cost_model=AffineFidelityCostModel({2: 1.0}, fixed_cost=5.0)
            ),
            project=lambda Z: project_to_target_fidelity(Z, {2: 1.0}, d=3),
        ),
        candidates(q=4, dim=3),
    ),
    "value at risk over an environment": (
        over_an_environment,
        lambda model: qMultiFidelityKnowledgeGradient(
            model,
            num_fantasies=2,
            sampler=PathSampler(2),
            inner_sampler=PathSampler(8),
            objective=VaR(alpha=0.6, n_w=3),
            project=lambda Z: Z[..., :1],
        ),
        candidates(q=3),
    ),
    "decoupled hypervolume": (
        lambda: several(**QUIET),
        lambda model: qHypervolumeKnowledgeGradient(
            model,
            torch.tensor(REFERENCE, **DOUBLE),
            num_fantasies=2,
            num_pareto=2,
            sampler=ListSampler(PathSampler(2), PathSampler(2, seed=1)),
            inner_sampler=PathSampler(),
            use_posterior_mean=False,
        ),
        candidates(q=5),
    ),
}


@pytest.mark.parametrize("name", FANTASIES)
def test_knowledge_gradients(name: str) -> None:
    model, make, at = FANTASIES[name]
    check_fantasies(model(), make, at)


def test_thompson_sampling_under_constraints() -> None:
    choices = candidates(q=60, num=1).squeeze(0)
    model = calibrated(single(), LocalizedConformal(0.2))
    for constraints in (several(), calibrated(several(), LocalizedConformal(0.2))):
        sampling = ConstrainedMaxPosteriorSampling(model, constraints)
        assert sampling(choices, num_samples=3).shape == (3, 2)
