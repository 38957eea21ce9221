"""What clients store: calibrators by name, and with each trial the row of the decision about it.

A client makes its models anew for each trial, perhaps in another process. It makes the chance
constraint from the stored rows and the outcomes in its own data. Where trials are lines of a table,
a row also holds its ``"inputs"`` by name. For `trials_in_table` it has an `ID`, which the table
repeats, and ``"earlier"``, the number of lines that were about its point when it was decided. A row
that was ``"withdrawn"`` counts only if it has a line all the same.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
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
#: Suffix of a column with the side of an outcome that is known to be beyond a bound.
BEYOND = "_beyond"
#: The name of ids, as of gest-api.
ID = "_id"
# Seconds to wait for another process that decides about a batch.
_TIMEOUT = 600.0
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
    remedy: str = DecisionAccount.remedy,
) -> DecisionAccount:
    """The account of trials: the stored row of each, empty if there is none, and its outcomes.

    Trials come in the order of their decisions, without those that were never run. Outcomes that
    are out may be missing, None or NaN. A row may say which ones are only known to be ``beyond``.
    The ``remedy`` names the client's own calls.
    """
    rows = [{**row, **known_outcomes(limits, came, row.get("beyond", {}))} for row, came in trials]
    account = DecisionAccount(limits, level, budget, rows, skip_malformed=True)
    account.remedy = remedy
    return account


def known_outcomes(
    names: Iterable[str], came: Mapping[str, float | None], sides: Mapping[str, float]
) -> Row:
    """A row's outcomes, None if they are out, and the sides of those beyond a bound."""
    y = {name: came.get(name) for name in names}
    known = {
        name: None if each is None or math.isnan(each) else min(max(each, -INFINITE), INFINITE)
        for name, each in y.items()
    }
    beyond = {name: side for name, side in sides.items() if known.get(name) is not None}
    return {"outcomes": known, "beyond": beyond}


def constraint_of(account: DecisionAccount, models: Mapping[str, Model]) -> ChanceConstraint:
    """The constraint that has taken these decisions, of models by the outcomes' names."""
    own, rows = {name: models[name] for name in account.limits}, account.decisions
    width = raw_width(observed_process(next(iter(own.values()))))
    for row in rows:
        if width not in (None, len(row["point"])):
            # The inputs have changed since. The decision still counts, by its outcome.
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
) -> Iterator[tuple[Tensor, Row]]:
    """Decide about the points of the best upper confidence bounds one by one, without end.

    Each step of the generator is a decision, whose row has its inputs by these ``names``. Points
    chosen before and ``pending`` ones, ``n x d``, have their expected values.
    """
    while True:
        own = CensoredDelayModel(objective, pending, imputation="hallucinate")
        acqf = UpperConfidenceBound(own, beta=beta, maximize=maximize)
        point, row = decide(partial(search, acqf), constraint, pending)
        inputs = dict(zip(names, row["point"], strict=True))
        yield point, {**row, "inputs": inputs}
        pending = torch.cat([pending, point])


def trials_in_table(
    decisions: Iterable[Mapping[str, Any]],
    inputs: pd.DataFrame,
    outcomes: pd.DataFrame,
    ids: Iterable[object] = (),
) -> list[tuple[Row, dict[str, float]]]:
    """Rows of decisions, and what came of each, in a line with its id or at its point.

    If several lines have the id, the one with the most outcomes counts, the first of them. A
    decision without such a line takes one with an equal point, else the nearest one that rounding
    explains.
    """
    known, is_free = outcomes.notna().sum(axis=1), torch.ones(len(inputs), dtype=torch.bool)
    trials: list[tuple[Row, dict[str, float]]] = []
    lines: dict[object, list[int]] = {}
    for line, own in enumerate(ids):
        lines.setdefault(own, []).append(line)
    for decision in decisions:
        named, came = decision["inputs"], {}
        if named.keys() != {*inputs}:
            raise InputDataError(
                f"`decisions` are of the inputs {[*named]}, not {[*inputs]}: start without them, "
                "and with other `books`."
            )
        if (own := decision.get(ID)) in lines:
            came = outcomes.iloc[max(lines[own], key=known.iloc.__getitem__)].to_dict()
            is_free[lines[own]] = False
        trials.append(({**decision, "point": [float(named[name]) for name in inputs]}, came))
    # Withdrawn candidates come last: most likely they were not run.
    in_turn = sorted(trials, key=lambda trial: bool(trial[0].get("withdrawn")))
    for precision in range(2):
        for row, came in in_turn if is_free.any() else []:
            if came:
                continue
            near, distance = _near(row["point"], inputs, precision)
            near[near.nonzero()[: row.get("earlier", 0)]] = False
            near &= is_free
            if near.any():
                line = int(torch.where(near, distance, torch.inf).argmin())
                came.update(outcomes.iloc[line].to_dict())
                is_free[line] = False
    for row, came in trials:
        row["beyond"] = sides_of(came)
    return [(row, came) for row, came in trials if came or not row.get("withdrawn")]


