"""Student's t distribution against SciPy and mpmath, in both tails and for all degrees."""

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


@pytest.mark.parametrize("df", [0.7, 3.0, 50.0])
@pytest.mark.parametrize("function", [student_t_quantile, student_t_score])
def test_gradients(function, df: float) -> None:
    x = torch.tensor([-4.0, -0.5, 1e-2, 1.0, 3.0], dtype=torch.double, requires_grad=True)
    degrees = torch.tensor(df, dtype=torch.double, requires_grad=True)
    assert gradcheck(function, (x, degrees), atol=1e-6, rtol=1e-4)
