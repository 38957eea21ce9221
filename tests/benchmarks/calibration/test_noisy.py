"""Landscapes, noise, warps and the problems of the suite `misspecified`."""

from __future__ import annotations

import math

import pytest
import torch
from botorch.utils.sampling import draw_sobol_samples, manual_seed
from scipy.optimize import brentq

from benchmarks.calibration.misspecified import CASES, FUNCTIONS, misspecified, problems
from benchmarks.calibration.noisy import GaussianNoise, StudentNoise, Warp, box

NUM = 20_000


def test_all_functions_in_all_cases() -> None:
    names = {problem.name for problem in problems()}
    assert names == {f"{function}_{case}" for function in FUNCTIONS for case in CASES}
    assert len(names) == 20
    assert {p.num_evaluations for p in problems()} == {40}
    assert {p.num_initial for p in problems() if len(p.bounds) == 3} == {8}


@pytest.mark.parametrize("case", ["lengthscale", "nonstationary"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_optima_by_dense_search(function, case) -> None:
    problem = misspecified(function, case)
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


def test_warp_is_a_bijection_of_the_unit_interval() -> None:
    warp, U = Warp(), torch.linspace(0, 1, 1001, dtype=torch.double)
    V = warp(U)
    assert (V[0].item(), V[-1].item()) == (0.0, 1.0)
    assert (V.diff() > 0).all()
    assert torch.allclose(warp.inverse(V), U, atol=1e-9)
    expected = brentq(lambda u: float(warp(torch.tensor(u).double())) - 0.3, 0.0, 1.0, xtol=1e-13)
    assert warp.inverse(torch.tensor(0.3).double()).item() == pytest.approx(expected)


def test_warp_is_steep_at_one_end_and_flat_at_the_other() -> None:
    U = torch.tensor([0.01, 0.5, 0.98], dtype=torch.double, requires_grad=True)
    (slopes,) = torch.autograd.grad(Warp()(U).sum(), U)
    assert slopes[0] > 5.0 > 1.0 > slopes[1] > 0.2 > slopes[2] > 0.0


@pytest.mark.parametrize("function", FUNCTIONS)
def test_spread_is_that_of_the_function(function) -> None:
    problem = misspecified(function, "lengthscale")
    landscape = problem.build.landscape  # type: ignore[attr-defined]
    with manual_seed(3):
        lower, upper = problem.bounds_tensor()
        X = lower + (upper - lower) * torch.rand(NUM, len(lower), dtype=torch.double)
    # The sampling error of a standard deviation, at the heaviest tail here (kurtosis 10 of the
    # camel): sqrt((10 - 1) / (4 NUM)) = 0.011 of it; four of these.
    assert landscape(X).std().item() == pytest.approx(landscape.spread(), rel=0.045)


def test_gaussian_noise_is_linear_in_the_first_coordinate() -> None:
    U = torch.tensor([[0.0, 0.9], [0.5, 0.1], [1.0, 0.5]], dtype=torch.double)
    noise = GaussianNoise(0.05, 0.8)
    with manual_seed(0):
        values = noise(U.repeat_interleave(NUM, dim=0)).reshape(3, NUM)
    # Four relative standard errors 1 / sqrt(2 NUM) of a standard deviation.
    assert values.std(dim=-1).tolist() == pytest.approx([0.05, 0.425, 0.8], rel=0.02)


def test_student_noise_by_its_quartiles() -> None:
    with manual_seed(0):
        values = StudentNoise(2.5, 0.3)(torch.zeros(NUM, 2, dtype=torch.double))
    assert values.shape == (NUM, 1)
    # The upper quartile of Student's t with 2.5 degrees of freedom is 0.7862, its density
    # there 0.2318: standard error of the sample quartile sqrt(3/16 / NUM) / 0.2318 = 0.0132.
    quartiles = values.flatten().quantile(torch.tensor([0.25, 0.75], dtype=torch.double)) / 0.3
    assert quartiles.tolist() == pytest.approx([-0.7862, 0.7862], abs=4 * 0.0132)


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


def test_noise_comes_from_the_global_random_state() -> None:
    problem = misspecified("ackley", "student_t")
    X = problem.initial_design(5, 0)
    outcomes = []
    for seed in (0, 0, 1):
        with manual_seed(seed):
            outcomes.append(problem.build(0).observe(X))
    assert torch.equal(outcomes[0], outcomes[1])
    assert not torch.equal(outcomes[0], outcomes[2])
    assert all(math.isfinite(value) for value in outcomes[2].flatten().tolist())
