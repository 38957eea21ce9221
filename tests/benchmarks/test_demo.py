"""A tiny run of the demonstration, and the numbers that it prints and draws."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import matplotlib.image
import numpy as np
import pytest
import torch

from benchmarks import demo, interval_study, stateful, svc
from benchmarks.core import replicate
from benchmarks.problems import small_noisy_ackley
from botorch_calib import CalibratedModel, LocalizedConformal

PICTURES = ("regret.png", "reliability.png", "intervals.png", "threshold_map.png")


def run(seed: int, regret: float, covered: list[float], pit: list[float]) -> SimpleNamespace:
    """What the report reads of a result."""
    extras = {"covered": covered, "pit": pit, "width": [2.0] * len(pit)}
    return SimpleNamespace(seed=seed, regret_by_outcome=[9.0, regret], extras=extras)


@pytest.fixture
def runs() -> dict[str, list[SimpleNamespace]]:
    return {
        "bo": [run(0, 1.0, [1, 1, 0, 0], [0.5] * 4), run(1, 3.0, [1, 1, 1, 0], [0.95] * 4)],
        "locbo_stateful": [run(0, 0.5, [1] * 4, [0.3] * 4), run(1, 2.0, [1] * 4, [0.7] * 4)],
    }


def test_a_tiny_run_prints_the_tables_and_writes_the_pictures(tmp_path: Path, capsys) -> None:
    options = ["--seeds", "1", "--iterations", "2", "--jobs", "1"]
    assert demo.main([*options, "--output", str(tmp_path / "new" / "folder")]) == 0
    output = capsys.readouterr().out
    for text in ("best of 7 settings", "LOCBO", "BO with LogEI", "misses of 80 %", "kappa = 2"):
        assert text in output
    assert "nan" not in output
    for name in PICTURES:
        assert name in output
        picture = matplotlib.image.imread(tmp_path / "new" / "folder" / name)
        assert picture[..., :3].std() > 0.05, f"{name} is blank"


def test_report_shows_means_errors_and_the_paired_difference(runs) -> None:
    lines = demo.ackley_report(runs).splitlines()
    # Regrets 1 and 3; misses of 50 % and 25 %; differences -0.5 and -1.
    assert "2.00 ± 1.00" in lines[1] and "37.5 ± 12.5 %" in lines[1]
    assert "1.25 ± 0.75" in lines[2] and "0.0 ± 0.0 %" in lines[2]
    assert "-0.75 ± 0.25" in "\n".join(lines)


def test_report_admits_that_one_run_has_no_error(runs) -> None:
    text = demo.ackley_report({name: results[:1] for name, results in runs.items()})
    assert "1.00 ± ?" in text
    assert "nan" not in text


def test_central_coverage_counts_pooled_pits(runs) -> None:
    # PITs of 0.5 lie in every central interval, those of 0.95 in the ones above 90 %.
    observed = demo.central_coverage(runs["bo"], np.array([0.1, 0.8, 0.95]))
    np.testing.assert_allclose(observed, [0.5, 0.5, 1.0])


@pytest.mark.parametrize("option", ["--seeds", "--iterations", "--jobs"])
def test_counts_must_be_positive(option: str, capsys) -> None:
    with pytest.raises(SystemExit):
        demo.main([option, "0"])
    assert "at least 1" in capsys.readouterr().err


def test_svc_objective_is_noisy_and_seeded() -> None:
    digits, x = svc.Digits.load(), torch.tensor([1.0, -3.0])
    parts = [len(part[0]) for part in (digits.train, digits.validation, digits.test)]
    assert sum(parts) == 1797
    first, second = (digits.validation_accuracy(x, np.random.default_rng(s)) for s in (0, 1))
    assert first == digits.validation_accuracy(x, np.random.default_rng(0))
    assert first != second
    assert 0.85 < min(first, second) <= 1.0


def test_svc_report_states_the_accuracies() -> None:
    tuning = svc.Tuning(
        X=torch.zeros(3, 2),
        Y=torch.zeros(3, 1),
        best=torch.tensor([1.0, -3.0]),
        estimate=(0.95, 0.94, 0.96),
        num_covered=2,
        num_stated=3,
        tuned_hits=np.array([True, True, True, False]),
        default_hits=np.array([True, False, True, False]),
    )
    text = svc.tuning_report(tuning)
    assert "C = 10, gamma = 0.001" in text and "2 of 3" in text
    # Means of 0/1 values with their standard errors sd / sqrt(n), n = 4.
    assert "75.00 ± 25.00 %" in text and "50.00 ± 28.87 %" in text and "25.00 ± 25.00 %" in text


def test_true_coverage_agrees_with_simulation() -> None:
    X, Y = interval_study.observations(seed=3, n=40)
    model = interval_study.calibrated(interval_study.fit(X, Y), kappa=2.0)
    points = interval_study.grid(5)
    expected = interval_study.true_coverage(model, points).squeeze(-1)
    low, high = interval_study.prediction_interval(model, points, interval_study.LEVEL)
    torch.manual_seed(0)
    num = 4000
    outcomes = interval_study.PROBLEM(points.expand(num, 5, 1))
    inside = (low.squeeze(-1) <= outcomes) & (outcomes <= high.squeeze(-1))
    # Four standard errors of a frequency.
    tol = 4 * (expected * (1 - expected) / num).sqrt() + 1e-9
    assert ((inside.double().mean(dim=0) - expected).abs() <= tol).all()


def test_stateful_calibrator_scores_each_outcome_once_before_the_fit() -> None:
    problem = small_noisy_ackley(3)
    method = stateful.locbo_stateful()
    result = replicate(problem, method, seed=0)
    X = torch.tensor(result.X, dtype=torch.double)
    Y = torch.tensor(result.y, dtype=torch.double).unsqueeze(-1)
    model = stateful.final_model(problem, X, Y, seed=0)
    assert isinstance(model, CalibratedModel)
    assert model.calibrator.num_updates == problem.num_evaluations
    # The first law is the Gaussian one, so whether its 80 % interval held decides the first step.
    theta = 1.2815515655446004 / 2.2815515655446004
    covered = result.extras["covered"][0] == 1.0
    replayed = stateful.StatefulStrategy(problem, 0, partial(LocalizedConformal, 0.2, 0.25))
    for n in (problem.num_initial, problem.num_initial + 1):
        replayed.fit(X[:n], Y[:n])
    assert isinstance(replayed.calibrator, LocalizedConformal)
    step = replayed.calibrator.tracker.constants.item() - theta
    assert math.copysign(1.0, step) == (-1.0 if covered else 1.0)
