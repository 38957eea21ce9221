"""The measurement of a device, run on the CPU."""

from __future__ import annotations

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.perf import gpu
from benchmarks.perf.measure import Workload


@pytest.mark.slow
def test_a_small_size_on_the_cpu(tmp_path, capsys) -> None:
    assert main(["gpu", "--device", "cpu", "--small", "--tables", str(tmp_path)]) == 0
    page = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert page in capsys.readouterr().out
    assert "robust UCB, n=40, M=32, b=16 / one product" in page
    assert "calibrated / plain log EI, b=64" in page and "TFLOP/s" in page
    assert "proposal between fits, n=20, 10 pending, on it / on the CPU" in page
    assert "fit of its model, n=20" in page


def test_what_is_measured() -> None:
    work = Workload(torch.device("cpu"))
    bound, product = gpu.comparisons(gpu.SMALL)[0].build(work)
    gradient, piece = bound(0), product(0)
    assert isinstance(gradient, torch.Tensor) and gradient.shape == (16, 1, 2)
    assert isinstance(piece, torch.Tensor) and piece.shape == (16 * 32, 40)
    improvement = gpu.comparisons(gpu.Size(num_points=700))[1]
    for call in improvement.build(work):
        gradient = call(0)
        assert isinstance(gradient, torch.Tensor) and gradient.shape == (700, 1, 2)
    assert gpu.Size().flops == 2.0 * 512 * 4096 * 2000**2
