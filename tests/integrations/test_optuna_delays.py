"""Delay-aware proposals in Optuna: trials of any state, threads, storages, heartbeats."""

from __future__ import annotations

import math
import pickle
import threading
import time
from datetime import datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("optuna_integration")

import optuna
import torch
from botorch.exceptions.errors import BotorchError
from botorch.exceptions.warnings import InputDataWarning
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from optuna.distributions import BaseDistribution, FloatDistribution
from torch import Tensor

from botorch_calib import (
    CalibratedModel,
    LocalizedConformal,
    qLogCalibratedNoisyExpectedHypervolumeImprovement,
)
from botorch_calib.asynchronous import DelayAwareProposer, DelayStrategy
from botorch_calib.asynchronous.failed_queries import hanging
from botorch_calib.integrations import optuna_delays
from botorch_calib.integrations.optuna import improvement
from botorch_calib.integrations.optuna_delays import DelayAwareSampler
from botorch_calib.ledger import FeedbackLedger, TrialStatus
from botorch_calib.models import PartlyKnownNoiseGP
from tests.integrations.test_optuna import NewStorage, mixed, new_storage, quiet, unfitted
from tests.long_grids import mostly_slow

__all__ = ["new_storage", "quiet"]  # fixtures

NUM_INITIAL = 4

pytestmark = pytest.mark.filterwarnings("ignore:Optimization failed:RuntimeWarning")


def new_sampler(strategy: Any = "ucb", **options: Any) -> DelayAwareSampler:
    """With a short search and a Gaussian process that is not fitted."""
    settings: dict[str, Any] = {
        "fit": unfitted,
        "num_restarts": 2,
        "raw_samples": 16,
        "n_startup_trials": NUM_INITIAL,
        "seed": 0,
        **options,
    }
    return DelayAwareSampler(strategy, **settings)


@pytest.fixture
def ledgers(monkeypatch: pytest.MonkeyPatch) -> list[FeedbackLedger]:
    """The ledgers that the proposer was given, in order."""
    found: list[FeedbackLedger] = []

    class Watched(DelayAwareProposer):
        def __call__(self, ledger: FeedbackLedger) -> Tensor:
            found.append(ledger)
            return super().__call__(ledger)

    monkeypatch.setattr(DelayAwareSampler, "_proposer_class", Watched)
    return found


def line(trial: Any) -> float:
    """Its maximum, 0, is at 30."""
    x = trial.suggest_float("x", 0.0, 100.0)
    return -((x - 30.0) ** 2) / 100.0


def statuses(ledger: FeedbackLedger) -> list[str]:
    return [trial.status.value for trial in ledger.trials]


def test_states_of_trials(ledgers: list[FeedbackLedger]) -> None:
    """Of each kind some, in the unit cube, and signs as for a maximum."""
    study = optuna.create_study(direction="minimize", sampler=new_sampler(censor_value=90.0))
    states = {
        10.0: optuna.trial.TrialState.COMPLETE,
        50.0: optuna.trial.TrialState.FAIL,
        20.0: optuna.trial.TrialState.COMPLETE,
        60.0: optuna.trial.TrialState.PRUNED,
        40.0: optuna.trial.TrialState.COMPLETE,
        70.0: optuna.trial.TrialState.RUNNING,
    }
    for x, state in states.items():
        study.enqueue_trial({"x": x})
        trial = study.ask()
        value = -line(trial)
        if state is optuna.trial.TrialState.COMPLETE:
            study.tell(trial, value)
        elif state is not optuna.trial.TrialState.RUNNING:
            study.tell(trial, state=state)
    x = study.ask().suggest_float("x", 0.0, 100.0)
    assert 0.0 <= x <= 100.0
    (ledger,) = ledgers
    assert ledger.censor_value == -90.0
    told = {round(100 * t.x.item()): (t.status, t.y) for t in ledger.trials}
    assert told == {
        10: (TrialStatus.OBSERVED, -4.0),
        20: (TrialStatus.OBSERVED, -1.0),
        40: (TrialStatus.OBSERVED, -1.0),
        50: (TrialStatus.FAILED, None),
        60: (TrialStatus.EXPIRED, None),
        70: (TrialStatus.PENDING, None),
    }


