"""Delay-aware proposals in Ax: pending, abandoned and failed trials, out of order, stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("ax")

from ax.adapter.cross_validation import cross_validate
from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from ax.api.utils.structs import GenerationStrategyDispatchStruct
from botorch.exceptions.errors import InputDataError, UnsupportedError
from torch import Tensor

from botorch_calib import (
    CalibratedPosterior,
    CensoredDelayModel,
    DelayedUpperConfidenceBound,
    OnlineConformal,
)
from botorch_calib.acquisition import delayed, thompson
from botorch_calib.integrations.ax import (
    PendingAwareModel,
    calibrated_model_config,
    delay_aware_generation_strategy,
)
from tests.integrations.test_ax import complete, hill, quiet, short_search

__all__ = ["quiet", "short_search"]  # fixtures

NUM_DESIGNED = 4
NUM_INITIAL = NUM_DESIGNED + 1
PARAMETERS = (
    RangeParameterConfig(name="a", parameter_type="float", bounds=(0, 1)),
    RangeParameterConfig(name="b", parameter_type="float", bounds=(0, 10)),
)
KINDS = ChoiceParameterConfig(name="c", parameter_type="str", values=["u", "v"], is_ordered=False)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Optimization failed:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::botorch_calib.exceptions.CalibrationWarning"),
]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[DelayedUpperConfidenceBound]:
    """The acquisition functions that Ax builds, in order."""
    found: list[DelayedUpperConfidenceBound] = []
    original = delayed.DelayedUpperConfidenceBound.__init__

    def watched(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        found.append(self)

    monkeypatch.setattr(delayed.DelayedUpperConfidenceBound, "__init__", watched)
    return found


def new_client(
    imputation: str = "censor", objective: str = "y", parameters: Any = PARAMETERS, **options: Any
) -> Client:
    client = Client(random_seed=0)
    client.configure_experiment(parameters=parameters)
    client.configure_optimization(objective=objective)
    struct = GenerationStrategyDispatchStruct(
        method="custom", initialization_budget=NUM_DESIGNED, initialization_random_seed=0
    )
    client.set_generation_strategy(
        delay_aware_generation_strategy(client, imputation, struct=struct, **options)
    )
    return client


def start(client: Client, sign: float = 1.0) -> None:
    """Complete the initial trials: the centre, which Ax adds by itself, and a design."""
    while (missing := NUM_INITIAL - len(client._experiment.trials)) > 0:
        for trial, parameters in client.get_next_trials(max_trials=missing).items():
            complete(client, trial, {"y": sign * hill(parameters)})


def points(X: Tensor) -> set[tuple[float, ...]]:
    return {tuple(round(value, 6) for value in row) for row in X.tolist()}


def test_what_is_pending(made: list[DelayedUpperConfidenceBound]) -> None:
    """Running and abandoned trials are pending; failed trials are not."""
    client = new_client()
    start(client)
    asked = client.get_next_trials(max_trials=3)
    running, abandoned, failed = asked
    client.mark_trial_abandoned(abandoned)
    client.mark_trial_failed(failed)
    client.get_next_trials(max_trials=1)
    X = made[-1].X_pending
    assert X is not None
    expected = [[asked[trial]["a"], asked[trial]["b"]] for trial in (running, abandoned)]
    assert points(X) == points(torch.tensor(expected, dtype=torch.double))


@pytest.mark.parametrize(("mark", "is_repeated"), [("failed", True), ("abandoned", False)])
def test_a_failed_point_is_asked_again_and_an_abandoned_one_is_not(
    mark: str, is_repeated: bool
) -> None:
    """The documentation says so, and which state to use."""
    client = new_client("hallucinate")
    start(client)
    asked = []
    for _ in range(2):
        ((trial, parameters),) = client.get_next_trials(max_trials=1).items()
        getattr(client, f"mark_trial_{mark}")(trial)
        asked.append([parameters["a"], parameters["b"]])
    assert (asked[0] == pytest.approx(asked[1], abs=1e-3)) == is_repeated


def test_pending_trials_are_censored_by_the_worst_value(
    made: list[DelayedUpperConfidenceBound],
) -> None:
    client = new_client(objective="-y")
    start(client)
    client.get_next_trials(max_trials=2)
    model: Any = made[-1]._pending_model
    assert isinstance(model, CensoredDelayModel)
    assert model.imputation == "censor"
    Y = model.model.train_targets  # Ax has standardised them
    assert model.censor_value == pytest.approx(Y.max().item())
    assert len(model.X_pending) == 1  # the first trial of the batch, when the second is chosen


def test_minimisation_agrees_with_maximisation() -> None:
    asked = []
    for objective, sign in (("y", 1.0), ("-y", -1.0)):
        client = new_client(objective=objective)
        start(client, sign)
        asked.append([tuple(p.values()) for p in client.get_next_trials(max_trials=3).values()])
    for first, second in zip(*asked, strict=True):
        assert first == pytest.approx(second, abs=1e-4)


@pytest.mark.parametrize(
    ("imputation", "calibrated", "acquisition", "num_trials", "gap"),
    [
        ("censor", False, "ucb", 25, 0.01),
        ("hallucinate", True, "ucb", 15, 0.01),
        # The abandoned trial, near the maximum, stays so.
        ("censor", True, "ts", 20, 0.03),
    ],
)
@pytest.mark.slow
def test_trials_that_finish_out_of_order(
    imputation: str, calibrated: bool, acquisition: str, num_trials: int, gap: float
) -> None:
    """Three at a time, one abandoned and one failed."""
    config = calibrated_model_config(OnlineConformal, alpha=0.2) if calibrated else None
    client = new_client(imputation, calibrated=config, acquisition=acquisition)
    start(client)
    running = dict(client.get_next_trials(max_trials=3))
    done = []
    for number in range(NUM_INITIAL, num_trials):
        trial = max(running) if number % 2 else min(running)
        parameters = running.pop(trial)
        if number == 8:
            client.mark_trial_abandoned(trial)
        elif number == 10:
            client.mark_trial_failed(trial)
        else:
            client.complete_trial(trial, {"y": hill(parameters)})
            done.append(hill(parameters))
        running.update(client.get_next_trials(max_trials=1))
    everything: Any = client._experiment.trials.values()
    trials = [trial for trial in everything if not trial.status.is_failed]
    arms = [arm.name for trial in trials for arm in trial.arms]
    assert len(set(arms)) == len(arms)  # no point twice
    assert max(done) > -gap


def test_draws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each trial has another draw, even in a loaded run."""
    seeds: list[int] = []
    original = thompson.draw_path

    def watched(model: Any, nu: Tensor, seed: int) -> Any:
        assert nu == 1.0
        seeds.append(seed)
        posterior = model.posterior(torch.full((1, 2), 0.5, dtype=torch.double))
        assert isinstance(posterior, CalibratedPosterior)
        return original(model, nu, seed)

    monkeypatch.setattr(thompson, "draw_path", watched)
    config = calibrated_model_config(OnlineConformal, alpha=0.2)
    client = new_client("hallucinate", acquisition="ts", calibrated=config)
    start(client)
    for num in range(1, 3):
        asked = client.get_next_trials(max_trials=2)
        assert len({tuple(parameters.values()) for parameters in asked.values()}) == 2
        # A new pending point needs a new draw.
        assert len(set(seeds)) >= 2 * num
        for trial, parameters in asked.items():
            complete(client, trial, {"y": hill(parameters)})
        client.save_to_json_file(str(tmp_path / "run.json"))
        client = Client.load_from_json_file(str(tmp_path / "run.json"))


