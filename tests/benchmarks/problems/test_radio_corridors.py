"""The radio problem against a scalar loop, Monte Carlo, quadrature and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from botorch.utils.sampling import manual_seed
from scipy import integrate, special

from benchmarks.problems import RadioCorridors, radio_corridors
from benchmarks.problems.radio_corridors import THERMAL_NOISE, expected_rates

LN2 = math.log(2.0)


def points(*shape: int, seed: int = 0) -> torch.Tensor:
    with manual_seed(seed):
        return torch.rand(*shape, 18, dtype=torch.double)


# ------------------------------------------------------------ a scalar loop


def scalar_capacity(
    problem: RadioCorridors, x: list[float], fading: np.ndarray, uav_weight: float
) -> float:
    """Equations 43 and 44 with one number at a time, from the places of the users alone."""
    sites = [(0.0, 0.0), (0.0, 200.0), (171.0, 100.0)]
    sums = {"uav": [0.0, 0], "ground": [0.0, 0]}
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
        sums[kind][0] += math.log2(1.0 + faded[serving] / (interference + 1e-10))
        sums[kind][1] += 1
    mean = {kind: total / count for kind, (total, count) in sums.items()}
    return uav_weight * mean["uav"] + (1.0 - uav_weight) * mean["ground"]


@pytest.mark.parametrize("uav_weight", [0.7, 0.3])
@pytest.mark.parametrize("uav_fading", [True, False])
def test_an_observation_by_a_scalar_loop(uav_weight: float, uav_fading: bool) -> None:
    problem = RadioCorridors(num_fading=2, uav_weight=uav_weight, uav_fading=uav_fading)
    x = points()
    observed = problem(x, generator=torch.Generator().manual_seed(3))
    draws = torch.empty(2, 64, 9, dtype=torch.double)
    draws.exponential_(generator=torch.Generator().manual_seed(3))
    if not uav_fading:
        draws[:, 36:] = 1.0
    expected = [scalar_capacity(problem, x.tolist(), draw, uav_weight) for draw in draws.numpy()]
    assert observed.item() == pytest.approx(np.mean(expected), rel=1e-12)


# ------------------------------------------------------------ the network


def test_places() -> None:
    problem = RadioCorridors(user_seed=7)
    assert problem.antennas[:, 2].tolist() == [25.0] * 9
    sites = torch.tensor(radio_corridors.SITES, dtype=torch.double).repeat_interleave(3, dim=0)
    assert torch.allclose((problem.antennas[:, :2] - sites).norm(dim=-1), torch.ones(9).double())
    ground, uavs = problem.users[:36], problem.users[36:]
    assert problem.is_uav.tolist() == [False] * 36 + [True] * 28
    # Four users in each sector's wedge.
    offsets = ground[:, :2] - sites.repeat_interleave(4, dim=0)
    distance = offsets.norm(dim=-1)
    assert distance.min() >= 10.0 and distance.max() <= 120.0
    middle = torch.deg2rad(problem.azimuths).repeat_interleave(4)
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
        # Evenly along the corridor, in its middle.
        along = x if right - left > high - low else y
        part = max(right - left, high - low) / 7.0
        assert along.diff().tolist() == pytest.approx([part] * 6)
    assert (uavs[:, 2] == 150.0).all()


def test_users_are_spread_uniformly() -> None:
    """Squared distances and angles are uniform: means of 3600 users within four errors."""
    problems = [RadioCorridors(user_seed=seed) for seed in range(100)]
    ground = torch.stack([p.users[:36, :2] for p in problems])
    sites = torch.tensor(radio_corridors.SITES, dtype=torch.double).repeat_interleave(12, dim=0)
    offsets = ground - sites
    u = (offsets.square().sum(dim=-1) - 100.0) / (120.0**2 - 100.0)
    # The standard error of a uniform mean is 1 / sqrt(12 n).
    assert abs(u.mean().item() - 0.5) < 4.0 / math.sqrt(12 * 3600)
    angle = torch.rad2deg(torch.atan2(offsets[..., 1], offsets[..., 0]))
    turn = (angle - problems[0].azimuths.repeat_interleave(4) + 180.0) % 360.0 - 180.0
    assert turn.abs().max() <= 60.0 + 1e-9
    assert abs(turn.mean().item()) < 4.0 * 120.0 / math.sqrt(12 * 3600)


# ------------------------------------------------------------ the expectation


def alone(strength: float) -> torch.Tensor:
    """Powers of one station at ``strength`` over the noise, and others too weak to matter."""
    power = torch.full((9,), 1e-60, dtype=torch.double)
    power[4] = strength * THERMAL_NOISE
    return power


@pytest.mark.parametrize("strength", [1e-3, 0.1, 1.0, 30.0, 1e4, 1e8])
def test_without_interference(strength: float) -> None:
    """``E ln(1 + s h) = exp(1/s) E1(1/s)``."""
    # `exp(x) E1(x)` in scaled form, as in U(1, 1, x) of Tricomi.
    expected = special.hyperu(1.0, 1.0, 1.0 / strength) / LN2
    assert expected_rates(alone(strength)).item() == pytest.approx(expected, rel=1e-7)


def test_equal_stations_without_noise() -> None:
    """Of two ``E log2(1 + h / h')`` is 1 / ln 2; of nine, ``int (1 + z)^-9 dz = 1 / 8`` nats."""
    two = torch.full((9,), 1e-30, dtype=torch.double)
    two[:2] = 1e3
    assert expected_rates(two).item() == pytest.approx(1.0 / LN2, abs=1e-9)
    nine = torch.full((9,), 1e3, dtype=torch.double)
    assert expected_rates(nine).item() == pytest.approx(0.125 / LN2, abs=1e-9)


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


@pytest.mark.parametrize("uav_fading", [True, False])
def test_the_truth_is_the_mean_of_observations(uav_fading: bool) -> None:
    problem = RadioCorridors(num_fading=5_000, uav_fading=uav_fading)
    X = points(3)
    single = RadioCorridors(uav_fading=uav_fading)
    generator = torch.Generator().manual_seed(0)
    spread = torch.stack([single(X, generator=generator) for _ in range(200)]).std(dim=0)
    error = problem(X, generator=generator) - problem(X, noise=False)
    # Four standard errors of a mean over 5 000 draws.
    assert (error.abs() < 4.0 * spread / math.sqrt(5_000)).all()


# ------------------------------------------------------------ as a test problem


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_and_dtypes(dtype: torch.dtype) -> None:
    problem = RadioCorridors(num_fading=3, dtype=dtype)
    for shape in ((), (2, 3), (0,)):
        X = points(*shape).to(dtype)
        for value in (problem(X), problem(X, noise=False), problem.evaluate_true(X)):
            assert value.shape == shape and value.dtype == dtype
        exact = RadioCorridors()(X.double(), noise=False)
        torch.testing.assert_close(problem(X, noise=False), exact.to(dtype), rtol=1e-6, atol=0.0)
        assert problem.rates(X).shape == (*shape, 64)


def test_a_batch_is_its_points(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, X = RadioCorridors(), points(7)
    together = problem(X, noise=False)
    assert torch.equal(together, torch.stack([problem(x, noise=False) for x in X]))
    # Nor do chunks matter.
    monkeypatch.setattr(radio_corridors, "CHUNK", 9 * 200)
    torch.testing.assert_close(problem(X, noise=False), together, rtol=1e-14, atol=0.0)
