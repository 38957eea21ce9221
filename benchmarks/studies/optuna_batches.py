"""Four parallel trials under a limit, by this package's sampler and by Optuna's ``GPSampler``.

The protocol is ``benchmarks/protocols/optuna_batches.md``.

python -m benchmarks.studies.optuna_batches
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
import torch
from botorch.utils.sampling import manual_seed
from torch import Tensor

from benchmarks.decisions.tasks import CASES, FUNCTIONS, DecisionTask, cube
from benchmarks.framework.markdown import mean_with_interval, table
from benchmarks.studies.command_line import run_study
from botorch_calib.integrations.optuna_decisions import ChanceConstrainedSampler

SEEDS = range(34000, 34010)
COMMAND = "python -m benchmarks.studies.optuna_batches"
PROBLEMS = "styblinski_tang", "hartmann3"
OURS, OWN = "ChanceConstrainedSampler", "GPSampler"
CELLS = [{"problem": problem, "sampler": each} for problem in PROBLEMS for each in (OURS, OWN)]
NUM_INITIAL, NUM_TRIALS, NUM_RUNNING = 16, 24, 4
COLUMNS = ("violations, %", "best safe value", "value at the stop", "stops safe", "seconds")


def task(problem: str) -> DecisionTask:
    return CASES["right"].task(problem, *FUNCTIONS[problem])


def point_of(parameters: Mapping[str, float]) -> Tensor:
    names = [f"x{i}" for i in range(len(parameters))]
    return torch.tensor([[parameters[name] for name in names]], dtype=torch.double)


def run(cell: Mapping[str, str], seed: int) -> dict[str, Any]:
    """The endpoints of one run."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    own = task(cell["problem"])
    space: dict[str, Any] = {
        f"x{i}": optuna.distributions.FloatDistribution(0.0, 1.0) for i in range(own.dim)
    }
    with warnings.catch_warnings(), manual_seed(seed):
        warnings.simplefilter("ignore")
        is_ours = cell["sampler"] == OURS
        kind: Any = ChanceConstrainedSampler if is_ours else optuna.samplers.GPSampler
        sampler = kind(seed=seed, n_startup_trials=NUM_INITIAL)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        running: list[optuna.Trial] = []
        seconds: list[float] = []
        for point in cube(own.dim, NUM_INITIAL, seed).tolist():
            study.enqueue_trial(dict(zip(space, point, strict=True)))
            tell(study, study.ask(space), own, seed)
        for _ in range(NUM_TRIALS):
            start = time.process_time()
            running.append(study.ask(space))
            seconds.append(time.process_time() - start)
            if len(running) == NUM_RUNNING:
                tell(study, running.pop(0), own, seed)
        for trial in running:
            tell(study, trial, own, seed)
        # Half of the initial points are safe, so there is a feasible trial.
        stop = point_of(sampler.recommendation(study)[0] if is_ours else study.best_params)
    points = torch.cat([point_of(trial.params) for trial in study.trials])
    best = float(own.objective(own.best_safe_point()))
    values = own.objective(points).squeeze(-1)[own.outcome.safe(points, 0.0)] - best
    violates = [each.constraints["outcome"] > 0.0 for each in study.trials[NUM_INITIAL:]]
    numbers = (
        100.0 * float(np.mean(violates)),
        float(values.max()),
        float(own.objective(stop)) - best,
        float(own.outcome.safe(stop, 0.0)),
        float(np.median(seconds)),
    )
    return dict(zip(COLUMNS, numbers, strict=True))


def tell(study: optuna.Study, trial: optuna.Trial, own: DecisionTask, seed: int) -> None:
    """Tell the study both outcomes, with noise that depends only on the seed and trial number."""
    point = point_of(trial.params)
    with manual_seed(1000 * seed + trial.number):
        outcome = float(own.outcome.observe(point, 0.0))
        value = float(own.objective(point)) + own.objective_noise * float(torch.randn(()))
    trial.set_constraint("outcome", outcome - own.outcome.limit)
    study.tell(trial, value)


def report(runs: list[dict[str, Any]]) -> str:
    rows = []
    digits = dict(zip(COLUMNS, (1, 2, 2, 0, 2), strict=True))
    for cell in CELLS:
        own = [each for each in runs if cell.items() <= each.items()]
        texts = [
            mean_with_interval([r[name] for r in own], f".{digits[name]}f") for name in COLUMNS
        ]
        texts[3] = f"{sum(each['stops safe'] for each in own):.0f} of {len(own)}"
        rows.append([*cell.values(), *texts])
    seeds = sorted({each["seed"] for each in runs})
    differences = []
    for name in COLUMNS:
        of_seeds = []
        for seed in seeds:
            means = [
                np.mean([r[name] for r in runs if r["seed"] == seed and r["sampler"] == sampler])
                for sampler in (OURS, OWN)
            ]
            of_seeds.append(float(means[0] - means[1]))
        differences.append(mean_with_interval(of_seeds, f".{digits[name] or 2}f"))
    rows.append(["both", f"{OURS} less {OWN}", *differences])
    lines = ["# Four trials at a time in Optuna", "", f"Reproduce with `{COMMAND}`.", ""]
    lines += [f"Means over {len(seeds)} seeds, and Student's 95 % intervals.", ""]
    return "\n".join([*lines, *table(["problem", "sampler", *COLUMNS], rows), ""])


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing and write the table."""
    return run_study(COMMAND, __doc__, SEEDS, CELLS, run, report, argv)


if __name__ == "__main__":
    sys.exit(main())
