"""Chance constraints in Optuna: certified trials, their books in any storage, restarts."""

from __future__ import annotations

import math
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna_integration")

import optuna
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.exceptions.errors import InputDataError, UnsupportedError
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from botorch_calib import ChanceConstraint, optimize_chance_constrained
from botorch_calib.asynchronous.proposer import SEARCH
from botorch_calib.exceptions import CalibrationWarning, NotCertifiedWarning
from botorch_calib.integrations import optuna_decisions
from botorch_calib.integrations.optuna_decisions import DECISION, ChanceConstrainedSampler
from botorch_calib.models import stand_ins
from botorch_calib.optim.random_seeds import derived_seed, random_stream
from tests.integrations.test_optuna import NewStorage, new_storage, quiet, unfitted
from tests.long_grids import mostly_slow

__all__ = ["new_storage", "quiet"]  # fixtures

NUM_INITIAL = 6

# Where the acquisition function has kinks or is flat, the line search may stop there.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Optimization failed:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:A point is not certified"),
]


def new_sampler(level: float = 0.9, **options: Any) -> ChanceConstrainedSampler:
    """With a short search and a Gaussian process that is not fitted."""
    settings: dict[str, Any] = {
        "fit": unfitted,
        "num_restarts": 2,
        "raw_samples": 32,
        "n_startup_trials": NUM_INITIAL,
        "seed": 0,
        **options,
    }
    return ChanceConstrainedSampler(level, **settings)


def new_study(direction: Any = "maximize", **options: Any) -> Any:
    return optuna.create_study(direction=direction, sampler=new_sampler(**options))


def noise(number: int, column: int) -> float:
    """Standard normal, by the trial."""
    generator = torch.Generator().manual_seed(100 * number + column)
    return torch.randn(1, generator=generator).item()


def limited(trial: Any) -> float:
    """Values grow with ``x``, but the limit requires ``x < 0.6``, apart from noise."""
    x = trial.suggest_float("x", 0.0, 1.0)
    trial.set_constraint("loss", x - 0.6 + 0.1 * noise(trial.number, 1))
    return x + 0.02 * noise(trial.number, 2)


def counted(study: optuna.Study) -> tuple[int, int, int]:
    """Numbers of certified, violating and pending trials."""
    certified = violated = out = 0
    for trial in study.trials:
        decision = trial.system_attrs.get(DECISION, {})
        if decision.get("certified") and (trial.params or trial.state is TrialState.RUNNING):
            values = [trial.constraints.get(name) for name in decision["outcomes"]]
            certified += 1
            if any(value is not None and value > 0.0 for value in values):
                violated += 1
            elif None in values:
                out += 1
    return certified, violated, out


def space_of(trial: Any) -> optuna_decisions.SearchSpace:
    return optuna_decisions.SearchSpace(dict(sorted(trial.distributions.items())))


def test_a_decision_that_was_lost_is_told() -> None:
    study = new_study()
    study.optimize(limited, n_trials=NUM_INITIAL + 2)
    trials, again = study.trials, new_study()
    next(trial for trial in trials if trial.system_attrs[DECISION]).system_attrs[DECISION] = None
    again.add_trials(trials)
    with pytest.warns(CalibrationWarning, match="1 of 2 decisions were not recorded"):
        again.sampler.chance_constraint(again)


def test_candidates_are_those_of_the_bare_loop() -> None:
    """The bare loop keeps one constraint; here each trial builds it from the rows."""
    study = new_study()
    study.optimize(limited, n_trials=NUM_INITIAL)
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double)
    constraint = None
    for number in range(NUM_INITIAL, NUM_INITIAL + 6):
        X = torch.tensor([[trial.params["x"]] for trial in study.trials], dtype=torch.double)
        gain = torch.tensor([[trial.value] for trial in study.trials], dtype=torch.double)
        loss = torch.tensor(
            [[trial.constraints["loss"]] for trial in study.trials], dtype=torch.double
        )
        model = unfitted(X, loss)
        if constraint is None:
            constraint = ChanceConstraint(model, upper=0.0, level=0.9)
        else:
            constraint.observe(X[-1:], loss[-1:], condition=False)
            constraint = constraint.with_model(model)
        acqf = UpperConfidenceBound(unfitted(X, gain), beta=4.0)
        with random_stream(derived_seed(0, SEARCH, number)):
            expected = optimize_chance_constrained(
                acqf, constraint, bounds, num_restarts=2, raw_samples=32
            )
        study.optimize(limited, n_trials=1)
        x = study.trials[-1].params["x"]
        assert x == pytest.approx(expected.candidate.item(), abs=1e-7)
        constraint.decide(torch.tensor([[x]], dtype=torch.double))
        known = study.sampler.chance_constraint(study)
        for ours, theirs in zip(known.decisions[:-1], constraint.decisions, strict=False):
            ((_, quantile),) = theirs.pop("quantiles").values()
            assert ours.pop("quantiles")["loss"] == [None, pytest.approx(quantile, abs=1e-9)]
            limits, outcomes = {"loss": [None, 0.0]}, {"loss": theirs["outcomes"]["y"]}
            assert ours == {**theirs, "limits": limits, "outcomes": outcomes}
    assert constraint is not None and constraint.num_certified > 2


