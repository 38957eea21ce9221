"""Calibrated models in Ax: built, fitted, used and stored by Ax itself."""

import importlib
import logging
import math
import sys
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("ax")

from ax.adapter.cross_validation import cross_validate
from ax.analysis.plotly import sensitivity
from ax.analysis.plotly.surface.contour import ContourPlot
from ax.analysis.plotly.surface.slice import SlicePlot
from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from ax.api.utils.generation_strategy_dispatch import choose_generation_strategy
from ax.api.utils.structs import GenerationStrategyDispatchStruct
from ax.core.analysis_card import AnalysisCardGroup, ErrorAnalysisCard
from ax.core.search_space import SearchSpaceDigest
from ax.generation_strategy.generation_strategy import GenerationStrategy
from ax.generators.torch.botorch_modular import optimizer_argparse
from ax.generators.torch.botorch_modular.acquisition import Acquisition
from ax.generators.torch.botorch_modular.generator import BoTorchGenerator
from ax.generators.torch.botorch_modular.kernels import ScaleMaternKernel
from ax.generators.torch.botorch_modular.surrogate import Surrogate, SurrogateSpec
from ax.generators.torch.botorch_modular.utils import ModelConfig
from ax.generators.torch.utils import predict_from_model
from ax.generators.torch_base import TorchOptConfig
from ax.storage.botorch_modular_registry import REVERSE_MODEL_REGISTRY
from ax.storage.json_store.registry import CORE_DECODER_REGISTRY
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from botorch.utils.datasets import SupervisedDataset
from torch import Tensor

from botorch_calib import (
    CalibratedModel,
    CalibratedModelList,
    CalibratedUpperConfidenceBound,
    DelayedThompsonSampling,
    LocalizedConformal,
    LogCalibratedConstrainedExpectedImprovement,
    LogCalibratedExpectedImprovement,
    LogCalibratedProbabilityOfFeasibility,
    QuantileRecalibrator,
    qLogCalibratedNoisyExpectedHypervolumeImprovement,
    qLogCalibratedNoisyExpectedImprovement,
)
from botorch_calib.acquisition import CalibratedExpectedShortfall
from botorch_calib.decisions import CertifiedSetExpansion
from botorch_calib.integrations._ax_acquisition import CACHED_ROOTS
from botorch_calib.integrations.ax import (
    ConstrainedClosedForm,
    ReplayedModel,
    calibrated_generation_strategy,
    calibrated_model_config,
)
from botorch_calib.integrations.ax_decisions import chance_constrained_generation_strategy
from botorch_calib.models.outcome_transforms import raw_train_targets

NUM_INITIAL = 4