def test_failures_cost_no_more_as_the_study_goes_on(ledgers: list[FeedbackLedger]) -> None:
    """In a sequential study no trial delays the others, not even one without a value."""
    study = optuna.create_study(direction="maximize", sampler=new_sampler(n_startup_trials=0))
    one_after_the_other(study, 2)
    for outcome in (
        {"state": optuna.trial.TrialState.FAIL},
        {"state": optuna.trial.TrialState.PRUNED},
        {"values": -math.inf},
    ):
        trial = study.ask()
        line(trial)
        study.tell(trial, **outcome)
    one_after_the_other(study, 3)
    assert statuses(ledgers[-1]).count("failed") == 2
    assert ledgers[-1].waits() == [0] * len(ledgers[-1])


@pytest.mark.parametrize(
    ("strategy", "calibrated"),
    mostly_slow([("ts", True), ("hallucinate", False)], [("hallucinate", False)]),
)
def test_many_threads_that_finish_out_of_order(strategy: str, calibrated: bool) -> None:
    """Some fail; nothing that runs is asked again, and the study gets near the optimum.

    What runs is told by the objective, as Optuna's times do not tell: a trial begins before its
    point is chosen, and another one may end in between.
    """
    lock, count = threading.Lock(), [0]
    running: list[float] = []
    asked_again: list[float] = []

    def objective(trial: Any) -> float:
        value = line(trial)
        x = trial.params["x"]
        with lock:
            count[0] += 1
            number = count[0]
            if x in running:
                asked_again.append(x)
            running.append(x)
        time.sleep(0.05 * (1 + number % 3))  # long enough for others to be chosen
        with lock:
            running.remove(x)
        if x > 80.0:
            raise ValueError("too far")
        return value

    sampler = new_sampler(strategy, calibrator=LocalizedConformal(0.2) if calibrated else None)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(objective, n_trials=16, n_jobs=4, catch=(ValueError,))
    assert asked_again == []
    assert len(study.trials) == 16
    assert study.best_value > -1.0


def test_points_that_the_study_has_not_got_yet_are_pending(ledgers: list[FeedbackLedger]) -> None:
    """Optuna stores a parameter when the objective asks for it, later than all are chosen."""
    study = optuna.create_study(direction="maximize", sampler=new_sampler())
    study.optimize(line, n_trials=NUM_INITIAL)
    trials = [study.ask() for _ in range(3)]
    chosen = [trial.relative_params["x"] / 100.0 for trial in trials]
    pending = [trial.x.item() for trial in ledgers[-1] if trial.status is TrialStatus.PENDING]
    assert pending == pytest.approx(chosen[:2])


def test_mixed_study_that_is_saved_and_loaded(new_storage: NewStorage) -> None:
    study = optuna.create_study(study_name="mixed", storage=new_storage(), sampler=new_sampler())
    study.optimize(mixed, n_trials=NUM_INITIAL + 2)
    sampler = pickle.loads(pickle.dumps(study.sampler))
    loaded = optuna.load_study(study_name="mixed", storage=new_storage(), sampler=sampler)
    loaded.optimize(mixed, n_trials=2)
    assert len(loaded.trials) == NUM_INITIAL + 4
    assert loaded.best_trial.number >= NUM_INITIAL


@pytest.mark.parametrize(("strategy", "n_jobs"), mostly_slow([("ucb", 1), ("ts", 4)], [("ts", 4)]))
def test_failed_points_of_a_grid_are_not_asked_again(strategy: str, n_jobs: int) -> None:
    """Without the grid, points that are rounded to a failed one are proposed repeatedly."""

    def objective(trial: Any) -> float:
        number = trial.suggest_int("number", 1, 4, log=True)
        step = trial.suggest_float("step", 0.0, 0.3, step=0.1)
        kind = trial.suggest_categorical("kind", ["plain", "gated"])
        if trial.number >= NUM_INITIAL and kind == "gated":
            raise ValueError("diverged")
        return float(number + step + 0.001 * trial.number)  # not all alike

    study = optuna.create_study(direction="maximize", sampler=new_sampler(strategy))
    study.optimize(objective, n_trials=24, n_jobs=n_jobs, catch=(ValueError,))
    failed = [
        tuple(trial.params.values())
        for trial in study.trials
        if trial.state is optuna.trial.TrialState.FAIL
    ]
    assert len(set(failed)) == len(failed) > 0


