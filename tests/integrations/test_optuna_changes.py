"""Changes to an Optuna study with decisions: retries, other spaces, failures, copies."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("optuna_integration")

import optuna
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import PartialFixedSampler
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.trial import TrialState, create_trial

from botorch_calib.exceptions import CalibrationWarning, NotCertifiedWarning
from botorch_calib.integrations.optuna import SearchSpace
from botorch_calib.integrations.optuna_delays import DECISION, DelayAwareSampler
from tests.integrations.test_optuna import NewStorage, new_storage, quiet
from tests.integrations.test_optuna_decisions import (
    NUM_INITIAL,
    counted,
    limited,
    new_study,
    noise,
    space_of,
)
from tests.long_grids import mostly_slow

__all__ = ["new_storage", "quiet"]  # fixtures

pytestmark = [
    pytest.mark.filterwarnings("ignore:Optimization failed:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:A point is not certified"),
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
    pytest.mark.filterwarnings("ignore:None of the .* lies in `bounds`"),
    pytest.mark.filterwarnings("ignore:Trial 10 is not certified.*another 'n'"),
]


def started(**options: Any) -> Any:
    study = new_study(level=0.5, **options)
    study.optimize(limited, n_trials=NUM_INITIAL)
    return study


def books(study: Any) -> tuple[int, ...]:
    return study.sampler.chance_constraint(study).account[:3]


def asked(study: Any) -> optuna.Trial:
    """A certified trial that is running."""
    trial: optuna.Trial = study.ask()
    trial.suggest_float("x", 0.0, 1.0)
    assert study.trials[trial.number].system_attrs[DECISION]["certified"]
    return trial


def lost(study: Any, trial: optuna.Trial) -> optuna.Trial:
    """Lose the worker of a trial, which Optuna then runs again."""
    study.tell(trial, state=TrialState.FAIL)
    RetryHeartbeatStaleTrialCallback()(study, study.trials[trial.number])
    assert books(study)[2] == 1  # while it waits
    again: optuna.Trial = study.ask()
    return again


class TestRetries:
    def test_a_retried_trial_is_the_same_decision(self) -> None:
        study = started()
        trial = asked(study)
        again = lost(study, lost(study, trial))
        assert again.suggest_float("x", 0.0, 1.0) == trial.params["x"]
        assert books(study) == (1, 0, 1)
        assert study.sampler.outstanding(study) == [again.number]
        again.set_constraint("loss", -0.1)
        study.tell(again, 0.3)
        assert books(study) == (1, 0, 0)
        assert study.sampler.outstanding(study) == []

    @pytest.mark.filterwarnings("ignore:The constraint value is ignored")
    def test_what_was_known_before_it_was_lost_counts(self) -> None:
        study = started()
        trial = asked(study)
        trial.set_constraint("loss", 0.2)
        study.tell(trial, state=TrialState.FAIL)
        RetryHeartbeatStaleTrialCallback()(study, study.trials[-1])
        again = study.ask()
        limited(again)
        study.tell(again, 0.3)
        assert books(study) == (1, 1, 0)

    def test_a_trial_that_had_only_a_part_of_its_parameters_goes_on_with_the_others(self) -> None:
        def objective(trial: Any) -> float:
            value = limited(trial)
            return value - trial.suggest_float("y", 0.0, 1.0)

        study = new_study(level=0.5)
        study.optimize(objective, n_trials=NUM_INITIAL)
        chosen = study.ask()
        x = chosen.suggest_float("x", 0.0, 1.0)
        study.tell(chosen, state=TrialState.FAIL)
        RetryHeartbeatStaleTrialCallback()(study, study.trials[-1])
        study.optimize(objective, n_trials=1)
        assert study.trials[-1].params == {"x": x, "y": chosen.relative_params["y"]}
        assert books(study)[2] == 0

    def test_a_trial_object_that_is_made_anew_keeps_the_decision(self) -> None:
        study = started()
        trial = asked(study)
        optuna.Trial(study, trial._trial_id).set_constraint("loss", 0.2)
        assert books(study) == (1, 1, 0)

    def test_a_past_point_is_decided_about_anew(self) -> None:
        study = started()
        past = {"x": asked(study).params["x"]}
        study.enqueue_trial(past)
        distributions = study.trials[0].distributions
        waiting = create_trial(state=TrialState.WAITING, params=past, distributions=distributions)
        study.add_trial(waiting)
        study.optimize(limited, n_trials=2)
        assert study.sampler.chance_constraint(study).num_decisions == 3
        assert [trial.params for trial in study.trials[-2:]] == [past, past]

    def test_a_retry_that_is_withdrawn_leaves_the_trial_before_it(self) -> None:
        study = started()
        trial = asked(study)
        again = lost(study, trial)
        study.sampler.withdraw(study, [again.number])
        assert study.sampler.outstanding(study) == [trial.number]
        study.sampler.withdraw(study, [trial.number])
        assert books(study) == (0, 0, 0)

    def test_wrong_numbers_in_a_study_of_others_hide_nothing(self) -> None:
        """Trials of a grid are often equal, and another trial may have the lost trial's number."""
        study = started()
        lost(study, asked(study))
        other, row = new_study(level=0.5), dict(study.trials[-1].system_attrs[DECISION], id="own")
        failed = {"params": study.trials[-1].params, "state": TrialState.FAIL}
        failed["distributions"] = study.trials[-1].distributions
        other.add_trials(study.trials[:NUM_INITIAL])
        other.add_trial(create_trial(**failed, system_attrs={DECISION: row}))
        other.add_trial(study.trials[-1])
        assert books(other) == (2, 0, 2)

    def test_failures_of_other_samplers_that_are_retried_are_none(self) -> None:
        study: Any = optuna.create_study(sampler=DelayAwareSampler(seed=0))
        trial = study.ask()
        trial.suggest_float("x", 0.0, 1.0)
        study.tell(trial, state=TrialState.FAIL)
        RetryHeartbeatStaleTrialCallback()(study, study.trials[-1])
        assert len(study.sampler._trials(study)) == 1
        study.ask()
        assert [each.number for each in study.sampler._trials(study)] == [1]


