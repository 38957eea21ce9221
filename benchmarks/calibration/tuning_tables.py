"""Four tuning tasks on data that ship with scikit-learn, tabulated: problems of suite `rivals`.

A task's values are computed once on a grid, in four repetitions that differ in their random
numbers (see `delay.value_tables`). Between grid points they are interpolated linearly in each
coordinate, so that the domain is a box and the largest mean of the repetitions lies on the grid. An
outcome is that of one repetition, drawn at random for each evaluation; the objective is the mean of
all. Accuracies are turned into minus the logarithm of the error, so that each halving of it counts
alike. Both are shifted and scaled so that the means on the grid have the mean 0 and the standard
deviation 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from scipy.interpolate import RegularGridInterpolator
from sklearn.datasets import load_diabetes, load_digits
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC, SVR
from torch import Tensor

from benchmarks.delay.trained_models import LogisticTask
from benchmarks.delay.value_tables import TabulatedTask, cartesian, spaced, table_values
from benchmarks.framework.sequential import Oracle, Problem, sobol_design

NUM_REPETITIONS = 4
NUM_INITIAL, NUM_EVALUATIONS = 10, 20


@dataclass(frozen=True)
class SupportVectorTask:
    """Accuracy of a support vector machine on handwritten digits, after learning from a few.

    Choices are rows ``(log10 C, log10 gamma)``. The seed draws which images are learned from; 540
    others judge.
    """

    log_c: tuple[float, ...] = spaced(-2.0, 3.0, 11)
    log_gamma: tuple[float, ...] = spaced(-5.0, 0.0, 11)
    num_images: int = 200
    seed: int = 0

    @property
    def name(self) -> str:
        return "support_vectors"

    def choices(self) -> Tensor:
        return cartesian(self.log_c, self.log_gamma)

    def data_key(self) -> str:
        return ""

    def compute(self) -> Tensor:
        images, labels = load_digits(return_X_y=True)
        parts = train_test_split(images, labels, test_size=0.3, random_state=0, stratify=labels)
        train, held_out, train_labels, held_out_labels = parts
        rng = np.random.default_rng(self.seed)
        rows = rng.choice(len(train), self.num_images, replace=False)
        values = []
        for log_c, log_gamma in self.choices().tolist():
            model = SVC(C=10.0**log_c, gamma=10.0**log_gamma).fit(train[rows], train_labels[rows])
            values.append(model.score(held_out, held_out_labels))
        return torch.tensor(values, dtype=torch.double)


def log_precision(targets: np.ndarray, predicted: np.ndarray) -> float:
    """Minus the logarithm of the root mean squared error, in standard deviations of the targets."""
    return -0.5 * math.log(float(np.mean((targets - predicted) ** 2)) / float(np.var(targets)))


def diabetes_halves(seed: int) -> list[np.ndarray]:
    """Features to learn from and to judge by, then targets, of scikit-learn's diabetes data."""
    features, targets = load_diabetes(return_X_y=True)
    parts: list[np.ndarray] = train_test_split(features, targets, test_size=0.5, random_state=seed)
    return parts


@dataclass(frozen=True)
class RegressionTask:
    """Support vector regression on the diabetes data, judged by `log_precision`.

    Choices are decimal logarithms of the penalty, of the kernel's ``gamma`` and of the width of the
    tube. The seed draws which half of the patients is learned from; the others judge.
    """

    log_c: tuple[float, ...] = spaced(0.0, 4.0, 9)
    log_gamma: tuple[float, ...] = spaced(-2.0, 2.0, 9)
    log_width: tuple[float, ...] = spaced(0.0, 2.0, 5)
    seed: int = 0

    @property
    def name(self) -> str:
        return "regression"

    def choices(self) -> Tensor:
        return cartesian(self.log_c, self.log_gamma, self.log_width)

    def data_key(self) -> str:
        return ""

    def compute(self) -> Tensor:
        train, held_out, train_targets, held_out_targets = diabetes_halves(self.seed)
        values = []
        for penalty, gamma, width in (10.0 ** self.choices()).tolist():
            model = SVR(C=penalty, gamma=gamma, epsilon=width).fit(train, train_targets)
            values.append(log_precision(held_out_targets, model.predict(held_out)))
        return torch.tensor(values, dtype=torch.double)