@pytest.mark.parametrize("is_mixed", mostly_slow([True, False], [True]))
def test_no_point_is_rounded_to_an_earlier_one(is_mixed: bool) -> None:
    """Either integers, categories and a number that is best at its bound, or many integers."""

    def objective(trial: Any) -> float:
        kind = trial.suggest_categorical("kind", ["plain", "gated", "open"])
        number = trial.suggest_int("number", 1, 3 if is_mixed else 1000)
        rate = trial.suggest_float("rate", 0.1, 1.0, log=True) if is_mixed else 0.0
        if trial.number >= NUM_INITIAL and kind == "gated":
            raise ValueError("diverged")
        return float(number * (2.0 if kind == "gated" else 1.0) + rate)

    study = optuna.create_study(direction="maximize", sampler=new_sampler("hallucinate"))
    study.optimize(objective, n_trials=12, catch=(ValueError,))
    asked = [tuple(trial.params.values()) for trial in study.trials]
    assert len(set(asked)) == len(asked)


def test_a_trial_that_fails_meanwhile(ledgers: list[FeedbackLedger]) -> None:
    """Between two looks at the study it ends: it runs or has failed, and is not overlooked."""
    study = optuna.create_study(direction="maximize", sampler=new_sampler())
    study.optimize(line, n_trials=NUM_INITIAL)
    running = study.ask()
    line(running)
    look = study.get_trials

    def look_and_fail(*args: Any, **kwargs: Any) -> Any:
        found = look(*args, **kwargs)
        if look(states=(optuna.trial.TrialState.RUNNING,))[0].number == running.number:
            study.tell(running, state=optuna.trial.TrialState.FAIL)
        return found

    study.get_trials = look_and_fail  # type: ignore[method-assign]
    line(study.ask())
    assert len(ledgers[-1]) == NUM_INITIAL + 1


def test_a_grid_that_has_failed_everywhere() -> None:
    """Points that brought values before fail now: the study goes on."""

    def objective(trial: Any) -> float:
        x = trial.suggest_int("x", 0, 1)
        if trial.number >= NUM_INITIAL:
            raise ValueError("diverged")
        return float(x + trial.number)  # not all alike

    study = optuna.create_study(direction="maximize", sampler=new_sampler())
    study.optimize(objective, n_trials=NUM_INITIAL + 4, catch=(ValueError,))
    assert len(study.trials) == NUM_INITIAL + 4


# Optuna warns that heartbeats are experimental, and meant for ``Study.optimize``.
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.filterwarnings("ignore:Heartbeat of storage:UserWarning")
def test_a_trial_whose_heartbeat_stopped(
    new_storage: NewStorage, ledgers: list[FeedbackLedger]
) -> None:
    """Optuna marks it as failed, which the proposer then sees."""
    storage = new_storage(heartbeat_interval=1, grace_period=1)
    study = optuna.create_study(storage=storage, sampler=new_sampler(), direction="maximize")
    study.optimize(line, n_trials=NUM_INITIAL)
    dead = study.ask()
    storage.record_heartbeat(dead._trial_id)
    dead.suggest_float("x", 0.0, 100.0)
    study.ask().suggest_float("x", 0.0, 100.0)
    assert statuses(ledgers[-1]) == ["observed"] * NUM_INITIAL + ["pending"]
    time.sleep(2.5)
    optuna.storages.fail_stale_trials(study)
    study.ask().suggest_float("x", 0.0, 100.0)
    failed = [trial for trial in ledgers[-1].trials if trial.status is TrialStatus.FAILED]
    assert [100 * trial.x.item() for trial in failed] == pytest.approx([dead.params["x"]])


