"""Suite `delay` is that of its protocol, and says all of its settings."""

from __future__ import annotations

from benchmarks.calibration.suites import SMOKE
from benchmarks.delay.methods import sdf
from benchmarks.delay.replicate import tasks
from benchmarks.framework.config import describe
from benchmarks.framework.result import replicate_config
from benchmarks.suites import get_suite
from botorch_calib.test_functions.delayed import FixedDelay, PoissonDelay
from tests.benchmarks.delay.toys import (
    toy,
)


def test_the_suite_is_that_of_the_protocol() -> None:
    suite = get_suite("delay")
    assert [method.name for method in suite.methods] == [
        "ucb_sdf",
        "ucb_sdf_worst",
        "ucb",
        "ucb_hallucinate",
        "ts_sdf",
        "ts",
        "ts_hallucinate",
        "qlogei_pending",
        "qucb_pending",
        "ucb_default",
    ]
    assert list(suite.seeds) == list(range(10000, 10030))
    for task in tasks():
        assert (task.num_rounds, task.max_wait) == (100, 20)
        kind = task.name.rpartition("_")[2]
        assert task.delay == {"poisson": PoissonDelay(10.0), "fixed": FixedDelay(10.0)}[kind]
        assert not task.contextual
    assert len(tasks()) == 8


def test_stored_results_of_other_suites_stay_valid() -> None:
    """What describes them must not gain or lose a field: their hashes would change."""
    config = replicate_config(SMOKE.problems[0], SMOKE.methods[0])
    assert list(config["problem"]) == [
        "type",
        "name",
        "build",
        "bounds",
        "optimal_value",
        "initial_design",
        "num_initial",
        "num_evaluations",
        "surrogate",
    ]
    assert config["problem"]["type"] == "benchmarks.Problem"
    assert list(config["method"]) == ["type", "name", "build"]
    assert config["method"]["type"] == "benchmarks.Method"


def test_the_configuration_names_delays_and_settings() -> None:
    config = describe(toy(PoissonDelay(3.0)))
    assert config["delay"]["mean"] == 3.0
    assert config["max_wait"] == 4
    assert describe(sdf("x", "ucb"))["window"] == "pending"
