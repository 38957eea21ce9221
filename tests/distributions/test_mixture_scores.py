"""Normal scores of mixtures, their inverse and its table, against independent sums and mpmath."""

import mpmath
import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch.testing import assert_close

from botorch_calib.distributions.mixture_scores import (
    ScoreTable,
    mixture_quantile,
    mixture_score,
    score_of_members,
)

LEVELS = [1e-9, 1e-6, 1e-3, 0.1, 0.4999, 0.5, 0.5001, 0.9, 0.999, 1 - 1e-6, 1 - 1e-9]


def members(kind: str, num: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Means and deviations, ``num x 1``."""
    generator = torch.Generator().manual_seed(num)
    draw = torch.randn(2, num, 1, generator=generator, dtype=torch.double)
    if kind == "overlapping":
        return draw[0], (0.5 * draw[1]).exp()
    if kind == "coinciding":
        return torch.full_like(draw[0], 3.0), torch.full_like(draw[0], 0.1)
    if kind == "far apart":
        return 1e4 * draw[0], torch.ones_like(draw[0])
    return draw[0], 10.0 ** -(3.0 * draw[1].abs()).clamp(max=5.0)  # narrow ones beside wide ones


@pytest.mark.parametrize("kind", ["overlapping", "coinciding", "far apart", "narrow"])
@pytest.mark.parametrize("num", [1, 3, 512])
def test_cdf_at_the_quantile(kind, num):
    mean, deviation = members(kind, num)
    level = torch.tensor(LEVELS, dtype=torch.double)
    y = mixture_quantile(torch.special.ndtri(level), mean, deviation)
    t = ((y - mean) / deviation).numpy()
    below, above = (values.mean(axis=0) for values in (norm.cdf(t), norm.sf(t)))
    wanted = np.asarray(LEVELS)
    error = np.minimum(np.abs(below - wanted), np.abs(above - (1.0 - wanted)))
    assert error.max() < 1e-10
    # Relative to the smaller tail, but for what rounding of `y` does in an ulp
    rounding = np.abs(y.numpy()) * 1e-15 / deviation.min().item()
    tail = np.minimum(wanted, 1.0 - wanted)
    assert (error <= tail * (1e-9 + 100 * rounding)).all()
    assert (y.diff() >= 0).all()


@pytest.mark.parametrize("t", [[-40.0, -39.0, -60.0], [35.0, 50.0, 36.0], [-3.0, 8.0, 1e6]])
def test_scores_far_out(t):
    """Where probabilities underflow, in both tails, against 60 digits."""
    with mpmath.workdps(60):
        below = sum(mpmath.ncdf(x) for x in t) / 3
        above = sum(mpmath.ncdf(-x) for x in t) / 3
        tail = min(below, above)
        # Phi(-x) = tail by Newton's method in the logarithm
        z = mpmath.findroot(
            lambda x: mpmath.log(mpmath.ncdf(-x)) - mpmath.log(tail), max(map(abs, t[:2]))
        )
        expected = float(-z if below < above else z)
    value = score_of_members(torch.tensor(t, dtype=torch.double))
    assert_close(value.item(), expected, rtol=1e-13, atol=0)
    # It is a mean in probability, so among the members' own.
    assert min(t) <= value.item() <= max(t)


def test_derivatives():
    mean, deviation = members("overlapping", 5)
    mean, deviation = mean.requires_grad_(), deviation.requires_grad_()
    z = torch.tensor([-6.0, -1.0, 0.0, 0.4, 3.0], dtype=torch.double, requires_grad=True)
    for function in (mixture_score, mixture_quantile):
        assert torch.autograd.gradcheck(function, (z, mean, deviation))
        assert torch.autograd.gradgradcheck(function, (z, mean, deviation))
    # Far apart: that of the member at hand alone
    far = torch.tensor([[0.0], [1e6]], dtype=torch.double, requires_grad=True)
    y = mixture_quantile(torch.tensor([-1.0]).double(), far, torch.ones_like(far))
    assert_close(torch.autograd.grad(y, far)[0].squeeze(), torch.tensor([1.0, 0.0]).double())


def test_single_precision_and_batches():
    mean, deviation = (x.view(4, 2, 2) for x in members("overlapping", 16))
    z = torch.linspace(-4, 4, 3, dtype=torch.double).view(3, 1, 1)
    y = mixture_quantile(z, mean, deviation)
    assert y.shape == (3, 2, 2)
    rows = [
        mixture_quantile(z[:, 0, 0], mean[:, i, j, None], deviation[:, i, j, None])
        for i in range(2)
        for j in range(2)
    ]
    assert_close(y, torch.stack(rows, dim=-1).view(3, 2, 2), rtol=1e-12, atol=1e-12)
    single = mixture_quantile(z.float(), mean.float(), deviation.float())
    assert single.dtype == torch.float32
    assert_close(single.double(), y, rtol=1e-5, atol=1e-5)
    back = mixture_score(single, mean.float(), deviation.float())
    assert_close(back.double(), z.expand_as(y), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num", [1, 3, 40])
def test_table(num):
    """Interpolation keeps 2e-5 scores where members overlap, 2e-4 far out; order; derivatives."""
    mean, deviation = members("overlapping", num)
    mean, deviation = 0.7 * mean + 50.0, (deviation.log() * 0.5).exp()
    mean.requires_grad_(), deviation.requires_grad_()
    table = ScoreTable(mean, deviation)
    z = torch.linspace(-7.0, 7.0, 501, dtype=torch.double).unsqueeze(-1)
    y = mixture_quantile(z, mean, deviation)
    found = table.quantile(z)
    for value in (table.score(y.detach()), mixture_score(found, mean, deviation)):
        assert_close(value, z, rtol=0, atol=2e-4)
        assert_close(value[108:-108], z[108:-108], rtol=0, atol=2e-5)  # within 4 scores
    assert (found.diff(dim=0) > 0).all()
    assert_close(table.score(found), z, rtol=0, atol=4e-4)
    gradient, expected = (
        torch.autograd.grad(value.sum(), (mean, deviation), retain_graph=True)
        for value in (found, y)
    )
    assert_close(gradient, expected, rtol=1e-3, atol=1e-3 * len(z))
    ends = table.quantile(torch.tensor([[-60.0], [60.0]]).double())
    assert ends.isfinite().all() and ends[0] < y[0] and ends[1] > y[-1]
    infinite = torch.tensor([[-torch.inf], [torch.inf]]).double()
    for low, high in (table.score(infinite), table.quantile(infinite)):
        assert (low < -1e200).all() and (high > 1e200).all()


def test_table_of_members_far_apart():
    """Within the members it errs by less than a tenth; a gap between them is no matter."""
    mean = torch.tensor([[-500.0], [0.0], [900.0]], dtype=torch.double)
    table = ScoreTable(mean, torch.ones_like(mean))
    for center in mean:
        y = center + torch.linspace(-2, 2, 41, dtype=torch.double).unsqueeze(-1)
        assert_close(
            table.score(y), mixture_score(y, mean, torch.ones_like(mean)), rtol=0, atol=0.1
        )
