"""The published example: its Gaussian processes, its methods, and the report from made-up runs."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from botorch.models.transforms import Normalize
from botorch.utils.sampling import manual_seed
from gpytorch.kernels import MaternKernel, RBFKernel

from benchmarks.calibration import published
from benchmarks.calibration.published import GPS, example
from benchmarks.calibration.stateful import StatefulStrategy
from benchmarks.calibration.suites import LOCBO_FULL, LOCBO_SWEEPS
from benchmarks.framework.report import markdown
from benchmarks.framework.results import Result
from benchmarks.framework.runner import without_expected_warnings
from benchmarks.framework.sequential import Method, replicate
from botorch_calib.calibration import GaussianScore, QuantileRecalibrator
from tests.benchmarks.calibration.runs import cells, run
from tests.benchmarks.results import ByProblem, made_up

METHODS = {method.name: method for method in published.compared()}


def test_the_gaussian_processes() -> None:
    problem = example("heteroscedastic", "raw")
    with manual_seed(0):
        X = problem.initial_design(8, 1)
        Y = problem.build(0).observe(X)
    made: dict[str, Any] = {
        name: example("heteroscedastic", name).surrogate(X, Y, problem.bounds_tensor(), 0, None)
        for name in GPS
    }
    assert getattr(made["raw"], "input_transform", None) is None
    for name in ("normalized", "default"):
        assert isinstance(made[name].input_transform, Normalize)
    for name in ("raw", "normalized"):
        kernel = made[name].covar_module.base_kernel
        assert isinstance(kernel, MaternKernel)
        assert kernel.lengthscale_prior.mean.item() == pytest.approx(0.5)
    assert isinstance(made["default"].covar_module, RBFKernel)
    # A later step without a fit keeps the hyperparameters and the inputs as they are.
    with manual_seed(1):
        more = torch.cat([X, problem.initial_design(1, 2)])
        later: Any = GPS["raw"](
            more, problem.build(0).observe(more), problem.bounds_tensor(), 11, made["raw"]
        )
    assert torch.equal(later.train_inputs[0], more)
    assert later.covar_module is made["raw"].covar_module


def test_lengthscales_are_in_widths_of_the_box() -> None:
    widths = {"raw": 20.0, "normalized": 1.0, "default": 1.0}
    for name, (gp, width) in product(METHODS.keys() - {"bo", "cbo"}, widths.items()):
        strategy: Any = METHODS[name].build(example("heteroscedastic", gp), 0)
        stateful = isinstance(strategy, StatefulStrategy)
        assert stateful == name.endswith(("_stateful", "_published"))
        calibrator = strategy.calibrator if stateful else strategy.calibrator()
        assert isinstance(calibrator, QuantileRecalibrator) == name.startswith("ocbo")
        local = name.startswith(("ocbo_l", "locbo")) and "inf" not in name
        expected = 0.25 * width if local else math.inf
        assert float(calibrator.tracker.lengthscale) == expected
        assert isinstance(calibrator.score, GaussianScore) == name.endswith("published")


def test_the_sweeps_are_around_the_published_settings() -> None:
    raw = example("heteroscedastic", "raw")
    found = {}
    for method in published.swept()[1:]:
        strategy: Any = method.build(raw, 0)
        found[method.name] = (
            strategy.calibrator.alpha,
            float(strategy.calibrator.tracker.lengthscale),
        )
    assert found == {
        "l_1": (0.2, 1.0),
        "l_2.5": (0.2, 2.5),
        "l_5": (0.2, 5.0),
        "l_10": (0.2, 10.0),
        "l_20": (0.2, 20.0),
        "l_inf": (0.2, math.inf),
        "alpha_0.1": (0.1, 5.0),
        "alpha_0.3": (0.3, 5.0),
        "alpha_0.4": (0.4, 5.0),
    }


@pytest.mark.parametrize("name", ["cbo", "ocbo_l", "locbo_published"])
def test_methods_run_on_raw_inputs(name: str) -> None:
    problem = replace(example("heteroscedastic", "raw"), num_evaluations=1)
    build: Any = METHODS[name].build
    quick = partial(build, num_restarts=2, raw_samples=16)
    with without_expected_warnings():
        result = replicate(problem, Method(name, quick), 2000)
    assert len(result.extras["covered"]) == 1
    assert result.regret_by_mean is not None


def results(suite: Any) -> ByProblem:
    """The methods' regrets are 1, those of `locbo_published` a tenth, on raw inputs."""

    def make(problem: str, method: str, i: int) -> Result:
        best = method in ("locbo_published", "l_5") and problem.endswith("raw")
        regret = (0.1 if best else 1.0) * (1 + 0.01 * math.sin(7 * i + len(method)))
        result = run(2 * regret, regret_by_outcome=[8.0, 8.0, regret])
        del result.extras["spread"]
        result.extras["pit"] = [0.3, 0.6]
        return result

    return made_up(suite, range(10000, 10006), make)


