"""`DecisionAccount`: decisions under limits on an outcome, their outcomes, and the budget left."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_calib._validation import (
    check_count,
    check_limit,
    check_positive,
    check_tensor,
    numbers_of,
)
from botorch_calib.decisions.budget import Account, Budget, check_level
from botorch_calib.decisions.rows import (
    Record,
    Side,
    account_of,
    checked_records,
    sides_of,
)


class DecisionAccount:
    """Records of decisions about points, and the account and the budget that follow from them.

    `ChanceConstraint` keeps them, and explains the arguments; of models they know nothing.
    ``least_excess`` is the ``least`` of `Account.of`.
    """

    def __init__(
        self,
        upper: float | None,
        lower: float | None,
        level: float,
        budget: float,
        records: Iterable[Mapping[str, Any]] | None,
        least_excess: float = -math.inf,
    ) -> None:
        self.upper = check_limit("upper", upper)
        self.lower = check_limit("lower", lower)
        self.level = check_level(level)
        if self.upper is None and self.lower is None:
            raise InputDataError("Give `upper`, `lower` or both: there is nothing to constrain.")
        if self.upper is not None and self.lower is not None and not self.lower < self.upper:
            raise InputDataError(
                f"`lower` must be less than `upper`, got {self.lower} and {self.upper}."
            )
        self._budget = Budget(self.level, check_positive("budget", budget, allow_inf=True))
        self._least_excess = least_excess
        self._records = checked_records([] if records is None else records, self._sides, self.level)
        # The constraints that hold together, which share a budget; the present one at its place.
        self._together: list[Any] = [self]
        self._place = 0
        # Accounts of the own outcomes and of all, once they are known, of copies as well.
        self._accounts: dict[bool, Account] = {}

    @property
    def decisions(self) -> list[Record]:
        """Records of all decisions, in their order: dictionaries that may be stored as JSON.

        Their entries are the ``point``, a list of numbers; the ``quantiles`` that decided, of the
        lower limit and of the upper one, those there are; the ``level`` at which the outcome is
        within them; whether the point was ``certified``; and its ``outcome``, None as long as that
        is out.
        """
        return copy.deepcopy(self._records)

    @property
    def num_decisions(self) -> int:
        """Number of decisions, certified or not."""
        return len(self._records)

    @property
    def num_observed(self) -> int:
        """Number of decisions whose outcome has come."""
        return sum(record["outcome"] is not None for record in self._records)

    @property
    def num_certified(self) -> int:
        """Number of decisions that were certified."""
        return self._account().num_certified

    @property
    def num_outstanding(self) -> int:
        """Number of certified points whose outcome is out."""
        return self._account(own=True).num_outstanding

    @property
    def num_violations(self) -> int:
        """Number of certified points whose outcome violated a limit."""
        return self._account(own=True).num_violations

    def violated(self, Y: Tensor) -> Tensor:
        """Whether outcomes ``... x 1``, none of them NaN, are outside their limits, ``...``."""
        if check_tensor("Y", Y).shape[-1:] != (1,) or Y.isnan().any():
            raise InputDataError(
                f"`Y` must hold outcomes ... x 1 without NaN, got {tuple(Y.shape)}: leave out "
                "those that are not known."
            )
        y = torch.tensor(numbers_of(Y.flatten()), dtype=torch.double)
        beyond = [side.exceeded(y, side.limit) for side in self._sides]
        return torch.stack(beyond).any(dim=0).to(Y.device).view(Y.shape[:-1])

    def violation_bound(self, num_certified: int) -> float:
        """Largest number of violations among the first ``num_certified`` certified points.

        Of `joint_chance_constraints` it is the number of points that violate any of the limits.
        """
        return self._budget.bound(check_count("num_certified", num_certified, least=0))

    @property
    def budget_left(self) -> float:
        """What is left of the budget, points that are out counting as violations."""
        return self._budget.left(*self._at_stake())

    def _at_stake(self) -> tuple[int, int]:
        """Numbers of certified points, and of violations there may be among them."""
        account = self._account()
        return account.num_certified, account.num_violations + account.num_outstanding

    def _account(self, own: bool = False) -> Account:
        """That of all constraints that hold together, or of the ``own`` outcomes alone."""
        if own not in self._accounts:
            members = [self] if own else self._together
            records, sides = [each._records for each in members], [each._sides for each in members]
            terms = self.level, self._budget.size, self._least_excess
            self._accounts[own] = account_of(records, sides, *terms)
        return self._accounts[own]

    def _forget_account(self) -> None:
        for each in self._together:
            each._accounts.clear()

    def _out_at(self, points: list[list[float]]) -> list[Record | None]:
        """For each point the first open record that no other has taken, or None.

        A record of just this point comes before one that differs by rounding.
        """
        out = [(self._whole(r["point"]), r) for r in self._records if r["outcome"] is None]
        found = []
        for point in map(self._whole, points):
            near = [i for i, (other, _) in enumerate(out) if _differ_by_rounding(other, point)]
            first = min(near, key=lambda i: out[i][0] != point, default=None)
            found.append(None if first is None else out.pop(first)[1])
        return found

    def _whole(self, point: list[float]) -> list[float]:
        """A point with columns that may be left out."""
        return point

    @property
    def _sides(self) -> list[Side]:
        return sides_of(self.lower, self.upper)

    def __repr__(self) -> str:
        ends = {"lower": self.lower, "upper": self.upper}
        limits = "".join(f"{name}={end:g}, " for name, end in ends.items() if end is not None)
        return (
            f"{type(self).__name__}({limits}level={self.level:g}, "
            f"certified={self.num_certified} of {self.num_decisions}, "
            f"violations={self.num_violations})"
        )


def _differ_by_rounding(point: list[float], other: list[float]) -> bool:
    """Whether points are equal, up to a relative 1e-9 of each element."""
    return len(point) == len(other) and all(map(math.isclose, point, other))
