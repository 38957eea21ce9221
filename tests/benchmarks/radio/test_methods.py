"""The loop: which station moves from where, who chooses, and what a calibrator is told."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.posteriors import GPyTorchPosterior
from scipy.stats import norm
from torch import Tensor

from benchmarks.framework.replicate import stream_seed
from benchmarks.problems import RadioCorridors
from benchmarks.radio.methods import StationStrategy, moves
from benchmarks.radio.problems import MOVES, corridors
from botorch_calib import CalibratedModel
from botorch_calib.calibration import OnlineConformal

BOUNDS = corridors(1).bounds_tensor()
SMALL = replace(corridors(1), num_initial=8, num_evaluations=11)


def data(n: int) -> tuple[Tensor, Tensor]:
    X = SMALL.initial_design(SMALL.num_initial, 0)
    more = torch.rand(n, 18, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    Y = torch.arange(len(X) + n, dtype=torch.double).unsqueeze(-1)
    return torch.cat([X, more]), Y


# ------------------------------------------------------------ problems


@pytest.mark.parametrize("num_fading", [1, 4])
def test_each_seed_has_its_network(num_fading: int) -> None:
    oracle = corridors(num_fading).build(7)
    X = SMALL.initial_design(5, 0)
    own = RadioCorridors(num_fading, user_seed=7)
    torch.testing.assert_close(oracle.truth(X).squeeze(-1), own(X, noise=False))
    other = RadioCorridors(num_fading, user_seed=8)
    assert not torch.allclose(oracle.truth(X).squeeze(-1), other(X, noise=False))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        observed = oracle.observe(X)
        torch.manual_seed(0)
        torch.testing.assert_close(observed.squeeze(-1), own(X))


# ------------------------------------------------------------ moves


def test_one_station_moves_from_the_incumbent() -> None:
    X, Y = data(5)
    Y[3] = 100.0  # a random point: not since the start
    Y[9] = 50.0
    found = moves(SMALL, 0, X, Y)
    assert found.shape == (100, 18)
    # The sixth round, whose station is number 5.
    fixed = [i for i in range(18) if i not in (5, 14)]
    assert torch.equal(found[:, fixed], X[9, fixed].expand(100, 16))
    generator = torch.Generator().manual_seed(stream_seed(0, MOVES, 5))
    pairs = torch.rand(100, 2, generator=generator, dtype=torch.double)
    assert torch.equal(found[:, [5, 14]], pairs)


# ------------------------------------------------------------ choices


def make_gp(
    X: Tensor,
    Y: Tensor,
    bounds: Tensor,
    step: int = 0,
    previous: SingleTaskGP | None = None,
) -> SingleTaskGP:
    """Without a fit."""
    gp = SingleTaskGP(
        X, Y, input_transform=Normalize(18, bounds=bounds), outcome_transform=Standardize(1)
    )
    return gp.eval()


def test_the_plain_choice_by_hand() -> None:
    """Expected improvement on the best outcome since the start, by its textbook form."""
    strategy = StationStrategy(replace(SMALL, surrogate=make_gp), 0)
    X, _ = data(3)
    Y = torch.tensor([[5.0], [1.0], [2.0], [0.0], [3.0], [2.5], [1.0], [1.5], [2.0], [2.5], [1.0]])
    model = strategy.fit(X, Y.double())
    chosen = strategy.propose(model, X, Y.double())
    candidates = moves(SMALL, 0, X, Y.double())
    with torch.no_grad():
        posterior = model.posterior(candidates)
    assert isinstance(posterior, GPyTorchPosterior)
    mean = posterior.mean.squeeze(-1).numpy()
    deviation = posterior.variance.sqrt().squeeze(-1).numpy()
    u = (mean - 2.5) / deviation
    improvement = deviation * (u * norm.cdf(u) + norm.pdf(u))
    assert torch.equal(chosen[0], candidates[int(np.argmax(improvement))])


def test_each_outcome_is_scored_once_by_the_model_that_chose_it() -> None:
    strategy = StationStrategy(
        replace(SMALL, surrogate=make_gp), 0, partial(OnlineConformal, alpha=0.25)
    )
    X, Y = data(4)
    Y = torch.sin(3.0 * Y)
    expected = []
    for n in range(8, 13):
        model = strategy.fit(X[:n], Y[:n])
        assert isinstance(model, CalibratedModel)
        assert model.calibrator.num_updates == n - 8
        if n < 12:
            # The Gaussian process of the data before, with its noise.
            with torch.no_grad():
                posterior = make_gp(X[:n], Y[:n], BOUNDS).posterior(
                    X[n : n + 1], observation_noise=True
                )
            expected.append(((Y[n] - posterior.mean) / posterior.variance.sqrt()).item())
    calibrator = OnlineConformal(alpha=0.25)
    calibrator.update(X[8:12], torch.tensor(expected, dtype=torch.double))
    assert isinstance(model, CalibratedModel)
    found = model.calibrator
    assert isinstance(found, OnlineConformal)
    torch.testing.assert_close(found.half_width(X[:1]), calibrator.half_width(X[:1]))
