"""`CensoredDelayModel` against dense algebra, new models, and its base model."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models import ModelList, ModelListGP, MultiTaskGP, PairwiseGP, SingleTaskGP
from botorch.models.transforms import Log, Standardize
from botorch.posteriors import GPyTorchPosterior
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.datasets import SupervisedDataset
from torch import Tensor
from torch.testing import assert_close

from botorch_calib import CalibratedModel, OnlineConformal
from botorch_calib.models import CensoredDelayModel
from tests.contracts import ModelContract
from tests.gps import make_multitask, make_variational
from tests.models.delayed_cases import DOUBLE, Setting

# MultiTaskGP multiplies by sparse matrices, on which torch comments once per process.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")

settings = pytest.mark.parametrize(
    "setting",
    [Setting(1), Setting(3, transforms=True), Setting(3, True), Setting(1, True, True)],
    ids=["d=1", "d=3, transforms", "d=3, fixed noise", "d=1, fixed noise, transforms"],
)
few_settings = pytest.mark.parametrize(
    "setting",
    [Setting(), Setting(fixed_noise=True, transforms=True)],
    ids=["plain", "fixed noise, transforms"],
)


class TestHallucinated(ModelContract):
    """With transforms, given noise and after an observation."""

    def make_model(self, dtype: torch.dtype) -> CensoredDelayModel:
        setting = Setting(fixed_noise=True, transforms=True, noise=0.1, dtype=dtype)
        model = setting.model(4, "hallucinate")
        model.observe(model.X_pending[:1], torch.tensor([[30.0]], dtype=dtype))
        return model

    def _X(self, *shape: int, dtype: torch.dtype = torch.double) -> Tensor:
        return 10.0 * super()._X(*shape, dtype=dtype) - 5.0

    def test_conditioning(self) -> None:
        # The values -1 and 1 of the contract are hardly any news in these units.
        model, X = self.make_model(torch.double), self._X(4)
        conditioned: Any = model.condition_on_observations(
            X[:1], torch.tensor([[90.0]], **DOUBLE), noise=torch.tensor([[0.1]], **DOUBLE)
        )
        assert type(conditioned) is SingleTaskGP
        before: Any = model.posterior(X)
        assert (conditioned.posterior(X).mean - before.mean).abs().max() > 1.0


def moments(posterior: Any) -> tuple[Tensor, Tensor]:
    """Mean ``n`` and covariance ``n x n`` of a Gaussian posterior."""
    assert type(posterior) is GPyTorchPosterior
    return posterior.mean.squeeze(-1), posterior.distribution.covariance_matrix


def assert_same(model: Any, other: Any, X: Tensor, atol: float = 1e-9) -> None:
    """Equal posteriors of any kind, to ``atol`` times the scale of the outcome."""
    result, expected = model.posterior(X), other.posterior(X)
    scale = expected.variance.detach().max().sqrt().item()
    assert_close(result.mean, expected.mean, rtol=0, atol=atol * max(scale, 1.0))
    assert_close(result.variance, expected.variance, rtol=0, atol=atol * max(scale, 1.0) ** 2)


def grid(setting: Setting, num: int = 9) -> Tensor:
    return setting.points(num, seed=21).to(setting.dtype)


# ------------------------------------------------------------------ the posterior


@settings
@pytest.mark.parametrize("num_pending", [0, 1, 20])
def test_equation_1(setting, num_pending):
    """Mean and joint covariance are the paper's, in double precision to 1e-9 of the scale."""
    X, X_pending = grid(setting), setting.pending(num_pending)
    model = CensoredDelayModel(setting.gp(), X_pending, setting.censor_value)
    mean, covariance = (tensor.detach().numpy() for tensor in moments(model.posterior(X)))
    expected_mean, expected_covariance = setting.dense(X, X_pending)
    scale = setting.units()[-1]
    assert abs(mean - expected_mean).max() < 1e-9 * scale
    assert abs(covariance - expected_covariance).max() < 1e-9 * scale**2
    variance = model.posterior(X).variance.squeeze(-1).detach().numpy()
    assert abs(variance - covariance.diagonal()).max() < 1e-9 * scale**2
    assert model.Y_imputed.shape == (num_pending, 1)
    assert (model.Y_imputed == setting.censor_value).all()
    assert torch.equal(model.X_pending, X_pending)
    observed = model.posterior(X, observation_noise=True).variance.squeeze(-1).detach().numpy()
    noise = setting.data()[2].mean().item() if setting.fixed_noise else scale**2 * setting.noise
    assert abs(observed - variance - noise).max() < 1e-9 * scale**2
    if num_pending:  # censoring shows
        ignoring = setting.gp().posterior(X).mean.squeeze(-1).detach().numpy()
        assert (mean < ignoring).any() and abs(mean - ignoring).max() > 0.05 * scale


