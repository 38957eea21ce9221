"""A search whose result does not depend on the units of inputs and values."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from botorch.acquisition import AcquisitionFunction, OneShotAcquisitionFunction
from botorch.exceptions.warnings import OptimizationWarning
from botorch.optim import optimize_acqf
from botorch.optim.initializers import is_nonnegative
from botorch.utils.sampling import draw_sobol_samples
from torch import Tensor

from botorch_calib.optim.region import LinearConstraints, Region

# Options of ``optimize_acqf`` and ``gen_candidates_scipy`` for a separate search from each start.
# With SciPy 1.13 to 1.17 BoTorch searches separately anyway. With other versions, such as 1.18,
# BoTorch 0.18 has SciPy maximise the sum over the starts, which stops for all starts at once: 8 of
# 40 such searches missed the maximum of log expected improvement in six dimensions.
SEPARATE_STARTS: Final[dict[str, Any]] = {"max_optimization_problem_aggregation_size": 1}

# Number of points at which `spread_of_values` evaluates the function
_NUM_SAMPLES = 16


def optimize_in_unit_box(
    acqf: AcquisitionFunction,
    bounds: Tensor,
    unit: Tensor | None = None,
    *,
    num_restarts: int,
    raw_samples: int,
    fixed_features: Mapping[int, float] | None = None,
    linear: LinearConstraints | None = None,
) -> tuple[Tensor, Tensor]:
    """Find one point by BoTorch's ``optimize_acqf``, with scaled inputs and values.

    The box is scaled to the unit cube, and values are divided by ``unit`` (default:
    `spread_of_values`). Returns the point ``1 x d`` and its value, a scalar, without scaling.
    One-shot functions, such as ``qKnowledgeGradient``, are not scaled, since BoTorch chooses their
    starts by their class.

    ``fixed_features`` maps nonnegative columns to values, which may be outside of the box. The
    function is never evaluated at other values of these columns. ``linear`` contains constraints on
    unscaled inputs, in the form of BoTorch's ``inequality_constraints``.
    """
    settings: dict[str, Any] = {
        "q": 1,
        "num_restarts": num_restarts,
        "raw_samples": raw_samples,
        # BoTorch would infer from the class whether values are nonnegative, which determines the
        # choice of starts. Here the class is a wrapper, so this is stated.
        "options": {**SEPARATE_STARTS, "nonnegative": is_nonnegative(acqf)},
    }
    held = dict(fixed_features or {})
    if isinstance(acqf, OneShotAcquisitionFunction):
        candidate, value = optimize_acqf(
            acqf, bounds, fixed_features=held or None, inequality_constraints=linear, **settings
        )
        assert value is not None
        return candidate.detach(), value
    box = bounds.clone()
    for column, x in held.items():
        box[:, column] = x  # equal bounds, so that rounding does not change the value
    unit = spread_of_values(acqf, box) if unit is None else unit
    in_unit_box = InUnitBox(acqf, box, unit)
    if linear is None:
        settings["fixed_features"] = dict.fromkeys(held, 0.0) or None
    else:  # equal bounds fix columns: BoTorch refuses constraints on fixed features only
        region = Region(box, linear)
        settings["inequality_constraints"] = region.linear_in_widths
        # BoTorch's random walk would take longer than the search, so `Region` draws the points.
        settings["generator"] = lambda n, q, seed: region.in_widths(region.sample(n))
    candidate, value = optimize_acqf(in_unit_box, in_unit_box.bounds, **settings)
    assert value is not None
    return in_unit_box.inputs(candidate).detach(), value * unit


class InUnitBox(AcquisitionFunction):
    """Wraps a function ``acqf``: inputs are in the unit cube, values are divided by ``unit``.

    BoTorch's search stops when the gradient is less than 1e-5. If the inputs ranged over 1e6, or
    the values over 1e-6, the search would stop at its starts. It is also slow if the ranges of the
    inputs differ.

    The attribute ``bounds`` is the unit cube; columns of width 0 are fixed at 0.
    """

    def __init__(self, acqf: Callable[[Tensor], Tensor], bounds: Tensor, unit: Tensor) -> None:
        super().__init__(model=getattr(acqf, "model", None))  # type: ignore[arg-type]
        self.acqf, self.box, self.unit = acqf, bounds, unit
        self._log = is_logarithm(acqf)
        self.bounds = torch.stack([torch.zeros_like(bounds[0]), (bounds[1] > bounds[0]).to(bounds)])

    def inputs(self, X: Tensor) -> Tensor:
        """Map points of the unit cube to inputs of ``acqf``."""
        # ``lerp`` is exact at both ends, so rounding leaves all inputs inside the box.
        return torch.lerp(self.box[0], self.box[1], X)

    def forward(self, X: Tensor) -> Tensor:
        value: Tensor = self.acqf(self.inputs(X))
        return value / self.unit


@torch.no_grad()
def spread_of_values(acqf: AcquisitionFunction, bounds: Tensor) -> Tensor:
    """Return the scale of an acquisition function's values, a scalar; 1 for logarithms.

    The scale is the standard deviation of the values at a few points of the box, rounded to a power
    of two. Logarithms have no unit, and their lowest values would dominate the standard deviation.
    """
    one = torch.ones_like(bounds[0, 0])
    if is_logarithm(acqf):
        return one
    # A fixed seed leaves torch's global random state, and so the starts of a search, unchanged.
    values = acqf(draw_sobol_samples(bounds, n=_NUM_SAMPLES, q=1, seed=0)).to(bounds)
    spread = values.std(correction=0)
    # If values were tiny at these points but large elsewhere, dividing the large ones by a tiny
    # unit would overflow, so the unit has a lower limit.
    least = torch.finfo(bounds.dtype).tiny ** 0.25
    unit = spread.clamp_min(least).log2().round().exp2()  # powers of two divide without rounding
    return torch.where(spread.isfinite() & (spread > 0.0), unit, one)


def is_logarithm(acqf: object) -> bool:
    """Whether an acquisition function declares its values as logarithms."""
    return bool(getattr(acqf, "_log", False))


@contextmanager
def without_search_warnings() -> Iterator[None]:
    """Suppress warnings about why a search stops, for callers that check its result.

    BoTorch overrides warning filters, so all warnings are caught. At the end of the block, all but
    instances of ``OptimizationWarning`` are issued again.
    """
    with warnings.catch_warnings(record=True) as caught:
        yield
    for w in caught:
        if not issubclass(w.category, OptimizationWarning):
            warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
