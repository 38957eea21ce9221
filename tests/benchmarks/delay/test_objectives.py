"""Objectives of the suite `delay`: ranges, optima, and single cells by naive training loops.

The Pima data are not in the repository. Data of the same form stand in for them, but for
one test that runs where the environment names the real file.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import default_rng
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.gaussian_process.kernels import RBF
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC
from torch import Tensor, nn

from benchmarks.delay import objectives as delay_objectives
from benchmarks.delay import svm as delay_svm
from benchmarks.delay import value_tables as delay_tables
from benchmarks.delay.networks import CnnTask, LogisticTask, batches, initial_parameters
from benchmarks.delay.svm import (
    PIMA_VARIABLE,
    GrowingDataTask,
    LinearGrowingDataTask,
    SvmSearch,
    pima,
    svm_evaluator,
)
from benchmarks.delay.value_tables import (
    ContextualTableEvaluator,
    TableEvaluator,
    contextual_table_evaluator,
    table_evaluator,
    table_values,
)
from benchmarks.framework.sequential import box

SMALL_SEARCH = SvmSearch((-1.0, 0.0, 1.0), (-4.0, -3.5, -3.0))
SMALL_GROWTH = GrowingDataTask(4, (-1.0, 0.5, 2.0), (-4.0, -3.0, -2.0))


@pytest.fixture(autouse=True)
def tables_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the tables of the benchmarks themselves."""
    monkeypatch.setattr(delay_tables, "TABLES_FOLDER", tmp_path / "tables")
    return tmp_path / "tables"