@pytest.mark.parametrize(("noise", "atol", "transforms"), [(0.02, 2e-3, True), (1e-3, 2e-2, False)])
def test_single_precision(noise, atol, transforms):
    """As accurate as single precision allows: the unit roundoff times the condition number.

    That is up to 34 points over the noise, so 6e-8 * 34 / 0.02 = 1e-4, and 2e-3 for the less.
    """
    setting = Setting(noise=noise, transforms=transforms, dtype=torch.float32)
    X, X_pending = grid(setting), setting.pending(20)
    model = CensoredDelayModel(setting.gp(), X_pending.float(), setting.censor_value)
    posterior = model.posterior(X)
    assert posterior.mean.dtype == posterior.variance.dtype == torch.float32
    assert model.X_pending.dtype == model.Y_imputed.dtype == torch.float32
    # Points in single precision, and all else in double.
    expected_mean, expected_covariance = setting.dense(X, X_pending.float())
    scale = setting.units()[-1]
    mean, covariance = (tensor.detach().double().numpy() for tensor in moments(posterior))
    assert abs(mean - expected_mean).max() < atol * scale
    assert abs(covariance - expected_covariance).max() < atol * scale**2


@settings
def test_hallucination(setting):
    """The mean stays, and the covariance shrinks as by observations of any value."""
    gp, X_pending, X = setting.gp(), setting.pending(20), grid(setting)
    model = CensoredDelayModel(gp, X_pending, imputation="hallucinate")
    scale = setting.units()[-1]
    mean, covariance = moments(model.posterior(X))
    base_mean, base_covariance = moments(gp.posterior(X))
    assert_close(mean, base_mean, rtol=0, atol=1e-9 * scale)
    _, expected = setting.dense(X, X_pending)
    assert_close(covariance, torch.from_numpy(expected), rtol=0, atol=1e-9 * scale**2)
    assert (covariance.diagonal() < base_covariance.diagonal()).all()
    assert_close(model.Y_imputed, gp.posterior(X_pending).mean.detach(), rtol=0, atol=1e-12)


@few_settings
def test_no_imputation(setting):
    gp, X = setting.gp(), grid(setting)
    model = CensoredDelayModel(gp, setting.pending(5), imputation="none")
    assert model.gaussian_model is gp is model.model
    assert model.Y_imputed.shape == (0, 1) and len(model.X_pending) == 5
    for result, expected in zip(moments(model.posterior(X)), moments(gp.posterior(X)), strict=True):
        assert_close(result, expected, rtol=1e-12, atol=1e-12)  # the engine's, and GPyTorch's
    assert CensoredDelayModel(gp, None, 0.0).gaussian_model is gp


# ------------------------------------------------------------------ pending points come and go


@few_settings
@pytest.mark.parametrize("imputation", ["censor", "hallucinate"])
def test_steps_and_order(setting, imputation):
    """Points added one by one, in any order, make the same model as all at once."""
    gp, X_pending, X = setting.gp(), setting.pending(6), grid(setting)
    at_once = CensoredDelayModel(gp, X_pending, setting.censor_value, imputation)
    stepwise = CensoredDelayModel(gp, None, setting.censor_value, imputation)
    for x in X_pending.split([1, 2, 3]):
        before = stepwise
        stepwise = before.with_pending(x)
        assert len(stepwise.X_pending) == len(before.X_pending) + len(x)  # `before` is as it was
    assert torch.equal(stepwise.X_pending, X_pending)
    assert_same(stepwise, at_once, X)
    backwards = CensoredDelayModel(gp, X_pending.flip(0), setting.censor_value, imputation)
    assert_same(backwards, at_once, X)


