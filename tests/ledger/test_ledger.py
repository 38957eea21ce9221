"""Views, states and entries of a ledger, in memory and in a file."""

from __future__ import annotations

import copy
import math
import pickle
import random
import struct
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError

from botorch_calib.exceptions import LedgerError, TrialStateError, UnknownTrialError
from botorch_calib.ledger import FeedbackLedger, contents

DOUBLE: dict[str, Any] = {"dtype": torch.double}
CENSOR = -3.0


def point(value: float, dim: int = 2) -> torch.Tensor:
    return torch.full((dim,), float(value), **DOUBLE)


def first_column(X: torch.Tensor) -> list[float]:
    assert X.dtype == torch.double and X.dim() == 2
    return X[:, 0].tolist()


# ---------------------------------------------------------------- the oracle


@dataclass
class Story:
    """The events of a query; None for events that do not happen."""

    x: list[float]
    y: float
    submitted: float
    delay: float | None = None
    abandoned: float | None = None
    failed: float | None = None


def draw_stories(seed: int, clock: str, num: int = 25, plain: bool = False) -> list[Story]:
    """Queries with random delays; ``plain``: none fails or is abandoned."""
    rng = random.Random(seed)
    stories = []
    for i in range(num):
        moment = float(i) if clock == "iterations" else round(rng.uniform(0, 20), 1)
        delay = float(rng.randrange(12)) if clock == "iterations" else round(rng.uniform(0, 9), 1)
        story = Story([rng.random(), rng.random()], rng.gauss(0, 1), moment, delay)
        fate = 1.0 if plain else rng.random()
        if fate < 0.3:
            story.delay = None
        if fate < 0.15:
            story.failed = moment + rng.randrange(8)
        if 0.2 < fate < 0.5:
            story.abandoned = moment + rng.randrange(8)
        stories.append(story)
    return stories


def enter(ledger: FeedbackLedger, stories: list[Story]) -> None:
    """Record all events in a ledger."""
    for i, story in enumerate(stories):
        given = None if ledger.clock == "iterations" else story.submitted
        assert ledger.submit(torch.tensor(story.x, **DOUBLE), time=given) == i
    for i, story in enumerate(stories):
        if story.abandoned is not None:
            ledger.abandon(i, time=story.abandoned)
        if story.failed is not None:
            ledger.fail(i, "lost", time=story.failed)
        elif story.delay is not None:
            ledger.observe(i, story.y, time=story.submitted + story.delay)


def status_of(story: Story, now: float, wait: float, late: str) -> str:
    if story.failed is not None and story.failed <= now:
        return "failed"
    arrival = None if story.delay is None else story.submitted + story.delay
    if arrival is not None and arrival <= now:
        in_time = arrival - story.submitted <= wait
        if story.abandoned is not None and story.abandoned <= arrival:
            in_time = False
        if in_time or late == "use":
            return "observed"
    if now - story.submitted > wait:
        return "expired"
    if story.abandoned is not None and story.abandoned <= now:
        return "expired"
    return "pending"


def end_of(story: Story, now: float, wait: float) -> float:
    """When a trial ended, or ``now``."""
    ends = [now, story.submitted + wait]
    ends += [time for time in (story.failed, story.abandoned) if time is not None]
    if story.delay is not None:
        ends.append(story.submitted + story.delay)
    return min(ends)


def naive_views(stories: list[Story], now: float, ledger: FeedbackLedger) -> dict[str, Any]:
    """Every view as lists, trial by trial."""
    wait = ledger.max_wait
    if ledger.clock == "iterations":
        known = [s for s in stories if s.submitted < now]
    else:
        known = [s for s in stories if s.submitted <= now]
    known.sort(key=lambda s: s.submitted)  # stable: by id where times are equal
    status = {id(s): status_of(s, now, wait, ledger.late) for s in known}

    def of(*wanted: str) -> list[Story]:
        return [s for s in known if status[id(s)] in wanted]

    arrived = sorted(of("observed"), key=lambda s: (s.submitted + (s.delay or 0), stories.index(s)))
    training = (
        of("observed") if ledger.censor_value is None else of("observed", *("pending", "expired"))
    )
    return {
        "to_observations": ([s.x for s in arrived], [[s.y] for s in arrived]),
        "training_data": (
            [s.x for s in training],
            [[s.y if status[id(s)] == "observed" else ledger.censor_value] for s in training],
        ),
        "pending": [s.x for s in of("pending")],
        "incomplete": [s.x for s in of("pending", "expired")],
        "window": [s.x for s in of("observed", "pending", "expired") if now - s.submitted <= wait],
        "queries": [s.x for s in sorted(known, key=stories.index)],
        "statuses": [status[id(s)] for s in sorted(known, key=stories.index)],
        "waits": [
            sum(s.submitted < other.submitted < end_of(s, now, wait) for other in known)
            for s in sorted(known, key=stories.index)
        ],
    }


