"""`Region`: a box with fixed columns and linear constraints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from botorch.exceptions import BotorchTensorDimensionError, InputDataError
from botorch.optim.parameter_constraints import evaluate_feasibility
from botorch.utils.sampling import draw_sobol_samples, get_polytope_samples
from torch import Tensor

from botorch_calib._validation import check_bounds, check_fixed_features, check_list, check_number

LinearConstraints = list[tuple[Tensor, Tensor, float]]

_LINE = "triples `(indices, coefficients, rhs)`, two tensors and a number"

# Standard deviations of the points that `Region.around` draws, in widths of the box
_SPREADS = (0.1, 0.01)
# Number of points that are drawn from the box for each requested point of the region
_OVERSAMPLED = 16
# Steps of a random walk before the first sample: few, since the walk starts at a feasible point
_BURN_IN = 200


@dataclass(frozen=True)
class Region:
    """A box with linear inequality and equality constraints; a fixed column has equal bounds.

    ``bounds`` is ``2 x d``. ``linear`` and ``equal`` are the ``inequality_constraints`` and
    ``equality_constraints`` of ``optimize_acqf``. Equal bounds replace the ``fixed_features`` of
    BoTorch's functions, so that all functions are evaluated at complete points. (Up to version
    0.18.1 BoTorch's search puts fixed values into the argument of a nonlinear constraint twice, see
    BoTorch's issue 3332.)
    """

    bounds: Tensor
    linear: LinearConstraints | None
    equal: LinearConstraints | None = None

    @classmethod
    def checked(
        cls,
        bounds: Tensor | None,
        fixed: Mapping[int, float] | None,
        linear: LinearConstraints | None,
        equal: LinearConstraints | None = None,
    ) -> Region:
        """Validate user arguments in the form of ``optimize_acqf``, and return their region."""
        if bounds is None:
            raise BotorchTensorDimensionError(
                "`bounds` must have shape 2 x d, got None: give them, or `choices`."
            )
        bounds = check_bounds(bounds)
        values = check_fixed_features(fixed, bounds.shape[-1])
        bounds = with_fixed(bounds, values)
        if len(values) == bounds.shape[-1]:
            raise InputDataError("`fixed_features` fixes every column: nothing is left to choose.")
        return cls(
            bounds,
            _checked_lines("inequality_constraints", linear, bounds),
            _checked_lines("equality_constraints", equal, bounds),
        )

    def sample(self, num: int) -> Tensor:
        """Draw points ``n x 1 x d`` that are spread over the region, with ``n <= num``.

        ``n`` is less than ``num`` if some points of a random walk are infeasible.
        """
        if self.linear is None and self.equal is None:
            return draw_sobol_samples(self.bounds, n=num, q=1)
        # Rejection sampling is far cheaper than a random walk if enough samples are feasible.
        spread = self.placed(draw_sobol_samples(self.bounds, n=_OVERSAMPLED * num, q=1))[:num]
        if len(spread) == num:
            return spread
        walk = get_polytope_samples(
            num - len(spread), self.bounds, self.linear, self.equal, n_burnin=_BURN_IN, n_thinning=4
        )
        return torch.cat([spread, self.placed(walk.to(self.bounds).unsqueeze(-2))])

    def around(self, X: Tensor, num: int) -> Tensor:
        """Draw random points ``m x 1 x d`` around the points ``X``, ``b x 1 x d``.

        ``num`` points are drawn around each point, at each scale of ``_SPREADS``. Infeasible points
        are dropped.
        """
        lower, upper = self.bounds
        spreads = torch.tensor(_SPREADS, dtype=X.dtype, device=X.device).view(-1, 1, 1, 1, 1)
        steps = torch.randn(len(_SPREADS), num, *X.shape, dtype=X.dtype, device=X.device)
        return self.placed((X + spreads * (upper - lower) * steps).reshape(-1, 1, X.shape[-1]))

    def placed(self, X: Tensor) -> Tensor:
        """Project points ``b x 1 x d`` into the box and onto the equality constraints.

        Points that violate a constraint after the projection are dropped.
        """
        X = X.clamp(*self.bounds)
        if self.equal_in_widths:
            lower, width = self.bounds[0], self.bounds[1] - self.bounds[0]
            A = torch.zeros(len(self.equal_in_widths), len(lower)).to(lower)
            for row, (indices, coefficients, _) in zip(A, self.equal_in_widths, strict=True):
                row.index_add_(0, indices, coefficients)
            rhs = lower.new_tensor([value for *_, value in self.equal_in_widths])
            gap = self.in_widths(X) @ A.mT - rhs
            X = (X - width * (gap @ torch.linalg.pinv(A).mT)).clamp(*self.bounds)
        return X[self.allows(X)] if self.linear or self.equal else X

    def allows(self, X: Tensor) -> Tensor:
        """Return, for each of the points ``b x 1 x d``, whether it meets the linear constraints.

        BoTorch's tolerance applies, both in units of the inputs and in widths of the box.
        """
        # Callers check in units of the inputs. If a width is as small as the tolerance, only a
        # check in widths finds violations.
        return evaluate_feasibility(X, self.linear, self.equal) & evaluate_feasibility(
            self.in_widths(X), self.linear_in_widths, self.equal_in_widths
        )

    def in_widths(self, X: Tensor) -> Tensor:
        """Scale points from the box to the unit cube; columns of width 0 become 0."""
        width = self.bounds[1] - self.bounds[0]
        return (X - self.bounds[0]) / torch.where(width > 0.0, width, torch.ones_like(width))

    @cached_property
    def linear_in_widths(self) -> LinearConstraints | None:
        """The inequality constraints on points of `in_widths`; the largest |coefficient| is 1."""
        return self._in_widths_of(self.linear)

    @cached_property
    def equal_in_widths(self) -> LinearConstraints | None:
        """The equality constraints on points of `in_widths`; the largest |coefficient| is 1."""
        return self._in_widths_of(self.equal)

    def _in_widths_of(self, lines: LinearConstraints | None) -> LinearConstraints | None:
        if lines is None:
            return None
        lower, width = self.bounds[0], self.bounds[1] - self.bounds[0]
        scaled: LinearConstraints = []
        for indices, coefficients, rhs in lines:
            by_width = coefficients.to(width) * width[indices]
            rest = rhs - (coefficients.to(lower) * lower[indices]).sum()
            # All coefficients are 0 if a constraint is on fixed columns only; then nothing is
            # scaled.
            unit = by_width.abs().amax()
            unit = torch.where(unit > 0.0, unit, torch.ones_like(unit))
            scaled.append((indices, by_width / unit, float(rest / unit)))
        return scaled


def with_fixed(bounds: Tensor, fixed: Mapping[int, float]) -> Tensor:
    """Return a copy of ``bounds``, ``2 x d``, with both bounds of each fixed column at its value.

    Raises:
        InputDataError: If a value is outside of the bounds of its column.
    """
    bounds = bounds.clone()
    for column, value in fixed.items():
        low, high = bounds[:, column]
        at = bounds.new_tensor(value)  # in the precision of the bounds
        if not bool((low <= at) & (at <= high)):
            raise InputDataError(
                f"`fixed_features` sets column {column} to {value}, outside of its bounds "
                f"{float(low)} and {float(high)}."
            )
        bounds[:, column] = at
    return bounds


def _checked_lines(name: str, lines: Any, bounds: Tensor) -> LinearConstraints | None:
    """Validate linear constraints, and cast them to the dtype of the bounds.

    The result is None if ``lines`` is None or empty. Errors contain ``name``.
    """
    checked: LinearConstraints = []
    for each in [] if lines is None else check_list(name, lines, _LINE):
        if len(check_list(name, each, _LINE)) != 3 or not (
            isinstance(each[0], Tensor) and isinstance(each[1], Tensor)
        ):
            raise InputDataError(f"`{name}` must be a list of {_LINE}, got {each!r} in it.")
        # In BoTorch's other form an index is a pair of row and column. Here each point has one
        # row, so only the column matters.
        columns = each[0] if each[0].dim() == 1 else each[0][:, 1]
        num = bounds.shape[-1]
        if columns.shape != each[1].shape or not ((-num <= columns) & (columns < num)).all():
            raise InputDataError(f"`{name}` needs one of {num} columns for each coefficient.")
        rhs = check_number(f"{name}: rhs", each[2])
        checked.append((columns.to(bounds.device) % num, each[1].to(bounds), rhs))
    return checked or None
