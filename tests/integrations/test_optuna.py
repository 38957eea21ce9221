"""Calibrated models in Optuna: studies by its ``BoTorchSampler``, stored and loaded by Optuna."""

import math
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("optuna_integration")

import optuna
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.multi_objective.parego import qLogNParEGO
from botorch.exceptions.errors import InputDataError
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from botorch.utils.multi_objective.box_decompositions import NondominatedPartitioning
from optuna_integration import BoTorchSampler
from torch import Tensor

from botorch_calib import (
    CalibratedModel,
    LocalizedConformal,
    LogCalibratedConstrainedExpectedImprovement,
    LogCalibratedExpectedImprovement,
    LogCalibratedProbabilityOfFeasibility,
    OnlineConformal,
    QuantileRecalibrator,
    qLogCalibratedNoisyExpectedHypervolumeImprovement,
)
from botorch_calib.integrations import optuna as integration
from botorch_calib.integrations.optuna import CandidatesFunction, calibrated_candidates_func

NewStorage = Callable[..., optuna.storages.RDBStorage]

NUM_INITIAL = 6
BOUNDS = torch.tensor([[0.0, -5.0], [1.0, 5.0]], dtype=torch.double)

# Where the acquisition function has kinks or is flat, the line search may stop there.
pytestmark = pytest.mark.filterwarnings("ignore:Optimization failed:RuntimeWarning")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Optuna logs each trial."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(level)


