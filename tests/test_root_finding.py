"""Newton's method inside a bracket."""

import torch
from torch.testing import assert_close

from botorch_calib._root_finding import bracketed_newton


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.double)


def test_bracketed_newton():
    """Roots of ``x^3 - a``, also where the guess is a poor one and the slope vanishes."""
    cubes, guess = double(-8.0, 1e-9, 0.5, 27.0, 1e6), double(40.0, 0.0, 0.8, -90.0, 100.0)
    seen = []

    def function(x, rows):
        seen.append(len(rows))
        return x**3 - cubes[rows], 3 * x**2

    low, high = torch.full_like(cubes, -100.0), torch.full_like(cubes, 200.0)
    roots = bracketed_newton(function, low, high, guess, max_steps=100, tol=1e-12)
    expected = double(-2.0, 1e-3, 0.5 ** (1 / 3), 3.0, 100.0)
    assert_close(roots, expected, rtol=1e-10, atol=1e-5)
    assert len(seen) < 60 and seen[0] == 5 and seen[-1] < 5


def test_bracketed_newton_keeps_to_the_bracket():
    roots = bracketed_newton(
        lambda x, rows: (x - 5.0, torch.ones_like(x)),
        double(0.0),
        double(2.0),
        double(1.0),
        max_steps=60,
        tol=1e-12,
    )
    assert_close(roots, double(2.0))
