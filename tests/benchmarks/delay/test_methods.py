"""The methods of suite `delay`, against dense algebra, and their arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.delay.methods import DelayedAcquisition, compared, default, sdf
from benchmarks.delay.replicate import replicate
from benchmarks.framework.rbf_surrogate import hyperparameters
from botorch_calib.asynchronous import DelayAwareProposer
from botorch_calib.ledger import FeedbackLedger
from botorch_calib.test_functions.delayed import FixedDelay
from tests.benchmarks.delay.toys import GRID, toy
from tests.long_grids import mostly_slow

NAMES = [method.name for method in compared()]


def ledger_with_pending(censor_value: float = 0.0) -> FeedbackLedger:
    """Four values, two pending queries and one that has expired."""
    ledger = FeedbackLedger(1, censor_value=censor_value, max_wait=3, late="discard")
    for x in (0.9, 0.0, 0.2, 0.5, 1.0, 0.6, 0.8):
        ledger.submit(torch.tensor([x], dtype=torch.double))
    for trial, y in zip((1, 2, 3, 4), (0.7, 0.9, 0.8, 0.3), strict=True):
        ledger.observe(trial, y, time=trial + 1)
    assert ledger.pending().flatten().tolist() == pytest.approx([0.6, 0.8])
    assert ledger.incomplete().flatten().tolist() == pytest.approx([0.9, 0.6, 0.8])
    return ledger


def acquisition_of(method: DelayedAcquisition, choices: Tensor | None = GRID) -> tuple[Any, Any]:
    """The acquisition function and the strategy of a first round."""
    ledger = ledger_with_pending()
    strategy = method.start(toy(FixedDelay(1.0)), torch.tensor([[0.0], [1.0]]).double())
    model = strategy.fit(ledger, 0)
    return strategy.acquisition_function(model, ledger, choices), strategy


def method_named(name: str) -> DelayedAcquisition:
    (found,) = (method for method in compared() if method.name == name)
    return found


def dense_posterior(gp: Any, X: Tensor, Y: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation at ``at`` given ``X`` and ``Y``, by dense algebra.

    They are in units of the outcome, with the hyperparameters and standardisation of ``gp``.
    """
    found = hyperparameters(gp)
    scale, shift = gp.outcome_transform.stdvs.item(), gp.outcome_transform.means.item()

    def kernel(A: Tensor, B: Tensor) -> Tensor:
        return found.outputscale * torch.exp(-0.5 * ((A - B.T) / found.lengthscales[0]) ** 2)

    covariance = kernel(X, X) + found.noise * torch.eye(len(X)).to(X)
    weights = torch.linalg.solve(covariance, kernel(X, at))
    mean = found.mean + weights.T @ ((Y - shift) / scale - found.mean)
    variance = found.outputscale - (kernel(at, X).T * weights).sum(dim=0)
    return shift + scale * mean.squeeze(-1), scale * variance.sqrt()


def test_ucb_sdf_is_that_of_the_paper() -> None:
    acquisition, strategy = acquisition_of(sdf("ucb_sdf", "ucb", feedback_bound=0.7))
    ledger = ledger_with_pending()
    X, Y = ledger.training_data()
    mean, sigma = dense_posterior(strategy.gp, X, Y, GRID)
    _, pending = dense_posterior(strategy.gp, X, Y, ledger.pending())
    # The sum is in standard deviations of the outcome.
    nu = 1.0 + 0.7 * pending.sum() / strategy.gp.outcome_transform.stdvs.squeeze()
    with torch.no_grad():
        values = acquisition(GRID.unsqueeze(-2))
    assert torch.allclose(values, mean + nu * sigma, rtol=1e-6, atol=1e-6)


# A choice that is pending makes the joint covariance singular.
@pytest.mark.filterwarnings("ignore:A not p.d.")
@pytest.mark.parametrize("name", mostly_slow(NAMES, ["ts_sdf", "qlogei_pending"]))
def test_a_discrete_choice_is_the_maximum(name) -> None:
    method = method_named(name)
    task = toy(FixedDelay(2.0), num_rounds=3)
    torch.manual_seed(1)
    acquisition, strategy = acquisition_of(method)
    torch.manual_seed(1)
    strategy.gp = None
    ledger = ledger_with_pending()
    x = strategy.propose(strategy.fit(ledger, 0), ledger, GRID)
    with torch.no_grad():
        values = [acquisition(choice.reshape(1, 1, 1)).item() for choice in GRID]
    assert x.tolist() == GRID[int(np.argmax(values))].tolist()
    result = replicate(task, method, 0)
    assert len(result.y) == 5


def test_the_default_is_that_of_the_proposer() -> None:
    taken = DelayAwareProposer([[0.0], [1.0]]).strategy
    ours = default()
    for name in ("acquisition", "imputation", "window"):
        assert getattr(ours, name) == getattr(taken, name)
    assert ours.beta**2 == taken.beta  # a multiplier of the standard deviation here
    # So that it is the same rule with ten queries under way.
    assert taken.spread_beyond is None or taken.spread_beyond > 10
