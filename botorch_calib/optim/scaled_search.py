"""A search whose result does not depend on the units of inputs and values."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
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

# Number of points for `spread_of_values`
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
    """BoTorch's ``optimize_acqf`` for one point, in widths of the box and a unit of the values.

    Returns the point, ``1 x d``, and its value, a scalar, both without scaling. The default
    ``unit`` is the `spread_of_values`. One-shot functions, such as ``qKnowledgeGradient``, are not
    scaled, since BoTorch chooses their starts by their class.

    ``fixed_features`` have nonnegative columns, and values inside or outside of the box; the
    function is never evaluated at other values. ``linear`` are BoTorch's
    ``inequality_constraints``.
    """
    settings: dict[str, Any] = {
        "q": 1,
        "num_restarts": num_restarts,
        "raw_samples": raw_samples,
        # BoTorch would choose the starts by the class, which is a wrapper here.
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
        box[:, column] = x  # without width, so that rounding does not change it
    unit = spread_of_values(acqf, box) if unit is None else unit
    in_unit_box = InUnitBox(acqf, box, unit)
    if linear is None:
        settings["fixed_features"] = dict.fromkeys(held, 0.0) or None
    else:  # BoTorch refuses constraints that are only on fixed features
        region = Region(box, linear)
        settings["inequality_constraints"] = region.linear_in_widths
        # BoTorch's random walk takes longer than the search.
        settings["generator"] = lambda n, q, seed: region.in_widths(region.sample(n))
    candidate, value = optimize_acqf(in_unit_box, in_unit_box.bounds, **settings)
    assert value is not None
    return in_unit_box.inputs(candidate).detach(), value * unit


class InUnitBox(AcquisitionFunction):
    """An acquisition function of inputs in widths of their box, with values in a given unit.

    BoTorch's search stops when the gradient is less than 1e-5. If inputs ranged over a million, or
    values over a millionth, it would stop at its starts. It is slow if ranges of inputs differ.

    The attribute ``bounds`` is the unit cube; columns without width are fixed at 0.
    """

    def __init__(self, acqf: AcquisitionFunction, bounds: Tensor, unit: Tensor) -> None:
        super().__init__(model=getattr(acqf, "model", None))  # type: ignore[arg-type]
        self.acqf, self.box, self.unit = acqf, bounds, unit
        self._log = is_logarithm(acqf)
        self.bounds = torch.stack([torch.zeros_like(bounds[0]), (bounds[1] > bounds[0]).to(bounds)])

    def inputs(self, X: Tensor) -> Tensor:
        """The inputs in units of ``acqf``, from inputs in widths of the box."""
        # ``lerp`` is exact at both ends, so rounding leaves all inputs inside the box.
        return torch.lerp(self.box[0], self.box[1], X)

    def forward(self, X: Tensor) -> Tensor:
        value: Tensor = self.acqf(self.inputs(X))
        return value / self.unit


@torch.no_grad()
def spread_of_values(acqf: AcquisitionFunction, bounds: Tensor) -> Tensor:
    """A unit for the values of a function of ``b x 1 x d``, a scalar; 1 for logarithms.

    It is the power of two next to the standard deviation of the values at a few points of the box.
    Logarithms have no unit, and their lowest values would dominate the standard deviation.
    """
    one = torch.ones_like(bounds[0, 0])
    if is_logarithm(acqf):
        return one
    # With a fixed seed, the starts of a search do not depend on this draw.
    values = acqf(draw_sobol_samples(bounds, n=_NUM_SAMPLES, q=1, seed=0)).to(bounds)
    spread = values.std(correction=0)
    # Tiny values at these points may be large elsewhere, and must not overflow in a tiny unit.
    least = torch.finfo(bounds.dtype).tiny ** 0.25
    unit = spread.clamp_min(least).log2().round().exp2()  # powers of two divide without rounding
    return torch.where(spread.isfinite() & (spread > 0.0), unit, one)


def is_logarithm(acqf: object) -> bool:
    """Whether an acquisition function declares its values as logarithms."""
    return bool(getattr(acqf, "_log", False))


@contextmanager
def without_search_warnings() -> Iterator[None]:
    """Suppress warnings about why a search stops, for callers that check its result.

    BoTorch overrides warning filters, so all warnings are caught, and the others issued again.
    """
    with warnings.catch_warnings(record=True) as caught:
        yield
    for w in caught:
        if not issubclass(w.category, OptimizationWarning):
            warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
