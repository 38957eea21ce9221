"""Parts of what may be violated: by their definition, by what they promise, and at extremes."""

from __future__ import annotations

import pytest
import torch
from scipy.special import ndtr
from torch.testing import assert_close

from botorch_calib.decisions.widening import scores_of_parts


def parts(level: float, scores: torch.Tensor) -> torch.Tensor:
    return torch.special.ndtr(-scores_of_parts(level, scores))


@pytest.mark.parametrize("num", [2, 3, 200])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.999])
def test_parts_add_up_and_follow_the_dangers(num: int, level: float) -> None:
    scores = 4.0 * torch.randn(num, 50, dtype=torch.double, generator=torch.manual_seed(0))
    danger = torch.as_tensor(ndtr(-scores.numpy()))  # torch's has seven digits at 6 deviations
    found = parts(level, scores)
    assert_close(found.sum(dim=0), torch.full((50,), 1.0 - level).double())
    expected = 0.98 * danger / danger.sum(dim=0) + 0.02 / num
    assert_close(found, (1.0 - level) * expected, rtol=1e-9, atol=0.0)


def test_all_limits_keep_their_parts_only_if_their_dangers_do() -> None:
    scores = 3.0 * torch.rand(3, 5000, dtype=torch.double, generator=torch.manual_seed(0))
    danger = torch.special.ndtr(-scores)
    kept = (danger <= parts(0.9, scores)).all(dim=0)
    total = danger.sum(dim=0)
    assert (total[kept] <= 0.1).all() and (total[~kept] > 0.098).all()
    assert 500 < kept.sum() < 4500
    # Equal parts certify less, and hardly anything else.
    equal = (danger <= 0.1 / 3).all(dim=0)
    assert 1.5 * equal.sum() < kept.sum()
    assert (total[equal & ~kept] > 0.098).all()


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_extremes_have_numbers_and_gradients(dtype: torch.dtype) -> None:
    far = torch.tensor([-1e30, -torch.inf, -50.0, 40.0, 1e30, torch.inf], dtype=dtype)
    scores = torch.cartesian_prod(far, far).T.clone().requires_grad_()
    found = scores_of_parts(0.9, scores)
    found.sum().backward()
    assert found.dtype == dtype
    assert found.isfinite().all() and scores.grad is not None and scores.grad.isfinite().all()
    # One that is safe leaves nearly everything to the other, two in equal danger share.
    pair = scores_of_parts(0.9, torch.tensor([[1.0, 9.0], [9.0, 9.0]], dtype=dtype))
    expected = torch.tensor([[1.287272, 1.644854], [3.090232, 1.644854]], dtype=dtype)
    assert_close(pair, expected, rtol=0, atol=1e-5)


def test_the_gradient_is_that_of_finite_differences() -> None:
    scores = torch.tensor([[0.5, 3.0, 30.0], [1.0, 0.1, 31.0]], dtype=torch.double)
    assert torch.autograd.gradcheck(lambda s: scores_of_parts(0.9, s), scores.requires_grad_())
