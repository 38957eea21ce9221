"""Decisions whose outcomes are known only to be beyond a bound: rows, the account, the models."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_calib import CalibratedModel, ChanceConstraint, FeedbackLedger, LocalizedConformal
from botorch_calib.decisions.rows import decision_of
from botorch_calib.models import stand_ins
from tests.gps import make_gp

WIDE: dict[str, Any] = {"upper": 100.0}


def points(num: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(num, 2, dtype=torch.double, generator=generator)


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.double).unsqueeze(-1)


def row(y: float | None, side: int, limits: list[Any], quantiles: list[Any]) -> dict[str, Any]:
    about = {"limits": {"y": limits}, "quantiles": {"y": quantiles}, "outcomes": {"y": y}}
    return {"point": [0.0], "level": 0.9, "certified": True, **about, "beyond": {"y": side}}


def test_a_bound_says_what_is_so_of_all_that_it_leaves_open() -> None:
    """And nothing else: of a limit, and of the quantile that decided."""
    rng, counts = random.Random(0), {True: 0, False: 0, None: 0}
    for _ in range(500):
        low, high = sorted(rng.sample(range(6), 2))
        ends: list[Any] = rng.choice([[None, high], [low, None], [low, high]])
        quantiles = [None if end is None else end + rng.choice([-0.25, 0.0, 0.25]) for end in ends]
        side, bound = rng.choice([1, -1]), float(rng.randrange(6))
        truths = [bound + side * (0.125 + 0.25 * i) for i in range(40)]
        facts = [decision_of(row(y, 0, ends, quantiles)) for y in truths]
        told = decision_of(row(bound, side, ends, quantiles))
        for claim, known in zip(told[1:], list(zip(*facts, strict=True))[1:], strict=True):
            assert claim == (known[0] if len({*known}) == 1 else None)
            counts[claim] += 1
    assert min(counts.values()) > 100


def test_a_bound_counts_by_the_limit() -> None:
    """Beyond it as a violation, within it as one that there may be, for good."""
    tested, X = ChanceConstraint(make_gp(), **WIDE), points(4)
    tested.decide(X)
    Y, beyond = column(100.0, 50.0, 50.0), column(1.0, 1.0, -1.0)
    tested.observe(X[:3], Y, condition=False, beyond=beyond)
    assert tested.account[:3] == (4, 1, 2) and tested.num_observed == 3
    sides: list[Any] = [{"y": 1}, {"y": 1}, {"y": -1}, None]
    assert [each.get("beyond") for each in tested.decisions] == sides
    assert tested.budget_left == pytest.approx(10 - 3 + 0.4)
    rows = json.loads(json.dumps(tested.decisions))
    rebuilt = ChanceConstraint(make_gp(), rows=rows, **WIDE)
    assert rebuilt.decisions == tested.decisions and rebuilt.account == tested.account
    assert torch.equal(rebuilt.margin(X.unsqueeze(1)), tested.margin(X.unsqueeze(1)))
    # What becomes known later is entered into its row.
    rows[1]["outcomes"] = {"y": 60.0}
    del rows[1]["beyond"]
    assert ChanceConstraint(make_gp(), rows=rows, **WIDE).account[:3] == (4, 1, 1)


def test_models_learn_from_stand_ins() -> None:
    """Each from those of its own outcome."""
    X, Y = points(3), torch.tensor([[0.5, 0.1], [0.2, math.nan], [-0.3, 0.4]], dtype=torch.double)
    beyond = torch.tensor([[1, 0], [0, 0], [0, -1]])
    calibrated = CalibratedModel(make_gp(num=9), LocalizedConformal(0.2), denoise=False)
    other = CalibratedModel(make_gp(num=9), LocalizedConformal(0.2))
    limits = {"a": (None, 100.0), "b": (-100.0, None)}
    tested = ChanceConstraint({"a": make_gp(), "b": calibrated}, limits=limits)
    tested.observe(X, Y, beyond=beyond)
    expected = stand_ins(make_gp(), X, Y[:, :1], beyond[:, :1])
    assert torch.equal(tested.models["a"].train_targets[-3:], expected.flatten())
    other.observe(X[::2], Y[::2, 1:], beyond=beyond[::2, 1:])
    assert torch.equal(calibrated.model.train_targets, other.model.train_targets)
    buffers = zip(calibrated.calibrator.buffers(), other.calibrator.buffers(), strict=True)
    assert all(torch.equal(*pair) for pair in buffers)
    assert [each.get("beyond") for each in tested.decisions] == [{"a": 1}, None, {"b": -1}]


def test_bad_arguments_and_rows_are_named() -> None:
    both = ChanceConstraint({"a": make_gp(), "b": make_gp()}, limits={k: (None, 9.0) for k in "ab"})
    tested, X = ChanceConstraint(make_gp(), **WIDE), points(2)
    wrong: Any
    part = torch.tensor([[1.0, math.nan]], dtype=torch.double)
    with pytest.raises(InputDataError, match="`beyond` must be 0 if `Y` is NaN"):
        both.observe(X[:1], part, beyond=torch.ones(1, 2))
    assert not tested.decisions and not both.decisions
    tested.observe(X, column(1.0, 2.0), condition=False, beyond=column(1.0, 0.0))
    first, second = tested.decisions
    out = {"outcomes": {"y": None}, "beyond": {"y": 1}}
    for wrong in ({"y": 2}, {"z": 1}, {"y": "1"}, [1], None):
        changed = out if wrong is None else {"beyond": wrong}
        with pytest.raises(InputDataError, match=r"`rows\[1\]\['beyond'\]` must be 1 or -1 for"):
            ChanceConstraint(make_gp(), rows=[first, second | changed], **WIDE)


def test_a_ledger_is_told_bounds(tmp_path: Any) -> None:
    """With a value, or of a query that failed; by the names of the decision."""
    tested, X = ChanceConstraint(make_gp(), **WIDE), points(3)
    above: Any = np.int64(1)
    with FeedbackLedger.open(tmp_path / "ledger.db", dim=2) as ledger:
        ids = [ledger.submit(x, time=0.0, decision=tested.decide(x[None])[0]) for x in X]
        ledger.tell(ids[0], 1.0, time=1.0, outcomes={"y": 50.0}, beyond={"y": above})
        ledger.fail(ids[1], "out of memory", time=2.0, outcomes={"y": 100.0}, beyond={"y": 1})
        wrong: Any
        for wrong, match in (
            ({"y": 0}, "to 1 or -1"),
            ({"z": 1}, "names in `outcomes`"),
            ([1], "by name"),
        ):
            with pytest.raises(InputDataError, match=f"`beyond` must .*{match}"):
                ledger.fail(ids[2], outcomes={"y": 50.0}, beyond=wrong)
    ledger = FeedbackLedger.read(tmp_path / "ledger.db")
    tested.observe(X[:2], column(50.0, 100.0), condition=False, beyond=column(1.0, 1.0))
    assert ledger.decisions(3.0) == tested.decisions
    assert [each["outcomes"]["y"] for each in ledger.decisions(1.5)] == [50.0, None, None]
    ledger.amend(ids[0], 1.0, time=4.0, outcomes={"y": 60.0})
    assert [each.get("beyond") for each in ledger.decisions(5.0)] == [None, {"y": 1}, None]
    assert ledger.decisions(3.0) == tested.decisions
