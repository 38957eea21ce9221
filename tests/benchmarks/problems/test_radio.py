"""The radio network against scalar loops, Monte Carlo, quadrature and closed forms; its noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from botorch.utils.sampling import manual_seed
from scipy import integrate, special

from benchmarks.problems.radio import NUM_GROUND, THERMAL_NOISE, RadioCorridors, expected_rates

LN2 = math.log(2.0)
AS_PUBLISHED: dict[str, Any] = {"uav_weight": 0.3, "uav_fading": False, "uav_divisor": 200}


def points(*shape: int, seed: int = 0) -> torch.Tensor:
    with manual_seed(seed):
        return torch.rand(*shape, 18, dtype=torch.double)


def scalar_capacity(problem: RadioCorridors, x: list[float], fading: np.ndarray) -> float:
    """Equations 43 and 44 in scalar arithmetic, from the positions of the users."""
    sites = [(0.0, 0.0), (0.0, 200.0), (171.0, 100.0)]
    sums = {"uav": 0.0, "ground": 0.0}
    for k, (ux, uy, uz) in enumerate(problem.users.tolist()):
        kind = "uav" if uz > 100.0 else "ground"
        powers = []
        for b in range(9):
            azimuth = (90.0, 210.0, 330.0)[b % 3]
            bx = sites[b // 3][0] + math.cos(math.radians(azimuth))
            by = sites[b // 3][1] + math.sin(math.radians(azimuth))
            dx, dy, dz = ux - bx, uy - by, uz - 25.0
            distance = math.sqrt(dx * dx + dy * dy + dz * dz)
            if kind == "uav":
                loss = 28.0 + 22.0 * math.log10(distance) + 20.0 * math.log10(2.0)
            else:
                loss = 13.54 + 39.08 * math.log10(distance) + 20.0 * math.log10(2.0)
            elevation = math.degrees(math.asin(dz / distance))
            turn = math.degrees(math.atan2(dy, dx)) - azimuth
            while turn > 180.0:
                turn -= 360.0
            while turn < -180.0:
                turn += 360.0
            tilt = 180.0 * x[9 + b] - 90.0
            gain = 8.0 - 12.0 * ((tilt - elevation) / 10.0) ** 2 - 12.0 * (turn / 65.0) ** 2
            decibels = 6.0 + 40.0 * x[b] + max(-30.0, min(8.0, gain)) - loss
            powers.append(10.0 ** (decibels / 10.0))
        serving = max(range(9), key=lambda b: powers[b])
        faded = [power * fading[k, b] for b, power in enumerate(powers)]
        interference = sum(power for b, power in enumerate(faded) if b != serving)
        sums[kind] += math.log2(1.0 + faded[serving] / (interference + 1e-10))
    weight = problem.uav_weight
    return weight * sums["uav"] / problem.uav_divisor + (1.0 - weight) * sums["ground"] / 36


@pytest.mark.parametrize("settings", [{}, AS_PUBLISHED], ids=["text", "published"])
def test_an_observation_by_a_scalar_loop(settings: dict[str, Any]) -> None:
    problem = RadioCorridors(num_fading=2, **settings)
    x = points()
    with manual_seed(3):
        observed = problem(x)
    with manual_seed(3):
        draws = torch.empty(2, 64, 9, dtype=torch.double).exponential_()
    if settings:
        draws[:, 36:] = 1.0
    expected = [scalar_capacity(problem, x.tolist(), draw) for draw in draws.numpy()]
    assert observed.item() == pytest.approx(np.mean(expected), rel=1e-12)


@pytest.mark.parametrize(
    ("settings", "absolute", "relative"),
    [
        ({}, 0.18, 0.22),
        (AS_PUBLISHED, 0.16, 0.23),
        # From suite `radio`, which was deleted.
        ({"uav_fading": False}, 0.07, 0.075),
    ],
    ids=["text", "published", "former"],
)
def test_the_noise_of_one_draw(settings: dict[str, Any], absolute: float, relative: float) -> None:
    """Its root mean square over uniform points, in bit/s/Hz and relative to the objective's."""
    squares, ratios = [], []
    for seed in range(4):
        problem, X = RadioCorridors(user_seed=seed, **settings), points(200, seed=seed)
        with manual_seed(seed):
            variance = torch.stack([problem(X) for _ in range(12)]).var(dim=0).mean()
        squares.append(variance.item())
        ratios.append((variance.sqrt() / problem(X, noise=False).std()).item())
    # Stated to two digits; seeds differ by 4 to 10 %.
    assert math.sqrt(np.mean(squares)) == pytest.approx(absolute, abs=0.01)
    assert np.mean(ratios) == pytest.approx(relative, abs=0.02)


