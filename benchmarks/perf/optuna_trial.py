"""Speed of a trial in Optuna, as a ratio to Optuna's ``GPSampler`` on the same trials.

Importing this module registers the comparisons with `perf.measure`, if Optuna is installed.
"""

from __future__ import annotations

import warnings
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.perf.measure import Call, Workload, comparison
from botorch_calib.test_functions import HeteroscedasticAckley

if TYPE_CHECKING:
    import optuna

NUM_TRIALS = 20
LIMIT = 13.0


def started_study(
    work: Workload, sampler: Any, constrained: bool, running: int
) -> tuple[optuna.Study, list[optuna.Trial]]:
    """A study with twenty completed trials, the same for all samplers, and its running trials."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    ends = zip("ab", work.bounds.t().tolist(), strict=True)
    space: dict[str, Any] = {
        name: optuna.distributions.FloatDistribution(*bounds) for name, bounds in ends
    }
    trials = []
    for point in work.X[: NUM_TRIALS + running].tolist():
        study.enqueue_trial(dict(zip(space, point, strict=True)))
        trials.append(study.ask(space))
    for trial in trials[:NUM_TRIALS]:
        complete(study, trial, constrained)
    return study, trials[NUM_TRIALS:]


def complete(study: optuna.Study, trial: optuna.Trial, constrained: bool) -> None:
    """Tell the study minus Ackley's function with noise, and the limited distance from a corner."""
    x = torch.tensor([[trial.params["a"], trial.params["b"]]], dtype=torch.double)
    problem = HeteroscedasticAckley()
    value = float(problem(x))
    if constrained:
        distance = float((x - problem.bounds[0]).norm())
        trial.set_constraint("distance", distance + 0.1 * value - LIMIT)
    study.tell(trial, value)


def trial_of(study: optuna.Study, running: list[optuna.Trial], constrained: bool) -> Call:
    """Ask for a trial, which fits the models, and complete the trial that has run longest."""
    space = study.get_trials(deepcopy=False)[0].distributions

    def trial(repetition: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a few trials are not certified
            running.append(study.ask(space))
            complete(study, running.pop(0), constrained)

    return trial


def trials_by(
    module: str, sampler: str, constrained: bool, running: int, work: Workload
) -> tuple[Call, Call]:
    """Trials by a sampler of this package and by ``GPSampler``."""
    import optuna

    own = getattr(import_module(f"botorch_calib.integrations.{module}"), sampler)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        samplers = [
            each(seed=0, n_startup_trials=NUM_TRIALS) for each in (own, optuna.samplers.GPSampler)
        ]
    ours, rival = (
        trial_of(*started_study(work, each, constrained, running), constrained) for each in samplers
    )
    return ours, rival


CERTIFIED = ("optuna_decisions", "ChanceConstrainedSampler")
DELAY_AWARE = ("optuna_delays", "DelayAwareSampler")

if find_spec("optuna") is not None:
    for name, sampler, constrained, running in (
        ("certified / GPSampler's trial in Optuna, one constraint", CERTIFIED, True, 0),
        ("delay-aware / GPSampler's trial in Optuna, three running", DELAY_AWARE, False, 3),
        (
            "delay-aware / GPSampler's trial in Optuna, one constraint, three running",
            DELAY_AWARE,
            True,
            3,
        ),
    ):
        comparison(name, repetitions=15, warm_up=2)(
            partial(trials_by, *sampler, constrained, running)
        )
