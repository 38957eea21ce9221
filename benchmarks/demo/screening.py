"""The problem of the part on decisions: a classifier of tumours that must not miss too many.

The data are scikit-learn's breast cancer data: 569 records, 212 of them malignant. A setting
consists of the penalty of a ridge classifier, as ``log10``, and the threshold of its score above
which it raises an alarm. To try a setting, a classifier is trained on random records and tested on
all others. The missed rate, the share of malignant records without an alarm, has a limit. The
precision, the share of alarms that are right, is maximised.

The missed rate is reported with its binomial standard error, which leaves out that the classifier
depends on the random training records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor

NUM_TRAINING = 60
LOG_PENALTIES = np.linspace(-1.0, 3.0, 17)
THRESHOLDS = np.linspace(-0.6, 0.0, 25)
BOUNDS = torch.tensor(
    [[LOG_PENALTIES[0], THRESHOLDS[0]], [LOG_PENALTIES[-1], THRESHOLDS[-1]]], dtype=torch.double
)
# All settings, `n x 2`; thresholds vary fastest.
SETTINGS = torch.cartesian_prod(torch.from_numpy(LOG_PENALTIES), torch.from_numpy(THRESHOLDS))


@dataclass(frozen=True)
class Trial:
    """The outcomes of a setting: the missed rate with its reported variance, and the precision."""

    missed: float
    reported_variance: float
    precision: float


@dataclass(frozen=True)
class Truth:
    """Averages over draws of the training records, by penalty and threshold.

    ``violating`` is the probability that the missed rate is above the limit, and ``precision`` is
    the expected precision.
    """

    violating: np.ndarray
    precision: np.ndarray

    def best_precision(self, risk: float) -> float:
        """The largest precision of settings that violate with at most ``risk``; NaN if none do."""
        found = self.precision[self.violating <= risk]
        return float(found.max()) if len(found) else math.nan


@dataclass(frozen=True)
class Screening:
    """The records: ``features`` are ``n x d``, ``malignant`` are ``n`` booleans."""

    features: np.ndarray
    malignant: np.ndarray

    @classmethod
    def load(cls) -> Screening:
        """Load the records from scikit-learn, where class 0 is malignant."""
        features, labels = load_breast_cancer(return_X_y=True)
        return cls(features, labels == 0)

    def try_setting(self, x: Tensor, rng: np.random.Generator) -> Trial:
        """Train at ``x`` (length 2) on a random part of the records and test on the rest."""
        log_penalty, threshold = x.tolist()
        path = self.train(rng)
        alarms = path.scores(log_penalty) > threshold
        hits, num_malignant = int(alarms[path.malignant].sum()), int(path.malignant.sum())
        num_missed = num_malignant - hits
        # One more case of either kind, so that a rate of zero is not reported as certain.
        rate = (num_missed + 1) / (num_malignant + 2)
        return Trial(
            missed=num_missed / num_malignant,
            reported_variance=rate * (1.0 - rate) / num_malignant,
            precision=hits / max(int(alarms.sum()), 1),
        )

    def train(self, rng: np.random.Generator) -> RidgePath:
        """Classifiers for all penalties, trained on the same random records."""
        chosen = np.zeros(len(self.malignant), dtype=bool)
        chosen[rng.choice(len(chosen), NUM_TRAINING, replace=False)] = True
        return RidgePath(
            self.features[chosen],
            np.where(self.malignant[chosen], 1.0, -1.0),
            self.features[~chosen],
            self.malignant[~chosen],
        )

    def truth(self, limit: float, num_draws: int = 400, seed: int = 0) -> Truth:
        rng = np.random.default_rng(seed)
        shape = len(LOG_PENALTIES), len(THRESHOLDS)
        violating, precision = np.zeros(shape), np.zeros(shape)
        for _ in range(num_draws):
            path = self.train(rng)
            for row, log_penalty in enumerate(LOG_PENALTIES):
                scores = path.scores(log_penalty)
                missed = count_at_most(scores[path.malignant], THRESHOLDS)
                passed = count_at_most(scores[~path.malignant], THRESHOLDS)
                hits = path.malignant.sum() - missed
                alarms = len(scores) - missed - passed
                violating[row] += missed / path.malignant.sum() > limit
                precision[row] += hits / np.maximum(alarms, 1)
        return Truth(violating / num_draws, precision / num_draws)


@dataclass(frozen=True)
class RidgePath:
    """Ridge classifiers of standardised features, with an intercept, for all penalties at once.

    With centred features ``Z = U S V'`` and labels of -1 and 1, scores are
    ``z V S (S^2 + penalty)^-1 U' y`` plus the mean label, as by scikit-learn's ``RidgeClassifier``
    after a ``StandardScaler``. The factorisation does not depend on the penalty.

    Args:
        training: Features ``n x d`` of the training records.
        labels: Labels ``n`` of the training records, -1 or 1.
        judged: Features ``m x d`` of the test records.
        malignant: Whether each test record is malignant, ``m`` booleans.
    """

    training: np.ndarray
    labels: np.ndarray
    judged: np.ndarray
    malignant: np.ndarray

    @cached_property
    def _factors(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        mean, deviation = self.training.mean(axis=0), self.training.std(axis=0)
        scale = np.where(deviation > 0.0, deviation, 1.0)
        U, S, Vt = np.linalg.svd((self.training - mean) / scale, full_matrices=False)
        return (self.judged - mean) / scale @ Vt.T, S, U.T @ (self.labels - self.labels.mean())

    def scores(self, log_penalty: float) -> np.ndarray:
        """Scores ``m`` of the test records, which are larger for malignant records."""
        projected, S, coefficients = self._factors
        weights = S / (S**2 + 10.0**log_penalty) * coefficients
        return np.asarray(projected @ weights + self.labels.mean())


def count_at_most(values: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """The number of values that do not exceed each threshold."""
    return np.searchsorted(np.sort(values), thresholds, side="right")
