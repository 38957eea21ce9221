"""Tuning a support vector machine on the Pima diabetes data, and on growing parts of them.

The data are public but not ours to ship: they are read from the file that the environment
variable ``BOTORCH_CALIB_PIMA_CSV`` names, comma-separated with a header line and the column
``Outcome`` last, and otherwise fetched from OpenML (``diabetes``, version 1) by scikit-learn,
which keeps a copy.

The classifier, as in the paper: an RBF kernel on the features as they are, not standardised. One
stratified split, the same for all seeds, holds out 30 % for the accuracy. On these features
a kernel with ``gamma`` above 1e-2 sees no neighbours at all and predicts the larger class
everywhere: 0.649. On the linear scale of the paper's box, the good region (``gamma`` below
about 3e-3, of 10) is a strip along one edge, which only a query on that edge is likely to hit.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import fetch_openml
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC
from torch import Tensor

from benchmarks.delay.value_tables import cartesian, digest, spaced, table_values

PIMA_VARIABLE = "BOTORCH_CALIB_PIMA_CSV"

# (C, gamma), as in the paper.
SVM_BOUNDS = ((1e-4, 100.0), (1e-4, 10.0))

# How far outside the box rounding may put a query, relative to the box.
SLACK = 1e-9


@dataclass(frozen=True, eq=False)
class Patients:
    """Features ``n x p`` and labels of length ``n``, in order of arrival, split once.

    ``train`` and ``validation`` hold row numbers in ascending order.
    """

    features: np.ndarray
    labels: np.ndarray
    train: np.ndarray
    validation: np.ndarray

    @classmethod
    def split(cls, features: np.ndarray, labels: np.ndarray) -> Patients:
        """Hold out 30 %, stratified."""
        train, validation = train_test_split(
            np.arange(len(labels)), test_size=0.3, random_state=0, stratify=labels
        )
        return cls(features, labels, np.sort(train), np.sort(validation))

    @functools.lru_cache(maxsize=256)  # noqa: B019 - a few objects that live as long as the process
    def accuracy(self, c: float, gamma: float, share: float = 1.0) -> float:
        """Validation accuracy of a classifier trained on the first ``share`` of the patients.

        Those held out among that share judge it.
        """
        train, validation = self.first(self.train, share), self.first(self.validation, share)
        model = SVC(C=c, gamma=gamma).fit(self.features[train], self.labels[train])
        return float(model.score(self.features[validation], self.labels[validation]))

    def first(self, rows: np.ndarray, share: float) -> np.ndarray:
        """The first ``share`` of each class among ``rows``, which are in order of arrival."""
        classes = [rows[self.labels[rows] == label] for label in (0, 1)]
        return np.sort(np.concatenate([c[: max(1, round(share * len(c)))] for c in classes]))


def pima() -> Patients:
    """The data, from the file that the environment names or else from OpenML."""
    file = os.environ.get(PIMA_VARIABLE)
    return _from_openml() if file is None else _from_file(file)


@functools.lru_cache
def _from_file(file: str) -> Patients:
    with Path(file).open() as lines:
        header = lines.readline().strip().split(",")
        if header[-1] != "Outcome":
            raise ValueError(f"The last column of {file} is {header[-1]!r}, not 'Outcome'.")
        table = np.loadtxt(lines, delimiter=",", ndmin=2)
    labels = table[:, -1]
    if not np.isfinite(table).all() or set(labels) != {0.0, 1.0}:
        raise ValueError(f"{file} holds missing values, or outcomes other than 0 and 1.")
    return Patients.split(table[:, :-1], labels.astype(int))


@functools.lru_cache
def _from_openml() -> Patients:
    try:
        data = fetch_openml("diabetes", version=1, as_frame=False, parser="liac-arff")
    except OSError as error:
        raise OSError(
            f"The diabetes data cannot be fetched from OpenML. Set {PIMA_VARIABLE} to a file "
            "that holds them, with a header line and the column `Outcome` last."
        ) from error
    return Patients.split(
        np.asarray(data.data, dtype=float), (data.target == "tested_positive").astype(int)
    )


@dataclass(frozen=True)
class SvmSearch:
    """A grid over the good region, on the log scale, from which the optimum is read off.

    The accuracy is piecewise constant, in steps of one held-out patient, and has no
    gradient, so its maximum is searched: on 61 x 41 points here. On the data themselves a grid of
    81 x 41 points about the best of them finds nothing better than its 182 of 231, 0.788.
    """

    log_c: tuple[float, ...] = spaced(-1.0, 2.0, 61)
    log_gamma: tuple[float, ...] = spaced(-4.0, -2.0, 41)

    @property
    def name(self) -> str:
        """See `TabulatedTask`."""
        return "svm_optimum"

    def choices(self) -> Tensor:
        """See `TabulatedTask`."""
        return cartesian(self.log_c, self.log_gamma)

    def data_key(self) -> str:
        """See `TabulatedTask`."""
        patients = pima()
        return digest(patients.features, patients.labels)

    def compute(self) -> Tensor:
        """See `TabulatedTask`: half a minute on one core."""
        patients, rows = pima(), (10.0 ** self.choices()).tolist()
        return torch.tensor([patients.accuracy(c, gamma) for c, gamma in rows], dtype=torch.double)


@dataclass(frozen=True, eq=False)
class SvmEvaluator:
    """The validation accuracy at ``(C, gamma)``, without noise."""

    patients: Patients
    search: SvmSearch
    choices: Tensor | None = None

    @functools.cached_property
    def optimal_value(self) -> float:
        """The best accuracy that the search finds, not a proven maximum."""
        return table_values(self.search).max().item()

    def truth(self, x: Tensor) -> float:
        """The accuracy at ``x = (C, gamma)``; ``ValueError`` outside the box."""
        lower, upper = torch.tensor(SVM_BOUNDS, dtype=torch.double).T
        inside = x.clamp(lower, upper) if x.shape == (2,) else None
        if inside is None or not ((x - inside).abs() <= SLACK * (upper - lower)).all():
            raise ValueError(f"`x` must be a point of {SVM_BOUNDS}, got {x.tolist()}.")
        c, gamma = inside.tolist()
        return self.patients.accuracy(c, gamma)

    def observe(self, x: Tensor, rng: np.random.Generator) -> float:
        """As `truth`."""
        return self.truth(x)


def svm_evaluator(seed: int, *, search: SvmSearch = SvmSearch()) -> SvmEvaluator:  # noqa: B008
    """The objective of the paper's first real-world experiment, the same one for every seed."""
    return SvmEvaluator(pima(), search)


