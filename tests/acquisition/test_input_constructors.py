"""BoTorch's input constructors for the acquisition functions of this package.

They find the values to improve upon, and take what Ax gives in place of an index and limits.
"""

import importlib
import sys
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
from botorch.models import MultiTaskGP, SingleTaskGP
from botorch.models.deterministic import GenericDeterministicModel
from botorch.models.model import Model, ModelList
from botorch.sampling.get_sampler import get_sampler
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.constraints import get_outcome_constraint_transforms
from botorch.utils.datasets import SupervisedDataset
from torch import Tensor
from torch.testing import assert_close

import botorch_calib.acquisition.input_constructors
import botorch_calib.posteriors.posterior_list
from botorch_calib import (
    CalibratedExpectedImprovement,
    CalibratedModel,
    CalibratedModelList,
    CalibratedProbabilityOfImprovement,
    CalibratedUpperConfidenceBound,
    ChanceConstraint,
    DelayedThompsonSampling,
    DelayedUpperConfidenceBound,
    LogCalibratedConstrainedExpectedImprovement,
    LogCalibratedExpectedImprovement,
    LogCalibratedProbabilityOfFeasibility,
    RobustUpperConfidenceBound,
    WassersteinUpperConfidenceBound,
    WorstCase,
    qLogCalibratedNoisyExpectedHypervolumeImprovement,
    qLogCalibratedNoisyExpectedImprovement,
)
from botorch_calib.acquisition import RobustAcquisition
from botorch_calib.acquisition.input_constructors import best_feasible_observation
from botorch_calib.decisions import CertifiedSetExpansion
from tests.gps import (
    DOUBLE,
    far_from_gaussian,
    make_data,
    make_gp,
    make_model,
    make_multitask,
)

IMPROVEMENTS: list[type[Any]] = [
    CalibratedExpectedImprovement,
    LogCalibratedExpectedImprovement,
    CalibratedProbabilityOfImprovement,
]
CLASSES = [*IMPROVEMENTS, CalibratedUpperConfidenceBound]
BASIC = {"model", "training_data", "posterior_transform", "maximize", "X_pending"}

X, Y, _ = make_data()
DATASET = SupervisedDataset(X, Y, feature_names=["a", "b"], outcome_names=["y"])
# Of an outcome that the model has no part in.
OTHER = SupervisedDataset(X, 100 * Y, feature_names=["a", "b"], outcome_names=["other"])
WEIGHT = ScalarizedPosteriorTransform(torch.tensor([-1.0], **DOUBLE))
PENDING = torch.tensor([[0.3, 0.6]], **DOUBLE)


@pytest.mark.parametrize("acqf_class", CLASSES)
@pytest.mark.parametrize(
    ("training_data", "X_pending", "maximize", "posterior_transform"),
    [
        (DATASET, None, True, None),
        ({"y": DATASET}, PENDING, False, None),
        ({"other": OTHER, "y": DATASET}, PENDING, True, WEIGHT),
        (DATASET, None, False, WEIGHT),
    ],
    ids=["dataset", "dict, pending, minimised", "several, negated", "negated and minimised"],
)
def test_construction(acqf_class, training_data, X_pending, maximize, posterior_transform):
    model = make_model()
    constructor = get_acqf_input_constructor(acqf_class)
    inputs = constructor(
        model=model,
        training_data=training_data,
        X_pending=X_pending,
        maximize=maximize,
        posterior_transform=posterior_transform,
        num_fantasies=4,
    )
    acqf = acqf_class(**inputs)
    assert acqf.maximize == maximize and acqf.num_fantasies == 4
    assert (acqf.X_pending is None) == (X_pending is None)
    value = acqf(X[:3].unsqueeze(-2) + 0.05)
    assert value.shape == (3,) and value.isfinite().all()
    if acqf_class in IMPROVEMENTS:
        # The best observation, in the direction and units of the objective
        outcomes = Y if posterior_transform is None else -Y
        best = outcomes.max() if maximize else outcomes.min()
        assert_close(acqf.best_f.squeeze(), best)
        assert constructor(model=model, training_data=DATASET, best_f=0.25)["best_f"] == 0.25
    else:
        assert inputs["level"] == 0.9
        assert constructor(model=model, training_data=DATASET, level=0.7)["level"] == 0.7


ACCEPTED = {
    DelayedUpperConfidenceBound: {"beta", "X_window", "feedback_bound"},
    DelayedThompsonSampling: {"beta", "X_window", "feedback_bound", "choices", "seed"},
    CalibratedUpperConfidenceBound: {"level", "num_fantasies"},
    WassersteinUpperConfidenceBound: {"beta", "radius", "contexts", "lipschitz_contexts"},
    RobustUpperConfidenceBound: {"beta", "ambiguity", "contexts"},
}