def storages(path: Path, new_storage: NewStorage) -> dict[str, BaseStorage]:
    return {
        "memory": InMemoryStorage(),
        "sqlite": new_storage(),
        "journal": JournalStorage(JournalFileBackend(str(path / "journal.log"))),
    }


@pytest.mark.parametrize("kind", mostly_slow(["memory", "sqlite", "journal"], ["sqlite"]))
def test_books_of_trials_in_any_state(kind: str, tmp_path: Path, new_storage: NewStorage) -> None:
    """Constraints count once they are set; until then a certified trial is a violation."""
    storage = storages(tmp_path, new_storage)[kind]
    sampler = new_sampler(level=0.5)
    study = optuna.create_study(
        study_name="one", storage=storage, direction="maximize", sampler=sampler
    )
    study.optimize(limited, n_trials=NUM_INITIAL)
    constraint = sampler.chance_constraint(study)
    assert constraint.account[:3] == (0, 0, 0)

    def ask() -> optuna.Trial:
        trial = study.ask()
        assert trial.relative_params and study.trials[-1].system_attrs[DECISION]["certified"]
        return trial

    never_run = ask()
    study.tell(never_run, state=TrialState.FAIL)
    out = ask()
    x = out.suggest_float("x", 0.0, 1.0)
    failed, pruned, running = ask(), ask(), ask()
    for trial, state, loss in (
        (failed, TrialState.FAIL, None),
        (pruned, TrialState.PRUNED, 0.2),
        (running, None, -0.1),
    ):
        trial.suggest_float("x", 0.0, 1.0)
        if loss is not None:
            trial.set_constraint("loss", loss)
        if state is not None:
            study.tell(trial, state=state)
    complete = ask()
    limited(complete)
    study.tell(complete, 0.3)
    loaded = optuna.load_study(study_name="one", storage=storage, sampler=new_sampler(level=0.5))
    each: Any
    for each in (study, loaded):
        constraint = each.sampler.chance_constraint(each)
        violated = 1 + (complete.constraints["loss"] > 0.0)
        assert constraint.account[:3] == counted(each) == (5, violated, 2)
        # The sampler's decision and the outcome of each trial, in order.
        first = constraint.decisions[0]
        assert first["point"] == [pytest.approx(x)] and first["outcomes"] == {"loss": None}
        assert [row["outcomes"]["loss"] for row in constraint.decisions][2:4] == [0.2, -0.1]
        # The constraint also learns from trials without an objective.
        inputs = constraint.model.train_inputs[0].flatten().tolist()
        assert len(inputs) == NUM_INITIAL + 3
        assert {pruned.params["x"], running.params["x"]} < {*inputs}


def test_trials_that_end_beyond_a_bound(new_storage: NewStorage) -> None:
    """They count as violations and the constraint learns; the search does not avoid them."""
    sampler = new_sampler(level=0.5)
    study = optuna.create_study(storage=new_storage(), direction="maximize", sampler=sampler)
    study.optimize(limited, n_trials=NUM_INITIAL)
    for state, side, value in (
        (TrialState.PRUNED, 1, 0.0),  # more than the limit
        (TrialState.FAIL, 1, -0.3),  # stopped before it
        (TrialState.FAIL, -1, 0.0),
        (TrialState.FAIL, 1, None),
    ):
        trial = study.ask()
        trial.suggest_float("x", 0.0, 1.0)
        trial.set_user_attr("beyond", {"loss": side})
        if value is not None:
            trial.set_constraint("loss", value)
        told = pytest.warns(CalibrationWarning, match="bound")
        with nullcontext() if value is not None else told:
            study.tell(trial, state=state)
    rows = [each.system_attrs[DECISION] for each in study.trials[NUM_INITIAL:]]
    assert all(row["certified"] for row in rows)
    constraint = sampler.chance_constraint(study)
    assert constraint.account[:3] == (4, 1, 2)
    sides: list[Any] = [{"loss": 1}, {"loss": 1}, {"loss": -1}, None]
    assert [row.get("beyond") for row in constraint.decisions] == sides
    X = torch.tensor([[each.params["x"]] for each in study.trials[:-1]], dtype=torch.double)
    Y = torch.tensor([[e.constraints["loss"]] for e in study.trials[:-1]], dtype=torch.double)
    beyond = torch.zeros_like(Y)
    beyond[NUM_INITIAL:] = torch.tensor([[1.0], [1.0], [-1.0]])
    expected = unfitted(X, stand_ins(unfitted(X, Y), X, Y, beyond)).eval()
    targets = constraint.models["loss"].train_targets
    torch.testing.assert_close(targets, expected.train_targets)
    look = sampler._look_now(study)
    assert len(look.trials) == NUM_INITIAL + 4 and len(look.ledger) == NUM_INITIAL


