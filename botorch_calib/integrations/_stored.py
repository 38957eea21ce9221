"""Data that clients store: the names of calibrators, and a row for the decision about each trial.

Clients are the modules for Ax, BayBE, Optuna and Xopt. A row is a decision as
`ChanceConstraint.decide` returns it. A client builds new models for each trial, perhaps in another
process. From the stored rows and the outcomes in its own data, it builds the account of all
decisions (a `DecisionAccount`) and then the chance constraint.

If trials are lines of a table, a row also has an entry ``"inputs"``, the values of the inputs by
name. `trials_in_table` reads two more entries: an `ID`, which may also be in a column of the table,
and ``"earlier"``, the number of lines with the row's settings when the decision was made. A row
with the entry ``"withdrawn"`` counts only if the table has a line for it after all. The books are a
file that stores the rows.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
from botorch_calib._validation import check_one_of, check_open_unit, check_positive
from botorch_calib.calibration import Calibrator, LocalizedConformal
from botorch_calib.decisions import CertifiedSetExpansion
from botorch_calib.decisions.chance_constrained_search import expands, warn_uncertified
from botorch_calib.decisions.chance_constraint import ChanceConstraint
from botorch_calib.decisions.matching_decisions import tolerances
from botorch_calib.decisions.rows import DecisionAccount, Limits, Row
from botorch_calib.models import CensoredDelayModel
from botorch_calib.models.conditioning import with_observations
from botorch_calib.models.predict import mean_and_deviation
from botorch_calib.models.process import raw_width
from botorch_calib.models.residuals import RESIDUALS
from botorch_calib.posteriors.prediction import EXCESS

#: A function of a constraint that returns the best point ``1 x d``, and whether it is certified.
Search = Callable[[ChanceConstraint], tuple[Tensor, bool]]
#: Key of the row in the metadata of an Ax candidate.
KEY = "chance_constraints"
#: Suffix of the column that tells whether an outcome is above (1) or below (-1) its recorded value.
BEYOND = "_beyond"
#: Name of the column and of the row's entry that hold a decision's id; gest-api uses the same name.
ID = "_id"
# Seconds to wait for another process that is deciding about a batch. Then SQLite raises an error.
_TIMEOUT = 600.0
# Values of at least this magnitude count as infinite, since their squares may overflow. Clients
# accept infinite values. Rows hold this magnitude instead, and no model can be fitted to them.
INFINITE = 1e150
#: Classes of `botorch_calib.calibration`, by name.
KNOWN = {name: kind for name, kind in vars(calibration).items() if isinstance(kind, type)}


def checked_options(calibrator: object, options: Mapping[str, Any]) -> dict[str, Any]:
    """Check the options of a calibrator class, and return them with default values.

    A `LocalizedConformal` without options gets ``alpha=0.2``. An invalid option raises an error
    here. Otherwise the error would come only when a model is fitted after the initial trials, or
    when the client writes its file.
    """
    if not (isinstance(calibrator, type) and issubclass(calibrator, Calibrator)):
        raise InputDataError(f"`calibrator` must be a class of calibrators, got {calibrator!r}.")
    checked = {"alpha": 0.2} if calibrator is LocalizedConformal and not options else {**options}
    for name, value in checked.items():
        items = value if isinstance(value, (list, tuple)) else [value]
        if not all(isinstance(item, int | float | str | None) for item in items):
            raise InputDataError(f"Option `{name}` is not a plain value: {value!r}.")
    calibrator(**checked)
    return checked


def terms_of(level: float, budget: float, expansion_share: float = 0.0) -> dict[str, float]:
    """Check the arguments of a client's constraint, and return them by name."""
    expands(expansion_share, 0)  # raises an error if the share is out of its range
    return {
        "level": check_open_unit("level", level),
        "budget": check_positive("budget", budget, allow_inf=True),
        "expansion_share": expansion_share,
    }


def settings_of(denoise: bool, residuals: str, excess: str) -> dict[str, Any]:
    """Check arguments of `CalibratedModel.from_history`, and return them by name."""
    check_one_of("residuals", residuals, RESIDUALS)
    check_one_of("excess", excess, EXCESS)
    return {"denoise": denoise, "residuals": residuals, "excess": excess}


def stored_name(calibrator: type[Calibrator]) -> str | type[Calibrator]:
    """Return the name of a calibrator class of this package, and any other class unchanged."""
    name = calibrator.__name__
    return name if KNOWN.get(name) is calibrator else calibrator


def calibrator_class(stored: str | type[Calibrator]) -> Any:
    """Return the class whose `stored_name` is given, and any other argument unchanged."""
    return KNOWN.get(stored, stored) if isinstance(stored, str) else stored


