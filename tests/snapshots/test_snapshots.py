"""Texts that users read are unchanged; ``make snapshots`` records them again.

Their numbers come from models with set hyperparameters, and have few digits. The tables of
supported models and of the benchmarks are compared in ``tests/benchmarks``.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import BotorchError
from botorch.models import HigherOrderGP, SingleTaskGP

from botorch_calib import (
    CalibratedModel,
    ChanceConstraint,
    ConditionalValueAtRisk,
    FeedbackLedger,
    KLBall,
    LocalizedConformal,
    LogCalibratedExpectedImprovement,
    OnlineConformal,
    OnlineQuantileTracker,
    PiecewisePredictive,
    QuantileRecalibrator,
    WassersteinBall,
    calibration_report,
    optimize_chance_constrained,
)
from botorch_calib.asynchronous import DelayStrategy, SearchSettings
from botorch_calib.decisions import ConfirmationTest
from botorch_calib.diagnostics import CalibrationAlarm, report_from_moments
from tests.gps import make_data, make_gp

HERE = Path(__file__).parent
X, Y, _ = make_data(40)
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)


def calibrated() -> CalibratedModel:
    return CalibratedModel.from_history(make_gp(num=40), LocalizedConformal(alpha=0.2))


def decided() -> ChanceConstraint:
    """A constraint after two decisions, one of which is measured."""
    constraint = ChanceConstraint.from_history(make_gp(num=40), upper=1.0)
    constraint.decide(X[:2])
    constraint.observe(X[:1], Y[:1])
    return constraint


def reports() -> str:
    mean = torch.linspace(-2.0, 2.0, 15, dtype=torch.double)
    other = report_from_moments(mean, torch.ones(15), mean + (7 * mean).sin())
    return f"{calibration_report(calibrated())}\n\n{other}"


def reprs() -> str:
    tested = ConfirmationTest()
    tested.observe([False] * 20)
    shown: tuple[object, ...] = (
        LocalizedConformal(alpha=0.2),
        OnlineConformal(alpha=0.1),
        QuantileRecalibrator(),
        OnlineQuantileTracker([0.1, 0.9], step_size=0.05),
        PiecewisePredictive.gaussian((3,)),
        WassersteinBall(0.1),
        KLBall(0.1),
        ConditionalValueAtRisk(0.2),
        decided(),
        tested,
        CalibrationAlarm(),
        FeedbackLedger(2),
        DelayStrategy(),
        SearchSettings(),
    )
    return "\n\n".join(map(repr, shown))


def decisions() -> str:
    text = json.dumps(decided().decisions, indent=1)
    return re.sub(r"\d+\.\d{4,}", lambda number: f"{float(number[0]):.3f}", text)


def errors() -> str:
    model, ledger = calibrated(), FeedbackLedger(2)
    ledger.submit(X[0])
    ledger.tell(0, 1.0)
    improvement = LogCalibratedExpectedImprovement(model, best_f=0.0)
    wrong: Any = "conformal"
    two, surface = torch.cat([Y, Y], -1), Y.unsqueeze(-1).expand(-1, 2, 2)
    unsafe = ChanceConstraint.from_history(make_gp(num=40), upper=-9.0)
    slips: dict[str, Callable[[], Any]] = {
        "intervals in per cent": lambda: LocalizedConformal(alpha=80),
        "no model": lambda: CalibratedModel.from_history(wrong, LocalizedConformal(0.2)),
        "no calibrator": lambda: CalibratedModel.from_history(make_gp(), wrong),
        "two outcomes": lambda: CalibratedModel(SingleTaskGP(X, two), LocalizedConformal(0.2)),
        "no such model": lambda: CalibratedModel(HigherOrderGP(X, surface), OnlineConformal(0.2)),
        "rows of one dimension": lambda: model.observe(X[0], Y[0, 0]),
        "no limit": lambda: ChanceConstraint.from_history(make_gp()),
        "no acquisition": lambda: optimize_chance_constrained(wrong, unsafe, BOUNDS),
        "bounds of pairs": lambda: optimize_chance_constrained(improvement, unsafe, BOUNDS.mT[:1]),
        "nothing certified": lambda: optimize_chance_constrained(improvement, unsafe, BOUNDS),
        "value of no query": lambda: ledger.tell(7, 1.0),
        "a second value": lambda: ledger.tell(0, 2.0),
        "no value": lambda: ledger.tell(0, float("nan")),
        "a negative radius": lambda: WassersteinBall(-0.1),
    }
    shown = {slip: message(act) for slip, act in slips.items()}
    assert None not in shown.values(), shown
    return "\n\n".join(f"{slip}:\n{text}" for slip, text in shown.items())


def message(act: Callable[[], Any]) -> str | None:
    """The error or warning of a mistaken call; None if there is neither."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            act()
        except (BotorchError, Warning) as error:
            return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("show", [reports, reprs, decisions, errors])
def test_texts_are_as_approved(
    show: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    file, text = HERE / f"{show.__name__}.txt", show() + "\n"
    if "UPDATE_SNAPSHOTS" in os.environ:
        file.write_text(text, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == text, "`make snapshots`, and read the difference"
