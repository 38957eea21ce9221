"""Decisions as clients store them with their trials, and the chance constraints made of them.

A client makes its models anew for each trial, perhaps in another process. So the decision about a
trial is stored with it, as plain values in the units of the outcomes:

    {"level": 0.9, "certified": True, "outcomes": {"cost": {"limits": {"upper": 3.0},
                                                            "quantiles": [2.71]}}}

Outcomes are in the client's own data; `Books` bring the two together. Where trials are rows of
a table, the decision also holds its ``"point"`` by the names of the inputs, and ``"after"``, the
number of rows at the time.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
import torch
from botorch.acquisition import AcquisitionFunction, UpperConfidenceBound
from botorch.exceptions.errors import InputDataError
from botorch.models.model import Model
from torch import Tensor

from botorch_calib.decisions.account import Record, account_of, sides_of
from botorch_calib.decisions.budget import SIZE, Account, Budget
from botorch_calib.decisions.chance_constrained_search import warn_uncertified
from botorch_calib.decisions.chance_constraints import ChanceConstraint
from botorch_calib.decisions.several_constraints import joint_chance_constraints
from botorch_calib.exceptions import CalibrationWarning, level_of_caller
from botorch_calib.models import CensoredDelayModel
from botorch_calib.models.conditioning import hallucinated
from botorch_calib.models.process import observed_process, raw_width

#: Lower and upper limit of an outcome, None where there is none.
Limits = Sequence[float | None]
#: A decision as it is stored.
StoredDecision = dict[str, Any]
#: The best point ``1 x d`` under constraints, and whether it is certified.
Search = Callable[[list[ChanceConstraint]], tuple[Tensor, bool]]
#: The name under which a client stores a decision, where names are free.
KEY = "chance_constraints"
# Clients take infinite values, records and Gaussian processes do not: beyond this squares overflow.
INFINITE = 1e150


class DecidedTrial(NamedTuple):
    """A trial that runs or has run, with its stored decision."""

    point: list[float]  # as the models see it
    decision: Mapping[str, Any]  # empty if a model chose it and stored nothing
    outcomes: Mapping[str, float | None]  # None as long as one is out


class Books:
    """The decisions of trials under one statement: outcomes within limits at a level.

    An outcome is judged by the limits at the time of the decision. If these have moved since, as
    limits relative to a baseline do, records move with them, and stretch between two limits.
    Trials are in the order of their decisions, without those that were never run.
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
                f"{strangers} of {len(decided)} trials were chosen without a recorded decision "
                f"under these limits at the level {level:g}. The books leave them out: their "
                "violations do not count.",
                CalibrationWarning,
                stacklevel=level_of_caller(),
            )

    def _is_own(self, decision: Mapping[str, Any]) -> bool:
        """Whether a decision is whole, and under this statement."""
        own = {name: _stored(limits).keys() for name, limits in self.limits.items()}
        try:
            outcomes = decision["outcomes"].items()
            sides = {name: each["limits"].keys() for name, each in outcomes}
            is_whole = all(len(each["quantiles"]) == len(each["limits"]) for _, each in outcomes)
            is_whole &= all(0.0 < each["level"] < 1.0 for _, each in outcomes)
            is_same = sides == own and abs(decision["level"] - self.level) <= 1e-12
            return is_same and is_whole and isinstance(decision["certified"], bool)
        except (AttributeError, KeyError, TypeError):  # somebody has edited it
            return False

    def records(self, name: str) -> list[Record]:
        """Records of the decisions about one outcome, under the present limits."""
        now = _stored(self.limits[name])
        records = []
        for point, decision, outcomes in self.trials:
            stored, y = decision["outcomes"][name], outcomes.get(name)
            then = stored["limits"]
            quantiles = zip(now, stored["quantiles"], strict=True)
            outcome = None
            if y is not None and not math.isnan(y):
                nearest = min(now, key=lambda side: abs(y - then[side]))
                outcome = min(max(_moved(y, nearest, then, now), -INFINITE), INFINITE)
            records.append(
                {
                    "point": point,
                    "quantiles": [_moved(q, side, then, now) for side, q in quantiles],
                    "level": stored["level"],
                    "certified": decision["certified"],
                    "outcome": outcome,
                }
            )
        return records

    def constraints(self, models: Mapping[str, Model]) -> list[ChanceConstraint]:
        """The constraints that have taken these decisions, of models by the outcomes' names."""
        own = [models[name] for name in self.limits]
        known = [self.records(name) for name in self.limits]
        width = raw_width(observed_process(own[0]))
        for record in (record for records in known for record in records):
            if width not in (None, len(record["point"])):
                # Other inputs by now. It counts all the same: its outcome is that of the trial.
                record["point"] = []
        return self._joint(own, known)

    def _joint(self, models: list[Any], records: list[list[Record]]) -> list[ChanceConstraint]:
        limits: Any = list(self.limits.values())
        return joint_chance_constraints(
            models, limits, self.level, budget=self.size, records=records
        )

    def best(
        self, search: Search, constraints: list[ChanceConstraint], pending: Tensor | None
    ) -> tuple[Tensor, bool]:
        """The best certified point, else one from which most can be learned beside ``pending``."""
        point, certified = search(constraints)
        if not certified and pending is not None and len(pending):
            expected = [hallucinated(each.model, pending) for each in constraints]
            point, _ = search(self._joint(expected, [each.decisions for each in constraints]))
        return point, certified

    def decide(
        self, search: Search, constraints: list[ChanceConstraint], pending: Tensor | None
    ) -> tuple[Tensor, StoredDecision]:
        """Commit the `best` point; the point ``1 x d``, and the decision to be stored."""
        point, certified = self.best(search, constraints, pending)
        if not bool(constraints[0].commit(point)) or not certified:
            warn_uncertified(constraints)
        return point, self.stored(constraints)

    def decide_in_turn(
        self,
        search: Callable[[AcquisitionFunction, list[ChanceConstraint]], tuple[Tensor, bool]],
        constraints: list[ChanceConstraint],
        objective: Model,
        pending: Tensor,
        beta: float,
        maximize: bool,
    ) -> Iterator[tuple[Tensor, StoredDecision]]:
        """Commit the points of the best upper confidence bounds one by one, without end.

        Each step of the generator is a decision. Points chosen before, as the ``pending`` ones
        ``n x d``, have their expected values.
        """
        while True:
            own = CensoredDelayModel(objective, pending, imputation="hallucinate")
            acqf = UpperConfidenceBound(own, beta=beta, maximize=maximize)
            point, decision = self.decide(partial(search, acqf), constraints, pending)
            yield point, decision
            pending = torch.cat([pending, point])

    def stored(self, constraints: Sequence[ChanceConstraint]) -> StoredDecision:
        """The last decision of these constraints, to be stored."""
        last = [constraint.decisions[-1] for constraint in constraints]
        outcomes = {}
        for (name, limits), record in zip(self.limits.items(), last, strict=True):
            stated = {key: record[key] for key in ("quantiles", "level")}
            outcomes[name] = {"limits": _stored(limits), **stated}
        return {"level": self.level, "certified": last[0]["certified"], "outcomes": outcomes}

    @property
    def account(self) -> Account:
        """What has come of the decisions."""
        sides = [sides_of(*each) for each in self.limits.values()]
        return account_of(map(self.records, self.limits), sides, self.level, self.size)

    @property
    def budget_left(self) -> float:
        """The rest of the budget, if all outcomes that are out are violations."""
        T, V, out, *_ = self.account
        return Budget(self.level, self.size).left(T, V + out)

    def __str__(self) -> str:
        T, V, out, *_ = self.account
        bound = f" At most {Budget(self.level, self.size).bound(T):g} may." if T else ""
        return (
            f"At a level of {self.level:g}, {T} of {len(self.trials)} decisions were certified: "
            f"{V} of these violated a limit, and {out} are out.{bound} Of the budget, "
            f"{self.budget_left:g} is left."
        )