def write_patients(file: Path, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """80 patients with features as spread as the real ones', a third of them ill."""
    rng = default_rng(seed)
    labels = (rng.permutation(80) < 27).astype(int)
    features = (rng.normal(100.0, 30.0, (80, 4)) + 20.0 * labels[:, None]).round(1)
    rows = [",".join(map(str, row)) for row in np.column_stack([features, labels]).tolist()]
    file.write_text("\n".join(["a,b,c,d,Outcome", *rows]) + "\n")
    return features, labels


@pytest.fixture
def patients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels of the data that stand in for the real ones."""
    file = tmp_path / "pima.csv"
    monkeypatch.setenv(PIMA_VARIABLE, str(file))
    return write_patients(file)


# ------------------------------------------------------------ the five objectives


OBJECTIVES = {
    objective.name: objective
    for objective in (
        delay_objectives.gp_sample(),
        delay_objectives.svm(),
        delay_objectives.logistic(),
        delay_objectives.cnn(),
        delay_objectives.nonstationary(),
    )
}


@pytest.mark.parametrize("task", [LogisticTask(), CnnTask(), GrowingDataTask()])
def test_domains_span_their_bounds(task) -> None:
    objective = OBJECTIVES[task.name]
    X = task.choices()
    assert len(X.unique(dim=0)) == len(X) == math.prod(len(column.unique()) for column in X.T)
    decisions = X[:, : len(objective.bounds)]
    ends = torch.stack([decisions.amin(0), decisions.amax(0)])
    assert torch.equal(ends, box(objective.bounds))
    if objective.num_contexts:
        values = [k / 19 for k in range(objective.num_contexts)]
        assert X[:, -1].unique().tolist() == pytest.approx(values)


def check_table(evaluator, num_choices: int) -> None:
    """Values lie in [0, 1], are the same each time, and none exceeds the stated optimum."""
    X = evaluator.choices
    assert X.shape[0] == num_choices
    rows = default_rng(0).choice(num_choices, 30)
    values = [evaluator.truth(X[row]) for row in rows]
    assert values == [evaluator.observe(X[row], default_rng(1)) for row in rows]
    assert 0.0 <= min(values) < max(values) <= evaluator.optimal_value <= 1.0


# ------------------------------------------------------------ functions drawn from a process


def test_gp_sample_is_scaled_and_seeded() -> None:
    objective = delay_objectives.gp_sample()
    first, again, other = (objective.build(seed) for seed in (0, 0, 1))
    assert isinstance(first, TableEvaluator) and isinstance(again, TableEvaluator)
    assert isinstance(other, TableEvaluator)
    assert torch.equal(first.values, again.values) and not torch.equal(first.values, other.values)
    assert (first.values.min(), first.optimal_value) == (0.0, 1.0)
    assert first.choices.shape == (1000, 1)
    best = first.choices[first.values.argmax()]
    assert first.truth(best) == 1.0


def test_gp_sample_has_its_kernel() -> None:
    grid = np.linspace(0.0, 1.0, 1000).reshape(-1, 1)
    factor = delay_objectives.covariance_factor(1000, 0.02)
    # The diagonal's jitter is 1e-9.
    np.testing.assert_allclose(factor @ factor.T, RBF(0.02)(grid), atol=2e-9, rtol=0.0)


def test_noise_of_the_gp_sample() -> None:
    evaluator, rng = delay_objectives.gp_sample().build(2), default_rng(0)
    assert evaluator.choices is not None
    x = evaluator.choices[123]
    drawn = np.array([evaluator.observe(x, rng) for _ in range(1000)]) - evaluator.truth(x)
    assert abs(drawn.mean()) < 5 * 0.01 / math.sqrt(1000)
    assert abs(drawn.std() - 0.01) < 5 * 0.01 / math.sqrt(2000)
    assert evaluator.observe(x, default_rng(7)) == evaluator.observe(x, default_rng(7))


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
            # A feature's number is position x 8 + channel there, channel x 9 + position here.
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


@pytest.mark.parametrize(
    ("task", "at_least"),
    [
        (CnnTask(batch_sizes=(46,), log_rates=(-1.8,), log_decays=(-2.5,)), 0.85),
        (
            CnnTask(batch_sizes=(64, 128), log_rates=(-2.5, -1.8), log_decays=(-2.0, 0), epochs=3),
            0.4,
        ),
    ],
)
def test_cnn_cells_by_torch_modules(task: CnnTask, at_least: float) -> None:
    values = task.compute()
    assert values.max() > at_least
    for value, cell in zip(values.tolist(), task.choices().tolist(), strict=True):
        size, log_rate, log_decay = cell
        assert value == naive_cnn_accuracy(int(size), 10**log_rate, 10**log_decay, task.epochs)


def test_batches_are_passes_over_all_rows() -> None:
    rows = list(batches(10, 4, 3, seed=0))
    assert [len(batch) for batch in rows] == [4, 4, 2] * 3
    epochs = torch.cat(rows).reshape(3, 10)
    assert all(epoch.sort().values.tolist() == list(range(10)) for epoch in epochs)
    assert not torch.equal(epochs[0], epochs[1])


def test_training_leaves_the_global_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    with torch.no_grad():
        CnnTask(batch_sizes=(128,), log_rates=(-2.0,), log_decays=(0.0,), epochs=1).compute()
    assert torch.equal(torch.random.get_rng_state(), before)


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
    # Beyond the edge of small gamma, only the larger class is predicted.
    assert values[3] == values[4] == np.mean(y_held_out == 0) < max(values)


def test_svm_optimum_is_not_exceeded_by_random_probes(patients) -> None:
    evaluator = svm_evaluator(0, search=SMALL_SEARCH)
    rng = default_rng(0)
    lower, upper = np.array(delay_svm.SVM_BOUNDS).T
    probes = torch.from_numpy(lower + (upper - lower) * rng.random((200, 2)))
    probes[:50, 1] = 1e-4  # the edge
    values = [evaluator.truth(x) for x in probes]
    assert max(values[50:]) <= max(values) <= evaluator.optimal_value <= 1.0
    found = [evaluator.truth(10.0**row) for row in SMALL_SEARCH.choices()]
    assert evaluator.optimal_value == max(found)


def test_svm_takes_points_of_the_box_and_no_others(patients) -> None:
    evaluator = svm_evaluator(0, search=SMALL_SEARCH)
    corner = torch.tensor([100.0, 1e-4], dtype=torch.double)
    rounded = corner * torch.tensor([1.0 + 1e-15, 1.0 - 1e-12])
    assert evaluator.truth(rounded) == evaluator.truth(corner)
    for bad in ([100.1, 1.0], [1.0, 5e-5], [1.0, math.nan], [1.0], [1.0, 1.0, 1.0]):
        with pytest.raises(ValueError, match="`x` must be a point"):
            evaluator.truth(torch.tensor(bad, dtype=torch.double))


def naive_growing_accuracy(patients, cell: list[float], share: float) -> float:
    """One cell of one context, its patients gathered one by one."""
    features, labels = patients
    numbers = list(range(len(labels)))
    split = train_test_split(numbers, test_size=0.3, random_state=0, stratify=labels)
    parts = []
    for part in split:
        rows: list[int] = []
        for label in (0, 1):
            of_class = [row for row in sorted(part) if labels[row] == label]
            rows += of_class[: round(share * len(of_class))]
        parts.append(sorted(rows))
    train, held_out = parts
    model = SVC(C=10.0 ** cell[0], gamma=10.0 ** cell[1]).fit(features[train], labels[train])
    return float((model.predict(features[held_out]) == labels[held_out]).mean())


def test_contexts_by_the_plain_recipe(patients) -> None:
    evaluator = contextual_table_evaluator(0, task=SMALL_GROWTH)
    check_table(evaluator, 36)
    for row in range(0, 36, 5):
        *cell, context = evaluator.choices[row].tolist()
        naive = naive_growing_accuracy(patients, cell, share=(round(3 * context) + 1) / 4)
        assert evaluator.values[row].item() == naive
    # The last context has all of the data.
    x = SMALL_GROWTH.choices()[-4]
    assert evaluator.truth(x) == svm_evaluator(0).truth(10.0 ** x[:2])


def test_contexts_on_the_linear_scale(patients) -> None:
    """The same cells have the same values; only the coordinates differ."""
    linear = LinearGrowingDataTask(4, (0.1, 100.0), (1e-4, 1e-2))
    logarithmic = GrowingDataTask(4, (-1.0, 2.0), (-4.0, -2.0))
    assert torch.equal(table_values(linear), table_values(logarithmic))
    expected = logarithmic.choices()
    expected[:, :2] = 10.0 ** expected[:, :2]
    assert torch.allclose(linear.choices(), expected, rtol=1e-12)
    objective = delay_objectives.nonstationary_linear(10)
    assert objective.bounds == delay_objectives.svm().bounds
    assert (objective.num_contexts, objective.rounds_per_context) == (10, 30)


def test_contexts_grow(patients) -> None:
    known = [pima().first(pima().train, (k + 1) / 20) for k in range(20)]
    assert all(set(a) < set(b) for a, b in zip(known, known[1:], strict=False))
    assert np.array_equal(known[-1], pima().train)
    assert {0, 1} == set(pima().labels[known[0]])


def test_optimum_of_each_context() -> None:
    columns = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 0.5], [1.0, 0.5], [0.0, 1.0]]).double()
    values = torch.tensor([0.1, 0.2, 0.9, 0.4, 0.3], dtype=torch.double)
    evaluator = ContextualTableEvaluator(columns, values)
    assert [evaluator.optimal_for(k) for k in range(3)] == [0.2, 0.9, 0.3]
    assert evaluator.optimal_value == 0.9
    for bad in (-1, 3):
        with pytest.raises(ValueError, match="`context`"):
            evaluator.optimal_for(bad)


# ------------------------------------------------------------ the data file


def test_data_from_openml(tmp_path: Path, patients, monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = patients
    from_file = pima()
    asked = []

    def fetch(*args, **options) -> SimpleNamespace:
        asked.append((args, options["version"]))
        words = np.array(["tested_negative", "tested_positive"], dtype=object)
        return SimpleNamespace(data=features, target=words[labels])

    monkeypatch.delenv(PIMA_VARIABLE)
    monkeypatch.setattr(delay_svm, "fetch_openml", fetch)
    delay_svm._from_openml.cache_clear()
    try:
        fetched = pima()
        assert pima() is fetched and asked == [(("diabetes",), 1)]
    finally:
        delay_svm._from_openml.cache_clear()
    for name in ("features", "labels", "train", "validation"):
        assert np.array_equal(getattr(fetched, name), getattr(from_file, name))


def test_missing_data_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args, **options) -> None:
        raise OSError("no network")

    monkeypatch.delenv(PIMA_VARIABLE, raising=False)
    monkeypatch.setattr(delay_svm, "fetch_openml", unreachable)
    delay_svm._from_openml.cache_clear()
    with pytest.raises(OSError, match=PIMA_VARIABLE):
        delay_objectives.svm().build(0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,Diagnosis\n1,0\n2,1\n", "'Diagnosis'"),
        ("a,Outcome\n1,0\n2,2\n", "other than 0 and 1"),
        ("a,Outcome\nnan,0\n2,1\n", "missing values"),
    ],
)
def test_files_that_do_not_hold_the_data(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(text)
    monkeypatch.setenv(PIMA_VARIABLE, str(file))
    with pytest.raises(ValueError, match=message):
        pima()


@pytest.mark.skipif(PIMA_VARIABLE not in os.environ, reason="the Pima data are not at hand")
def test_landscape_of_the_real_data() -> None:
    evaluator = delay_objectives.svm().build(0)

    def right(c: float, gamma: float) -> float:
        return evaluator.truth(torch.tensor([c, gamma], dtype=torch.double)) * 231

    assert len(pima().labels) == 768 and len(pima().validation) == 231
    assert right(10**0.95, 1e-4) == pytest.approx(182)  # the stated optimum
    assert right(50.0, 0.3) == right(1.0, 5.0) == pytest.approx(150)  # the larger class alone
    assert right(50.0, 1e-4) == pytest.approx(175)  # halfway along the good edge


# ------------------------------------------------------------ tables and their files


@dataclass(frozen=True)
class Squares:
    """The squares of 0, 1, ...; counts how often they were computed."""

    num: int = 4
    data: str = "of the day"
    fails: bool = False
    name: str = "squares"

    def choices(self) -> Tensor:
        return torch.arange(self.num, dtype=torch.double).unsqueeze(-1)

    def data_key(self) -> str:
        return self.data

    def compute(self) -> Tensor:
        COMPUTED.append(self)
        return self.choices().squeeze(-1).square() + (math.nan if self.fails else 0.0)


COMPUTED: list[Squares] = []


@pytest.fixture
def computed() -> list[Squares]:
    COMPUTED.clear()
    forget()
    return COMPUTED


def forget() -> None:
    """What a new process does not know."""
    delay_tables._values.cache_clear()


def test_tables_are_computed_once(tables_folder: Path, computed: list[Squares]) -> None:
    values = table_values(Squares())
    assert values.tolist() == [0.0, 1.0, 4.0, 9.0]
    forget()
    assert torch.equal(table_values(Squares()), values)
    assert table_evaluator(5, task=Squares()).optimal_value == 9.0
    assert len(computed) == 1
    (file,) = tables_folder.iterdir()
    assert file.name.startswith("squares-")
    assert json.loads(file.read_text())["config"]["task"]["num"] == 4


def test_changed_tasks_and_data_are_computed_anew(
    tables_folder: Path, computed: list[Squares], monkeypatch: pytest.MonkeyPatch
) -> None:
    for task in (Squares(), Squares(num=5), Squares(data="of yesterday")):
        table_values(task)
    monkeypatch.setattr(delay_tables, "version", lambda package: "99")
    table_values(Squares())
    assert len(computed) == len(list(tables_folder.iterdir())) == 4


def test_damaged_tables_are_computed_anew(tables_folder: Path, computed: list[Squares]) -> None:
    with pytest.raises(ValueError, match="'squares'"):
        table_values(Squares(fails=True))
    assert not tables_folder.exists()  # what is no number is not kept
    values = table_values(Squares())
    (file,) = tables_folder.iterdir()
    whole = file.read_text()
    for text in ("", "[]", '{"values": [1.0]}', '{"values": ["a", 1, 2, 3]}'):
        computed.clear()
        file.write_text(text)
        forget()
        assert torch.equal(table_values(Squares()), values)
        assert len(computed) == 1 and file.read_text() == whole


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