COLLECTED = {suite.name: results(suite) for suite in (LOCBO_FULL, LOCBO_SWEEPS)}


def test_declared_comparisons_are_reported() -> None:
    text = markdown(LOCBO_FULL, COLLECTED[LOCBO_FULL.name])
    pair = ("locbo_published on heteroscedastic_raw", "bo on heteroscedastic_raw")
    found = cells(text, "primary", *pair)
    assert found[0] == "6"
    assert float(found[1]) == pytest.approx(-1.0, abs=0.005)
    # All six of one sign, in three comparisons.
    assert found[3] == "0.094"
    assert float(found[6]) == pytest.approx(-1.0, abs=0.005)
    lines = [line for line in text.splitlines() if line.startswith("| primary |")]
    assert len(lines) == 3
    gp = cells(text, "secondary", "bo on noise_free_default", "bo on noise_free_raw")
    assert gp[1] == "+0.000"
    # Of 6 x 11 comparisons with the baseline three are primary; four are between processes.
    assert sum(line.startswith("| secondary |") for line in text.splitlines()) == 66 - 3 + 4
    assert "## heteroscedastic_raw" in text
    assert len(LOCBO_FULL.report.figure(COLLECTED[LOCBO_FULL.name]).axes) == 6


def test_sweeps_and_incomplete_results_are_reported() -> None:
    collected = COLLECTED[LOCBO_SWEEPS.name]
    text = markdown(LOCBO_SWEEPS, collected)
    raw = ("l_5 on heteroscedastic_raw", "l_inf on heteroscedastic_raw")
    assert float(cells(text, "primary", *raw)[1]) == pytest.approx(-1.0, abs=0.005)
    one = {"heteroscedastic_raw": collected["heteroscedastic_raw"]}
    text = markdown(LOCBO_SWEEPS, one)
    assert sum(line.startswith("| primary |") for line in text.splitlines()) == 1


def test_the_figure_of_the_sweeps_has_the_differences_of_the_table() -> None:
    collected = COLLECTED[LOCBO_SWEEPS.name]
    text = markdown(LOCBO_SWEEPS, collected)
    by_lengthscale, by_level = LOCBO_SWEEPS.report.figure(collected).axes
    # Both have the published setting, in the places of the order of size.
    for panel, place in ((by_lengthscale, 2), (by_level, 1)):
        for problem, bar in zip(collected, panel.containers, strict=True):
            shown = cells(text, "secondary", f"l_5 on {problem}", f"bo on {problem}")
            assert bar[0].get_ydata()[place] == pytest.approx(float(shown[1]), abs=6e-4)
    assert [label.get_text() for label in by_level.get_xticklabels()] == [
        "0.1",
        "0.2",
        "0.3",
        "0.4",
    ]
    methods = [list(axis.values()) for axis in published.SWEPT.values()]
    assert {name for axis in methods for name in axis} | {"bo"} == {
        method.name for method in LOCBO_SWEEPS.methods
    }