def account_of(
    limits: Limits,
    level: float,
    budget: float,
    trials: Iterable[tuple[Mapping[str, Any], Mapping[str, float | None]]],
    remedy: str = DecisionAccount.remedy,
) -> DecisionAccount:
    """Build the account of a client's trials.

    ``trials`` holds two dictionaries for each trial, in the order of decisions: the stored row
    (empty without a decision), and the outcomes by name. The caller leaves out trials that were
    never run. Pending outcomes may be missing, None or NaN. A row's entry ``"beyond"`` holds 1 for
    each outcome above its value, and -1 for each outcome below its value, by name. ``remedy`` is
    the advice about pending trials, which names methods of the client.
    """
    rows = [{**row, **known_outcomes(limits, came, row.get("beyond", {}))} for row, came in trials]
    account = DecisionAccount(limits, level, budget, rows, skip_malformed=True)
    account.remedy = remedy
    return account


def known_outcomes(
    names: Iterable[str], came: Mapping[str, float | None], sides: Mapping[str, float]
) -> Row:
    """Return a row's entries ``"outcomes"``, None while pending, and ``"beyond"``.

    ``came`` holds the outcomes by name; they are clamped to a magnitude of `INFINITE`. ``sides``
    holds 1 for each outcome above its value, and -1 for each outcome below its value.
    """
    y = {name: came.get(name) for name in names}
    known = {
        name: None if each is None or math.isnan(each) else min(max(each, -INFINITE), INFINITE)
        for name, each in y.items()
    }
    beyond = {name: side for name, side in sides.items() if known.get(name) is not None}
    return {"outcomes": known, "beyond": beyond}


def constraint_of(account: DecisionAccount, models: Mapping[str, Model]) -> ChanceConstraint:
    """Build the chance constraint from an account and from ``models`` by outcome name."""
    own, rows = {name: models[name] for name in account.limits}, account.decisions
    width = raw_width(next(iter(own.values())))
    for row in rows:
        if width not in (None, len(row["point"])):
            # The inputs have changed since the decision, so its point is dropped. Its outcome
            # still counts.
            row["point"] = []
    constraint = ChanceConstraint(
        own, level=account.level, budget=account.budget.size, limits=account.limits, rows=rows
    )
    constraint.remedy = account.remedy
    return constraint


def best(
    search: Search, constraint: ChanceConstraint, pending: Tensor | None
) -> tuple[Tensor, bool]:
    """Search for the best certified point; return a point ``1 x d`` and whether it is certified.

    If no point is certified, the result is the most informative point. If there are ``pending``
    points ``n x d``, it is searched with models conditioned on expected outcomes at these points.
    """
    point, certified = search(constraint)
    if not certified and pending is not None and len(pending):
        with torch.no_grad():
            expected = {
                name: with_observations(model, pending, mean_and_deviation(model, pending)[0])
                for name, model in constraint.models.items()
            }
        point, _ = search(constraint.with_model(expected))
    return point, certified


def decide(
    search: Search, constraint: ChanceConstraint, pending: Tensor | None
) -> tuple[Tensor, Row]:
    """Decide about the `best` point; return the point ``1 x d`` and the row to store.

    Warns if the point is not certified.
    """
    point, certified = best(search, constraint, pending)
    (row,) = constraint.decide(point)
    if not (row["certified"] and certified):
        warn_uncertified(constraint)
    return point, row


def expanding(
    acqf: AcquisitionFunction, constraint: ChanceConstraint, share: float
) -> AcquisitionFunction:
    """Return the function to maximise: `CertifiedSetExpansion` in a ``share`` of the decisions.

    In the other decisions it is ``acqf``.
    """
    return CertifiedSetExpansion(constraint) if expands(share, constraint.num_decisions) else acqf