@few_settings
@pytest.mark.parametrize(
    ("imputation", "with_yvar"),
    [("censor", False), ("censor", True), ("hallucinate", True), ("none", False)],
)
def test_resolution(setting, imputation, with_yvar):
    """Rows that arrive count as observed: as in a new model, and as in dense algebra."""
    X_pending, X = setting.pending(6), grid(setting)
    rows = [4, 3]  # row 4 is a copy of rows 0 and 1, which stay
    arrived, Y = X_pending[rows], setting.values(X_pending[rows]) + setting.units()[-1]
    Yvar = 0.5 * Y.abs() if with_yvar and setting.fixed_noise else None
    model = CensoredDelayModel(setting.gp(), X_pending, setting.censor_value, imputation)
    before = moments(model.posterior(X))
    resolved = model.resolve(arrived, Y, Yvar)
    assert torch.equal(resolved.X_pending, X_pending[[1, 2, 4, 5]])
    assert resolved.train_targets.shape == (setting.num + 2,)
    gp = setting.gp()
    gp.posterior(X)
    noise = {}
    if setting.fixed_noise:
        scale = setting.units()[-1]
        noise = {"noise": gp.likelihood.noise.mean().expand(2, 1)}
        if Yvar is not None:
            noise = {"noise": Yvar / scale**2}
    observed = gp.condition_on_observations(arrived, Y, **noise)
    anew = CensoredDelayModel(observed, X_pending[[1, 2, 4, 5]], setting.censor_value, imputation)
    assert_same(resolved.model, observed, X)
    assert_same(resolved, anew, X)
    if imputation == "censor" and Yvar is None:
        values = torch.cat([Y, torch.full((4, 1), setting.censor_value, **DOUBLE)])
        mean, covariance = setting.dense(X, torch.cat([arrived, X_pending[[1, 2, 4, 5]]]), values)
        result = moments(resolved.posterior(X))
        assert_close(result[0], torch.from_numpy(mean), rtol=0, atol=1e-7)
        assert_close(result[1], torch.from_numpy(covariance), rtol=0, atol=1e-7)
    # In place, by `observe`, and beside it a row that was not pending.
    again = CensoredDelayModel(setting.gp(), X_pending, setting.censor_value, imputation)
    again.observe(arrived, Y, Yvar)
    assert_same(again, resolved, X)
    assert torch.equal(again.X_pending, resolved.X_pending)
    for result, expected in zip(moments(model.posterior(X)), before, strict=True):
        assert torch.equal(result, expected)


def test_values_with_noise_in_training_mode():
    """After `load_state_dict`, too, the outcome transform does not learn from the values."""
    setting = Setting(fixed_noise=True, transforms=True)
    x, X = setting.points(3, seed=20), grid(setting)
    y = setting.values(x) + 3.0

    def after(gp: SingleTaskGP) -> tuple[Tensor, Tensor]:
        added = CensoredDelayModel(gp).with_observations(x, y, 0.5 * y.abs())
        return moments(added.posterior(X))

    for result, expected in zip(after(setting.gp().train()), after(setting.gp()), strict=True):
        assert torch.equal(result, expected)


def test_observing_what_was_not_pending():
    setting = Setting()
    model, X = setting.model(3), grid(setting)
    x, y = torch.full((1, 2), 0.5, **DOUBLE), torch.tensor([[0.7]], **DOUBLE)
    with pytest.raises(InputDataError, match="Row 0 of `X` is not pending"):
        model.resolve(x, y)
    added = model.with_observations(x, y)
    assert len(added.X_pending) == 3 and added.train_targets.shape == (15,)
    model.observe(x, y)
    assert_same(model, added, X)
    everything = model.with_observations(model.X_pending, setting.values(model.X_pending))
    assert everything.X_pending.shape == (0, 2) and everything.gaussian_model is everything.model
    # Of three equal points, two values resolve two.
    model = CensoredDelayModel(setting.gp(), x.expand(3, 2), setting.censor_value)
    assert len(model.resolve(x.expand(2, 2), y.expand(2, 1)).X_pending) == 1
    with pytest.raises(InputDataError, match="Row 3 of `X` is not pending"):
        model.resolve(x.expand(4, 2), y.expand(4, 1))


