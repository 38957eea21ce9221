"""Distributions with a bounded support, however far from it: quadrature, gradients, extremes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from botorch_calib.calibration import QuantileRecalibrator
from botorch_calib.distributions import (
    PiecewisePredictive,
    SmoothedPredictive,
    UnsmoothedPredictive,
)
from tests import oracles

INF = math.inf
#: Flags, knots, masses, ratio, x.
CASES: list[tuple[tuple[bool, ...], tuple[float, ...], tuple[float, ...], float, float]] = [
    ((False,), (-1.0, 2.0), (1.0,), 0.1, 5.0),
    ((False,), (-1.0, 2.0), (1.0,), 0.1, -4.0),
    ((False,), (-1.0, 2.0), (1.0,), 1e-6, 2.0 + 3e-6),
    ((False,), (-1.0, 2.0), (1.0,), 1e-6, 2.0 - 1e-8),
    ((False,), (-1.0, 2.0), (1.0,), 30.0, -7.0),
    ((False,), (-1.0, 2.0), (1.0,), 1e-3, 1e3),
    ((False,), (-1.0, 2.0), (1.0,), 1e-3, -1e3),
    ((False,), (-1.0, 2.0), (1.0,), 1e3, 1e3),
    ((False,), (20.0, 20.001), (1.0,), 0.01, 19.9),
    ((False,), (-30.0, -28.0), (1.0,), 0.2, -28.1),
    ((False,), (-30.0, -28.0), (1.0,), 5.0, 0.0),
    ((True,), (-1.0, 2.0), (1.0,), 0.1, 5.0),
    ((True,), (-1.0, 2.0), (1.0,), 1e-3, -1e3),
    ((False,), (-INF, 2.0), (1.0,), 0.2, 5.0),
    ((False,), (-INF, -2.0), (1.0,), 0.2, 1.0),
    ((False,), (-2.0, INF), (1.0,), 0.2, -4.0),
    ((True, False), (-1.0, 0.5, 2.0), (0.4, 0.6), 0.1, 4.0),
    ((False, True), (-1.0, 0.5, 2.0), (0.4, 0.6), 0.1, -4.0),
    # Nothing above, or next to it
    ((False, False), (-1.0, 0.5, 2.0), (1.0, 0.0), 0.1, 4.0),
    ((True, True), (-1.0, 0.5, 2.0), (1.0, 0.0), 0.01, 4.0),
    ((False, False, False), (-INF, -1.0, 0.5, INF), (0.0, 1.0, 0.0), 0.1, 4.0),
    ((False, False, False), (-INF, -1.0, 0.5, INF), (0.2, 0.8 - 1e-12, 1e-12), 0.1, 2.0),
    ((False, True, False), (-INF, -1.0, 0.5, INF), (0.0, 1.0, 0.0), 0.1, -4.0),
]


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.double)


def distribution(case: Any, knots: Tensor | None = None) -> SmoothedPredictive:
    flags, ends, masses, ratio, _ = case
    ends = double(*ends) if knots is None else knots
    return SmoothedPredictive(
        PiecewisePredictive(ends, double(*masses), flags), torch.tensor(ratio, dtype=torch.double)
    )


@pytest.mark.parametrize("case", CASES)
def test_against_quadrature(case: Any) -> None:
    flags, knots, masses, ratio, point = case
    exact = oracles.smoothed(oracles.Pieces([*knots], [*masses], flags), ratio, point)
    expected = double(exact.log_excess, exact.log_survival, exact.log_cdf, exact.log_prob)
    smoothed, x = distribution(case), torch.tensor(point, dtype=torch.double)
    got = [
        smoothed.log_excess(x),
        smoothed.log_survival(x),
        smoothed.mirrored().log_survival(-x),
        smoothed.log_prob(x),
    ]
    assert_close(torch.stack(got), expected, rtol=1e-13, atol=1e-10)


@pytest.mark.parametrize("flags", [(False,), (True,), (False, True), (True, False)])
@pytest.mark.parametrize("ratio", [0.0, 1e-6, 1.0, 1e6])
def test_finite_at_any_distance(flags: tuple[bool, ...], ratio: float) -> None:
    x = double(*(s * v for v in (0.0, 1e-8, 0.4, 2.0, 37.0, 1e3, 1e6) for s in (1, -1)))
    knots = torch.linspace(-1.0, 2.0, len(flags) + 1).double()
    masses = torch.full((len(flags),), 1 / len(flags)).double()
    inputs = [v.requires_grad_() for v in (knots, masses, torch.tensor(ratio).double(), x)]
    smoothed = SmoothedPredictive(PiecewisePredictive(knots, masses, flags), inputs[2])
    values = [smoothed.log_excess(x), smoothed.log_survival(x), smoothed.log_prob(x)]
    values += [smoothed.quantile(0.01), smoothed.quantile(0.9), smoothed.cdf(x)]
    for value in values:
        grads = torch.autograd.grad(value.sum(), inputs, retain_graph=True, allow_unused=True)
        assert all(v is None or v.isfinite().all() for v in (value, *grads))
    excess, survival, log_p = (v.exp() for v in values[:3])
    seen = torch.stack([excess, survival, log_p]).amin(dim=0) > 1e-250
    slopes = [torch.autograd.grad(v.sum(), x, retain_graph=True)[0] for v in values[:2]]
    assert_close(slopes[0][seen], -(survival / excess)[seen], rtol=1e-6, atol=0.0)
    assert_close(slopes[1][seen], -(log_p / survival)[seen], rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("flat", [True, False])
def test_an_empty_tail_is_no_tail(flat: bool) -> None:
    x = double(-30.0, -2.0, 0.1, 0.6, 30.0, 1e3)
    ratio = torch.tensor(0.05, dtype=torch.double)
    knots = double(-1.0, 0.5)
    bounded = PiecewisePredictive(knots, double(1.0), (flat,))
    hollow = PiecewisePredictive(knots, double(0.0, 1.0, 0.0), (False, flat, False))
    for name in ("log_excess", "log_survival", "log_prob", "cdf"):
        pair = [getattr(SmoothedPredictive(p, ratio), name)(x) for p in (bounded, hollow)]
        assert_close(pair[1], pair[0], rtol=1e-12, atol=1e-12)
    pair = [SmoothedPredictive(p, ratio).quantile(0.9) for p in (bounded, hollow)]
    assert_close(pair[1], pair[0], rtol=1e-9, atol=1e-9)
    inside = x.clamp(-0.9, 0.4)
    for name in ("log_excess", "log_survival"):
        pair = [getattr(UnsmoothedPredictive(p), name)(inside) for p in (bounded, hollow)]
        assert_close(pair[1], pair[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("outer", [1e-8, 1e-12, 1e-14])
def test_levels_that_leave_next_to_nothing_beyond_them(outer: float) -> None:
    """As if given by masses, which are looked at: tails do not cover the differences there."""
    levels, knots = double(outer, 0.3, 0.9, 1.0 - outer), double(-8.0, -7.9, 0.5, 6.0)
    predictive = PiecewisePredictive.recalibrated(levels, knots)
    calibrator = QuantileRecalibrator(levels, tails="gaussian")
    assert predictive.form.hollow and calibrator.predictive(double(0.5).view(1, 1)).form.hollow
    checked = PiecewisePredictive(knots, predictive.masses, predictive.uniform)
    x, ratio = double(-9.0, 6.5, 8.4, 11.2), torch.tensor(0.3, dtype=torch.double)
    for name in ("log_excess", "log_survival"):
        pair = [getattr(SmoothedPredictive(p, ratio), name)(x) for p in (predictive, checked)]
        assert_close(pair[0], pair[1], rtol=1e-12, atol=1e-12)
