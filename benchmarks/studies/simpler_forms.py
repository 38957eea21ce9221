"""Special methods of the calibrated integrals, compared with the simplest form of each.

Each row compares a method with the simpler method that could replace it: value and gradient, in one
thread, alternately, by the lower quartile of 25 times. "By quadrature" is Gauss-Legendre quadrature
on three panels per piece, differentiated by autograd. The error is the largest difference of values
and slopes, relative to their size or 1, whichever is larger.

    python -m benchmarks.studies.simpler_forms
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from unittest import mock

import torch
from botorch.acquisition.analytic import _log_ei_helper
from botorch.utils.probability.utils import log_phi
from botorch.utils.safe_math import log1mexp
from torch import Tensor

from benchmarks.perf.operation_counts import count_operations
from botorch_calib.distributions import (
    PiecewisePredictive,
    SmoothedPredictive,
    UnsmoothedPredictive,
    _denoised_integrals,
    _normal_functions,
)
from botorch_calib.distributions._normal_functions import log_ndtr, log_normal_interval
from botorch_calib.distributions._piecewise_transport import transported

_LEVELS = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
_REPETITIONS = 25
_LARGEST = 0.87  # largest share of the simpler method's time of a method that is kept

# Maps a distribution, points ``x`` and ratios ``r`` of the noise to a number for each point.
Make = Callable[[PiecewisePredictive, Tensor, Tensor], Tensor]


def _distributions(num: int) -> dict[str, tuple[PiecewisePredictive, Tensor | None]]:
    """Distributions that calibrators make, each with its tensor that depends on the point."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(num, 19, generator=generator, dtype=torch.float64)
    width = (1.5 + noise[:, 0]).requires_grad_()
    row = 1.2 * torch.special.ndtri(_LEVELS) + 0.1
    knots = (row + 0.05 * noise).requires_grad_()
    conformal, recalibrated = PiecewisePredictive.conformal, PiecewisePredictive.recalibrated
    return {
        "one interval, stretched tails": (conformal(0.2, width, tails="stretched"), width),
        "one interval, normal tails": (conformal(0.2, width, tails="gaussian"), width),
        "19 levels": (recalibrated(_LEVELS, row).expand(torch.Size([num])), None),
        "19 levels, localized": (recalibrated(_LEVELS, knots), knots),
    }


