"""What the special ways of the calibrated integrals gain over the simplest form of each.

Each row compares a way with the simpler one that would do its work: value and gradient, one thread,
in turn. "By quadrature" is Gauss and Legendre's rule on three panels a piece, differentiated by
autograd. The last column is the greatest difference of the values relative to the larger of 1 and
their size.

    python -m benchmarks.studies.simpler_forms
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.perf.operations import count_operations
from botorch_calib.distributions import (
    PiecewisePredictive,
    SmoothedPredictive,
    UnsmoothedPredictive,
    _denoised,
)
from botorch_calib.distributions._piece_integrals import log_integrals_by_pieces
from botorch_calib.distributions._transport import transported

_LEVELS = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
_REPETITIONS = 25
_LARGEST = 0.87  # a way stays if it takes at most this share of the simpler one's time

Call = Callable[[], tuple[Tensor, list[Tensor]]]


def _distributions(num: int) -> dict[str, tuple[PiecewisePredictive, Tensor | None]]:
    """Those that calibrators make, each with what depends on the point."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(num, 19, generator=generator, dtype=torch.float64)
    width = (1.5 + noise[:, 0]).requires_grad_()
    row = 1.2 * torch.special.ndtri(_LEVELS) + 0.1
    knots = (row + 0.05 * noise).requires_grad_()
    conformal, recalibrated = PiecewisePredictive.conformal, PiecewisePredictive.recalibrated
    return {
        "one interval, stretched tails": (conformal(0.2, width, tails="stretched"), width),
        "one interval, normal tails": (conformal(0.2, width, tails="gaussian"), width),
        "19 levels": (recalibrated(_LEVELS, row).kept().expand(torch.Size([num])), None),
        "19 levels, localized": (recalibrated(_LEVELS, knots), knots),
    }


def _call(make: Callable[[Tensor, Tensor], Tensor], num: int, own: Tensor | None) -> Call:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num, generator=generator, dtype=torch.float64).add_(1.0).requires_grad_()
    r = torch.rand(num, generator=generator, dtype=torch.float64).add_(0.1).requires_grad_()
    leaves = [x, r] if own is None else [x, r, own]

    def call() -> tuple[Tensor, list[Tensor]]:
        value = make(x, r)
        slopes = torch.autograd.grad(value.sum(), leaves, allow_unused=True, retain_graph=True)
        return value.detach(), [slope for slope in slopes if slope is not None]

    return call


def _compared(name: str, num: int, way: Call, simple: Call) -> str:
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(_REPETITIONS + 3):
        for call, own in zip((way, simple), times, strict=True):
            start = time.perf_counter()
            call()
            own.append(1e3 * (time.perf_counter() - start))
    a, b = (median(own[3:]) for own in times)
    operations = [count_operations(call).dispatched for call in (way, simple)]
    (value, _), (other, _) = way(), simple()
    error = ((value - other).abs() / other.abs().clamp(min=1.0)).max()
    verdict = "kept" if a / b <= _LARGEST else "no gain"
    return (
        f"| {name} | {num} | {a:.2f} | {b:.2f} | {a / b:.2f} | "
        f"{operations[0]} / {operations[1]} | {error:.0e} | {verdict} |"
    )


def _by_quadrature(*arguments: object) -> Tensor:
    x, r, knots, masses, form, *_ = arguments
    return log_integrals_by_pieces(x, r, knots, masses, form)[0]  # type: ignore[arg-type]


def _without(predictive: PiecewisePredictive, **flags: Any) -> PiecewisePredictive:
    """The same distribution, of whose form less is known."""
    standard, scale = predictive.standardized(), predictive.scale
    form = replace(standard.form, **flags)
    knots = predictive.finite_knots if scale is not None else standard.finite_knots
    return PiecewisePredictive.from_form(knots, standard.masses, form, scale=scale)


def _excess(predictive: PiecewisePredictive, x: Tensor, r: Tensor) -> Tensor:
    return SmoothedPredictive(predictive, r).log_excess(x)


def _excess_by_quadrature(predictive: PiecewisePredictive, x: Tensor, r: Tensor) -> Tensor:
    with mock.patch.object(_denoised, "log_excess", _by_quadrature):
        return SmoothedPredictive(predictive, r).log_excess(x)


def _without_noise(predictive: PiecewisePredictive, x: Tensor, r: Tensor) -> Tensor:
    return UnsmoothedPredictive(predictive).log_excess(x)


def _quantile(predictive: PiecewisePredictive, x: Tensor, r: Tensor) -> Tensor:
    return SmoothedPredictive(predictive, r).quantile(0.9)


def _paths(x: Tensor) -> Tensor:
    """Normal numbers as those of 128 joint samples, ``128 x n``."""
    return x + torch.linspace(-2.5, 1.0, 128, dtype=x.dtype).unsqueeze(-1)


def _samples(predictive: PiecewisePredictive, x: Tensor, r: Tensor) -> Tensor:
    return predictive.transport(_paths(x))


def _transported(predictive: PiecewisePredictive, x: Tensor, r: Tensor) -> Tensor:
    flags, probabilities = predictive.form.is_uniform(x.device), predictive._probabilities()
    knots, masses = predictive.standard_knots, predictive.masses
    value = transported(_paths(x), knots, masses, probabilities, flags)
    return value if predictive.scale is None else value * predictive.scale


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print("| way against a simpler one | b | ms | ms, simpler | ratio | operations | error | |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for num in (20, 512):
        for name, (predictive, own) in _distributions(num).items():
            calls = (
                _call(partial(_excess, predictive), num, own),
                _call(partial(_excess_by_quadrature, predictive), num, own),
            )
            print(_compared(f"log EI against quadrature: {name}", num, *calls), flush=True)
            if predictive.form.compact or predictive.standardized().form.compact:
                plain = _without(predictive, compact=False, stretched=False)
                calls = (
                    _call(partial(_excess, predictive), num, own),
                    _call(partial(_excess, plain), num, own),
                )
                label = f"log EI at a stroke against bivariate tails: {name}"
                print(_compared(label, num, *calls), flush=True)
            if predictive.form.stretched:
                plain = _without(predictive, stretched=False)
                calls = (
                    _call(partial(_without_noise, predictive), num, own),
                    _call(partial(_without_noise, plain), num, own),
                )
                print(_compared(f"log EI without noise: {name}", num, *calls), flush=True)
                calls = (
                    _call(partial(_samples, predictive), num, own),
                    _call(partial(_transported, predictive), num, own),
                )
                print(_compared(f"transport of 128 samples: {name}", num, *calls), flush=True)
            if predictive.form.is_normal_throughout:
                calls = (
                    _call(partial(_samples, predictive), num, own),
                    _call(partial(_transported, predictive), num, own),
                )
                print(_compared(f"transport of 128 samples: {name}", num, *calls), flush=True)
            if own is None:
                plain = PiecewisePredictive.from_form(
                    predictive.finite_knots[0], predictive.masses, predictive.form
                )
                calls = (
                    _call(partial(_quantile, predictive), num, own),
                    _call(partial(_quantile, plain), num, own),
                )
                print(_compared(f"quantile from a table: {name}", num, *calls), flush=True)


if __name__ == "__main__":
    main()
