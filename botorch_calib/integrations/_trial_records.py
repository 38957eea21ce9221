"""Decisions as clients store them with their trials, and the chance constraints made of them.

A client has models made anew for each trial, perhaps in another process. So what decided about a
trial is stored with it, as plain values in the units of the outcomes:

    {"level": 0.9, "certified": True, "outcomes": {"cost": {"limits": [None, 3.0],
                                                            "quantiles": [2.71]}}}

What came of it is in the client's own data. `Books` put the two together.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from botorch.models.model import Model

from botorch_calib.decisions.budget import SIZE, Account, Budget, together
from botorch_calib.decisions.chance_constraints import ChanceConstraint
from botorch_calib.decisions.decision_records import Record, Side, decision_of
from botorch_calib.decisions.several_constraints import joint_chance_constraints, joint_level
from botorch_calib.exceptions import CalibrationWarning

#: Lower and upper limit of an outcome, None where there is none.
Limits = tuple[float | None, float | None]
#: The name under which a client stores a decision, where names are free.
KEY = "chance_constraints"


class DecidedTrial(NamedTuple):
    """A trial that has been run, or is being run, and what was stored with it."""

    point: list[float]  # as the models see it
    decision: Mapping[str, Any]  # empty if a model chose it and stored nothing
    outcomes: Mapping[str, float | None]  # None as long as one is out


class Books:
    """The decisions of trials under one statement: outcomes within limits at a level.

    An outcome is judged by the limits that were in force when its trial was decided about. If they
    have moved since, as those relative to a baseline do, its record keeps its distance from the
    nearer one.

    Args:
        limits: Limits of each outcome, by name.
        level: Joint level.
        budget: As in `ChanceConstraint`.
        trials: In the order of their decisions, without those that were never run.

    Warns:
        CalibrationWarning: If trials were chosen by a model without such a decision, or under
            another statement: the books leave them out.
    """

    def __init__(
        self,
        limits: Mapping[str, Limits],
        level: float,
        budget: float = SIZE,
        trials: Iterable[DecidedTrial] = (),
    ) -> None:
        self.limits, self.level, self.size = dict(limits), level, budget
        decided = list(trials)
        self.trials = [trial for trial in decided if self._is_own(trial.decision)]
        if strangers := len(decided) - len(self.trials):
            warnings.warn(
                f"{strangers} of {len(decided)} trials were chosen by a model without a record of "
                f"a decision under these limits at the level {level:g}. The books leave them out: "
                "what they violated does not count.",
                CalibrationWarning,
                stacklevel=3,
            )

    def _is_own(self, decision: Mapping[str, Any]) -> bool:
        if not decision or abs(decision["level"] - self.level) > 1e-12:
            return False
        then = {name: _kinds(each["limits"]) for name, each in decision["outcomes"].items()}
        return then == {name: _kinds(limits) for name, limits in self.limits.items()}

    def records(self, name: str) -> list[Record]:
        """Records of the decisions about one outcome, under the limits of today."""
        level, now = joint_level(self.level, len(self.limits)), self.limits[name]
        records = []
        for point, decision, outcomes in self.trials:
            stored, y = decision["outcomes"][name], outcomes.get(name)
            then, ends = stored["limits"], [limit for limit in now if limit is not None]
            old = [limit for limit in then if limit is not None]
            quantiles = [
                _moved(q, a, b) for q, a, b in zip(stored["quantiles"], old, ends, strict=True)
            ]
            if y is None or not math.isfinite(y):
                outcome = None
            else:
                nearest = min(range(len(old)), key=lambda i: abs(y - old[i]))
                outcome = _moved(y, old[nearest], ends[nearest])
            records.append(
                {
                    "point": point,
                    "quantiles": quantiles,
                    "level": level,
                    "certified": decision["certified"],
                    "outcome": outcome,
                }
            )
        return records

    def constraints(self, models: Mapping[str, Model]) -> list[ChanceConstraint]:
        """The constraints that have taken these decisions, of models by the outcomes' names."""
        return joint_chance_constraints(
            [models[name] for name in self.limits],
            list(self.limits.values()),
            self.level,
            self.size,
            [self.records(name) for name in self.limits],
        )

    @property
    def account(self) -> Account:
        """What has come of the decisions."""
        sides = [
            [
                Side(end, sign)
                for end, sign in zip(each, (-1.0, 1.0), strict=True)
                if end is not None
            ]
            for each in self.limits.values()
        ]
        rows = zip(*map(self.records, self.limits), strict=True)
        joint = (together(map(decision_of, row, sides)) for row in rows)
        return Account.of(joint, 1.0 - self.level, self.size)

    def __str__(self) -> str:
        T, V, out, *_ = self.account
        budget = Budget(self.level, self.size)
        bound = f" At most {budget.bound(T):g} may." if T else ""
        return (
            f"At a level of {self.level:g}, {T} of {len(self.trials)} decisions were certified: "
            f"{V} of these violated a limit, and {out} are out.{bound} Of the budget, "
            f"{budget.left(T, V + out):g} is left."
        )


def stored_decisions(
    names: Sequence[str], constraints: Sequence[ChanceConstraint], level: float, count: int
) -> list[dict[str, Any]]:
    """The last ``count`` decisions of constraints on outcomes of these names, to be stored."""
    if not count:
        return []
    last = [constraint.decisions[-count:] for constraint in constraints]
    return [
        {
            "level": level,
            "certified": row[0]["certified"],
            "outcomes": {
                name: {"limits": [each.lower, each.upper], "quantiles": record["quantiles"]}
                for name, each, record in zip(names, constraints, row, strict=True)
            },
        }
        for row in zip(*last, strict=True)
    ]


def _kinds(limits: Sequence[float | None]) -> list[bool]:
    return [limit is not None for limit in limits]


def _moved(value: float, then: float, now: float) -> float:
    """A value as far from a limit of today as it was from that of then, on the same side."""
    return value if then == now else value - then + now
