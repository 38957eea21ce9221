"""The tabulated tasks of suite `ocbo_loo_tasks`: their values, designs and search."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import LatentDirichletAllocation

from benchmarks.calibration import tuning_tasks as tasks
from benchmarks.calibration.topics import TopicTask, bars
from benchmarks.delay import value_tables
from benchmarks.framework.runner import without_expected_warnings

SMALL = TopicTask(
    log_batch_sizes=(0.0, 3.0),
    decays=(0.5, 0.75, 1.0),
    log_offsets=(0.0, 2.0),
    side=3,
    num_documents=24,
    num_held_out=8,
    num_words=12,
)
METHODS = {method.name: method for method in tasks.methods()}


@pytest.fixture(autouse=True)
def tables_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests do not use the cached tables of the benchmarks."""
    monkeypatch.setattr(value_tables, "TABLES_FOLDER", tmp_path / "tables")


# ------------------------------------------------------------ the topic model


def test_topics_are_the_rows_and_columns_of_a_square() -> None:
    topics = bars(3)
    assert topics.shape == (6, 9)
    for i in range(3):
        for topic, index in ((topics[i], np.s_[i, :]), (topics[3 + i], np.s_[:, i])):
            expected = np.zeros((3, 3))
            expected[index] = 1 / 3
            assert np.allclose(topic.reshape(3, 3), expected)


def test_documents_are_drawn_from_their_topics() -> None:
    train, held_out = replace(SMALL, num_documents=400, num_words=100).corpora()
    assert train.counts.shape == (400, 9)
    assert held_out.counts.shape == (8, 9)
    assert (train.counts.sum(1) == 100).all()
    assert np.allclose(train.probabilities.sum(1), 1.0)
    # Impossible words do not occur, and others as often as expected, to five standard deviations.
    gaps = train.counts.sum(0) - 100 * train.probabilities.sum(0)
    variances = 100 * (train.probabilities * (1 - train.probabilities)).sum(0)
    assert (np.abs(gaps) < 5 * np.sqrt(variances)).all()
    assert not np.array_equal(train.counts, replace(SMALL, seed=1).corpora()[0].counts)


def test_values_are_perplexities_of_the_choices() -> None:
    choices, values = SMALL.choices(), SMALL.compute()
    assert choices.shape == (12, 3)
    train, held_out = SMALL.corpora()
    row = int(torch.nonzero((choices == torch.tensor([3.0, 0.75, 2.0])).all(-1)))
    model = LatentDirichletAllocation(
        6,
        doc_topic_prior=0.2,
        learning_method="online",
        batch_size=8,
        learning_decay=0.75,
        learning_offset=4.0,
        max_iter=1,
        random_state=0,
    ).fit(train.counts)
    # One pass: three mini-batches of eight.
    assert model.n_batch_iter_ == 1 + 3
    assert values[row].item() == pytest.approx(-model.perplexity(held_out.counts))
    assert len(values.unique()) == 12
    assert values.max().item() < -held_out.true_perplexity()


# ------------------------------------------------------------ problems and search


def test_initial_points_are_different_choices() -> None:
    X, again, other = (tasks.random_choices(5, seed, task=SMALL) for seed in (1, 1, 2))
    assert torch.equal(X, again)
    assert not torch.equal(X, other)
    assert len(X.unique(dim=0)) == 5
    assert all((SMALL.choices() == x).all(-1).any() for x in X)


@pytest.mark.parametrize("name", ["bo", "ocbo_loo"])
def test_methods_try_each_choice_once(name: str) -> None:
    problem = replace(tasks.tabulated(replace(SMALL, decays=(0.5, 1.0))), num_evaluations=3)
    with without_expected_warnings():
        result = tasks.replicate(problem, METHODS[name], 2000)
    # All eight choices, so that the optimum is among them.
    assert len({tuple(x) for x in result.X}) == 8
    assert result.regret_by_outcome[-1] == 0.0
    assert result.f == result.y
    expected = problem.build(0).truth(torch.tensor(result.X, dtype=torch.double))
    assert result.f == expected.flatten().tolist()
    assert len(result.extras["objective_covered"]) == 8


def test_the_choice_maximises_the_acquisition_function() -> None:
    problem = tasks.tabulated(SMALL)
    strategy: Any = METHODS["bo"].build(problem, 0)
    X = problem.initial_design(5, 0)
    Y = problem.build(0).observe(X)

    def farthest(points: torch.Tensor) -> torch.Tensor:
        return points.squeeze(-2).square().sum(-1)

    with without_expected_warnings():
        strategy.propose(strategy.fit(X, Y), X, Y)
    left = [x for x in SMALL.choices() if not (X == x).all(-1).any()]
    best = max(left, key=lambda x: float(x.square().sum()))
    assert torch.equal(strategy.maximise(farthest), best.unsqueeze(0))