# Where the acquisition function has kinks or is flat, the line search may stop there.
pytestmark = pytest.mark.filterwarnings("ignore:Optimization failed:RuntimeWarning")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Ax logs each trial."""
    logger = logging.getLogger("ax")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def short_search(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, short_fits: None
) -> None:
    """Ax searches from 20 of 1024 points, which two parameters do not need."""
    is_slow = request.node.get_closest_marker("slow") is not None
    monkeypatch.setattr(optimizer_argparse, "NUM_RESTARTS", 4 if is_slow else 2)
    monkeypatch.setattr(optimizer_argparse, "RAW_SAMPLES", 64 if is_slow else 32)


CONTINUOUS = (
    RangeParameterConfig(name="a", parameter_type="float", bounds=(0, 1)),
    RangeParameterConfig(name="b", parameter_type="float", bounds=(0, 10)),
)
MIXED = (
    CONTINUOUS[0],
    RangeParameterConfig(name="b", parameter_type="int", bounds=(0, 10)),
    ChoiceParameterConfig(name="c", parameter_type="str", values=["u", "v"], is_ordered=False),
)


def hill(parameters: Any) -> float:
    """Its maximum, 0, is at (0.4, 6)."""
    return -((parameters["a"] - 0.4) ** 2) - (parameters["b"] / 10 - 0.6) ** 2


def rough_hill(parameters: Any) -> float:
    """So rough that a model regards it as noisy."""
    return hill(parameters) + 0.03 * math.cos(57.0 * parameters["a"] + 71.0 * parameters["b"])


def other_hill(parameters: Any) -> float:
    """The maximum, about 0, is at (0.9, 1). A model regards the function as noisy."""
    smooth = -((parameters["a"] - 0.9) ** 2) - (parameters["b"] / 10 - 0.1) ** 2
    return smooth + 0.03 * math.sin(91.0 * parameters["a"] + 37.0 * parameters["b"])


def point(parameters: Any) -> Tensor:
    """In the unit square."""
    return torch.tensor([parameters["a"], parameters["b"] / 10])


def new_client(
    config: ModelConfig,
    acquisition: type[AcquisitionFunction] | None = None,
    parameters: Sequence[Any] = CONTINUOUS,
    objective: str = "y",
    constraints: Sequence[str] = (),
) -> Client:
    client = Client(random_seed=0)
    client.configure_experiment(parameters=parameters)
    client.configure_optimization(objective=objective, outcome_constraints=constraints)
    client.set_generation_strategy(
        choose_generation_strategy(
            GenerationStrategyDispatchStruct(
                method="custom", initialization_budget=NUM_INITIAL, initialization_random_seed=0
            ),
            model_config=config,
            botorch_acqf_class=acquisition,
        )
    )
    return client


def complete(client: Client, trial: int, outcomes: Any) -> None:
    """As `Client.complete_trial`, which makes a table of all data for its log."""
    client.attach_data(trial, outcomes)
    client._experiment.trials[trial].mark_completed()


def play(client: Client, num_trials: int, **metrics: Any) -> None:
    """Run trials one after the other; other metrics are functions of the parameters."""
    for _ in range(num_trials):
        for index, parameters in client.get_next_trials(max_trials=1).items():
            outcomes = {name: metric(parameters) for name, metric in metrics.items()}
            complete(client, index, {"y": hill(parameters), **outcomes})


def adapter_of(client: Client) -> Any:
    return client._generation_strategy.adapter


def model_of(client: Client) -> Any:
    return adapter_of(client).generator.surrogate.model


def data(n: int = 12) -> SupervisedDataset:
    X = torch.rand(n, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    Y = torch.sin(4 * X).sum(dim=-1, keepdim=True)
    Y = (Y - Y.mean()) / Y.std()  # as Ax does before it makes a dataset
    return SupervisedDataset(X, Y, feature_names=["a", "b"], outcome_names=["y"])


def fitted(config: ModelConfig, dataset: SupervisedDataset | None = None) -> Any:
    """The model that Ax builds and fits to a dataset."""
    surrogate = Surrogate(SurrogateSpec(model_configs=[config]))
    digest = SearchSpaceDigest(feature_names=["a", "b"], bounds=[(0.0, 1.0), (0.0, 1.0)])
    surrogate.fit([data() if dataset is None else dataset], search_space_digest=digest)
    return surrogate.model


def predictions(model: Any) -> Tensor:
    X = torch.linspace(0, 1, 7, dtype=torch.double).unsqueeze(-1).expand(7, 2)
    posterior = model.posterior(X)
    return torch.stack([posterior.mean, posterior.variance])


def test_gaussian_process_of_ax_and_its_replayed_history() -> None:
    model, plain = fitted(calibrated_model_config()), fitted(ModelConfig())
    assert type(model) is ReplayedModel and model.excess == "noise"
    assert type(model.model) is type(plain) is SingleTaskGP
    torch.testing.assert_close(predictions(model.model), predictions(plain))
    expected = CalibratedModel.from_history(model.model, LocalizedConformal(alpha=0.2))
    assert type(model.calibrator) is LocalizedConformal and model.calibrator.num_updates == 12
    torch.testing.assert_close(predictions(model), predictions(expected), rtol=0, atol=0)
    assert not torch.equal(predictions(model), predictions(model.model))


def test_options_reach_the_calibrator_and_the_model() -> None:
    class Mine(LocalizedConformal):
        """A calibrator from outside of this package."""

    config = calibrated_model_config(
        Mine, alpha=0.3, lengthscale=0.5, denoise=False, excess="objective"
    )
    model = fitted(replace(config, covar_module_class=ScaleMaternKernel))
    assert type(model.calibrator) is Mine and model.calibrator.alpha == 0.3
    assert not model.denoise and model.excess == "objective"
    assert type(model.model.covar_module) is ScaleMaternKernel
    assert config.name != calibrated_model_config(Mine, alpha=0.2).name


@pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized")
def test_an_ensemble_beneath() -> None:
    """Fitted by Ax, replayed, and predicted by the mixture's moments."""
    model = fitted(calibrated_model_config(model_class=EnsembleMapSaasSingleTaskGP))
    assert type(model.model) is EnsembleMapSaasSingleTaskGP
    assert model.calibrator.num_updates == 12
    X = torch.rand(5, 2, dtype=torch.double)
    mean, variance = predict_from_model(model, X)
    expected, spread = model.posterior(X).moments()
    torch.testing.assert_close(mean, expected.detach())
    torch.testing.assert_close(variance.squeeze(-1), spread.detach())
    with pytest.raises(InputDataError, match="register_model"):
        calibrated_model_config(model_class=CalibratedModel)


@pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized")
def test_a_state_with_less_data_is_replayed() -> None:
    """In cross-validation, the calibrator must forget what it has learned from held-out data."""
    model, dataset = fitted(calibrated_model_config()), data()
    part = SupervisedDataset(
        dataset.X[:9], dataset.Y[:9], feature_names=["a", "b"], outcome_names=["y"]
    )
    surrogate = Surrogate(SurrogateSpec(model_configs=[calibrated_model_config()]))
    digest = SearchSpaceDigest(feature_names=["a", "b"], bounds=[(0.0, 1.0), (0.0, 1.0)])
    surrogate.fit([part], digest, state_dict=deepcopy(model.state_dict()), refit=False)
    held_out: Any = surrogate.model
    assert held_out.calibrator.num_updates == 9
    expected = CalibratedModel.from_history(held_out.model, LocalizedConformal(alpha=0.2))
    torch.testing.assert_close(predictions(held_out), predictions(expected), rtol=0, atol=0)
    torch.testing.assert_close(
        held_out.model.covar_module.lengthscale, model.model.covar_module.lengthscale
    )


def test_a_calibrated_ensemble_beside_other_models_is_refused() -> None:
    """Ax would raise an error of torch after the initial trials."""
    client = Client()
    client.configure_experiment(parameters=CONTINUOUS)
    client.configure_optimization("y", outcome_constraints=["z <= 3"])
    ensemble = calibrated_model_config(model_class=EnsembleMapSaasSingleTaskGP)
    for other in (None, ModelConfig(), ModelConfig(EnsembleMapSaasSingleTaskGP)):
        with pytest.raises(UnsupportedError, match="metrics, including tracked ones, the same"):
            calibrated_generation_strategy(client, other, {"y": ensemble})
    calibrated_generation_strategy(client, ensemble, {"y": ensemble})


def test_selection_among_models_is_refused() -> None:
    surrogate = Surrogate(SurrogateSpec(model_configs=[calibrated_model_config(), ModelConfig()]))
    digest = SearchSpaceDigest(feature_names=["a", "b"], bounds=[(0.0, 1.0), (0.0, 1.0)])
    with pytest.raises(UnsupportedError, match="'y' only the calibrated configuration"):
        surrogate.fit([data()], search_space_digest=digest)


@pytest.mark.parametrize(
    ("acquisition", "parameters"),
    [(None, CONTINUOUS), (LogCalibratedExpectedImprovement, MIXED)],  # None: Ax's own choice
)
def test_loop(acquisition: type[AcquisitionFunction] | None, parameters: Sequence[Any]) -> None:
    client = new_client(calibrated_model_config(), acquisition, parameters)
    play(client, NUM_INITIAL + 1)
    generator, model = adapter_of(client).generator, model_of(client)
    assert type(model) is ReplayedModel
    # The last trial was chosen before its outcome, from all earlier trials in order.
    assert model.calibrator.num_updates == NUM_INITIAL
    trials = client._experiment.trials.values()
    chosen = [trial.arms[0].parameters["a"] for trial in trials][:NUM_INITIAL]
    torch.testing.assert_close(generator.surrogate.Xs[0][:, 0], torch.tensor(chosen).double())
    expected = acquisition or qLogNoisyExpectedImprovement
    assert generator._botorch_acqf_class is expected


