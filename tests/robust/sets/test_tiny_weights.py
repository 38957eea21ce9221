"""Divergence balls whose worst atoms have tiny weights, or almost tie."""

from collections.abc import Callable

import mpmath
import pytest
import torch
from torch import Tensor

from botorch_calib.robust import ChiSquaredBall, ContextDistribution, KLBall
from botorch_calib.robust.sets.base import Ball

DIGITS = 50
Masses = list[mpmath.mpf]


def kl_worst(u: Masses, w: Masses, radius: float) -> Masses:
    """The tilted distribution on the sphere; the tilt by bisection of its logarithm."""

    def tilted(log_tilt: mpmath.mpf) -> Masses:
        mass = [b * mpmath.exp(-mpmath.exp(log_tilt) * a) for a, b in zip(u, w, strict=True)]
        total = mpmath.fsum(mass)
        return [m / total for m in mass]

    def divergence(p: Masses) -> mpmath.mpf:
        return mpmath.fsum(a * mpmath.log(a / b) for a, b in zip(p, w, strict=True) if a)

    return bisected(tilted, lambda p: divergence(p) < radius, -40, 40)


def chi_squared_worst(u: Masses, w: Masses, radius: float) -> Masses:
    """The weights of the threshold at which the radius is met; by bisection of its logarithm."""

    def cut(log_excess: mpmath.mpf) -> Masses:
        threshold = min(u) + mpmath.exp(log_excess)
        mass = [b * max(threshold - a, mpmath.mpf(0)) for a, b in zip(u, w, strict=True)]
        total = mpmath.fsum(mass)
        return [m / total for m in mass]

    def divergence(p: Masses) -> mpmath.mpf:
        return mpmath.fsum((a - b) ** 2 / b for a, b in zip(p, w, strict=True))

    return bisected(cut, lambda p: divergence(p) > radius, -80, 80)


def bisected(
    at: Callable[[mpmath.mpf], Masses], is_below: Callable[[Masses], bool], low: float, high: float
) -> Masses:
    """The distribution at which ``is_below`` ceases to be true."""
    a, b = mpmath.mpf(low), mpmath.mpf(high)
    for _ in range(75):  # the logarithm is accurate to 1e-20
        middle = (a + b) / 2
        a, b = (middle, b) if is_below(at(middle)) else (a, middle)
    return at(a)


SETS: dict[type[Ball], Callable[[Masses, Masses, float], Masses]] = {
    KLBall: kl_worst,
    ChiSquaredBall: chi_squared_worst,
}


def check(kind: type[Ball], u: Tensor, weights: Tensor, radius: float) -> None:
    """Compare values with the oracle's, and check that the distribution is in the ball."""
    contexts = ContextDistribution(torch.arange(len(u)).double().unsqueeze(-1), weights)
    value = kind(radius).worst_case(u, contexts).item()
    with mpmath.workdps(DIGITS):
        values, centre = ([mpmath.mpf(x.item()) for x in v] for v in (u, contexts.weights))
        centre = SETS[kind](values, centre, radius)
        expected = float(mpmath.fsum(p * x for p, x in zip(centre, values, strict=True)))
    assert value == pytest.approx(expected, rel=1e-10, abs=1e-10)
    mass = kind(radius).worst_case_weights(u, contexts)
    assert (mass >= 0).all() and mass.sum().item() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("radius", [1e-3, 0.5, 5.0])
@pytest.mark.parametrize("weight", [1e-20, 1e-16, 1e-9])
def test_best_placed_atom_has_a_tiny_weight(kind: type[Ball], radius: float, weight: float) -> None:
    u = torch.tensor([0.0, 0.5, 1.0], dtype=torch.double)
    check(kind, u, torch.tensor([weight, 0.3, 0.7 - weight], dtype=torch.double), radius)
    check(kind, u, torch.tensor([0.3, 0.7 - weight, weight], dtype=torch.double), radius)
    check(kind, u[1:], torch.tensor([weight, 1 - weight], dtype=torch.double), radius)


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("radius", [0.05, 5.0])
def test_weights_that_forget_geometrically(kind: type[Ball], radius: float) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = 0.5 ** torch.arange(1, 41, dtype=torch.double)
    for _ in range(2):
        u = torch.randn(40, dtype=torch.double, generator=generator)
        check(kind, u, weights / weights.sum(), radius)


# The least of p_3 for p in the ball around (0.1, 0.2, 0.7): for chi-squared, the root of
# (p - 0.7)^2 / 0.7 + (p - 0.7)^2 / 0.3 = radius, unless that is negative.
TIED = {
    (KLBall, 1.5): 0.0,
    (ChiSquaredBall, 1.5): 0.7 - (1.5 * 0.21) ** 0.5,
    (KLBall, 5.0): 0.0,
    (ChiSquaredBall, 5.0): 0.0,
}


@pytest.mark.parametrize(("kind", "radius"), TIED)
@pytest.mark.parametrize("exponent", [-320, -306, -160, -60])
def test_smallest_values_almost_tie(kind: type[Ball], radius: float, exponent: int) -> None:
    contexts = ContextDistribution(
        torch.arange(3.0, dtype=torch.double).unsqueeze(-1),
        torch.tensor([0.1, 0.2, 0.7], dtype=torch.double),
    )
    u = torch.tensor([0.0, 10.0**exponent, 1.0], dtype=torch.double)
    tied = torch.tensor([0.0, 0.0, 1.0], dtype=torch.double)
    value, wanted = kind(radius).worst_case(torch.stack([u, tied]), contexts).tolist()
    assert value == pytest.approx(wanted, abs=1e-12)
    assert wanted == pytest.approx(TIED[kind, radius], abs=1e-12)
