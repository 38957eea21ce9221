"""The methods of suite `robust`: their acquisition functions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.models import SingleTaskGP
from torch import Tensor

from benchmarks.problems import ModifiedBranin
from benchmarks.robust import methods as robust_methods
from benchmarks.robust.methods import BETA, Situation
from benchmarks.robust.replicate import History
from tests.benchmarks.robust.toys import CAMEL, method_named

SAMPLES = torch.tensor([[0.2, 0.4], [0.3, 0.8], [0.6, 0.5], [0.7, 0.1]], dtype=torch.double)
UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)


def history(radius: float = 0.1) -> History:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(12, 4, dtype=torch.double, generator=generator)
    return History(X, ModifiedBranin()(X).unsqueeze(-1), SAMPLES, radius)


def bound(gp: SingleTaskGP, x: Tensor, contexts: Tensor) -> Tensor:
    """BoTorch's upper confidence bound at ``x`` in each context."""
    joint = torch.cat([x.expand(len(contexts), -1), contexts], dim=-1)
    with torch.no_grad():
        return UpperConfidenceBound(gp, beta=BETA)(joint.unsqueeze(-2))


def value_and_gp(name: str, at: Tensor, radius: float = 0.1) -> tuple[float, SingleTaskGP]:
    """The acquisition value of a method at the decisions ``at``, and its process."""
    known = history(radius)
    strategy = method_named(name).start(replace(CAMEL, build=ModifiedBranin), ModifiedBranin())
    torch.manual_seed(0)
    gp = strategy.fit(known, 0)
    acquisition = strategy.acquisition_function(gp, known)
    with torch.no_grad():
        return acquisition(at.reshape(1, 1, -1)).item(), gp


AT = torch.tensor([0.3, 0.6], dtype=torch.double)


def test_wdrbo_subtracts_the_largest_gradient_over_the_draws() -> None:
    value, gp = value_and_gp("wdrbo", AT, radius=0.25)
    torch.manual_seed(0)
    method_named("wdrbo").start(CAMEL, ModifiedBranin()).fit(history(), 0)
    draws = torch.rand(100, 2, dtype=torch.double).requires_grad_()
    joint = torch.cat([AT.expand(100, -1), draws], dim=-1)
    values = UpperConfidenceBound(gp, beta=BETA)(joint.unsqueeze(-2))
    (gradient,) = torch.autograd.grad(values.sum(), draws)
    expected = bound(gp, AT, SAMPLES).mean() - 0.25 * gradient.norm(dim=-1).max()
    assert value == pytest.approx(expected.item(), rel=1e-6)


def test_stable_opt_takes_the_worst_of_the_box() -> None:
    value, gp = value_and_gp("stable_opt", AT)
    mean, std = SAMPLES.mean(dim=0), SAMPLES.std(dim=0, correction=0)
    axes = [torch.linspace(m - s, m + s, 6).double() for m, s in zip(mean, std, strict=True)]
    box = torch.cartesian_prod(*axes)
    assert value == pytest.approx(bound(gp, AT, box).min().item(), rel=1e-5)


@pytest.mark.parametrize("name", ["wdrbo", "wdrbo_exact", "drbo_kde", "drbo_mmd_minimax"])
def test_balls_of_radius_zero_are_their_centres(name) -> None:
    centre = {"drbo_kde": "sbo_kde", "wdrbo": "erbo", "wdrbo_exact": "erbo"}
    value, gp = value_and_gp(name, AT, radius=0.0)
    if name in centre:
        expected, _ = value_and_gp(centre[name], AT)
    else:
        contexts = Situation(SAMPLES, UNIT, 0.0).gridded(robust_methods.MINIMAX_POINTS)
        expected = (bound(gp, AT, contexts.points) @ contexts.weights).item()
    assert value == pytest.approx(expected, rel=1e-6)
