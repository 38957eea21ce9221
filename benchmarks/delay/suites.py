"""The suites on delayed feedback."""

from __future__ import annotations

from benchmarks.delay import methods, workers
from benchmarks.delay.replicate import replicate, tasks
from benchmarks.delay.report import PENDING, DelayReport
from benchmarks.delay.workers_report import WorkersReport
from benchmarks.framework.stored_results import EXACT, Condensation, average, significant
from benchmarks.framework.suite import Suite

# Regrets are kept by round. Data of single queries are left out.
ARCHIVED = Condensation(
    fields={
        "inference_by_outcome": EXACT,
        "regret_by_outcome": significant(4),
        "fit_seconds": average(),
        "acquisition_seconds": average(),
    },
    extras={
        "simple_regret": significant(4),
        "cumulative_regret": significant(4),
        "cumulative_regret_all": significant(4),
        "best_arrived": significant(6),
    },
)

DELAY = Suite(
    name="delay",
    problems=tasks(),
    methods=(*methods.compared(), methods.default()),
    baseline="ucb",
    seeds=range(10000, 10030),
    replicate=replicate,
    report=DelayReport(
        primary=(
            ("ucb_sdf", "ucb"),
            ("ucb_default", "ucb"),
            ("ucb_default", "ucb_sdf"),
            ("ucb_default", PENDING),
        )
    ),
    protocol="late_values",
    archive=ARCHIVED,
)

DELAY_WORKERS = Suite(
    name="delay_workers",
    problems=workers.tasks(),
    methods=workers.compared(),
    baseline="default",
    seeds=range(10020, 10040),
    replicate=replicate,
    report=WorkersReport(rivals=("ucb_hallucinate", "ts_hallucinate", "qlogei_pending")),
    protocol="many_workers",
    archive=ARCHIVED,
)

SUITES = (DELAY, DELAY_WORKERS)
