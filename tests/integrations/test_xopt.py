"""Calibrated models in Xopt: built, fitted, used and stored by Xopt itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("xopt")

from botorch.exceptions.errors import InputDataError
from botorch.models import SingleTaskGP
from torch import Tensor
from xopt import VOCS, Evaluator, Xopt
from xopt.generators.bayesian import (
    ExpectedImprovementGenerator,
    MOBOGenerator,
    UpperConfidenceBoundGenerator,
)
from xopt.generators.bayesian.models.standard import StandardModelConstructor

from botorch_calib import (
    CalibratedModel,
    CalibratedModelList,
    GaussianScore,
    LocalizedConformal,
    OnlineConformal,
    QuantileRecalibrator,
)
from botorch_calib.integrations.xopt import CalibratedModelConstructor, load_xopt
from botorch_calib.models.predict import predict
from tests.long_grids import mostly_slow

# Importing Xopt makes double precision the default of the process. Users of Xopt have this default,
# but tests that are imported later must not.
torch.set_default_dtype(torch.float32)


@pytest.fixture(autouse=True)
def precision_of_xopt(default_precision: None) -> None:
    torch.set_default_dtype(torch.double)


NUM_INITIAL = 5

# Where the acquisition function has kinks or is flat, the line search may stop there.
pytestmark = pytest.mark.filterwarnings("ignore:Optimization failed:RuntimeWarning")

CONTINUOUS: dict[str, Any] = {"a": [0.0, 1.0], "b": [0.0, 1.0]}
MIXED: dict[str, Any] = {"a": [0.0, 1.0], "b": {0.0, 0.5, 1.0}}


def valley(inputs: dict[str, float]) -> dict[str, float]:
    """``y`` has its minimum, 0, at (0.3, 0.5)."""
    a, b = inputs["a"], inputs["b"]
    return {"y": (a - 0.3) ** 2 + (b - 0.5) ** 2, "z": a + b, "w": b}


def noisy_valley(inputs: dict[str, float]) -> dict[str, float]:
    return {**valley(inputs), "y_var": 0.01}


def new_xopt(
    constructor: StandardModelConstructor,
    generator: Any = ExpectedImprovementGenerator,
    variables: Any = CONTINUOUS,
    objectives: Sequence[str] = ("y",),
    constrained: bool = False,
    function: Any = valley,
    **settings: Any,
) -> Xopt:
    """After the initial evaluations; ``y`` is minimised, all else maximised."""
    vocs = VOCS(
        variables=variables,
        objectives={name: "MINIMIZE" if name == "y" else "MAXIMIZE" for name in objectives},
        constraints={"z": ["LESS_THAN", 1.2]} if constrained else {},
    )
    made = generator(vocs=vocs, gp_constructor=constructor, n_monte_carlo_samples=32, **settings)
    made.numerical_optimizer.n_restarts = 2
    torch.manual_seed(0)
    X = Xopt(generator=made, evaluator=Evaluator(function=function))
    X.random_evaluate(NUM_INITIAL, seed=0)
    return X


def models_of(X: Xopt) -> list[Any]:
    """The models of the last step."""
    assert type(X.generator.model) is CalibratedModelList
    return list(X.generator.model.models)


def moments(model: Any) -> Tensor:
    X = torch.linspace(0, 1, 7, dtype=torch.double).unsqueeze(-1).expand(7, 2)
    posterior = model.posterior(X)
    return torch.stack([posterior.mean, posterior.variance])


def test_mixed_constrained_run_that_is_saved_and_loaded(tmp_path: Path) -> None:
    options = {"alpha": 0.1, "lengthscale": float("inf")}
    constructor = CalibratedModelConstructor(
        calibrator=LocalizedConformal, calibrator_options=options, train_model=False
    )
    X = new_xopt(constructor, variables=MIXED, constrained=True)
    for _ in range(6):
        X.step()
    X.dump(str(tmp_path / "run.yaml"))
    loaded = load_xopt(tmp_path / "run.yaml")
    assert type(loaded.generator) is ExpectedImprovementGenerator
    assert loaded.generator.gp_constructor == constructor
    for _ in range(3):
        loaded.step()
    assert len(loaded.data) == NUM_INITIAL + 9
    # The rows keep their order, in which the calibrator replays them.
    torch.testing.assert_close(
        torch.tensor(loaded.data["a"].to_numpy()[:-3]), torch.tensor(X.data["a"].to_numpy())
    )
    for model in models_of(loaded):
        assert model.calibrator.num_updates == NUM_INITIAL + 8
        assert model.calibrator.alpha == 0.1
    feasible = loaded.data[loaded.data["z"] <= 1.2]
    assert set(feasible["b"]) <= MIXED["b"]
    assert feasible["y"].idxmin() >= NUM_INITIAL  # better than all at random


@pytest.mark.parametrize("text", ["", "vocs:\n  variables: {}\n", "generator:\n"])
def test_a_file_without_a_generator_is_no_dump(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(InputDataError, match="'.*run.yaml' has no generator. Was the process"):
        load_xopt(tmp_path / "run.yaml")


def test_gaussian_processes_are_those_of_xopt() -> None:
    X = new_xopt(CalibratedModelConstructor(), constrained=True)
    X.step()
    arguments = (["a", "b"], ["y", "z"], X.data[:NUM_INITIAL], CONTINUOUS)
    plain = StandardModelConstructor().build_model(*arguments)
    for model, gp in zip(models_of(X), plain.models, strict=True):
        assert type(model) is CalibratedModel and type(model.model) is SingleTaskGP
        torch.testing.assert_close(moments(model.model), moments(gp))
        expected = CalibratedModel.from_history(gp, LocalizedConformal(0.2))
        torch.testing.assert_close(moments(model), moments(expected))
        assert not torch.allclose(moments(model), moments(gp))


SEVERAL = {"objectives": ("y", "w"), "constrained": True, "reference_point": {"y": 1.0, "w": 0.0}}
GENERATORS = [
    (ExpectedImprovementGenerator, {"turbo_controller": "optimize"}),
    (UpperConfidenceBoundGenerator, {}),
    (MOBOGenerator, SEVERAL),
]


# The search passes the corner that was evaluated.
@pytest.mark.filterwarnings("ignore:A not p.d.")
@pytest.mark.parametrize(("generator", "settings"), mostly_slow(GENERATORS, GENERATORS[:2]))
def test_generators(generator: Any, settings: dict[str, Any]) -> None:
    constructor = CalibratedModelConstructor(train_model=False)
    X = new_xopt(constructor, generator, **settings)
    X.step()
    X.step()
    assert len(X.data) == NUM_INITIAL + 2
    assert {type(model) for model in models_of(X)} == {CalibratedModel}
    for model in models_of(X):  # TuRBO drops data outside of its region
        assert model.calibrator.num_updates == len(model.train_targets)


def test_batches() -> None:
    X = new_xopt(CalibratedModelConstructor(train_model=False), constrained=True)
    first, second = X.generator.generate(2)
    assert abs(first["a"] - second["a"]) + abs(first["b"] - second["b"]) > 0.01


def test_given_noise() -> None:
    """Xopt interpolates the given noise by another Gaussian process."""
    with pytest.warns(UserWarning, match="Heteroskedastic modeling"):
        X = new_xopt(CalibratedModelConstructor(), function=noisy_valley)
        X.step()
    (model,) = models_of(X)
    points = torch.rand(5, 1, 2, dtype=torch.double)
    observed = model.model.posterior(points, observation_noise=True)
    mean, deviation, *_ = predict(model.model, points, objective=False).spread()
    torch.testing.assert_close(mean, observed.mean)
    torch.testing.assert_close(deviation.square(), observed.variance)
    assert model.calibrator.num_updates == NUM_INITIAL


def test_options_reach_the_models() -> None:
    options: dict[str, Any] = {"method": "exact", "step_size": 0.5}
    constructor = CalibratedModelConstructor(
        calibrator="QuantileRecalibrator",
        calibrator_options=options,
        residuals="loo",
        excess="objective",
        train_model=False,
    )
    X = new_xopt(constructor)
    X.generator.train_model()
    (model,) = models_of(X)
    expected = CalibratedModel.from_history(
        model.model, QuantileRecalibrator(**options), residuals="loo", excess="objective"
    )
    torch.testing.assert_close(moments(model), moments(expected), rtol=0, atol=0)


def test_calibrators_of_the_user_and_of_the_package() -> None:
    class Mine(LocalizedConformal):
        """A calibrator from outside of this package."""

    for calibrator, stored in ((Mine, Mine), (OnlineConformal, "OnlineConformal")):
        constructor = CalibratedModelConstructor(
            calibrator=calibrator, calibrator_options={"alpha": 0.3}, train_model=False
        )
        assert constructor.calibrator == stored
        X = new_xopt(constructor)
        X.generator.train_model()
        assert type(models_of(X)[0].calibrator) is calibrator


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"calibrator": LocalizedConformal(alpha=0.2)}, InputDataError, "must be a class"),
        ({"residuals": "all"}, InputDataError, "residuals"),
        (
            {"calibrator_options": {"alpha": 0.2, "score": GaussianScore()}},
            InputDataError,
            "`score` is not a plain",
        ),
        ({"calibrator_options": {"alfa": 0.2}}, TypeError, "alfa"),
        ({"calibrator": "OnlineConformal"}, TypeError, "alpha"),  # which has no default
    ],
)
def test_wrong_arguments_are_refused_at_once(
    arguments: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        CalibratedModelConstructor(**arguments)
    constructor = CalibratedModelConstructor()
    with pytest.raises(error, match=match):  # an assignment of the last one
        for name, value in arguments.items():
            setattr(constructor, name, value)


def test_runs_with_models_of_xopt_load_too(tmp_path: Path) -> None:
    X = new_xopt(StandardModelConstructor())
    X.dump(str(tmp_path / "run.yaml"))
    assert type(load_xopt(tmp_path / "run.yaml").generator.gp_constructor) is (
        StandardModelConstructor
    )
