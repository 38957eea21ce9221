"""The comparisons of robust acquisition functions evaluate what they say."""

from __future__ import annotations

import pytest
import torch

from benchmarks.perf import measure as perf
from benchmarks.perf import robust as perf_robust
from benchmarks.perf.measure import Workload
from botorch_calib.test_functions import ContextShift


@pytest.fixture(scope="module")
def work() -> Workload:
    return Workload(torch.device("cpu"))


def test_all_are_registered() -> None:
    names = list(perf.COMPARISONS)
    assert sum(name.startswith("robust UCB") for name in names) == 4 * len(perf_robust.KERNELS)
    assert sum(name.startswith("WDRBO choice") for name in names) == 4
    calibrated = sum("/ plain robust UCB" in name for name in names)
    assert calibrated == len(perf_robust.CALIBRATED_SETS) * (len(perf_robust.CALIBRATORS) + 1)
    for kernel in perf_robust.KERNELS:
        for start in ("b=128 / robust UCB", "M=512 / robust UCB"):
            assert f"{start}, n=300, M=256, b=64, {kernel}" in names
        for start in ("WDRBO", "ERBO"):
            assert f"{start}, n=60, M=60, b=4, {kernel} / BoTorch's UCB at b points" in names


@pytest.mark.parametrize("calibrator", perf_robust.CALIBRATORS)
def test_calibrated(work, calibrator) -> None:
    build = perf_robust.over(perf_robust.CALIBRATED_SETS["total variation ball"])
    template = perf_robust.CALIBRATORS[calibrator]()
    measured = perf_robust.bound_call(work, (30, 7), "RBF", build, 4, template)(0)
    reference = perf_robust.bound_call(work, (30, 7), "RBF", build, 4)(0)
    assert isinstance(measured, torch.Tensor) and isinstance(reference, torch.Tensor)
    assert measured.shape == reference.shape == (4, 1, 2)
    assert not torch.equal(measured, reference)


def test_choices(work) -> None:
    problem = ContextShift()
    for search in (perf_robust.optimize_robust, perf_robust.acqf_search):
        decision = perf_robust.choice_call(work, problem, 0.1, search)(0)
        assert isinstance(decision, torch.Tensor) and decision.shape == (1, 1)


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
    robust = perf_robust.robust_call(work, size, kernel, 0.1, 4)(0)
    plain = perf_robust.plain_call(work, size, kernel, 4)(0)
    assert isinstance(robust, torch.Tensor) and robust.shape == (4, 1, 2)
    assert isinstance(plain, torch.Tensor) and plain.shape == (4, 1, 4)
    product = perf_robust.product_call(work, size)(0)
    assert isinstance(product, torch.Tensor) and product.shape == (64 * 7, 12)