def _compared(
    label: str, predictive: PiecewisePredictive, own: Tensor | None, way: Make, simple: Make
) -> str:
    """A row of the table, for values and gradients with respect to points, noise and ``own``."""
    (num,), generator = predictive.batch_shape, torch.Generator().manual_seed(1)
    x = torch.randn(num, generator=generator, dtype=torch.float64).add_(1.0).requires_grad_()
    r = torch.rand(num, generator=generator, dtype=torch.float64).add_(0.1).requires_grad_()
    leaves = [x, r] if own is None else [x, r, own]

    def call(make: Make) -> list[Tensor]:
        value = make(predictive, x, r)
        slopes = torch.autograd.grad(value.sum(), leaves, allow_unused=True, retain_graph=True)
        return [value.detach(), *(slope for slope in slopes if slope is not None)]

    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(_REPETITIONS + 3):
        for make, spent in zip((way, simple), times, strict=True):
            start = time.perf_counter()
            call(make)
            spent.append(1e3 * (time.perf_counter() - start))
    a, b = (sorted(spent[3:])[_REPETITIONS // 4] for spent in times)
    operations = [count_operations(partial(call, make)).dispatched for make in (way, simple)]
    error = max(
        float(((one - other).abs() / other.abs().clamp(min=1.0)).max())
        for one, other in zip(call(way), call(simple), strict=True)
    )
    verdict = "kept" if a / b <= _LARGEST else "no gain"
    return (
        f"| {label} | {num} | {a:.2f} | {b:.2f} | {a / b:.2f} | "
        f"{operations[0]} / {operations[1]} | {error:.0e} | {verdict} |"
    )


def _excess(predictive: PiecewisePredictive, x: Tensor, r: Tensor) -> Tensor:
    return SmoothedPredictive(predictive, r).log_excess(x)


def _excess_by_quadrature(predictive: PiecewisePredictive, x: Tensor, r: Tensor) -> Tensor:
    def log_excess(*arguments: object, scale: Tensor) -> Tensor:
        x, noise, pieces = arguments
        inputs = x, noise, scale, pieces, _denoised_integrals.EXCESS
        return _denoised_integrals._by_pieces(*inputs)  # type: ignore[arg-type]

    with mock.patch.object(_denoised_integrals, "log_excess", log_excess):
        return _excess(predictive, x, r)


def _excess_by_tails(predictive: PiecewisePredictive, x: Tensor, r: Tensor) -> Tensor:
    """Log expected improvement by the general method for three pieces."""
    standard = predictive.standardized()
    form, scale = replace(standard.form, stretched=0.0), predictive.scale
    knots, masses = standard.finite_knots, standard.masses
    return _excess(PiecewisePredictive.from_form(knots, masses, form, scale=scale), x, r)


def _paths(x: Tensor) -> Tensor:
    """Points in place of 128 joint normal samples, ``128 x n``."""
    return x + torch.linspace(-2.5, 1.0, 128, dtype=x.dtype).unsqueeze(-1)


def _samples(predictive: PiecewisePredictive, x: Tensor, r: Tensor) -> Tensor:
    return predictive.transport(_paths(x))


def _samples_by_pieces(predictive: PiecewisePredictive, x: Tensor, r: Tensor) -> Tensor:
    flags = predictive.form.is_uniform(x.device)
    value = transported(_paths(x), predictive.standardized().knots, predictive.masses, flags)
    return value if predictive.scale is None else value * predictive.scale


def _moments(predictive: PiecewisePredictive, x: Tensor, r: Tensor) -> Tensor:
    """Moments of a new copy of the distribution, which has no cached results."""
    knots, masses = predictive.finite_knots, predictive.masses
    mean, variance = PiecewisePredictive.from_form(knots, masses, predictive.form).moments()
    return mean + r * variance


def _moments_by_autograd(predictive: PiecewisePredictive, x: Tensor, r: Tensor) -> Tensor:
    with mock.patch.object(_normal_functions, "normal_moments", plain_normal_moments):
        return _moments(predictive, x, r)


def plain_normal_moments(ends: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """`normal_moments`, differentiated by autograd."""
    low, high = ends[:-1], ends[1:]
    log_mass = log_normal_interval(low, high)
    a, b = ((log_phi(end) - log_mass).exp() for end in (low, high))
    return (weights * (a - b)).sum(dim=0), (weights * (a * low - b * high)).sum(dim=0)


def _narrow_excess(predictive: PiecewisePredictive, x: Tensor, r: Tensor) -> Tensor:
    """Log excess if two levels have the same quantile: one piece has the minimum width."""
    knots = predictive.finite_knots
    close = torch.cat([knots[:, :9], knots[:, 8:9], knots[:, 10:]], dim=-1)
    narrow = PiecewisePredictive.recalibrated(_LEVELS, close, validate=False, hollow=True)
    return UnsmoothedPredictive(narrow).log_excess(x)


def _narrow_by_differences(predictive: PiecewisePredictive, x: Tensor, r: Tensor) -> Tensor:
    plain = _plain_interval_integrals
    with mock.patch.object(_normal_functions, "log_interval_integrals", plain):
        return _narrow_excess(predictive, x, r)


def _plain_interval_integrals(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Interval integrals as differences of tails, with BoTorch's functions and autograd."""
    low, high = (end.clamp(-1e100, 1e100) for end in torch.broadcast_tensors(low, high))
    right = low + high > 0.0
    near, far = torch.where(right, low, -high), torch.where(right, high, -low)
    width, tail = (far - near).log(), log_ndtr(-far)
    log_mass = _log_difference(log_ndtr(-near), tail)
    rise = _log_difference(
        _log_ei_helper(-near), torch.logaddexp(_log_ei_helper(-far), width + tail)
    )
    return log_mass, torch.where(right, rise, _log_difference(width + log_mass, rise))


def _log_difference(a: Tensor, b: Tensor) -> Tensor:
    return a + log1mexp(b - a)


def _ways(predictive: PiecewisePredictive, own: Tensor | None) -> Iterator[tuple[str, Make, Make]]:
    """The comparisons for a distribution: a label, a special method and a simpler method."""
    yield "log EI against quadrature", _excess, _excess_by_quadrature
    if predictive.form.stretched:
        yield "log EI at a stroke against tails beyond each knot", _excess, _excess_by_tails
        yield "transport of 128 samples", _samples, _samples_by_pieces
    if own is not None and own.dim() == 2:
        yield "moments of pieces against autograd", _moments, _moments_by_autograd
        label = "log EI without noise, rare tails, a piece 1e-6 wide: intervals against tails"
        yield label, _narrow_excess, _narrow_by_differences


def main() -> None:
    torch.set_num_threads(1)
    print("| method against a simpler one | b | ms | ms, simpler | ratio | operations | error | |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for num in (20, 512):
        for name, (predictive, own) in _distributions(num).items():
            for label, way, simple in _ways(predictive, own):
                row = _compared(f"{label}: {name}", predictive, own, way, simple)
                print(row, flush=True)


if __name__ == "__main__":
    main()
