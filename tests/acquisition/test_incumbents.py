"""Values to improve upon, and what Ax gives in place of an index and limits."""

from typing import Any

import pytest
import torch
from botorch.acquisition.input_constructors import get_acqf_input_constructor
from botorch.acquisition.objective import (
    ExpectationPosteriorTransform,
    ScalarizedPosteriorTransform,
)
from botorch.acquisition.utils import compute_best_feasible_objective
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.exceptions.warnings import BotorchWarning
from botorch.models import ModelList, SingleTaskGP
from botorch.models.deterministic import GenericDeterministicModel
from botorch.models.model import Model
from botorch.utils.constraints import get_outcome_constraint_transforms
from botorch.utils.datasets import SupervisedDataset
from torch import Tensor
from torch.testing import assert_close

from botorch_calib import (
    CalibratedModel,
    LogCalibratedConstrainedExpectedImprovement,
    LogCalibratedProbabilityOfFeasibility,
)
from botorch_calib.acquisition.input_constructors import best_feasible_observation
from tests.gps import DOUBLE, far_from_gaussian

GENERATOR = torch.Generator().manual_seed(5)
X = torch.rand(14, 2, **DOUBLE, generator=GENERATOR)
Y = torch.stack([(6 * X).sin().sum(dim=-1), X.sum(dim=-1), X[:, 0] - X[:, 1]], dim=-1)
NAMES = ["objective", "sum", "difference"]
CONSTRAINTS: dict[int, Any] = {1: (None, 1.3), 2: (0.125, 0.5)}
# The same as A y <= b, with weights other than 1.
A = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, -1.0], [0.0, 0.0, 4.0]], **DOUBLE)
B = torch.tensor([[2.6], [-0.125], [2.0]], **DOUBLE)


def make_models(Y: Tensor = Y, X: Tensor = X) -> list[Model]:
    gps = [SingleTaskGP(X, Y[:, i : i + 1]).eval() for i in range(Y.shape[-1])]
    return [CalibratedModel(gps[0], far_from_gaussian()), *gps[1:]]


def dataset(name: str, X: Tensor = X, Y: Tensor = Y) -> SupervisedDataset:
    i = NAMES.index(name)
    return SupervisedDataset(X, Y[:, i : i + 1], feature_names=["a", "b"], outcome_names=[name])


DATA: dict[Any, SupervisedDataset] = {name: dataset(name) for name in NAMES}
BLOCK = SupervisedDataset(X, Y, feature_names=["a", "b"], outcome_names=NAMES)
TRACKED = {"tracked": dataset("sum", X, 9.0 + 0 * Y), **DATA}


def inputs(**kwargs: Any) -> dict[str, Any]:
    constructor = get_acqf_input_constructor(LogCalibratedConstrainedExpectedImprovement)
    given: dict[str, Any] = {"model": ModelList(*make_models()), "training_data": DATA}
    result: dict[str, Any] = constructor(**{**given, **kwargs})
    return result


@pytest.mark.parametrize("data", [DATA, BLOCK, TRACKED], ids=["by outcome", "block", "tracked"])
@pytest.mark.parametrize("maximize", [True, False])
def test_best_feasible_observation(data: Any, maximize: bool) -> None:
    feasible = (Y[:, 1] <= 1.3) & (Y[:, 2] >= 0.125) & (Y[:, 2] <= 0.5)
    assert 0 < feasible.sum() < len(X)
    values = Y[feasible, 0]
    expected = values.max() if maximize else values.min()
    assert not feasible[Y[:, 0].argmax() if maximize else Y[:, 0].argmin()]
    got = best_feasible_observation(make_models(), data, 0, CONSTRAINTS, maximize)
    assert_close(got, expected)
    # As BoTorch finds it.
    transforms = get_outcome_constraint_transforms((A, B))
    sign = 1.0 if maximize else -1.0
    botorchs = compute_best_feasible_objective(Y, sign * Y[:, 0], transforms)
    assert_close(got, sign * botorchs)


def test_outcomes_that_were_observed_at_different_points() -> None:
    """A point counts if each constraint was observed there, and held every time."""
    rows = torch.tensor([0, 1, 2])
    objective = dataset("objective", X[rows], torch.tensor([[1.0], [2.0], [3.0]], **DOUBLE))
    twice = torch.tensor([1, 0, 0, 5])
    values = torch.tensor([[9.0, 0.5], [9.0, 0.5], [9.0, 0.7], [9.0, 0.1]], **DOUBLE)
    data: dict[Any, Any] = {"objective": objective, "sum": dataset("sum", X[twice], values)}
    models = make_models()[:2]
    with pytest.warns(BotorchWarning, match="No observation is feasible"):
        best_feasible_observation(models, data, 0, {1: (None, 0.4)}, True)
    # The first point was observed twice, and once above the lower of these limits.
    for upper, maximize, expected in (
        (0.6, True, 2.0),
        (0.8, True, 2.0),
        (0.6, False, 2.0),
        (0.8, False, 1.0),
    ):
        best = best_feasible_observation(models, data, 0, {1: (None, upper)}, maximize)
        assert best == expected