@few_settings
def test_the_base_model_is_left_alone(setting):
    gp, X = setting.gp(), grid(setting)
    expected, state = moments(gp.posterior(X)), copy.deepcopy(gp.state_dict())
    strategy, inputs, targets = gp.prediction_strategy, gp.train_inputs[0], gp.train_targets
    for imputation in ("censor", "hallucinate", "none"):
        model = CensoredDelayModel(gp, setting.pending(6), setting.censor_value, imputation)
        model.posterior(X)
        model.with_pending(X).posterior(X)
        model.resolve(model.X_pending[:2], setting.values(model.X_pending[:2])).posterior(X)
        model.fantasize(X[:2], SobolQMCNormalSampler(torch.Size([2]), seed=0)).posterior(X)
        model.observe(model.X_pending[:2], setting.values(model.X_pending[:2]))
        model.posterior(X)
    assert gp.prediction_strategy is strategy and not gp.training
    assert gp.train_inputs[0] is inputs and gp.train_targets is targets
    assert all(torch.equal(value, state[key]) for key, value in gp.state_dict().items())
    for result, before in zip(moments(gp.posterior(X)), expected, strict=True):
        assert torch.equal(result, before)


# ------------------------------------------------------------------ no refit, no factorisation


@pytest.mark.parametrize(
    ("how", "imputation"), [("through the wrapper", "censor"), ("behind its back", "hallucinate")]
)
def test_refitted_base(how, imputation):
    """The cached conditioned process is renewed when the base model is trained."""
    setting = Setting(transforms=True)
    model, X = setting.model(5, imputation), grid(setting)
    before = model.posterior(X).mean
    base = model.model
    (model if how == "through the wrapper" else base).train()
    base.covar_module.lengthscale = 2.0 * base.covar_module.lengthscale
    base.eval()
    anew = CensoredDelayModel(copy.deepcopy(base), setting.pending(5), 10.0, imputation)
    assert_same(model, anew, X)
    assert not torch.allclose(model.posterior(X).mean, before, atol=1e-3)


@pytest.mark.parametrize("setting", [{"censor_value": 20.0}, {"imputation": "hallucinate"}])
def test_settings_that_change(setting):
    model, X = Setting().model(5), grid(Setting())
    before = model.posterior(X).mean
    for name, value in setting.items():
        setattr(model, name, value)
    arguments = {"censor_value": model.censor_value, "imputation": model.imputation}
    assert_same(model, CensoredDelayModel(Setting().gp(), model.X_pending, **arguments), X)
    assert not torch.allclose(model.posterior(X).mean, before, atol=1e-3)


# ------------------------------------------------------------------ life as a module


@few_settings
@pytest.mark.parametrize(
    ("imputation", "source_num", "target_num", "nested"),
    [("censor", 0, 3, False), ("hallucinate", 5, 2, True), ("none", 2, 5, False)],
)
def test_state_with_another_number_of_points(setting, imputation, source_num, target_num, nested):
    """States carry pending points and hyperparameters; the data are the target's."""
    source, target = (setting.model(num, imputation) for num in (source_num, target_num))
    with torch.no_grad():
        for parameter in source.model.parameters():
            parameter.add_(0.3)
    X = grid(setting)
    source.train()  # drops caches
    before = target.posterior(X).mean
    if nested:  # as a part of another module, where torch does not call `load_state_dict`
        torch.nn.ModuleList([target]).load_state_dict(torch.nn.ModuleList([source]).state_dict())
    else:
        target.load_state_dict(source.state_dict())
    assert torch.equal(target.X_pending, source.X_pending)
    assert len(target.Y_imputed) == (0 if imputation == "none" else source_num)
    assert_same(target, source, X)
    assert not torch.allclose(target.posterior(X).mean, before, atol=1e-4)


BAD_STATES: dict[str, tuple[Any, str]] = {
    "width": (torch.zeros(2, 3, **DOUBLE), r"n x d, not \(2, 3\)"),
    "dimensions": (torch.zeros(2, **DOUBLE), "n x d"),
    "points": (None, "X_pending"),
    "unknown": ("something.else", "something.else"),
    "base": ("model.covar_module.raw_lengthscale", "raw_lengthscale"),
}


@pytest.mark.parametrize(("change", "match"), BAD_STATES.values(), ids=BAD_STATES)
def test_bad_states_change_nothing(change, match):
    setting = Setting()
    model, other, X = setting.model(3), setting.model(5), grid(setting)
    state = dict(other.state_dict())
    if isinstance(change, str):
        if change in state:
            del state[change]
        else:
            state[change] = torch.ones(1)
    elif change is None:
        del state["X_pending"]
    else:
        state["X_pending"] = change
    before, pending = model.posterior(X).mean, model.X_pending
    with pytest.raises(RuntimeError, match=match):
        model.load_state_dict(state)
    assert torch.equal(model.X_pending, pending)
    assert_close(model.posterior(X).mean, before)


