"""The form of a piecewise distribution: derived facts, padding, and who carries it where."""

import dataclasses
import math

import pytest
import torch
from torch.testing import assert_close

from botorch_calib.distributions import PiecewiseForm, PiecewisePredictive
from tests.predictive_examples import DECILES, KINDS, random_predictive

CONFORMAL = PiecewiseForm((False, True, False), True, True, around_zero=True)


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.double)


@pytest.mark.parametrize(
    ("form", "gaussian", "only_tails"),
    [
        (PiecewiseForm((False,), True, True), True, False),
        (PiecewiseForm((False,)), False, False),
        (PiecewiseForm((False,), True, False), False, False),
        (CONFORMAL, False, True),
        (PiecewiseForm((False, True, False), True, True), False, False),
        (PiecewiseForm((False, False, False), True, True, around_zero=True), False, False),
        (PiecewiseForm((True, True, False), False, True, around_zero=True), False, True),
        (PiecewiseForm((False, True, True), False, False, around_zero=True), False, False),
    ],
)
def test_what_follows_from_it(form, gaussian, only_tails):
    assert form.is_gaussian is gaussian
    assert form.only_tails is only_tails


@pytest.mark.parametrize("open_low", [False, True])
@pytest.mark.parametrize("open_high", [False, True])
def test_rows_of_pieces_and_knots(open_low, open_high):
    """Piece ``j`` lies between the padded knots ``j`` and ``j + 1``."""
    form = PiecewiseForm((False, True, False), open_low, open_high)
    finite = torch.arange(4.0)[int(open_low) : 4 - int(open_high)]
    padded = form.pad(finite, -math.inf, math.inf)
    assert len(padded) == 4
    assert padded[0].isinf() == open_low and padded[-1].isinf() == open_high
    both = form.pad(finite.expand(2, -1), -1.0, 9.0, dim=-1)
    assert both.shape == (2, 4)
    assert form.mirrored() == PiecewiseForm((False, True, False), open_high, open_low)


def test_flags():
    form = PiecewiseForm((False, True))
    assert form.is_uniform(torch.device("cpu")).tolist() == [False, True]
    assert form.is_normal(double(0.0)).tolist() == [[1.0], [0.0]]
    with torch.inference_mode():
        form.is_normal(torch.zeros(1))
    x = torch.ones(1, requires_grad=True)
    (x * form.is_normal(x)).sum().backward()  # what a cache holds can be used by a graph


@pytest.mark.parametrize("kind", KINDS)
def test_a_distribution_keeps_its_form(kind):
    predictive = random_predictive(kind, 5)
    form = predictive.form
    assert predictive.mirrored().form == form.mirrored()
    assert predictive.mirrored().mirrored().form == form
    assert predictive.to(torch.float32).form == form
    assert predictive.to(torch.float64) is predictive
    assert predictive.finite_knots.isfinite().all()
    padded = form.pad(predictive.finite_knots, -math.inf, math.inf, dim=-1)
    assert torch.equal(padded, predictive.knots)
    pieces = (predictive.standardized().finite_knots, predictive.masses, form)
    twin = PiecewisePredictive.from_form(*pieces, scale=predictive.scale)
    z = torch.linspace(-3, 3, 5).double()
    assert torch.equal(twin.cdf(z), predictive.cdf(z))


@pytest.mark.parametrize("validate", [True, False])
def test_both_forms_of_knots(validate):
    masses, flags = double(0.2, 0.5, 0.3), (False, True, False)
    inner = PiecewisePredictive(double(-1.0, 1.0), masses, flags, validate=validate)
    knots = double(-math.inf, -1.0, 1.0, math.inf)
    full = PiecewisePredictive(knots, masses, flags, validate=validate)
    assert torch.equal(inner.knots, full.knots)
    assert inner.form == PiecewiseForm(flags, True, True)
    # Without a look at the values nothing is known of their ends.
    assert full.form == PiecewiseForm(flags, validate, validate)
    z = double(-40.0, -3.0, -1.0, 0.0, 5.0)
    assert_close(inner.cdf(z), full.cdf(z))
    assert_close(inner.mean, full.mean)
    assert_close(inner.transport(z), full.transport(z))


def test_forms_of_the_constructors():
    half_width = double(0.5)
    assert PiecewisePredictive.conformal(0.1, half_width).form == CONFORMAL
    for alpha, stretched in ((0.1, True), (1e-4, False)):
        form = PiecewisePredictive.conformal(alpha, half_width, tails="stretched").form
        rare = alpha < 0.01
        assert form == dataclasses.replace(CONFORMAL, stretched=stretched, rare_tails=rare)
    assert PiecewisePredictive.gaussian((2,)).form == PiecewiseForm((False,), True, True)
    form = PiecewisePredictive.recalibrated(DECILES, DECILES.logit()).form
    assert form == PiecewiseForm((False,) * 20, True, True)