def num_near(point: list[float], inputs: pd.DataFrame) -> int:
    """How many lines of a table are about a point, up to rounding."""
    return int(_near(point, inputs, precision=1)[0].sum())


def _near(point: list[float], inputs: pd.DataFrame, precision: int) -> tuple[Tensor, Tensor]:
    """Which lines are near a point, and how far each one is."""
    X = torch.tensor(inputs.to_numpy(dtype=float).copy())
    at, whole = X.new_tensor(point), X[X.isfinite().all(dim=-1)]
    spread = whole.amax(dim=0) - whole.amin(dim=0) if len(whole) else torch.zeros_like(at)
    distance = (X - at).abs()
    return (distance <= tolerances(at, X, spread)[precision]).all(dim=-1), distance.amax(dim=-1)


def sides_of(came: Mapping[str, float]) -> dict[str, float]:
    """The side, 1 or -1, of each outcome of a line that is only known to be beyond a bound."""
    sides = {}
    for key, side in came.items():
        if not key.endswith(BEYOND) or pd.isna(side) or side == 0.0:
            continue
        if side not in (1.0, -1.0):
            raise InputDataError(f"Column `{key}` must hold 1, -1, 0 or nothing, got {side!r}.")
        sides[key.removesuffix(BEYOND)] = side
    return sides


@contextmanager
def in_books(file: str | None, decisions: Iterable[Row]) -> Iterator[list[Row]]:
    """All decisions, also those in a file, to be changed; then the file holds the list as it is.

    If the block raises, the file stays as it was. Other processes wait for the end of the block.
    The ``file`` is an SQLite database, so that a process that is killed leaves no half of a change.
    """
    if file is None:
        yield [*decisions]
        return
    with _opened(file) as database, database:  # which commits, or rolls back
        database.execute("PRAGMA synchronous = EXTRA")
        database.execute("BEGIN IMMEDIATE")
        database.execute("CREATE TABLE IF NOT EXISTS decisions (id PRIMARY KEY, row)")
        merged = _merged(database, decisions)
        yield merged
        change = "ON CONFLICT (id) DO UPDATE SET row = excluded.row"
        rows = [(row[ID], json.dumps(row)) for row in merged]
        database.executemany(f"INSERT INTO decisions VALUES (?, ?) {change}", rows)


def with_books(file: str | None, decisions: Iterable[Row]) -> list[Row]:
    """All decisions, also those in a file, if there is one."""
    # A process that is killed while it makes the file leaves an empty one.
    if file is None or not Path(file).exists() or not Path(file).stat().st_size:
        return [*decisions]
    with _opened(file) as database:
        return _merged(database, decisions)


@contextmanager
def _opened(file: str) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(file, _TIMEOUT, isolation_level=None)) as database:
            yield database
    except sqlite3.Error as error:
        raise InputDataError(
            f"`books`, {file}, cannot be used ({error}): name a file of decisions, or a new one in "
            "a folder that can be written to."
        ) from error


def _merged(database: sqlite3.Connection, decisions: Iterable[Row]) -> list[Row]:
    stored = dict(database.execute("SELECT id, row FROM decisions ORDER BY rowid"))
    others = [row for row in decisions if row[ID] not in stored]
    return [*others, *map(json.loads, stored.values())]