@pytest.mark.parametrize("acqf_class", ACCEPTED)
def test_accepted_names(acqf_class):
    """What Ax may give; anything else is an error, and so is a missing argument."""
    constructor, accepted = get_acqf_input_constructor(acqf_class), BASIC | ACCEPTED[acqf_class]
    given: dict[str, Any] = {"model": make_model(), "training_data": DATASET}
    needed = {"contexts": X[:3, :1], "radius": 0.1, "ambiguity": WorstCase()}
    given |= {name: needed[name] for name in needed if name in accepted}
    inputs = constructor(**given)
    for name in accepted:
        constructor(**{**given, name: given.get(name, inputs.get(name))})
    if acqf_class is DelayedThompsonSampling:  # another draw as data come in
        assert inputs["seed"] == len(X) and constructor(**given, seed=3)["seed"] == 3
        assert torch.equal(acqf_class(**constructor(**given, choices=X)).choices, X)
    with pytest.raises(TypeError, match="Unexpected keyword argument `other`"):
        constructor(**given, other=1)
    for name in given.keys() - {"training_data"}:
        with pytest.raises(TypeError, match=name):
            constructor(**{key: value for key, value in given.items() if key != name})


def test_registering_again():
    module = botorch_calib.acquisition.input_constructors
    for _ in range(2):
        importlib.reload(module)
        importlib.reload(botorch_calib.posteriors.posterior_list)
    for acqf_class in CLASSES:
        inputs = get_acqf_input_constructor(acqf_class)(model=make_model(), training_data=DATASET)
        assert acqf_class(**inputs)(X[:2].unsqueeze(-2)).shape == (2,)
    posterior = make_model().posterior(X[:3])
    sampler = get_sampler(posterior, torch.Size([8]), seed=0)
    assert isinstance(sampler, SobolQMCNormalSampler) and sampler(posterior).shape == (8, 3, 1)


def test_importing_afresh(monkeypatch):
    """The package can be loaded a second time in one process, as notebooks do."""
    for name in [name for name in sys.modules if name.startswith("botorch_calib")]:
        monkeypatch.delitem(sys.modules, name)
    afresh = importlib.import_module("botorch_calib").CalibratedUpperConfidenceBound
    assert afresh is not CalibratedUpperConfidenceBound
    get_acqf_input_constructor(afresh)


@pytest.mark.parametrize("X_pending", [None, PENDING], ids=["", "pending"])
@pytest.mark.parametrize("hypervolume", [False, True])
def test_noisy_improvement(hypervolume, X_pending):
    acqf_class: Any = qLogCalibratedNoisyExpectedImprovement
    given: dict[str, Any] = {"model": make_model(), "training_data": DATASET}
    if hypervolume:
        acqf_class = qLogCalibratedNoisyExpectedHypervolumeImprovement
        given = {
            "model": CalibratedModelList(make_model(), make_model(sign=-1.0)),
            "training_data": {"y": DATASET, "other": OTHER},
            "ref_point": torch.tensor([-1.0, -1.0], **DOUBLE),
        }
    constructor = get_acqf_input_constructor(acqf_class)
    # Few samples, as a Pareto front is computed for each
    given["sampler"] = SobolQMCNormalSampler(torch.Size([8]), seed=0)
    acqf = acqf_class(**constructor(**given, X_pending=X_pending, prune_baseline=False))
    assert acqf._cache_root
    assert acqf.X_baseline.shape == (len(X) + (X_pending is not None), 2)
    assert acqf(X[:3].unsqueeze(-2) + 0.05).isfinite().all()


def test_robust_acquisition():
    """The constructor wraps an existing acquisition function and refuses pending points."""
    constructor = get_acqf_input_constructor(RobustAcquisition)
    quantile = CalibratedUpperConfidenceBound(make_model(), level=0.7)
    given = {"acquisition": quantile, "ambiguity": WorstCase(), "contexts": X[:3, :1]}
    acqf = RobustAcquisition(**constructor(**given, training_data=DATASET, X_pending=None))
    decisions = X[:4, 1:].unsqueeze(-2)
    expected = RobustAcquisition(**given)(decisions)
    assert_close(acqf(decisions), expected)
    with pytest.raises(UnsupportedError, match="lacks the contexts"):
        constructor(**given, X_pending=PENDING)
    with pytest.raises(TypeError, match="ambiguity"):
        constructor(acquisition=quantile, contexts=X[:3, :1])


