"""Queries that far more later queries have overtaken than any before count as failed."""

import math
import random

import pytest
import torch
from torch import Tensor

from botorch_calib.asynchronous import DelayAwareProposer, DelayStrategy, SearchSettings
from botorch_calib.asynchronous import proposer as proposer_module
from botorch_calib.asynchronous.failed_queries import hanging, hanging_places, with_hanging_failed
from botorch_calib.ledger import FeedbackLedger, TrialStatus
from tests.gps import DOUBLE

CLOCKS = ("iterations", "seconds")


def submitted(count: int, clock: str = "iterations") -> FeedbackLedger:
    """A ledger of ``count`` queries, one per second on a clock of seconds."""
    ledger = FeedbackLedger(1, clock=clock)
    for i in range(count):
        submit(ledger, i, 0)
    return ledger


def submit(ledger: FeedbackLedger, x: float, now: float) -> int:
    return ledger.submit([x], time=now if ledger.clock == "seconds" else None)


def observe(ledger: FeedbackLedger, trial: int, now: float) -> None:
    ledger.observe(trial, 0.0, time=now if ledger.clock == "seconds" else None)


def late(ledger: FeedbackLedger) -> list[int]:
    return hanging(ledger, ledger.now())


def one_hangs(X: Tensor, clock: str = "iterations") -> FeedbackLedger:
    """Trial 0 is pending, beside which the others are evaluated, one after the other."""
    ledger = FeedbackLedger(X.shape[-1], clock=clock)
    for i, x in enumerate(X):
        ledger.submit(x, time=float(i) if clock == "seconds" else None)
        if i:
            ledger.observe(i, float(x.sum()), time=i + 0.5 if clock == "seconds" else None)
    return ledger


def pair_by_pair(starts: list[float], ends: list[float]) -> list[int]:
    """The rule in two loops over places, with the widths at all later times."""
    places = range(len(starts))

    def overtaken(i: int) -> int:
        return sum(starts[j] >= starts[i] and ends[j] <= min(ends[i], 1e9) for j in places[i + 1 :])

    def at_once(moment: float) -> int:
        return sum(s <= moment for s in starts) - sum(e <= moment for e in ends)

    most = max((overtaken(i) for i in places if ends[i] < math.inf), default=0)
    pending = [i for i in places if ends[i] == math.inf]
    return [
        i for i in pending if overtaken(i) > max(at_once(starts[j]) for j in places[i:]) + 4 * most
    ]


@pytest.mark.parametrize(("clock", "last_first"), [("iterations", True), ("seconds", False)])
def test_the_values_of_batches_come_in_any_order(clock, last_first):
    """Four batches of twenty, also with the values of a batch in part."""
    ledger = FeedbackLedger(1, clock=clock)
    for start in range(0, 80, 20):
        for _ in range(20):
            submit(ledger, 0.0, start)
        batch = range(start, start + 20)
        for count, trial in enumerate(reversed(batch) if last_first else batch):
            observe(ledger, trial, start + 1 + count / 100)
            assert late(ledger) == []


@pytest.mark.parametrize("clock", CLOCKS)
def test_one_that_hangs_while_others_go_on(clock):
    """Two workers: the other one may finish two queries, and the third makes it hanging."""
    ledger = submitted(2, clock)
    for done in range(1, 4):
        assert late(ledger) == []
        observe(ledger, done, done + 0.5)
        submit(ledger, 0.0, done + 0.5)
    assert late(ledger) == [0]
    observe(ledger, 0, 4.5)
    assert late(ledger) == []
    # Three have overtaken it by now, so for the next one fourteen are not too many.
    for done in range(5, 19):
        submit(ledger, 0.0, done)
        observe(ledger, done, done + 0.5)
        assert late(ledger) == []
    submit(ledger, 0.0, 19)
    observe(ledger, 19, 19.5)
    assert late(ledger) == [4]


@pytest.mark.parametrize("workers", [2, 4, 20])
@pytest.mark.parametrize("deviation", [0.5, 1.0])
def test_a_slow_trial_seldom_hangs(deviation: float, workers: int) -> None:
    """In 30 runs of 60 trials of log-normal lengths, at the time of any submission."""
    found = 0
    for seed in range(30):
        source, now = random.Random(seed), 0.0
        starts: list[float] = []
        ends: list[float] = []
        wrong: set[int] = set()
        for count in range(60):
            if count >= workers:
                now = sorted(ends)[count - workers]
            wrong |= {*hanging_places(starts, [end if end <= now else math.inf for end in ends])}
            starts.append(now)
            ends.append(now + source.lognormvariate(0.0, deviation))
        found += len(wrong)
    assert found <= 10


def test_imported_values_overtake_nothing():
    assert late(FeedbackLedger(1)) == []
    ledger = submitted(4)
    ledger.add(torch.zeros(9, 1), torch.zeros(9))
    assert late(ledger) == []


@pytest.mark.parametrize("set_back", [False, True])
def test_trials_of_all_lengths(set_back):
    """Also with a value that arrived before its query was submitted."""
    random.seed(0)
    found = passed = 0
    for _ in range(400):
        starts, ends = [], []
        for i in range(random.randrange(60)):
            starts.append(float(i // random.choice([1, 2])))
            length = random.choice([0.0, 1.0, 3.0, random.expovariate(1.0)])
            if set_back and random.random() < 0.05:
                length = -3.0
            ends.append(math.inf if random.random() < 0.05 else starts[-1] + length)
        expected = pair_by_pair(starts, ends)
        assert hanging_places(starts, ends) == expected
        found, passed = found + bool(expected), passed + (not expected)
    assert found > 50 and passed > 50


def test_the_ledger_itself_is_left_alone():
    ledger = one_hangs(torch.zeros(3, 1, **DOUBLE))
    assert with_hanging_failed(ledger, ledger.now()) is ledger
    ledger = one_hangs(torch.zeros(4, 1, **DOUBLE))
    changed = with_hanging_failed(ledger, ledger.now())
    assert [trial.status for trial in changed] == ["failed", *3 * ["observed"]]
    assert [trial.status for trial in ledger] == ["pending", *3 * ["observed"]]


def test_a_value_recorded_ahead_of_its_time_will_come():
    ledger = one_hangs(torch.zeros(4, 1, **DOUBLE), "seconds")
    ledger.observe(0, 1.0, time=100.0)
    assert hanging(ledger, 20.0) == [0]
    assert with_hanging_failed(ledger, 20.0).trials_at(20.0)[0].status is TrialStatus.PENDING


@pytest.mark.parametrize("failures", ["avoid", "impute", "ignore"])
def test_proposals_without_and_with_it(failures, monkeypatch):
    """With ``"ignore"`` it makes no difference, as no failure does."""
    X = torch.rand(9, 2, generator=torch.Generator().manual_seed(0), **DOUBLE)
    X[0] = 0.9
    ledger = one_hangs(X)
    assert late(ledger) == [0]
    propose = DelayAwareProposer(
        [[0, 0], [1, 1]], DelayStrategy(failures=failures), search=SearchSettings(2, 32)
    )
    proposed = propose(ledger)
    monkeypatch.setattr(proposer_module, "with_hanging_failed", lambda ledger, now: ledger)
    assert torch.equal(propose(ledger), proposed) == (failures == "ignore")