def test_calibrated() -> None:
    """The calibrator replays the complete trials in the order of their numbers."""
    models = []

    def fit(X: Tensor, Y: Tensor) -> SingleTaskGP:
        models.append((X, Y))
        return unfitted(X, Y)

    calibrator = LocalizedConformal(alpha=0.2)
    sampler = new_sampler(calibrator=calibrator, fit=fit)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(line, n_trials=NUM_INITIAL + 3)
    X, Y = models[-1]
    assert (100 * X.squeeze(-1)).tolist() == pytest.approx(
        [trial.params["x"] for trial in study.trials[:-1]]
    )
    model = sampler._fit(X, Y)
    assert isinstance(model, CalibratedModel)
    assert isinstance(model.calibrator, LocalizedConformal) and calibrator.num_updates == 0


def line_of(x: float) -> float:
    return -abs(x - 30.0)


SPREAD = DelayStrategy("ts", "hallucinate", window=None, spread_beyond=2)


def test_threads_share_one_design() -> None:
    """Optuna reseeds before each trial in a thread; yet each sixteenth gets one of 16 points."""
    study = optuna.create_study(
        direction="maximize", sampler=new_sampler(SPREAD, n_startup_trials=0)
    )
    space: dict[str, BaseDistribution] = {"x": FloatDistribution(0.0, 100.0)}

    def add(x: float, state: Any, value: float | None) -> None:
        study.add_trial(
            optuna.trial.create_trial(
                state=state, params={"x": x}, distributions=space, value=value
            )
        )

    for x in range(29):
        add(float(x), optuna.trial.TrialState.COMPLETE, line_of(x))
    for x in range(29, 32):
        add(float(x), optuna.trial.TrialState.RUNNING, None)
    xs = []
    for x in range(16):  # points 16 to 31 of the sequence, at every second place
        study.sampler.reseed_rng()
        xs.append(study.ask(space).params["x"])
        add(x + 0.5, optuna.trial.TrialState.COMPLETE, line_of(x + 0.5))
    assert sorted(int(x / 100.0 * 16) for x in xs) == list(range(16))


@pytest.mark.parametrize(
    ("direction", "infinity"),
    [("minimize", math.inf), ("minimize", -math.inf), ("maximize", -1e300)],
)
def test_infinite_values_count_as_failures(
    ledgers: list[FeedbackLedger], direction: Any, infinity: float
) -> None:
    """Optuna takes them for values; a Gaussian process cannot, not even of the good sign."""

    def objective(trial: Any) -> float:
        value = line(trial) if direction == "maximize" else -line(trial)
        return infinity if trial.params["x"] > 50.0 else value

    study = optuna.create_study(direction=direction, sampler=new_sampler("hallucinate"))
    for x in (10.0, 90.0, 20.0, 40.0):
        study.enqueue_trial({"x": x})
    study.optimize(objective, n_trials=8)
    assert statuses(ledgers[0]) == ["observed", "failed", "observed", "observed"]
    asked = [trial.params["x"] for trial in study.trials]
    assert len(set(asked)) == 8


def late(ledger: FeedbackLedger) -> list[float]:
    """Where trials hang."""
    return [round(100 * ledger[i].x.item(), 6) for i in hanging(ledger, ledger.now())]


def one_after_the_other(study: optuna.Study, count: int) -> None:
    for _ in range(count):
        trial = study.ask()
        study.tell(trial, line(trial))


def test_a_trial_hangs_until_it_brings_a_value(ledgers: list[FeedbackLedger]) -> None:
    """Two at once: the other worker may finish two trials, and the third is a record."""
    study = optuna.create_study(direction="maximize", sampler=new_sampler(n_startup_trials=0))
    one_after_the_other(study, 2)
    study.enqueue_trial({"x": 30.5})
    hangs = study.ask()
    assert hangs.suggest_float("x", 0.0, 100.0) == 30.5
    one_after_the_other(study, 5)
    assert [late(ledger) for ledger in ledgers[-4:]] == [[], [], [30.5], [30.5]]
    study.tell(hangs, 0.0)
    one_after_the_other(study, 1)
    assert late(ledgers[-1]) == []


NOON = datetime(2026, 1, 1, 12)