def test_expansion_of_constraints_as_ax_gives_them():
    """Limits are read from ``A y <= b``; functions of samples are ignored."""
    constructor = get_acqf_input_constructor(CertifiedSetExpansion)
    model = ModelList(make_model(), make_gp(sign=-1.0))
    tuples = (
        torch.tensor([[0.0, 1.0], [0.0, -1.0], [1.0, 0.0]], **DOUBLE),
        torch.tensor([[2.0], [2.5], [3.0]], **DOUBLE),
    )
    points = X[:4].unsqueeze(-2) + 0.05
    models = {"a": make_gp(sign=-1.0), "b": make_gp()}
    limits = {"a": (-2.5, 2.0), "b": (None, 3.0)}
    expected = CertifiedSetExpansion(ChanceConstraint(models, limits=limits, level=0.8))
    for constraints in ([lambda Y: Y[..., 1] - 2.0], {1: (-2.5, 2.0), 0: (None, 3.0)}):
        inputs = constructor(
            model=model,
            training_data=DATASET,
            posterior_transform=WEIGHT,
            constraints=constraints,
            constraints_tuple=tuples,
            level=0.8,
        )
        assert_close(CertifiedSetExpansion(**inputs)(points), expected(points))
    inputs = constructor(model=model, constraints_tuple=tuples, level=0.8, X_pending=PENDING)
    expected.set_X_pending(PENDING)
    assert_close(CertifiedSetExpansion(**inputs)(points), expected(points))


def test_expansion_of_constraints_that_go_on():
    constructor = get_acqf_input_constructor(CertifiedSetExpansion)
    given = ChanceConstraint.from_history(make_gp(), upper=3.0)
    assert constructor(model=make_model(), constraint=given)["constraint"] is given
    with pytest.raises(InputDataError, match="constraints"):
        constructor(model=make_model())
    with pytest.raises(InputDataError, match="model"):
        constructor(constraints={0: (None, 3.0)})
    with pytest.raises(InputDataError, match="level"):
        constructor(model=make_model(), constraints={0: (None, 3.0)}, level=1.0)


# ------------------------------------------------------------ what is improved upon, and limits


GENERATOR = torch.Generator().manual_seed(5)
INPUTS = torch.rand(14, 2, **DOUBLE, generator=GENERATOR)
OUTCOMES = torch.stack(
    [(6 * INPUTS).sin().sum(dim=-1), INPUTS.sum(dim=-1), INPUTS[:, 0] - INPUTS[:, 1]], dim=-1
)
NAMES = ["objective", "sum", "difference"]
CONSTRAINTS: dict[int, Any] = {1: (None, 1.3), 2: (0.125, 0.5)}
# The same as A y <= b, with weights other than 1.
A = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, -1.0], [0.0, 0.0, 4.0]], **DOUBLE)
B = torch.tensor([[2.6], [-0.125], [2.0]], **DOUBLE)


def make_models(Y: Tensor = OUTCOMES) -> list[Model]:
    gps = [SingleTaskGP(INPUTS, Y[:, i : i + 1]).eval() for i in range(Y.shape[-1])]
    return [CalibratedModel(gps[0], far_from_gaussian()), *gps[1:]]


def dataset(name: str, X: Tensor = INPUTS, Y: Tensor = OUTCOMES) -> SupervisedDataset:
    i = NAMES.index(name)
    return SupervisedDataset(X, Y[:, i : i + 1], feature_names=["a", "b"], outcome_names=[name])


DATA: dict[Any, SupervisedDataset] = {name: dataset(name) for name in NAMES}
BLOCK = SupervisedDataset(INPUTS, OUTCOMES, feature_names=["a", "b"], outcome_names=NAMES)
TRACKED = {"tracked": dataset("sum", INPUTS, 9.0 + 0 * OUTCOMES), **DATA}


def inputs(**kwargs: Any) -> dict[str, Any]:
    constructor = get_acqf_input_constructor(LogCalibratedConstrainedExpectedImprovement)
    given: dict[str, Any] = {"model": ModelList(*make_models()), "training_data": DATA}
    result: dict[str, Any] = constructor(**{**given, **kwargs})
    return result


@pytest.mark.parametrize("data", [DATA, BLOCK, TRACKED], ids=["by outcome", "block", "tracked"])
@pytest.mark.parametrize("maximize", [True, False])
def test_best_feasible_observation(data: Any, maximize: bool) -> None:
    feasible = (OUTCOMES[:, 1] <= 1.3) & (OUTCOMES[:, 2] >= 0.125) & (OUTCOMES[:, 2] <= 0.5)
    assert 0 < feasible.sum() < len(INPUTS)
    values = OUTCOMES[feasible, 0]
    expected = values.max() if maximize else values.min()
    assert not feasible[OUTCOMES[:, 0].argmax() if maximize else OUTCOMES[:, 0].argmin()]
    got = best_feasible_observation(make_models(), data, 0, CONSTRAINTS, maximize)
    assert_close(got, expected)
    # As BoTorch finds it.
    transforms = get_outcome_constraint_transforms((A, B))
    sign = 1.0 if maximize else -1.0
    botorchs = compute_best_feasible_objective(OUTCOMES, sign * OUTCOMES[:, 0], transforms)
    assert_close(got, sign * botorchs)


