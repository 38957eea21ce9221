"""Certified trials in Ax: the candidates of the bare loop, and books that survive restarts."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("ax")

import pandas as pd
from ax.analysis.plotly.objective_p_feasible_frontier import ObjectivePFeasibleFrontierPlot
from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from ax.api.utils.generation_strategy_dispatch import choose_generation_strategy
from ax.api.utils.structs import GenerationStrategyDispatchStruct
from ax.core.batch_trial import BatchTrial
from ax.core.data import Data
from ax.core.parameter import ChoiceParameter, ParameterType, RangeParameter
from ax.exceptions.core import DataRequiredError
from ax.generators.torch.botorch_modular import acquisition as ax_acquisition
from ax.generators.torch.botorch_modular.multi_acquisition import MultiAcquisition
from ax.generators.torch.botorch_modular.utils import ModelConfig
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.exceptions.warnings import InputDataWarning
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.utils.multi_objective.optimize import optimize_with_nsgaii
from torch import Tensor

from botorch_calib import (
    ChanceConstraint,
    LogCalibratedConstrainedExpectedImprovement,
    noise_diagnosis,
    optimize_chance_constrained,
)
from botorch_calib.calibration import NoCalibration
from botorch_calib.decisions.chance_constrained_search import Place
from botorch_calib.exceptions import CalibrationWarning
from botorch_calib.integrations import _mixed_search, _stored, ax_decisions
from botorch_calib.integrations._mixed_search import MixedSpace
from botorch_calib.integrations.ax import calibrated_model_config
from botorch_calib.integrations.ax_cards import CalibrationReports, CertifiedTrials, NoiseDiagnoses
from botorch_calib.integrations.ax_decisions import (
    CertifiedPoints,
    ConstrainedClosedForm,
    absolute_config,
    certifying_spec,
    chance_constrained_generation_strategy,
    last_safe,
    models_by_metric,
    observed_means,
    recommendation,
    withdraw,
)
from botorch_calib.models import CalibratedModel, PartlyKnownNoiseGP
from botorch_calib.optim import feasible_search
from tests.integrations.test_ax import complete, not_optimised, quiet, short_search

__all__ = ["not_optimised", "quiet", "short_search"]  # fixtures

NUM = 12
A = RangeParameterConfig("a", bounds=(0, 1), parameter_type="float")
B = RangeParameterConfig("b", bounds=(0, 10), parameter_type="float")
KEY = "chance_constraints"
SEARCH: dict[str, Any] = {"num_restarts": 2, "raw_samples": 128}

pytestmark = [
    pytest.mark.filterwarnings("ignore:Optimization failed:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::botorch_calib.exceptions.NotCertifiedWarning"),
]


@pytest.fixture(autouse=True)
def few_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certified points are searched from 4 of 512 points to the end, in mixed spaces in turns."""
    monkeypatch.setattr(ax_decisions, "Place", partial(Place, **SEARCH))
    monkeypatch.setattr(feasible_search, "_MAX_ITERATIONS", 5)
    monkeypatch.setattr(_mixed_search, "_POOL", 32)
    monkeypatch.setattr(_mixed_search, "_ROUNDS", 1)


def gain(parameters: Any) -> float:
    return parameters["a"] + parameters["b"] / 10


def cost(parameters: Any) -> float:
    """At most 1 in the lower left half, and so rough that a model regards it as noisy."""
    a, b = parameters["a"], parameters["b"] / 10
    return a**2 + b + 0.03 * float(torch.tensor(57.0 * a + 71.0 * b).sin())


def outcome(parameters: Any) -> dict[str, float]:
    return {"y": gain(parameters), "z": cost(parameters)}


def struct(num: int = NUM) -> GenerationStrategyDispatchStruct:
    return GenerationStrategyDispatchStruct(
        method="custom", initialization_budget=num, initialize_with_center=False
    )


def new_client(
    parameters: Sequence[Any] = (A, B),
    constraints: Sequence[str] = ("z <= 1",),
    evaluate: Callable[[Any], Any] = outcome,
    objective: str = "y",
    parameter_constraints: Sequence[str] = (),
    baseline: dict[str, Any] | None = None,
    strategy: Callable[..., Any] = chance_constrained_generation_strategy,
    **options: Any,
) -> Client:
    """A client whose next trial is the first certified one."""
    client = Client(random_seed=0)
    client.configure_experiment(
        parameters, parameter_constraints=parameter_constraints, name="certified"
    )
    client.configure_optimization(objective, outcome_constraints=constraints)
    if baseline is not None:
        trial = client.attach_baseline(baseline)
        client.complete_trial(trial, evaluate(baseline))
    client.set_generation_strategy(strategy(client, struct=struct(), **options))
    play(client, 1, evaluate, at_a_time=NUM - (baseline is not None))
    return client


