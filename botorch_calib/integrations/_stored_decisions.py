"""Decisions as clients without trials of their own kind store them, and the records made of them.

A decision is a dictionary of plain values: its ``point``, whether it was ``certified``, the
``level`` of each constraint, and the ``quantiles`` that decided, by the name of the outcome. What
came of it is in the client's data. Where these are rows of a table, a decision also holds the
number of rows that there were before, ``after``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_calib.decisions import ChanceConstraint
from botorch_calib.decisions.decision_records import Record

# To clients infinity is a value, to records and to Gaussian processes it is none: beyond this
# squares overflow.
INFINITE = 1e150

Decision = dict[str, Any]


def last_decision(constraints: Sequence[ChanceConstraint], names: Sequence[str]) -> Decision:
    """The last decision of constraints on outcomes of these names, to be stored."""
    records = [constraint.decisions[-1] for constraint in constraints]
    return {
        "point": records[0]["point"],
        "certified": records[0]["certified"],
        "level": records[0]["level"],
        "quantiles": {n: own["quantiles"] for n, own in zip(names, records, strict=True)},
    }


def records_of(
    decisions: Iterable[Mapping[str, Any]],
    outcomes: Iterable[Mapping[str, float | None]],
    names: Sequence[str],
) -> list[list[Record]]:
    """The records of the constraint on each outcome, given what came of each decision.

    Raises:
        InputDataError: If a decision was about other outcomes.
    """
    records: list[list[Record]] = [[] for _ in names]
    for decision, values in zip(decisions, outcomes, strict=True):
        if decision["quantiles"].keys() != {*names}:
            raise InputDataError(
                f"A decision was taken by the constraints {[*decision['quantiles']]}, and there "
                f"are {[*names]} now: keep the same ones, or start anew."
            )
        for own, name in zip(records, names, strict=True):
            value = values.get(name)
            is_known = value is not None and not math.isnan(value)
            outcome = min(max(value, -INFINITE), INFINITE) if is_known else None  # type: ignore[type-var]
            record = {key: decision[key] for key in ("point", "level", "certified")}
            own.append({**record, "quantiles": decision["quantiles"][name], "outcome": outcome})
    return records


def rows_of(decisions: Iterable[Mapping[str, Any]], X: Tensor) -> list[int | None]:
    """For each decision the first row of points ``n x d`` that came of it, None if it is out."""
    X, rows = X.double().cpu(), []
    is_free = torch.ones(len(X), dtype=torch.bool)
    for decision in decisions:
        point = torch.tensor(decision["point"], dtype=torch.double)
        # Some files hold ten decimals.
        same = ((X - point).abs() <= 2e-10 + 1e-12 * point.abs()).all(dim=-1) & is_free
        same[: decision["after"]] = False
        row = int(same.double().argmax()) if bool(same.any()) else None
        rows.append(row)
        if row is not None:
            is_free[row] = False
    return rows
