"""Initial designs of suite `ocbo_designs`, and its problems."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from benchmarks.calibration import designs
from benchmarks.calibration.designs import latin_design, random_design
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
