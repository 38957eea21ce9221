"""Four workers on constraints and on several objectives: `DelayAwareSampler` beside ``GPSampler``.

    python -m benchmarks.studies.optuna_outcomes [--seeds 10000:10005]

Protocol (fixed before any run that counts; nothing is to be tuned on its seeds, 10000 and on).

* Optuna's own sampler takes account of running trials as well. Workers are simulated: a trial takes
  a time drawn from an exponential distribution, and the next one is asked for as soon as one of
  four has ended. 10 trials at random, 40 in all.
* Problems: ``ConstrainedGramacy``, two inputs, two constraints, one objective;
  ``ConstrainedBraninCurrin``, two inputs, one constraint, two objectives; both without noise, which
  ``GPSampler`` is told (``deterministic_objective``).
* Measures after 40 trials: the regret of the best feasible trial, or the share of the largest
  hypervolume that is not dominated; smaller is better for both. The mean over the seeds with
  Student's 95 % interval, and that of the difference of the two samplers, seed by seed. And the
  median CPU seconds of a proposal with at least 20 complete trials, of this process on one thread.
* ``GPSampler`` with ``greenlet`` installed, with which its search is faster.
* Seeds: five. They are run one after the other, all problems and samplers of each; where the
  machine's time ends before that, the report is on the whole seeds so far, and says how many.

Runs are kept in ``benchmarks/results/optuna_outcomes.jsonl``, so a study that was interrupted goes
on.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
import torch
from botorch.test_functions.multi_objective import ConstrainedBraninCurrin
from botorch.test_functions.synthetic import ConstrainedGramacy
from botorch.utils.multi_objective.hypervolume import Hypervolume
from botorch.utils.multi_objective.pareto import is_non_dominated

from benchmarks.framework.markdown import mean_and_half_width, table
from benchmarks.studies.command_line import run_study
from botorch_calib.integrations.optuna_delays import DelayAwareSampler

WORKERS, NUM_INITIAL, NUM_TRIALS = 4, 10, 40
PROBLEMS = {each.__name__: each for each in (ConstrainedGramacy, ConstrainedBraninCurrin)}
SAMPLERS = ("DelayAwareSampler", "GPSampler")
SEEDS = range(10_000, 10_005)


def sampler(name: str, seed: int) -> Any:
    if name == "GPSampler":
        return optuna.samplers.GPSampler(
            seed=seed, n_startup_trials=NUM_INITIAL, deterministic_objective=True
        )
    return DelayAwareSampler(seed=seed, n_startup_trials=NUM_INITIAL)


def evaluate(problem: Any, trial: optuna.Trial, tell: bool = False) -> list[float]:
    """Objectives, to be minimised, of a trial whose constraints are set."""
    x = [trial.suggest_float(f"x{i}", *map(float, ends)) for i, ends in enumerate(problem.bounds.T)]
    X = torch.tensor([x], dtype=torch.double)
    if tell:
        for i, slack in enumerate(problem.evaluate_slack_true(X)[0].tolist()):
            trial.set_constraint(f"c{i}", -slack)
    return problem.evaluate_true(X).flatten().tolist()


def run(problem: Any, name: str, seed: int) -> tuple[float, list[float]]:
    """The final measure, and the seconds of late proposals."""
    study = optuna.create_study(
        directions=["minimize"] * problem.num_objectives, sampler=sampler(name, seed)
    )
    rng, now, seconds = np.random.default_rng(seed), 0.0, []
    running: list[tuple[float, optuna.Trial]] = []
    for number in range(NUM_TRIALS + WORKERS - 1):
        if number < NUM_TRIALS:
            start = time.process_time()
            trial = study.ask()
            evaluate(problem, trial)
            if number >= 20 + WORKERS:
                seconds.append(time.process_time() - start)
            running.append((now + rng.exponential(), trial))
        if len(running) == WORKERS or number >= NUM_TRIALS:
            running.sort(key=lambda each: each[0])
            now, ended = running.pop(0)
            study.tell(ended, evaluate(problem, ended, tell=True))
    return measure(problem, study), seconds


def measure(problem: Any, study: optuna.Study) -> float:
    feasible = [t.values for t in study.trials if all(c <= 0.0 for c in t.constraints.values())]
    values = torch.tensor(feasible, dtype=torch.double)
    if problem.num_objectives == 1:
        return values.min().item() - problem.optimal_value if feasible else float("inf")
    front = -values[is_non_dominated(-values)]
    return 1.0 - Hypervolume(-problem.ref_point.double()).compute(front) / problem.max_hv


def markdown(runs: Sequence[dict[str, Any]]) -> str:
    """The report: a row for each problem and sampler, and one of their differences."""
    seeds = sorted({each["seed"] for each in runs})
    rows = []
    for problem in PROBLEMS:
        own = {
            name: [each for each in runs if (each["problem"], each["sampler"]) == (problem, name)]
            for name in SAMPLERS
        }
        finals = {name: [each["final"] for each in found] for name, found in own.items()}
        for name in SAMPLERS:
            seconds = [second for each in own[name] for second in each["seconds"]]
            rows.append(
                [
                    problem,
                    name,
                    mean_and_half_width(finals[name], 4),
                    f"{statistics.median(seconds):.2f}",
                ]
            )
        differences = [a - b for a, b in zip(*finals.values(), strict=True)]
        rows.append(
            [problem, "the former less the latter", mean_and_half_width(differences, 4), ""]
        )
    legend = (
        f"Four workers, {NUM_TRIALS} trials, {len(seeds)} of {len(SEEDS)} seeds. The table shows "
        "the regret of the best feasible trial, or the share of the largest hypervolume that is "
        "not dominated: means with Student's 95 % interval (half of its length after ±); smaller "
        "is better. CPU seconds of a proposal are medians."
    )
    reproduce = "Reproduce with `python -m benchmarks.studies.optuna_outcomes`."
    head = ["problem", "sampler", "regret, or share", "CPU seconds"]
    return "\n".join([reproduce, "", legend, "", *table(head, rows), ""])


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, and write the table."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")

    def kept(cell: Mapping[str, str], seed: int) -> dict[str, object]:
        final, seconds = run(PROBLEMS[cell["problem"]](), cell["sampler"], seed)
        return {"final": final, "seconds": seconds}

    cells = [{"problem": problem, "sampler": name} for problem in PROBLEMS for name in SAMPLERS]
    command = "python -m benchmarks.studies.optuna_outcomes"
    return run_study(command, __doc__, SEEDS, cells, kept, markdown, argv)


if __name__ == "__main__":
    sys.exit(main())
