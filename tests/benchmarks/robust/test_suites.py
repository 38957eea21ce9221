"""Suite `robust` is that of its protocol, and says all of its settings."""

from __future__ import annotations

from benchmarks.calibration.suites import SMOKE
from benchmarks.framework.config import describe
from benchmarks.framework.rbf_surrogate import RefittedRBF
from benchmarks.framework.result import replicate_config
from benchmarks.robust.replicate import (
    tasks,
)
from benchmarks.suites import get_suite
from tests.benchmarks.robust.toys import method_named


def test_the_suite_is_that_of_the_protocol() -> None:
    suite = get_suite("robust")
    assert [method.name for method in suite.methods] == [
        "wdrbo",
        "wdrbo_exact",
        "erbo",
        "gp_ucb",
        "sbo_kde",
        "drbo_kde",
        "drbo_mmd",
        "drbo_mmd_minimax",
        "stable_opt",
    ]
    assert [task.name for task in tasks()] == [
        "context_shift",
        "ackley",
        "hartmann6",
        "branin",
        "camel",
        "newsvendor",
    ]
    assert suite.seeds == range(10000, 10015)
    assert suite.baseline == "erbo"
    for task in tasks():
        assert task.num_rounds == 100
        assert (task.radius, task.radius_shrinks) == (
            (0.1, False) if task.reference else (0.3, True)
        )
        assert task.reference == (task.name == "context_shift")
        assert task.surrogate == RefittedRBF(every=1)


def test_configurations_of_other_suites_are_unchanged() -> None:
    config = replicate_config(SMOKE.problems[0], SMOKE.methods[0])
    assert len(config["problem"]) == 9
    for name in ("smoke", "delay", "locbo"):
        suite = get_suite(name)
        assert "radius" not in str(replicate_config(suite.problems[0], suite.methods[0]))


def test_the_configuration_names_settings() -> None:
    config = describe(tasks()[0])
    assert config["radius"] == 0.1
    assert config["build"]["callable"].endswith("ContextShift")
    assert describe(method_named("wdrbo"))["acquisition"]["callable"].endswith("wasserstein")