def as_lists(ledger: FeedbackLedger, now: float | None) -> dict[str, Any]:
    views: dict[str, Any] = {}
    for name in ("to_observations", "training_data"):
        X, Y = getattr(ledger, name)(now)
        assert X.dtype == Y.dtype == torch.double
        assert X.shape == (len(Y), ledger.dim) and Y.shape == (len(X), 1)
        views[name] = (X.tolist(), Y.tolist())
    assert ledger.noise_variances(now).shape == (len(views["to_observations"][0]), 1)
    for name in ("pending", "incomplete", "window", "queries"):
        X = getattr(ledger, name)(now)
        assert X.shape == (len(X), ledger.dim) and X.dtype == torch.double
        views[name] = X.tolist()
    statuses = ledger.statuses(now)
    assert statuses == [trial.status for trial in ledger.trials_at(now)]
    views["statuses"] = list(map(str, statuses))
    views["waits"] = ledger.waits(now)
    return views


@pytest.mark.parametrize("clock", ["iterations", "seconds"])
@pytest.mark.parametrize("late", ["use", "discard"])
@pytest.mark.parametrize("max_wait", [0, 4, math.inf])
def test_views_agree_with_a_naive_reading(make, clock, late, max_wait) -> None:
    met = set()
    for seed, censor_value in enumerate((CENSOR, None)):
        ledger = make(clock=clock, late=late, max_wait=max_wait, censor_value=censor_value)
        stories = draw_stories(seed, clock)
        enter(ledger, stories)
        # Whole iterations and between them, before the first event and long after the last.
        for now in [-1.0, *(1.5 * i + 0.5 * seed for i in range(22)), math.inf]:
            views = as_lists(ledger, now)
            assert views == naive_views(stories, now, ledger), f"at {now}"
            met.update(views["statuses"])
    if max_wait:
        assert met == {"pending", "observed", "expired", "failed"}


@pytest.mark.parametrize("max_wait", [0, 3, math.inf])
def test_training_data_are_equation_1(max_wait) -> None:
    """``y~_s = y_s 1{d_s <= min(m, t - s)}`` for the choice of query ``t``, ``s = 0..t-1``."""
    ledger = FeedbackLedger(2, max_wait=max_wait, late="discard", censor_value=0.0)
    stories = draw_stories(0, "iterations", plain=True)
    enter(ledger, stories)
    for t in range(len(stories) + 1):
        y = [stories[s].y * (stories[s].delay <= min(max_wait, t - s)) for s in range(t)]
        X, Y = ledger.training_data(t)
        assert X.tolist() == [stories[s].x for s in range(t)] and Y.squeeze(-1).tolist() == y
        start = 0 if max_wait == math.inf else max(0, t - max_wait)
        assert ledger.window(t).tolist() == [stories[s].x for s in range(start, t)]


@pytest.mark.parametrize("late", ["use", "discard"])
def test_what_comes_later_does_not_change_what_was_seen(make, late) -> None:
    """Views of an earlier time equal the views at that time."""
    ledger = make(max_wait=4, late=late, censor_value=CENSOR)
    stories = draw_stories(5, "iterations")
    seen = []
    for t, story in enumerate(stories):
        for s, earlier in enumerate(stories[:t]):  # in order of time, as in a real run
            if earlier.abandoned == t:
                ledger.abandon(s)
            if earlier.failed == t:
                ledger.fail(s, "lost")
            # A value that arrives without delay is available at the next choice at the earliest.
            elif earlier.delay is not None and max(s + earlier.delay, s + 1) == t:
                with warnings.catch_warnings(record=True) as told:
                    warnings.simplefilter("always")
                    ledger.observe(s, earlier.y)
                assert len(told) == (ledger[s].status == "expired")
        seen.append((as_lists(ledger, None), ledger.to_records(), ledger.best()))
        assert ledger.now() == t
        ledger.submit(story.x)
    for t, (views, records, best) in enumerate(seen):
        assert as_lists(ledger, t) == views
        assert ledger.to_records(t) == records
        assert ledger.best(now=t) == best


# ---------------------------------------------------------------- by hand


