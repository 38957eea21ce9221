"""Tiny runs of the demonstration, and the numbers that its part on coverage prints and draws."""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import matplotlib.image
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from benchmarks.calibration import stateful
from benchmarks.calibration.ackley import small_noisy_ackley
from benchmarks.demo import __main__ as demo
from benchmarks.demo import coverage as demo_coverage
from benchmarks.demo import interval_study
from benchmarks.demo import svc_tuning as svc
from benchmarks.demo.common import Budget, Figures, run_all, suite_colors
from benchmarks.framework.results import Named, Result
from benchmarks.framework.runner import Task
from benchmarks.framework.sequential import replicate
from benchmarks.suites import SUITES
from botorch_calib import CalibratedModel, LocalizedConformal

# The pictures of each part.
PICTURES = {
    "coverage": ("regret.png", "reliability.png", "intervals.png", "threshold_map.png"),
    "delays": ("delays.png",),
    "robustness": ("robustness.png",),
    "decisions": ("decisions.png",),
}


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


TEXTS = {
    "coverage": ("best of 7 settings", "LOCBO", "BO with LogEI", "misses of 80 %", "kappa = 2"),
    "delays": ("GP-UCB-SDF", "UCB, ignoring delays", "GP-BUCB", "qLogEI", "2 queries"),
    "robustness": ("WDRBO, radius 0.1", "ERBO", "difference, run by run", "2 rounds"),
    "decisions": (
        "GP, reported errors",
        "reported, budget rule",
        "at most 2",
        "2 rounds",
        "noise: stated",
    ),
}


@pytest.mark.parametrize("part", PICTURES)
def test_each_part_alone_prints_its_tables_and_writes_its_pictures(
    part: str, tmp_path: Path, capsys
) -> None:
    sizes = ["--seeds", "1", "--iterations", "2", "--rounds", "2", "--jobs", "1"]
    folder = tmp_path / "new" / "folder"
    assert demo.main(["--only", part, *sizes, "--output", str(folder)]) == 0
    output = capsys.readouterr().out
    for text in (*TEXTS[part], *PICTURES[part]):
        assert text in output
    assert not re.search(r"\bnan\b", output)
    assert {path.name for path in folder.iterdir()} == set(PICTURES[part])
    for name in PICTURES[part]:
        picture = matplotlib.image.imread(folder / name)
        assert picture[..., :3].std() > 0.05, f"{name} is blank"


def scripted(monkeypatch: pytest.MonkeyPatch, interrupted: str | None = None) -> list[Budget]:
    """Parts that draw an empty picture, but for the one that is interrupted; their budgets."""
    budgets: list[Budget] = []

    def part(name: str, budget: Budget) -> Figures:
        budgets.append(budget)
        if name == interrupted:
            raise KeyboardInterrupt
        return {f"{name}.png": Figure()}

    parts = {name: (name.upper(), partial(part, name)) for name in PICTURES}
    monkeypatch.setattr(demo, "PARTS", parts)
    return budgets


def test_one_command_runs_all_parts_in_order(tmp_path: Path, monkeypatch, capsys) -> None:
    budgets = scripted(monkeypatch)
    assert demo.main(["--output", str(tmp_path), "--seeds", "3"]) == 0
    assert budgets == [Budget(seeds=3)] * 4
    output = capsys.readouterr().out
    titles = [output.index(name.upper()) for name in PICTURES]
    assert titles == sorted(titles)


def test_an_interruption_keeps_what_is_finished(tmp_path: Path, monkeypatch, capsys) -> None:
    scripted(monkeypatch, interrupted="delays")
    assert demo.main(["--output", str(tmp_path)]) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["coverage.png"]
    captured = capsys.readouterr()
    assert "interrupted" in captured.err
    assert "finished in" not in captured.out and "ROBUSTNESS" not in captured.out


def test_a_part_that_does_not_exist_is_refused(capsys) -> None:
    with pytest.raises(SystemExit):
        demo.main(["--only", "coverage", "speed"])
    assert "speed" in capsys.readouterr().err


def test_rounds_are_at_most_those_planned() -> None:
    assert [Budget(rounds=rounds).rounds_of(40) for rounds in (None, 5, 99)] == [40, 5, 40]


def test_demonstration_has_seeds_of_its_own() -> None:
    used = {seed for suite in SUITES.values() for seed in suite.seeds}
    assert used.isdisjoint(Budget(seeds=30).later_seeds())
    assert len(Budget(seeds=4).later_seeds()) == 4


def fails(problem: Named, method: Named, seed: int) -> Result:
    raise ArithmeticError("no such luck")


def test_a_failing_replicate_stops_the_demonstration() -> None:
    task = Task(small_noisy_ackley(2), stateful.locbo_stateful(), 7, fails)
    with pytest.raises(RuntimeError, match="(?s)seed 7 failed.*no such luck"):
        run_all([task], 1, "failing")


def test_colours_are_those_of_the_suite() -> None:
    suite = [SimpleNamespace(name=name) for name in "abcd"]
    assert suite_colors(suite, ["d", "b"]) == [to_hex("C3"), to_hex("C1")]


def test_report_shows_means_errors_and_the_paired_difference(runs) -> None:
    lines = demo_coverage.ackley_report(runs).splitlines()
    # Regrets 1 and 3; misses of 50 % and 25 %; differences -0.5 and -1.
    assert "2.00 ± 1.00" in lines[1] and "37.5 ± 12.5 %" in lines[1]
    assert "1.25 ± 0.75" in lines[2] and "0.0 ± 0.0 %" in lines[2]
    assert "-0.75 ± 0.25" in "\n".join(lines)


def test_report_admits_that_one_run_has_no_error(runs) -> None:
    text = demo_coverage.ackley_report({name: results[:1] for name, results in runs.items()})
    assert "1.00 ± ?" in text
    assert "nan" not in text


def test_central_coverage_counts_pooled_pits(runs) -> None:
    # PITs of 0.5 lie in every central interval, those of 0.95 in the ones above 90 %.
    observed = demo_coverage.central_coverage(runs["bo"], np.array([0.1, 0.8, 0.95]))
    np.testing.assert_allclose(observed, [0.5, 0.5, 1.0])


@pytest.mark.parametrize("option", ["--seeds", "--iterations", "--rounds", "--jobs"])
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
    # The first prediction is the Gaussian one: whether its 80 % interval held decides the first
    # step.
    theta = 1.2815515655446004 / 2.2815515655446004
    covered = result.extras["covered"][0] == 1.0
    replayed = stateful.StatefulStrategy(problem, 0, partial(LocalizedConformal, 0.2, 0.25))
    for n in (problem.num_initial, problem.num_initial + 1):
        replayed.fit(X[:n], Y[:n])
    assert isinstance(replayed.calibrator, LocalizedConformal)
    step = replayed.calibrator.tracker.constants.item() - theta
    assert math.copysign(1.0, step) == (-1.0 if covered else 1.0)
