"""Loops on a ledger under a chance constraint: four trials at a time, outcomes out of order.

All that comes next follows from the ledger, contexts that came included, so a loop may end anywhere
and go on elsewhere. As a program, ``python -m tests.decisions.ledger_loops FILE KIND KILL_AT`` ends
itself in that round, after the decision, or between its row and the next outcome.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from typing import Any

import torch
from botorch.models import SingleTaskGP
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from botorch.settings import validate_input_scaling
from torch import Tensor

from botorch_calib import (
    CalibratedModel,
    CensoredDelayModel,
    ChanceConstraint,
    ContextDistribution,
    FeedbackLedger,
    QuantileRecalibrator,
    TotalVariationBall,
)
from tests.gps import DOUBLE

CHOICES = torch.linspace(0.0, 1.0, 101, **DOUBLE).unsqueeze(-1)
WORKERS, LIMIT = 4, 0.9
CENTRE = ContextDistribution.empirical(torch.tensor([[0.2], [0.5], [0.6]], **DOUBLE))
KINDS: dict[str, dict[str, Any]] = {
    "pending": {},
    "pending, calibrated": {},
    "Bayesian": {},
    "pending, calibrated, contexts": {"ambiguity": TotalVariationBall(0.3), "contexts": CENTRE},
}


def context(trial_id: int, kind: str) -> list[float] | None:
    """What the environment drew for a trial: sometimes beyond any context that was expected."""
    return [random.Random(trial_id).choice([0.2, 0.5, 0.6, 1.3])] if "contexts" in kind else None


def outcome(trial_id: int, x: float, kind: str) -> float:
    (came,) = context(trial_id, kind) or [0.5]
    return x + 0.3 * (came - 0.5) + random.Random(1000 + trial_id).gauss(0.0, 0.15)


def model_of(ledger: FeedbackLedger, kind: str) -> Any:
    """The model of the values so far, in order of arrival, and of what is pending."""
    ledger = ledger.snapshot()  # values may arrive between two questions
    X, Y = ledger.to_observations()
    X = torch.cat([X, ledger.contexts()], dim=-1)
    if kind == "Bayesian":
        return EnsembleMapSaasSingleTaskGP(X, Y, torch.full_like(Y, 0.02), num_taus=3).eval()
    with validate_input_scaling(False):
        gp = SingleTaskGP(X, Y, outcome_transform=None)
    gp.likelihood.noise, gp.covar_module.lengthscale = 0.01, 0.5
    pending = ledger.pending()
    if "contexts" in kind:  # which nobody knows yet
        pending = torch.cat([pending, torch.full_like(pending, 0.5)], dim=-1)
    model: Any = CensoredDelayModel(gp.eval(), pending, 0.0)
    if "calibrated" in kind:
        calibrator = QuantileRecalibrator([0.1, 0.5, 0.9])
        model = CalibratedModel.from_history(model, calibrator, denoise=False)
    return model


def begin(ledger: FeedbackLedger, kind: str) -> None:
    """A design, which no constraint decided about."""
    if not len(ledger):
        X = torch.tensor([[0.1], [0.3], [0.2], [0.4]], **DOUBLE)
        Y = [[outcome(i, float(x), kind)] for i, x in enumerate(X)]
        came = [context(i, kind) for i in range(len(X))]
        ledger.add(X, Y, contexts=came if "contexts" in kind else None)


def chosen(constraint: ChanceConstraint, ledger: FeedbackLedger) -> Tensor:
    """The greatest new choice that is certified, else the one that may be, ``1 x 1``.

    Of equal points that are out at a time only a ledger knows which one an outcome belongs to.
    """
    choices = CHOICES[(CHOICES != ledger.queries().mT).all(dim=-1)]
    certified = constraint.certified(choices.unsqueeze(-2))
    with torch.no_grad():
        hopes = constraint.optimism(choices.unsqueeze(-2))
    return choices[torch.where(certified, 1e3 + choices[:, 0], hopes).argmax()].unsqueeze(0)


def next_outcome(ledger: FeedbackLedger) -> int | None:
    """The trial whose outcome comes next, if all workers are busy; some never come."""
    out = [t.id for t in ledger if t.status == "pending" and t.id % 11 != 10]
    return random.Random(len(ledger)).choice(out) if len(out) == WORKERS else None


def run(ledger: FeedbackLedger, kind: str, num: int, kill_at: int = -1) -> None:
    """Go on to a number of trials with a constraint made of the ledger's rows at each step."""
    begin(ledger, kind)
    while len(ledger) < num:
        told = next_outcome(ledger)
        if told is not None:
            y = outcome(told, float(ledger[told].x), kind)
            ledger.tell(told, y, context=context(told, kind))
        model = model_of(ledger, kind)
        settings = {"upper": LIMIT, "budget": 14.0, **KINDS[kind]}
        constraint = ChanceConstraint(model, rows=ledger.decisions(), **settings)
        x = chosen(constraint, ledger)
        (row,) = constraint.decide(x)
        if len(ledger) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        ledger.submit(x, decision=row)
        if len(ledger) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def carry_on(ledger: FeedbackLedger, kind: str, num: int) -> ChanceConstraint:
    """The same, by one constraint that lives on through all of it."""
    begin(ledger, kind)
    settings = {"upper": LIMIT, "budget": 14.0, **KINDS[kind]}
    constraint = ChanceConstraint(model_of(ledger, kind), rows=[], **settings)
    while len(ledger) < num:
        told = next_outcome(ledger)
        if told is not None:
            x, came = ledger[told].x, context(told, kind)
            y = torch.tensor([[outcome(told, float(x), kind)]], **DOUBLE)
            joint = torch.cat([x, torch.tensor(came or [], **DOUBLE)])
            constraint.observe(joint.unsqueeze(0), y, condition=False)
            ledger.tell(told, y, context=came)
        constraint = constraint.with_model(model_of(ledger, kind))
        x = chosen(constraint, ledger)
        constraint.decide(x)
        ledger.submit(x)
    return constraint


if __name__ == "__main__":
    torch.set_num_threads(1)
    run(FeedbackLedger.open(sys.argv[1], 1), sys.argv[2], 40, int(sys.argv[3]))
