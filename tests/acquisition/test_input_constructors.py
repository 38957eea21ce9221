"""BoTorch's input constructors for the acquisition functions of this package."""

import importlib
import sys
from typing import Any

import pytest
import torch
from botorch.acquisition.input_constructors import get_acqf_input_constructor
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models.model import ModelList
from botorch.sampling.get_sampler import get_sampler
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.datasets import SupervisedDataset

import botorch_calib.acquisition.input_constructors
import botorch_calib.posteriors.posterior_list
from botorch_calib import (
    CalibratedExpectedImprovement,
    CalibratedModelList,
    CalibratedProbabilityOfImprovement,
    CalibratedUpperConfidenceBound,
    ChanceConstraint,
    DelayedThompsonSampling,
    DelayedUpperConfidenceBound,
    LogCalibratedExpectedImprovement,
    RobustUpperConfidenceBound,
    WassersteinUpperConfidenceBound,
    WorstCase,
    qLogCalibratedNoisyExpectedHypervolumeImprovement,
    qLogCalibratedNoisyExpectedImprovement,
)
from botorch_calib.acquisition import RobustAcquisition
from botorch_calib.decisions import CertifiedSetExpansion
from tests.gps import DOUBLE, make_data, make_gp, make_model

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
        # The best of the observations, in the direction and on the scale of the objective.
        outcomes = Y if posterior_transform is None else -Y
        best = outcomes.max() if maximize else outcomes.min()
        torch.testing.assert_close(acqf.best_f.squeeze(), best)
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
    # Few samples, as each of them has a Pareto front of its own.
    given["sampler"] = SobolQMCNormalSampler(torch.Size([8]), seed=0)
    acqf = acqf_class(**constructor(**given, X_pending=X_pending, prune_baseline=False))
    assert acqf._cache_root
    assert acqf.X_baseline.shape == (len(X) + (X_pending is not None), 2)
    assert acqf(X[:3].unsqueeze(-2) + 0.05).isfinite().all()


def test_robust_acquisition():
    """Of a function that exists already, and knows what is pending."""
    constructor = get_acqf_input_constructor(RobustAcquisition)
    quantile = CalibratedUpperConfidenceBound(make_model(), level=0.7)
    given = {"acquisition": quantile, "ambiguity": WorstCase(), "contexts": X[:3, :1]}
    acqf = RobustAcquisition(**constructor(**given, training_data=DATASET, X_pending=None))
    decisions = X[:4, 1:].unsqueeze(-2)
    expected = RobustAcquisition(**given)(decisions)
    torch.testing.assert_close(acqf(decisions), expected)
    with pytest.raises(UnsupportedError, match="lacks the contexts"):
        constructor(**given, X_pending=PENDING)
    with pytest.raises(TypeError, match="ambiguity"):
        constructor(acquisition=quantile, contexts=X[:3, :1])


def test_expansion_of_constraints_as_ax_gives_them():
    """Limits as ``A y <= b``, beside functions of samples, which are for others."""
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
        torch.testing.assert_close(CertifiedSetExpansion(**inputs)(points), expected(points))
    inputs = constructor(model=model, constraints_tuple=tuples, level=0.8, X_pending=PENDING)
    expected.set_X_pending(PENDING)
    torch.testing.assert_close(CertifiedSetExpansion(**inputs)(points), expected(points))


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
