"""The classifier of the demonstration's part on decisions, compared with scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics import precision_score, recall_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.demo.screening import Screening


@pytest.fixture(scope="module")
def screening() -> Screening:
    return Screening.load()


@pytest.mark.parametrize("log_penalty", [-1.0, 0.3, 3.0])
def test_scores_are_those_of_scikit_learn(screening: Screening, log_penalty: float) -> None:
    path = screening.train(np.random.default_rng(3))
    model = make_pipeline(StandardScaler(), RidgeClassifier(alpha=10.0**log_penalty))
    expected = model.fit(path.training, path.labels).decision_function(path.judged)
    np.testing.assert_allclose(path.scores(log_penalty), expected, rtol=1e-9, atol=1e-11)


def test_a_trial_counts_what_scikit_learn_does(screening: Screening) -> None:
    x = torch.tensor([1.0, -0.2], dtype=torch.double)
    trial = screening.try_setting(x, np.random.default_rng(5))
    path = screening.train(np.random.default_rng(5))
    alarms = path.scores(1.0) > -0.2
    assert trial.missed == pytest.approx(1.0 - recall_score(path.malignant, alarms))
    assert trial.precision == pytest.approx(precision_score(path.malignant, alarms))
    # The binomial variance with one more case of either kind.
    num = path.malignant.sum()
    rate = (trial.missed * num + 1.0) / (num + 2.0)
    assert trial.reported_variance == pytest.approx(rate * (1.0 - rate) / num)
    assert trial == screening.try_setting(x, np.random.default_rng(5))
    assert trial != screening.try_setting(x, np.random.default_rng(6))
