"""The situations of BoTorch's tutorials, with one changed line each.

Each test makes an acquisition function as a tutorial does, for the plain model and for one that is
calibrated and corrects nothing. Values and gradients are the same; and with a calibrator that
corrects they are finite and others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


# Fantasies are observations. Where there is noise, a plain and a calibrated model draw it from
# other base samples, so here there is next to none, and values agree up to its deviation.
QUIET: dict[str, Any] = {"train_Yvar": torch.full((N, 1), 2e-6, **DOUBLE)}
NEARLY = 1e-2


def calibrated(model: Model, calibrator: Any) -> Any:
    """The changed line."""
    kind = CalibratedModel if model.num_outputs == 1 else CalibratedModelList
    return kind.from_history(model, calibrator)


def check(model: Model, make: Callable[[Any], Acquisition], X: Tensor) -> None:
    """Values and gradients are the plain model's where nothing is corrected."""
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
    """Values are the plain model's, and gradients those of the values.

    By default GPyTorch leaves out a part of the gradient by points that a model was conditioned on,
    the first of each batch here, so the plain model's gradients are no oracle there.
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


# ------------------------------------------------------------ one outcome


def test_closed_loop_with_a_batch() -> None:
    check(
        single(),
        lambda model: qLogExpectedImprovement(model, 0.5, sampler=PathSampler()),
        candidates(),
    )


def test_noisy_closed_loop_with_pending_points() -> None:
    X, _ = data()
    check(
        single(),
        lambda model: qLogNoisyExpectedImprovement(
            model, X, sampler=PathSampler(), prune_baseline=False, X_pending=X[:2] / 2
        ),
        candidates(),
    )


def test_constraint_by_a_second_outcome() -> None:
    X, _ = data()
    objective = GenericMCObjective(lambda Z, X: Z[..., 0])
    check(
        several(),
        lambda model: qLogNoisyExpectedImprovement(
            model,
            X,
            sampler=PathSampler(),
            objective=objective,
            constraints=[lambda Z: Z[..., 1] - 0.2],
            prune_baseline=False,
        ),
        candidates(),
    )


def test_composite_objective() -> None:
    target = torch.tensor([0.2, -0.3, 0.1], **DOUBLE)
    objective = GenericMCObjective(lambda Z, X: -(Z - target).square().sum(-1))
    check(
        several(3),
        lambda model: qLogExpectedImprovement(
            model, -0.5, sampler=PathSampler(), objective=objective
        ),
        candidates(),
    )


def test_upper_confidence_bound_with_a_fixed_feature() -> None:
    def acquisition(model: Any) -> Acquisition:
        inner = qUpperConfidenceBound(model, 2.0, sampler=PathSampler())
        return FixedFeatureAcquisitionFunction(inner, d=2, columns=[1], values=[0.4])

    check(single(), acquisition, candidates()[..., :1])


def test_one_shot_knowledge_gradient() -> None:
    check_fantasies(
        single(**QUIET),
        lambda model: qKnowledgeGradient(
            model,
            num_fantasies=3,
            sampler=PathSampler(3),
            inner_sampler=PathSampler(),
            objective=LinearMCObjective(torch.ones(1, **DOUBLE)),
        ),
        candidates(q=4),
    )


def test_multi_fidelity_knowledge_gradient() -> None:
    X, Y = data(dim=3)
    gp = SingleTaskMultiFidelityGP(X, Y, data_fidelities=[2], **QUIET).eval()
    cost = AffineFidelityCostModel({2: 1.0}, fixed_cost=5.0)

    def acquisition(model: Any) -> Acquisition:
        return qMultiFidelityKnowledgeGradient(
            model,
            num_fantasies=3,
            sampler=PathSampler(3),
            current_value=torch.tensor(0.0, **DOUBLE),
            cost_aware_utility=InverseCostWeightedUtility(cost_model=cost),
            project=lambda Z: project_to_target_fidelity(Z, {2: 1.0}, d=3),
        )

    check_fantasies(gp, acquisition, candidates(q=4, dim=3))


def test_several_tasks_of_which_one_is_optimised() -> None:
    X, Y = data()
    task = torch.arange(N, **DOUBLE).remainder(2).unsqueeze(-1)
    gp = MultiTaskGP(torch.cat([X, task], -1), Y, task_feature=2, output_tasks=[0]).eval()
    check(
        gp,
        lambda model: qLogExpectedImprovement(model, 0.5, sampler=PathSampler()),
        candidates(),
    )


# ------------------------------------------------------------ risk


def test_risk_under_perturbed_inputs() -> None:
    """The set of perturbations is exchanged before the acquisition function is made."""
    generator = torch.Generator().manual_seed(2)
    perturbations = [0.1 * torch.randn(4, 2, generator=generator, **DOUBLE) for _ in range(2)]
    gp = single(input_transform=InputPerturbation(perturbations[0]))

    def acquisition(model: Any) -> Acquisition:
        model.input_transform = InputPerturbation(perturbations[1]).eval()
        return qSimpleRegret(model, objective=CVaR(alpha=0.7, n_w=4), sampler=PathSampler())

    check(gp, acquisition, candidates())


def test_risk_over_an_environment() -> None:
    """Appended features; knowledge gradient of the value at risk."""
    X, Y = data()
    environment = torch.tensor([[0.1], [0.5], [0.9]], **DOUBLE)
    gp = SingleTaskGP(X, Y, input_transform=AppendFeatures(environment), **QUIET).eval()
    check_fantasies(
        gp,
        lambda model: qMultiFidelityKnowledgeGradient(
            model,
            num_fantasies=2,
            sampler=PathSampler(2),
            inner_sampler=PathSampler(8),
            objective=VaR(alpha=0.6, n_w=3),
            project=lambda Z: Z[..., :1],
        ),
        candidates(q=3),
    )


# ------------------------------------------------------------ several objectives

REFERENCE = [-1.2, -1.2]


def test_noisy_hypervolume_improvement_with_cached_roots() -> None:
    X, _ = data()

    def acquisition(model: Any) -> Acquisition:
        kind: type[qLogNoisyExpectedHypervolumeImprovement]
        kind = qLogNoisyExpectedHypervolumeImprovement
        if isinstance(model, CalibratedModelList):
            kind = qLogCalibratedNoisyExpectedHypervolumeImprovement
        return kind(model, REFERENCE, X, sampler=PathSampler(), prune_baseline=False)

    check(several(), acquisition, candidates())


def test_noisy_hypervolume_improvement_with_constraints() -> None:
    X, _ = data()
    check(
        several(3),
        lambda model: qLogNoisyExpectedHypervolumeImprovement(
            model,
            REFERENCE,
            X,
            sampler=PathSampler(),
            prune_baseline=False,
            objective=IdentityMCMultiOutputObjective(outcomes=[0, 1]),
            constraints=[lambda Z: Z[..., 2] - 0.5],
        ),
        candidates(),
    )


def test_random_scalarizations() -> None:
    X, _ = data()
    weights = torch.tensor([0.4, 0.6], **DOUBLE)
    check(
        several(),
        lambda model: qLogNParEGO(
            model,
            X,
            scalarization_weights=weights,
            sampler=PathSampler(),
            prune_baseline=False,
            cache_root=False,
        ),
        candidates(),
    )


def test_decoupled_hypervolume_knowledge_gradient() -> None:
    check_fantasies(
        several(**QUIET),
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
    )


def test_one_model_of_several_outcomes() -> None:
    X, Y = data(2)
    gp = SingleTaskGP(X, Y).eval()
    check(
        gp,
        lambda model: qLogNoisyExpectedHypervolumeImprovement(
            model, REFERENCE, X, sampler=PathSampler(), prune_baseline=False, cache_root=False
        ),
        candidates(),
    )


# ------------------------------------------------------------ Thompson sampling


def test_thompson_sampling_under_constraints() -> None:
    choices = candidates(q=60, num=1).squeeze(0)
    model = calibrated(single(), LocalizedConformal(0.2))
    for constraints in (several(), calibrated(several(), LocalizedConformal(0.2))):
        sampling = ConstrainedMaxPosteriorSampling(model, constraints)
        assert sampling(choices, num_samples=3).shape == (3, 2)
