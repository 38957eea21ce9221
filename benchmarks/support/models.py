"""A small instance of each model class of BoTorch and `botorch_community`."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import botorch.models
import botorch_community.models
import torch
from botorch.models import (
    HigherOrderGP,
    KroneckerMultiTaskGP,
    MixedSingleTaskGP,
    ModelListGP,
    MultiTaskGP,
    PairwiseGP,
    SingleTaskGP,
    SingleTaskMultiFidelityGP,
    SingleTaskVariationalGP,
)
from botorch.models.additive_gp import OrthogonalAdditiveGP
from botorch.models.contextual import LCEAGP, SACGP
from botorch.models.contextual_multioutput import LCEMGP
from botorch.models.ensemble import EnsembleModel
from botorch.models.fully_bayesian import (
    FullyBayesianLinearSingleTaskGP,
    FullyBayesianSingleTaskGP,
    SaasFullyBayesianSingleTaskGP,
)
from botorch.models.fully_bayesian_multitask import SaasFullyBayesianMultiTaskGP
from botorch.models.heterogeneous_mtgp import HeterogeneousMTGP
from botorch.models.hierarchical.conditional_kernel_gp import (
    HierarchicalConditionalKernelGP,
    HierarchicalConditionalKernelMultiTaskGP,
)
from botorch.models.latent_kronecker_gp import LatentKroneckerGP
from botorch.models.map_saas import AdditiveMapSaasSingleTaskGP, EnsembleMapSaasSingleTaskGP
from botorch.models.model import Model, ModelList
from botorch.models.robust_relevance_pursuit_model import RobustRelevancePursuitSingleTaskGP
from botorch.models.transforms import Bilog, ChainedOutcomeTransform, Log, Power, Standardize
from botorch.models.transforms.input import InputPerturbation, Warp
from botorch_community.models.gp_regression_multisource import SingleTaskAugmentedGP
from botorch_community.models.vblls import VBLLModel
from torch import Tensor

from botorch_calib.models import NoisyEnsemble

DOUBLE: dict[str, Any] = {"dtype": torch.double}


@dataclass(frozen=True)
class Case:
    """A model and new observations for it.

    Attributes:
        model: The model.
        X: Inputs of new observations, ``3 x d``.
        Y: Values of new observations, ``3 x m``.
        denoise: Whether the model predicts the objective, and not only observations.
        num_points: Number of points that the input transform makes from one point.
    """

    model: Model
    X: Tensor
    Y: Tensor
    denoise: bool = True
    num_points: int = 1


@dataclass(frozen=True)
class Entry:
    """A row of the table.

    Attributes:
        name: The name in the table.
        make: Makes the case.
        instead: The remedy if an operation is not supported.
    """

    name: str
    make: Callable[[], Case]
    instead: str = ""


def data(num: int = 20, dim: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs ``num x dim`` in the unit cube, and positive values ``num x 1``."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(num, dim, generator=generator, **DOUBLE)
    noise = 0.1 * torch.randn(num, 1, generator=generator, **DOUBLE)
    return X, (torch.sin(5 * X[:, :2]).sum(-1, keepdim=True) / 2 + noise).exp()


def of_class(make: Callable[..., Model], num_outputs: int = 1, **options: Any) -> Case:
    """The case of a model class whose arguments are inputs and values."""
    X, Y = data()
    new, values = data(3, seed=1)
    Y = torch.cat([Y * (k + 1) for k in range(num_outputs)], dim=-1)
    return Case(make(X, Y, **options), new, values.expand(3, num_outputs).clone())


def with_column(
    column: Callable[[Tensor], Tensor], make: Callable[..., Model], **options: Any
) -> Case:
    """The case of a model class whose last input is a function of the others."""
    X, Y = data()
    new, values = data(3, seed=1)
    X, new = (torch.cat([each, column(each)], dim=-1) for each in (X, new))
    return Case(make(X, Y, **options), new, values)


def of_tasks(make: Callable[..., Model], **options: Any) -> Case:
    """The case of a model of two tasks, which predicts the first task."""
    X, Y = data()
    task = torch.arange(len(X), **DOUBLE).remainder(2).unsqueeze(-1)
    new, values = data(3, seed=1)
    model = make(torch.cat([X, task], -1), Y, task_feature=2, output_tasks=[0], **options)
    return Case(model, torch.cat([new, torch.zeros(3, 1, **DOUBLE)], -1), values)


def with_draws(case: Case, num_draws: int = 4) -> Case:
    """A fully Bayesian model with hand-made draws of its hyperparameters."""
    model: Any = case.model
    generator = torch.Generator().manual_seed(2)

    def draw(*shape: int) -> Tensor:
        return 0.3 + torch.rand(num_draws, *shape, generator=generator, **DOUBLE)

    samples = {
        "lengthscale": draw(1, 2),
        "mean": draw(),
        "noise": 0.1 * draw(1),
        "weight_variance": draw(1, 2),
    }
    if isinstance(model, (SaasFullyBayesianSingleTaskGP, SaasFullyBayesianMultiTaskGP)):
        samples["outputscale"] = draw()
    if isinstance(model, SaasFullyBayesianMultiTaskGP):
        rank = model._rank
        of_tasks = {
            "mean": draw(2),
            "task_lengthscale": draw(rank),
            "latent_features": draw(2, rank),
        }
        samples |= of_tasks
    model.load_mcmc_samples(samples)
    model.eval()
    return case


class Forest(EnsembleModel):
    """An ensemble without noise, like trees or networks: 8 random linear functions."""

    num_outputs = 1

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weights = torch.randn(8, 2, 1, generator=generator, **DOUBLE)

    def forward(self, X: Tensor) -> Tensor:
        """Values ``batch_shape x 8 x q x 1``."""
        return X.unsqueeze(-3) @ self.weights


def of_forest() -> Case:
    """The case of a user-defined ensemble."""
    X, Y = data(3, seed=1)
    return Case(NoisyEnsemble(Forest(), 0.01), X, Y)


def of_list() -> Case:
    """The case of a list of models with different training inputs."""
    (X, Y), (Z, W), (new, values) = data(), data(15, seed=4), data(3, seed=1)
    return Case(ModelListGP(SingleTaskGP(X, Y), SingleTaskGP(Z, W)), new, values.expand(3, 2))


def of_preferences() -> Case:
    """The case of a model of pairwise preferences."""
    X, Y = data()
    pairs = torch.arange(len(X)).view(-1, 2)
    better = (Y[pairs[:, 1], 0] > Y[pairs[:, 0], 0]).unsqueeze(-1)
    new, values = data(3, seed=1)
    return Case(PairwiseGP(X, torch.where(better, pairs.flip(-1), pairs)), new, values)


def of_network() -> Case:
    """The case of a variational Bayesian last layer."""
    X, Y = data()
    torch.manual_seed(0)
    model = VBLLModel(in_features=2, hidden_features=8, out_features=1, num_layers=1)
    model.fit(X, Y, optimization_settings={"num_epochs": 20})
    new, values = data(3, seed=1)
    return Case(model, new, values, denoise=False)


def of_surfaces() -> Case:
    """The case of a model whose outcome is a tensor."""
    X, Y = data()
    new, values = data(3, seed=1)
    surface = Y.unsqueeze(-1).expand(-1, 2, 2) * torch.tensor([[1.0, 2.0], [3.0, 4.0]], **DOUBLE)
    return Case(HigherOrderGP(X, surface), new, values)


def of_curves() -> Case:
    """The case of a model of learning curves."""
    X, Y = data()
    steps = torch.linspace(0.0, 1.0, 4, **DOUBLE).unsqueeze(-1)
    new, values = data(3, seed=1)
    return Case(LatentKroneckerGP(X, steps, Y * (1 + steps.mT)).eval(), new, values)


def of_sources() -> Case:
    """The case of a model of several sources of information."""
    case = with_column(_half, SingleTaskAugmentedGP)
    return Case(case.model, case.X[:, :2], case.Y)  # it predicts the source of highest fidelity


def of_conditional_tasks() -> Case:
    """The case of a model of two tasks with conditional inputs."""
    (X, Y), (new, values) = data(), data(3, seed=1)
    task = torch.arange(len(X), **DOUBLE).remainder(2).unsqueeze(-1)
    model = HierarchicalConditionalKernelMultiTaskGP(
        torch.cat([X, _half(X), task], -1),
        Y,
        task_feature=3,
        output_tasks=[0],
        hierarchical_dependencies=_CONDITIONAL,
    )
    first = torch.zeros(3, 1, **DOUBLE)
    return Case(model, torch.cat([new, _half(new), first], -1), values)


def of_tasks_with_inputs_of_their_own() -> Case:
    """The case of a model of tasks that have different inputs."""
    (X, Y), (Z, W), (new, values) = data(), data(12, 3, seed=4), data(3, 3, seed=1)
    model = HeterogeneousMTGP(
        [X, Z], [Y, W], None, feature_indices=[[0, 1], [0, 1, 2]], full_feature_dim=3
    )
    first = torch.zeros(3, 1, **DOUBLE)
    return Case(model, torch.cat([new[:, :2], first], dim=-1), values)


def _half(X: Tensor) -> Tensor:
    return (X[:, :1] > 0.5).double()


_PERTURBATIONS = 0.02 * torch.tensor([[0.0, 0.0], [1.0, -1.0], [-1.0, 1.0]], **DOUBLE)
_CONDITIONAL: dict[int, dict[int | float, list[int]]] = {2: {0: [0], 1: [1]}}

ENTRIES = (
    Entry("SingleTaskGP", lambda: of_class(SingleTaskGP)),
    Entry(
        "SingleTaskGP with given noise",
        lambda: of_class(lambda X, Y: SingleTaskGP(X, Y, 0.01 * torch.ones_like(Y))),
    ),
    Entry(
        "SingleTaskGP with Warp",
        lambda: of_class(SingleTaskGP, input_transform=Warp(2, indices=[0, 1])),
    ),
    Entry(
        "SingleTaskGP with InputPerturbation",
        lambda: replace(
            of_class(SingleTaskGP, input_transform=InputPerturbation(_PERTURBATIONS)), num_points=3
        ),
    ),
    Entry("SingleTaskGP with Log", lambda: of_class(SingleTaskGP, outcome_transform=Log())),
    Entry("SingleTaskGP with Power", lambda: of_class(SingleTaskGP, outcome_transform=Power(0.5))),
    Entry("SingleTaskGP with Bilog", lambda: of_class(SingleTaskGP, outcome_transform=Bilog())),
    Entry(
        "SingleTaskGP with Log and Standardize",
        lambda: of_class(
            SingleTaskGP,
            outcome_transform=ChainedOutcomeTransform(log=Log(), standardize=Standardize(1)),
        ),
    ),
    Entry("SingleTaskGP of two outcomes", lambda: of_class(SingleTaskGP, 2)),
    Entry("ModelListGP", of_list),
    Entry("ModelList", lambda: _as_model_list(of_list())),
    Entry("MixedSingleTaskGP", lambda: with_column(_half, MixedSingleTaskGP, cat_dims=[2])),
    Entry(
        "SingleTaskMultiFidelityGP",
        lambda: with_column(_half, SingleTaskMultiFidelityGP, data_fidelities=[2]),
    ),
    Entry(
        "RobustRelevancePursuitSingleTaskGP", lambda: of_class(RobustRelevancePursuitSingleTaskGP)
    ),
    Entry("OrthogonalAdditiveGP", lambda: of_class(OrthogonalAdditiveGP)),
    Entry("AdditiveMapSaasSingleTaskGP", lambda: of_class(AdditiveMapSaasSingleTaskGP)),
    Entry("EnsembleMapSaasSingleTaskGP", lambda: of_class(EnsembleMapSaasSingleTaskGP)),
    Entry(
        "SaasFullyBayesianSingleTaskGP", lambda: with_draws(of_class(SaasFullyBayesianSingleTaskGP))
    ),
    Entry("FullyBayesianSingleTaskGP", lambda: with_draws(of_class(FullyBayesianSingleTaskGP))),
    Entry(
        "FullyBayesianLinearSingleTaskGP",
        lambda: with_draws(of_class(FullyBayesianLinearSingleTaskGP)),
    ),
    Entry("MultiTaskGP", lambda: of_tasks(MultiTaskGP)),
    Entry(
        "SaasFullyBayesianMultiTaskGP", lambda: with_draws(of_tasks(SaasFullyBayesianMultiTaskGP))
    ),
    Entry("LCEMGP", lambda: of_tasks(LCEMGP)),
    Entry(
        "HierarchicalConditionalKernelGP",
        lambda: with_column(
            _half, HierarchicalConditionalKernelGP, hierarchical_dependencies=_CONDITIONAL
        ),
    ),
    Entry("HierarchicalConditionalKernelMultiTaskGP", of_conditional_tasks),
    Entry("HeterogeneousMTGP", of_tasks_with_inputs_of_their_own),
    Entry(
        "KroneckerMultiTaskGP",
        lambda: of_class(KroneckerMultiTaskGP, 2),
        "Its outcomes depend on one another: a `CalibratedModelList` of one `SingleTaskGP` each",
    ),
    Entry(
        "HigherOrderGP",
        of_surfaces,
        "Its outcome is a tensor: a `CalibratedModelList` of one model per element",
    ),
    Entry(
        "LatentKroneckerGP",
        of_curves,
        "Its outcome is a curve: a `SingleTaskGP` of the value at one step",
    ),
    Entry("SACGP", lambda: of_class(lambda X, Y: SACGP(X, Y, None, {"1": [0], "2": [1]}))),
    Entry("LCEAGP", lambda: of_class(lambda X, Y: LCEAGP(X, Y, None, {"1": [0], "2": [1]}))),
    Entry("SingleTaskAugmentedGP", of_sources),
    Entry(
        "SingleTaskVariationalGP",
        lambda: of_class(lambda X, Y: SingleTaskVariationalGP(X, Y, inducing_points=X[:8])),
    ),
    Entry("EnsembleModel in a NoisyEnsemble", of_forest),
    Entry("VBLLModel with `denoise=False`", of_network),
    Entry(
        "PairwiseGP",
        of_preferences,
        "Its outcome is which of two is preferred: use BoTorch's own acquisition functions for "
        "preferences",
    ),
)

#: Model classes without a row, and the reason.
NO_ROW = {
    "Model": "the base class",
    "GPyTorchModel": "a base class",
    "BatchedMultiOutputGPyTorchModel": "a base class",
    "ModelListGPyTorchModel": "a base class",
    "MultiTaskGPyTorchModel": "a base class",
    "ApproximateGPyTorchModel": "the base class of SingleTaskVariationalGP",
    "AbstractFullyBayesianSingleTaskGP": "a base class",
    "AbstractBLLModel": "the base class of VBLLModel",
    "DeterministicModel": "states no uncertainty",
    "GenericDeterministicModel": "states no uncertainty",
    "AffineDeterministicModel": "states no uncertainty",
    "PosteriorMeanModel": "states no uncertainty",
    "FixedSingleSampleModel": "states no uncertainty",
    "MatheronPathModel": "states no uncertainty",
    "FixedCostModel": "states no uncertainty",
    "AffineFidelityCostModel": "states no uncertainty",
    "ExampleModel": "shows how to write one; a SingleTaskGP",
    "NeuralProcessModel": "its posterior is of a latent variable",
}


def _as_model_list(case: Case) -> Case:
    members: Any = case.model
    return Case(ModelList(*members.models), case.X, case.Y)


def model_classes() -> set[str]:
    """Names of all model classes of BoTorch and `botorch_community` that can be imported."""
    found = set()
    for package in (botorch.models, botorch_community.models):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            try:
                content = vars(importlib.import_module(module.name))
            except ModuleNotFoundError:  # an optional dependency of BoTorch
                continue
            found |= {
                name
                for name, value in content.items()
                if inspect.isclass(value) and issubclass(value, Model)
                if value.__module__ == module.name
            }
    return found