def test_places() -> None:
    problem, again, other = (RadioCorridors(user_seed=seed) for seed in (7, 7, 8))
    assert torch.equal(problem.users, again.users)
    assert not torch.equal(problem.users, other.users)
    ground, uavs = problem.users[:NUM_GROUND], problem.users[NUM_GROUND:]
    assert torch.equal(other.users[NUM_GROUND:], uavs) and len(uavs) == 28
    assert (uavs[:, 2] == 150.0).all() and (ground[:, 2] == 1.5).all()
    # Four users in each sector's wedge.
    sites = torch.tensor([(0.0, 0.0), (0.0, 200.0), (171.0, 100.0)], dtype=torch.double)
    offsets = ground[:, :2] - sites.repeat_interleave(12, dim=0)
    distance = offsets.norm(dim=-1)
    assert distance.min() >= 10.0 and distance.max() <= 120.0
    middle = torch.deg2rad(torch.tensor([90.0, 210.0, 330.0]).double().repeat(3))
    middle = middle.repeat_interleave(4)
    cosine = (offsets[:, 0] * middle.cos() + offsets[:, 1] * middle.sin()) / distance
    assert cosine.min() >= 0.5 - 1e-12
    corridors = (
        ((-110, -100), (-100, 300)),
        ((-100, 270), (300, 310)),
        ((270, 280), (-100, 300)),
        ((-100, 270), (-110, -100)),
    )
    for i, ((left, right), (low, high)) in enumerate(corridors):
        x, y = uavs[7 * i : 7 * i + 7, :2].T
        assert x.min() >= left and x.max() <= right and y.min() >= low and y.max() <= high
        along = x if right - left > high - low else y
        part = max(right - left, high - low) / 7.0
        assert along.diff().tolist() == pytest.approx([part] * 6)


@pytest.mark.parametrize("strength", [1e-3, 1.0, 1e4])
def test_without_interference(strength: float) -> None:
    """``E ln(1 + s h) = exp(1/s) E1(1/s)``, in scaled form Tricomi's U(1, 1, 1/s)."""
    power = torch.full((9,), 1e-60, dtype=torch.double)
    power[4] = strength * THERMAL_NOISE
    expected = special.hyperu(1.0, 1.0, 1.0 / strength) / LN2
    assert expected_rates(power).item() == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("seed", range(2))
def test_expectation_by_quadrature(seed: int) -> None:
    rng = np.random.default_rng(seed)
    power = 10.0 ** rng.uniform(-13.0, -1.0, 9)
    ratios, noise = power / power.max(), THERMAL_NOISE / power.max()

    def integrand(t: float) -> float:
        z = math.exp(t)
        return math.exp(t - noise * z - np.log1p(ratios * z).sum())

    expected, _ = integrate.quad(integrand, -40.0, 30.0, limit=500, epsabs=1e-13, epsrel=1e-11)
    found = expected_rates(torch.from_numpy(power)).item()
    assert found == pytest.approx(expected / LN2, abs=2e-10)


@pytest.mark.parametrize("settings", [{}, AS_PUBLISHED], ids=["text", "published"])
def test_the_truth_is_the_mean_of_observations(settings: dict[str, Any]) -> None:
    problem, single = RadioCorridors(num_fading=4_000, **settings), RadioCorridors(**settings)
    X = points(3)
    with manual_seed(0):
        spread = torch.stack([single(X) for _ in range(200)]).std(dim=0)
        error = problem(X) - problem(X, noise=False)
    # Four standard errors of a mean over 4 000 draws.
    assert (error.abs() < 4.0 * spread / math.sqrt(4_000)).all()