@pytest.fixture
def new_storage(tmp_path: Path) -> Iterator[NewStorage]:
    """Storages in files. Optuna leaves their connections open, and Python 3.13 warns."""
    opened: list[optuna.storages.RDBStorage] = []

    def new(name: str = "study.db", **options: Any) -> optuna.storages.RDBStorage:
        opened.append(optuna.storages.RDBStorage(f"sqlite:///{tmp_path / name}", **options))
        return opened[-1]

    yield new
    for storage in opened:
        storage.remove_session()
        storage.engine.dispose()


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The acquisition functions that were passed to the search, which is skipped."""
    found: list[Any] = []

    def centre(acqf: AcquisitionFunction, bounds: Tensor, **settings: Any) -> tuple[Tensor, Tensor]:
        found.append(acqf)
        return bounds.mean(dim=0, keepdim=True), torch.zeros(1)

    monkeypatch.setattr(integration, "optimize_acqf", centre)
    return found


def unfitted(X: Tensor, Y: Tensor) -> SingleTaskGP:
    """A Gaussian process with its initial hyperparameters."""
    return SingleTaskGP(X, Y, outcome_transform=Standardize(1))


def candidates_func(*arguments: Any, **options: Any) -> CandidatesFunction:
    """With a short search and a Gaussian process that is not fitted."""
    settings: dict[str, Any] = {"fit": unfitted, "num_restarts": 2, "raw_samples": 16, **options}
    return calibrated_candidates_func(*arguments, **settings)


def new_sampler(function: CandidatesFunction, **options: Any) -> BoTorchSampler:
    return BoTorchSampler(candidates_func=function, n_startup_trials=NUM_INITIAL, seed=0, **options)


def new_study(function: CandidatesFunction, directions: Any = ("minimize",), **options: Any) -> Any:
    return optuna.create_study(directions=directions, sampler=new_sampler(function, **options))


def mixed(trial: Any) -> float:
    """Its minimum, 0, is at rate 1e-2, depth 3 and kind "v"."""
    rate = trial.suggest_float("rate", 1e-4, 1.0, log=True)
    depth = trial.suggest_int("depth", 1, 5)
    kind = trial.suggest_categorical("kind", ["u", "v", "w"])
    return (math.log10(rate) + 2.0) ** 2 + (depth - 3) ** 2 / 4.0 + (kind != "v")


def constrained(trial: Any) -> float:
    """Feasible where ``depth`` exceeds 2."""
    value = mixed(trial)
    trial.set_constraint("depth", 2.5 - trial.params["depth"])
    return value


def data(n: int = 12, num_outcomes: int = 1) -> tuple[Tensor, Tensor]:
    """Inputs within `BOUNDS`, and outcomes."""
    X = torch.rand(n, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    phases = torch.arange(num_outcomes, dtype=torch.double)
    Y = torch.sin(4 * X.sum(dim=-1, keepdim=True) + phases)
    return BOUNDS[0] + X * (BOUNDS[1] - BOUNDS[0]), Y


def in_unit_cube(X: Tensor) -> Tensor:
    return (X - BOUNDS[0]) / (BOUNDS[1] - BOUNDS[0])


class TestStudies:
    def test_mixed_constrained_study_that_is_saved_and_loaded(
        self, tmp_path: Path, new_storage: NewStorage
    ) -> None:
        function = candidates_func(num_restarts=1, raw_samples=8)
        study = optuna.create_study(
            study_name="mixed",
            storage=new_storage(),
            sampler=new_sampler(function),
        )
        study.optimize(constrained, n_trials=NUM_INITIAL + 1)
        sampler = pickle.dumps(study.sampler)
        shutil.copy(tmp_path / "study.db", tmp_path / "copy.db")
        study.optimize(constrained, n_trials=1)
        loaded = optuna.load_study(
            study_name="mixed",
            storage=new_storage("copy.db"),
            sampler=pickle.loads(sampler),
        )
        loaded.optimize(constrained, n_trials=1)
        assert len(loaded.trials) == NUM_INITIAL + 2
        assert loaded.trials[-1].params == study.trials[-1].params
        assert loaded.best_trial.params["depth"] > 2

    def test_minimisation_agrees_with_maximisation(self) -> None:
        studies = [new_study(candidates_func(), [d]) for d in ("minimize", "maximize")]
        for study, sign in zip(studies, (1.0, -1.0), strict=True):
            study.optimize(lambda trial, sign=sign: sign * mixed(trial), n_trials=NUM_INITIAL + 2)
        first, second = ([trial.params for trial in study.trials] for study in studies)
        assert first == second

    def test_calibrators_replay_trials_in_the_order_of_their_numbers(self) -> None:
        seen: list[Tensor] = []

        def fit(X: Tensor, Y: Tensor) -> SingleTaskGP:
            seen.append(Y)
            return unfitted(X, Y)

        study = new_study(candidates_func(fit=fit), ["maximize"])
        started = [study.ask() for _ in range(NUM_INITIAL)]
        for trial in started:
            trial.suggest_float("x", 0.0, 1.0)
        for trial in reversed(started):
            study.tell(trial, float(trial.number))
        study.ask().suggest_float("x", 0.0, 1.0)
        expected = torch.arange(NUM_INITIAL, dtype=torch.double).unsqueeze(-1)
        torch.testing.assert_close(seen[0], expected)

    def test_all_trials_may_be_running(self) -> None:
        """The sampler counts them among its startup trials."""
        study = new_study(candidates_func(), consider_running_trials=True)
        with pytest.MonkeyPatch.context() as patch:
            study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
            patch.setattr(study.sampler, "_n_startup_trials", 1)
            for _ in range(3):
                assert 0 <= study.ask().suggest_float("x", 0, 1) <= 1

    @pytest.mark.parametrize("value", [math.inf, 1e200])
    def test_infinite_values_are_refused(self, value: float) -> None:
        """So are values with infinite squares, which would lead to gradients of NaN."""
        study = new_study(candidates_func())

        def infinite(trial: Any) -> float:
            return value if trial.number == 2 else trial.suggest_float("x", 0, 1)

        with pytest.raises(InputDataError, match="objective of a complete trial is infinite"):
            study.optimize(lambda t: (mixed(t), infinite(t))[1], n_trials=NUM_INITIAL + 1)


class TestAcquisitionFunctions:
    def test_one_objective(self, searched: list[Any]) -> None:
        X, Y = data()
        pending = BOUNDS.mean(dim=0, keepdim=True)
        point = candidates_func()(X, Y, None, BOUNDS, pending)
        torch.testing.assert_close(point, pending)  # the centre, in units of the parameters
        (acqf,) = searched
        assert type(acqf) is LogCalibratedExpectedImprovement
        assert acqf.maximize and acqf.best_f == Y.max()
        torch.testing.assert_close(acqf.X_pending, in_unit_cube(pending))
        gp = unfitted(in_unit_cube(X), Y)
        model = CalibratedModel.from_history(gp, LocalizedConformal(0.2))
        expected = LogCalibratedExpectedImprovement(model, Y.max(), X_pending=acqf.X_pending)
        at = torch.rand(5, 1, 2, dtype=torch.double)
        torch.testing.assert_close(acqf(at), expected(at), rtol=0, atol=0)

    def test_one_objective_under_constraints(self, searched: list[Any]) -> None:
        X, Y = data(num_outcomes=3)
        candidates_func()(X, Y[:, :1], Y[:, 1:], BOUNDS, X[:1])
        (acqf,) = searched
        assert type(acqf) is LogCalibratedConstrainedExpectedImprovement
        feasible = (Y[:, 1:] <= 0).all(dim=-1)
        assert 0 < feasible.sum() < len(Y)
        assert acqf.best_f == Y[feasible, 0].max() < Y[:, 0].max()
        assert (acqf.objective_index, acqf.maximize) == (0, True)
        assert acqf.constraints == {1: (None, 0.0), 2: (None, 0.0)}
        torch.testing.assert_close(acqf.X_pending, in_unit_cube(X[:1]))

    def test_no_feasible_trial(self, searched: list[Any]) -> None:
        X, Y = data(num_outcomes=2)
        candidates_func()(X, Y[:, :1], Y[:, 1:].abs() + 0.1, BOUNDS, None)
        (acqf,) = searched
        assert type(acqf) is LogCalibratedProbabilityOfFeasibility
        assert acqf.constraints == {1: (None, 0.0)}

    @pytest.mark.parametrize("level", [-2.0, 0.0, 2.0])  # all, some and none of them feasible
    def test_several_objectives(self, searched: list[Any], level: float) -> None:
        X, Y = data(num_outcomes=3)
        objectives, constraint = Y[:, :2] * torch.tensor([1, -1]), Y[:, 2:] + level
        candidates_func()(X, objectives, constraint, BOUNDS, BOUNDS[1:])
        acqf = searched[0]
        assert type(searched[0]) is qLogCalibratedNoisyExpectedHypervolumeImprovement
        assert [type(model) for model in acqf.model.models] == [CalibratedModel] * 3
        considered = objectives if level == 2 else objectives[(constraint <= 0).squeeze(-1)]
        front = torch.stack(
            [
                y
                for y in considered
                if not any((o >= y).all() and (o != y).any() for o in considered)
            ]
        )
        assert len(front) > 1
        nadir, ideal = front.min(dim=0).values, front.max(dim=0).values
        torch.testing.assert_close(acqf.ref_point, nadir - 0.1 * (ideal - nadir))
        samples = torch.rand(4, 1, 3, dtype=torch.double)
        torch.testing.assert_close(acqf.objective(samples), samples[..., :2])
        (constraint_of_samples,) = acqf.constraints
        torch.testing.assert_close(constraint_of_samples(samples), samples[..., 2])
        assert acqf(torch.rand(3, 1, 2, dtype=torch.double)).isfinite().all()
        candidates_func()(X, objectives, None, BOUNDS, X[:0])  # no constraints or running trials
        assert searched[1].constraints is None and searched[1].X_pending is None

    def test_many_objectives_without_a_cell(
        self, searched: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The approximate decomposition may drop all cells: the improvement would be 0."""
        empty = torch.zeros(2, 0, 5, dtype=torch.double)
        monkeypatch.setattr(NondominatedPartitioning, "partition_space", lambda _: None)
        monkeypatch.setattr(NondominatedPartitioning, "get_hypercell_bounds", lambda _: empty)
        X, Y = data(4, num_outcomes=6)
        candidates_func()(X, Y[:, :5], Y[:, 5:], BOUNDS, BOUNDS[1:])
        (acqf,) = searched
        assert type(acqf) is qLogNParEGO
        models: Any = acqf.model.models
        assert acqf.scalarization_weights.sum() == pytest.approx(1.0)
        assert [type(model) for model in models] == [CalibratedModel] * 6
        values = acqf(torch.rand(3, 1, 2, dtype=torch.double))
        assert values.isfinite().all() and values.std() > 0.0

    def test_options_reach_the_models(self, searched: list[Any]) -> None:
        X, Y = data()
        calibrator = QuantileRecalibrator(method="exact", step_size=0.5)
        options: dict[str, Any] = {"residuals": "loo", "excess": "objective"}
        candidates_func(calibrator, **options)(X, Y, None, BOUNDS, None)
        gp = unfitted(in_unit_cube(X), Y)
        expected = CalibratedModel.from_history(gp, calibrator, **options)
        models = (searched[0].model, expected)
        variances = (model.posterior(in_unit_cube(X)).variance for model in models)
        torch.testing.assert_close(*variances, rtol=0, atol=0)

    def test_a_calibrator_for_each_outcome(self, searched: list[Any]) -> None:
        X, Y = data(num_outcomes=2)
        learned = OnlineConformal(0.1)
        learned.update(X, Y[:, 0])
        function = candidates_func([LocalizedConformal(0.2), learned])
        for _ in range(2):
            function(X, Y[:, :1], Y[:, 1:], BOUNDS, None)
        for acqf in searched:  # each starts untrained, and the templates do not change
            calibrators = [model.calibrator for model in acqf.model.models]
            assert [type(c) for c in calibrators] == [LocalizedConformal, OnlineConformal]
            assert [c.num_updates for c in calibrators] == [12, 12]
        assert learned.num_updates == 12
        function = candidates_func([LocalizedConformal(0.2)] * 3)
        with pytest.raises(InputDataError, match="2 outcomes: 1 objectives and 1 constraints"):
            function(X, Y[:, :1], Y[:, 1:], BOUNDS, None)

    @pytest.mark.parametrize("constrained", [False, True])
    def test_small_units_of_the_outcomes_change_nothing(self, constrained: bool) -> None:
        """BoTorch's ``Standardize`` does not scale outcomes with a spread of 1e-12."""
        X, Y = data(num_outcomes=2)
        function = candidates_func(fit=None)
        points = []
        for unit in (1.0, 2.0**-40):
            objective, constraint = (unit * Y).split(1, dim=-1)
            torch.manual_seed(0)
            points.append(function(X, objective, constraint if constrained else None, BOUNDS, None))
        torch.testing.assert_close(points[1], points[0], rtol=0, atol=1e-6)

    def test_random_until_two_trials_are_complete(self, searched: list[Any]) -> None:
        X, Y = data()
        for n in (0, 1):
            point = candidates_func()(X[:n], Y[:n], None, BOUNDS, X[n:])
            assert point.shape == (1, 2)
            assert ((BOUNDS[0] <= point) & (point <= BOUNDS[1])).all()
        assert not searched


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"calibrator": LocalizedConformal}, "`calibrator` must be a calibrator"),
        ({"calibrator": [LocalizedConformal(0.2), "other"]}, "a sequence of one for each"),
        ({"residuals": "all"}, "residuals"),
        ({"num_restarts": 8, "raw_samples": 4}, "raw_samples"),
    ],
)
def test_wrong_arguments_are_refused_at_once(options: Any, match: str) -> None:
    with pytest.raises(InputDataError, match=match):
        calibrated_candidates_func(**options)