@pytest.mark.parametrize("beyond", [{"size": 1}, {"loss": 2}, "loss", None])
def test_a_malformed_bound_is_named_and_taken_for_a_violation(beyond: Any) -> None:
    """A finished trial cannot be changed, so the study continues."""

    def objective(trial: Any) -> float:
        trial.set_user_attr("beyond", beyond if trial.number == 0 else {"loss": 0})
        return limited(trial)

    study = new_study()
    with pytest.warns(CalibrationWarning, match=r"attribute `beyond` of trial 0 must be .*loss"):
        study.optimize(objective, n_trials=NUM_INITIAL + 1)
        constraint = study.sampler.chance_constraint(study)
    assert constraint.num_decisions == 1
    assert not any("beyond" in row for row in constraint.decisions)


def test_points_are_certified_as_optuna_rounds_them() -> None:
    """The best continuous point is between two steps, and the upper step is not safe."""

    def objective(trial: Any) -> float:
        step = trial.suggest_float("step", 0.0, 1.0, step=0.25)
        number = trial.suggest_int("number", 1, 1000, log=True)
        kind = trial.suggest_categorical("kind", ["u", "v"])
        x = trial.suggest_float("x", 0.0, 1.0)
        size = step + math.log10(number) / 3.0 + (kind == "u") + x
        trial.set_constraint("loss", size - 2.0)
        return size

    study = new_study(n_startup_trials=12)
    study.optimize(objective, n_trials=18)
    sampler: Any = study.sampler
    for trial in study.trials[12:]:
        decision = trial.system_attrs[DECISION]
        space = space_of(trial)
        (point,) = space.encoded([trial.params])
        assert decision["point"] == point.tolist()
        if decision["certified"]:
            assert decision["quantiles"]["loss"][1] <= 0.0
    constraint = sampler.chance_constraint(study)
    assert constraint.num_certified > 3
    parameters, stated = sampler.recommendation(study)
    (point,) = space_of(trial).encoded([parameters])
    torch.testing.assert_close(point, stated.candidate.squeeze(0), rtol=0, atol=1e-9)


def test_recommendation() -> None:
    """Of what is minimised; `test_points_are_certified_as_optuna_rounds_them` has the other."""

    def objective(trial: Any) -> float:
        trial.suggest_categorical("kind", ["only"])
        return -limited(trial)

    study = new_study("minimize")
    study.optimize(objective, n_trials=NUM_INITIAL + 4)
    parameters, stated = study.sampler.recommendation(study)
    assert parameters.keys() == study.best_params.keys()
    assert 0.1 < parameters["x"] < 0.6 and stated.certified
    assert stated.lower <= -parameters["x"] <= stated.upper


def test_enqueued_trials_are_decided_about_as_they_are() -> None:
    def objective(trial: Any) -> float:
        y = trial.suggest_float("y", 0.0, 1.0)
        return limited(trial) + y

    study = new_study(n_startup_trials=16, fit=None)
    study.optimize(objective, n_trials=16)
    for given in ({"x": 0.05, "y": 0.5}, {"x": 0.95, "y": 0.5}, {"x": 0.125}):
        study.enqueue_trial(given)
    study.optimize(objective, n_trials=3)
    safe, unsafe, part = study.trials[-3:]
    assert safe.params == {"x": 0.05, "y": 0.5} and safe.system_attrs[DECISION]["certified"]
    assert unsafe.params["x"] == 0.95 and not unsafe.system_attrs[DECISION]["certified"]
    assert part.params["x"] == 0.125
    for trial in (safe, unsafe, part):
        space = space_of(trial)
        assert trial.system_attrs[DECISION]["point"] == space.encoded([trial.params])[0].tolist()


def test_what_another_process_decides_meanwhile_spends_the_budget() -> None:
    """The budget suffices for one: the trial that sees the other decision is not certified."""
    study = new_study(budget=0.5)
    study.optimize(limited, n_trials=NUM_INITIAL)
    original = optuna_decisions.store

    def store_and_be_overtaken(study: Any, trial: Any, key: str, value: Any) -> None:
        original(study, trial, key, value)
        if value and value["certified"]:
            other = study._storage.create_new_trial(study._study_id)
            study._storage.set_trial_system_attr(other, DECISION, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optuna_decisions, "store", store_and_be_overtaken)
        assert study.ask().relative_params
    first, other = study.trials[-2:]
    assert not first.system_attrs[DECISION]["certified"]
    assert other.system_attrs[DECISION]["certified"]
    assert counted(study) == (1, 0, 1)