def test_outcomes_that_were_observed_at_different_points() -> None:
    """A point counts if each constraint was observed there, and held every time."""
    rows = torch.tensor([0, 1, 2])
    objective = dataset("objective", INPUTS[rows], torch.tensor([[1.0], [2.0], [3.0]], **DOUBLE))
    twice = torch.tensor([1, 0, 0, 5])
    values = torch.tensor([[9.0, 0.5], [9.0, 0.5], [9.0, 0.7], [9.0, 0.1]], **DOUBLE)
    data: dict[Any, Any] = {"objective": objective, "sum": dataset("sum", INPUTS[twice], values)}
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
    shifted = OUTCOMES + torch.tensor([1000.0, 0.0, 0.0], **DOUBLE)
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


def test_constraints_on_another_task_or_model_at_the_same_points() -> None:
    """The task column, which differs, is no part of a point at which outcomes are compared."""
    X, Y, _ = make_data()
    task = torch.arange(len(X), **DOUBLE).remainder(2).unsqueeze(-1)
    whole = torch.cat([X[::2].repeat_interleave(2, dim=0), task], dim=-1)
    first, second = (MultiTaskGP(whole, Y, -1, output_tasks=[i]).eval() for i in (0, 1))
    limit = Y[1::2].median().item()
    data = SupervisedDataset(X, Y, feature_names=["a", "b"], outcome_names=["y"])
    expected = Y[::2][Y[1::2] <= limit].max()
    for constrained in (second, SingleTaskGP(X[::2], Y[1::2])):
        models = [first, constrained]
        best = best_feasible_observation(models, data, 0, {1: (None, limit)}, True)
        assert_close(best, expected)


def test_the_best_value_is_one_of_the_output_task() -> None:
    gp = make_multitask()
    X, Y, _ = make_data()
    task = torch.arange(len(X), **DOUBLE).remainder(2).unsqueeze(-1)
    whole = torch.cat([X, task], dim=-1)
    data = SupervisedDataset(
        whole, Y + 100.0 * task, feature_names=["a", "b", "task"], outcome_names=["y"]
    )
    model = CalibratedModel(gp, far_from_gaussian())
    constructor = get_acqf_input_constructor(LogCalibratedExpectedImprovement)
    best = Y[::2].max()
    assert constructor(model=model, training_data=data)["best_f"] == best
    # Two datasets for one model: its own data are used.
    own = constructor(model=model, training_data={"y": data, "z": data})["best_f"]
    assert_close(own, best)
    with pytest.warns(BotorchWarning, match="No observation is feasible"):
        worst = best_feasible_observation([gp, gp], {0: data, 1: data}, 0, {1: (9e3, None)}, True)
    assert worst < Y.min()
    other = SupervisedDataset(
        whole[1::2], Y[1::2], feature_names=["a", "b", "task"], outcome_names=["y"]
    )
    with pytest.raises(NotImplementedError, match="output task has not been observed"):
        constructor(model=model, training_data=other)


def test_limits_from_linear_constraints() -> None:
    weights = torch.tensor([1.0, 0.0, 0.0], **DOUBLE)
    got = inputs(
        constraints_tuple=(A, B),
        constraints=get_outcome_constraint_transforms((A, B)),  # which Ax gives as well
        posterior_transform=ScalarizedPosteriorTransform(weights),
    )
    assert got["constraints"] == {1: (None, 1.3), 2: (0.125, 0.5)}
    assert got["objective_index"] == 0 and got["maximize"]
    same = inputs(constraints=CONSTRAINTS, objective_index=0)
    at = INPUTS[:3].unsqueeze(-2) + 0.05
    values = [LogCalibratedConstrainedExpectedImprovement(**each)(at) for each in (got, same)]
    assert_close(*values)
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
    values = OUTCOMES[OUTCOMES[:, 0] >= 0.0, 1]
    assert_close(got["best_f"], values.max() if got["maximize"] else values.min())


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"constraints": CONSTRAINTS}, InputDataError, "`objective_index` must name"),
        ({"objective_index": 0, "constraints": [torch.sum]}, InputDataError, "must map"),
        (
            {"objective_index": 0, "constraints_tuple": (A + A.flip(-1), B)},
            UnsupportedError,
            "limit one outcome.*qLogNoisyExpectedImprovement",
        ),
        (
            {"constraints": CONSTRAINTS, "posterior_transform": [1.0, 0.5, 0.0]},
            UnsupportedError,
            "one nonzero weight.*qLogNoisyExpectedImprovement",
        ),
        (
            {
                "constraints": CONSTRAINTS,
                "objective_index": 1,
                "posterior_transform": [1.0, 0.0, 0.0],
            },
            InputDataError,
            "`posterior_transform` selects 0",
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
