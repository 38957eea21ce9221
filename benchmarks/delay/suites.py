"""The suites on delayed feedback."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.delay import (
    methods,
    sdf_contexts,
    sdf_published,
    sdf_sweeps,
    sdf_tasks,
    workers,
)
from benchmarks.delay.replicate import replicate, tasks
from benchmarks.delay.report import (
    PENDING,
    DelayReport,
    cumulative_regret_all,
    mean_simple_regret,
)
from benchmarks.delay.sdf_report import NEW_POINTS, SdfReport, new_points
from benchmarks.delay.workers_report import WorkersReport
from benchmarks.framework.condensation import (
    Average,
    Condensation,
    Derived,
    Exact,
    Flags,
    Significant,
)
from benchmarks.framework.suite import Suite

# Regrets are steps; what they follow from, query by query, is left out.
ARCHIVED = Condensation(
    fields={
        "inference_by_outcome": Exact(),
        "regret_by_outcome": Significant(4),
        "fit_seconds": Average(),
        "acquisition_seconds": Average(),
    },
    extras={
        "simple_regret": Significant(4),
        "cumulative_regret": Significant(4),
        "cumulative_regret_all": Significant(4),
        "best_arrived": Significant(6),
    },
)

# With how many of the points were new.
ARCHIVED_SDF = replace(ARCHIVED, derived={NEW_POINTS: Derived(new_points, Flags())})

# Values that arrive late; the settings of our own methods are chosen on other seeds.
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

DELAY_SETTINGS = Suite(
    name="delay_settings",
    problems=tuple(task for task in tasks() if task.name.startswith("gp_sample")),
    methods=methods.settings(),
    baseline="ucb",
    seeds=range(1000, 1010),
    replicate=replicate,
    report=DelayReport(),
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

DELAY_WORKERS_SETTINGS = Suite(
    name="delay_workers_settings",
    problems=workers.tasks(
        {**workers.OBJECTIVES, **workers.OBJECTIVES_OF_SETTINGS}, workers.WORKERS_OF_SETTINGS
    ),
    methods=workers.settings(),
    baseline="spread",
    seeds=range(1000, 1010),
    replicate=replicate,
    report=WorkersReport(rivals=("ucb", "draws")),
    archive=ARCHIVED,
)

# GP-UCB-SDF by the authors' script, and what turns its comparison with contexts round.
SDF_PUBLISHED = Suite(
    name="sdf_published",
    problems=sdf_published.tasks(),
    methods=sdf_published.compared(),
    baseline="ucb",
    seeds=range(10000, 10010),
    replicate=replicate,
    report=SdfReport(cumulative_regret_all, sdf_published.PRIMARY),
    protocol="sdf_published",
    archive=ARCHIVED_SDF,
)

# Its control: the rule that ignores delays, with the hyperparameters of GP-UCB-SDF.
SDF_HYPERPARAMETERS = Suite(
    name="sdf_hyperparameters",
    problems=sdf_published.raw_tasks(),
    methods=sdf_published.same_hyperparameters(),
    baseline="ucb_censored_fit",
    seeds=range(10010, 10020),
    replicate=replicate,
    report=SdfReport(cumulative_regret_all, sdf_published.PRIMARY_OF_HYPERPARAMETERS),
    protocol="sdf_hyperparameters",
    archive=ARCHIVED_SDF,
)

# With all contexts of the paper, and Thompson sampling.
SDF_CONTEXTS = Suite(
    name="sdf_contexts",
    problems=sdf_contexts.tasks(),
    methods=sdf_contexts.compared(),
    baseline="ucb",
    seeds=range(10020, 10035),
    replicate=replicate,
    report=SdfReport(cumulative_regret_all, sdf_contexts.PRIMARY),
    protocol="sdf_contexts",
    archive=ARCHIVED_SDF,
)

# One classification task after the other.
SDF_TASKS = replace(
    SDF_CONTEXTS,
    name="sdf_tasks",
    problems=sdf_tasks.tasks(),
    methods=sdf_tasks.compared(),
    seeds=range(10040, 10049),
    report=SdfReport(cumulative_regret_all, sdf_tasks.PRIMARY),
    protocol="sdf_tasks",
)

# By the mean delay and by m.
SDF_SWEEPS = Suite(
    name="sdf_sweeps",
    problems=sdf_sweeps.tasks(),
    methods=methods.compared(),
    baseline="ucb",
    seeds=range(10000, 10030),
    replicate=replicate,
    report=SdfReport(mean_simple_regret, sdf_sweeps.PRIMARY, sdf_sweeps.axes()),
    protocol="sdf_sweeps",
    archive=ARCHIVED_SDF,
)

SUITES = (
    DELAY,
    DELAY_SETTINGS,
    DELAY_WORKERS,
    DELAY_WORKERS_SETTINGS,
    SDF_PUBLISHED,
    SDF_HYPERPARAMETERS,
    SDF_CONTEXTS,
    SDF_TASKS,
    SDF_SWEEPS,
)