def test_predictions_know_nothing_of_what_is_pending() -> None:
    client = new_client(calibrated=calibrated_model_config(OnlineConformal, alpha=0.2))
    start(client)
    client.get_next_trials(max_trials=1)
    adapter: Any = client._generation_strategy.adapter
    model: Any = adapter.generator.surrogate.model
    assert type(model) is PendingAwareModel and len(model.X_pending) == 0
    X = torch.rand(3, 1, 2, dtype=torch.double)
    posterior: Any = model.posterior(X)
    torch.testing.assert_close(posterior.mean, model.model.posterior(X).mean)
    assert len(cross_validate(adapter)) == NUM_INITIAL


def test_mixed_parameters() -> None:
    client = new_client(parameters=(*PARAMETERS, KINDS))
    start(client)
    assert {p["c"] for p in client.get_next_trials(max_trials=4).values()} <= {"u", "v"}


class TestErrors:
    def test_other_problems(self) -> None:
        for objective, constraints in (("y, z", ()), ("y + z", ()), ("y", ("z <= 1",))):
            client = Client()
            client.configure_experiment(parameters=PARAMETERS)
            client.configure_optimization(objective=objective, outcome_constraints=constraints)
            with pytest.raises(UnsupportedError, match="calibrated_generation_strategy"):
                delay_aware_generation_strategy(client)

    def test_settings(self) -> None:
        for name, value in (("imputation", "none"), ("beta", -1.0), ("acquisition", "ei")):
            with pytest.raises(InputDataError, match=name):
                new_client(**{name: value})  # type: ignore[arg-type]

    def test_draws_of_observations(self) -> None:
        config = calibrated_model_config(OnlineConformal, alpha=0.2, denoise=False)
        with pytest.raises(UnsupportedError, match="acquisition"):
            new_client(acquisition="ts", calibrated=config)
        new_client(acquisition="ucb", calibrated=config)
