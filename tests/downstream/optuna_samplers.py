"""Our samplers, as Optuna has those tested that others write."""

from collections.abc import Callable

import pytest
from optuna.samplers import BaseSampler
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    MultiObjectiveSamplerTestCase,
    RelativeSamplerTestCase,
)

from botorch_calib.integrations.optuna_decisions import ChanceConstrainedSampler
from botorch_calib.integrations.optuna_delays import DelayAwareSampler


class TestDelayAwareSampler(
    BasicSamplerTestCase, RelativeSamplerTestCase, MultiObjectiveSamplerTestCase
):
    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return lambda: DelayAwareSampler(n_startup_trials=0, num_restarts=2, raw_samples=32)


class TestChanceConstrainedSampler(BasicSamplerTestCase, MultiObjectiveSamplerTestCase):
    """Without a constraint it refuses to decide, so what follows are its first trials."""

    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return lambda: ChanceConstrainedSampler(n_startup_trials=200)
