"""The problems of suite `misspecified`: their optima."""

from __future__ import annotations

import pytest
import torch
from botorch.utils.sampling import draw_sobol_samples, manual_seed

from benchmarks.calibration.misspecified import FUNCTIONS, misspecified


@pytest.mark.parametrize("function", FUNCTIONS)
def test_optima_by_dense_search(function) -> None:
    problem = misspecified(function, "nonstationary")
    truth = problem.build(0).truth
    X = draw_sobol_samples(problem.bounds_tensor(), n=2**15, q=1, seed=0).squeeze(-2)
    f = truth(X).squeeze(-1)
    lower, upper = problem.bounds_tensor()
    best = X[f.argmax()]
    for radius in (0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5):
        # Search a shrinking box around the best point so far, without gradients or shared code.
        with manual_seed(0):
            near = best + radius * (upper - lower) * (2 * torch.rand(4096, len(best)).double() - 1)
        near = torch.cat([best.unsqueeze(0), near.clamp(lower, upper)])
        best = near[truth(near).argmax()]
    found = truth(best.unsqueeze(0)).item()
    # BoTorch's optimal values are rounded to five digits; Ackley's peak is a cusp of slope 3.
    assert found == pytest.approx(problem.optimal_value, abs=3e-3)
    assert found <= problem.optimal_value + 1e-4
