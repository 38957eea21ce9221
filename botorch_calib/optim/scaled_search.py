"""A search whose end does not depend on the units of the inputs and of the values."""

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

# For ``optimize_acqf`` and ``gen_candidates_scipy``: one start a problem of SciPy's. With SciPy
# 1.13 to 1.17 BoTorch climbs from each start on its own anyway. With others, such as 1.18, BoTorch
# 0.18 has SciPy maximise the sum over the starts, which ends for all of them at once: 8 of 40
# searches for the maximum of log expected improvement in six dimensions then missed it.
SEPARATE_STARTS: Final[dict[str, Any]] = {"max_optimization_problem_aggregation_size": 1}

# Points whose values tell their spread.
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

    The point, ``1 x d``, and the value there, a scalar, are both in their own units.
    One-shot functions, such as ``qKnowledgeGradient``, are searched in their own units: BoTorch
    tells by the class how to choose their starts.

    The unit of the values is their `spread_of_values` by default. ``fixed_features``, by columns
    counted from the front, may lie outside of the box. The function is never evaluated at others.
    Constraints ``linear`` are BoTorch's ``inequality_constraints``.
    """
    settings: dict[str, Any] = {
        "q": 1,
        "num_restarts": num_restarts,
        "raw_samples": raw_samples,
        # BoTorch tells by the class how to choose the starts, and sees a wrapper.
        "options": {**SEPARATE_STARTS, "nonnegative": is_nonnegative(acqf)},
    }
    held = dict(fixed_features or {})
    if isinstance(acqf, OneShotAcquisitionFunction):
        candidate, value = optimize_acqf(
            acqf, bounds, fixed_features=held or None, inequality_constraints=linear, **settings
        )
        assert value is not None  # as it was not declined
        return candidate.detach(), value
    box = bounds.clone()
    for column, x in held.items():
        box[:, column] = x  # without width, so that not even rounding changes it
    unit = spread_of_values(acqf, box) if unit is None else unit
    in_unit_box = InUnitBox(acqf, box, unit)
    if linear is None:
        settings["fixed_features"] = dict.fromkeys(held, 0.0) or None
    else:  # with fixed features BoTorch refuses constraints on them alone
        region = Region(box, linear)
        settings["inequality_constraints"] = region.linear_in_widths
        # BoTorch's own walk takes longer than the search.
        settings["generator"] = lambda n, q, seed: region.in_widths(region.sample(n))
    candidate, value = optimize_acqf(in_unit_box, in_unit_box.bounds, **settings)
    assert value is not None
    return in_unit_box.inputs(candidate).detach(), value * unit


class InUnitBox(AcquisitionFunction):
    """An acquisition function of inputs in widths of their box, its values in a unit of theirs.

    BoTorch's search stops where the gradient is less than 1e-5, whatever the units: where inputs
    range over a million, or outcomes over a millionth, it would not leave its starts. Where some
    inputs range over much more than others, it would creep.

    The attribute ``bounds`` is the unit cube, in which a column without width stays where it is.
    """

    def __init__(self, acqf: AcquisitionFunction, bounds: Tensor, unit: Tensor) -> None:
        super().__init__(model=getattr(acqf, "model", None))  # type: ignore[arg-type]
        self.acqf, self.box, self.unit = acqf, bounds, unit
        self._log = is_logarithm(acqf)
        self.bounds = torch.stack([torch.zeros_like(bounds[0]), (bounds[1] > bounds[0]).to(bounds)])

    def inputs(self, X: Tensor) -> Tensor:
        """The inputs, in their units."""
        # Exact at both ends, so that rounding takes nothing out of the box.
        return torch.lerp(self.box[0], self.box[1], X)

    def forward(self, X: Tensor) -> Tensor:
        value: Tensor = self.acqf(self.inputs(X))
        return value / self.unit


@torch.no_grad()
def spread_of_values(acqf: AcquisitionFunction, bounds: Tensor) -> Tensor:
    """A unit of the values of a function of inputs ``b x 1 x d``; 1 for logarithms.

    That is the power of two next to their standard deviation over a few points of the box.
    Logarithms have no unit, and their lowest values would rule the spread.
    """
    one = torch.ones_like(bounds[0, 0])
    if is_logarithm(acqf):
        return one
    # A fixed seed leaves alone the random numbers from which a search draws its starts.
    values = acqf(draw_sobol_samples(bounds, n=_NUM_SAMPLES, q=1, seed=0)).to(bounds)
    spread = values.std(correction=0)
    # Values that all but vanish at these points may be large elsewhere, and must not overflow.
    least = torch.finfo(bounds.dtype).tiny ** 0.25
    unit = spread.clamp_min(least).log2().round().exp2()  # by which nothing is rounded
    return torch.where(spread.isfinite() & (spread > 0.0), unit, one)


def is_logarithm(acqf: object) -> bool:
    """Whether values are logarithms; of a plain function it is not known."""
    return bool(getattr(acqf, "_log", False))


@contextmanager
def without_search_warnings() -> Iterator[None]:
    """Pass on all warnings but of why a search stops, for callers that check its end.

    BoTorch shows these whatever the filter, so all are caught.
    """
    with warnings.catch_warnings(record=True) as caught:
        yield
    for w in caught:
        if not issubclass(w.category, OptimizationWarning):
            warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
