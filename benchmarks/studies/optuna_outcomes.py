"""Four workers on constraints and on several objectives: `DelayAwareSampler` beside ``GPSampler``.

Optuna's own sampler takes account of running trials under both as well. Workers are simulated: a
trial takes a time drawn from an exponential distribution, and the next one is asked for as soon as
one of four has ended. Reported are, after 40 trials, the regret of the best feasible trial or the
share of the largest hypervolume that is dominated, and the seconds of a proposal with at least 20
complete trials, in this process, on one thread.

    python -m benchmarks.studies.optuna_outcomes --seeds 5 --write [--problem ConstrainedGramacy]
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch
from botorch.test_functions.multi_objective import ConstrainedBraninCurrin
from botorch.test_functions.synthetic import ConstrainedGramacy
from botorch.utils.multi_objective.hypervolume import Hypervolume
from botorch.utils.multi_objective.pareto import is_non_dominated

from benchmarks.framework.markdown import table
from benchmarks.framework.runner import one_torch_thread
from botorch_calib.integrations.optuna_delays import DelayAwareSampler

WORKERS, NUM_INITIAL, NUM_TRIALS = 4, 10, 40
PROBLEMS = {each.__name__: each for each in (ConstrainedGramacy, ConstrainedBraninCurrin)}
TABLE = Path(__file__).parents[1] / "tables" / "optuna_outcomes.md"


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
            start = time.perf_counter()
            trial = study.ask()
            evaluate(problem, trial)
            if number >= 20 + WORKERS:
                seconds.append(time.perf_counter() - start)
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
    return Hypervolume(-problem.ref_point.double()).compute(front) / problem.max_hv


def main(seeds: int, problem: str | None, write: bool) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    rows = []
    for kind in PROBLEMS if problem is None else [problem]:
        for name in ("DelayAwareSampler", "GPSampler"):
            with one_torch_thread():
                results = [run(PROBLEMS[kind](), name, seed) for seed in range(seeds)]
            finals = [final for final, _ in results]
            seconds = [second for _, each in results for second in each]
            rows.append(
                [
                    kind,
                    name,
                    f"{statistics.mean(finals):.4f}",
                    " ".join(f"{final:.3f}" for final in sorted(finals)),
                    f"{statistics.median(seconds):.2f}",
                ]
            )
            print(rows[-1], flush=True)
    heads = ["problem", "sampler", "mean", f"regret, or share of the hypervolume, {seeds} seeds"]
    lines = table([*heads, "seconds a proposal"], rows)
    chosen = "" if problem is None else f" --problem {problem}"
    command = f"python -m benchmarks.studies.optuna_outcomes --seeds {seeds} --write{chosen}"
    page = "\n".join(
        [
            "# Four workers on several outcomes, in Optuna",
            "",
            f"`{command}`: {__doc__.splitlines()[0] if __doc__ else ''}",
            "",
            *lines,
            "",
        ]
    )
    print(page)
    if write:
        TABLE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--problem", choices=PROBLEMS)
    parser.add_argument("--write", action="store_true")
    main(**vars(parser.parse_args()))
