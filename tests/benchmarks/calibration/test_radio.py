"""The radio network's loop: the station that changes, the choice, and the calibrator."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from scipy.stats import norm
from torch import Tensor

from benchmarks.calibration import radio
from benchmarks.calibration.radio import MOVES, StationStrategy, corridors, moves
from benchmarks.framework.replicate import stream_seed
from benchmarks.framework.runner import without_expected_warnings
from benchmarks.framework.sequential import replicate
from benchmarks.problems.radio import RadioCorridors
from botorch_calib import CalibratedModel
from botorch_calib.calibration import LocalizedConformal, OnlineConformal

METHODS = {method.name: method for method in radio.compared()}
AT_LEVELS = {method.name: method for method in radio.compared_at_further_levels()}
SMALL = replace(corridors("text"), num_initial=8, num_evaluations=3)


def data(n: int) -> tuple[Tensor, Tensor]:
    X = SMALL.initial_design(SMALL.num_initial, 0)
    more = torch.rand(n, 18, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    Y = torch.arange(len(X) + n, dtype=torch.double).unsqueeze(-1)
    return torch.cat([X, more]), Y


def test_problems() -> None:
    problems = (*radio.by_the_text(), radio.by_the_script())
    assert [p.name for p in problems] == ["text_1", "text_2", "text_3", "text_4", "script_1"]
    design = problems[0].initial_design(51, 3)
    assert design.shape == (51, 18) and len(design.unique(dim=0)) == 51
    # The start: full power, and horizontal antennas.
    assert design[-1].tolist() == [1.0] * 9 + [0.5] * 9
    networks = [RadioCorridors(num_fading=n, user_seed=7) for n in range(1, 5)]
    networks.append(RadioCorridors(1, 0.3, False, 200, user_seed=7))
    for problem, network in zip(problems, networks, strict=True):
        oracle = problem.build(7)
        torch.testing.assert_close(oracle.truth(design)[:, 0], network(design, noise=False))
        with torch.random.fork_rng():
            torch.manual_seed(0)
            observed = oracle.observe(design)
            torch.manual_seed(0)
            torch.testing.assert_close(observed[:, 0], network(design))


def test_one_station_moves_from_the_incumbent() -> None:
    X, Y = data(5)
    Y[3] = 100.0  # a random point before the start, which does not count
    Y[9] = 50.0
    found = moves(SMALL, 0, X, Y)
    # The sixth round changes station 5.
    fixed = [i for i in range(18) if i not in (5, 14)]
    assert torch.equal(found[:, fixed], X[9, fixed].expand(100, 16))
    generator = torch.Generator().manual_seed(stream_seed(0, MOVES, 5))
    pairs = torch.rand(100, 2, generator=generator, dtype=torch.double)
    assert torch.equal(found[:, [5, 14]], pairs)


@pytest.mark.parametrize("name", METHODS)
def test_runs_follow_the_loop(name: str) -> None:
    with without_expected_warnings():
        result = replicate(SMALL, METHODS[name], 0)
    X, y = torch.tensor(result.X, dtype=torch.double), torch.tensor(result.y).unsqueeze(-1)
    # The optimal value is 0.
    best = [-result.f[i] for i in result.inference_by_outcome]
    assert result.regret_by_outcome == pytest.approx(best)
    if name == "random":
        assert result.regret_by_mean is None
        return
    assert len(result.extras["covered"]) == 3
    for n in range(8, 11):
        candidates = moves(SMALL, 0, X[:n], y[:n])
        assert (candidates - X[n]).abs().amax(dim=-1).min() == 0.0


def test_levels() -> None:
    for level in radio.FURTHER_LEVELS:
        for name in ("cbo", "locbo_global", "locbo"):
            strategy: Any = AT_LEVELS[f"{name}_{level:g}"].build(SMALL, 0)
            assert strategy.alpha == level
    made: Any = AT_LEVELS["locbo_0.15"].build(SMALL, 0)
    calibrator = made.calibrator()
    assert isinstance(calibrator, LocalizedConformal) and calibrator.alpha == 0.15


def make_gp(
    X: Tensor, Y: Tensor, bounds: Tensor, step: int = 0, previous: SingleTaskGP | None = None
) -> SingleTaskGP:
    """A Gaussian process without a fit."""
    gp = SingleTaskGP(
        X, Y, input_transform=Normalize(18, bounds=bounds), outcome_transform=Standardize(1)
    )
    return gp.eval()


def test_the_plain_choice_by_hand() -> None:
    """Expected improvement on the best outcome since the start, by its textbook formula."""
    strategy = StationStrategy(replace(SMALL, surrogate=make_gp), 0)
    X, _ = data(3)
    Y = torch.tensor([[5.0, 1.0, 2.0, 0.0, 3.0, 2.5, 1.0, 1.5, 2.0, 2.5, 1.0]]).double().T
    model: Any = strategy.fit(X, Y)
    chosen, candidates = strategy.propose(model, X, Y), moves(SMALL, 0, X, Y)
    with torch.no_grad():
        posterior = model.posterior(candidates)
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
        assert isinstance(model, CalibratedModel) and model.calibrator.num_updates == n - 8
        if n < 12:
            # The Gaussian process of the earlier data, with its noise.
            gp = make_gp(X[:n], Y[:n], SMALL.bounds_tensor())
            with torch.no_grad():
                posterior: Any = gp.posterior(X[n : n + 1], observation_noise=True)
            expected.append(((Y[n] - posterior.mean) / posterior.variance.sqrt()).item())
    calibrator = OnlineConformal(alpha=0.25)
    calibrator.update(X[8:12], torch.tensor(expected, dtype=torch.double))
    found = model.calibrator
    assert isinstance(found, OnlineConformal)
    torch.testing.assert_close(found.half_width(X[:1]), calibrator.half_width(X[:1]))
