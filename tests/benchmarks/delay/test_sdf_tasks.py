"""The tasks of suite `sdf_tasks`: their number, their contexts, and their table."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC
from torch import Tensor

from benchmarks.delay.replicate import Domain
from benchmarks.delay.sdf_tasks import SvmTasks, classifications, meta_features, settings
from benchmarks.delay.value_tables import ContextualTableEvaluator
from benchmarks.suites import get_suite


@pytest.fixture(scope="module")
def choices() -> Tensor:
    return SvmTasks().choices()


def test_settings_and_inputs_are_as_many_as_published(choices: Tensor) -> None:
    assert len(settings()) == 288
    assert choices.shape == (13 * 288, 6 + 6)
    assert len(choices.unique(dim=0)) == len(choices)
    assert (choices[:, :3].sum(dim=-1) == 1.0).all()


def test_contexts_come_in_the_order_of_the_last_meta_feature(choices: Tensor) -> None:
    (task,) = get_suite("sdf_tasks").problems
    evaluator = ContextualTableEvaluator(choices, torch.arange(len(choices)).double())
    domain = Domain.of(task.objective, evaluator)
    assert domain.bounds.shape == (2, 12)
    assert domain.contexts == tuple(sorted(meta_features(t)[-1] for t in classifications()))
    for number, context in enumerate(domain.contexts):
        own = domain.choices_in(context)
        assert own is not None
        expected = torch.tensor(meta_features(classifications()[number]), dtype=torch.double)
        assert torch.equal(own[:, 6:], expected.expand(288, -1))
        # Values count upwards, so the best of a task is its last one.
        assert evaluator.optimal_for(number) == 288 * (number + 1) - 1


def test_a_value_by_another_computation() -> None:
    X, y = load_iris(return_X_y=True)
    X, y = X[50:, :2], y[50:]
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    (task,) = (t for t in classifications() if t.features.shape == (100, 2))
    assert np.allclose(task.features, X)
    parts = train_test_split(X, y, test_size=0.3, random_state=0, stratify=y)
    expected = SVC(C=4.0, gamma=0.5).fit(parts[0], parts[2]).score(parts[1], parts[3])
    found = SvmTasks().accuracy(task, {"kernel": "rbf", "C": 4.0, "gamma": 0.5})
    assert found == pytest.approx(expected)
