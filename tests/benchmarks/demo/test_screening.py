"""The classifier of the demonstration's part on decisions, beside scikit-learn's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics import precision_score, recall_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.demo.screening import (
    BOUNDS,
    LOG_PENALTIES,
    NUM_TRAINING,
    SETTINGS,
    THRESHOLDS,
    RidgePath,
    Screening,
    Truth,
    count_at_most,
)


@pytest.fixture(scope="module")
def screening() -> Screening:
    return Screening.load()


def test_records_are_those_of_scikit_learn(screening: Screening) -> None:
    assert screening.features.shape == (569, 30)
    assert screening.malignant.sum() == 212


@pytest.mark.parametrize("log_penalty", [-1.0, 0.3, 3.0])
def test_scores_are_those_of_scikit_learn(screening: Screening, log_penalty: float) -> None:
    path = screening.train(np.random.default_rng(3))
    model = make_pipeline(StandardScaler(), RidgeClassifier(alpha=10.0**log_penalty))
    expected = model.fit(path.training, path.labels).decision_function(path.judged)
    np.testing.assert_allclose(path.scores(log_penalty), expected, rtol=1e-9, atol=1e-11)


def test_a_feature_that_does_not_vary_is_left_alone() -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((8, 3))
    features[:, 1] = 2.0
    path = RidgePath(features, np.array([1.0, -1.0] * 4), features, np.array([True, False] * 4))
    assert np.isfinite(path.scores(0.0)).all()


def test_every_record_is_learned_from_or_judged(screening: Screening) -> None:
    path = screening.train(np.random.default_rng(0))
    assert len(path.training) == NUM_TRAINING
    assert len(path.training) + len(path.judged) == 569
    assert (path.labels > 0).sum() + path.malignant.sum() == 212


def test_a_trial_counts_what_scikit_learn_does(screening: Screening) -> None:
    x = torch.tensor([1.0, -0.2], dtype=torch.double)
    trial = screening.try_setting(x, np.random.default_rng(5))
    path = screening.train(np.random.default_rng(5))
    alarms = path.scores(1.0) > -0.2
    assert trial.missed == pytest.approx(1.0 - recall_score(path.malignant, alarms))
    assert trial.precision == pytest.approx(precision_score(path.malignant, alarms))
    # Binomial, with one more of either kind.
    num = path.malignant.sum()
    rate = (trial.missed * num + 1.0) / (num + 2.0)
    assert trial.reported_variance == pytest.approx(rate * (1.0 - rate) / num)
    assert trial == screening.try_setting(x, np.random.default_rng(5))
    assert trial != screening.try_setting(x, np.random.default_rng(6))


def test_no_alarms_at_all(screening: Screening) -> None:
    trial = screening.try_setting(torch.tensor([1.0, 50.0]), np.random.default_rng(0))
    assert trial.missed == 1.0 and trial.precision == 0.0 and trial.reported_variance > 0.0


def test_reported_errors_leave_out_what_the_training_records_do(screening: Screening) -> None:
    """Near the limit, the variance is about twice what is reported."""
    x = torch.tensor([1.5, -0.25], dtype=torch.double)
    trials = [screening.try_setting(x, np.random.default_rng(seed)) for seed in range(300)]
    reported = np.mean([trial.reported_variance for trial in trials])
    ratio = np.var([trial.missed for trial in trials]) / reported
    # A sample variance has a relative standard error of about sqrt(2 / 300), or 8 %.
    assert 1.5 < ratio < 3.0


def test_truth_is_the_average_of_trials(screening: Screening) -> None:
    truth = screening.truth(0.08, num_draws=25, seed=4)
    assert truth.violating.shape == (len(LOG_PENALTIES), len(THRESHOLDS))
    draws = np.random.default_rng(4)
    states = []
    for _ in range(25):
        states.append(draws.bit_generator.state)
        screening.train(draws)
    for index in (0, 130, 424):
        trials = []
        for state in states:
            rng = np.random.default_rng()
            rng.bit_generator.state = state
            trials.append(screening.try_setting(SETTINGS[index], rng))
        violating = np.mean([trial.missed > 0.08 for trial in trials])
        precision = np.mean([trial.precision for trial in trials])
        assert truth.violating.flat[index] == pytest.approx(violating)
        assert truth.precision.flat[index] == pytest.approx(precision)


def test_best_precision_is_that_of_settings_that_keep_the_limit() -> None:
    truth = Truth(np.array([[0.05, 0.1], [0.2, 0.9]]), np.array([[0.5, 0.6], [0.8, 0.9]]))
    assert truth.best_precision(0.1) == 0.6
    assert truth.best_precision(0.5) == 0.8
    assert math.isnan(truth.best_precision(0.01))


def test_counts_include_the_threshold_itself() -> None:
    counts = count_at_most(np.array([0.3, -1.0, 0.3, 2.0]), np.array([-2.0, 0.3, 5.0]))
    assert counts.tolist() == [0, 3, 4]


def test_settings_are_a_grid_over_the_box() -> None:
    assert SETTINGS.shape == (len(LOG_PENALTIES) * len(THRESHOLDS), 2)
    assert torch.equal(SETTINGS.amin(dim=0), BOUNDS[0])
    assert torch.equal(SETTINGS.amax(dim=0), BOUNDS[1])
