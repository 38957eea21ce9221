"""Optuna's terminator, by what is left to gain."""

import warnings
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError

from botorch_calib.decisions import remaining_gain

optuna = pytest.importorskip("optuna")
pytest.importorskip("optuna_integration")
from optuna.terminator import StaticErrorEvaluator, Terminator, TerminatorCallback  # noqa: E402

from botorch_calib.integrations.optuna_stopping import (  # noqa: E402
    RemainingGainEvaluator,
    fit_calibrated,
)

pytestmark = [
    # Of Optuna's own terminator and its evaluators, on use.
    pytest.mark.filterwarnings("ignore:`optuna.terminator` module has been deprecated"),
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
]


def study_of(objective: object, direction: str = "minimize", num: int = 12) -> Any:
    study = optuna.create_study(
        direction=direction,
        sampler=optuna.samplers.QMCSampler(seed=0, warn_independent_sampling=False),
    )
    study.optimize(objective, n_trials=num)
    return study


def bowl(trial: Any) -> float:
    trial.suggest_float("held", 4.0, 4.0)
    return (trial.suggest_float("x", -2.0, 3.0) - 1.0) ** 2


def ladder(trial: Any) -> float:
    kind, steps = trial.suggest_categorical("kind", ["a", "b"]), trial.suggest_int("n", 1, 1000)
    return -((trial.suggest_float("x", 0.0, 1.0) - 0.5) ** 2) - (kind == "a") - steps / 1000


def test_a_study_stops_at_a_point_within_eps() -> None:
    evaluator = RemainingGainEvaluator()
    terminator = Terminator(evaluator, StaticErrorEvaluator(0.1), min_n_trials=6)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(bowl, n_trials=60, callbacks=[TerminatorCallback(terminator)])
    assert 6 <= len(study.trials) < 60
    assert evaluator.recommended is not None and evaluator.recommended["held"] == 4.0
    assert (evaluator.recommended["x"] - 1.0) ** 2 <= 0.1


def test_the_bound_is_that_of_the_model_in_units_of_the_objective() -> None:
    study = study_of(bowl)
    evaluator = RemainingGainEvaluator(delta=0.1, num_paths=40)
    bound = evaluator.evaluate(study.trials, study.direction)
    X = torch.tensor([[(t.params["x"] + 2.0) / 5.0] for t in study.trials], dtype=torch.double)
    Y = torch.tensor([t.values for t in study.trials], dtype=torch.double)
    box = torch.tensor([[0.0], [1.0]], dtype=torch.double)
    by_hand = remaining_gain(fit_calibrated(X, Y), box, num_paths=40, maximize=False)
    assert bound == pytest.approx(by_hand.bound(0.1), rel=1e-3, abs=1e-6)


def test_mixed_spaces_recommend_what_optuna_can_express() -> None:
    study = study_of(ladder, "maximize", 16)
    evaluator = RemainingGainEvaluator(delta=0.4, num_paths=8)
    evaluator.evaluate(study.trials, study.direction)
    assert evaluator.recommended is not None
    assert evaluator.recommended["kind"] == "b" and isinstance(evaluator.recommended["n"], int)


def test_infinite_values_are_left_out() -> None:
    evaluator, study = RemainingGainEvaluator(), study_of(bowl)
    bound = evaluator.evaluate(study.trials, study.direction)
    study.enqueue_trial({"x": 0.5, "held": 4.0})
    study.optimize(lambda trial: bowl(trial) + float("inf"), n_trials=1)
    assert evaluator.evaluate(study.trials, study.direction) == pytest.approx(bound)


def test_studies_that_are_not_supported() -> None:
    evaluator = RemainingGainEvaluator()
    with pytest.raises(InputDataError, match="Two trials"):
        study = study_of(bowl, num=1)
        evaluator.evaluate(study.trials, study.direction)
    with pytest.raises(InputDataError, match="`delta`"):
        RemainingGainEvaluator(delta=1.0)
    with pytest.raises(InputDataError, match="`num_paths` must be at least 299"):
        RemainingGainEvaluator(delta=0.01)

    def limited(trial: Any) -> float:
        trial.set_constraint("cost", 1.0)
        return bowl(trial)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = study_of(limited, num=3)
    with pytest.raises(UnsupportedError, match="without constraints"):
        evaluator.evaluate(study.trials, study.direction)