def of_times(trials: list[tuple[float, float | None]]) -> optuna.Study:
    """A study of trials at 0, 1, ... with these minutes of start and, if any, of completion."""
    study = optuna.create_study(direction="maximize", sampler=new_sampler(n_startup_trials=0))
    state = optuna.trial.TrialState
    for x, (start, end) in enumerate(trials):
        trial = optuna.trial.create_trial(
            state=state.RUNNING if end is None else state.COMPLETE,
            params={"x": float(x)},
            distributions={"x": FloatDistribution(0.0, 100.0)},
            value=None if end is None else float(x),
        )
        trial.datetime_start = NOON + timedelta(minutes=start)
        trial.datetime_complete = None if end is None else NOON + timedelta(minutes=end)
        study.add_trial(trial)
    return study


# Two workers, whose trials take a minute each; trial 2 hangs.
IN_TURN: list[tuple[float, float | None]] = [(minute, minute + 1) for minute in range(8)]
HANGS: list[tuple[float, float | None]] = [(0, 1), (0, 1), (1, None), *IN_TURN[1:]]
FUTURE = 60 * 24 * 365 * 1000


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        (HANGS, [2]),
        ([(start + FUTURE, end and end + FUTURE) for start, end in HANGS], [2]),  # clocks ahead
        # The clock was set back by an hour after trial 2 began: later trials seem earlier...
        ([*HANGS[:3], *[(s - 60, e and e - 60) for s, e in HANGS[3:]]], []),
        # ... or before trial 2 began: earlier trials seem later, and are not.
        ([*IN_TURN, (-52, None), (-52, -51)], []),
        # The clock of one trial was set back while it ran.
        ([*HANGS[:3], (1, -58), *HANGS[4:]], []),
        # All times are equal.
        ([(0, end and 0) for _, end in HANGS], []),
        # Trial 0 has been enqueued, and begins last.
        ([(8, None), *IN_TURN], []),
    ],
)
def test_clocks(
    ledgers: list[FeedbackLedger], trials: list[tuple[float, float | None]], expected: list[float]
) -> None:
    of_times(trials).ask().suggest_float("x", 0.0, 100.0)
    assert late(ledgers[-1]) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("strategy", "greedy"),
        ("calibrator", "conformal"),
        ("fit", "gp"),
        ("censor_value", float("nan")),
        ("num_restarts", 0),
        ("raw_samples", 1),
        ("device", "abacus"),
    ],
)
def test_wrong_settings(name: str, value: Any) -> None:
    with pytest.raises(BotorchError, match=name):
        new_sampler(**{name: value})


