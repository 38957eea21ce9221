"""What clients store: calibrators by name, and with each trial the row of the decision about it.

A client makes its models anew for each trial, perhaps in another process. It makes the chance
constraint from the stored rows and the outcomes in its own data. Where trials are lines of a table,
a row also holds its ``"inputs"`` by name, and ``"after"``, the number of lines at the time.
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

from botorch_calib import calibration
from botorch_calib.calibration import Calibrator, LocalizedConformal
from botorch_calib.decisions import CertifiedSetExpansion
from botorch_calib.decisions.chance_constrained_search import expands, warn_uncertified
from botorch_calib.decisions.chance_constraint import ChanceConstraint
from botorch_calib.decisions.matching_decisions import tolerances
from botorch_calib.decisions.rows import DecisionAccount, Limits, Row
from botorch_calib.models import CensoredDelayModel
from botorch_calib.models.conditioning import hallucinated
from botorch_calib.models.process import observed_process, raw_width

#: The best point ``1 x d`` under a constraint, and whether it is certified.
Search = Callable[[ChanceConstraint], tuple[Tensor, bool]]
#: The name under which a client stores a row, where names are free.
KEY = "chance_constraints"
#: Ends the name of a column that says on which side of its bound an outcome is, see `account_of`.
BEYOND = "_beyond"
# Clients take infinite values, rows and Gaussian processes do not: beyond this squares overflow.
INFINITE = 1e150
#: Types of options that can be stored, alone and in lists.
PLAIN = (bool, int, float, str, type(None))
#: Classes of this package, by name.
KNOWN = {name: kind for name, kind in vars(calibration).items() if isinstance(kind, type)}


def checked_options(calibrator: object, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a calibrator, ``alpha=0.2`` if there are none and it is a `LocalizedConformal`.

    Raises now if a fit, after the initial trials, or a client's file would fail.
    """
    if not (isinstance(calibrator, type) and issubclass(calibrator, Calibrator)):
        raise InputDataError(f"`calibrator` must be a class of calibrators, got {calibrator!r}.")
    checked = {"alpha": 0.2} if calibrator is LocalizedConformal and not options else {**options}
    for name, value in checked.items():
        items = value if isinstance(value, (list, tuple)) else [value]
        if not all(isinstance(item, PLAIN) for item in items):
            raise InputDataError(f"Option `{name}` is not a plain value: {value!r}.")
    calibrator(**checked)
    return checked


def stored_name(calibrator: type[Calibrator]) -> str | type[Calibrator]:
    """The name of a class of this package; any other class stands for itself."""
    name = calibrator.__name__
    return name if KNOWN.get(name) is calibrator else calibrator


def calibrator_class(stored: str | type[Calibrator]) -> Any:
    """The inverse of `stored_name`; an unknown name is returned as it is."""
    return KNOWN.get(stored, stored) if isinstance(stored, str) else stored


def account_of(
    limits: Limits,
    level: float,
    budget: float,
    trials: Iterable[tuple[Mapping[str, Any], Mapping[str, float | None]]],
) -> DecisionAccount:
    """The account of trials: the stored row of each, empty if there is none, and its outcomes.

    Trials are in the order of their decisions, without those that were never run. Outcomes that
    are out are left out, None or NaN; rows may say which ones are known only to be ``beyond``.
    """
    rows = []
    for row, outcomes in trials:
        known = {name: _known(outcomes.get(name)) for name in limits}
        sides = row.get("beyond", {}).items()
        came = {name: side for name, side in sides if known.get(name) is not None}
        rows.append({**row, "outcomes": known, "beyond": came})
    return DecisionAccount(limits, level, budget, rows, skip_malformed=True)


def _known(y: float | None) -> float | None:
    return None if y is None or math.isnan(y) else min(max(y, -INFINITE), INFINITE)


def constraint_of(account: DecisionAccount, models: Mapping[str, Model]) -> ChanceConstraint:
    """The constraint that has taken these decisions, of models by the outcomes' names."""
    own, rows = {name: models[name] for name in account.limits}, account.decisions
    width = raw_width(observed_process(next(iter(own.values()))))
    for row in rows:
        if width not in (None, len(row["point"])):
            # The inputs are others by now. The decision counts all the same, by its outcome.
            row["point"] = []
    constraint = ChanceConstraint(
        own, level=account.level, budget=account.budget.size, limits=account.limits, rows=rows
    )
    constraint.remedy = account.remedy
    return constraint


def best(
    search: Search, constraint: ChanceConstraint, pending: Tensor | None
) -> tuple[Tensor, bool]:
    """The best certified point, else one to learn most from, given the ``pending`` ones."""
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

    Each step of the generator is a decision. Its row is to be stored with a table that has
    ``num_lines`` lines and inputs of these ``names``. Points chosen before and ``pending`` ones,
    ``n x d``, have their expected values.
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
    """Rows of decisions, and what came of each: the first of the nearest lines of a table.

    Decisions find equal lines first, and then lines that were rounded.
    """
    X = torch.tensor(inputs.to_numpy().copy(), dtype=torch.double)
    is_free = torch.ones(len(X), dtype=torch.bool)
    spread = X.amax(dim=0) - X.amin(dim=0) if len(X) else X.new_zeros(X.shape[-1])
    trials: list[tuple[Row, dict[str, float]]] = []
    for decision in decisions:
        named = decision["inputs"]
        if named.keys() != {*inputs}:
            raise InputDataError(
                f"`decisions` are of the inputs {[*named]}, not {[*inputs]}: start without them."
            )
        trials.append(({**decision, "point": [float(named[name]) for name in inputs]}, {}))
    for precision in range(2):
        for row, came in trials:
            point = X.new_tensor(row["point"])
            distance = (X - point).abs()
            limit = tolerances(point, X, spread)[precision]
            near = (distance <= limit).all(dim=-1) & is_free
            near[: row["after"]] = False
            if near.any() and not came:
                line = int(torch.where(near, distance.amax(dim=-1), torch.inf).argmin())
                came.update(outcomes.iloc[line].to_dict())
                is_free[line] = False
    for row, came in trials:
        row["beyond"] = {}
        for key, side in came.items():
            if not key.endswith(BEYOND) or pd.isna(side) or side == 0.0:
                continue
            if side not in (1.0, -1.0):
                raise InputDataError(f"Column `{key}` must hold 1, -1, 0 or nothing, got {side!r}.")
            row["beyond"][key.removesuffix(BEYOND)] = side
    return trials
