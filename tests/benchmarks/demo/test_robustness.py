"""The numbers and curves of the demonstration's part on robustness, from made-up results."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from scipy import integrate, stats

from benchmarks.demo import robustness as demo_robustness
from benchmarks.demo.common import Runs
from benchmarks.framework.results import Result
from benchmarks.framework.runner import Task
from benchmarks.robust import replicate as robust
from botorch_calib.test_functions import ContextShift


def run(seed: int, regret: list[float], decisions: list[float]) -> SimpleNamespace:
    """What the part reads of a result with one initial decision, -1."""
    extras = {"regret": regret, "cumulative_regret": np.cumsum(regret).tolist()}
    X = [[-1.0, 0.4], *([x, 0.5] for x in decisions)]
    return SimpleNamespace(seed=seed, num_initial=1, extras=extras, X=X)


@pytest.fixture
def runs() -> dict[str, list[SimpleNamespace]]:
    # Twelve rounds, of which the last ten are late ones.
    return {
        "wdrbo": [
            run(4, [1.0, 1.0, *[0.1] * 10], [-0.5, -0.5, *[0.26] * 10]),
            run(9, [1.0, 1.0, *[0.3] * 10], [-0.5, -0.5, *[-0.26] * 10]),
        ],
        "erbo": [
            run(9, [0.0, 0.0, *[0.5] * 10], [0.5, 0.5, *[0.01] * 10]),
            run(4, [0.0, 0.0, *[0.4] * 10], [0.5, 0.5, *[0.01] * 10]),
        ],
    }


def test_report_shows_regrets_and_differences_by_seed(runs: Runs) -> None:
    lines = demo_robustness.robustness_report(runs).splitlines()
    assert "per round, last 10" in lines[0]
    robust_line, plain, difference = lines[1:4]
    # Sums 3 and 5 against 4 and 5, by seed -1 and 0; late regrets differ by -0.3 and -0.2.
    assert robust_line.startswith("WDRBO") and "4.000 ± 1.000" in robust_line
    assert "0.200 ± 0.100" in robust_line
    assert plain.startswith("ERBO") and "4.500 ± 0.500" in plain and "0.450 ± 0.050" in plain
    assert "-0.500 ± 0.500" in difference and "-0.250 ± 0.050 (0.50)" in difference
    assert max(map(len, lines)) <= 100


def test_report_names_the_rounds_there_are() -> None:
    short: Any = {name: [run(1, [0.2] * 3, [0.0] * 3)] for name in ("wdrbo", "erbo")}
    assert "per round, last 3" in demo_robustness.robustness_report(short)


def test_figure_shows_regret_and_late_decisions(runs: Runs) -> None:
    regrets, _, decisions = demo_robustness.robustness_figure(runs).axes
    colors = [to_hex(line.get_color()) for line in regrets.get_lines()]
    assert colors == [to_hex("C0"), to_hex("C2")]  # positions in the suite
    mean = np.asarray(regrets.get_lines()[0].get_ydata())
    assert (mean[0], mean[-1]) == pytest.approx((1.0, 4.0))
    # Early and initial decisions are left out, and shares add up to 1 for each method.
    bars: dict[str, dict[float, float]] = {color: {} for color in colors}
    for bar in decisions.patches:
        assert isinstance(bar, Rectangle)
        if bar.get_height() > 0:
            middle = round(bar.get_x() + bar.get_width() / 2, 3)
            bars[to_hex(bar.get_facecolor())][middle] = bar.get_height()
    assert bars[colors[0]] == pytest.approx({-0.275: 0.5, 0.275: 0.5})
    assert bars[colors[1]] == pytest.approx({0.025: 1.0})


def test_stated_expectation_is_that_under_the_stated_distribution() -> None:
    problem = ContextShift()
    X = torch.tensor([[-0.7], [0.0], [0.3]], dtype=torch.double)
    found = demo_robustness.stated_expectation(problem, X)
    for x, value in zip(X.flatten().tolist(), found.tolist(), strict=True):

        def weighted(c: float, x: float = x) -> float:
            f = 1 - abs(c - 0.5) / (abs(x) + 0.2) - (abs(x) + 0.05) ** 0.5
            return f * stats.norm.pdf(c, 0.5, 0.1)

        exact, _ = integrate.quad(weighted, -0.1, 1.1, points=[0.5])
        # 64 points leave an error of a few per cent of E|c - 0.5| / 0.2 = 0.4.
        assert value == pytest.approx(exact, abs=0.02)


def test_runs_are_those_of_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Task] = []

    def note(tasks: list[Task], jobs: int, label: str) -> dict[str, list[Result]]:
        seen.extend(tasks)
        return {}

    monkeypatch.setattr(demo_robustness, "run_all", note)
    demo_robustness.run_shifted([5, 6], 11, jobs=1)
    assert [task.seed for task in seen] == [5, 5, 6, 6]
    assert [task.method.name for task in seen] == ["wdrbo", "erbo"] * 2
    for task in seen:
        assert isinstance(task.problem, robust.ContextualTask)
        assert (task.problem.name, task.problem.num_rounds) == ("context_shift", 11)
        assert task.problem.reference and task.problem.radius == 0.1