class TestWithdrawals:
    def test_open_trials_are_shown_and_withdrawn(self, new_storage: NewStorage) -> None:
        sampler = started().sampler
        study: Any = optuna.create_study(
            storage=new_storage(), direction="maximize", sampler=sampler
        )
        study.optimize(limited, n_trials=NUM_INITIAL)
        running, failed, run = asked(study), asked(study), asked(study)
        study.tell(failed, state=TrialState.FAIL)
        run.set_constraint("loss", -0.1)
        numbers = [running.number, failed.number]
        assert study.sampler.outstanding(study) == numbers
        for wrong in (run.number, 99):
            with pytest.raises(InputDataError, match=rf"Trial {wrong} .*\[6, 7\] are pending"):
                study.sampler.withdraw(study, [running.number, wrong])
        study.sampler.withdraw(study, numbers)
        assert study.sampler.outstanding(study) == []
        assert study.trials[running.number].state is TrialState.FAIL
        assert books(study) == (1, 0, 0)
        optuna.copy_study(
            from_study_name=study.study_name,
            from_storage=study._storage,
            to_storage=new_storage("copy.db"),
        )
        copy = optuna.load_study(study_name=None, storage=new_storage("copy.db"), sampler=sampler)
        assert books(copy) == (1, 0, 0)

    def test_the_note_names_the_calls(self) -> None:
        study = started(budget=0.2)
        asked(study)
        with pytest.warns(CalibrationWarning, match=r"`outstanding\(study\)`.*`withdraw\(study"):
            study.ask().suggest_float("x", 0.0, 1.0)

    def test_a_trial_that_was_added_twice_is_one_decision(self) -> None:
        study = started()
        study.optimize(limited, n_trials=3)
        again = new_study(level=0.5)
        again.add_trials(study.trials)
        again.add_trials(study.trials[NUM_INITIAL:])
        assert books(again) == books(study) == counted(study)


