"""``python -m benchmarks gpu``: speed of large batches on a device, written to ``tables/gpu.md``.

A robust confidence bound needs the product of all covariances with an inverse, ``(b M x n)(n x n)``
in double precision. Its value and gradient are compared with this product alone, which the same
device computes in large pieces. Log expected improvement of a calibrated model at many points is
compared with the plain model. Proposals between fits, and a fit of their model, are compared with
the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from botorch.test_functions import Hartmann
from botorch.utils.sampling import draw_sobol_samples
from torch import Tensor

from benchmarks.framework.replicate_result import installed_versions
from benchmarks.framework.strategies import calibrate
from benchmarks.perf.calibrated_and_delayed import NUM_INITIAL, calibrator, log_ei_pair
from benchmarks.perf.measure import Call, Comparison, Measurement, Workload, measure, table
from benchmarks.perf.proposals import BOUNDS, DIM, FEW_PENDING, proposals
from benchmarks.perf.robust import RADIUS, robust_call
from botorch_calib.asynchronous.refits import fit_single_task_gp

# Number of rows of a piece of the product.
PIECE = 2**16


@dataclass(frozen=True)
class Size:
    """The sizes of the batches.

    Args:
        num: Number of training points of the robust bound, ``n``.
        num_contexts: Number of contexts of the robust bound, ``M``.
        num_decisions: Number of decisions of the robust bound, ``b``.
        num_points: Number of points of log expected improvement.
        num_values: Numbers of values before a proposal, with a comparison for each number.
        num_fitted: Number of values to which a model is fitted.
    """

    num: int = 2000
    num_contexts: int = 4096
    num_decisions: int = 512
    num_points: int = 10_000
    num_values: tuple[int, ...] = (250, 500, 1000, 2000)
    num_fitted: int = 1000

    @property
    def flops(self) -> float:
        """Floating-point operations of the product."""
        return 2.0 * self.num_decisions * self.num_contexts * self.num**2


SMALL = Size(
    num=40, num_contexts=32, num_decisions=16, num_points=64, num_values=(20,), num_fitted=20
)


def product_call(work: Workload, size: Size) -> Call:
    """The product in pieces, since as a whole it would not fit into the memory."""
    rows = size.num_decisions * size.num_contexts
    left = torch.rand(min(PIECE, rows), size.num, dtype=torch.double, device=work.device)
    right = torch.rand(size.num, size.num, dtype=torch.double, device=work.device)
    out = torch.empty_like(left)

    def call(repetition: int) -> Tensor:
        for _ in range(-(-rows // len(left))):
            torch.mm(left, right, out=out)
        return out

    return call


def fit_call(num: int, device: str | torch.device) -> Call:
    """A fit of a proposer's default model, from BoTorch's initial hyperparameters."""
    bounds = BOUNDS.to(device)
    X = draw_sobol_samples(BOUNDS, n=num, q=1, seed=0).squeeze(-2)
    Y = Hartmann(DIM, negate=True)(X).unsqueeze(-1).to(bounds)
    return lambda repetition: fit_single_task_gp(X.to(bounds), Y, bounds)


def comparisons(size: Size) -> list[Comparison]:
    """The comparisons that are measured."""

    def robust(work: Workload) -> tuple[Call, Call]:
        bound = robust_call(work, (size.num, size.num_contexts), "RBF", RADIUS, size.num_decisions)
        return bound, product_call(work, size)

    def improvement(work: Workload) -> tuple[Call, Call]:
        work.batch = work.batch.repeat(-(-size.num_points // len(work.batch)), 1, 1)
        work.batch = work.batch[: size.num_points]
        return log_ei_pair(work, calibrate(work.gp, calibrator, NUM_INITIAL))

    def proposal(work: Workload, num: int) -> tuple[Call, Call]:
        return proposals(num, FEW_PENDING, work.device), proposals(num, FEW_PENDING)

    def fit(work: Workload) -> tuple[Call, Call]:
        return fit_call(size.num_fitted, work.device), fit_call(size.num_fitted, "cpu")

    robust_name = f"n={size.num}, M={size.num_contexts}, b={size.num_decisions}"
    return [
        Comparison(f"robust UCB, {robust_name} / one product", robust, 11, 2),
        Comparison(f"calibrated / plain log EI, b={size.num_points}", improvement, 51, 5),
        *(
            Comparison(
                f"proposal between fits, n={num}, {FEW_PENDING} pending, on it / on the CPU",
                partial(proposal, num=num),
                7,
                1,
            )
            for num in size.num_values
        ),
        Comparison(f"fit of its model, n={size.num_fitted}, on it / on the CPU", fit, 3, 1),
    ]


def device_name(device: torch.device) -> str:
    """The name of the device in the table."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def report(device: torch.device, size: Size, measurements: list[Measurement]) -> str:
    """The page with the measurements."""
    robust = measurements[0]
    teraflops = size.flops / robust.reference_ms / 1e9
    threads = torch.get_num_threads()
    versions = ", ".join(f"{name} {version}" for name, version in installed_versions().items())
    return "\n".join(
        [
            "# `gpu`",
            "",
            f"`python -m benchmarks gpu`, on {device_name(device)}. The robust bound, value and "
            f"gradient, ran at {100 / robust.ratio:.0f} % of the rate of its double-precision "
            f"matrix product alone, which was {teraflops:.3g} TFLOP/s. The CPU had "
            f"{threads} threads.",
            "",
            table(measurements),
            "",
            versions,
            "",
        ]
    )


def main(device: str, folder: Path, *, small: bool = False) -> int:
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        print("CUDA is not available.")
        return 2
    size = SMALL if small else Size()
    place = torch.device(device)
    # Each comparison has its own data, since it may change the batch.
    measurements = [measure(each, Workload(place)) for each in comparisons(size)]
    page = report(place, size, measurements)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu.md").write_text(page, encoding="utf-8")
    print(page)
    return 0
