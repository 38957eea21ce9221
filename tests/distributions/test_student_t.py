"""Student's t distribution compared with SciPy and mpmath, in both tails, for all degrees."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats
from torch.autograd import gradcheck
from torch.testing import assert_close

from botorch_calib.distributions.student_t import student_t_quantile, student_t_score

DEGREES = [0.5, 1.0, 2.1, 4.0, 30.0, 1e4]
T = torch.tensor([-1e3, -30.0, -5.0, -1.0, -1e-3, 0.0, 0.3, 2.0, 8.0, 100.0], dtype=torch.double)


@pytest.mark.parametrize("df", DEGREES)
def test_score(df: float) -> None:
    t, degrees = T.numpy(), torch.tensor(df, dtype=torch.double)
    lower, upper = stats.norm.ppf(stats.t.cdf(t, df)), -stats.norm.ppf(stats.t.sf(t, df))
    expected = torch.from_numpy(np.where(t < 0.0, lower, upper))
    found = student_t_score(T, degrees)
    near = expected.abs() < 36.0  # beyond, probabilities underflow
    assert_close(found[near], expected[near], rtol=1e-9, atol=1e-8)
    assert_close(student_t_quantile(found, degrees)[near], T[near], rtol=1e-9, atol=1e-12)


def test_far_out() -> None:
    """Thirty deviations out, where the probability is 1e-198."""
    found = student_t_quantile(torch.tensor(30.0).double(), torch.tensor(3.0).double())
    with mpmath.workdps(40):
        tail = mpmath.erfc(30 / mpmath.sqrt(2)) / 2
        t = mpmath.mpf(float(found))
        # P(T > t) = I_x(3/2, 1/2) / 2 with x = 3 / (3 + t^2)
        stated = mpmath.betainc(1.5, 0.5, 0, 3 / (3 + t * t), regularized=True) / 2
        assert abs(stated / tail - 1) < 1e-9


@pytest.mark.parametrize("df", [0.01, 0.05, 0.1])
def test_few_degrees_of_freedom(df: float) -> None:
    """Quantiles whose squares overflow; the greatest are held where they still have a score."""
    degrees = torch.tensor(df, dtype=torch.double)
    scores = torch.tensor([-8.0, -3.0, -0.5, 1e-3, 1.0, 2.0, 6.0], dtype=torch.double)
    scores.requires_grad_()
    t = student_t_quantile(scores, degrees)
    back = student_t_score(t, degrees)
    held = t.abs() > 1e255
    assert_close(back[~held], scores[~held], rtol=1e-9, atol=1e-12)
    assert t.isfinite().all() and (t.diff()[~held[1:]] > 0).all()
    assert (back.abs() <= scores.abs() + 1e-9).all()
    for number in (1e90, 1e110, 1e250):  # on both sides of where 1 + t^2 / nu is rounded
        with mpmath.workdps(60):
            x = df / (df + mpmath.mpf(number) ** 2)
            tail = mpmath.betainc(df / 2, 0.5, 0, x, regularized=True) / 2
            expected = float(-mpmath.sqrt(2) * mpmath.erfinv(2 * tail - 1))
        found = student_t_score(torch.tensor(number, dtype=torch.double), degrees)
        assert found.item() == pytest.approx(expected, rel=1e-8)
    (slope,) = torch.autograd.grad(t.abs().clamp(max=1e200).log().sum(), scores)
    assert slope.isfinite().all()


@pytest.mark.parametrize("df", [0.7, 50.0])
@pytest.mark.parametrize("function", [student_t_quantile, student_t_score])
def test_gradients(function, df: float) -> None:
    x = torch.tensor([-4.0, -0.5, 1e-2, 1.0, 3.0], dtype=torch.double, requires_grad=True)
    degrees = torch.tensor(df, dtype=torch.double, requires_grad=True)
    assert gradcheck(function, (x, degrees), atol=1e-6, rtol=1e-4)
