"""Random predictive distributions of every kind, from ordinary to extreme."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from botorch_calib.calibration.scores import GaussianScore
from botorch_calib.distributions.denoised_piecewise import SmoothedPredictive
from botorch_calib.distributions.piecewise import MIN_HALF_WIDTH, PiecewisePredictive
from tests.long_grids import mostly_slow
from tests.random_numbers import uniform

DECILES = torch.linspace(0.05, 0.95, 19, dtype=torch.double)

KINDS = [
    "gaussian",
    "conformal",
    "stretched",
    "p-value",
    "recalibrated",
    "knots",
    "calibrated",
    "uniform",
    "mixed",
    "truncated",
    "open",
]
# Kinds for long tests. They cover the code of the other kinds, which are slow cases.
SOME_KINDS = mostly_slow(
    KINDS, ["gaussian", "conformal", "stretched", "recalibrated", "truncated", "open"]
)


def from_pits(levels: Tensor, thresholds: Tensor, max_width: float = 8.0) -> PiecewisePredictive:
    """The recalibrated distribution whose thresholds are PITs."""
    knots = GaussianScore(max_width).knots(thresholds)
    return PiecewisePredictive.recalibrated(levels, knots, max_width=max_width)


def random_predictive(kind: str, num: int, seed: int = 0) -> PiecewisePredictive:
    """``num`` distributions of one kind."""
    generator = Generator().manual_seed(seed)
    u = uniform(num, generator=generator)
    half_width = 10 ** (3.6 * u - 2)  # 0.01 to 40
    if kind == "gaussian":
        return PiecewisePredictive.gaussian((num,), dtype=torch.double)
    if kind in ("conformal", "stretched"):
        tails = "stretched" if kind == "stretched" else "gaussian"
        return PiecewisePredictive.conformal(
            0.2, half_width=half_width, max_width=50.0, tails=tails
        )
    if kind == "p-value":  # raw thresholds leave [0, 1]
        half_width = GaussianScore(8.0).half_width(1.6 * u - 0.3)
        return PiecewisePredictive.conformal(0.1, half_width=half_width, max_width=8.0)
    if kind == "recalibrated":  # neighbouring thresholds cross
        return from_pits(DECILES, 1.1 * uniform(num, 19, generator=generator) - 0.05)
    if kind == "calibrated":  # one knot lies at zero
        return from_pits(DECILES, DECILES.expand(num, 19))
    if kind == "knots":
        shift = torch.randn(num, 1, dtype=torch.double, generator=generator)
        knots = shift - half_width.log().unsqueeze(-1) * torch.tensor([1.0, -0.5]).double()
        return PiecewisePredictive.recalibrated(DECILES[[5, 15]], knots=knots)
    flags = {
        "uniform": (True, True, True),
        "mixed": (True, False, True),
        "truncated": (False, True, False),
        "open": (False, True, False, True, False),  # without bounds, zero in any of the pieces
    }[kind]
    knots = uniform(num, 4, generator=generator).cumsum(-1) * 3 - 4
    masses = uniform(num, len(flags), generator=generator) + 0.05
    return PiecewisePredictive(knots, masses / masses.sum(-1, keepdim=True), flags)


def smoothed_by(kind: str, parameters: Tensor, ratio: Tensor) -> SmoothedPredictive:
    """A distribution as a function of half-widths ``n``, thresholds ``n x 3`` or masses."""
    if kind == "recalibrated":
        predictive = from_pits(DECILES[[2, 8, 15]], parameters)
    elif kind == "masses":
        knots = torch.tensor([-1.0, -0.2, 0.7], dtype=torch.double)
        masses = torch.cat([parameters, 1 - parameters.sum(-1, keepdim=True)], dim=-1)
        flags = (False, True, False, False)
        predictive = PiecewisePredictive(knots, masses, flags, validate=False)
    else:
        width = parameters.clamp(MIN_HALF_WIDTH, 3.4)
        predictive = PiecewisePredictive.conformal(0.2, width, tails=kind, validate=False)
    return SmoothedPredictive(predictive, ratio)