def play(
    client: Client, num: int, evaluate: Callable[[Any], Any] = outcome, at_a_time: int = 1
) -> list[dict[str, Any]]:
    chosen: list[Any] = []
    for _ in range(num):
        for trial, parameters in client.get_next_trials(max_trials=at_a_time).items():
            complete(client, trial, evaluate(parameters))
            chosen.append(parameters)
    return chosen


def decision(client: Client, trial: int) -> dict[str, Any]:
    """The row that is stored with a trial."""
    (run,) = client._experiment.trials[trial].generator_runs
    every: Any = run.candidate_metadata_by_arm_signature
    (found,) = every.values()
    return dict(found[KEY])


def adapter_of(client: Client) -> Any:
    return client._generation_strategy.adapter


def account_of(client: Client) -> Any:
    spec, experiment = certifying_spec(client._generation_strategy), client._experiment
    settings = spec.generator_kwargs["acquisition_options"]
    return ax_decisions.account_of(experiment, settings, absolute_config(spec, experiment))


def account(client: Client) -> tuple[int, int, int]:
    found: tuple[int, int, int] = account_of(client).account[:3]
    return found


def counted(client: Client, limit: float = 1.0) -> tuple[int, int, int]:
    """Numbers of certified, violating and pending trials, from Ax's own tables."""
    data = client._experiment.lookup_data().df
    values = {row.trial_index: row.mean for row in data[data.metric_name == "z"].itertuples()}
    T = V = out = 0
    for index, trial in client._experiment.trials.items():
        runs: list[Any] = [
            run.candidate_metadata_by_arm_signature or {} for run in trial.generator_runs
        ]
        stored = [found[KEY] for run in runs for found in run.values() if KEY in found]
        status = trial.status.name
        if not stored or not stored[0]["certified"]:
            continue
        if status == "FAILED" and index not in values:
            continue
        known = index in values and status != "RUNNING"
        T, V, out = T + 1, V + (known and values[index] > limit), out + (not known)
    return T, V, out


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search of Ax's starts from the same random numbers."""
    original = CertifiedPoints.optimize

    def optimize(self: Any, *args: Any, **kwargs: Any) -> Any:
        torch.manual_seed(0)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(CertifiedPoints, "optimize", optimize)


def model_like(other: Any, X: Tensor, Y: Tensor) -> SingleTaskGP:
    """BoTorch's model of these data, with the hyperparameters of another model."""
    bounds = torch.tensor([[0.0, 0.0], [1.0, 10.0]], dtype=torch.double)
    model = SingleTaskGP(
        X, Y, input_transform=Normalize(2, bounds=bounds), outcome_transform=Standardize(1)
    )
    model.load_state_dict(other.state_dict())
    return model.eval()


def test_candidates_and_account_of_the_bare_loop(seeded: None) -> None:
    """The bare loop keeps one constraint. Ax builds a new one for each trial."""
    client = new_client()
    trials: Any = client._experiment.trials
    known = [trials[i].arm.parameters for i in range(NUM)]
    X = torch.tensor([[p["a"], p["b"]] for p in known], dtype=torch.double)
    gains, costs = ([f(p) for p in known] for f in (gain, cost))
    bounds = torch.tensor([[0.0, 0.0], [1.0, 10.0]], dtype=torch.double)
    bare: ChanceConstraint | None = None
    for _ in range(3):
        (parameters,) = play(client, 1)
        models = ax_decisions.models_by_metric(adapter_of(client))
        Y, Z = (torch.tensor(v, dtype=torch.double).unsqueeze(-1) for v in (gains, costs))
        objective, constrained = model_like(models["y"], X, Y), model_like(models["z"], X, Z)
        if bare is None:
            bare = ChanceConstraint({"z": constrained}, limits={"z": (None, 1.0)})
        else:
            bare = bare.with_model(constrained)
        acqf: Any = type(adapter_of(client).generator._acquisition.acqf)
        with torch.no_grad():
            best = objective.posterior(X[bare.certified(X.unsqueeze(-2))]).mean.max()
        improvement = acqf(ModelListGP(objective, constrained), best, 0, {1: (None, 1.0)})
        torch.manual_seed(0)
        candidate, _, certified = optimize_chance_constrained(improvement, bare, bounds, **SEARCH)
        expected = [parameters["a"], parameters["b"]]
        assert certified and candidate[0].tolist() == pytest.approx(expected, abs=1e-5)
        x = torch.tensor([expected], dtype=torch.double)
        bare.observe(x, torch.tensor([[cost(parameters)]], dtype=torch.double), condition=False)
        X = torch.cat([X, x])
        gains.append(gain(parameters))
        costs.append(cost(parameters))
    assert bare is not None
    for own, row in zip(bare.decisions, account_of(client).decisions, strict=True):
        assert own.pop("point") == pytest.approx(row.pop("point"), abs=1e-9)
        quantile = row.pop("quantiles")["z"][1]
        assert own.pop("quantiles")["z"] == [None, pytest.approx(quantile, abs=1e-6)]
        assert own == row
    assert counted(client) == account(client) == bare.account[:3]


