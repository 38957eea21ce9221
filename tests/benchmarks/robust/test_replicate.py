"""The loop with contexts, against values computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.problems import ThreeHumpCamel
from benchmarks.robust.replicate import reference_contexts, replicate, tasks
from botorch_calib.test_functions import ContextShift
from tests.benchmarks.robust.toys import CAMEL, STARTED, Scripted


def camel(x: float, c: float) -> float:
    return -(2 * x**2 - 1.05 * x**4 + x**6 / 6 + x * c + c**2)


def test_replicate_by_hand() -> None:
    result = replicate(CAMEL, Scripted(path=(0.0, 1.0, -0.5, 0.0)), seed=0)
    X = np.array(result.X)
    assert X.shape == (6, 2)
    assert X[2:, 0].tolist() == [0.0, 1.0, -0.5, 0.0]
    assert result.f == pytest.approx([camel(x, c) for x, c in X])
    noise = np.subtract(result.y, result.f)
    assert 0.0 < abs(noise).max() < 0.05
    # The expectation of x c + c^2 is 1/3.
    expected = [camel(x, 0.0) - 1 / 3 for x in X[2:, 0]]
    regret = [-1 / 3 - value for value in expected]
    assert result.extras["expected"] == pytest.approx(expected)
    assert result.extras["regret"] == pytest.approx(regret)
    assert result.extras["cumulative_regret"] == pytest.approx(np.cumsum(regret))
    assert regret[1] > 1.0
    assert len(result.fit_seconds) == len(result.acquisition_seconds) == 4


def test_a_method_sees_the_past_and_nothing_else() -> None:
    result = replicate(CAMEL, Scripted(), seed=1)
    for step, history in enumerate(STARTED[-1].seen):
        known = CAMEL.num_initial + step
        assert history.X.tolist() == result.X[:known]
        assert history.Y.squeeze(-1).tolist() == result.y[:known]
        assert history.contexts.tolist() == [x[1:] for x in result.X[:known]]
        assert history.radius == pytest.approx(0.3 / math.sqrt(known))


def test_with_a_reference_distribution_methods_are_given_that() -> None:
    (task,) = (task for task in tasks() if task.reference)
    replicate(replace(task, num_rounds=2), Scripted(), seed=0)
    reference = ContextShift().reference_distribution(64)
    for history in STARTED[-1].seen:
        assert torch.equal(history.contexts, reference.points)
        assert history.radius == 0.1
    with pytest.raises(ValueError, match="no reference"):
        replicate(replace(CAMEL, reference=True), Scripted(), 0)
    assert reference_contexts(CAMEL, ThreeHumpCamel()) is None
