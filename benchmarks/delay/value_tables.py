"""Objectives on finite domains, whose values are computed once and cached.

A task defines a table and computes it. joblib caches the table under everything that determines the
values: the task's settings, the data, the source of the module that computes them, and the versions
of the packages. If one of these changes, the table is computed again.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import joblib
import numpy as np
import torch
from torch import Tensor

from benchmarks.framework.stored_results import RESULTS_DIR

TABLES_FOLDER = RESULTS_DIR / "delay_tables"

PACKAGES = ("torch", "numpy", "scipy", "scikit-learn")

# Largest distance of a query from a choice, due to rounding, relative to the range of a coordinate.
MATCH = 1e-9


class TabulatedTask(Protocol):
    """The definition of a table. Implementations are frozen dataclasses."""

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str:
        """The name of the task."""

    def choices(self) -> Tensor:
        """Every point of the domain, ``n x d``."""

    def compute(self) -> Tensor:
        """The noise-free value of every choice, of length ``n``. It is deterministic."""

    def data_key(self) -> str:
        """A text that depends on the data, unless the versions of packages determine the data."""


def spaced(low: float, high: float, num: int) -> tuple[float, ...]:
    """``num`` evenly spaced numbers, both ends included."""
    return tuple(np.linspace(low, high, num).tolist())


def cartesian(*axes: tuple[float, ...]) -> Tensor:
    """All combinations of the axes' values, ``n x d``; the last axis varies fastest."""
    return torch.cartesian_prod(*(torch.tensor(axis, dtype=torch.double) for axis in axes))


def table_values(task: TabulatedTask) -> Tensor:
    """The values of all choices, which are cached in `TABLES_FOLDER`.

    The first call computes them, which takes up to some minutes.
    """
    source = joblib.hash(Path(inspect.getfile(type(task))).read_bytes())
    versions = tuple(map(version, PACKAGES))
    memory = joblib.Memory(TABLES_FOLDER, verbose=0)
    values: Tensor = memory.cache(_computed)(task, task.data_key(), source, versions)
    return values


def _computed(task: TabulatedTask, *depends_on: object) -> Tensor:
    values, num_choices = task.compute().double(), len(task.choices())
    if values.shape != (num_choices,) or not values.isfinite().all():
        raise ValueError(f"The task {task.name!r} computed {values!r} for {num_choices} choices.")
    return values


@dataclass(frozen=True, eq=False)
class TableEvaluator:
    """An objective on a finite domain.

    Args:
        choices: The domain, ``n x d``.
        values: The noise-free values, of length ``n``.
        noise_std: Standard deviation of the Gaussian observation noise.
    """

    choices: Tensor
    values: Tensor
    noise_std: float = 0.0

    @property
    def optimal_value(self) -> float:
        return self.values.max().item()

    def row(self, x: Tensor) -> int:
        """The index of the choice ``x``, of length ``d``; ``ValueError`` if it is not a choice."""
        if x.shape != self.choices.shape[1:]:
            raise ValueError(f"`x` must have length {self.choices.shape[1]}, got {x.shape}.")
        spread = self.choices.amax(0) - self.choices.amin(0)
        scale = torch.where(spread > 0, spread, torch.ones_like(spread))
        distances = ((self.choices - x).abs() / scale).amax(-1)
        row = int(distances.argmin())
        if not distances[row] <= MATCH:
            raise ValueError(f"`x` is not one of the choices: {x.tolist()}.")
        return row

    def truth(self, x: Tensor) -> float:
        return self.values[self.row(x)].item()

    def observe(self, x: Tensor, rng: np.random.Generator) -> float:
        noise = self.noise_std * rng.standard_normal() if self.noise_std > 0 else 0.0
        return self.truth(x) + noise


def table_evaluator(seed: int, *, task: TabulatedTask) -> TableEvaluator:
    """The noise-free objective that ``task`` tabulates, the same for every seed."""
    return TableEvaluator(task.choices(), table_values(task))
