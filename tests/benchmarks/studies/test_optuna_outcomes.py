"""The study of two samplers in Optuna: what it measures, and its table."""

from __future__ import annotations

import optuna
import pytest

from benchmarks.studies import optuna_outcomes as study


def told(problem: object, x: list[float]) -> optuna.Study:
    """A study with one trial at a point."""
    minimize = optuna.study.StudyDirection.MINIMIZE
    made = optuna.create_study(directions=[minimize] * problem.num_objectives)  # type: ignore[attr-defined]
    made.enqueue_trial({f"x{i}": value for i, value in enumerate(x)})
    trial = made.ask()
    made.tell(trial, study.evaluate(problem, trial, tell=True))
    return made


def test_regret_of_feasible_trials_alone() -> None:
    problem = study.PROBLEMS["ConstrainedGramacy"]()
    # Its optimum, of its paper, where a constraint is active: a point a little inside of it.
    near = study.measure(problem, told(problem, [0.1955, 0.4047]))
    assert 0.0 < near < 0.01
    assert study.measure(problem, told(problem, [0.0, 0.0])) == float("inf")


def test_a_table() -> None:
    runs = [
        {"seed": seed, "problem": problem, "sampler": name, "final": final, "seconds": [0.5, 0.1]}
        for problem in study.PROBLEMS
        for name, finals in zip(study.SAMPLERS, ((0.2, 0.4), (0.2, 0.2)), strict=True)
        for seed, final in enumerate(finals)
    ]
    text = study.markdown(runs)
    # Student's quantile for one degree of freedom is 12.7062, and the standard error 0.1.
    assert "| ConstrainedGramacy | DelayAwareSampler | 0.3000 ± 1.2706 | 0.30 |" in text
    assert "| ConstrainedGramacy | the former less the latter | 0.1000 ± 1.2706 |  |" in text
    assert "2 of 5 seeds" in text


@pytest.fixture(autouse=True)
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