@pytest.fixture
def improvements(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments of each improvement, and the function itself."""
    found: list[Any] = []

    def watched(*given: Any) -> Any:
        found.append((*given, improvement(*given)))
        return found[-1][-1]

    monkeypatch.setattr(optuna_delays, "improvement", watched)
    return found


class TestSeveralOutcomes:
    """Constraints and several objectives: improvement, where running and failed trials count."""

    @staticmethod
    def constrained(trial: Any) -> float:
        """The best feasible point is at 60."""
        x = trial.suggest_float("x", 0.0, 100.0)
        trial.set_constraint("c", (x - 60.0) / 100.0)
        return float(x)

    def test_constraints(self) -> None:
        sampler = new_sampler(calibrator=LocalizedConformal(0.2))
        study = optuna.create_study(direction="maximize", sampler=sampler)
        study.optimize(self.constrained, n_trials=12, n_jobs=2)
        assert study.best_value > 57.0

    def test_the_function_is_that_of_all_outcomes(self, improvements: list[Any]) -> None:
        """With what runs pending, by models of all outcomes in the order in which they ended."""
        study = optuna.create_study(
            directions=["maximize", "minimize"], sampler=new_sampler(n_startup_trials=0)
        )
        trials = [study.ask() for _ in range(5)]
        for trial in trials:
            self.constrained(trial)
        for trial in [trials[i] for i in (2, 0, 1, 3)]:
            x = trial.params["x"]
            study.tell(trial, [x, x**2])
        study.ask().suggest_float("x", 0.0, 100.0)
        models, X, objectives, constraints, pending, acqf = improvements[-1]
        xs = torch.tensor([trials[i].params["x"] for i in (2, 0, 1, 3)], dtype=torch.double)
        torch.testing.assert_close(X.squeeze(-1), xs / 100.0)
        torch.testing.assert_close(objectives, torch.stack([xs, -(xs**2)], dim=-1))
        torch.testing.assert_close(constraints.squeeze(-1), (xs - 60.0) / 100.0)
        assert pending.tolist() == [[pytest.approx(trials[4].params["x"] / 100.0)]]
        assert type(acqf) is qLogCalibratedNoisyExpectedHypervolumeImprovement
        for model, Y in zip(models, [*objectives.T, *constraints.T], strict=True):
            targets = model.outcome_transform.untransform(model.train_targets)[0]
            torch.testing.assert_close(targets.flatten(), Y)

    def test_a_trial_that_hangs_counts_as_failed(self, improvements: list[Any]) -> None:
        """It is pending until more later trials have overtaken it than ran at a time."""
        study = optuna.create_study(direction="maximize", sampler=new_sampler(n_startup_trials=0))
        study.enqueue_trial({"x": 30.5})
        asked = [study.ask() for _ in range(2)]
        hangs = asked[0].suggest_float("x", 0.0, 100.0)
        study.tell(asked[1], self.constrained(asked[1]))
        for _ in range(3):
            trial = study.ask()
            study.tell(trial, self.constrained(trial))
        pending = [given[-2] for given in improvements]
        known = [None if each is None else (100 * each).tolist() for each in pending]
        assert known == [[[pytest.approx(hangs)]], None]

    @pytest.mark.parametrize("is_grid", [True, False])
    def test_failed_trials_are_not_asked_again(self, is_grid: bool) -> None:
        def objective(trial: Any) -> tuple[float, float]:
            step = 5.0 if is_grid else None
            x = trial.suggest_float("x", 0.0, 100.0, step=step)
            trial.set_constraint("c", 10.0 - x)
            if trial.number >= NUM_INITIAL and x > 50.0:
                raise ValueError("it broke")
            return x, x**2 / 100.0

        study = optuna.create_study(directions=["maximize", "minimize"], sampler=new_sampler())
        study.optimize(objective, n_trials=11, catch=(ValueError,))
        failed = [trial.params["x"] for trial in study.trials if trial.values is None]
        assert len(set(failed)) == len(failed) <= 6


class TestKnownNoise:
    @staticmethod
    def noise_given_to_fits(stated: Any, fits: Any = None) -> list[Any]:
        """Variances that each fit of a trial was given, of an objective and a constraint."""
        given: list[Any] = []

        def fit(X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> SingleTaskGP:
            given.append(None if Yvar is None else Yvar.squeeze(-1).tolist())
            return PartlyKnownNoiseGP(X, Y, Yvar, outcome_transform=Standardize(1))

        def objective(trial: Any) -> float:
            trial.set_constraint("c", -trial.suggest_float("x", 0.0, 100.0))
            value = stated(trial.number)
            if value is not None:
                trial.set_user_attr("Yvar", value)
            return line(trial)

        study = optuna.create_study(sampler=new_sampler(fit=fits or fit))
        study.optimize(objective, n_trials=NUM_INITIAL + 1)
        return given

    def test_of_each_outcome_the_objective_or_none(self) -> None:
        found = self.noise_given_to_fits(lambda number: [0.1 + number, 0.2])
        assert found == [[0.1, 1.1, 2.1, 3.1], [0.2] * NUM_INITIAL]
        assert self.noise_given_to_fits(lambda number: 0.5) == [[0.5] * NUM_INITIAL, None]
        assert self.noise_given_to_fits(lambda number: None) == [None, None]

    def test_of_some_trials(self) -> None:
        """NaN stands for the others, which `PartlyKnownNoiseGP` takes."""
        found = self.noise_given_to_fits(lambda number: None if number == 2 else [0.5, None])
        assert str(found) == "[[0.5, 0.5, nan, 0.5], None]"

    def test_a_fit_that_cannot_use_it(self) -> None:
        with pytest.warns(InputDataWarning, match="`fit` has no parameter `Yvar`"):
            self.noise_given_to_fits(lambda number: 0.5, unfitted)
