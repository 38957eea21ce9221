"""Rows of decisions that clients store with their trials, and the chance constraint made of them.

A client makes its models anew for each trial, perhaps in another process. So the row of the
decision about a trial is stored with it. It comes back with the outcomes in the client's own data.
Where trials are lines of a table, it also holds its ``"inputs"`` by name, and ``"after"``, the
number of lines at the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
import torch
from botorch.acquisition import AcquisitionFunction, UpperConfidenceBound
from botorch.exceptions.errors import InputDataError
from botorch.models.model import Model
from torch import Tensor

from botorch_calib.decisions import CertifiedSetExpansion
from botorch_calib.decisions.chance_constrained_search import expands, warn_uncertified
from botorch_calib.decisions.chance_constraint import ChanceConstraint
from botorch_calib.decisions.rows import DecisionAccount, Limits, Row
from botorch_calib.models import CensoredDelayModel
from botorch_calib.models.conditioning import hallucinated
from botorch_calib.models.process import observed_process, raw_width

#: The best point ``1 x d`` under a constraint, and whether it is certified.
Search = Callable[[ChanceConstraint], tuple[Tensor, bool]]
#: The name under which a client stores a row, where names are free.
KEY = "chance_constraints"
# Clients take infinite values, rows and Gaussian processes do not: beyond this squares overflow.
INFINITE = 1e150


def account_of(
    limits: Limits,
    level: float,
    budget: float,
    trials: Iterable[tuple[Mapping[str, Any], Mapping[str, float | None]]],
) -> DecisionAccount:
    """The account of trials: the stored row of each, empty if there is none, and its outcomes.

    Trials are in the order of their decisions, without those that were never run. Outcomes that
    are out are left out, None or NaN.
    """
    rows = [
        {**row, "outcomes": {name: _known(outcomes.get(name)) for name in limits}}
        for row, outcomes in trials
    ]
    return DecisionAccount(limits, level, budget, rows, skip_malformed=True)


def _known(y: float | None) -> float | None:
    return None if y is None or math.isnan(y) else min(max(y, -INFINITE), INFINITE)


def constraint_of(account: DecisionAccount, models: Mapping[str, Model]) -> ChanceConstraint:
    """The constraint that has taken these decisions, of models by the outcomes' names."""
    own, rows = {name: models[name] for name in account.limits}, account.decisions
    width = raw_width(observed_process(next(iter(own.values()))))
    for row in rows:
        if width not in (None, len(row["point"])):
            # Other inputs by now. It counts all the same: its outcome is that of the trial.
            row["point"] = []
    return ChanceConstraint(
        own, level=account.level, budget=account.budget.size, limits=account.limits, rows=rows
    )


def best(
    search: Search, constraint: ChanceConstraint, pending: Tensor | None
) -> tuple[Tensor, bool]:
    """The best certified point, else one from which most can be learned beside ``pending``."""
    point, certified = search(constraint)
    if not certified and pending is not None and len(pending):
        models = constraint.models.items()
        expected = {name: hallucinated(model, pending) for name, model in models}
        point, _ = search(constraint.with_model(expected))
    return point, certified


def decide(
    search: Search, constraint: ChanceConstraint, pending: Tensor | None
) -> tuple[Tensor, Row]:
    """Decide about the `best` point: the point ``1 x d``, and the row to be stored."""
    point, certified = best(search, constraint, pending)
    (row,) = constraint.decide(point)
    if not (row["certified"] and certified):
        warn_uncertified(constraint)
    return point, row


def expanding(
    acqf: AcquisitionFunction, constraint: ChanceConstraint, share: float
) -> AcquisitionFunction:
    """The function to be maximised: the given one, or an expansion in a ``share`` of decisions."""
    return CertifiedSetExpansion(constraint) if expands(share, constraint.num_decisions) else acqf


def decide_in_turn(
    search: Callable[[AcquisitionFunction, ChanceConstraint], tuple[Tensor, bool]],
    constraint: ChanceConstraint,
    objective: Model,
    pending: Tensor,
    beta: float,
    maximize: bool,
    names: Sequence[str],
    num_lines: int,
) -> Iterator[tuple[Tensor, Row]]:
    """Decide about the points of the best upper confidence bounds one by one, without end.

    Each step of the generator is a decision, whose row is to be stored beside a table of so many
    lines, with inputs of these names. Points chosen before, as the ``pending`` ones ``n x d``, have
    their expected values.
    """
    while True:
        own = CensoredDelayModel(objective, pending, imputation="hallucinate")
        acqf = UpperConfidenceBound(own, beta=beta, maximize=maximize)
        point, row = decide(partial(search, acqf), constraint, pending)
        inputs = dict(zip(names, row["point"], strict=True))
        yield point, {**row, "inputs": inputs, "after": num_lines}
        pending = torch.cat([pending, point])


def trials_in_table(
    decisions: Iterable[Mapping[str, Any]], inputs: pd.DataFrame, outcomes: pd.DataFrame
) -> list[tuple[Row, dict[str, float]]]:
    """Rows of decisions, and what came of each: the first of the nearest lines of a table."""
    X, trials = torch.tensor(inputs.to_numpy().copy(), dtype=torch.double), []
    is_free = torch.ones(len(X), dtype=torch.bool)
    for decision in decisions:
        named = decision["inputs"]
        if named.keys() != {*inputs}:
            raise InputDataError(
                f"`decisions` are of the inputs {[*named]}, and the data have {[*inputs]}: start "
                "without those decisions."
            )
        point = [float(named[name]) for name in inputs]
        distance = (X - X.new_tensor(point)).abs()
        # Some files hold ten decimals.
        near = (distance <= 2e-10 + 1e-12 * X.abs()).all(dim=-1) & is_free
        near[: decision["after"]] = False
        came: dict[str, float] = {}
        if near.any():
            line = int(torch.where(near, distance.amax(dim=-1), torch.inf).argmin())
            came, is_free[line] = outcomes.iloc[line].to_dict(), False
        trials.append(({**decision, "point": point}, came))
    return trials
