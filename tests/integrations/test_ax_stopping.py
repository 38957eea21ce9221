"""Ax's global stopping, by what is left to gain."""

from typing import Any

import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError

pytest.importorskip("ax")
from ax.api.client import Client  # noqa: E402
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig  # noqa: E402
from ax.api.protocols import IRunner  # noqa: E402
from ax.orchestration.orchestrator import Orchestrator, OrchestratorOptions  # noqa: E402

from botorch_calib.integrations.ax_stopping import (  # noqa: E402
    RemainingGainStoppingStrategy,
)


def client_with(
    objective: str = "-cost", limits: list[str] | None = None, discrete: bool = False, num: int = 12
) -> Client:
    client = Client(random_seed=0)
    parameters: list = [RangeParameterConfig("x", (-2.0, 3.0), "float")]
    if discrete:
        parameters.append(ChoiceParameterConfig("kind", ["a", "b", "c"], "str", is_ordered=False))
    client.configure_experiment(parameters, name="stopping")
    client.configure_optimization(objective, outcome_constraints=limits)
    for i in range(num):
        values: dict[str, Any] = {"x": -2.0 + 5.0 * ((0.618 * i) % 1.0)}
        if discrete:
            values["kind"] = "abc"[i % 3]
        index = client.attach_trial(values)
        cost = 1000.0 * ((values["x"] - 1.0) ** 2 + (values.get("kind", "b") != "b"))
        client.complete_trial(
            index, {"cost": cost, "other": float(i)} if limits else {"cost": cost}
        )
    return client


def test_it_stops_in_units_of_the_metric() -> None:
    client = client_with()
    strategy = RemainingGainStoppingStrategy(eps=300.0, min_trials=6)
    stop, message = strategy.should_stop_optimization(client)
    assert stop and "'x'" in message
    assert strategy.recommended is not None and strategy.gain is not None
    assert abs(strategy.recommended["x"] - 1.0) < 0.3
    again = RemainingGainStoppingStrategy(eps=0.5 * strategy.gain.bound(), min_trials=6)
    assert not again.should_stop_optimization(client)[0]
    assert again.gain is not None
    torch.testing.assert_close(again.gain.gains, strategy.gain.gains)
    waiting = RemainingGainStoppingStrategy(eps=300.0, min_trials=13)
    assert not waiting.should_stop_optimization(client)[0] and waiting.gain is None


def test_the_orchestrator_asks_it() -> None:
    client = client_with()
    client.configure_generation_strategy()
    client.configure_runner(IRunner())
    orchestrator = Orchestrator(
        client._experiment,
        client._generation_strategy,
        OrchestratorOptions(
            global_stopping_strategy=RemainingGainStoppingStrategy(eps=300.0, min_trials=6)
        ),
    )
    assert orchestrator._should_stop_due_to_global_stopping_strategy()[0]


def test_a_space_with_choices() -> None:
    strategy = RemainingGainStoppingStrategy(eps=1e-6, min_trials=6, delta=0.2, num_paths=16)
    stop, _ = strategy.should_stop_optimization(client_with(discrete=True, num=24))
    assert not stop and strategy.recommended is not None
    assert strategy.recommended["kind"] == "b" and abs(strategy.recommended["x"] - 1.0) < 0.5


def test_what_is_not_supported() -> None:
    with pytest.raises(UnsupportedError, match="one objective without constraints"):
        RemainingGainStoppingStrategy(eps=1.0, min_trials=2).should_stop_optimization(
            client_with(limits=["other <= 3"])
        )
    with pytest.raises(InputDataError, match="`eps`"):
        RemainingGainStoppingStrategy(eps=0.0, min_trials=2)
