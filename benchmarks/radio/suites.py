"""The suite on a radio network."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.framework.stored_results import FLAGS, REGRETS, significant
from benchmarks.framework.suite import Suite
from benchmarks.radio.methods import compared
from benchmarks.radio.problems import problems
from benchmarks.radio.report import Claim, RadioReport

# The loop of the paper's third experiment.
RADIO = Suite(
    name="radio",
    problems=problems(),
    methods=compared(),
    baseline="ei",
    seeds=range(10000, 10040),
    report=RadioReport(
        subject="locbo",
        rivals=("ei", "locbo_global", "cbo", "ocbo", "ocbo_localized"),
        claims=(
            Claim(1, "fading_1", "locbo", "locbo_global"),
            Claim(2, "fading_1", "locbo", "cbo"),
            Claim(2, "fading_1", "locbo", "ocbo"),
            Claim(3, "fading_1", "locbo", "ei"),
            Claim(3, "fading_4", "locbo", "ei"),
            Claim(4, "fading_1", "ei", "random"),
            Claim(4, "fading_4", "ei", "random"),
        ),
    ),
    protocol="radio",
    archive=replace(
        REGRETS,
        extras={
            "covered": FLAGS,
            "objective_covered": FLAGS,
            "objective_covered_in_box": significant(4),
        },
        others=None,
    ),
)

SUITES = (RADIO,)
