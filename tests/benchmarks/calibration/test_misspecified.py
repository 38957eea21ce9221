"""The problems of suite `misspecified`: their optima, and noise of the stated size."""

from __future__ import annotations

import pytest
import torch
from botorch.utils.sampling import draw_sobol_samples, manual_seed

from benchmarks.calibration.misspecified import CASES, FUNCTIONS, misspecified
from benchmarks.framework.sequential import box

NUM = 20_000


@pytest.mark.parametrize("function", FUNCTIONS)
def test_optima_by_dense_search(function) -> None:
    problem = misspecified(function, "nonstationary")
    truth = problem.build(0).truth
    X = draw_sobol_samples(problem.bounds_tensor(), n=2**15, q=1, seed=0).squeeze(-2)
    f = truth(X).squeeze(-1)
    lower, upper = problem.bounds_tensor()
    best = X[f.argmax()]
    for radius in (0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5):
        # Search a shrinking box about the best point so far: no gradients, no shared code.
        with manual_seed(0):
            near = best + radius * (upper - lower) * (2 * torch.rand(4096, len(best)).double() - 1)
        near = torch.cat([best.unsqueeze(0), near.clamp(lower, upper)])
        best = near[truth(near).argmax()]
    found = truth(best.unsqueeze(0)).item()
    # BoTorch's optimal values are rounded to five digits; Ackley's peak is a cusp of slope 3.
    assert found == pytest.approx(problem.optimal_value, abs=3e-3)
    assert found <= problem.optimal_value + 1e-4


@pytest.mark.parametrize("case", CASES)
def test_oracles_add_noise_of_the_stated_size(case) -> None:
    problem = misspecified("hartmann3", case)
    oracle = problem.build(0)
    X = box(problem.bounds).mean(dim=0).expand(NUM, 3)
    with manual_seed(0):
        noise = (oracle.observe(X) - oracle.truth(X)).squeeze(-1)
    spread = problem.build.landscape.spread()  # type: ignore[attr-defined]
    # The interquartile range over that of a standard normal, 1.349; Student's is 0.7862 * 2.
    sizes = {
        "lengthscale": 0.1,
        "noise": 0.5,
        "student_t": 0.3 * 2 * 0.7862 / 1.349,
        "heteroscedastic": 0.425,
        "nonstationary": 0.05,
    }
    tails = torch.tensor([0.25, 0.75], dtype=torch.double)
    size = noise.quantile(tails).diff().item() / 1.349 / spread
    # Its relative standard error is about 1.17 / sqrt(NUM) = 0.0083: four of these.
    assert size == pytest.approx(sizes[case], rel=0.034)