def test_multi_task_base():
    """The task feature of the output task may be left out of points."""
    gp, X = make_multitask(), Setting().points(3, seed=8)
    full = torch.cat([X, torch.zeros(3, 1, **DOUBLE)], dim=-1)
    models = [CensoredDelayModel(gp, points, -2.0) for points in (X, full)]
    assert isinstance(models[0].gaussian_model, MultiTaskGP)
    assert torch.equal(models[0].X_pending, full)
    assert_same(models[0], models[1], X)
    assert (models[0].posterior(X).mean < gp.posterior(X).mean).all()
    resolved = models[0].resolve(X[:1], torch.zeros(1, 1, **DOUBLE))
    assert torch.equal(resolved.X_pending, full[1:])


# ------------------------------------------------------------------ errors


GOOD = torch.full((2, 2), 0.5, **DOUBLE)
BAD_POINTS: dict[str, tuple[Tensor, type[Exception]]] = {
    "NaN": (GOOD * math.nan, InputDataError),
    "infinite": (GOOD / 0.0, InputDataError),
    "narrow": (torch.ones(2, 1, **DOUBLE), BotorchTensorDimensionError),
    "vector": (torch.ones(2, **DOUBLE), BotorchTensorDimensionError),
    "batch": (torch.ones(1, 2, 2, **DOUBLE), BotorchTensorDimensionError),
}


def test_bad_points():
    setting = Setting(fixed_noise=True, transforms=True)
    model, Y = setting.model(2), torch.zeros(2, 1, **DOUBLE)
    for X, error in BAD_POINTS.values():
        with pytest.raises(error, match="`X_pending`"):
            CensoredDelayModel(model.model, X, 0.0)
        with pytest.raises(error, match="`X`"):
            model.with_pending(X)
        with pytest.raises(error, match="`X`"):
            model.resolve(X, Y)
        with pytest.raises(error, match="`X`"):
            model.observe(X, Y)
    assert len(model.X_pending) == 2 and model.train_targets.shape == (setting.num,)


BAD_VALUES: dict[str, tuple[Tensor, Any, type[Exception], str]] = {
    "NaN": (torch.tensor([[0.1], [math.nan]], **DOUBLE), None, InputDataError, "`Y`"),
    "vector": (torch.zeros(2, **DOUBLE), None, BotorchTensorDimensionError, "`Y`"),
    "too few": (torch.zeros(1, 1, **DOUBLE), None, BotorchTensorDimensionError, "`Y`"),
    "noise": (torch.zeros(2, 1, **DOUBLE), torch.ones(2, 1), UnsupportedError, "`Yvar`"),
    "a number": (torch.zeros(2, 1, **DOUBLE), 0.1, InputDataError, "`Yvar` must be a tensor"),
    "negative noise": (torch.zeros(2, 1, **DOUBLE), -torch.ones(2, 1), InputDataError, "`Yvar`"),
}


def test_bad_values():
    setting = Setting()
    model, X = setting.model(2), grid(setting)
    base, before = model.model, model.posterior(X).mean
    for Y, Yvar, error, match in BAD_VALUES.values():
        for call in (model.resolve, model.observe, model.with_observations):
            with pytest.raises(error, match=match):
                call(model.X_pending, Y, Yvar)
    assert model.model is base and len(model.X_pending) == 2
    assert torch.equal(model.posterior(X).mean, before)


@pytest.mark.parametrize("imputation", ["none", "censor"])
def test_further_points_of_a_model_without_training_inputs(imputation: str) -> None:
    """The width of its inputs is unknown until the first point."""
    model = CensoredDelayModel(make_variational(), censor_value=0.0, imputation=imputation)
    if imputation == "censor":
        with pytest.raises(UnsupportedError, match="cannot be conditioned on observations"):
            model.with_pending(GOOD)
        return
    twin = model.with_pending(GOOD).with_pending(GOOD[:1])
    assert torch.equal(twin.X_pending, GOOD[[0, 1, 0]])
    state = model.state_dict()
    model.load_state_dict(twin.state_dict(), keep_transforms=False)  # which BoTorch cannot keep
    assert torch.equal(model.X_pending, twin.X_pending)
    model.load_state_dict(state, keep_transforms=False)
    assert not len(model.X_pending)