def test_workers_that_know_too_little_do_not_ask_alike() -> None:
    """Nothing is certified, with a warning. All trials start before the first one ends."""

    def objective(trial: Any) -> float:
        kind = trial.suggest_categorical("kind", ["u", "v"])
        trial.set_constraint("loss", 1.0 + trial.suggest_float("x", 0.0, 1.0) + (kind == "v"))
        return noise(trial.number, 1)

    study = new_study()
    study.optimize(objective, n_trials=NUM_INITIAL)
    with pytest.warns(NotCertifiedWarning, match="not certified"):
        asked = [study.ask().relative_params["x"] for _ in range(3)]
    assert not any(trial.system_attrs[DECISION]["certified"] for trial in study.trials[-3:])
    apart = [abs(x - y) for i, x in enumerate(asked) for y in asked[:i]]
    assert min(apart) > 1e-4


@pytest.mark.slow
def test_several_objectives() -> None:
    """Trials spread along the front within the limit."""
    sampler = new_sampler(n_startup_trials=12)
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)

    def objectives(trial: Any) -> tuple[float, float]:
        return limited(trial), trial.params["x"] ** 2

    study.optimize(objectives, n_trials=20)
    constraint = sampler.chance_constraint(study)
    assert constraint.num_certified >= 4
    certified = [t for t in study.trials if t.system_attrs[DECISION].get("certified")]
    xs = [trial.params["x"] for trial in certified]
    assert max(xs) - min(xs) > 0.1 and max(xs) < 0.65
    with pytest.raises(UnsupportedError, match="one objective"):
        sampler.recommendation(study)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_constraints_func_of_optuna() -> None:
    sampler = new_sampler(constraints_func=lambda trial: [trial.params["x"] - 0.6])
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(lambda trial: trial.suggest_float("x", 0.0, 1.0), n_trials=NUM_INITIAL + 3)
    constraint = sampler.chance_constraint(study)
    assert constraint.account[:3] == counted(study)
    assert constraint.num_certified > 0


def test_stored_and_gone_on_with_by_another_sampler(new_storage: NewStorage) -> None:
    """As in another process; tests/slow/test_optuna_workers.py kills several processes."""
    studies: list[Any] = [
        optuna.create_study(
            study_name="one",
            storage=new_storage(),
            direction="maximize",
            sampler=new_sampler(fit=None),
            load_if_exists=True,
        )
        for _ in range(2)
    ]
    study, other = studies
    study.optimize(limited, n_trials=NUM_INITIAL + 2)
    known, found = (each.sampler.chance_constraint(each) for each in studies)
    assert found.decisions == known.decisions and len(known.decisions) == 2
    parameters = other.ask().relative_params
    # The same point: the next trial there is the last one here.
    assert study.trials[-1].system_attrs["botorch_calib:parameters"] == parameters


def test_studies_of_other_samplers_start_their_books_and_say_so() -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(limited, n_trials=NUM_INITIAL)
    study.sampler = new_sampler()
    with pytest.warns(CalibrationWarning, match=f"{NUM_INITIAL} of {NUM_INITIAL} decisions"):
        study.optimize(limited, n_trials=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationWarning)
        study.optimize(limited, n_trials=1)
        new_study().optimize(limited, n_trials=NUM_INITIAL + 1)


class TestErrors:
    def test_settings(self) -> None:
        wrong = {"level": 1.0, "budget": 0.0, "expansion_share": 1.0, "raw_samples": 1}
        for name, value in wrong.items():
            with pytest.raises(InputDataError, match=name):
                new_sampler(**{name: value})

    def test_no_constraints(self) -> None:
        study = new_study()
        with pytest.raises(InputDataError, match="set_constraint"):
            study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=NUM_INITIAL + 1)

    @pytest.mark.parametrize("variances", [-1.0, [0.1, -1.0], [0.1, "small"]])
    def test_variances(self, variances: Any) -> None:
        def objective(trial: Any) -> float:
            trial.set_user_attr("Yvar", variances)
            return limited(trial)

        with pytest.raises(InputDataError, match="`Yvar of trial 0` must be .* at least 0"):
            new_study().optimize(objective, n_trials=NUM_INITIAL + 1)

    def test_constraints_that_change(self) -> None:
        def objective(trial: Any) -> float:
            value = limited(trial)
            if trial.number == 2:
                trial.set_constraint("size", -1.0)
            return value

        with pytest.raises(InputDataError, match=r"\['loss'\] and \['loss', 'size'\]"):
            new_study().optimize(objective, n_trials=NUM_INITIAL + 1)
