"""Suite `sdf_tasks`: one classification task after the other, by GP-UCB-SDF and GP-TS-SDF.

Figures 4a and 4b of Verma, Dai and Low (2022) tune six hyperparameters of a support vector machine
on 50 classification tasks, 30 queries each, on a table of accuracies by Wistuba et al. (2015) that
is not part of this repository. Here is the same experiment on tasks that scikit-learn's data allow:

* 13 tasks of two classes, made of four data sets: of iris, wine, breast cancer and digits classes
  or groups of them, with some or all of the features. Some or few features keep them from being
  trivial. Features are standardised, 30 % of the rows are held out (stratified) for the accuracy.
* 288 settings: a linear, polynomial or squared-exponential kernel, a penalty of ``2^-5`` to
  ``2^6``, a degree of 2 to 10, and a ``gamma`` of ``10^-4`` to ``10^3``, that is
  ``12 (1 + 9 + 14)``. Inputs are as published three binary ones for the kernel, the logarithms of
  penalty and ``gamma``, and the degree, 0 where there is none.
* Six meta-features as contexts: logarithms of the numbers of rows and of features, the share of the
  larger class, the mean absolute skewness of features and correlation of pairs of them, and the
  share of the variance in the first principal component. Tasks come in the order of the last one.

Everything else is as in `sdf_contexts`: the Gaussian process of the authors' script, Poisson delays
of mean 3, ``m = 6``. Each rule that censors is beside the one that ignores delays, and beside that
one with hyperparameters fitted to the same censored values.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import skew
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC
from torch import Tensor

from benchmarks.delay import sdf_contexts
from benchmarks.delay.methods import DelayedAcquisition
from benchmarks.delay.objectives import DelayedObjective
from benchmarks.delay.replicate import DelayedTask
from benchmarks.delay.value_tables import contextual_table_evaluator, digest

TASK = "svm_tasks"
ROUNDS_PER_TASK = 30

LOG_PENALTIES = range(-5, 7)
DEGREES = range(2, 11)
GAMMAS = (1e-4, 1e-3, 1e-2, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 1e2, 1e3)

# Polynomials of a high degree may take forever.
MAX_ITERATIONS = 20_000


class Classification(NamedTuple):
    """Standardised features ``n x p`` and labels 0 and 1."""

    features: np.ndarray
    labels: np.ndarray


class Source(NamedTuple):
    """Which rows and columns of a data set make a task."""

    load: Callable[..., Any]
    first: tuple[int, ...]
    second: tuple[int, ...]
    features: slice


_ALL = slice(None)
SOURCES = (
    Source(load_iris, (1,), (2,), _ALL),
    Source(load_iris, (1,), (2,), slice(0, 2)),
    Source(load_wine, (0,), (1, 2), slice(0, 4)),
    Source(load_wine, (1,), (0, 2), slice(1, 6)),
    Source(load_wine, (2,), (0, 1), slice(2, 6)),
    Source(load_breast_cancer, (0,), (1,), _ALL),
    Source(load_breast_cancer, (0,), (1,), slice(10, 20)),
    Source(load_breast_cancer, (0,), (1,), slice(4, 6)),
    # Every eighth pixel, from one that is not at the edge.
    Source(load_digits, (3,), (8,), slice(3, None, 8)),
    Source(load_digits, (1,), (7,), slice(4, None, 8)),
    Source(load_digits, (4,), (9,), slice(5, None, 8)),
    Source(load_digits, (0, 2, 4, 6, 8), (1, 3, 5, 7, 9), slice(2, None, 8)),
    Source(load_digits, (0, 1, 2, 3, 4), (5, 6, 7, 8, 9), slice(3, None, 4)),
)

# At most so many rows, the first ones.
MOST_ROWS = 600


@cache
def classifications() -> tuple[Classification, ...]:
    """The tasks, in the order in which they come."""
    made = [_classification(source) for source in SOURCES]
    return tuple(sorted(made, key=lambda task: meta_features(task)[-1]))


def _classification(source: Source) -> Classification:
    X, y = source.load(return_X_y=True)
    rows = np.flatnonzero(np.isin(y, source.first + source.second))[:MOST_ROWS]
    X = X[rows][:, source.features]
    X = X[:, X.std(axis=0) > 0.0]
    labels = np.isin(y[rows], source.second).astype(int)
    return Classification((X - X.mean(axis=0)) / X.std(axis=0), labels)


def meta_features(task: Classification) -> tuple[float, ...]:
    """Six numbers that describe a task."""
    X, labels = task
    correlations = np.corrcoef(X.T)
    pairs = np.abs(correlations[np.triu_indices(len(correlations), 1)])
    return (
        float(np.log(len(X))),
        float(np.log(X.shape[1])),
        float(max(labels.mean(), 1.0 - labels.mean())),
        float(np.abs(skew(X)).mean()),
        float(pairs.mean()),
        float(np.linalg.eigvalsh(correlations)[-1] / len(correlations)),
    )


def settings() -> list[dict[str, Any]]:
    """The 288 settings of the classifier."""
    found: list[dict[str, Any]] = []
    for log_penalty in LOG_PENALTIES:
        penalty = {"C": 2.0**log_penalty, "max_iter": MAX_ITERATIONS}
        found.append({"kernel": "linear", **penalty})
        found += [{"kernel": "poly", "degree": degree, **penalty} for degree in DEGREES]
        found += [{"kernel": "rbf", "gamma": gamma, **penalty} for gamma in GAMMAS]
    return found


def as_input(setting: dict[str, Any]) -> list[float]:
    """A setting as six inputs of a model."""
    kernels = [float(setting["kernel"] == kernel) for kernel in ("linear", "poly", "rbf")]
    gamma = np.log10(setting["gamma"]) if "gamma" in setting else 0.0
    return [*kernels, float(np.log2(setting["C"])), float(setting.get("degree", 0)), float(gamma)]


@dataclass(frozen=True)
class SvmTasks:
    """The table of accuracies: rows are settings, then meta-features; task after task.

    Args:
        held_out: Share of the rows that the accuracy is of.
    """

    held_out: float = 0.3

    @property
    def name(self) -> str:
        """See `TabulatedTask`."""
        return TASK

    def choices(self) -> Tensor:
        """See `TabulatedTask`."""
        inputs = [as_input(setting) for setting in settings()]
        rows = [
            [*setting, *meta_features(task)] for task in classifications() for setting in inputs
        ]
        return torch.tensor(rows, dtype=torch.double)

    def data_key(self) -> str:
        """See `TabulatedTask`."""
        return digest(*(array for task in classifications() for array in task))

    def compute(self) -> Tensor:
        """See `TabulatedTask`: about a minute on one core."""
        values = [self.accuracy(task, s) for task in classifications() for s in settings()]
        return torch.tensor(values, dtype=torch.double)

    def accuracy(self, task: Classification, setting: dict[str, Any]) -> float:
        """That of the rows held out."""
        X, held, y, labels = train_test_split(
            *task, test_size=self.held_out, random_state=0, stratify=task.labels
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return float(SVC(**setting).fit(X, y).score(held, labels))


def svm_tasks() -> DelayedObjective:
    """The experiment. All columns but the last are in ``bounds``, also those of contexts."""
    table = SvmTasks()
    lower, upper = table.choices()[:, :-1].aminmax(dim=0)
    return DelayedObjective(
        name=TASK,
        build=partial(contextual_table_evaluator, task=table),
        bounds=tuple(zip(lower.tolist(), upper.tolist(), strict=True)),
        censor_value=0.0,
        num_contexts=len(SOURCES),
        rounds_per_context=ROUNDS_PER_TASK,
    )


def tasks() -> tuple[DelayedTask, ...]:
    """The one task."""
    return (sdf_contexts.one_after_the_other(TASK, svm_tasks()),)


def compared() -> tuple[DelayedAcquisition, ...]:
    """The rules of `sdf_contexts`, and the control of the confidence bound as well."""
    control = DelayedAcquisition("ucb_censored_fit", hyperparameters="censored")
    return (*sdf_contexts.compared(), control)


# Is censoring better than ignoring delays, also with the same hyperparameters?
PRIMARY = sdf_contexts.pairs(
    TASK,
    ("ucb_sdf_script", "ucb"),
    ("ts_sdf_script", "ts"),
    ("ucb_sdf_script", "ucb_censored_fit"),
    ("ts_sdf_script", "ts_censored_fit"),
)
