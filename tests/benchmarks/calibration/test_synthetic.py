"""Functions of the calibration study: values by hand, and optima by dense search."""

from __future__ import annotations

import pytest
import torch
from botorch.utils.sampling import draw_sobol_samples, manual_seed

from benchmarks.calibration.synthetic import (
    problems,
)

PROBLEMS = {problem.name: problem for problem in problems()}


@pytest.mark.parametrize("name", [name for name in PROBLEMS if name != "alpine10"])
def test_optima_by_dense_search(name) -> None:
    problem = PROBLEMS[name]
    truth = problem.build(0).truth
    lower, upper = problem.bounds_tensor()
    X = draw_sobol_samples(problem.bounds_tensor(), n=2**15, q=1, seed=0).squeeze(-2)
    best = X[truth(X).argmax()]
    for step in range(30):
        # Search a shrinking box about the best point so far: no gradients, no shared code.
        with manual_seed(step):
            near = 2 * torch.rand(1024, len(best), dtype=torch.double) - 1
        near = best + 0.05 * 0.65**step * (upper - lower) * near
        near = torch.cat([best.unsqueeze(0), near.clamp(lower, upper)])
        best = near[truth(near).argmax()]
    found = truth(best.unsqueeze(0)).item()
    # BoTorch's optimal value of the camel is rounded to four digits; drop-wave's peak is
    # sharp, and Ackley's a cusp of slope 3 in a box 65 wide, searched down to 65e-7.
    assert found == pytest.approx(problem.optimal_value, abs=5e-5)
