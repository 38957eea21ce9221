"""Miscoverage on a stream of data under deliberately misspecified Gaussian processes.

Inputs are uniform in the unit square, the objective is a draw of a known Gaussian process,
and the model differs from the truth in one respect. Each observation is predicted one step
ahead; the intervals are the model's own (z at the normal quantile) or those of a calibrator
at its defaults. Run with ``-s`` for the table of figures.
"""

import functools
import math
from dataclasses import dataclass

import pytest
import torch
from botorch.models import SingleTaskGP
from torch import Generator, Tensor

from botorch_calib import LocalizedConformal, OnlineConformal
from botorch_calib.calibration import Calibrator
from botorch_calib.models.residuals import prequential_residuals

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("one_thread"),
    # The hyperparameters are known in the units of the outcomes, which are not standardized.
    pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized"),
]

ALPHA, NUM, SEEDS = 0.2, 1500, 5
LENGTHSCALE, NOISE_VARIANCE = 0.2, 0.05
QUARTERS = ("[0, 1/4)", "[1/4, 1/2)", "[1/2, 3/4)", "[3/4, 1]")


@dataclass(frozen=True)
class Case:
    """The hyperparameters of the model, and noise with unit variance on average."""

    lengthscale: float = LENGTHSCALE
    noise_variance: float = NOISE_VARIANCE
    noise: str = "normal"
    # Whether the model's intervals have to be wrong overall, and in some quarter.
    off: tuple[bool, bool] = (True, True)


CASES = {
    "well specified": Case(off=(False, False)),
    "lengthscale 5 x": Case(lengthscale=5 * LENGTHSCALE),
    "noise / 10": Case(noise_variance=NOISE_VARIANCE / 10),
    "Student-t(3) noise": Case(noise="student"),
    "noise grows 5 x": Case(noise="growing", off=(False, True)),
}


def draw_noise(kind: str, X: Tensor, generator: Generator) -> Tensor:
    noise = torch.randn(len(X), dtype=torch.double, generator=generator)
    if kind == "student":
        normals = torch.randn(len(X), 3, dtype=torch.double, generator=generator)
        return noise / normals.square().sum(dim=-1).sqrt()  # with variance 1
    if kind == "growing":
        # From 1 to 5 over the first input; the mean of the square is 31 / 3.
        return noise * (1 + 4 * X[:, 0]) / math.sqrt(31 / 3)
    return noise


def stream(case: Case, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs in order, and the one-step-ahead residuals of the model."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(NUM, 2, dtype=torch.double, generator=generator)
    kernel = (-0.5 * (torch.cdist(X, X) / LENGTHSCALE).square()).exp()
    kernel.diagonal().add_(1e-8)
    f = torch.linalg.cholesky(kernel) @ torch.randn(NUM, dtype=torch.double, generator=generator)
    Y = f + math.sqrt(NOISE_VARIANCE) * draw_noise(case.noise, X, generator)
    gp = SingleTaskGP(
        X,
        Y.unsqueeze(-1),
        train_Yvar=torch.full((NUM, 1), case.noise_variance, dtype=torch.double),
        outcome_transform=None,
    )
    gp.covar_module.lengthscale = case.lengthscale
    gp.mean_module.initialize(constant=0.0)
    return X, prequential_residuals(gp)


def online_misses(calibrator: LocalizedConformal, X: Tensor, z: Tensor) -> Tensor:
    stated = calibrator.update(X, z)  # as before each observation
    return z.abs() > stated.finite_knots[:, 0, -1]


@dataclass(frozen=True)
class Figures:
    """Miss rates over the second halves of all runs, and their numbers of points."""

    overall: float
    quarters: list[float]
    counts: list[int]


def make_calibrator(name: str) -> Calibrator | None:
    if name == "localized":
        return LocalizedConformal(ALPHA, lengthscale=0.25)
    if name == "auto":
        return LocalizedConformal(ALPHA)
    return OnlineConformal(ALPHA) if name == "online" else None


@functools.cache
def figures(case: Case, name: str) -> Figures:
    misses, strips = [], []
    for seed in range(SEEDS):
        X, z = stream(case, seed)
        calibrator = make_calibrator(name)
        if isinstance(calibrator, LocalizedConformal):
            missed = online_misses(calibrator, X, z)
        else:
            missed = z.abs() > -torch.special.ndtri(torch.tensor(ALPHA / 2, dtype=torch.double))
        misses.append(missed[NUM // 2 :])
        strips.append((4 * X[NUM // 2 :, 0]).long())
    missed, strip = torch.cat(misses).double(), torch.cat(strips)
    counts = [int((strip == k).sum()) for k in range(4)]
    quarters = [missed[strip == k].mean().item() for k in range(4)]
    return Figures(missed.mean().item(), quarters, counts)


def standard_error(count: int) -> float:
    return math.sqrt(ALPHA * (1 - ALPHA) / count)


@pytest.mark.parametrize("name", CASES)
def test_miscoverage(name):
    case = CASES[name]
    kinds = ("model", "online", "localized", "auto")
    own, online, localized, auto = (figures(case, kind) for kind in kinds)
    for kind, result in zip(kinds, (own, online, localized, auto), strict=True):
        shown = "  ".join(f"{rate:.3f}" for rate in result.quarters)
        print(f"\n{name:20s} {kind:10s} {result.overall:.3f}   {shown}", end="")

    # All calibrators are right overall.
    for result in (online, localized, auto):
        assert result.overall == pytest.approx(ALPHA, abs=0.05)
    # Localized calibrators are right in every quarter of the domain.
    for result in (localized, auto):
        for rate, count in zip(result.quarters, result.counts, strict=True):
            assert rate == pytest.approx(ALPHA, abs=0.03 + 3 * standard_error(count))

    # The model is wrong where it should be.
    off_overall, off_somewhere = case.off
    error = abs(own.overall - ALPHA)
    if off_overall:
        assert error > 0.02 + 3 * standard_error(sum(own.counts))
        assert error > 2 * max(abs(r.overall - ALPHA) for r in (online, localized))
    if off_somewhere:
        worst = max(abs(rate - ALPHA) for rate in own.quarters)
        assert worst > 0.03 + 3 * standard_error(min(own.counts))
        assert worst > max(abs(rate - ALPHA) for rate in localized.quarters)
    if case == CASES["well specified"]:
        assert error <= 0.05  # there is nothing to correct, and calibrators do no harm above


def test_localization_is_what_repairs_the_quarters():
    """Without localization, growing noise makes the quarters as wrong as for the model."""
    case = CASES["noise grows 5 x"]
    online, localized = figures(case, "online"), figures(case, "localized")
    tolerance = 0.03 + 3 * standard_error(min(online.counts))
    assert max(abs(rate - ALPHA) for rate in online.quarters) > tolerance
    spread = [max(result.quarters) - min(result.quarters) for result in (online, localized)]
    assert spread[1] < spread[0] / 2
