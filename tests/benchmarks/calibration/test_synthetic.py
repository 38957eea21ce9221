"""The test functions of the paper on OCBO: values by hand, and optima by dense search."""

from __future__ import annotations

import math

import pytest
import torch
from botorch.utils.sampling import draw_sobol_samples, manual_seed
from torch import Tensor

from benchmarks.calibration.synthetic import (
    Alpine1,
    Cosines,
    CrossInTray,
    Forrester,
    McCormick,
    Powers,
    forrester_design,
    problems,
)

PROBLEMS = {problem.name: problem for problem in problems()[:-1]}


@pytest.mark.parametrize("name", [name for name in PROBLEMS if name != "alpine10"])
def test_optima_by_dense_search(name) -> None:
    problem = PROBLEMS[name]
    truth = problem.build(0).truth
    lower, upper = problem.bounds_tensor()
    X = draw_sobol_samples(problem.bounds_tensor(), n=2**15, q=1, seed=0).squeeze(-2)
    best = X[truth(X).argmax()]
    for step in range(30):
        # Search a shrinking box around the best point so far, without gradients or shared code.
        with manual_seed(step):
            near = 2 * torch.rand(1024, len(best), dtype=torch.double) - 1
        near = best + 0.05 * 0.65**step * (upper - lower) * near
        near = torch.cat([best.unsqueeze(0), near.clamp(lower, upper)])
        best = near[truth(near).argmax()]
    found = truth(best.unsqueeze(0)).item()
    # BoTorch's optimal value of the camel is rounded to four digits. Drop-wave's peak is sharp.
    # Ackley's peak is a cusp of slope 3; the search ends at a width of 65e-7.
    assert found == pytest.approx(problem.optimal_value, abs=5e-5)


@pytest.mark.parametrize("cls", [Forrester, Alpine1, Cosines, McCormick, Powers, CrossInTray])
def test_stated_optimizers_attain_the_optimum(cls) -> None:
    function = cls()
    values = function(function.optimizers)
    assert values.tolist() == pytest.approx([function.optimal_value] * len(values), abs=1e-10)


def test_alpine_is_bounded_by_its_optimum() -> None:
    problem = PROBLEMS["alpine10"]
    X = draw_sobol_samples(problem.bounds_tensor(), n=1024, q=1, seed=0).squeeze(-2)
    assert (problem.build(0).truth(X) < 0.0).all()
    x = torch.zeros(1, 10, dtype=torch.double)
    assert problem.build(0).truth(x).item() == problem.optimal_value == 0.0


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.double)


@pytest.mark.parametrize(
    ("function", "x", "value"),
    [
        (Forrester(), row(0.5), math.sin(2.0)),
        (Forrester(), row(0.0), 4 * math.sin(-4.0)),
        (Alpine1(), row(math.pi, -math.pi / 2, *[0.0] * 8), 0.1 * math.pi + 0.45 * math.pi),
        (Cosines(), row(0.3125, 0.3125 + 0.625), 1.0 - 0.3 + 0.3 - 1.0),
        (McCormick(), row(1.0, -1.0), 4.0 - 1.5 - 2.5 + 1.0),
        (Powers(), row(-0.5, -0.5), 0.25 + 0.125),
        (CrossInTray(), row(0.0, 3.0), -1e-4),
    ],
)
def test_values_by_hand(function, x, value) -> None:
    assert function(x).item() == pytest.approx(value)


def test_forrester_starts_outside_the_basin_of_its_optimum() -> None:
    designs = torch.stack([forrester_design(3, seed).squeeze(-1) for seed in range(50)])
    assert torch.equal(designs[7], forrester_design(3, 7).squeeze(-1))
    assert (designs >= 0.0).all() and (designs < 0.55).all()
    thirds = torch.tensor([0.0, 0.55 / 3, 1.1 / 3])
    assert (designs >= thirds).all() and (designs < thirds + 0.55 / 3).all()