class TestRuns:
    def test_parameters_may_be_read_without_being_asked_for(self) -> None:
        study = started()
        failed, complete = study.ask(), study.ask()
        for trial in (failed, complete):
            assert trial.relative_params
            trial.set_constraint("loss", 0.2)
        study.tell(failed, state=TrialState.FAIL)
        study.tell(complete, 0.5)
        assert books(study) == (2, 2, 0)

    def test_a_complete_trial_without_constraints_is_out(self) -> None:
        study = started()
        study.tell(asked(study), 0.3)
        study.optimize(limited, n_trials=1)
        assert study.sampler.outstanding(study) == [NUM_INITIAL]
        assert books(study)[2] == 1

    def test_nan_may_be_a_choice(self, new_storage: NewStorage) -> None:
        def objective(trial: Any) -> float:
            kind = trial.suggest_categorical("kind", [math.nan, 1.0])
            return limited(trial) + math.isnan(kind)

        sampler = new_study(level=0.5).sampler
        study: Any = optuna.create_study(
            storage=new_storage(), direction="maximize", sampler=sampler
        )
        study.optimize(objective, n_trials=NUM_INITIAL + 2)
        assert all(trial.system_attrs[DECISION] for trial in study.trials[NUM_INITIAL:])
        assert any(math.isnan(trial.params["kind"]) for trial in study.trials[NUM_INITIAL:])


Objective = Callable[[Any], float]


def in_range(low: float, high: float, name: str = "x", step: float | None = None) -> Objective:
    def objective(trial: Any) -> float:
        x = trial.suggest_float(name, low, high, step=step)
        trial.set_constraint("loss", x - 0.6 + 0.05 * noise(trial.number, 1))
        return float(x + 0.02 * noise(trial.number, 2))

    return objective


def beside(low: int, high: int) -> Objective:
    def objective(trial: Any) -> float:
        return in_range(0.0, 1.0)(trial) - 0.1 * trial.suggest_int("n", low, high)

    return objective


