"""Initial designs of suite `ocbo_designs`, and its problems."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.calibration import designs
from benchmarks.calibration.designs import latin_design, random_design
from benchmarks.calibration.suites import OCBO_DESIGNS
from benchmarks.framework.protocol import ExperimentProtocol
from benchmarks.framework.runner import without_expected_warnings
from benchmarks.framework.sequential import replicate
from botorch_calib.calibration import LocalizedConformal, QuantileRecalibrator

PROBLEMS = {problem.name: problem for problem in designs.problems()}
METHODS = {method.name: method for method in designs.methods()}
BOX = ((-1.0, 3.0), (10.0, 11.0))


def test_a_latin_design_has_one_point_in_each_part_of_each_range() -> None:
    X = latin_design(7, 3, bounds=BOX)
    lower, upper = torch.tensor(BOX, dtype=torch.double).T
    parts = (7 * (X - lower) / (upper - lower)).floor().long()
    assert torch.equal(parts.sort(dim=0).values, torch.arange(7).unsqueeze(-1).expand(7, 2))
    # The coordinates are put together at random.
    orders = {tuple(latin_design(7, s, bounds=BOX)[:, 0].argsort().tolist()) for s in range(20)}
    assert len(orders) > 15


def test_a_random_design_is_uniform() -> None:
    X = random_design(4000, 0, bounds=BOX)
    lower, upper = torch.tensor(BOX, dtype=torch.double).T
    assert ((X >= lower) & (X <= upper)).all()
    scaled = (X - lower) / (upper - lower)
    # Five standard errors of a uniform number's mean and variance.
    assert (scaled.mean(0) - 0.5).abs().max() < 5 * (1 / 12 / 4000) ** 0.5
    assert (scaled.var(0) - 1 / 12).abs().max() < 5 * (1 / 180 / 4000) ** 0.5


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_designs_are_their_seeds(name: str) -> None:
    problem = PROBLEMS[name]
    first, again, other = (problem.initial_design(problem.num_initial, seed) for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert problem.acquisition == "ei"


def test_the_problems() -> None:
    found = {name: (p.num_initial, p.num_evaluations) for name, p in PROBLEMS.items()}
    assert found == {
        "forrester_random_3": (3, 25),
        "forrester_random_4": (4, 25),
        "forrester_random_7": (7, 25),
        "forrester_random_10": (10, 25),
        "forrester_sobol_4": (4, 25),
        "forrester_latin_4": (4, 25),
        "alpine10_100": (5, 100),
    }
    grouped = [name for names in OCBO_DESIGNS.report.groups.values() for name in names]  # type: ignore[attr-defined]
    assert grouped == list(PROBLEMS)


def test_the_methods_differ_in_their_calibrator_alone() -> None:
    made: dict[str, Any] = {
        name: method.build(PROBLEMS["forrester_latin_4"], 0) for name, method in METHODS.items()
    }
    assert made["bo"].calibrator is None
    assert isinstance(made["ocbo"].calibrator(), QuantileRecalibrator)
    assert isinstance(made["ocbo_l"].calibrator(), QuantileRecalibrator)
    assert isinstance(made["locbo"].calibrator(), LocalizedConformal)
    for strategy in made.values():
        assert replace(strategy, calibrator=None) == made["bo"]


def test_a_method_runs() -> None:
    problem = replace(PROBLEMS["forrester_random_3"], num_evaluations=2)
    with without_expected_warnings():
        result = replicate(problem, METHODS["ocbo_l"], 2000)
    assert len(result.regret_by_outcome) == 3
    assert len(result.extras["pit"]) == 2


def test_the_protocol_is_of_this_suite() -> None:
    ExperimentProtocol.load("ocbo_designs").check(OCBO_DESIGNS)
