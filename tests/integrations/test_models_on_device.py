"""Ax and Optuna model on a given device that is not PyTorch's default device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("ax")
pytest.importorskip("optuna_integration")

import optuna
from ax.api.client import Client
from ax.api.utils.structs import GenerationStrategyDispatchStruct
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from optuna_integration import BoTorchSampler
from torch import Tensor

from botorch_calib import LocalizedConformal, QuantileRecalibrator
from botorch_calib.integrations.ax import (
    calibrated_generation_strategy,
    calibrated_model_config,
    delay_aware_generation_strategy,
)
from botorch_calib.integrations.optuna import calibrated_candidates_func
from botorch_calib.integrations.optuna_delays import DelayAwareSampler
from tests.integrations.test_ax import (
    CONTINUOUS,
    NUM_INITIAL,
    adapter_of,
    hill,
    model_of,
    quiet,
    short_search,
)

__all__ = ["quiet", "short_search"]  # fixtures

pytestmark = [
    pytest.mark.device(is_default=False),
    pytest.mark.filterwarnings("ignore:Optimization failed:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::botorch_calib.exceptions.CalibrationWarning"),
]


def configured(constraints: tuple[str, ...] = ()) -> Client:
    client = Client(random_seed=0)
    client.configure_experiment(parameters=CONTINUOUS)
    client.configure_optimization(objective="y", outcome_constraints=constraints)
    return client


def struct(device: torch.device) -> GenerationStrategyDispatchStruct:
    return GenerationStrategyDispatchStruct(
        method="custom",
        initialization_budget=NUM_INITIAL,
        initialization_random_seed=0,
        torch_device=str(device),
    )


def play_on(client: Client, device: torch.device) -> None:
    """Run trials one by one, then three at a time; the last model is on the device."""
    for at_a_time in (*[1] * (NUM_INITIAL + 1), 3):
        for index, parameters in client.get_next_trials(max_trials=at_a_time).items():
            client.complete_trial(index, {"y": hill(parameters), "cost": float(parameters["a"])})
    assert adapter_of(client).device == device
    X = torch.full((3, 2), 0.5, dtype=torch.double, device=device)
    assert model_of(client).posterior(X).mean.device.type == device.type


@pytest.mark.parametrize("constraints", [(), ("cost <= 0.5",)])
def test_ax(constraints: tuple[str, ...], device: torch.device) -> None:
    client = configured(constraints)
    client.set_generation_strategy(
        calibrated_generation_strategy(
            client, calibrated_model_config(QuantileRecalibrator), struct=struct(device)
        )
    )
    play_on(client, device)


@pytest.mark.parametrize("acquisition", ["ucb", "ts"])
def test_ax_while_trials_are_pending(acquisition: str, device: torch.device) -> None:
    client = configured()
    client.set_generation_strategy(
        delay_aware_generation_strategy(client, struct=struct(device), acquisition=acquisition)
    )
    play_on(client, device)


def play_optuna(sampler: BoTorchSampler) -> None:
    def objective(trial: optuna.Trial) -> float:
        return hill({"a": trial.suggest_float("a", 0, 1), "b": trial.suggest_float("b", 0, 10)})

    study = optuna.create_study(sampler=sampler, direction="maximize")
    study.optimize(objective, n_trials=NUM_INITIAL + 3)
    assert study.best_value > -0.5


def recording(seen: set[str]) -> Callable[[Tensor, Tensor], SingleTaskGP]:
    """A fit that records the device of the data."""

    def fit(X: Tensor, Y: Tensor) -> SingleTaskGP:
        seen.update((X.device.type, Y.device.type))
        return SingleTaskGP(X, Y, outcome_transform=Standardize(1))

    return fit


def test_optuna(device: torch.device) -> None:
    seen: set[str] = set()
    candidates = calibrated_candidates_func(LocalizedConformal(0.2), fit=recording(seen))
    play_optuna(
        BoTorchSampler(
            candidates_func=candidates, n_startup_trials=NUM_INITIAL, seed=0, device=device
        )
    )
    assert seen == {device.type}


@pytest.mark.parametrize("calibrator", [None, LocalizedConformal(0.2)])
def test_optuna_while_trials_are_pending(
    calibrator: LocalizedConformal | None, device: torch.device
) -> None:
    seen: set[str] = set()
    play_optuna(
        DelayAwareSampler(
            calibrator=calibrator,
            fit=recording(seen),
            n_startup_trials=NUM_INITIAL,
            seed=0,
            device=device,
        )
    )
    assert seen == {device.type}