@dataclass(frozen=True)
class GrowingDataTask:
    """The machine's accuracy as patients arrive: contexts are growing parts of the data.

    Context ``k`` of ``K`` knows the first ``(k + 1) / K`` of the patients of each class, in order
    of the file, with the split of all of them: who is trained on, or held out, remains so. So
    neighbouring contexts resemble each other, as the method assumes. The choices are rows
    ``(log10 C, log10 gamma, k / (K - 1))``, all of one context before those of the next.

    The paper keeps the continuous box on the linear scale; a grid on the log scale departs
    from it, so that each context's optimum is known and a table holds all values.
    """

    num_contexts: int = 20
    log_c: tuple[float, ...] = spaced(-4.0, 2.0, 16)
    log_gamma: tuple[float, ...] = spaced(-4.0, 1.0, 16)

    @property
    def name(self) -> str:
        """See `TabulatedTask`."""
        return "nonstationary"

    def choices(self) -> Tensor:
        """See `TabulatedTask`."""
        return in_each_context(cartesian(self.log_c, self.log_gamma), self.num_contexts)

    def data_key(self) -> str:
        """See `TabulatedTask`."""
        return SvmSearch().data_key()

    def compute(self) -> Tensor:
        """See `TabulatedTask`: a minute on one core."""
        return growing_accuracies(10.0 ** cartesian(self.log_c, self.log_gamma), self.num_contexts)


@dataclass(frozen=True)
class LinearGrowingDataTask:
    """As `GrowingDataTask`, but on the linear scale of the paper's box.

    The choices are rows ``(C, gamma, k / (K - 1))``. Of the values of gamma only the least, a row
    along one edge of the box, is small enough for the kernel to see any neighbours.
    """

    num_contexts: int = 20
    c: tuple[float, ...] = spaced(*SVM_BOUNDS[0], 11)
    gamma: tuple[float, ...] = spaced(*SVM_BOUNDS[1], 31)

    @property
    def name(self) -> str:
        """See `TabulatedTask`."""
        return "nonstationary_linear"

    def choices(self) -> Tensor:
        """See `TabulatedTask`."""
        return in_each_context(cartesian(self.c, self.gamma), self.num_contexts)

    def data_key(self) -> str:
        """See `TabulatedTask`."""
        return SvmSearch().data_key()

    def compute(self) -> Tensor:
        """See `TabulatedTask`: a minute on one core."""
        return growing_accuracies(cartesian(self.c, self.gamma), self.num_contexts)


def in_each_context(cells: Tensor, num_contexts: int) -> Tensor:
    """Cells ``n x d``, repeated with the context ``k / (K - 1)`` behind them: ``K n x (d + 1)``."""
    contexts = torch.linspace(0.0, 1.0, num_contexts, dtype=torch.double)
    column = contexts.repeat_interleave(len(cells)).unsqueeze(-1)
    return torch.cat([cells.repeat(num_contexts, 1), column], dim=-1)


def growing_accuracies(cells: Tensor, num_contexts: int) -> Tensor:
    """The accuracies of cells ``(C, gamma)``, ``n x 2``, context by context: ``K n``."""
    patients = pima()
    values = [
        patients.accuracy(c, gamma, share=(context + 1) / num_contexts)
        for context in range(num_contexts)
        for c, gamma in cells.tolist()
    ]
    return torch.tensor(values, dtype=torch.double)
