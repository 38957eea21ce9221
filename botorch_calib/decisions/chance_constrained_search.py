"""`optimize_chance_constrained`: finds the best point that a chance constraint certifies.

The certified set is unknown in advance, and may be tiny and of any shape. So the search first looks
for certified points, by sampling and then by maximising the margin. It climbs from the best of
these points, and checks once more that the result is certified.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import NamedTuple

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import InfeasibilityError, InputDataError
from botorch.exceptions.warnings import BadInitialCandidatesWarning
from botorch.generation.gen import gen_candidates_scipy
from botorch.optim.initializers import initialize_q_batch
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from botorch_calib._validation import (
    check_acquisition,
    check_count,
    check_inputs,
    check_instance,
    check_list,
)
from botorch_calib.decisions.certified_set_expansion import CertifiedSetExpansion
from botorch_calib.decisions.chance_constraint import ChanceConstraint, clearance
from botorch_calib.exceptions import NotCertifiedWarning, warn
from botorch_calib.optim.batched_searches import Function, batched_searches
from botorch_calib.optim.region import LinearConstraints, Region
from botorch_calib.optim.scaled_search import SEPARATE_STARTS, InUnitBox, without_search_warnings

# If the share of certified points among samples and training inputs is below `_RARE`, the search
# maximises the margin, and samples around the maxima.
_RARE = 0.05
# Fractions by which the end of a climb is moved back towards the certified start.
_BACKWARD = (0.0, 1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.2, 0.4, 0.7, 1.0)
# Largest number of points, or of pairs of points and contexts, that are evaluated at a time.
_CHUNK = 2048
_MAX_ITERATIONS = 100
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


class ChanceConstrainedCandidate(NamedTuple):
    """The result of `optimize_chance_constrained`.

    Attributes:
        candidate: The point, ``1 x d``.
        value: The value of the acquisition function at the candidate, a scalar tensor.
        certified: Whether the constraint certifies the candidate.
    """

    candidate: Tensor
    value: Tensor
    certified: bool


@torch.enable_grad()
def optimize_chance_constrained(
    acq_function: AcquisitionFunction,
    constraint: ChanceConstraint,
    bounds: Tensor | None,
    num_restarts: int = 4,
    raw_samples: int = 512,
    fixed_features: Mapping[int, float] | None = None,
    inequality_constraints: LinearConstraints | None = None,
    choices: Tensor | None = None,
    expansion_share: float = 0.0,
    equality_constraints: LinearConstraints | None = None,
    fixed_features_list: Sequence[Mapping[int, float]] | None = None,
) -> ChanceConstrainedCandidate:
    """Maximise an acquisition function over the points that a chance constraint certifies.

    If no certified point is found, the result has the largest `ChanceConstraint.optimism` instead.

    Args:
        acq_function: Acquisition function for single points (``q = 1``).
        constraint: The constraint, on the same inputs.
        bounds: ``2 x d`` lower and upper bounds; None with ``choices``.
        num_restarts: Number of certified points from which the search climbs.
        raw_samples: Number of sampled points. More samples find smaller certified sets.
        fixed_features: A dictionary from columns of the point to their fixed values.
        inequality_constraints: Linear constraints on the point, as in ``optimize_acqf``:
            ``(indices, coefficients, rhs)`` means
            ``sum_i coefficients[i] x[indices[i]] >= rhs``.
        choices: The points ``n x d`` to choose from, in place of a search within ``bounds``.
        expansion_share: Share of the decisions, in [0, 1), that maximise `CertifiedSetExpansion`
            instead of ``acq_function``, to grow the certified set, spread evenly over time. With 0,
            the set grows only around points that ``acq_function`` selects, which usually suffices.
            Use about 0.2 only if few safe points are known at the start, far from the optimum.
        equality_constraints: Linear equality constraints, in the form of
            ``inequality_constraints`` with ``=``.
        fixed_features_list: Combinations of fixed values, as in ``optimize_acqf_mixed``, in place
            of ``fixed_features``. Combinations that the linear constraints exclude are skipped.

    Returns:
        The `ChanceConstrainedCandidate` ``(candidate, value, certified)``. The value is that of
        ``acq_function``, even if the candidate maximises `CertifiedSetExpansion`.

    Raises:
        InputDataError, BotorchTensorDimensionError: If an argument is malformed, or ``choices``
            is combined with arguments that it excludes.
        UnsupportedError: If ``acq_function`` is not an acquisition function.
        InfeasibilityError: If no point meets the linear constraints.

    Warns:
        NotCertifiedWarning: If no certified point was found.

    Example:
        >>> acqf = UpperConfidenceBound(gp, beta=4.0)
        >>> found = optimize_chance_constrained(acqf, constraint, bounds)
        >>> candidate, value, certified = found
    """
    check_instance("constraint", constraint, ChanceConstraint)
    check_acquisition(acq_function)
    grows = expands(expansion_share, constraint.num_decisions)
    searched = CertifiedSetExpansion(constraint) if grows else acq_function
    linear = inequality_constraints, equality_constraints
    size = num_restarts, raw_samples
    place = Place(bounds, choices, fixed_features, *linear, *size, fixed_features_list)
    candidate, certified = best_certified(searched, LeastMargin(constraint), place)
    if not certified:
        warn_uncertified(constraint)
    with torch.no_grad(), repeated_points():
        return ChanceConstrainedCandidate(candidate, acq_function(candidate).squeeze(), certified)


class Place(NamedTuple):
    """The search space and settings: arguments of `optimize_chance_constrained`."""

    bounds: Tensor | None
    choices: Tensor | None = None
    fixed_features: Mapping[int, float] | None = None
    inequality_constraints: LinearConstraints | None = None
    equality_constraints: LinearConstraints | None = None
    num_restarts: int = 4
    raw_samples: int = 512
    fixed_features_list: Sequence[Mapping[int, float]] | None = None

    def regions(self) -> list[Region]:
        """Return the region to search, or one region for each combination of fixed features."""
        several: Sequence[Mapping[int, float] | None] = [self.fixed_features]
        if self.fixed_features_list is not None:
            several = check_list("fixed_features_list", self.fixed_features_list, "dictionaries")
            if self.fixed_features or not several:
                raise InputDataError(
                    "`fixed_features_list` must hold at least one dictionary, and excludes "
                    "`fixed_features`: put the common values into each dictionary."
                )
        linear = self.inequality_constraints, self.equality_constraints
        return [Region.checked(self.bounds, fixed, *linear) for fixed in several]

    def checked_choices(self) -> Tensor:
        """Return the choices ``n x d``; raise if they are empty, or if a region is given too."""
        described = self.fixed_features, self.inequality_constraints, self.equality_constraints
        is_several = self.fixed_features_list is not None
        if self.bounds is not None or is_several or any(described):
            raise InputDataError(
                "`choices` excludes `bounds` (give None), `fixed_features` and linear "
                "constraints: drop unwanted choices instead."
            )
        assert self.choices is not None
        choices = check_inputs("choices", self.choices)
        if not len(choices):
            raise InputDataError("`choices` is empty.")
        return choices


def best_certified(
    acq_function: AcquisitionFunction, margin: LeastMargin, place: Place
) -> tuple[Tensor, bool]:
    """Return the best certified point, ``1 x d``, and True.

    If no certified point is found, return the point with the largest
    `ChanceConstraint.optimism`, and False.
    """
    count = check_count("num_restarts", place.num_restarts)
    num_samples = check_count("raw_samples", place.raw_samples)
    if place.choices is not None:
        choices = place.checked_choices()
        margin.check_points("choices", choices)
        with repeated_points():
            return _best_of(choices.unsqueeze(-2), acq_function, margin)
    regions = place.regions()
    margin.check_points("bounds", regions[0].bounds)
    found: list[Tensor] = []
    with repeated_points():
        for region in regions:
            try:
                found.append(_search(acq_function, margin, region, count, num_samples))
            except InfeasibilityError:
                if region is regions[-1] and not found:
                    raise
        return _best_of(torch.cat(found), acq_function, margin)


@contextmanager
def repeated_points() -> Iterator[None]:
    """Ignore, in a ``with`` block, the warning about jitter in covariances at repeated points."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "A not p.d., added jitter", NumericalWarning)
        yield


