"""`best_in_regions`: maximises a function over the points where another function is large enough.

The other function is called the margin, and points whose margin is at least `clearance` are called
feasible. (Linear constraints belong to a `Region`.) The feasible set is unknown in advance, and may
be tiny and of any shape. So the search first looks for feasible points, by sampling and then by
maximising the margin. It climbs from the best of these points, and checks once more that the result
is feasible.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from botorch.exceptions.errors import InfeasibilityError
from botorch.exceptions.warnings import BadInitialCandidatesWarning
from botorch.generation.gen import gen_candidates_scipy
from botorch.optim.initializers import initialize_q_batch
from torch import Tensor

from botorch_calib.optim.batched_searches import Function, batched_searches
from botorch_calib.optim.region import Region
from botorch_calib.optim.scaled_search import SEPARATE_STARTS, InUnitBox, without_search_warnings

#: Largest number of points that are evaluated at a time.
CHUNK = 2048
# If the share of feasible points among samples and known points is below `_RARE`, the search
# maximises the margin, and samples around the maxima.
_RARE = 0.05
# Fractions by which the end of a climb is moved back towards the feasible start, and by which the
# last infeasible point among these is moved back towards the first feasible one.
_BACKWARD = (0.0, 1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.2, 0.4, 0.7, 1.0)
_FINELY = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_MAX_ITERATIONS = 100


class FeasibleSet(NamedTuple):
    """The points with a large enough margin; by default all points.

    ``margin`` and ``promise`` map points ``b x 1 x d`` to values ``b``.
    """

    margin: Function | None = None  # of order 1; None if all points are feasible
    promise: Function | None = None  # is maximised if no feasible point is found
    known: Sequence[Tensor] = ()  # points ``n x d``, which may be the only feasible points
    chunk: int = CHUNK  # largest number of points at which both are evaluated at a time

    def margins(self, X: Tensor) -> Tensor:
        """Return the margins ``b`` of points ``b x 1 x d``, infinite if all are feasible."""
        if self.margin is None:
            return torch.full_like(X[:, 0, 0], torch.inf)
        return evaluated(self.margin, X, self.chunk)

    def contains(self, X: Tensor) -> Tensor:
        """Return whether each of the points ``b x 1 x d`` is feasible, a boolean tensor ``b``."""
        return self.margins(X) >= clearance(X.dtype)

    def promises(self, X: Tensor) -> Tensor:
        """Return the promise ``b`` of points ``b x 1 x d``, none of which is feasible."""
        assert self.promise is not None
        return evaluated(self.promise, X, self.chunk)


def clearance(dtype: torch.dtype) -> float:
    """Return the smallest margin that a search accepts as feasible.

    A model's values change in the last digits of ``dtype`` when it is evaluated together with other
    points, so a smaller margin might be negative in the next call.
    """
    return float(torch.finfo(dtype).eps) ** 0.5


def best_among(value: Function, feasible: FeasibleSet, X: Tensor) -> tuple[Tensor, bool]:
    """Return the feasible point with the largest ``value``, ``1 x d``, and True.

    The points ``X`` are ``b x 1 x d``, with ``b >= 1``. If none is feasible, return the point with
    the largest promise, and False.
    """
    is_feasible = feasible.contains(X)
    if not bool(is_feasible.any()):
        return X[feasible.promises(X).argmax()], False
    inside = X[is_feasible]
    return inside[evaluated(value, inside).argmax()], True


@torch.enable_grad()
def best_in_regions(
    value: Function,
    feasible: FeasibleSet,
    regions: Sequence[Region],
    num: int,
    raw_samples: int,
) -> tuple[Tensor, bool]:
    """Return the feasible point with the largest ``value``, ``1 x d``, and True.

    If no feasible point is found, return the point with the largest promise, and False. There is at
    least one region. In each region, ``raw_samples`` points are sampled. Up to ``num`` climbs start
    from these points, the known points and, if few of these are feasible, points with large margins
    that climbs of the margin find.

    Raises:
        InfeasibilityError: If no region has a point that meets its linear constraints.
    """
    found: list[Tensor] = []
    for region in regions:
        try:
            found.append(_search(value, feasible, region, num, raw_samples))
        except InfeasibilityError:
            if region is regions[-1] and not found:
                raise
    return best_among(value, feasible, torch.cat(found))


def _search(
    value: Function, feasible: FeasibleSet, region: Region, num: int, raw_samples: int
) -> Tensor:
    """Return the ends of climbs in a region and their starts, ``b x 1 x d``.

    The climbs from up to ``num`` feasible points increase the value. If no point is feasible,
    climbs increase the promise instead.
    """
    pool, margins = _pool(feasible, region, num, raw_samples)
    is_feasible = margins >= clearance(pool.dtype)
    if not bool(is_feasible.any()):
        assert feasible.promise is not None
        best = pool[feasible.promises(pool).topk(min(num, len(pool))).indices]
        ends = _maximize(feasible.promise, torch.ones_like(margins[0]), region, best)
        return torch.cat([best, region.placed(ends)])
    inside = pool[is_feasible]
    values = evaluated(value, inside)
    starts = _starts(inside, values, num)
    unit = _unit_of_values(value, region, starts, values)
    return torch.cat([starts, _climb(value, feasible, unit, region, starts)])


def _pool(
    feasible: FeasibleSet, region: Region, num: int, raw_samples: int
) -> tuple[Tensor, Tensor]:
    """Return possible starts ``b x 1 x d`` of a climb, and their margins ``b``.

    The starts are samples and known points and, if few of these are feasible, also maximisers of
    the margin and samples around them.
    """
    pool = torch.cat([region.sample(raw_samples), known_points(feasible.known, region)])
    if not len(pool):
        raise InfeasibilityError("No point within `bounds` meets the linear constraints.")
    margins = feasible.margins(pool)
    share = (margins >= clearance(pool.dtype)).double().mean()
    if feasible.margin is None or bool(share >= _RARE):
        return pool, margins
    best = pool[margins.topk(min(num, len(pool))).indices]
    ends = region.placed(_maximize(feasible.margin, torch.ones_like(margins[0]), region, best))
    peaks = torch.cat([best, ends])
    more = torch.cat([ends, region.around(peaks, max(1, raw_samples // len(peaks)))])
    return torch.cat([pool, more]), torch.cat([margins, feasible.margins(more)])


def known_points(known: Sequence[Tensor], region: Region) -> Tensor:
    """Return the ``known`` points, each ``n x d``, that lie in the region, ``m x 1 x d``."""
    width = region.bounds.shape[-1]
    points = [region.bounds.new_zeros(0, 1, width)]
    for own in known:
        if own.shape[-1] == width:
            points.append(region.placed(own.to(region.bounds).unsqueeze(-2)))
    return torch.cat(points).unique(dim=0)  # points may be repeated


def _starts(inside: Tensor, values: Tensor, num: int) -> Tensor:
    """Return up to ``num`` points of ``inside``: the best one, and others with large ``values``."""
    if len(inside) <= num:
        return inside
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BadInitialCandidatesWarning)
        chosen, _ = initialize_q_batch(inside, _finite(values), num)
    return torch.cat([chosen, inside[values.argmax()].unsqueeze(0)])[-num:]


def _finite(values: Tensor) -> Tensor:
    """Return ``values`` with infinite values clamped to the range of the finite values."""
    others = values[values.isfinite()]
    if not len(others):
        return torch.zeros_like(values)
    return values.clamp(others.min(), others.max())


def _unit_of_values(function: Function, region: Region, starts: Tensor, values: Tensor) -> Tensor:
    """Return a scale of a function over the region.

    The function is divided by this scale, since the optimizer's tolerances are absolute. The scale
    is the larger of two estimates: the range of the better half of ``values`` (too small if the
    samples lie close together), and the slope at the ``starts`` times the widths of the box (too
    small if they are local maxima).
    """
    values = _finite(values)
    X = starts.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(X).sum(), X)
    slopes = (gradient * (region.bounds[1] - region.bounds[0])).norm(dim=-1)
    slope = slopes.nan_to_num(nan=0.0, posinf=0.0).median()
    scale = torch.maximum(values.max() - values.median(), slope)
    return torch.where(scale > 0.0, scale, torch.ones_like(scale))


def _climb(
    value: Function, feasible: FeasibleSet, unit: Tensor, region: Region, starts: Tensor
) -> Tensor:
    """Return the ends of climbs, each moved back towards its feasible start until it is feasible.

    SLSQP meets constraints only up to a tolerance. It ends far outside if the margin has a local
    maximum below 0 there, as around data with little noise.
    """
    ends = _maximize(value, unit, region, starts, feasible.margin)
    if region.equal:  # project the ends onto these, unless that breaks other constraints
        ends = torch.stack([torch.cat([region.placed(end), end])[0] for end in ends.split(1)])
    found, before = _first_feasible(feasible, region, ends, starts, _BACKWARD)
    return _first_feasible(feasible, region, before, found, _FINELY)[0]


def _first_feasible(
    feasible: FeasibleSet, region: Region, ends: Tensor, starts: Tensor, shares: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Return the first feasible point on the way from each end to its feasible start.

    The second result is the point before it. The points are at the ``shares`` of the way, whose
    last one is 1. All tensors are ``b x 1 x d``.
    """
    # `lerp` returns the starts themselves, where `ends + (starts - ends)` may differ by rounding.
    points = torch.stack([torch.lerp(ends, starts, share) for share in shares])
    points = points.clamp(*region.bounds)  # rounding may take points at a bound out of the box
    both = points.flatten(0, 1)
    meets = (feasible.contains(both) & region.allows(both)).view(points.shape[:2])
    meets[-1] = True  # the starts themselves
    first, each = meets.double().argmax(dim=0), torch.arange(len(starts), device=starts.device)
    return points[first, each], points[(first - 1).clamp(min=0), each]


