"""Objectives of suite `delay`: single cells by naive training loops, and cached tables.

The Pima data are not in the repository, so artificial data of the same form replace them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import default_rng
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC
from torch import Tensor, nn

from benchmarks.delay import objectives as delay_objectives
from benchmarks.delay import value_tables as delay_tables
from benchmarks.delay.svm import PIMA_VARIABLE
from benchmarks.delay.trained_models import CnnTask, LogisticTask, batches, initial_parameters
from benchmarks.delay.value_tables import TableEvaluator, table_values


@pytest.fixture(autouse=True)
def tables_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tests do not use the cached tables of the benchmarks."""
    monkeypatch.setattr(delay_tables, "TABLES_FOLDER", tmp_path / "tables")
    return tmp_path / "tables"


def write_patients(file: Path, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """80 patients with realistic spreads of features, a third of them ill."""
    rng = default_rng(seed)
    labels = (rng.permutation(80) < 27).astype(int)
    features = (rng.normal(100.0, 30.0, (80, 4)) + 20.0 * labels[:, None]).round(1)
    rows = [",".join(map(str, row)) for row in np.column_stack([features, labels]).tolist()]
    file.write_text("\n".join(["a,b,c,d,Outcome", *rows]) + "\n")
    return features, labels


@pytest.fixture
def patients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels of the artificial data."""
    file = tmp_path / "pima.csv"
    monkeypatch.setenv(PIMA_VARIABLE, str(file))
    return write_patients(file)


# ------------------------------------------------------------ trained models, cell by cell


def naive_logistic_accuracy(batch_size: int, rate: float, decay: float, epochs: int) -> float:
    """One cell by a loop over single examples in plain Python."""
    features, labels = load_breast_cancer(return_X_y=True)
    train, held_out, y, y_held_out = train_test_split(
        features, labels, test_size=0.3, random_state=0, stratify=labels
    )
    center, scale = train.mean(0), train.std(0)
    weights, bias = (p.flatten().numpy() for p in initial_parameters(((30, 1),), seed=0))
    for update, rows in enumerate(batches(len(train), batch_size, epochs, seed=0)):
        gradient, bias_gradient = np.zeros(30), 0.0
        for row in rows.tolist():
            x = (train[row] - center) / scale
            error = 1.0 / (1.0 + math.exp(-(weights @ x + bias[0]))) - y[row]
            gradient, bias_gradient = gradient + error * x, bias_gradient + error
        step = rate / (1.0 + decay * update) / len(rows)
        weights, bias = weights - step * gradient, bias - step * bias_gradient
    right = [
        (weights @ ((x - center) / scale) + bias[0] > 0) == bool(label)
        for x, label in zip(held_out, y_held_out, strict=True)
    ]
    return sum(right) / len(right)


def test_logistic_cells_by_a_naive_loop() -> None:
    task = LogisticTask(batch_sizes=(26, 60), log_rates=(-3.0, -0.5), log_decays=(-2.0, 0.0))
    values = table_values(task)
    assert len(values.unique()) > 4
    for row in (0, 2, 5, 7):
        size, log_rate, log_decay = task.choices()[row].tolist()
        naive = naive_logistic_accuracy(int(size), 10**log_rate, 10**log_decay, task.epochs)
        assert values[row].item() == naive


def naive_cnn_accuracy(batch_size: int, rate: float, decay: float, epochs: int) -> float:
    """One cell with torch's own layers and optimizer."""
    images, labels = load_digits(return_X_y=True)
    train, held_out, y, y_held_out = train_test_split(
        torch.tensor(images / 16).reshape(-1, 1, 8, 8),
        torch.tensor(labels),
        test_size=0.3,
        random_state=0,
        stratify=labels,
    )
    layers: tuple[Any, ...] = nn.Conv2d(1, 8, 3), nn.Linear(72, 8), nn.Linear(8, 10)
    initial = initial_parameters(((9, 8), (72, 8), (8, 10)), seed=0)
    for layer, weight, bias in zip(layers, initial[::2], initial[1::2], strict=True):
        weight = weight.T
        if layer is layers[1]:
            # A feature's index is position x 8 + channel in the task, channel x 9 + position here.
            weight = weight.reshape(8, 9, 8).transpose(1, 2)
        layer.weight = nn.Parameter(weight.reshape(layer.weight.shape).contiguous())
        layer.bias = nn.Parameter(bias)
    network = nn.Sequential(
        layers[0], nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), layers[1], nn.ReLU(), layers[2]
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    for update, rows in enumerate(batches(len(train), batch_size, epochs, seed=0)):
        optimizer.param_groups[0]["lr"] = rate / (1.0 + decay * update)
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(train[rows]), y[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        return (network(held_out).argmax(-1) == y_held_out).double().mean().item()


def test_cnn_cells_by_torch_modules() -> None:
    task = CnnTask(batch_sizes=(64, 128), log_rates=(-2.5, -1.8), log_decays=(-2.0, 0), epochs=3)
    values = task.compute()
    assert values.max() > 0.4
    for value, cell in [*zip(values.tolist(), task.choices().tolist(), strict=True)][::3]:
        size, log_rate, log_decay = cell
        assert value == naive_cnn_accuracy(int(size), 10**log_rate, 10**log_decay, task.epochs)


# ------------------------------------------------------------ support vector machines


def test_svm_by_the_plain_recipe(patients) -> None:
    features, labels = patients
    train, held_out, y, y_held_out = train_test_split(
        features, labels, test_size=0.3, random_state=0, stratify=labels
    )
    evaluator = delay_objectives.svm().build(0)
    values = []
    for c, gamma in ((1.0, 1e-4), (10.0, 1e-3), (100.0, 1e-4), (100.0, 10.0), (1e-4, 1e-4)):
        model = SVC(C=c, gamma=gamma).fit(train, y)
        x = torch.tensor([c, gamma], dtype=torch.double)
        values.append(evaluator.truth(x))
        assert (
            values[-1] == evaluator.observe(x, default_rng(0)) == model.score(held_out, y_held_out)
        )
    assert evaluator.choices is None
    # With large gamma, only the larger class is predicted.
    assert values[3] == values[4] == np.mean(y_held_out == 0) < max(values)


# ------------------------------------------------------------ tables and their files


@dataclass(frozen=True)
class Squares:
    """The squares of 0, 1, ..."""

    num: int = 4
    data: str = "of the day"
    fails: bool = False
    name: str = "squares"

    def choices(self) -> Tensor:
        return torch.arange(self.num, dtype=torch.double).unsqueeze(-1)

    def data_key(self) -> str:
        return self.data

    def compute(self) -> Tensor:
        return self.choices().squeeze(-1).square() + (math.nan if self.fails else 0.0)


def test_tables_are_kept_but_for_what_is_no_number(tables_folder: Path) -> None:
    with pytest.raises(ValueError, match="'squares'"):
        table_values(Squares(fails=True))
    values = table_values(Squares())
    assert values.tolist() == [0.0, 1.0, 4.0, 9.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Squares, "compute", None)  # the values come from the file
        assert torch.equal(table_values(Squares()), values)
        for other in (Squares(5), Squares(data="of another day")):
            with pytest.raises(TypeError):
                table_values(other)
    for file in tables_folder.rglob("output.pkl"):
        file.write_text("damaged")
    assert torch.equal(table_values(Squares()), values)  # computed again


def test_queries_must_be_choices() -> None:
    evaluator = TableEvaluator(
        torch.tensor([[20.0, -6.0, 1.0], [60.0, -6.0, 1.0], [60.0, 0.0, 1.0]], dtype=torch.double),
        torch.tensor([0.1, 0.2, 0.3], dtype=torch.double),
    )
    x = torch.tensor([60.0 + 1e-12, -6.0, 1.0], dtype=torch.double)
    assert (evaluator.row(x), evaluator.truth(x)) == (1, 0.2)
    for bad in ([60.0, -5.9, 1.0], [60.0, -6.0, 1.1], [20.0, 0.0, 1.0], [math.nan, 0.0, 1.0]):
        with pytest.raises(ValueError, match="not one of the choices"):
            evaluator.truth(torch.tensor(bad, dtype=torch.double))
    with pytest.raises(ValueError, match="length 3"):
        evaluator.truth(x[:2])