def warn_uncertified(constraint: ChanceConstraint) -> None:
    """Warn that a point is not certified, with the likely reason and a remedy."""
    spent = constraint.budget_left <= 0.0
    why = ", as the budget of violations is spent or pending" if spent else ""
    remedy = constraint.note_of_outstanding() or (
        "Start from points known to meet the limits, lower the `level`, or increase `raw_samples`."
    )
    warn(
        f"A point is not certified{why}: it may meet the limits, without any guarantee. {remedy}",
        NotCertifiedWarning,
    )


class LeastMargin(AcquisitionFunction):
    """The margin of a constraint, in standard deviations of the outcome.

    For several outcomes, the value is the smallest margin. Without a constraint, it is infinite.
    ``confidence`` is the argument of `ChanceConstraint.margin`.
    """

    def __init__(
        self, constraint: ChanceConstraint | None, confidence: float | None = None
    ) -> None:
        super().__init__(model=None if constraint is None else constraint.model)  # type: ignore[arg-type]
        self.constraint, self.confidence = constraint, confidence
        self.scale = torch.ones(()) if constraint is None else constraint.typical_deviation()
        self.num_contexts = 1 if constraint is None else constraint.num_contexts

    def check_points(self, name: str, X: Tensor) -> None:
        """Raise unless points ``... x d``, which errors call ``name``, suit the constraint."""
        if self.constraint is not None:
            self.constraint.check_points(name, X)

    def forward(self, X: Tensor) -> Tensor:
        if self.constraint is None:
            return torch.full_like(X[:, 0, 0], torch.inf)
        return self.constraint.margin(X, self.confidence) / self.scale