class TestSpacesThatChange:
    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (in_range(0.0, 1.0), in_range(0.3, 0.9)),
            (in_range(0.5, 1.0), in_range(0.0, 0.45)),  # the best of the old range is outside
            (in_range(0.0, 1.0), in_range(0.0, 1.0, step=0.25)),
            (beside(0, 3), beside(2, 5)),
            (beside(0, 3), beside(2, 2)),
        ],
    )
    def test_the_present_range_is_searched_with_all_data(
        self, before: Objective, after: Objective
    ) -> None:
        study = new_study(n_startup_trials=8)
        study.optimize(before, n_trials=10)
        study.optimize(after, n_trials=4)
        sampler, late = study.sampler, study.trials[10:]
        assert len(sampler._look_now(study).X) == 14
        for trial in late[1:]:
            (point,) = space_of(trial).encoded([trial.params])
            distribution = trial.distributions["x"]
            assert distribution._contains(trial.params["x"])
            assert len(trial.system_attrs[DECISION]["point"]) >= len(point)
        assert counted(study) == books(study)
        decided = [bool(trial.system_attrs[DECISION]) for trial in late]
        assert all(decided[1:]) and sum(t.system_attrs[DECISION]["certified"] for t in late[1:])
        parameters, _ = sampler.recommendation(study)
        assert all(
            own._contains(own.to_internal_repr(parameters[name]))
            for name, own in late[-1].distributions.items()
        )

    def test_a_value_outside_of_the_new_range_is_chosen_again(self) -> None:
        study = new_study(n_startup_trials=8)
        study.optimize(in_range(0.0, 1.0), n_trials=8)
        study.optimize(in_range(0.4, 0.5), n_trials=1)
        row, x = study.trials[-1].system_attrs[DECISION], study.trials[-1].params["x"]
        assert 0.4 <= x <= 0.5 and row["certified"]
        assert row["point"] == [pytest.approx((x - 0.4) / 0.1)]

    def test_a_renamed_parameter_is_drawn_at_random_at_first_and_said_to_be(self) -> None:
        study = new_study()
        study.optimize(in_range(0.0, 1.0), n_trials=NUM_INITIAL)
        with pytest.warns(NotCertifiedWarning, match="parameter 'size' is new"):
            study.optimize(in_range(0.0, 1.0, "size"), n_trials=1)
        with pytest.warns(NotCertifiedWarning, match="fewer than 6 trials have all present"):
            study.optimize(in_range(0.0, 1.0, "size"), n_trials=NUM_INITIAL - 1)
        assert not any(trial.system_attrs[DECISION] for trial in study.trials)
        study.optimize(in_range(0.0, 1.0, "size"), n_trials=1)
        assert study.trials[-1].system_attrs[DECISION]

    def test_a_parameter_that_the_objective_holds_is_not_certified_elsewhere(self) -> None:
        study = new_study()
        study.optimize(beside(0, 3), n_trials=NUM_INITIAL)
        with pytest.warns(NotCertifiedWarning, match="it was run with another 'n'"):
            study.optimize(beside(3, 3), n_trials=1)
        assert study.trials[-1].system_attrs[DECISION] == {}

    def test_conditional_parameters_are_drawn_at_random(self) -> None:
        def objective(trial: Any) -> float:
            kind = trial.suggest_categorical("kind", ["u", "v"])
            return limited(trial) - 0.1 * trial.suggest_float(kind, 0.0, 1.0)

        study = new_study(n_startup_trials=10)
        study.optimize(objective, n_trials=12)
        decided = [trial.system_attrs[DECISION] for trial in study.trials[10:]]
        assert [len(row["point"]) for row in decided] == [3, 3]  # of "kind" and "x"

    @pytest.mark.filterwarnings("ignore:1 of . decisions were not recorded")
    def test_a_new_constraint_starts_again_and_one_that_is_left_out_is_named(self) -> None:
        def objective(trial: Any) -> float:
            trial.set_constraint("size", -1.0)
            return limited(trial)

        study = new_study()
        study.optimize(limited, n_trials=NUM_INITIAL)
        study.optimize(objective, n_trials=1)
        with pytest.warns(NotCertifiedWarning, match="present parameters and limits"):
            study.optimize(objective, n_trials=NUM_INITIAL)
        assert study.sampler.chance_constraint(study).limits.keys() == {"size", "loss"}
        study.optimize(limited, n_trials=1)
        with pytest.raises(InputDataError, match="set the same ones"):
            study.optimize(limited, n_trials=1)

    def test_too_few_trials(self) -> None:
        study = new_study()
        study.optimize(limited, n_trials=1)
        with pytest.raises(InputDataError, match="Fewer than two complete trials"):
            study.sampler.chance_constraint(study)


@pytest.mark.parametrize("held", [{}, {"count": 20, "kind": "v"}])
def test_points_are_rounded_as_optuna_does(held: dict[str, Any]) -> None:
    space = SearchSpace(
        {
            "plain": FloatDistribution(0.0, 1.0),
            "rate": FloatDistribution(1e-5, 10.0, log=True),
            "share": FloatDistribution(0.1, 2.35, step=0.25),
            "count": IntDistribution(1, 8),
            "size": IntDistribution(1, 1000, log=True),
            "offset": IntDistribution(-3, 12, step=5),
            "many": IntDistribution(0, 10**7),
            "kind": CategoricalDistribution(["u", "v", None]),
        },
        held,
    )
    points = torch.rand(200, space.dim, dtype=torch.double, generator=torch.manual_seed(0))
    points = 1.2 * points - 0.1
    one_by_one = space.encoded(map(space.parameters, points))
    torch.testing.assert_close(space.rounded(points), one_by_one, rtol=0.0, atol=1e-15)
    assert space.rounded(points.float()).dtype is torch.float


def given_point(trial: Any) -> float:
    """With ``step`` and ``n``, which no limit depends on."""
    n = trial.suggest_int("n", 1, 5)
    return limited(trial) + trial.suggest_float("step", 0.0, 1.0, step=0.25) - 0.01 * float(n)


