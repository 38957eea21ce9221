"""`optimize_chance_constrained`: finds the best point that a chance constraint certifies."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import NamedTuple

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import InputDataError
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
from botorch_calib.decisions.chance_constraint import ChanceConstraint
from botorch_calib.exceptions import NotCertifiedWarning, warn
from botorch_calib.optim.batched_searches import Function
from botorch_calib.optim.feasible_search import CHUNK, FeasibleSet, best_among, best_in_regions
from botorch_calib.optim.region import LinearConstraints, Region

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


def best_certified(value: Function, margin: LeastMargin, place: Place) -> tuple[Tensor, bool]:
    """Return the certified point with the largest ``value``, ``1 x d``, and True.

    If no certified point is found, return the point with the largest
    `ChanceConstraint.optimism`, and False.
    """
    count = check_count("num_restarts", place.num_restarts)
    num_samples = check_count("raw_samples", place.raw_samples)
    certified = margin.certified
    if place.choices is not None:
        choices = place.checked_choices()
        margin.check_points("choices", choices)
        with repeated_points():
            return best_among(value, certified, choices.unsqueeze(-2))
    regions = place.regions()
    margin.check_points("bounds", regions[0].bounds)
    with repeated_points():
        return best_in_regions(value, certified, regions, count, num_samples)


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
        "Start from points known to meet the limits, lower the `level`, or increase `raw_samples`, "
        "if it can be set."
    )
    warn(
        f"A point is not certified{why}: it may meet the limits, without any guarantee. {remedy}",
        NotCertifiedWarning,
    )


class LeastMargin(AcquisitionFunction):
    """The margin of a constraint, in standard deviations of the outcome.

    For several outcomes, the value is the smallest margin. Without a constraint all points are
    `certified`, and there is no value. ``confidence`` is the argument of `ChanceConstraint.margin`.
    """

    def __init__(
        self, constraint: ChanceConstraint | None, confidence: float | None = None
    ) -> None:
        super().__init__(model=None if constraint is None else constraint.model)  # type: ignore[arg-type]
        self.constraint, self.confidence = constraint, confidence
        self.scale = torch.ones(()) if constraint is None else constraint.typical_deviation()

    @property
    def certified(self) -> FeasibleSet:
        """The certified points; all points without a constraint."""
        if self.constraint is None:
            return FeasibleSet()
        chunk = max(1, CHUNK // max(1, self.constraint.num_contexts))
        return FeasibleSet(self, self.promise, self.constraint.known_decisions(), chunk)

    def check_points(self, name: str, X: Tensor) -> None:
        """Raise unless points ``... x d``, which errors call ``name``, suit the constraint."""
        if self.constraint is not None:
            self.constraint.check_points(name, X)

    def forward(self, X: Tensor) -> Tensor:
        assert self.constraint is not None  # without one, every point is certified
        return self.constraint.margin(X, self.confidence) / self.scale

    def promise(self, X: Tensor) -> Tensor:
        """The `ChanceConstraint.optimism`, ``b``, in standard deviations of the outcome."""
        assert self.constraint is not None
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