class LeastOptimism(LeastMargin):
    """The `ChanceConstraint.optimism`, in standard deviations as in `LeastMargin`."""

    def forward(self, X: Tensor) -> Tensor:
        assert self.constraint is not None  # without one, every point is certified
        return self.constraint.optimism(X) / self.scale


def expands(share: float, num_decisions: int) -> bool:
    """Return whether the decision after ``num_decisions`` decisions expands the certified set.

    This is the case for a ``share`` of all decisions. The fractional parts of multiples of the
    golden ratio are spread evenly over [0, 1), and so are the fractional parts of every second or
    third multiple. So the share is the same if only every second or third decision is counted, as
    in batches.
    """
    if not (isinstance(share, Real) and 0.0 <= share < 1.0):
        raise InputDataError(f"`expansion_share` must lie in [0, 1), got {share!r}.")
    return _GOLDEN * (num_decisions + 1) % 1.0 < share


def _search(
    acqf: AcquisitionFunction, margin: LeastMargin, region: Region, num: int, raw_samples: int
) -> Tensor:
    """Return the ends of climbs in a region and their starts, ``b x 1 x d``.

    The climbs from up to ``num`` certified points increase the value of ``acqf``. If no point is
    certified, climbs increase `ChanceConstraint.optimism` instead.
    """
    pool, values = _pool(margin, region, num, raw_samples)
    certified = values >= clearance(pool.dtype)
    if not bool(certified.any()):
        promise = LeastOptimism(margin.constraint)
        best = pool[evaluated(promise, pool).topk(min(num, len(pool))).indices]
        climbed = region.placed(_maximize(promise, torch.ones_like(values[0]), region, best))
        return torch.cat([best, climbed])
    inside = pool[certified]
    gains = evaluated(acqf, inside)
    starts = _starts(inside, gains, num)
    unit = _unit_of_values(acqf, region, starts, gains)
    return torch.cat([starts, _climb(acqf, unit, margin, region, starts)])