@dataclass(frozen=True)
class BoostingTask:
    """Boosted trees on the diabetes data, judged by `log_precision`.

    Choices are rows of the decimal logarithm of the learning rate, the depth of the trees, the
    share of the rows that each of them sees, and the binary logarithm of their number. The seed
    draws which half of the patients is learned from; the others judge.
    """

    log_rates: tuple[float, ...] = spaced(-2.0, 0.0, 6)
    depths: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0)
    shares: tuple[float, ...] = spaced(0.25, 1.0, 3)
    log_numbers: tuple[float, ...] = (2.0, 3.0, 4.0, 5.0, 6.0)
    seed: int = 0

    @property
    def name(self) -> str:
        return "boosting"

    def choices(self) -> Tensor:
        return cartesian(self.log_rates, self.depths, self.shares, self.log_numbers)

    def data_key(self) -> str:
        return ""

    def compute(self) -> Tensor:
        train, held_out, train_targets, held_out_targets = diabetes_halves(self.seed)
        numbers = [round(2.0**log_number) for log_number in self.log_numbers]
        values = []
        for log_rate, depth, share in cartesian(self.log_rates, self.depths, self.shares).tolist():
            model = GradientBoostingRegressor(
                learning_rate=10.0**log_rate,
                max_depth=round(depth),
                subsample=share,
                n_estimators=max(numbers),
                random_state=self.seed,
            ).fit(train, train_targets)
            stages = list(model.staged_predict(held_out))
            values += [log_precision(held_out_targets, stages[number - 1]) for number in numbers]
        return torch.tensor(values, dtype=torch.double)


def log_error(accuracies: Tensor) -> Tensor:
    """Minus the logarithm of the error, half a case in a thousand added."""
    return -(1.0005 - accuracies).log()


Transform = Callable[[Tensor], Tensor]

# Each task, and what is done to its values.
TASKS: dict[str, tuple[Callable[..., TabulatedTask], Transform | None]] = {
    "support_vectors": (SupportVectorTask, log_error),
    "logistic": (LogisticTask, log_error),
    "regression": (RegressionTask, None),
    "boosting": (BoostingTask, None),
}


@dataclass(frozen=True, eq=False)
class InterpolatedTable:
    """The values of a task's repetitions, scaled, between the points of its grid."""

    interpolate: RegularGridInterpolator  # maps n x d points to n x repetitions
    optimal_value: float

    def repetitions(self, X: Tensor) -> Tensor:
        """The outcome of each repetition, ``n x repetitions``, at ``n x d`` points."""
        return torch.as_tensor(self.interpolate(X.numpy()))

    def observe(self, X: Tensor) -> Tensor:
        values = self.repetitions(X)
        drawn = torch.randint(values.shape[-1], (len(X), 1))
        return values.gather(-1, drawn)

    def truth(self, X: Tensor) -> Tensor:
        return self.repetitions(X).mean(dim=-1, keepdim=True)


@cache
def interpolated(
    task: Callable[..., TabulatedTask], transform: Transform | None = None
) -> InterpolatedTable:
    """The table of a task, computed if it is not there."""
    repetitions = [task(seed=seed) for seed in range(NUM_REPETITIONS)]
    values = torch.stack([table_values(each) for each in repetitions], dim=-1)
    values = values if transform is None else transform(values)
    means = values.mean(dim=-1)
    values = (values - means.mean()) / means.std()
    axes = [column.unique().numpy() for column in repetitions[0].choices().T]
    shape = [*map(len, axes), NUM_REPETITIONS]
    # Rounding may put a point of the box beyond its border.
    surface = RegularGridInterpolator(
        axes, values.reshape(shape).numpy(), bounds_error=False, fill_value=None
    )
    return InterpolatedTable(surface, float(values.mean(dim=-1).max()))


def tuning_oracle(
    seed: int, *, task: Callable[..., TabulatedTask], transform: Transform | None = None
) -> Oracle:
    """The objective of a task, the same one for every seed."""
    table = interpolated(task, transform)
    return Oracle(table.observe, table.truth, table.optimal_value)


def tuning_problem(name: str) -> Problem:
    """The problem of a task."""
    task, transform = TASKS[name]
    made: Any = task()
    lower, upper = made.choices().aminmax(dim=0)
    bounds = tuple(zip(lower.tolist(), upper.tolist(), strict=True))
    return Problem(
        name=f"tuning_{name}",
        build=partial(tuning_oracle, task=task, transform=transform),
        bounds=bounds,
        optimal_value=math.nan,
        initial_design=partial(sobol_design, bounds=bounds),
        num_initial=NUM_INITIAL,
        num_evaluations=NUM_EVALUATIONS,
    )


def problems() -> tuple[Problem, ...]:
    return tuple(map(tuning_problem, TASKS))