def test_times_in_the_future(make) -> None:
    """No value is lost if the clock is set back, or if a time in the future is given."""
    ledger = make(clock="seconds")
    ledger.submit(point(1), time=time.time() + 3600)
    ledger.observe(0, 2.0)
    (trial,) = ledger.trials
    assert trial.observed_at == trial.submitted_at
    assert ledger.to_observations()[1].tolist() == [[2.0]]
    ledger.submit(point(0))
    ledger.observe(1, 1.0, time=time.time() + 7200.0)
    assert ledger[1].status == "pending" and ledger.trials_at(math.inf)[1].y == 1.0


def test_a_clock_that_was_set_back_hides_no_value(make, monkeypatch) -> None:
    """The ledger's clock stops until the system's clock has caught up."""
    now = 5000.0
    monkeypatch.setattr(contents, "time", SimpleNamespace(time=lambda: now))
    ledger = make(clock="seconds", max_wait=100)
    for _ in range(3):
        ledger.submit(point(0))
    ledger.observe(0, 1.0)
    now = 1000.0
    for known in (ledger, ledger.snapshot(), pickle.loads(pickle.dumps(ledger.snapshot()))):
        assert [trial.status for trial in known.trials] == ["observed", "pending", "pending"]
        assert known.now() == 5000.0 and known.best() is not None
    ledger.observe(1, 2.0)
    ledger.submit(point(1))
    assert ledger[1].observed_at == ledger[3].submitted_at == 5000.0
    assert ledger.to_observations()[1].tolist() == [[1.0], [2.0]]
    now = 5050.0
    ledger.fail(2)
    assert ledger[2].status == "failed" and ledger.now() == 5050.0
    now = 5101.0
    assert ledger[3].status == "expired"
    if ledger.path is not None:
        now = 1000.0
        assert len(FeedbackLedger.read(ledger.path).to_observations()[0]) == 2


def test_default_for_late_values_is_the_rule_of_the_paper() -> None:
    """``y 1{d <= min(m, t - s)}``: values that arrive after ``m`` remain censored."""
    assert FeedbackLedger(1, max_wait=2).late == "discard" and FeedbackLedger(1).late == "use"


@pytest.mark.parametrize("late", ["use", "discard"])
def test_late_values(late) -> None:
    ledger = FeedbackLedger(2, max_wait=1, late=late, censor_value=CENSOR)
    for i in range(4):
        ledger.submit(point(i))
    used = late == "use"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ledger.observe(0, 7.0)
        ledger.abandon(3)
        ledger.tell(3, 8.0)  # at the same time, but after the trial was abandoned
    assert [warning.filename for warning in told] == ([] if used else [__file__] * 2)
    assert all("is recorded, but not used" in str(warning.message) for warning in told)
    assert ledger[0].status == ledger[3].status == ("observed" if used else "expired")
    assert (ledger[0].y, ledger[0].observed_at) == (7.0, 4.0)
    values = [7.0, CENSOR, CENSOR, 8.0] if used else [CENSOR] * 4
    assert ledger.training_data()[1].squeeze(-1).tolist() == values
    assert (ledger.best() is not None) == used
    with pytest.raises(TrialStateError, match="Trial 0 has a value already"):
        ledger.observe(0, 7.0)


def test_reasons_are_kept(make) -> None:
    ledger = make()
    for reason in ("", "a\nb\0c", "\udc80 and \ud800", "x" * 100_000, "no \N{SNOWMAN} power"):
        trial = ledger.submit(point(0))
        ledger.fail(trial, reason)
        assert ledger[trial].note == reason.encode("utf-8", "backslashreplace").decode()


def test_best(make) -> None:
    ledger = make(clock="seconds")
    assert ledger.best() is None
    for i in range(5):
        ledger.submit(point(i), time=0.0)
    assert ledger.best() is None
    for trial_id, y, moment in [(0, 1.0, 9.0), (1, 4.0, 3.0), (2, -2.0, 2.0), (3, 4.0, 1.0)]:
        ledger.observe(trial_id, y, time=moment)
    assert ledger.best() == ledger[3]  # as good as trial 1, but sooner
    assert ledger.best(maximize=False) == ledger[2]
    assert ledger.best(maximize=False, now=1.5) == ledger[3]
    assert ledger.best(now=0.5) is None


# ---------------------------------------------------------------- exactness


AWKWARD = [-0.0, 5e-324, -1.7976931348623157e308, 0.1, 1 / 3, 2.0**53 + 2, 1e-300, -7.0]