@pytest.mark.parametrize("weight", [1.0, -1.0])
def test_the_incumbent_is_a_mean_of_the_mixture(
    weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best mean of a single member would be better than that of the ensemble."""
    X = torch.rand(10, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    Y = (7.0 * X).sin().sum(dim=-1, keepdim=True)
    ensemble = EnsembleMapSaasSingleTaskGP(X, Y, num_taus=3)
    scales = torch.tensor([0.05, 0.5, 5.0], dtype=torch.double).view(3, 1, 1)
    ensemble.covar_module.base_kernel.lengthscale = scales.expand(3, 1, 2)
    objective = CalibratedModel(ensemble.eval(), NoCalibration())
    monkeypatch.setattr(
        ConstrainedClosedForm, "_construct_botorch_acquisition", lambda self, kind, given, _: given
    )
    searched: Any = CertifiedPoints.__new__(CertifiedPoints)
    certified = SimpleNamespace(certified=lambda points: points[:, 0, 0] < 0.7)
    searched.options, searched.X_observed = {"constraint": certified}, X
    searched._objective_weights = torch.tensor([[0.0, weight]])
    models = SimpleNamespace(models=[None, objective])
    kind = LogCalibratedConstrainedExpectedImprovement
    found = searched._construct_botorch_acquisition(kind, {}, models)["best_f"]
    members = ensemble.posterior(X[X[:, 0] < 0.7].unsqueeze(-2)).mean.squeeze()
    assert members.shape[-1] == 3
    means = weight * members.mean(dim=-1)
    assert weight * found.item() == pytest.approx(means.max().item(), rel=1e-6)


@pytest.mark.parametrize("calibrated", [False, True])
def test_ensembles_whose_data_have_a_batch_dimension(calibrated: bool) -> None:
    """By default outcomes are standardised in each of the copies of the data."""
    kind = EnsembleMapSaasSingleTaskGP
    config = ModelConfig(botorch_model_class=kind, model_options={"num_taus": 3})
    if calibrated:
        config = calibrated_model_config(model_class=kind, denoise=False)
    client = new_client(model_config=config)
    play(client, 1)
    assert counted(client) == account(client)
    assert len(account_of(client).decisions) == 1


def test_whatever_becomes_of_a_trial() -> None:
    """Trials of one call end in all ways: completed, failed, abandoned, late, without a value."""
    client = new_client(budget=100.0)
    asked = [trial for _ in range(6) for trial in client.get_next_trials(max_trials=1)]
    done, running, abandoned, failed, empty, late = asked
    assert all(decision(client, trial)["certified"] for trial in asked)
    assert counted(client) == account(client) == (6, 0, 6)
    client.complete_trial(done, {"y": 0.0, "z": 2.0})
    client.mark_trial_abandoned(abandoned)
    client.mark_trial_failed(failed)
    client.complete_trial(empty, {"y": 0.0})
    assert counted(client) == account(client) == (5, 1, 4)
    client.attach_data(late, {"y": 0.0, "z": 2.0})  # not complete yet
    assert counted(client) == account(client) == (5, 1, 4)
    client.complete_trial(late)
    assert counted(client) == account(client) == (5, 2, 3)
    client.attach_data(empty, {"z": 2.0})
    assert counted(client) == account(client) == (5, 3, 2)
    client.attach_data(running, {"z": 2.0})  # it ran out of something, and has no objective
    client.mark_trial_early_stopped(running)
    assert counted(client) == account(client) == (5, 4, 1)
    (next_one,) = client.get_next_trials(max_trials=1)
    assert next_one not in asked
    models: Any = models_by_metric(adapter_of(client))
    assert len(models["z"].train_targets) == len(models["y"].train_targets) + 1


@pytest.mark.filterwarnings("ignore:The outcomes of .* certified points are pending")
def test_candidates_of_one_call_know_of_each_other() -> None:
    """Each counts as a violation for the next candidate, although it is not a trial yet."""
    client = new_client(budget=2.0)
    play(client, 1, lambda p: {"y": gain(p), "z": 0.0})
    asked = client.get_next_trials(max_trials=4)
    # V + p - alpha T < 2 allows for three: -0.1, 0.8 and 1.7.
    assert [decision(client, trial)["certified"] for trial in asked] == [True] * 3 + [False]
    (more,) = client.get_next_trials(max_trials=1)
    assert not decision(client, more)["certified"]


def test_cards_and_recommendation_before_there_are_models() -> None:
    client = Client(random_seed=0)
    client.configure_experiment([A, B])
    client.configure_optimization("y", outcome_constraints=["z <= 1"])
    client.set_generation_strategy(chance_constrained_generation_strategy(client, struct=struct()))
    with pytest.raises(InputDataError, match="have not been observed yet"):
        recommendation(client)
    play(client, 2)
    cards: list[Any] = client.compute_analyses(
        [CertifiedTrials(), CalibrationReports(), NoiseDiagnoses()], display=False
    )
    assert "0 of 0 decisions" in cards[0].subtitle and len(cards[0].df) == 0
    assert all("run the initial trials first" in card.subtitle for card in cards[1:])


def test_stored_and_loaded(tmp_path: Path, seeded: None) -> None:
    """The same next trial, and the same books. In SQL: tests/slow/test_ax_certified_trials.py."""
    client = new_client()
    play(client, 2, at_a_time=2)  # the first time one alone, says Ax
    running = client.get_next_trials(max_trials=1)
    client.save_to_json_file(str(tmp_path / "client.json"))
    loaded = Client.load_from_json_file(str(tmp_path / "client.json"))
    assert counted(loaded) == account(loaded) == account(client) == (4, counted(client)[1], 1)
    loaded._random_seed = 0
    for trial, parameters in running.items():
        client.complete_trial(trial, outcome(parameters))
        loaded.complete_trial(trial, outcome(parameters))
    (expected,), (found,) = (each.get_next_trials(1).values() for each in (client, loaded))
    assert found == pytest.approx(expected, abs=1e-3)
    found_spec = ax_decisions.certifying_spec(loaded._generation_strategy)
    assert found_spec.generator_kwargs["acquisition_options"]["level"] == 0.9
    assert not loaded._generation_strategy.nodes_by_name["MBM"].should_deduplicate


@pytest.mark.usefixtures("not_optimised")  # the first trials, which Ax chooses by itself
def test_trials_without_rows_are_left_out() -> None:
    """The books start with the next trial; a warning counts the trials that models chose."""

    def plain(client: Client, struct: Any) -> Any:
        return choose_generation_strategy(struct, model_config=ModelConfig(name="plain"))

    client = new_client(strategy=plain)
    play(client, 2)
    with pytest.raises(InputDataError, match="chance_constrained_generation_strategy"):
        recommendation(client)
    client.set_generation_strategy(chance_constrained_generation_strategy(client, struct=struct()))
    with said("2 of 2 decisions were not recorded"):
        (first,) = client.get_next_trials(max_trials=1)
    client.complete_trial(first, {"y": 0.0, "z": 2.0})
    with said("2 of 3 decisions"):
        assert account(client) == (1, 1, 0)
    client.set_generation_strategy(
        chance_constrained_generation_strategy(client, level=0.8, struct=struct())
    )
    with said("3 of 3 decisions .* at the level 0.8"):
        client.get_next_trials(max_trials=1)


@contextmanager
def said(message: str, category: type[Warning] = CalibrationWarning) -> Iterator[None]:
    """Like ``pytest.warns``, which would also raise Ax's own warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", category)
        yield
    of_kind = [str(w.message) for w in caught if w.category is category]
    assert of_kind and all(re.search(message, each) for each in of_kind)


MIXED = (
    A,
    RangeParameterConfig("b", bounds=(0, 10), parameter_type="int"),
    ChoiceParameterConfig("c", values=["u", "v", "w"], parameter_type="str", is_ordered=False),
    RangeParameterConfig("s", bounds=(1e-3, 1), parameter_type="float", scaling="log"),
)
DISCRETE = (
    RangeParameterConfig("a", bounds=(0, 1), parameter_type="float", step_size=0.25),
    RangeParameterConfig("b", bounds=(0, 10), parameter_type="int"),
)


@pytest.mark.parametrize(
    ("parameters", "constraint"),
    [(MIXED, ("a + 0.1*b <= 1.2",)), (DISCRETE, ())],
)
def test_spaces(parameters: Sequence[Any], constraint: Sequence[str]) -> None:
    """A proposed point is in the space, meets the constraints, and is certified as it is run."""

    def evaluate(p: Any) -> dict[str, float]:
        return {"y": gain(p), "z": cost(p) - 0.1 * (p.get("c") == "w")}

    client = new_client(parameters, evaluate=evaluate, parameter_constraints=constraint)
    (parameters_,) = play(client, 1, evaluate)
    assert client._experiment.search_space.check_membership(parameters_, raise_error=True)
    stored = decision(client, NUM)
    assert stored["certified"] and stored["quantiles"]["z"][1] <= 1.0


def test_fixed_parameters_and_known_noise() -> None:
    """They are used by the search and by the model."""

    def evaluate(p: Any) -> dict[str, tuple[float, float]]:
        return {"y": (gain(p), 0.01), "z": (cost(p), 0.02)}

    client = new_client(evaluate=evaluate)
    asked = client.get_next_trials(max_trials=1, fixed_parameters={"a": 0.25})
    assert [p["a"] for p in asked.values()] == [0.25]
    model: Any = ax_decisions.models_by_metric(adapter_of(client))["z"]
    scale = model.outcome_transform.stdvs.item()
    assert model.likelihood.noise.unique().tolist() == pytest.approx([(0.02 / scale) ** 2])
    assert decision(client, NUM)["certified"]


def test_fixed_parameters_outside_of_their_bounds_are_refused() -> None:
    client = new_client()
    with pytest.raises(InputDataError, match="-3.0, outside of its bounds 0.0 and 1.0"):
        client.get_next_trials(max_trials=1, fixed_parameters={"a": -3.0})


def test_noise_that_is_known_of_some_trials() -> None:
    """Ax has NaN for the other trials, and its own model rejects NaN."""

    def evaluate(p: Any) -> dict[str, tuple[float, float | None]]:
        known = p["a"] < 0.5
        return {"y": (gain(p), 0.01 if known else None), "z": (cost(p), 0.02 if known else None)}

    client = new_client(
        evaluate=evaluate, model_config=ModelConfig(botorch_model_class=PartlyKnownNoiseGP)
    )
    play(client, 2, evaluate)
    model: Any = ax_decisions.models_by_metric(adapter_of(client))["z"]
    scale = model.outcome_transform.stdvs.item()
    known = model.likelihood.noise_covar.noise
    assert 0 < known.isnan().sum() < len(known)
    stated = known[~known.isnan()].unique().tolist()
    assert stated == pytest.approx([(0.02 / scale) ** 2])
    card: Any
    (card,) = client.compute_analyses([NoiseDiagnoses()], display=False)
    assert card.df["given"].all()
    restored = Client._from_json_snapshot(client._to_json_snapshot())
    (trial,) = restored.get_next_trials(max_trials=1)
    assert type(ax_decisions.models_by_metric(adapter_of(restored))["z"]) is PartlyKnownNoiseGP
    assert decision(restored, trial) is not None


@pytest.mark.filterwarnings("ignore:The metric '.' is infinite")
def test_infinite_values_are_left_out() -> None:
    """No model can be fitted to them; beyond a limit they are violations all the same."""
    client = new_client()
    ((trial, parameters),) = client.get_next_trials(max_trials=1).items()
    client.complete_trial(trial, {**outcome(parameters), "z": math.inf})
    with said(rf"'z' is infinite in the trials \[{trial}\]", InputDataWarning):
        (following,) = client.get_next_trials(max_trials=1)
    for name, model in ax_decisions.models_by_metric(adapter_of(client)).items():
        values: Any = model.train_targets
        assert len(values) == NUM + (name != "z") and values.isfinite().all()
    assert decision(client, following) is not None
    assert counted(client) == account(client) == (2, 1, 1)
    # Ax stores NaN in its place, which counts as a pending value.
    restored = Client._from_json_snapshot(client._to_json_snapshot())
    restored.get_next_trials(max_trials=1)
    T, V, out = account(restored)
    assert T == 3 and V + out == 3


def test_constraints_relative_to_a_baseline() -> None:
    """A trial is judged by the limits at the time of its decision."""
    baseline = {"a": 0.5, "b": 5.0}
    client = new_client(constraints=("z <= 1.2 * baseline",), baseline=baseline)
    (trial,) = client.get_next_trials(max_trials=1)
    stored = decision(client, trial)
    limit = 1.2 * cost(baseline)
    assert stored["limits"] == {"z": [None, pytest.approx(limit)]}
    client.complete_trial(trial, {"y": 0.0, "z": limit + 0.01})
    assert account(client) == (1, 1, 0)
    client.attach_data(0, {"y": 0.0, "z": 2 * cost(baseline)})  # measured again
    own = account_of(client)
    assert own.limits["z"] == (None, pytest.approx(2 * limit))
    assert own.account[:3] == (1, 1, 0)
    (row,) = own.decisions
    assert row["limits"] == stored["limits"] and row["outcomes"] == {"z": limit + 0.01}
    play(client, 1)


def test_a_share_of_the_trials_expands(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Watched(_stored.CertifiedSetExpansion):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            made.append(1)
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(_stored, "CertifiedSetExpansion", Watched)
    client = new_client(expansion_share=0.5)
    assert len(play(client, 2)) == 2 and len(made) == 1
    assert all(decision(client, NUM + i)["certified"] for i in range(2))


def test_recommendation_and_cards() -> None:
    client = new_client(baseline={"a": 0.1, "b": 1.0})
    play(client, 2)
    parameters, stated = recommendation(client)
    assert stated.certified and cost(parameters) < 1.0
    assert stated.lower < gain(parameters) < stated.upper
    assert stated.better is not None and stated.better > 0.99
    worse = recommendation(client, baseline={"a": 1.0, "b": 10.0})[1]
    assert worse.better is not None and worse.better < 0.01
    assert counted(client) == account(client)  # a recommendation is no decision
    cards: list[Any] = client.compute_analyses(
        [CertifiedTrials(), CalibrationReports(), NoiseDiagnoses()], display=False
    )
    books, reports, noises = cards
    assert list(books.df["trial_index"]) == [NUM, NUM + 1]
    assert books.df["violated"].sum() == account(client)[1]
    assert (books.df["z: upper quantile"] <= 1.0).all()
    assert books.subtitle.startswith("At a level of 0.9, 2 of 2 decisions were certified")
    assert set(reports.df["metric"]) == {"y", "z"}
    assert reports.df["coverage"].between(0, 1).all()
    assert set(noises.df["metric"]) == {"y", "z"} and not noises.df["given"].any()
    models = ax_decisions.models_by_metric(adapter_of(client))
    for metric, supported in zip(noises.df["metric"], noises.df["supported"], strict=True):
        assert supported == pytest.approx(noise_diagnosis(models[metric]).supported)


def test_the_note_of_a_recommendation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few of the sampled points are better than the recommended point."""
    spaces = [RangeParameterConfig(n, bounds=(0, 1), parameter_type="float") for n in "abcd"]

    def evaluate(p: Any) -> dict[str, float]:
        total = sum(p.values())
        return {"y": total, "z": total + 0.4 * math.sin(91.0 * total)}

    client = new_client(spaces, ["z <= 2"], evaluate)
    monkeypatch.setattr(_mixed_search, "_POOL", 8)
    monkeypatch.setattr(feasible_search, "_MAX_ITERATIONS", 100)
    _, stated = recommendation(client)
    assert "the limits of 'z' exclude them" in stated.note


def test_a_minimised_objective() -> None:
    client = new_client(objective="-y", constraints=("z >= 0.4",))
    play(client, 1)
    parameters, stated = recommendation(client)
    assert stated.certified and cost(parameters) > 0.4
    # On the border, the least gain has a large a.
    assert gain(parameters) < 0.6 and stated.lower < gain(parameters) < stated.upper


def test_cards_that_borrow_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ax's card of the frontier replaces the acquisition, and may fail to restore it."""
    client = new_client()
    play(client, 1)
    short = partial(optimize_with_nsgaii, population_size=20, max_gen=3)
    monkeypatch.setattr(ax_acquisition, "optimize_with_nsgaii", short)
    frontier = ObjectivePFeasibleFrontierPlot(num_points_to_generate=2)
    card: Any
    (card,) = client.compute_analyses([frontier], display=False)
    assert "frontier_1" in {*card.df["arm_name"]}
    play(client, 1)
    assert counted(client) == account(client) and account(client)[0] == 2
    assert cost(recommendation(client)[0]) < 1.0

    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(MultiAcquisition, "optimize", fail)
    (card,) = client.compute_analyses([frontier], display=False)
    assert "Error" in card.title
    play(client, 1)
    assert counted(client) == account(client) and account(client)[0] == 3


@pytest.mark.filterwarnings("ignore:The outcomes of .* certified points are pending")
def test_trials_that_were_never_run() -> None:
    """They can be withdrawn, even if abandoned; trials that were run cannot."""
    client = new_client(budget=2.0)
    play(client, 1)
    for _ in range(4):  # looks, of which the budget allows three
        (trial,) = client.get_next_trials(max_trials=1)
        client.mark_trial_abandoned(trial)
        assert counted(client) == account(client) == (2, counted(client)[1], 1)
        withdraw(client, trial)
        assert counted(client) == account(client) == (1, counted(client)[1], 0)
    reasons = client.summarize().set_index("trial_index")["status_reason"]
    assert reasons[trial] == "never run"
    for index in (trial, NUM, 1, 99):  # withdrawn, completed, initial, no trial
        with pytest.raises(InputDataError, match=f"Trial {index} has no decision"):
            withdraw(client, index)
    running = [*client.get_next_trials(max_trials=3)]
    note = account_of(client).note_of_outstanding()
    assert "report them by `client.complete_trial`" in note
    assert note.endswith(f"`withdraw(client, trial)`: {running}.")
    card: Any
    (card,) = client.compute_analyses([CertifiedTrials()], display=False)
    assert note in card.subtitle
    assert list(card.df.loc[card.df["open"], "trial_index"]) == running


def test_the_last_safe_parameters() -> None:
    client = new_client(constraints=("z <= 1", "z >= 0.1"))
    client.complete_trial(client.attach_trial({"a": 0.5, "b": 2.0}), {"y": 0.0, "z": 0.5})
    for outcomes in ({"y": 0.0, "z": 2.0}, {"y": 1.0, "z": 0.05}, {"y": 3.0}, {"z": math.nan}):
        client.complete_trial(client.attach_trial({"a": 0.6, "b": 2.0}), outcomes)
    client.attach_data(client.attach_trial({"a": 0.7, "b": 2.0}), {"z": 0.5})  # still running
    assert last_safe(client) == {"a": 0.5, "b": 2.0}
    client.configure_optimization("y", outcome_constraints=["z <= -9"])
    assert last_safe(client) is None


def test_the_outcome_of_a_curve() -> None:
    """It is the value that completes the trial, as in Ax, even if this value has no step."""
    client = Client()
    client.configure_experiment([A, B])
    client.configure_optimization("y", outcome_constraints=["z <= 1"])
    for last in (None, 3):
        trial = client.attach_trial({"a": 0.5, "b": 2.0})
        for step in (1, 2):
            client.attach_data(trial, {"y": 0.0, "z": 0.1 * step}, progression=step)
        client.complete_trial(trial, {"y": 0.0, "z": 2.0}, progression=last)
    means = observed_means(client._experiment)
    assert [*means.values()] == [{"y": 0.0, "z": 2.0}] * 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")
def test_spaces_that_change() -> None:
    """Decisions in the former space count; new trials are in the current space."""

    def evaluate(p: Any) -> dict[str, float]:
        return {"y": gain(p), "z": cost(p) + 0.05 * ("uvwx".index(p["c"]))}

    client = new_client((A, B, MIXED[2]), evaluate=evaluate)
    play(client, 1, evaluate)
    space = client._experiment.search_space
    changes = [
        RangeParameter("b", ParameterType.FLOAT, 2.0, 5.0),
        ChoiceParameter("c", ParameterType.STRING, list("uvwx"), False, sort_values=False),
    ]
    for changed in changes:
        space.update_parameter(changed)
        (parameters,) = play(client, 1, evaluate)
        assert space.check_membership(parameters, raise_error=True)
        assert counted(client) == account(client)
        assert space.check_membership(recommendation(client)[0], raise_error=True)
    client.configure_optimization("y", outcome_constraints=["z <= 0.9"])
    (trial,) = client.get_next_trials(max_trials=1)
    assert decision(client, trial)["limits"] == {"z": [None, 0.9]}
    assert account_of(client).num_decisions == 4


def test_a_strategy_that_is_used_again() -> None:
    """In a client with data it continues with the client's books; an empty client needs another."""
    first = new_client()
    play(first, 1)
    strategy = first._generation_strategy
    client = Client(random_seed=0)
    client.configure_experiment([A, B], name="another")
    client.configure_optimization("y", outcome_constraints=["z <= 1"])
    client.set_generation_strategy(strategy)
    with pytest.raises(DataRequiredError, match="an empty client a new strategy"):
        client.get_next_trials(max_trials=1)
    for i in range(NUM):
        parameters = {"a": i / NUM, "b": 10.0 * (5 * i % NUM) / NUM}
        client.complete_trial(client.attach_trial(parameters), outcome(parameters))
    play(client, 1)
    assert counted(client) == account(client) and account(client)[0] == 1


def in_batch(client: Client, num: int = 3, baseline: bool = False) -> BatchTrial:
    experiment = client._experiment
    (runs,) = client._generation_strategy.gen(experiment, n=num)
    batch = experiment.new_batch_trial(generator_runs=runs)
    if baseline:
        batch.add_arm(experiment.status_quo)
    return batch.mark_running(no_runner_required=True)


def reported(batch: BatchTrial, *arms: int) -> None:
    """The outcomes of some arms of a batch, attached as Ax stores them."""
    rows = [
        {"trial_index": batch.index, "arm_name": arm.name, "mean": y, "sem": math.nan}
        | {"metric_name": name, "metric_signature": name}
        for arm in (batch.arms[i] for i in arms)
        for name, y in outcome(arm.parameters).items()
    ]
    batch.experiment.attach_data(Data(df=pd.DataFrame(rows)))


def test_batches() -> None:
    """Each arm is a separate decision, with a row and outcomes."""
    client = new_client()
    play(client, 1)
    known = account(client)
    batch = in_batch(client)
    assert account(client) == (known[0] + 3, known[1], 3)
    reported(batch, 0, 2)
    batch.mark_completed()
    assert account(client)[0] == known[0] + 3 and account(client)[2] == 1
    rows = account_of(client).decisions
    for arm, row in zip(batch.arms, rows[1:], strict=True):
        assert row["point"] == pytest.approx([*arm.parameters.values()])
        expected = None if arm is batch.arms[1] else cost(arm.parameters)
        assert row["outcomes"] == {"z": pytest.approx(expected)}
    restored = Client._from_json_snapshot(client._to_json_snapshot())
    assert account(restored) == account(client)


@pytest.mark.filterwarnings("ignore:The outcomes of .* certified points are pending")
def test_an_arm_that_is_chosen_twice_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first decision about it counts, since the budget may not suffice for others."""
    client = new_client(budget=0.5)
    play(client, 1, lambda p: {"y": gain(p), "z": 0.0})
    original, chosen = MixedSpace.best, []

    def best(*args: Any) -> tuple[Tensor, bool]:
        chosen.append(original(*args))
        return chosen[0]

    monkeypatch.setattr(MixedSpace, "best", best)
    batch = in_batch(client)
    assert len(batch.arms) == 1 and account(client) == (2, 0, 1)


def test_a_baseline_in_each_batch() -> None:
    """Ax would use the baseline's value in one batch for the limits in all batches."""
    baseline = {"a": 0.5, "b": 5.0}
    client = new_client(constraints=("z <= 1.2 * baseline",), baseline=baseline)
    play(client, 1)
    batch = in_batch(client, num=1, baseline=True)
    reported(batch, 0)
    play(client, 1)
    reported(batch, 1)
    with pytest.raises(UnsupportedError, match=rf"trials \[0, {batch.index}\].*ratio"):
        client.get_next_trials(max_trials=1)
    client.configure_optimization("y", outcome_constraints=["z <= 1"])
    play(client, 1)


def test_a_batch_without_the_baseline() -> None:
    """The batch may have been measured at another time of the day than the baseline."""
    client = new_client(constraints=("z <= 1.2 * baseline",), baseline={"a": 0.5, "b": 5.0})
    play(client, 1)
    batch = in_batch(client, num=2)
    reported(batch, 0, 1)
    with pytest.raises(UnsupportedError, match=rf"trials \[{batch.index}\].*in each batch.*ratio"):
        client.get_next_trials(max_trials=1)


class TestErrors:
    def test_outcomes_that_are_stated_later(self) -> None:
        client = new_client()
        play(client, 1)
        client.configure_tracking_metrics(["w"])
        client.configure_optimization("y", outcome_constraints=["z <= 1", "w <= 1"])
        with pytest.raises(InputDataError, match=r"\['w'\] have not been observed"):
            client.get_next_trials(max_trials=1)
        client.configure_optimization("y", outcome_constraints=["z + w <= 1"])
        with pytest.raises(UnsupportedError, match="one metric each"):
            for trial in range(NUM):
                client.attach_data(trial, {"w": 0.1 * trial})
            client.get_next_trials(max_trials=1)
        client.configure_optimization("y")
        with pytest.raises(InputDataError, match="no outcome constraints any more"):
            client.get_next_trials(max_trials=1)

    @pytest.mark.parametrize(
        ("constraints", "options", "error", "match"),
        [
            ((), {}, InputDataError, "has no constraints"),
            (("w + z <= 1",), {}, UnsupportedError, "one metric each"),
            (("z <= 1.1 * baseline",), {}, UnsupportedError, "attach_baseline"),
            (("z <= 1",), {"level": 1.0}, InputDataError, "level"),
            (("z <= 1",), {"metric_configs": {"z": 3}}, InputDataError, "metric_configs"),
            (("z <= 1",), {"metric_configs": ModelConfig()}, InputDataError, "a Mapping"),
            (("z <= 1",), {"model_config": calibrated_model_config()}, UnsupportedError, "denoise"),
            (
                ("z <= 1",),
                {"struct": replace(struct(), simplify_parameter_changes=True)},
                UnsupportedError,
                "simplify",
            ),
        ],
    )
    def test_arguments(
        self, constraints: Any, options: Any, error: type[Exception], match: str
    ) -> None:
        client = Client()
        client.configure_experiment([A, B])
        client.configure_optimization("y", outcome_constraints=constraints)
        with pytest.raises(error, match=match):
            chance_constrained_generation_strategy(client, **options)

    def test_wrong_clients_and_baselines(self) -> None:
        client: Any = new_client()
        for baseline in ({"a": 0.1}, {"a": 0.1, "b": "much"}):
            with pytest.raises(InputDataError, match=r"`baseline` .* \['a', 'b'\] a value"):
                recommendation(client, baseline=baseline)
        for call in (recommendation, last_safe, partial(withdraw, trial_index=0)):
            with pytest.raises(InputDataError, match="`client` must be a Client"):
                call(client._experiment)

    def test_several_objectives(self) -> None:
        client = new_client(objective="y, x", evaluate=lambda p: {**outcome(p), "x": p["a"]})
        with pytest.raises(UnsupportedError, match="one metric as the objective"):
            recommendation(client)