class TestGivenValues:
    @pytest.mark.parametrize("sampler", [None, DelayAwareSampler(seed=0, n_startup_trials=6)])
    @pytest.mark.filterwarnings("ignore:Fixed parameter")
    def test_they_may_lie_outside_of_the_space(self, sampler: Any) -> None:
        study = new_study()
        study.sampler = study.sampler if sampler is None else sampler
        study.optimize(given_point, n_trials=NUM_INITIAL)
        for given in ({"x": 1.05}, {"step": 0.3, "n": 7}, {"x": -0.1, "n": 0, "step": 2.0}):
            study.enqueue_trial(given)
            study.optimize(given_point, n_trials=1)
            trial = study.trials[-1]
            assert trial.state is TrialState.COMPLETE and given.items() <= trial.params.items()
            if sampler is None:
                (point,) = space_of(trial).encoded([trial.params])
                assert trial.system_attrs[DECISION]["point"] == point.tolist()

    @pytest.mark.filterwarnings("ignore:Fixed parameter")
    def test_those_of_a_partial_sampler_are_decided_about(self) -> None:
        study = new_study()
        study.optimize(given_point, n_trials=NUM_INITIAL)
        for fixed in ({"x": 1.2}, {"x": 0.1, "n": 2, "step": 0.5}):
            study.sampler = PartialFixedSampler(fixed, new_study().sampler)
            study.optimize(given_point, n_trials=1)
            trial = study.trials[-1]
            (point,) = space_of(trial).encoded([trial.params])
            assert trial.system_attrs[DECISION]["point"] == point.tolist()

    def test_unknown_choices_end_the_trial_alone(self) -> None:
        def objective(trial: Any) -> float:
            return limited(trial) + (trial.suggest_categorical("kind", ["u", "v"]) == "u")

        study = new_study()
        study.optimize(objective, n_trials=NUM_INITIAL)
        study.enqueue_trial({"x": 0.1, "kind": "w"})
        study.optimize(objective, n_trials=2, catch=(ValueError,))
        states = [trial.state for trial in study.trials[-2:]]
        assert states == [TrialState.FAIL, TrialState.COMPLETE]


class TestFailures:
    @pytest.mark.parametrize("is_grid", [False, True])
    @pytest.mark.parametrize("failures", mostly_slow(["avoid", "ignore"], ["avoid"]))
    def test_points_are_certified_after_failures(self, is_grid: bool, failures: str) -> None:
        """If the search avoided failures at the limit, only points far beyond it would be left."""

        def objective(trial: Any) -> float:
            x = trial.suggest_float("x", 0.0, 1.0, step=0.25 if is_grid else None)
            trial.set_constraint("loss", x - 0.6 + 0.02 * noise(trial.number, 1))
            if NUM_INITIAL < trial.number < NUM_INITIAL + 8:
                raise ValueError("lost")
            return float(x + 0.02 * noise(trial.number, 2))

        study = new_study(failures=failures, n_startup_trials=NUM_INITIAL)
        study.optimize(objective, n_trials=NUM_INITIAL + 12, catch=(ValueError,))
        assert all(t.system_attrs[DECISION]["certified"] for t in study.trials[NUM_INITIAL:])

    def test_failures_are_checked(self) -> None:
        with pytest.raises(InputDataError, match="failures"):
            new_study(failures="flee")

    def test_brackets_share_the_books(self) -> None:
        study = new_study()
        study.pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=9)
        study.optimize(limited, n_trials=NUM_INITIAL + 1)
        assert study.trials[-1].system_attrs[DECISION]


