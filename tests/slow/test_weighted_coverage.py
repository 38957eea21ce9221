"""Coverage of weighted conformal intervals under covariate shifts with known density ratios.

Many independent replicates, each with a history of its own and one new input: the guarantee is
for the probability over both. Run with ``-s`` for the figures.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Generator, Tensor

from botorch_calib.calibration import ClassifierDensityRatio, WeightedConformal

pytestmark = pytest.mark.slow

ALPHA, NUM, REPLICATES = 0.2, 40, 4000
TOLERANCE = 4 * math.sqrt(ALPHA * (1 - ALPHA) / REPLICATES)

# Past inputs are uniform on [0, 1], new ones have the density power x^(power - 1).
POWERS = {"none": 1.0, "right": 3.0, "left": 0.5}
powers = pytest.mark.parametrize("power", POWERS.values(), ids=POWERS)
Make = Callable[[Tensor, float, Generator], WeightedConformal]


def draw(num: int, power: float, generator: Generator) -> Tensor:
    return torch.rand(num, 1, dtype=torch.double, generator=generator) ** (1 / power)


def true_ratio(power: float) -> Callable[[Tensor], Tensor]:
    return lambda X: power * X.squeeze(-1) ** (power - 1)


def residuals(X: Tensor, generator: Generator) -> Tensor:
    """Residuals of a model whose stated spread is off by 0.5 to 3, growing with the input."""
    noise = torch.randn(len(X), dtype=torch.double, generator=generator)
    return noise * (0.5 + 2.5 * X.squeeze(-1))


def coverage(power: float, make: Make) -> tuple[float, float]:
    """Share of new residuals that are covered, and the largest normalised weight on average."""
    generator = Generator().manual_seed(23)
    hits, largest = [], []
    for _ in range(REPLICATES):
        X, x = draw(NUM, 1.0, generator), draw(1, power, generator)
        calibrator = make(X, power, generator)
        calibrator.update(X, residuals(X, generator))
        hits.append(residuals(x, generator).abs() <= calibrator.half_width(x).squeeze())
        weights = true_ratio(power)(torch.cat([X, x]))
        largest.append(weights.max() / weights.sum())
    rates = torch.cat(hits).double().mean().item(), torch.stack(largest).mean().item()
    print(f"\ncoverage {rates[0]:.3f} of {1 - ALPHA}, largest weight {rates[1]:.3f}", end="")
    return rates


@powers
@pytest.mark.parametrize("continuous", [False, True])
def test_true_ratio(power, continuous):
    """At least 1 - alpha, and above it by no more than the weight of the residual that decides.

    The continuous half-width reaches up to the next residual, so it may add a second weight.
    """
    rate, largest = coverage(
        power,
        lambda X, power, _: WeightedConformal(ALPHA, true_ratio(power), continuous=continuous),
    )
    assert rate >= 1 - ALPHA - TOLERANCE
    assert rate <= 1 - ALPHA + (2 if continuous else 1) * largest + TOLERANCE


def test_without_weights_coverage_is_lost():
    """The contrast: what is wrong under a shift is the missing ratio."""
    # Its weights are equal, so without a shift it covers at most one part of n + 1 too many.
    highest = 1 - ALPHA + 1 / (NUM + 1) + TOLERANCE
    rate, _ = coverage(POWERS["none"], lambda *_: WeightedConformal(ALPHA))
    assert 1 - ALPHA - TOLERANCE <= rate <= highest
    right, _ = coverage(POWERS["right"], lambda *_: WeightedConformal(ALPHA))
    assert right < 1 - ALPHA - 2 * TOLERANCE
    left, _ = coverage(POWERS["left"], lambda *_: WeightedConformal(ALPHA))
    assert left > highest


def test_estimated_ratio():
    """From the 40 past inputs and 200 draws of new ones: no guarantee, but most of the way."""

    def estimated(X: Tensor, power: float, generator: Generator) -> WeightedConformal:
        ratio = ClassifierDensityRatio(X, draw(200, power, generator))
        return WeightedConformal(ALPHA, ratio)

    power = POWERS["right"]
    without, _ = coverage(power, lambda *_: WeightedConformal(ALPHA))
    rate, _ = coverage(power, estimated)
    assert rate > 1 - ALPHA - 0.5 * (1 - ALPHA - without)