# ------------------------------------------------------------------ under outcome constraints

THRESHOLDS = ["y >= -2", "w >= 0"]


def total(parameters: Any) -> float:
    return float(parameters["a"] + parameters["b"] / 10)


def strategy_for(client: Client, **kwargs: Any) -> GenerationStrategy:
    struct = GenerationStrategyDispatchStruct(
        method="custom",
        initialization_budget=NUM_INITIAL,
        initialization_random_seed=0,
        initialize_with_center=False,
    )
    return calibrated_generation_strategy(client, struct=struct, **kwargs)


def constrained_client(
    objective: str = "y", constraints: Sequence[str] = ("z <= 0.8",), **kwargs: Any
) -> Client:
    client = Client(random_seed=0)
    client.configure_experiment(parameters=CONTINUOUS)
    client.configure_optimization(objective=objective, outcome_constraints=constraints)
    client.set_generation_strategy(strategy_for(client, **kwargs))
    return client


def acquisition_of(client: Client) -> Any:
    """Ax's acquisition, whose attribute ``acqf`` is BoTorch's function."""
    return adapter_of(client).generator._acquisition


def class_of(client: Client) -> type[AcquisitionFunction]:
    return type(acquisition_of(client).acqf)


@pytest.fixture
def not_optimised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the maximisation: these tests are about the function that Ax builds."""

    def optimize(self: Acquisition, n: int, **kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
        X = self.surrogate.Xs[0]
        points = torch.rand(n, X.shape[-1]).to(X)
        return points, self.acqf(points.unsqueeze(-2)).detach().view(-1), torch.ones(n)

    monkeypatch.setattr(Acquisition, "optimize", optimize)


def test_constrained_objective_in_closed_form() -> None:
    """From the initial trials through a few model-based trials, all by default."""
    client = constrained_client()
    play(client, NUM_INITIAL + 3, z=total)
    acqf: Any = acquisition_of(client).acqf
    assert class_of(client) is LogCalibratedConstrainedExpectedImprovement
    assert all(type(part) is ReplayedModel for part in acqf.model.models)
    chosen = [trial.arms[0].parameters for trial in client._experiment.trials.values()]
    # The best feasible point is (0.3, 5), with the value -0.02.
    assert max(hill(p) for p in chosen if total(p) <= 0.8) > -0.05


@pytest.mark.usefixtures("not_optimised")
def test_constrained_incumbent_and_limits_are_in_the_units_of_the_models() -> None:
    client = constrained_client("-w", ["z >= 0.6"])
    play(client, NUM_INITIAL + 1, z=total, w=lambda parameters: 100.0 - 7.0 * hill(parameters))
    acqf: Any = acquisition_of(client).acqf
    assert not acqf.maximize
    names = adapter_of(client).outcomes
    objective, other = (model_of(client).models[names.index(name)] for name in "wz")
    # Ax also models the tracked metric "y", but leaves it out here.
    assert [part is objective for part in acqf.model.models] == [True, False]
    assert acqf.objective_index == 0 and list(acqf.constraints) == [1]
    chosen = list(client._experiment.trials.values())[:NUM_INITIAL]
    feasible = [i for i, t in enumerate(chosen) if total(t.arms[0].parameters) >= 0.6]
    assert 0 < len(feasible) < NUM_INITIAL
    targets = raw_train_targets(objective.model).flatten()
    torch.testing.assert_close(acqf.best_f, targets[feasible].min())
    (limits,) = acqf.constraints.values()
    held = raw_train_targets(other.model).flatten() >= limits[0]
    assert held.nonzero().flatten().tolist() == feasible


@pytest.mark.usefixtures("not_optimised")
def test_constraints_relative_to_the_status_quo() -> None:
    client = Client(random_seed=0)
    client.configure_experiment(parameters=CONTINUOUS)
    client.configure_optimization(objective="y", outcome_constraints=["z <= 1.1 * baseline"])
    baseline = {"a": 0.25, "b": 5.0}
    index = client.attach_baseline(baseline)
    client.complete_trial(index, {"y": hill(baseline), "z": 0.75})
    client.set_generation_strategy(strategy_for(client))
    play(client, NUM_INITIAL + 1, z=total)
    acqf: Any = acquisition_of(client).acqf
    assert class_of(client) is LogCalibratedConstrainedExpectedImprovement
    (limits,) = acqf.constraints.values()
    (i,) = acqf.constraints
    held = raw_train_targets(acqf.model.models[i].model).flatten() <= limits[1]
    arms = [trial.arms[0].parameters for trial in client._experiment.trials.values()]
    assert held.tolist() == [total(p) <= 1.1 * 0.75 for p in arms[: len(held)]]


def test_pending_trials_of_a_constrained_objective() -> None:
    client = constrained_client()
    play(client, NUM_INITIAL, z=total)
    running = [*client.get_next_trials(max_trials=1).values()]
    running += client.get_next_trials(max_trials=2).values()
    assert acquisition_of(client).acqf.X_pending.shape[-2] >= 1
    places = torch.stack([point(parameters) for parameters in running])
    assert torch.pdist(places).min() > 0.01


@pytest.mark.usefixtures("not_optimised")
def test_each_metric_in_its_own_way_also_when_loaded(tmp_path: Path) -> None:
    client = constrained_client(
        constraints=["z <= 0.8", "w <= 2"],
        model_config=calibrated_model_config(alpha=0.3),
        metric_configs={
            "z": calibrated_model_config(QuantileRecalibrator, denoise=False),
            "w": ModelConfig(name="plain"),
        },
    )
    metrics = {"z": total, "w": lambda parameters: parameters["a"]}
    play(client, NUM_INITIAL, **metrics)
    for again in (client, saved_and_loaded(client, tmp_path)):
        play(again, 1, **metrics)
        names = adapter_of(again).outcomes
        objective, other, plain = (model_of(again).models[names.index(name)] for name in "yzw")
        assert type(objective.calibrator) is LocalizedConformal and objective.denoise
        assert objective.calibrator.alpha == 0.3
        assert type(other.calibrator) is QuantileRecalibrator and not other.denoise
        assert type(plain) is SingleTaskGP
        assert type(acquisition_of(again)) is ConstrainedClosedForm
        assert class_of(again) is LogCalibratedConstrainedExpectedImprovement


@pytest.mark.parametrize(
    ("objective", "constraints", "asked", "expected"),
    [
        ("y", [], None, qLogCalibratedNoisyExpectedImprovement),
        (
            "y, w",
            ["z <= 0.8", *THRESHOLDS],
            None,
            qLogCalibratedNoisyExpectedHypervolumeImprovement,
        ),
        ("y + w", ["z <= 0.8"], None, qLogCalibratedNoisyExpectedImprovement),
        ("y", ["z <= -0.3"], None, LogCalibratedProbabilityOfFeasibility),  # none is feasible yet
        # Users can choose a sampled function.
        ("y", ["z <= 0.8"], qLogNoisyExpectedImprovement, qLogNoisyExpectedImprovement),
        ("y", [], CalibratedExpectedShortfall, CalibratedExpectedShortfall),
    ],
)
@pytest.mark.usefixtures("not_optimised")
def test_what_else_is_used(
    objective: str, constraints: Sequence[str], asked: Any, expected: type[AcquisitionFunction]
) -> None:
    client = constrained_client(objective, constraints, botorch_acqf_class=asked)
    play(client, NUM_INITIAL + 1, z=total, w=lambda p: other_hill(p) + 2.0)
    assert class_of(client) is expected
    if expected in CACHED_ROOTS.values():
        acqf: Any = acquisition_of(client).acqf
        assert acqf._cache_root
        assert acqf.model.num_outputs == 1 or type(acqf.model) is CalibratedModelList


def test_what_the_closed_form_can_express() -> None:
    """Other problems are sampled, and so are functions with options."""
    y = data()
    z = SupervisedDataset(y.X, -y.Y, feature_names=["a", "b"], outcome_names=["z"])
    generator = BoTorchGenerator(
        surrogate_spec=SurrogateSpec(model_configs=[calibrated_model_config()]),
        acquisition_class=ConstrainedClosedForm,
    )
    digest = SearchSpaceDigest(feature_names=["a", "b"], bounds=[(0.0, 1.0), (0.0, 1.0)])
    generator.fit([y, z], search_space_digest=digest)
    sampled, closed = (
        qLogCalibratedNoisyExpectedImprovement,
        LogCalibratedConstrainedExpectedImprovement,
    )
    cases: list[tuple[list[float], Any, dict[str, Any], type[AcquisitionFunction]]] = [
        ([1.0, 0.0], [[0.0, 1.0]], {}, closed),
        ([-2.0, 0.0], [[0.0, -3.0]], {}, closed),
        ([1.0, 0.0], [[0.0, 1.0]], {"prune_baseline": False}, sampled),
        ([1.0, 0.0], [[0.0, 1.0], [0.5, 1.0]], {}, sampled),
        ([1.0, 0.0], [[0.0, 1.0], [1.0, 0.0]], {}, sampled),
        ([1.0, 0.5], [[0.0, 1.0]], {}, sampled),
        ([1.0, 0.0], None, {}, sampled),
    ]
    for weights, A, options, expected in cases:
        constraints = None
        if A is not None:
            constraints = torch.tensor(A).double(), torch.ones(len(A), 1).double()
        acquisition = generator._instantiate_acquisition(
            search_space_digest=digest,
            torch_opt_config=TorchOptConfig(
                objective_weights=torch.tensor([weights]).double(),
                outcome_constraints=constraints,
            ),
            botorch_acqf_options=options,
        )
        assert type(acquisition.acqf) is expected, (weights, A, options)
        assert getattr(acquisition.acqf, "_cache_root", True)


@pytest.mark.parametrize(
    ("objective", "constraints", "acquisition", "match"),
    [
        ("y", ["z <= 1"], LogExpectedImprovement, "ignores outcome constraints"),
        ("y, z", [], DelayedThompsonSampling, "for one metric.*'y, z'"),
        ("y", [], qLogNoisyExpectedHypervolumeImprovement, "there is only 'y'"),
        ("y + z", ["w <= 1"], LogCalibratedConstrainedExpectedImprovement, "for one metric"),
        ("y", [], LogCalibratedConstrainedExpectedImprovement, "needs outcome constraints"),
        ("y + z", [], LogCalibratedExpectedImprovement, r"the sum 'y \+ z'"),
        ("y", ["z + w <= 1"], None, "uses only one of the metrics"),
        ("y", ["z <= 1.1 * baseline"], None, "attach_baseline"),
    ],
)
def test_wrong_combinations_fail_before_the_first_trial(
    objective: str,
    constraints: Sequence[str],
    acquisition: type[AcquisitionFunction] | None,
    match: str,
) -> None:
    with pytest.raises(UnsupportedError, match=match):
        constrained_client(objective, constraints, botorch_acqf_class=acquisition)


@pytest.mark.usefixtures("not_optimised")
def test_sum_of_metrics_as_the_objective() -> None:
    client = constrained_client("y + 0.25*w", ())
    play(client, NUM_INITIAL + 1, w=lambda parameters: parameters["a"])
    acqf: Any = acquisition_of(client).acqf
    weights = acqf.objective.weights
    names, models = adapter_of(client).outcomes, model_of(client).models
    targets = {
        name: raw_train_targets(part.model).flatten()
        for name, part in zip(names, models, strict=True)
    }
    arms: list[Any] = [trial.arms[0].parameters for trial in client._experiment.trials.values()]
    sums = torch.tensor([hill(p) + 0.25 * p["a"] for p in arms[: len(targets["y"])]]).double()
    samples = torch.stack([targets[name] for name in names], dim=-1)
    # In the units of the models it is the sum, times a factor and plus an offset.
    seen = (samples @ weights.to(samples)).diff()
    torch.testing.assert_close(seen / seen[0], sums.diff() / sums.diff()[0], rtol=1e-6, atol=1e-6)


# ------------------------------------------------------------------ what Ax makes of the models


def summaries(client: Client, points: Sequence[Any]) -> Tensor:
    """Means and standard errors that Ax predicts, by point and metric."""
    rows = [[row[name] for name in sorted(row)] for row in client.predict(points)]
    return torch.tensor(rows, dtype=torch.double)


def saved_and_loaded(client: Client, path: Path) -> Client:
    client.save_to_json_file(str(path / "experiment.json"))
    loaded: Client = Client.load_from_json_file(str(path / "experiment.json"))
    return loaded


@pytest.mark.usefixtures("not_optimised")
# BoTorch's warning if paths through the trials have no variance between them
@pytest.mark.filterwarnings("ignore:A not p.d.")
def test_two_objectives_predicted_saved_and_loaded(tmp_path: Path) -> None:
    client = constrained_client("v, w", ["v >= -1", "w >= -1"])
    metrics = {"v": rough_hill, "w": other_hill}
    play(client, NUM_INITIAL + 1, **metrics)
    arms = [trial.arms[0].parameters for trial in client._experiment.trials.values()]
    chosen = summaries(client, arms[:NUM_INITIAL])
    assert chosen.shape == (NUM_INITIAL, 3, 2) and (chosen[..., 1] > 0).all()
    # in the order of the names; "y" is tracked
    exact = torch.tensor([[rough_hill(p), other_hill(p)] for p in arms[:NUM_INITIAL]]).double()
    torch.testing.assert_close(chosen[:, :2, 0], exact, atol=0.1, rtol=0.0)
    for predicted in (True, False):
        front: Any = client.get_pareto_frontier(use_model_predictions=predicted)
        assert front
        values = [(outcome["v"][0], outcome["w"][0]) for _, outcome, *_ in front]
        worse = [a < c and b < d for a, b in values for c, d in values]
        assert not any(worse)
    loaded = saved_and_loaded(client, tmp_path)
    play(loaded, 1, **metrics)
    assert class_of(loaded) is qLogCalibratedNoisyExpectedHypervolumeImprovement
    assert {type(part) for part in model_of(loaded).models} == {ReplayedModel}
    assert model_of(loaded).models[0].calibrator.num_updates == NUM_INITIAL + 1
    assert loaded.get_pareto_frontier()


def leaves(cards: Sequence[Any]) -> Iterator[Any]:
    for card in cards:
        if isinstance(card, AnalysisCardGroup):
            yield from leaves(card.children)
        else:
            yield card


@pytest.mark.slow
@pytest.mark.usefixtures("not_optimised")
@pytest.mark.filterwarnings("ignore")  # those of Ax and of Plotly
def test_analyses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the sensitivity analysis needs a certain type of posterior."""
    few = partial(sensitivity.ax_parameter_sens, num_mc_samples=64)
    monkeypatch.setattr(sensitivity, "ax_parameter_sens", few)
    client = constrained_client()
    play(client, NUM_INITIAL + 1, z=total)
    cards = list(leaves(client.compute_analyses(display=False)))
    wrong = [card for card in cards if isinstance(card, ErrorAnalysisCard)]
    assert {card.name for card in wrong} <= {"TopSurfacesAnalysis"}
    assert all("GPyTorchPosterior" in card.blob for card in wrong)
    assert {"ArmEffectsPlot", "CrossValidationPlot", "Summary"} <= {card.name for card in cards}
    # Users can request the curves and surfaces that it would have chosen.
    surfaces = [SlicePlot("a", "y"), ContourPlot("a", "b", "y")]
    drawn = list(leaves(client.compute_analyses(surfaces, display=False)))
    assert [card.name for card in drawn] == ["SlicePlot", "ContourPlot"]
    assert not any(isinstance(card, ErrorAnalysisCard) for card in drawn)