def decide_in_turn(
    num: int,
    search: Callable[[AcquisitionFunction, ChanceConstraint], tuple[Tensor, bool]],
    constraint: ChanceConstraint,
    objective: Model,
    pending: Tensor,
    beta: float,
    maximize: bool,
    names: Sequence[str],
) -> Iterator[tuple[Tensor, Row]]:
    """Yield ``num`` decisions, each about the point with the best confidence bound.

    Each step yields a point ``1 x d`` and its row, whose ``"inputs"`` have the ``names`` of the
    ``d`` columns. The objective is assumed to have its expected values at the ``pending`` points
    ``n x d``, and at the points of earlier steps. ``search`` maximises the bound over certified
    points. ``beta`` is the squared multiplier of the standard deviation in the bound.
    """
    for _ in range(num):
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
    contexts: Collection[str] = (),
) -> list[tuple[Row, dict[str, float]]]:
    """Match decisions with lines of a table; return the row and the outcomes of each decision.

    ``inputs`` and ``outcomes`` are columns of the same table, and ``ids`` are the lines' ids. A
    line belongs to the decision with the same id. If several lines have the id, the line with the
    most outcomes counts (the first line in a tie). A decision whose id is not in the table gets a
    line with an equal point, or else the nearest line that differs only by rounding. The columns
    ``contexts`` may have any values, since a client does not control them. A decision without any
    line has no outcomes, and is left out if it was withdrawn. The returned rows have the entries
    ``"point"`` and ``"beyond"``, which `account_of` reads.
    """
    settings = inputs.drop(columns=[*contexts])
    known, is_free = outcomes.notna().sum(axis=1), torch.ones(len(inputs), dtype=torch.bool)
    trials: list[tuple[Row, dict[str, float]]] = []
    lines: dict[object, list[int]] = {}
    for line, own in enumerate(ids):
        lines.setdefault(own, []).append(line)
    for decision in decisions:
        named, came = decision["inputs"], {}
        if named.keys() != {*inputs}:
            raise InputDataError(
                f"`decisions` are about the inputs {[*named]}, not {[*inputs]}: start without "
                "them, and with other `books`."
            )
        if (own := decision.get(ID)) in lines:
            came = outcomes.iloc[max(lines[own], key=known.iloc.__getitem__)].to_dict()
            is_free[lines[own]] = False
        trials.append(({**decision, "point": [float(named[name]) for name in inputs]}, came))
    # Most likely, withdrawn candidates were not run. So they are matched last, and other decisions
    # about an equal point get its lines first.
    in_turn = sorted(trials, key=lambda trial: bool(trial[0].get("withdrawn")))
    for precision in range(2):
        for row, came in in_turn if is_free.any() else []:
            if came:
                continue
            is_own, distance = near(row["inputs"], settings, precision)
            is_own[is_own.nonzero()[: row.get("earlier", 0)]] = False
            is_own &= is_free
            if is_own.any():
                line = int(torch.where(is_own, distance, torch.inf).argmin())
                came.update(outcomes.iloc[line].to_dict())
                is_free[line] = False
    for row, came in trials:
        row["beyond"] = sides_of(came)
    return [(row, came) for row, came in trials if came or not row.get("withdrawn")]


def near(point: Mapping[str, float], inputs: pd.DataFrame, precision: int) -> tuple[Tensor, Tensor]:
    """Return, for each line of ``inputs``, whether it is at ``point``, and the distance.

    ``point`` has the value of each column. The distance is the largest absolute difference in any
    column. ``precision`` 0 allows only for rounding in arithmetic. ``precision`` 1 also allows for
    values that were written with fewer digits.
    """
    X = torch.tensor(inputs.to_numpy(dtype=float).copy())
    at = X.new_tensor([float(point[name]) for name in inputs])
    whole = X[X.isfinite().all(dim=-1)]
    spread = whole.amax(dim=0) - whole.amin(dim=0) if len(whole) else torch.zeros_like(at)
    distance = (X - at).abs()
    return (distance <= tolerances(at, X, spread)[precision]).all(dim=-1), distance.amax(dim=-1)


def sides_of(came: Mapping[str, float]) -> dict[str, float]:
    """Return 1 for each outcome of a line that is above its value, -1 for each one that is below.

    ``came`` holds the line's values by column. The sides are in columns with the suffix `BEYOND`.
    """
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
    """Yield ``decisions`` together with those stored in ``file``; then write the list to the file.

    If an id occurs in both, the stored row is used. The ``with`` block may change the list. If the
    block raises an error, the file stays unchanged. Other processes wait until the block ends. The
    ``file`` is an SQLite database, so no partial change remains if the process is killed. If
    ``file`` is None, nothing is read or written.
    """
    if file is None:
        yield [*decisions]
        return
    with _opened(file) as database, database:  # commits, or rolls back after an error
        database.execute("PRAGMA synchronous = EXTRA")
        database.execute("BEGIN IMMEDIATE")
        database.execute("CREATE TABLE IF NOT EXISTS decisions (id PRIMARY KEY, row)")
        merged = _merged(database, decisions)
        yield merged
        change = "ON CONFLICT (id) DO UPDATE SET row = excluded.row"
        rows = [(row[ID], json.dumps(row)) for row in merged]
        database.executemany(f"INSERT INTO decisions VALUES (?, ?) {change}", rows)


def with_books(file: str | None, decisions: Iterable[Row]) -> list[Row]:
    """Return ``decisions`` together with those stored in ``file``, if it exists.

    If an id occurs in both, the stored row is used.
    """
    # The file is empty, and has no table to read, if a process was killed while creating it.
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
            f"`books`, {file}, cannot be used ({error}): give the path of a file with decisions, "
            "or of a new file in a writable folder."
        ) from error


def _merged(database: sqlite3.Connection, decisions: Iterable[Row]) -> list[Row]:
    stored = dict(database.execute("SELECT id, row FROM decisions ORDER BY rowid"))
    others = [row for row in decisions if row[ID] not in stored]
    return [*others, *map(json.loads, stored.values())]