def test_numbers_come_back_to_the_bit(make) -> None:
    ledger = make(dim=len(AWKWARD), clock="seconds")
    x = np.array(AWKWARD)
    for i, y in enumerate(AWKWARD):
        ledger.submit(torch.from_numpy(x), time=1 / 3)
        ledger.observe(i, y, time=1e300)
    X, Y = ledger.to_observations(math.inf)
    assert Y.numpy().tobytes() == x.tobytes()
    for i, trial in enumerate(ledger.trials_at(math.inf)):
        assert X[i].numpy().tobytes() == trial.x.numpy().tobytes() == x.tobytes()
        assert (trial.submitted_at, trial.observed_at) == (1 / 3, 1e300)
        assert struct.pack("d", trial.y) == struct.pack("d", AWKWARD[i])


def test_a_ledger_without_trials_is_true(make) -> None:
    """Otherwise ``ledger or FeedbackLedger(2)`` would replace an empty ledger."""
    ledger = make()
    assert len(ledger) == 0 and (ledger or FeedbackLedger(2)) is ledger


def test_queries_of_all_kinds() -> None:
    strided = torch.tensor([[0.1, 0.2], [0.3, 0.4]], **DOUBLE)[:, 1]
    read_only = np.array([0.1, 0.2])
    read_only.flags.writeable = False
    ledger = FeedbackLedger(2)
    for x in (
        torch.tensor([0.1, 0.2], dtype=torch.float32),
        torch.tensor([0.1, 0.2], dtype=torch.bfloat16, requires_grad=True),
        torch.tensor([[1, 2]]),
        strided,
        read_only,
        np.array([[3, 4]]),
        [1, 2.5],
        (True, False),
    ):
        stored = ledger[ledger.submit(x)].x
        assert stored.dtype == torch.double and stored.shape == (2,) and not stored.requires_grad
        expected = torch.tensor(x) if x is read_only else torch.as_tensor(x)
        assert stored.tolist() == expected.detach().double().reshape(-1).tolist()


def test_a_query_is_copied(make) -> None:
    ledger, x = make(), point(1)
    ledger.submit(x)
    x.zero_()
    for X in (ledger.pending(), ledger[0].x, ledger.trials[0].x, ledger.window()):
        X.zero_()
    assert ledger[0].x.tolist() == [1.0, 1.0]


def test_values_of_all_kinds() -> None:
    ledger = FeedbackLedger(2)
    one = torch.tensor([1.0], requires_grad=True)
    for y in (1, Fraction(1), np.float32(1), np.array([[1.0]]), one):
        trial = ledger.submit(point(0))
        ledger.observe(trial, y)
        assert type(ledger[trial].y) is float and ledger[trial].y == 1.0


# ---------------------------------------------------------------- misuse


@pytest.fixture
def used(make):
    """A ledger with a pending, an observed, a failed and an abandoned trial."""
    ledger = make(max_wait=50, censor_value=CENSOR)
    for i in range(4):
        ledger.submit(point(i), time=10.0)
    ledger.observe(1, 1.0, time=11.0)
    ledger.fail(2, "lost", time=11.0)
    ledger.abandon(3, time=11.0)
    return ledger


NAN, INF = math.nan, math.inf
MISUSE = {
    "second observation": (lambda b: b.observe(1, 2.0), TrialStateError, "already: `amend`"),
    "value of a failure": (lambda b: b.observe(2, 2.0), TrialStateError, "Trial 2 has failed"),
    "negative variance": (lambda b: b.tell(0, 1.0, -1e-9), InputDataError, "`yvar` must be"),
    "amending nothing": (lambda b: b.amend(0, 1.0), TrialStateError, "Trial 0 .* has none yet"),
    "amending a failure": (lambda b: b.amend(2, 1.0), TrialStateError, "Trial 2 .* has failed"),
    "amending the past": (lambda b: b.amend(1, 1.0, time=2.0), InputDataError, "last value"),
    "adding too few": (lambda b: b.add([[1, 2]], [1, 2]), BotorchTensorDimensionError, "`Y`"),
    "adding bad noise": (lambda b: b.add([[1, 2]], [1], [-1]), InputDataError, "`Yvar`"),
    "failure of an observed trial": (lambda b: b.fail(1), TrialStateError, "Trial 1 has a value"),
    "abandoning a value": (lambda b: b.abandon(1), TrialStateError, "Trial 1 has a value"),
    "abandoning twice": (lambda b: b.abandon(3), TrialStateError, "Trial 3 has been abandoned"),
    "unknown id": (lambda b: b.observe(4, 1.0), UnknownTrialError, "no trial 4"),
    "huge id": (lambda b: b.fail(10**30), UnknownTrialError, "no trial 1000"),
    "id of a wrong type": (lambda b: b.abandon("0"), UnknownTrialError, "integer, got '0'"),
    "NaN value": (lambda b: b.observe(0, NAN), InputDataError, "`y`"),
    "text as value": (lambda b: b.observe(0, "1.0"), InputDataError, "`y`"),
    "boolean": (lambda b: b.observe(0, True), InputDataError, "`y`"),
    "before submission": (lambda b: b.observe(0, 1.0, time=9.0), InputDataError, "`time` 9.0"),
    "infinite time": (lambda b: b.submit(point(1), time=INF), InputDataError, "`time`"),
    "NaN now": (lambda b: b.pending(NAN), InputDataError, "`now`"),
    "NaN query": (lambda b: b.submit(point(NAN)), InputDataError, "`x`"),
    "complex tensor": (lambda b: b.submit(torch.ones(2) * 1j), InputDataError, "`x`"),
    "text as query": (lambda b: b.submit(["0", "1"]), InputDataError, "`x`"),
    "wide query": (lambda b: b.submit(point(0, 3)), BotorchTensorDimensionError, "`x`.*shape 2 or"),
}