def test_strategy_needs_to_know_the_experiment_and_configurations() -> None:
    client = Client()
    client.configure_experiment(parameters=CONTINUOUS)
    with pytest.raises(InputDataError, match="configure_optimization"):
        calibrated_generation_strategy(client)
    client.configure_optimization("y")
    with pytest.raises(InputDataError, match=r"names 'z'; the metrics are 'y'\."):
        calibrated_generation_strategy(client, metric_configs={"z": ModelConfig()})
    wrong: Any = LocalizedConformal
    other: Any = SimpleNamespace(experiment=client._experiment)  # as Ax's older `AxClient` has
    with pytest.raises(InputDataError, match=r"`ax\.api\.client`, .* got SimpleNamespace"):
        calibrated_generation_strategy(other)
    with pytest.raises(InputDataError, match="`model_config` must be a ModelConfig"):
        calibrated_generation_strategy(client, wrong(alpha=0.2))
    with pytest.raises(InputDataError, match=r"`metric_configs\['y'\]` must be a ModelConfig"):
        calibrated_generation_strategy(client, metric_configs={"y": wrong})


def test_expansion_of_the_certified_set(tmp_path: Path) -> None:
    """It reads the experiment's constraints, spreads batches, and can be loaded."""
    client = constrained_client(botorch_acqf_class=CertifiedSetExpansion)
    play(client, NUM_INITIAL, z=total)
    loaded = saved_and_loaded(client, tmp_path)
    batch = [*loaded.get_next_trials(1).values(), *loaded.get_next_trials(1).values()]
    assert class_of(loaded) is CertifiedSetExpansion
    assert (point(batch[0]) - point(batch[1])).norm() > 0.05
    acqf: Any = acquisition_of(loaded).acqf
    constraint = acqf.constraint
    names, models = adapter_of(loaded).outcomes, model_of(loaded).models
    targets = raw_train_targets(models[names.index("z")].model)
    assert torch.equal(raw_train_targets(constraint.model), targets)
    assert acqf.X_pending.shape == (1, 2)