def test_bad_settings():
    gp = Setting().gp()
    with pytest.raises(InputDataError, match="`imputation`.*'guess'"):
        CensoredDelayModel(gp, imputation="guess")
    with pytest.raises(InputDataError, match="`censor_value` is needed"):
        CensoredDelayModel(gp, GOOD)
    with pytest.raises(InputDataError, match="`censor_value` is needed"):
        CensoredDelayModel(gp).with_pending(GOOD)
    for value in (math.nan, math.inf, "least"):
        with pytest.raises(InputDataError, match="`censor_value` must be a finite number"):
            CensoredDelayModel(gp, GOOD, value)


def make_unsupported(name: str) -> Any:
    X, Y, _ = Setting().data()
    if name == "multi-output":
        return SingleTaskGP(X, torch.cat([Y, Y], dim=-1), outcome_transform=None)
    if name == "model list":
        return ModelList(Setting().gp(), Setting().gp())
    if name == "model list GP":
        return ModelListGP(Setting().gp(), Setting().gp())
    if name == "variational":
        return make_variational()
    if name == "batch":
        return SingleTaskGP(X.expand(2, -1, -1), Y.expand(2, -1, -1), outcome_transform=None)
    if name == "preferences":
        return PairwiseGP(X, torch.tensor([[0, 1], [2, 3]]))
    return (
        Setting().model(1)
        if name == "delayed"
        else CalibratedModel(Setting().model(1), OnlineConformal(0.2))
    )


UNSUPPORTED = {
    "multi-output": "2 outputs: use one CensoredDelayModel per outcome in a CalibratedModelList",
    "model list": "one CensoredDelayModel per outcome",
    "model list GP": "one CensoredDelayModel per outcome",
    "variational": "SingleTaskVariationalGP cannot be conditioned",
    "batch": r"batch dimensions, got \(2,\)",
    "preferences": "no Gaussian likelihood",
    "delayed": "with_pending",
    "delayed and calibrated": "with_pending",
}


@pytest.mark.filterwarnings("ignore:Data .* is not")
@pytest.mark.parametrize(("name", "match"), UNSUPPORTED.items())
def test_unsupported_bases(name, match):
    with pytest.raises(UnsupportedError, match=match):
        CensoredDelayModel(make_unsupported(name), GOOD, 0.0)


def test_nonlinear_outcome_transform():
    """Censoring needs a finite transform; hallucination a mean on the scale of the outcome."""
    X, Y, _ = Setting().data()
    gp = SingleTaskGP(X, Y.exp(), outcome_transform=Log())
    with pytest.raises(
        InputDataError,
        match="`censor_value` has the value 0, outside the domain of the outcome transform Log",
    ):
        CensoredDelayModel(gp, GOOD, 0.0)
    with pytest.raises(UnsupportedError, match="hallucinate.*TransformedPosterior"):
        CensoredDelayModel(gp, GOOD, imputation="hallucinate")
    censored = CensoredDelayModel(gp, GOOD, 0.01)
    assert (censored.posterior(GOOD).mean < gp.posterior(GOOD).mean).all()


@few_settings
@pytest.mark.parametrize("imputation", ["censor", "hallucinate"])
def test_copies(setting, imputation):
    model, X = setting.model(5, imputation), grid(setting)
    with torch.no_grad():
        before = model.posterior(X).mean
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_same(twin, model, X)
        twin.observe(X[:1], setting.values(X[:1]))
        assert torch.equal(model.posterior(X).mean, before)
        assert (twin.imputation, twin.censor_value) == (imputation, setting.censor_value)


def test_a_state_that_could_not_be_censored():
    setting = Setting()
    model = CensoredDelayModel(setting.gp())
    with pytest.raises(RuntimeError, match="`censor_value`"):
        model.load_state_dict(setting.model(3).state_dict())
    hallucinating = CensoredDelayModel(setting.gp(), imputation="hallucinate")
    hallucinating.load_state_dict(setting.model(3).state_dict())
    assert len(hallucinating.X_pending) == 3


def test_construct_inputs():
    X, Y, _ = Setting(transforms=True).data()
    data = SupervisedDataset(X, Y, feature_names=["a", "b"], outcome_names=["y"])
    inputs = CensoredDelayModel.construct_inputs(data, X_pending=X[:2], censor_value=1.0)
    model = CensoredDelayModel(**inputs)
    assert (model.censor_value, model.imputation, len(model.X_pending)) == (1.0, "censor", 2)
    assert isinstance(model.model.outcome_transform, Standardize)
