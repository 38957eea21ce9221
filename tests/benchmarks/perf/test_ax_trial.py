"""The measurement of a trial in Ax times what it claims to time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("ax")

from ax.generators.torch.botorch_modular.acquisition import Acquisition

from benchmarks.perf.ax_trial import (
    NUM_TRIALS,
    calibrated_strategy,
    plain_strategy,
    started_client,
    trial_of,
)
from benchmarks.perf.measure import COMPARISONS, Workload
from botorch_calib import LogCalibratedConstrainedExpectedImprovement
from botorch_calib.integrations.ax import ReplayedModel


def test_it_is_registered() -> None:
    assert "calibrated / plain trial in Ax, one constraint" in COMPARISONS


@pytest.mark.parametrize("strategy", [calibrated_strategy, plain_strategy])
def test_a_trial_fits_the_models_and_chooses(
    monkeypatch: pytest.MonkeyPatch, strategy: Any
) -> None:
    def optimize(self: Any, n: int, **kwargs: Any) -> Any:
        points = torch.rand(n, 2, dtype=torch.double)
        return points, self.acqf(points.unsqueeze(-2)).detach().view(-1), torch.ones(n)

    monkeypatch.setattr(Acquisition, "optimize", optimize)
    work = Workload(torch.device("cpu"), 30)
    client = started_client(work, strategy)
    trial = trial_of(client)
    for repetition in range(2):
        trial(repetition)
    assert len(client._experiment.trials) == NUM_TRIALS + 2
    adapter: Any = client._generation_strategy.adapter
    generator = adapter.generator
    calibrated = strategy is calibrated_strategy
    model = generator.surrogate.model
    assert len(generator.surrogate.Xs[0]) == NUM_TRIALS + 1
    parts = getattr(model, "models", [model])  # plain ones are one model with two outputs
    assert all((type(part) is ReplayedModel) is calibrated for part in parts)
    closed_form = type(generator._acquisition.acqf) is LogCalibratedConstrainedExpectedImprovement
    assert closed_form is calibrated