def test_experiment_can_be_saved_and_cross_validated(tmp_path: Path) -> None:
    config = calibrated_model_config(LocalizedConformal, alpha=0.1, lengthscale=0.5)
    client = new_client(config, CalibratedUpperConfidenceBound)
    play(client, NUM_INITIAL)
    loaded = saved_and_loaded(client, tmp_path)
    play(loaded, 1)
    calibrator = model_of(loaded).calibrator
    assert type(calibrator) is LocalizedConformal
    assert calibrator.alpha == 0.1
    assert calibrator.num_updates == NUM_INITIAL
    assert len(cross_validate(adapter_of(loaded))) == NUM_INITIAL
    assert adapter_of(loaded).feature_importances("y").keys() == {"a", "b"}


@pytest.mark.parametrize("missing", ["ax.api.client", "ax.storage.transform_registry"])
def test_another_version_of_ax_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "botorch_calib.integrations.ax"
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, name)
    match = rf"Ax 1.3, or a later version .*{missing}.* pip install botorch_calib\[ax\]"
    with pytest.raises(ImportError, match=match):
        importlib.import_module(name)


@pytest.mark.parametrize(
    ("make", "registry", "name"),
    [
        (calibrated_generation_strategy, REVERSE_MODEL_REGISTRY, "ax.ReplayedModel"),
        (
            chance_constrained_generation_strategy,
            CORE_DECODER_REGISTRY,
            "ax_decisions.CertifyingGenerators",
        ),
    ],
)
def test_a_file_that_is_loaded_without_the_import_names_it(
    make: Any, registry: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client()
    client.configure_experiment(CONTINUOUS)
    client.configure_optimization("y", outcome_constraints=["z <= 1"])
    client.set_generation_strategy(make(client))
    stored = client._to_json_snapshot()
    monkeypatch.delitem(registry, f"botorch_calib.integrations.{name}")
    with pytest.raises(Exception, match=f"botorch_calib.integrations.{name}"):
        Client._from_json_snapshot(stored)