def in_table(
    decision: StoredDecision, point: Tensor, names: Iterable[str], num_rows: int
) -> StoredDecision:
    """A decision about a point ``1 x d``, as it is stored beside a table."""
    inputs = dict(zip(names, point[0].tolist(), strict=True))
    return {**decision, "point": inputs, "after": num_rows}


def trials_in_table(
    decisions: Iterable[Mapping[str, Any]], inputs: pd.DataFrame, outcomes: pd.DataFrame
) -> list[DecidedTrial]:
    """Trials of decisions, by the row of a table that came of each: the first of the nearest."""
    X, trials = torch.tensor(inputs.to_numpy().copy(), dtype=torch.double), []
    came: list[Any] = outcomes.to_dict("records")
    is_free = torch.ones(len(X), dtype=torch.bool)
    for decision in decisions:
        named = decision["point"]
        if named.keys() != {*inputs}:
            raise InputDataError(
                f"`decisions` are of the inputs {[*named]}, and the data have {[*inputs]}: start "
                "without those decisions."
            )
        point = [float(named[name]) for name in inputs]
        distance = (X - torch.tensor(point, dtype=torch.double)).abs()
        # Some files hold ten decimals.
        near = (distance <= 2e-10 + 1e-12 * X.abs()).all(dim=-1) & is_free
        near[: decision["after"]] = False
        found: dict[str, float] = {}
        if bool(near.any()):
            row = int(torch.where(near, distance.amax(dim=-1), torch.inf).argmin())
            found, is_free[row] = came[row], False
        trials.append(DecidedTrial(point, decision, found))
    return trials


def _stored(limits: Limits) -> dict[str, float]:
    """Limits without those that there are not: some clients leave None out of their files."""
    named = zip(("lower", "upper"), limits, strict=True)
    return {side: end for side, end in named if end is not None}


def _moved(value: float, side: str, then: Mapping[str, float], now: Mapping[str, float]) -> float:
    """A value among earlier limits, moved with them to the present ones; exact at ``side``."""
    if then == now:
        return value
    spread = 1.0
    if len(now) == 2:
        spread = (now["upper"] - now["lower"]) / (then["upper"] - then["lower"])
    return now[side] + spread * (value - then[side])
