"""Speed of a trial in Optuna, as a ratio to that of its own ``GPSampler``, on the same trials.

Importing this module registers the comparisons with `perf.measure`, if Optuna is installed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.perf.measure import Call, Workload, comparison
from botorch_calib.test_functions import HeteroscedasticAckley

if TYPE_CHECKING:
    import optuna

NUM_TRIALS, NUM_RUNNING = 20, 3
LIMIT = 13.0


def started_study(
    work: Workload, sampler: Any, constrained: bool, running: int
) -> tuple[optuna.Study, list[optuna.Trial]]:
    """A study with twenty completed trials, the same whatever the sampler, and those that run."""
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
    """Tell the study minus Ackley's function with noise; limited is the distance from a corner."""
    x = torch.tensor([[trial.params["a"], trial.params["b"]]], dtype=torch.double)
    problem = HeteroscedasticAckley()
    value = float(problem(x))
    if constrained:
        distance = float((x - problem.bounds[0]).norm())
        trial.set_constraint("distance", distance + 0.1 * value - LIMIT)
    study.tell(trial, value)


def trial_of(study: optuna.Study, running: list[optuna.Trial], constrained: bool) -> Call:
    """Ask for a trial, which fits the models anew, and complete the one that has run longest."""
    space = study.get_trials(deepcopy=False)[0].distributions

    def trial(repetition: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a few trials are not certified
            running.append(study.ask(space))
            complete(study, running.pop(0), constrained)

    return trial


def trials_by(
    work: Workload, sampler: Callable[..., Any], constrained: bool, running: int
) -> tuple[Call, Call]:
    """Trials by a sampler and by ``GPSampler``."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        samplers = [
            each(seed=0, n_startup_trials=NUM_TRIALS)
            for each in (sampler, optuna.samplers.GPSampler)
        ]
    ours, rival = (
        trial_of(*started_study(work, each, constrained, running), constrained) for each in samplers
    )
    return ours, rival


def certified_ratio(work: Workload) -> tuple[Call, Call]:
    """A certified trial beside one of ``GPSampler`` under the same constraint."""
    from botorch_calib.integrations.optuna_decisions import ChanceConstrainedSampler

    return trials_by(work, ChanceConstrainedSampler, constrained=True, running=0)


def delay_aware_ratio(work: Workload) -> tuple[Call, Call]:
    """A trial of one objective, beside running ones."""
    from botorch_calib.integrations.optuna_delays import DelayAwareSampler

    return trials_by(work, DelayAwareSampler, constrained=False, running=NUM_RUNNING)


def constrained_delay_aware_ratio(work: Workload) -> tuple[Call, Call]:
    """A trial under a constraint, beside running ones."""
    from botorch_calib.integrations.optuna_delays import DelayAwareSampler

    return trials_by(work, DelayAwareSampler, constrained=True, running=NUM_RUNNING)


if find_spec("optuna") is not None:
    for name, build in (
        ("certified / GPSampler's trial in Optuna, one constraint", certified_ratio),
        ("delay-aware / GPSampler's trial in Optuna, three running", delay_aware_ratio),
        (
            "delay-aware / GPSampler's trial in Optuna, one constraint, three running",
            constrained_delay_aware_ratio,
        ),
    ):
        comparison(name, repetitions=15, warm_up=2)(build)
