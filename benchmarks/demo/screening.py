"""A classifier of tumours that must not miss too many: the problem of the part on decisions.

scikit-learn's breast cancer data: 569 records, 212 of them malignant. A setting is the penalty of a
ridge classifier, as ``log10``, and the threshold from which its score raises an alarm. To try a
setting, a classifier is trained on some records, drawn at random, and judged on all others: by the
rate of malignant ones that it misses, which has a limit, and by its precision, the share of
alarms that are right, which shall be large.

The rate comes with its standard error, as a report would state it: that of counting the records
judged (binomial). It leaves out that another draw of the training records gives another classifier.
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
# All settings, `n x 2`, thresholds varying fastest.
SETTINGS = torch.cartesian_prod(torch.from_numpy(LOG_PENALTIES), torch.from_numpy(THRESHOLDS))


@dataclass(frozen=True)
class Trial:
    """What is measured at a setting: the rate missed with its reported variance, and precision."""

    missed: float
    reported_variance: float
    precision: float


@dataclass(frozen=True)
class Truth:
    """What settings do on average over draws of the training records, by penalty and threshold.

    ``violating`` is the probability that the rate missed is above the limit, ``precision`` the
    expected one.
    """

    violating: np.ndarray
    precision: np.ndarray

    def best_precision(self, risk: float) -> float:
        """The largest expected precision of a setting that violates so seldom; NaN if none does."""
        found = self.precision[self.violating <= risk]
        return float(found.max()) if len(found) else math.nan


@dataclass(frozen=True)
class Screening:
    """The records: ``features`` are ``n x d``, ``malignant`` are ``n`` booleans."""

    features: np.ndarray
    malignant: np.ndarray

    @classmethod
    def load(cls) -> Screening:
        """From scikit-learn, where class 0 is malignant."""
        features, labels = load_breast_cancer(return_X_y=True)
        return cls(features, labels == 0)

    def try_setting(self, x: Tensor, rng: np.random.Generator) -> Trial:
        """Train at ``x`` (length 2) on a random part of the records and judge on the rest."""
        log_penalty, threshold = x.tolist()
        path = self.train(rng)
        alarms = path.scores(log_penalty) > threshold
        hits, num_malignant = int(alarms[path.malignant].sum()), int(path.malignant.sum())
        num_missed = num_malignant - hits
        # One case more of either kind, or a rate of zero would be reported as certain.
        rate = (num_missed + 1) / (num_malignant + 2)
        return Trial(
            missed=num_missed / num_malignant,
            reported_variance=rate * (1.0 - rate) / num_malignant,
            precision=hits / max(int(alarms.sum()), 1),
        )

    def train(self, rng: np.random.Generator) -> RidgePath:
        """A classifier for every penalty, from the same random records."""
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
    ``z V S (S^2 + penalty)^-1 U' y`` plus the mean label: scikit-learn's ``RidgeClassifier`` after
    a ``StandardScaler``, whose factorisation does not depend on the penalty.

    Args:
        training: Features ``n x d`` of the records to learn from.
        labels: Their labels ``n``, -1 or 1.
        judged: Features ``m x d`` of the records to be judged.
        malignant: Whether each of these is malignant, ``m`` booleans.
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
        """Scores of the records to be judged, ``m``; malignant ones ought to be above 0."""
        projected, S, coefficients = self._factors
        weights = S / (S**2 + 10.0**log_penalty) * coefficients
        return np.asarray(projected @ weights + self.labels.mean())


def count_at_most(values: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """For each threshold, how many of the values do not exceed it."""
    return np.searchsorted(np.sort(values), thresholds, side="right")
