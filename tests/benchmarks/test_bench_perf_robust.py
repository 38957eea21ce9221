"""The comparisons of robust acquisition functions evaluate what they say."""

from __future__ import annotations

import pytest
import torch

from benchmarks import perf, perf_robust
from benchmarks.perf import Workload


@pytest.fixture(scope="module")
def work() -> Workload:
    return Workload(torch.device("cpu"))


def test_comparisons_are_registered() -> None:
    names = [name for name in perf.COMPARISONS if name.startswith("robust UCB")]
    assert len(names) == 4 * len(perf_robust.KERNELS)


@pytest.mark.parametrize("kernel", perf_robust.KERNELS)
def test_calls(work, kernel) -> None:
    size = (12, 7)
    gradients = []
    for radius in (0.1, 0.0):
        gradient = perf_robust.robust_call(work, size, kernel, radius)(0)
        assert isinstance(gradient, torch.Tensor)
        assert gradient.shape == (64, 1, 2) and gradient.abs().min() > 0
        gradients.append(gradient)
    assert not torch.equal(gradients[0], gradients[1])
    product = perf_robust.product_call(work, size)(0)
    assert isinstance(product, torch.Tensor) and product.shape == (64 * 7, 12)