class TestLastSafe:
    def test_it_is_handed_over_after_a_violation(self) -> None:
        study = started()
        given: list[Any] = []
        study.sampler._on_violation = given.append
        study.optimize(limited, n_trials=4)
        late = study.trials[NUM_INITIAL:]
        safe = [trial.params for trial in late if trial.constraints["loss"] <= 0.0]
        assert study.sampler.last_safe(study) == safe[-1]
        assert len(given) == sum(trial.constraints["loss"] > 0.0 for trial in late) > 0
        before = [None, *(t.params for t in study.trials if t.constraints["loss"] <= 0.0)]
        assert all(parameters in before for parameters in given)

    @pytest.mark.parametrize("by_function", [False, True])
    def test_it_is_handed_over_however_the_trial_ends(self, by_function: bool) -> None:
        given: list[Any] = []
        known = {"constraints_func": lambda trial: [trial.params["x"] - 0.5]} if by_function else {}
        study = new_study(on_violation=given.append, **known)

        def run(trial: optuna.Trial) -> float:
            x = trial.suggest_float("x", 0.0, 1.0)
            if not by_function:
                trial.set_constraint("loss", x - 0.5)
            return x / (x != 0.7)

        for x in (0.2, 0.8, 0.9, 0.7):
            study.enqueue_trial({"x": x})
        study.optimize(run, n_trials=1)
        assert not given
        study.optimize(run, n_trials=1)
        assert given == [{"x": 0.2}]
        by_hand = study.ask()
        study.tell(by_hand, run(by_hand))
        assert len(given) == 2
        if not by_function:  # Optuna does not call the function after an error
            with pytest.raises(ZeroDivisionError):
                study.optimize(run, n_trials=1)
            assert given == [{"x": 0.2}] * 3

    def test_a_bound_without_its_constraint_is_told(self) -> None:
        study = started()
        trial = study.ask({"x": optuna.distributions.FloatDistribution(0.0, 1.0)})
        trial.set_user_attr("beyond", {"loss": 1})
        with pytest.warns(CalibrationWarning, match="beyond.*loss.*set_constraint"):
            study.tell(trial, state=TrialState.FAIL)

    def test_there_may_be_none_and_bounds_are_not_safe(self) -> None:
        study = new_study()
        assert study.sampler.last_safe(study) is None
        trial = study.ask()
        trial.suggest_float("x", 0.0, 1.0)
        trial.set_user_attr("beyond", {"loss": 1})
        trial.set_constraint("loss", -0.3)
        study.tell(trial, 0.1)
        assert study.sampler.last_safe(study) is None

    def test_trials_that_have_set_only_some_constraints_are_not_safe(self) -> None:
        study = new_study()

        def run(x: float, *names: str) -> optuna.Trial:
            study.enqueue_trial({"x": x})
            trial = study.ask()
            trial.suggest_float("x", 0.0, 1.0)
            for name in names:
                trial.set_constraint(name, -1.0)
            return trial

        study.tell(run(0.1, "loss"), state=TrialState.PRUNED)
        study.tell(run(0.2, "loss", "time"), 0.0)
        study.tell(run(0.3, "loss"), state=TrialState.FAIL)
        run(0.4, "time")  # it is still running
        assert study.sampler.last_safe(study) == {"x": 0.2}
        run(0.5, "time", "loss", "heat")  # the constraint on the heat is new
        assert study.sampler.last_safe(study) == {"x": 0.5}

    def test_a_trial_beyond_its_limit_is_not_the_best_one(self) -> None:
        """Optuna regards a constraint of 0 as met."""
        study = new_study()
        study.optimize(limited, n_trials=NUM_INITIAL)
        trial = study.ask()
        trial.suggest_float("x", 0.0, 1.0)
        trial.set_user_attr("beyond", {"loss": 1})
        trial.set_constraint("loss", 0.0)
        study.tell(trial, 1e3)
        assert study.best_trial.number < NUM_INITIAL
        assert study.trials[-1].constraints == {"loss": math.ulp(0.0)}

    def test_a_recommendation_is_for_one_objective(self) -> None:
        sampler = new_study().sampler
        study: Any = optuna.create_study(directions=["minimize"] * 2, sampler=sampler)
        with pytest.raises(UnsupportedError, match="`study.best_trials`"):
            study.sampler.recommendation(study)


def test_no_warning_without_a_cause() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotCertifiedWarning)
        new_study(level=0.5).optimize(limited, n_trials=NUM_INITIAL)
