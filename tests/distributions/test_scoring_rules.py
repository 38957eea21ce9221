"""Scores against quadrature, known closed forms and scipy's intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from numpy.typing import NDArray
from scipy.stats import binomtest, norm, truncnorm
from torch import Tensor

from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.distributions.scoring_rules import (
    binomial_interval,
    calibration_error,
    crps,
    interval_score,
    observed_frequencies,
)
from tests.oracles import Pieces, unbatched
from tests.predictive_examples import DECILES, SOME_KINDS, random_predictive

Array = NDArray[np.float64]
NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.double)


# ------------------------------------------------------------ CRPS


def piece_cdf(predictive: Pieces, j: int, x: Array) -> Array:
    low, high = predictive.knots[j], predictive.knots[j + 1]
    if predictive.uniform[j]:
        return (x - low) / (high - low)
    return truncnorm.cdf(x, low / predictive.scale, high / predictive.scale, scale=predictive.scale)


def quadrature_crps(predictive: Pieces, y: float) -> float:
    """``int (F - 1{x >= y})^2`` by panels that double in width away from knots and ``y``."""
    finite = [k for k in predictive.knots if math.isfinite(k)]
    limit = 45.0 * predictive.scale + max(abs(v) for v in (*finite, y))
    steps = 2.0 ** np.arange(-40, 9)
    centers = np.array([*finite, y, 0.0])
    grid = np.concatenate([centers, *(centers + s * d for d in steps for s in (1, -1))])
    total, below = 0.0, 0.0
    for j, mass in enumerate(predictive.masses):
        low, high = max(predictive.knots[j], -limit), min(predictive.knots[j + 1], limit)
        ends = np.unique(np.clip(grid, low, high))
        half = np.diff(ends) / 2
        x = (ends[:-1] + half)[:, None] + half[:, None] * NODES
        share = piece_cdf(predictive, j, x)
        above = 1.0 - below - mass * share
        square = np.where(x < y, below + mass * share, above) ** 2
        total += float((square * half[:, None] * WEIGHTS).sum())
        below += mass
    # Outside bounded supports the integrand is 1 as far as y.
    return total + max(predictive.knots[0] - y, 0.0) + max(y - predictive.knots[-1], 0.0)


def check(predictives: PiecewisePredictive, z: Tensor, rtol: float = 1e-11) -> None:
    result = crps(predictives, z)
    rows = zip(
        unbatched(predictives), z.expand(predictives.batch_shape).reshape(-1).tolist(), strict=True
    )
    expected = [quadrature_crps(predictive, y) for predictive, y in rows]
    np.testing.assert_allclose(result.reshape(-1), expected, rtol=rtol, atol=0.0)


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_crps_equals_quadrature(kind: str) -> None:
    generator = torch.Generator().manual_seed(1)
    z = 3 * torch.randn(8, dtype=torch.double, generator=generator)
    check(random_predictive(kind, 8), z)


@pytest.mark.parametrize("tails", ["gaussian", "stretched"])
@pytest.mark.parametrize("half_width", [50.0, 10.0, 1e-3])
def test_crps_of_extreme_conformal_distributions(tails: str, half_width: float) -> None:
    predictive = PiecewisePredictive.conformal(
        0.2, half_width=tensor(half_width).expand(6), max_width=50.0, tails=tails
    )
    check(predictive, tensor(0.0, half_width, -half_width - 0.3, half_width + 1e-2, 70.0, -70.0))


@pytest.mark.parametrize(
    "knots",
    [
        torch.cat([torch.linspace(-2, 9, 9), torch.full((10,), 50.0)]).double(),
        torch.linspace(-50, 60, 19).double(),
        torch.linspace(10, 50, 19).double(),
    ],
    ids=["half at the cap", "both tails", "far up"],
)
def test_crps_with_knots_far_out(knots: Tensor) -> None:
    predictive = PiecewisePredictive.recalibrated(
        DECILES, knots=knots.expand(5, 19), max_width=50.0
    )
    check(predictive, tensor(-3.0, 0.0, 11.0, 49.99999, 51.0))


@pytest.mark.parametrize("uniform", [(True, False, True), (False, True, False)])
@pytest.mark.parametrize("masses", [[0.3, 0.5, 0.2], [0.0, 0.6, 0.4], [0.5, 0.0, 0.5]])
def test_crps_at_knots_and_outside_of_them(uniform: tuple[bool, ...], masses: list[float]) -> None:
    predictive = PiecewisePredictive([-1.0, 0.0, 0.5, 2.0], masses, uniform, scale=1.5)
    check(predictive.expand(torch.Size([6])), tensor(-1.0, 0.0, 0.5, 2.0, -3.0, 1e3))


@pytest.mark.parametrize("ends", [(-2.0, math.inf), (-math.inf, 3.0)])
def test_crps_with_one_open_end(ends: tuple[float, float]) -> None:
    knots = [ends[0], -1.0, 1.0, ends[1]]
    predictive = PiecewisePredictive(knots, [0.2, 0.5, 0.3], [False, True, False])
    check(predictive.expand(torch.Size([5])), tensor(-1.0, 1.0, -2.0, 3.0, 40.0))


def test_crps_broadcasts_observations_against_distributions() -> None:
    predictive = random_predictive("stretched", 3)
    z = tensor(-2.0, -0.3, 0.0, 1.7)
    scores = crps(predictive, z.unsqueeze(-1))
    assert scores.shape == (4, 3)
    for one, row in zip(z, scores, strict=True):
        check(predictive, one)
        torch.testing.assert_close(crps(predictive, one), row, rtol=0.0, atol=0.0)
    assert crps(predictive, z[:0].unsqueeze(-1)).shape == (0, 3)


def test_crps_of_the_normal_law() -> None:
    z = torch.linspace(-40, 40, 161).double()
    x = z.numpy()
    known = x * (2 * norm.cdf(x) - 1) + 2 * norm.pdf(x) - 1 / math.sqrt(math.pi)
    predictive = PiecewisePredictive.gaussian((161,), dtype=torch.double)
    np.testing.assert_allclose(crps(predictive, z), known, rtol=1e-14, atol=0.0)


def test_crps_in_single_precision_is_the_rounded_double_one() -> None:
    predictive = random_predictive("stretched", 6)
    z = torch.linspace(-3, 3, 6)
    single = crps(predictive.to(torch.float32), z)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), crps(predictive, z.double()), rtol=1e-6, atol=0.0)


# ------------------------------------------------------------ other scores


def test_interval_score_pays_for_width_and_misses() -> None:
    lower, upper, y = tensor(0, 0, 0, 0), tensor(2, 2, 2, 2), tensor(1.0, -0.5, 3.0, 2.0)
    expected = tensor(2.0, 2 + 10 * 0.5, 2 + 10 * 1.0, 2.0)
    torch.testing.assert_close(interval_score(lower, upper, y, alpha=0.2), expected)


def test_frequencies_and_calibration_error() -> None:
    pits, levels = tensor(0.05, 0.3, 0.5, 0.9), tensor(0.25, 0.5, 0.8)
    torch.testing.assert_close(observed_frequencies(pits, levels), tensor(0.25, 0.75, 0.75))
    assert calibration_error(pits, levels).item() == pytest.approx(0.25**2 + 0.05**2)


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_binomial_intervals_are_clopper_and_pearsons(confidence: float) -> None:
    counts = torch.tensor([[0, 1, 7], [19, 20, 10]])
    low, high = binomial_interval(counts, 20, confidence)
    assert low.shape == high.shape == counts.shape
    for count, a, b in zip(counts.flatten(), low.flatten(), high.flatten(), strict=True):
        exact = binomtest(int(count), 20).proportion_ci(confidence, method="exact")
        assert (a.item(), b.item()) == pytest.approx(tuple(exact), abs=1e-12)


# ------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: crps(PiecewisePredictive.gaussian((1,)), tensor(math.nan)), "`z`"),
        (lambda: interval_score(tensor(0), tensor(1), tensor(0), alpha=1.0), "alpha"),
        (lambda: interval_score(tensor(2), tensor(1), tensor(0), alpha=0.1), "lower"),
        (lambda: observed_frequencies(tensor(), tensor(0.5)), "empty"),
        (lambda: observed_frequencies(tensor(1.5), tensor(0.5)), "pits"),
        (lambda: observed_frequencies(tensor(0.5).unsqueeze(0), tensor(0.5)), "vector"),
        (lambda: calibration_error(tensor(0.5), tensor(1.0)), "levels"),
        (lambda: binomial_interval(3, 2), "successes"),
        (lambda: binomial_interval(0, 0), "trials"),
        (lambda: binomial_interval(1, 2, confidence=0.0), "confidence"),
    ],
)
def test_bad_input_is_rejected(call, message: str) -> None:
    with pytest.raises((InputDataError, BotorchTensorDimensionError), match=message):
        call()