def _pool(margin: LeastMargin, region: Region, num: int, raw_samples: int) -> tuple[Tensor, Tensor]:
    """Return possible starts ``b x 1 x d`` of a climb, and their margins ``b``.

    The starts are samples and training inputs and, if few of these are certified, also maximisers
    of the margin and samples around them.
    """
    pool = torch.cat([region.sample(raw_samples), known_points(margin, region)])
    if not len(pool):
        raise InfeasibilityError("No point within `bounds` meets the linear constraints.")
    values = evaluated(margin, pool)
    share = (values >= clearance(pool.dtype)).double().mean()
    if bool(share >= _RARE):
        return pool, values
    best = pool[values.topk(min(num, len(pool))).indices]
    climbed = region.placed(_maximize(margin, torch.ones_like(values[0]), region, best))
    peaks = torch.cat([best, climbed])
    more = torch.cat([climbed, region.around(peaks, max(1, raw_samples // len(peaks)))])
    return torch.cat([pool, more]), torch.cat([values, evaluated(margin, more)])


def known_points(margin: LeastMargin, region: Region) -> Tensor:
    """Training inputs ``n x 1 x d`` in the region, which may be the only certified points."""
    width = region.bounds.shape[-1]
    known = [region.bounds.new_zeros(0, 1, width)]
    for inputs in [] if margin.constraint is None else margin.constraint.known_decisions():
        if inputs.shape[-1] == width:
            known.append(region.placed(inputs.to(region.bounds).unsqueeze(-2)))
    # The models of several outcomes share most inputs, so drop duplicates.
    return torch.cat(known).unique(dim=0)


def _starts(inside: Tensor, values: Tensor, num: int) -> Tensor:
    """Return at most ``num`` points from ``inside``: the best, and others with large ``values``."""
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


def _unit_of_values(
    acqf: AcquisitionFunction, region: Region, starts: Tensor, values: Tensor
) -> Tensor:
    """Return a scale of the acquisition function over the region.

    The function is divided by this scale, since the optimizer's tolerances are absolute. The scale
    is the larger of two estimates: the range of the better half of ``values`` (too small if the
    samples lie close together), and the slope at the ``starts`` times the widths of the box (too
    small if they are local maxima).
    """
    values = _finite(values)
    with torch.enable_grad():
        X = starts.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(acqf(X).sum(), X)
    slopes = (gradient * (region.bounds[1] - region.bounds[0])).norm(dim=-1)
    slope = slopes.nan_to_num(nan=0.0, posinf=0.0).median()
    scale = torch.maximum(values.max() - values.median(), slope)
    return torch.where(scale > 0.0, scale, torch.ones_like(scale))


def _climb(
    acqf: AcquisitionFunction, unit: Tensor, margin: LeastMargin, region: Region, starts: Tensor
) -> Tensor:
    """Return the ends of climbs, each moved back towards its certified start until it is certified.

    SLSQP meets constraints only up to a tolerance, and sometimes ends far outside.
    """
    ends = _maximize(acqf, unit, region, starts, margin)
    if region.equal:  # project the ends onto these, unless that breaks other constraints
        ends = torch.stack([torch.cat([region.placed(end), end])[0] for end in ends.split(1)])
    shares = torch.tensor(_BACKWARD, dtype=starts.dtype, device=starts.device).view(-1, 1, 1, 1)
    drawn = ends + shares * (starts - ends)
    points = drawn.flatten(0, 1)
    meets = (evaluated(margin, points) >= clearance(starts.dtype)) & region.allows(points)
    meets = meets.view(len(_BACKWARD), len(starts))
    meets[-1] = True  # the starts themselves
    first = meets.double().argmax(dim=0)
    return drawn[first, torch.arange(len(starts), device=starts.device)]


def _maximize(
    acqf: AcquisitionFunction,
    unit: Tensor,
    region: Region,
    starts: Tensor,
    margin: LeastMargin | None = None,
) -> Tensor:
    """Return maximisers of ``acqf``, found by BoTorch from ``starts``, both ``b x 1 x d``.

    The function is divided by ``unit``, its scale. If a ``margin`` is given, it must stay at
    least `clearance`.
    """
    in_widths = InUnitBox(acqf, region.bounds, unit)
    options: dict[str, object] = {"maxiter": _MAX_ITERATIONS, **SEPARATE_STARTS}
    functions: list[Function] = [in_widths]
    if margin is not None and margin.constraint is not None:
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


def _best_of(X: Tensor, acqf: AcquisitionFunction, margin: LeastMargin) -> tuple[Tensor, bool]:
    """Return the same as `best_certified`, for the points ``X``, ``b x 1 x d``."""
    certified = evaluated(margin, X) >= clearance(X.dtype)
    if not bool(certified.any()):
        return X[evaluated(LeastOptimism(margin.constraint), X).argmax()], False
    inside = X[certified]
    return inside[evaluated(acqf, inside).argmax()], True


@torch.no_grad()
def evaluated(acqf: AcquisitionFunction, X: Tensor) -> Tensor:
    """Return values ``b`` at ``X`` (``b x 1 x d``), with NaN replaced with minus infinity."""
    num_contexts = acqf.num_contexts if isinstance(acqf, LeastMargin) else 1
    size = max(1, _CHUNK // num_contexts)
    values = torch.cat([acqf(chunk) for chunk in X.split(size)])
    return torch.where(values.isnan(), -torch.inf, values)
