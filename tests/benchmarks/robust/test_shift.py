"""Suite `robust_shift`: its criteria by loops, the measured radius, a short run and its report."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import wasserstein_distance

from benchmarks.robust import shift as shift_suite
from benchmarks.robust.shift import (
    ATOMS,
    FUNCTIONS,
    ShiftTask,
    compared,
    criteria,
    measured_radius,
    quantiles,
)
from botorch_calib.test_functions import Newsvendor

UNIT = torch.tensor([[0.0], [1.0]], dtype=torch.double)
METHODS = {method.name: method for method in compared()}
SHORT = ShiftTask("newsvendor_0.2", Newsvendor, num_rounds=4, shift=-0.2)


@pytest.mark.parametrize("shift", [-0.2, 0.1])
def test_the_distance_is_the_shift(shift) -> None:
    stated, true = quantiles(64, 0.0, UNIT).flatten(), quantiles(64, shift, UNIT).flatten()
    assert abs(wasserstein_distance(stated, true) - abs(shift)) < 1e-12


@pytest.mark.parametrize("name", FUNCTIONS)
def test_criteria_by_loops(name) -> None:
    problem = FUNCTIONS[name][0]()
    lower, upper = problem.decision_bounds
    X = lower + (upper - lower) * torch.tensor([[0.2], [0.7]], dtype=torch.double)
    values = criteria(problem, 0.1, X)
    for i, x in enumerate(X):
        for key, moved in (("truth", 0.1), ("nominal", 0.0)):
            points = quantiles(ATOMS, moved, problem.context_bounds)
            total = sum(float(problem(torch.cat([x, c]), noise=False)) for c in points)
            assert abs(float(values[key][i]) - total / ATOMS) < 1e-9
    # The truth is in the ball, up to the grid to which mass may move.
    assert (values["worst"] <= values["truth"] + 1e-2).all()
    assert (values["worst"] <= values["nominal"]).all()
    without = criteria(problem, 0.0, X)
    assert torch.equal(without["truth"], without["nominal"])
    assert torch.allclose(without["worst"], without["nominal"], rtol=0, atol=1e-12)


def test_the_measured_radius() -> None:
    stated = quantiles(64, 0.0, UNIT)
    generator = torch.Generator().manual_seed(0)
    z = 0.1 * torch.randn(200, 20, 1, dtype=torch.double, generator=generator)
    found = {
        size: torch.tensor([measured_radius(0.5 + size + draw, stated) for draw in z])
        for size in (0.0, 0.1, 0.2)
    }
    # The mean of 20 contexts has a standard deviation of 0.1 / sqrt(20) = 0.022, which dominates
    # the error for a shift. The mean distance of draws, 0.03, is subtracted.
    assert 0.3 < (found[0.0] == 0.0).double().mean() < 0.8 and found[0.0].mean() < 0.02
    for size in (0.1, 0.2):
        assert abs(found[size].mean() - (size - 0.03)) < 0.02
    assert measured_radius(stated, stated) == 0.0


def test_the_promise_is_the_mean_under_the_centre() -> None:
    class Noting(shift_suite.ShiftReplicate):
        def evaluate(self, x, model, step):
            super().evaluate(x, model, step)
            stated = quantiles(64, 0.0, UNIT)
            joint = torch.cat([x.expand(64, 1), stated], dim=-1).unsqueeze(1)
            mean = model.posterior(joint).mean.mean()
            assert abs(float(mean) - self.promised[-1]) < 1e-6

    Noting(SHORT, METHODS["erbo"], 1000).run()