@pytest.mark.parametrize(("misuse", "error", "message"), MISUSE.values(), ids=MISUSE)
def test_misuse_is_refused_and_changes_nothing(used, misuse, error, message) -> None:
    before = used.to_records(math.inf)
    with pytest.raises(error, match=message):
        misuse(used)
    assert used.to_records(math.inf) == before
    assert used.submit(point(9)) == 4  # and the ledger can be used further


INVALID: dict[str, list[Any]] = {
    "dim": [0, 1.5, True, None],
    "censor_value": [NAN, INF, "0"],
    "max_wait": [-1, NAN, None],
    "late": ["ignore"],
    "clock": ["hours"],
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_settings(name) -> None:
    for value in INVALID[name]:
        with pytest.raises(InputDataError, match=f"`{name}`"):
            FeedbackLedger(**{"dim": 2, name: value})


# ---------------------------------------------------------------- sharing


def test_copies_stand_still(make) -> None:
    ledger = make(max_wait=3, late="discard", censor_value=CENSOR)
    enter(ledger, draw_stories(2, "iterations"))
    if ledger.path is not None:
        for duplicate in (pickle.dumps, copy.deepcopy):
            with pytest.raises(LedgerError, match=r"use `ledger.snapshot\(\)`"):
                duplicate(ledger)
    snapshot, before = ledger.snapshot(), ledger.to_records(math.inf)
    assert snapshot.path is None
    copies = [snapshot, pickle.loads(pickle.dumps(snapshot)), copy.deepcopy(snapshot)]
    ledger.submit(point(0))
    ledger.fail(next(trial.id for trial in ledger.trials_at(math.inf) if trial.y is None))
    for other in copies:
        assert repr(other) == repr(snapshot) and other.late == "discard"
        assert other.to_records(math.inf) == before != ledger.to_records(math.inf)
        other.submit(point(1))
    assert first_column(ledger.pending())[-1] == 0.0


def test_trials_compare_by_value_and_hold_their_own_query_only() -> None:
    ledger, other = FeedbackLedger(100), FeedbackLedger(100)
    for i in range(20):
        ledger.submit(point(i, 100))
        other.submit(point(-i, 100))
    trial, same = ledger[3], ledger.trials[3]
    assert trial == same and hash(trial) == hash(same) and trial not in ("trial", other[3])
    for each in (trial, same):
        data = pickle.dumps(each)
        assert pickle.loads(data) == trial and len(data) < 2 * 100 * 8
    ledger.observe(3, 1.0)
    assert ledger[3] != trial
    with pytest.raises(AttributeError):
        trial.y = 1.0  # type: ignore[misc]


@pytest.mark.parametrize("late", ["use", "discard"])
def test_one_trial_is_recorded_and_read_without_a_look_at_all_trials(late) -> None:
    """Otherwise the time of a campaign would be quadratic in its number of trials."""
    ledger = FeedbackLedger(1, max_wait=5.0, late=late, propose=lambda ledger: [0.5])
    ledger.submit([0.1])
    ledger.tell(ledger.ask().id, 1.0)
    assert ledger[0].status == "pending" and ledger[1].status == "observed"
    assert "columns" not in vars(ledger._storage.contents)


def test_threads(make) -> None:
    ledger = make(dim=1)

    def write(thread: int) -> None:
        for i in range(40):
            value = 1000.0 * thread + i
            trial_id = ledger.submit([value])
            ledger.observe(trial_id, -value)
            X, Y = ledger.to_observations()
            assert torch.equal(X, -Y) and len(ledger.trials) > i

    with ThreadPoolExecutor(4) as pool:
        [*pool.map(write, range(4))]
    expected = sorted(1000.0 * thread + i for thread in range(4) for i in range(40))
    assert sorted(first_column(ledger.to_observations()[0])) == expected
