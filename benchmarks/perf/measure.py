"""Measurement of speed: ratios of the times of two calls that alternate.

Absolute times depend on the machine; the ratio of two calls that alternate in one process hardly
does. The operations and host reads of a call are counted as well (`perf.operation_counts`), since
they limit the speed of a device. Comparisons are functions that other modules of this package
register.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.models import SingleTaskGP
from botorch.utils.sampling import draw_sobol_samples, manual_seed
from torch import Tensor

from benchmarks.framework.surrogates import fit_gp
from benchmarks.perf.operation_counts import Operations, count_operations
from botorch_calib.test_functions import HeteroscedasticAckley

NUM_POINTS = 100
BATCH = 512
NUM_PENDING = 10

# A call that is timed. Its argument is the number of the repetition, which may serve as a seed.
Call = Callable[[int], object]


class Workload:
    """The data of all comparisons: points of 2-d Ackley (100 by default), and their GP."""

    def __init__(self, device: torch.device, num_points: int = NUM_POINTS) -> None:
        problem = HeteroscedasticAckley()
        X = draw_sobol_samples(problem.bounds, n=num_points, q=1, seed=0).squeeze(-2)
        with manual_seed(0):
            Y = problem(X).unsqueeze(-1)
        batch = draw_sobol_samples(problem.bounds, n=BATCH, q=1, seed=1)
        pending = draw_sobol_samples(problem.bounds, n=NUM_PENDING, q=1, seed=2).squeeze(-2)
        self.device = device
        self.bounds = problem.bounds.to(device)
        self.X, self.Y = X.to(device), Y.to(device)
        self.best_f = self.Y.max()
        self.batch = batch.to(device)
        self.pending = pending.to(device)

    @cached_property
    def gp(self) -> SingleTaskGP:
        """The fitted GP."""
        return fit_gp(self.X, self.Y, self.bounds)

    def points(self, num: int, q: int, seed: int) -> Tensor:
        """New points of the box, ``num x q x d``, equal on all devices."""
        return draw_sobol_samples(self.bounds.cpu(), n=num, q=q, seed=seed).to(self.device)

    def just_fitted(self) -> SingleTaskGP:
        """The GP as after its fit, without the caches of earlier repetitions."""
        self.gp.train()
        self.gp.eval()
        return self.gp

    def synchronise(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@dataclass(frozen=True)
class Comparison:
    """A comparison of the times of two calls: ``build`` makes ``(measured, reference)``."""

    name: str
    build: Callable[[Workload], tuple[Call, Call]]
    repetitions: int
    warm_up: int


@dataclass(frozen=True)
class Measurement:
    """Median and quartiles of the ratio of times, median times in milliseconds, and operations."""

    name: str
    ratio: float
    lower_quartile: float
    upper_quartile: float
    measured_ms: float
    reference_ms: float
    repetitions: int
    measured: Operations
    reference: Operations


COMPARISONS: dict[str, Comparison] = {}


def comparison(
    name: str, *, repetitions: int, warm_up: int
) -> Callable[[Callable[[Workload], tuple[Call, Call]]], Callable[[Workload], tuple[Call, Call]]]:
    """Register the decorated function as a comparison."""

    def decorate(
        build: Callable[[Workload], tuple[Call, Call]],
    ) -> Callable[[Workload], tuple[Call, Call]]:
        if name in COMPARISONS:
            raise ValueError(f"A comparison named {name!r} exists already.")
        COMPARISONS[name] = Comparison(name, build, repetitions, warm_up)
        return build

    return decorate


def value_and_gradient(acquisition: AcquisitionFunction, batch: Tensor) -> Call:
    """Evaluate an acquisition function on ``b x 1 x d`` and differentiate its sum."""

    def call(repetition: int) -> Tensor:
        X = batch.clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(acquisition(X).sum(), X)
        return gradient

    return call


def pair(functions: Iterable[AcquisitionFunction], batch: Tensor) -> tuple[Call, Call]:
    """`value_and_gradient` of two acquisition functions at the same points."""
    measured, reference = (value_and_gradient(each, batch) for each in functions)
    return measured, reference


def measure(comparison: Comparison, work: Workload) -> Measurement:
    """Time the two calls of a comparison alternately, then count the operations of each call."""
    measured, reference = comparison.build(work)
    for repetition in range(comparison.warm_up):
        measured(repetition)
        reference(repetition)
    times = [
        (_seconds(measured, repetition, work), _seconds(reference, repetition, work))
        for repetition in range(comparison.repetitions)
    ]
    ratios = [a / b for a, b in times]
    lower, ratio, upper = statistics.quantiles(ratios, n=4, method="inclusive")
    return Measurement(
        name=comparison.name,
        ratio=ratio,
        lower_quartile=lower,
        upper_quartile=upper,
        measured_ms=1e3 * statistics.median(a for a, _ in times),
        reference_ms=1e3 * statistics.median(b for _, b in times),
        repetitions=comparison.repetitions,
        measured=count_operations(lambda: measured(0)),
        reference=count_operations(lambda: reference(0)),
    )


def _seconds(call: Call, repetition: int, work: Workload) -> float:
    work.synchronise()
    start = time.perf_counter()
    call(repetition)
    work.synchronise()
    return time.perf_counter() - start


def table(measurements: Sequence[Measurement]) -> str:
    """The measurements as a markdown table.

    Operations and their ratio are of the measured call and the reference. Own host reads are the
    reads of the measured call by this package; the last column has all host reads of both calls.
    """
    lines = [
        "| comparison | ratio | quartiles | measured ms | reference ms | repetitions "
        "| operations | ratio | own host reads | all of measured / reference |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for m in measurements:
        own, reference = m.measured, m.reference
        lines.append(
            f"| {m.name} | {m.ratio:.3g} | {m.lower_quartile:.3g} to {m.upper_quartile:.3g} "
            f"| {m.measured_ms:.3g} | {m.reference_ms:.3g} | {m.repetitions} "
            f"| {own.dispatched} / {reference.dispatched} "
            f"| {own.dispatched / max(1, reference.dispatched):.3g} "
            f"| {own.own_host_reads} | {own.host_reads} / {reference.host_reads} |"
        )
    return "\n".join(lines)
