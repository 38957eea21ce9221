"""The suite on a radio network."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.framework.condensation import REGRETS, Flags, Significant
from benchmarks.framework.suite import Suite
from benchmarks.radio.methods import compared
from benchmarks.radio.problems import problems
from benchmarks.radio.report import RadioReport

# The loop of the paper's third experiment.
RADIO = Suite(
    name="radio",
    problems=problems(),
    methods=compared(),
    baseline="ei",
    seeds=range(10000, 10040),
    report=RadioReport(
        subject="locbo", rivals=("ei", "locbo_global", "cbo", "ocbo", "ocbo_localized")
    ),
    protocol="radio",
    archive=replace(
        REGRETS,
        extras={
            "covered": Flags(),
            "objective_covered": Flags(),
            "objective_covered_in_box": Significant(4),
        },
        others=None,
    ),
)

SUITES = (RADIO,)