@pytest.mark.parametrize("maximize", [True, False])
def test_nothing_feasible_leaves_the_order_of_feasibility(maximize: bool) -> None:
    shifted = Y + torch.tensor([1000.0, 0.0, 0.0], **DOUBLE)
    models, limits = make_models(shifted), {1: (None, -0.2)}
    with pytest.warns(BotorchWarning, match="LogCalibratedProbabilityOfFeasibility"):
        best = best_feasible_observation(models, BLOCK, 0, limits, maximize)
    assert best.shape == () and best.isfinite()
    places = torch.rand(60, 1, 2, **DOUBLE, generator=torch.Generator().manual_seed(1))
    posterior: Any = models[0].posterior(places)
    mean, far = posterior.mean.flatten(), 3 * posterior.variance.sqrt().flatten()
    assert (mean - far > best).all() if maximize else (mean + far < best).all()
    model = ModelList(*models)
    log_cei = LogCalibratedConstrainedExpectedImprovement(model, best, 0, limits, maximize)(places)
    log_pf = LogCalibratedProbabilityOfFeasibility(model, limits)(places)
    if maximize:  # far from 0, the other bound is not
        assert (log_cei - log_pf).std() < 0.01 * log_pf.std()
    ranks = torch.stack([v.argsort().argsort().double() for v in (log_cei, log_pf)])
    assert ranks.corrcoef()[0, 1] > 0.95
    with pytest.warns(BotorchWarning):  # reproducible, whatever the state of the generator
        assert best_feasible_observation(models, BLOCK, 0, limits, maximize) == best


def test_limits_from_linear_constraints() -> None:
    weights = torch.tensor([1.0, 0.0, 0.0], **DOUBLE)
    got = inputs(
        constraints_tuple=(A, B),
        constraints=get_outcome_constraint_transforms((A, B)),  # which Ax gives as well
        posterior_transform=ScalarizedPosteriorTransform(weights),
    )
    assert got["constraints"] == {1: (None, 1.3), 2: (0.125, 0.5)}
    assert got["objective_index"] == 0 and got["maximize"]
    acqf, place = LogCalibratedConstrainedExpectedImprovement(**got), X[:3].unsqueeze(-2) + 0.05
    same = inputs(constraints=CONSTRAINTS, objective_index=0)
    assert_close(acqf(place), LogCalibratedConstrainedExpectedImprovement(**same)(place))
    constructor = get_acqf_input_constructor(LogCalibratedProbabilityOfFeasibility)
    feasible = constructor(
        model=ModelList(*make_models()), training_data=DATA, constraints_tuple=(A, B)
    )
    assert feasible["constraints"] == got["constraints"]
    # Further constraints on the same outcome only ever narrow its limits.
    more = torch.cat([A, A]), torch.cat([B, B + 1.0])
    assert inputs(objective_index=0, constraints_tuple=more)["constraints"] == got["constraints"]


@pytest.mark.parametrize("weight", [2.0, -2.0])
@pytest.mark.parametrize("maximize", [True, False])
def test_direction_from_the_weight_of_the_objective(weight: float, maximize: bool) -> None:
    transform = ScalarizedPosteriorTransform(torch.tensor([0.0, weight, 0.0], **DOUBLE))
    got = inputs(constraints={0: (0.0, None)}, posterior_transform=transform, maximize=maximize)
    assert got["objective_index"] == 1 and got["maximize"] == (maximize == (weight > 0))
    values = Y[Y[:, 0] >= 0.0, 1]
    assert_close(got["best_f"], values.max() if got["maximize"] else values.min())


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"constraints": CONSTRAINTS}, InputDataError, "`objective_index` must name"),
        ({"objective_index": 0, "constraints": [torch.sum]}, InputDataError, "must map"),
        (
            {"objective_index": 0, "constraints_tuple": (A + A.flip(-1), B)},
            UnsupportedError,
            "one outcome at a time.*qLogNoisyExpectedImprovement",
        ),
        (
            {"constraints": CONSTRAINTS, "posterior_transform": [1.0, 0.5, 0.0]},
            UnsupportedError,
            "must weigh one.*qLogNoisyExpectedImprovement",
        ),
        (
            {
                "constraints": CONSTRAINTS,
                "objective_index": 1,
                "posterior_transform": [1.0, 0.0, 0.0],
            },
            InputDataError,
            "disagree",
        ),
    ],
)
def test_what_cannot_be_expressed(kwargs: Any, error: type[Exception], message: str) -> None:
    if "posterior_transform" in kwargs:
        weights = torch.tensor(kwargs["posterior_transform"], **DOUBLE)
        kwargs = {**kwargs, "posterior_transform": ScalarizedPosteriorTransform(weights)}
    with pytest.raises(error, match=message):
        inputs(**kwargs)


def test_other_transforms_do_not_tell_the_objective() -> None:
    with pytest.raises(UnsupportedError, match="ExpectationPosteriorTransform"):
        inputs(constraints=CONSTRAINTS, posterior_transform=ExpectationPosteriorTransform(2))


def test_data_that_nobody_holds() -> None:
    models = [*make_models()[:2], GenericDeterministicModel(lambda X: X[..., :1])]
    with pytest.raises(NotImplementedError, match="Give `best_f`"):
        best_feasible_observation(models, TRACKED, 0, CONSTRAINTS, True)
