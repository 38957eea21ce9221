"""The numbers and curves of the demonstration's part on delays, from made-up results."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.colors import to_hex

from benchmarks.delay import replicate as delay
from benchmarks.demo import delays as demo_delays
from benchmarks.demo.common import Runs
from benchmarks.framework.results import Result
from benchmarks.framework.runner import Task


def run(seed: int, simple: list[float], every: float) -> SimpleNamespace:
    """What the part reads of a result; the first entry of a trace is as of the first choice."""
    extras = {"simple_regret": [1.0, *simple], "cumulative_regret_all": [0.0] * 2 + [every]}
    return SimpleNamespace(seed=seed, extras=extras)


@pytest.fixture
def runs() -> dict[str, list[SimpleNamespace]]:
    # Mean simple regrets, seed by seed: 0.1 and 0.3; 0.2 and 0.6; the same; 0 and 0.
    return {
        "ucb_sdf": [run(4, [0.2, 0.0], 5.0), run(9, [0.4, 0.2], 7.0)],
        "ucb": [run(9, [0.6, 0.6], 4.0), run(4, [0.3, 0.1], 3.0)],
        "ucb_hallucinate": [run(4, [0.2, 0.0], 5.0), run(9, [0.4, 0.2], 7.0)],
        "qlogei_pending": [run(4, [0.0, 0.0], 9.0), run(9, [0.0, 0.0], 12.0)],
    }


def test_report_shows_both_regrets_and_differences_by_seed(runs: Runs) -> None:
    lines = demo_delays.delay_report(runs).splitlines()
    assert lines[0].split("  ")[0] == "" and "simple regret" in lines[0]
    own, ignoring, hallucinating, pending = lines[1:5]
    assert own.startswith("GP-UCB-SDF") and "0.200 ± 0.100" in own and "6.0 ± 1.0" in own
    assert "minus" not in own and own.count("±") == 2
    # Differences -0.1 and -0.3, and 2 and 3, although the seeds come in another order. Two
    # pairs of one sign have Wilcoxon's p of 2 / 2^2.
    assert "0.400 ± 0.200" in ignoring and "-0.200 ± 0.100 (0.50)" in ignoring
    assert "3.5 ± 0.5" in ignoring and "2.5 ± 0.5 (0.50)" in ignoring
    # Equal differences have no test.
    assert "0.000 ± 0.000 (?)" in hallucinating
    assert "0.200 ± 0.100 (0.50)" in pending and "-4.5 ± 0.5 (0.50)" in pending
    assert max(map(len, lines)) <= 100


def test_figure_draws_means_in_the_colours_of_the_suite(runs: Runs) -> None:
    simple, every = demo_delays.delay_figure(runs).axes
    for panel in (simple, every):
        # Positions in the suite: 0, 2, 3 and 7.
        assert [to_hex(line.get_color()) for line in panel.get_lines()] == [
            to_hex(f"C{index}") for index in (0, 2, 3, 7)
        ]
    own = np.asarray(simple.get_lines()[0].get_ydata())
    pending = np.asarray(every.get_lines()[3].get_ydata())
    assert own.tolist() == pytest.approx([1.0, 0.3, 0.1])
    assert pending.tolist() == pytest.approx([0.0, 0.0, 10.5])


def test_runs_are_those_of_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Task] = []

    def note(tasks: list[Task], jobs: int, label: str) -> dict[str, list[Result]]:
        seen.extend(tasks)
        return {}

    monkeypatch.setattr(demo_delays, "run_all", note)
    demo_delays.run_delayed([5, 6], 17, jobs=1)
    assert [task.seed for task in seen] == [5] * 4 + [6] * 4
    assert {task.method.name for task in seen} == set(demo_delays.NAMES)
    for task in seen:
        assert isinstance(task.problem, delay.DelayedTask)
        assert (task.problem.name, task.problem.num_rounds) == ("gp_sample_poisson", 17)
        assert task.replicate is delay.replicate
