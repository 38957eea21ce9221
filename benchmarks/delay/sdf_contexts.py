"""Suite `sdf_contexts`: all twenty contexts, and Thompson sampling beside the confidence bound.

Figures 4c and 4d of Verma, Dai and Low (2022) have 20 growing data sets with 30 queries each, for
rules by upper confidence bounds and for rules by Thompson sampling. Suite `sdf_published` has half
of the contexts, and the former alone. The process is the one of the authors' script (`contexts_raw`
there), with which the published result came back for the confidence bound.

Thompson sampling without regard to delays is run twice: with hyperparameters fitted to the observed
values, as in the script, and to the censored ones as well (``ts_censored_fit``), as the script does
for GP-TS-SDF. For the confidence bound suite `sdf_hyperparameters` has found the difference there.
"""

from __future__ import annotations

from benchmarks.delay import objectives
from benchmarks.delay.methods import DelayedAcquisition, sdf
from benchmarks.delay.objectives import DelayedObjective
from benchmarks.delay.replicate import DelayedTask
from benchmarks.framework.collected import Pair, Run
from benchmarks.framework.rbf_surrogate import RawRBF
from botorch_calib.test_functions.delayed import PoissonDelay

NUM_CONTEXTS = 20
TASK = "contexts_20"


def tasks() -> tuple[DelayedTask, ...]:
    """The one task."""
    return (one_after_the_other(TASK, objectives.nonstationary(NUM_CONTEXTS)),)


def one_after_the_other(name: str, objective: DelayedObjective) -> DelayedTask:
    """All contexts of an objective in turn, with the script's process and the published delays."""
    rounds = objective.num_contexts * objective.rounds_per_context
    return DelayedTask(name, objective, PoissonDelay(3.0), 6, num_rounds=rounds, surrogate=RawRBF())


def compared() -> tuple[DelayedAcquisition, ...]:
    """For each acquisition, delays ignored and the script's rule; and the control."""
    script = {"window": "all", "hyperparameters": "censored"}
    return (
        DelayedAcquisition("ucb"),
        sdf("ucb_sdf_script", "ucb", **script),
        DelayedAcquisition("ts", "ts"),
        DelayedAcquisition("ts_censored_fit", "ts", hyperparameters="censored"),
        sdf("ts_sdf_script", "ts", **script),
    )


def pairs(task: str, *methods: tuple[str, str]) -> tuple[Pair, ...]:
    """Comparisons of methods with rivals on one task."""
    return tuple((Run(task, method), Run(task, rival)) for method, rival in methods)


# Is censoring better than ignoring delays, also with the same hyperparameters?
PRIMARY = pairs(
    TASK,
    ("ucb_sdf_script", "ucb"),
    ("ts_sdf_script", "ts"),
    ("ts_sdf_script", "ts_censored_fit"),
)