def _maximize(
    function: Function,
    unit: Tensor,
    region: Region,
    starts: Tensor,
    margin: Function | None = None,
) -> Tensor:
    """Return maximisers of a function, found by BoTorch from ``starts``, both ``b x 1 x d``.

    The function is divided by ``unit``, its scale. If a ``margin`` is given, it must stay at
    least `clearance`.
    """
    in_widths = InUnitBox(function, region.bounds, unit)
    options: dict[str, object] = {"maxiter": _MAX_ITERATIONS, **SEPARATE_STARTS}
    functions: list[Function] = [in_widths]
    if margin is not None:
        functions.append(lambda X: margin(in_widths.inputs(X)) - clearance(X.dtype))
    is_constrained = bool(functions[1:] or region.linear or region.equal)
    if is_constrained:
        # This is the default tolerance of SLSQP, or a larger one that single precision can resolve.
        options["ftol"] = max(1e-6, clearance(starts.dtype))

    def search(X: Tensor, functions: list[Function]) -> Tensor:
        limits = [(lambda x, of=of: of(x.view(1, 1, -1)).squeeze(0), True) for of in functions[1:]]
        ends, _ = gen_candidates_scipy(
            X,
            functions[0],  # type: ignore[arg-type]
            lower_bounds=in_widths.bounds[0],
            upper_bounds=in_widths.bounds[1],
            inequality_constraints=region.linear_in_widths,
            equality_constraints=region.equal_in_widths,
            nonlinear_inequality_constraints=limits or None,
            options=options,
        )
        return ends

    with without_search_warnings():
        starts = region.in_widths(starts)
        if is_constrained:  # SLSQP takes one start at a time
            ends = batched_searches(functions, starts, search)
        else:
            ends = search(starts, functions)
    return in_widths.inputs(ends).detach()


@torch.no_grad()
def evaluated(function: Function, X: Tensor, chunk: int = CHUNK) -> Tensor:
    """Return values ``b`` at ``X`` (``b x 1 x d``), with NaN replaced with minus infinity.

    At most ``chunk`` points are evaluated at a time.
    """
    values = torch.cat([function(points) for points in X.split(chunk)])
    return torch.where(values.isnan(), -torch.inf, values)
