"""Tuning a support vector machine on the Pima diabetes data.

The data are public, but not part of this repository. The environment variable
``BOTORCH_CALIB_PIMA_CSV`` may name a comma-separated file with a header line and the last column
``Outcome``. Otherwise scikit-learn downloads the data from OpenML (``diabetes``, version 1) and
keeps a copy.

As in the paper, the classifier has an RBF kernel on features that are not standardised. One
stratified split, the same for all seeds, holds out 30 % for the accuracy. With ``gamma`` above 1e-2
a point has no neighbours on these features, and the classifier predicts the larger class everywhere
(accuracy 0.649). On the linear scale of the paper's box, with ``gamma`` up to 10, the good region
(``gamma`` below about 3e-3) is a strip along one edge. Only queries on this edge are likely to hit
it.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

import joblib
import numpy as np
import torch
from sklearn.datasets import fetch_openml
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC
from torch import Tensor

from benchmarks.delay.value_tables import cartesian, spaced, table_values

PIMA_VARIABLE = "BOTORCH_CALIB_PIMA_CSV"

# (C, gamma), as in the paper.
SVM_BOUNDS = ((1e-4, 100.0), (1e-4, 10.0))

# Largest distance of a query outside the box, due to rounding, relative to the box.
SLACK = 1e-9


@dataclass(frozen=True, eq=False)
class Patients:
    """Features ``n x p`` and labels of length ``n``, and the split.

    ``train`` and ``validation`` are row numbers in ascending order.
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
    def accuracy(self, c: float, gamma: float) -> float:
        """Validation accuracy of the classifier with these hyperparameters."""
        model = SVC(C=c, gamma=gamma).fit(self.features[self.train], self.labels[self.train])
        return float(model.score(self.features[self.validation], self.labels[self.validation]))


def pima() -> Patients:
    """The data, from the file in the environment variable or from OpenML."""
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
    """A grid over the good region, on the log scale, whose best accuracy is the optimum.

    The accuracy is piecewise constant, in steps of one held-out patient, so its maximum is found
    on a grid of 61 x 41 points: 182 of 231, or 0.788. A further grid of 81 x 41 points around the
    best points has no better accuracy.
    """

    log_c: tuple[float, ...] = spaced(-1.0, 2.0, 61)
    log_gamma: tuple[float, ...] = spaced(-4.0, -2.0, 41)

    @property
    def name(self) -> str:
        return "svm_optimum"

    def choices(self) -> Tensor:
        return cartesian(self.log_c, self.log_gamma)

    def data_key(self) -> str:
        patients = pima()
        return str(joblib.hash((patients.features, patients.labels)))

    def compute(self) -> Tensor:
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
        return table_values(self.search).max().item()

    def truth(self, x: Tensor) -> float:
        lower, upper = torch.tensor(SVM_BOUNDS, dtype=torch.double).T
        inside = x.clamp(lower, upper) if x.shape == (2,) else None
        if inside is None or not ((x - inside).abs() <= SLACK * (upper - lower)).all():
            raise ValueError(f"`x` must be a point of {SVM_BOUNDS}, got {x.tolist()}.")
        c, gamma = inside.tolist()
        return self.patients.accuracy(c, gamma)

    def observe(self, x: Tensor, rng: np.random.Generator) -> float:
        return self.truth(x)


def svm_evaluator(seed: int, *, search: SvmSearch = SvmSearch()) -> SvmEvaluator:  # noqa: B008
    """The objective of the paper's first real-world experiment, the same for every seed."""
    return SvmEvaluator(pima(), search)
