"""`CalibratedModel` against dense algebra, naive replays and its base model."""

import copy
import math
import warnings
from typing import Any

import pytest
import torch
from botorch.acquisition.objective import (
    ExpectationPosteriorTransform,
    ScalarizedPosteriorTransform,
)
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models import (
    KroneckerMultiTaskGP,
    ModelList,
    ModelListGP,
    MultiTaskGP,
    PairwiseGP,
    SingleTaskGP,
)
from botorch.models.contextual import LCEAGP
from botorch.models.higher_order_gp import HigherOrderGP
from botorch.models.model import Model
from botorch.models.transforms import Log, Standardize
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.datasets import SupervisedDataset
from torch import Tensor

from botorch_calib import (
    CalibratedModel,
    CalibratedPosterior,
    LocalizedConformal,
    OnlineConformal,
    PiecewisePredictive,
    QuantileRecalibrator,
    calibration_report,
)
from botorch_calib.calibration import GaussianScore
from botorch_calib.exceptions import CalibrationWarning
from botorch_calib.models import CensoredDelayModel, prequential_residuals
from botorch_calib.models.predict import predict
from botorch_calib.models.process import checked_observations
from tests.contracts import ModelContract, PosteriorContract
from tests.gps import (
    BASES,
    DOUBLE,
    MULTI_TASK,
    NOISE,
    SINGLE_TASK,
    GaussianLaw,
    dense_posterior,
    far_from_gaussian,
    make_data,
    make_gp,
    make_model,
    make_variational,
    stated_noise,
)

# MultiTaskGP multiplies by sparse matrices, on which torch comments once per process.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")

fixed = pytest.mark.parametrize("fixed_noise", [False, True], ids=["learned", "fixed"])
transformed = pytest.mark.parametrize("transforms", [False, True], ids=["plain", "transforms"])
bases = pytest.mark.parametrize("base", BASES)
single_task = pytest.mark.parametrize("base", SINGLE_TASK)
# Every step weighs heavily, so that a wrong order or residual would show.
TEMPLATE: dict[str, Any] = {"alpha": 0.3, "lengthscale": 0.4, "step_size": 0.1}


class Units:
    """Raw data to the space of the model's hyperparameters, by hand."""

    def __init__(self, transforms: bool) -> None:
        X, Y, _ = make_data(transforms=transforms)
        self.low, self.range = torch.zeros(2, **DOUBLE), torch.ones(2, **DOUBLE)
        self.mean, self.scale = torch.zeros((), **DOUBLE), torch.ones((), **DOUBLE)
        if transforms:
            self.low, self.range = X.amin(dim=0), X.amax(dim=0) - X.amin(dim=0)
            self.mean, self.scale = Y.mean(), Y.std()

    def x(self, X: Tensor) -> Tensor:
        return (X - self.low) / self.range

    def y(self, Y: Tensor) -> Tensor:
        return ((Y - self.mean) / self.scale).flatten()

    def noise(self, Y: Tensor, Yvar: Tensor | None) -> Tensor:
        if Yvar is None:
            return torch.full_like(Y, NOISE).flatten()
        return (Yvar / self.scale.square()).flatten()


def calibrated(base: str) -> CalibratedModel:
    return CalibratedModel(
        BASES[base](), far_from_gaussian(task=0.0 if base in MULTI_TASK else None)
    )


def grid(num: int = 9, transforms: bool = False, seed: int = 21) -> Tensor:
    return make_data(num, transforms, seed)[0]


def half_widths(model: CalibratedModel, X: Tensor) -> Tensor:
    assert isinstance(model.calibrator, LocalizedConformal)
    return model.calibrator.half_width(model.transform_inputs(X))


class TestExcessOfTheObjective(ModelContract):
    def make_model(self, dtype: torch.dtype) -> CalibratedModel:
        return CalibratedModel(
            make_gp(dtype=dtype), far_from_gaussian().to(dtype), True, "objective"
        )


# In float32 a nearly singular covariance needs jitter on some processors and none on others.
@pytest.mark.filterwarnings("ignore:A not p.d., added jitter")
class TestStateful(ModelContract):
    """With transforms, and after an observation."""

    def make_model(self, dtype: torch.dtype) -> CalibratedModel:
        model = CalibratedModel(
            make_gp(transforms=True, dtype=dtype), LocalizedConformal(**TEMPLATE).to(dtype)
        )
        X, Y, _ = (tensor.to(dtype) for tensor in make_data(2, transforms=True, seed=40))
        model.observe(X, Y)
        return model


class TestOfObservations(ModelContract):
    """The distribution of an observation, the tails of the normal distribution, another score."""

    def make_model(self, dtype: torch.dtype) -> CalibratedModel:
        calibrator = OnlineConformal(0.3, score=GaussianScore(), tails="gaussian")
        return CalibratedModel.from_history(make_gp(dtype=dtype), calibrator, denoise=False)


class TestPosteriorOfModel(PosteriorContract):
    """Whose distribution depends on the point, through the transforms of inputs and outcomes."""

    batch_shapes = (torch.Size([2]),)

    def make_posterior(
        self, batch_shape: torch.Size, q: int, dtype: torch.dtype
    ) -> CalibratedPosterior:
        X = grid(6, transforms=True).view(2, 3, 2)[:, :q].to(dtype)
        return make_model(dtype, transforms=True).posterior(X.requires_grad_())


def snapshot(model: CalibratedModel) -> dict[str, Tensor]:
    return copy.deepcopy(model.state_dict())


def assert_unchanged(model: CalibratedModel, before: dict[str, Tensor], base: Model) -> None:
    after = model.state_dict()
    assert model.model is base and before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


# ------------------------------------------------------------------ from_history


@fixed
@transformed
def test_from_history_equals_naive_loop(fixed_noise, transforms):
    X, Y, Yvar = make_data(transforms=transforms)
    units = Units(transforms)
    X_t, y_t = units.x(X), units.y(Y)
    noise = units.noise(Y, Yvar if fixed_noise else None)
    z = []
    for t in range(len(X)):
        mean, variance = dense_posterior(X_t[:t], y_t[:t], noise[:t], X_t[t : t + 1])
        z.append((y_t[t] - mean) / (variance + noise[t]).sqrt())

    X_new, template = grid(transforms=transforms), LocalizedConformal(**TEMPLATE)
    gp = make_gp(fixed_noise, transforms)
    for num_initial, train_mode in ((0, False), (5, True), (12, False)):
        gp.train(train_mode)
        naive = LocalizedConformal(**TEMPLATE)
        for t in range(num_initial, len(X)):
            naive.update(X_t[t : t + 1], z[t])
        model = CalibratedModel.from_history(gp, template, num_initial=num_initial)
        theta = naive.tracker.threshold(units.x(X_new))
        result = model.calibrator.tracker.threshold(model.transform_inputs(X_new))
        torch.testing.assert_close(result, theta, atol=1e-8, rtol=0)
        assert model.calibrator.num_updates == naive.num_updates == len(X) - num_initial
        # The template serves every round: it is never written to.
        assert template.num_updates == 0 and model.calibrator is not template
        predictive = model.posterior(X_new).predictive
        torch.testing.assert_close(predictive.knots[..., 2], naive.half_width(units.x(X_new)))


def test_arguments_are_checked():
    gp, calibrator = make_gp(), OnlineConformal(0.2)
    for num_initial in (-1, 13, 2.5):
        with pytest.raises(InputDataError, match="`num_initial`.*12"):
            CalibratedModel.from_history(gp, calibrator, num_initial=num_initial)
    pending = CensoredDelayModel(CalibratedModel(gp, calibrator), grid(2), 0.0)
    wrong: Any = None
    for make in (CalibratedModel, CalibratedModel.from_history):
        with pytest.raises(UnsupportedError, match="`model` must be a BoTorch model"):
            make(wrong, calibrator)
        for other in (wrong, OnlineConformal):
            with pytest.raises(UnsupportedError, match="`calibrator` must be a calibrator"):
                make(gp, other)
        with pytest.raises(InputDataError, match="`excess` must be one of"):
            make(gp, calibrator, excess="model")
        with pytest.raises(InputDataError, match="`denoise` must be True or False"):
            make(gp, calibrator, denoise="False")
        for already in (CalibratedModel(gp, calibrator), pending):
            with pytest.raises(UnsupportedError, match="`model` .* is calibrated already"):
                make(already, calibrator)
    with pytest.raises(UnsupportedError, match="observe"):
        CalibratedModel.from_history(make_variational(), calibrator)


def test_inputs_of_the_posterior_are_checked():
    X = torch.rand(3, 1, 2, dtype=torch.double)
    for outer in (
        CalibratedModel.from_history(make_gp(), OnlineConformal(0.2)),
        CensoredDelayModel(make_gp(), X.squeeze(1), censor_value=0.0),
    ):
        with pytest.raises(BotorchTensorDimensionError, match="`X` must have 2 columns"):
            outer.posterior(torch.zeros(3, 1, 3, dtype=torch.double))
        with pytest.raises(BotorchTensorDimensionError, match=r"`X` .* ... x d, .* got \(2,\)"):
            outer.posterior(X[0, 0])
    single = CalibratedModel.from_history(make_gp(dtype=torch.float), OnlineConformal(0.2))
    with pytest.raises(InputDataError, match="`X` must have the precision of the model"):
        single.posterior(X)
    with pytest.raises(InputDataError, match="`X` must be a tensor, got ndarray"):
        single.posterior(X.numpy())


def test_noise_of_the_posterior_is_checked():
    model, X = CalibratedModel.from_history(make_gp(), OnlineConformal(0.2)), torch.rand(3, 1, 2)
    for bad in (-torch.ones(3, 1, 1), torch.full((3, 1, 1), math.nan)):
        with pytest.raises(InputDataError, match="`observation_noise`"):
            model.posterior(X.double(), observation_noise=bad)
    for bad in (0.1, 1, None):
        with pytest.raises(InputDataError, match="`observation_noise` must be True, False or a"):
            model.posterior(X.double(), observation_noise=bad)
    for shape in ((3,), (3, 3), (4, 1, 1), (2, 3, 1, 1)):
        with pytest.raises(BotorchTensorDimensionError, match="`observation_noise` of shape"):
            model.posterior(X.double(), observation_noise=torch.ones(shape, **DOUBLE))


def test_conditioning_needs_inputs_of_the_models_width_and_a_value_for_each():
    model, X = CalibratedModel.from_history(make_gp(), OnlineConformal(0.2)), grid(3)
    for is_evaluated in (False, True):
        if is_evaluated:
            model.posterior(X)
        for shape in ((3,), (3, 2), (2, 1)):
            with pytest.raises(BotorchTensorDimensionError, match="`Y` must have .* ... x 3 x 1"):
                model.condition_on_observations(X, torch.zeros(*shape, **DOUBLE))
        for width in (1, 3):
            with pytest.raises(BotorchTensorDimensionError, match="`X` must have 2 columns"):
                model.condition_on_observations(torch.ones(2, width, **DOUBLE), X[:2, :1])


@pytest.mark.parametrize("base", MULTI_TASK)
@pytest.mark.parametrize("calibrator", [LocalizedConformal(**TEMPLATE), OnlineConformal(0.3)])
def test_multi_task_history(base, calibrator):
    """Inputs with and without the task feature, as the base model takes them."""
    model = CalibratedModel.from_history(BASES[base](), calibrator)
    # Of twelve observations, by turns of two tasks, only the output task's are residuals.
    assert model.calibrator.num_updates == 6
    gp: Any = model.model
    residuals = prequential_residuals(gp)[gp.train_inputs[0][:, -1] == 0]
    expected = copy.deepcopy(calibrator)
    expected.update(gp.train_inputs[0][gp.train_inputs[0][:, -1] == 0], residuals)
    X = grid(3)
    at_task = torch.cat([X, torch.zeros(3, 1, **DOUBLE)], dim=-1)
    torch.testing.assert_close(
        model.calibrator.predictive(at_task).knots, expected.predictive(at_task).knots
    )
    full = model.posterior(torch.cat([X, torch.zeros(3, 1, **DOUBLE)], dim=-1))
    assert full.mean.shape == (3, 1)
    torch.testing.assert_close(model.posterior(X).variance, full.variance)


@pytest.mark.parametrize("base", MULTI_TASK)
def test_multi_task_observe(base):
    """As in a history, the calibrator learns from the output task only."""
    models = [CalibratedModel(BASES[base](), OnlineConformal(0.3)) for _ in range(2)]
    X, Y = grid(4), torch.arange(4.0, **DOUBLE).unsqueeze(-1)
    at_task = torch.cat([X, torch.tensor([[0.0], [1.0], [0.0], [1.0]], **DOUBLE)], dim=-1)
    models[0].observe(at_task, Y)
    models[1].observe(X[::2], Y[::2])
    assert [model.calibrator.num_updates for model in models] == [2, 2]
    torch.testing.assert_close(*(model.calibrator.half_width(at_task) for model in models))
    assert models[0].train_targets.shape == (12 + 4,)
    models[0].observe(at_task[1::2] + torch.tensor([0.1, 0.1, 0.0], **DOUBLE), Y[1::2])
    assert models[0].calibrator.num_updates == 2


# ------------------------------------------------------------------ observe


@fixed
@transformed
@pytest.mark.parametrize("with_yvar", [False, True], ids=["", "Yvar"])
def test_observe(fixed_noise, transforms, with_yvar):
    """Scores by the present model, then conditions it: all by hand, twice in a row."""
    units = Units(transforms)
    X, Y, Yvar = make_data(transforms=transforms)
    X_t, y_t = units.x(X), units.y(Y)
    noise = units.noise(Y, Yvar if fixed_noise else None)
    mean_noise = noise.mean()
    calibrator, expected = (LocalizedConformal(**TEMPLATE) for _ in range(2))
    model = CalibratedModel(make_gp(fixed_noise, transforms), calibrator)
    if with_yvar and not fixed_noise:
        with pytest.raises(UnsupportedError, match="`Yvar`"):
            model.observe(X, Y, Yvar=Yvar)
        return
    for num, seed in ((3, 30), (1, 31)):
        X_new, Y_new, Yvar_new = make_data(num, transforms, seed=seed)
        model.observe(X_new, Y_new, Yvar=Yvar_new if with_yvar else None)
        scored = units.noise(Y_new, Yvar_new) if with_yvar else mean_noise.expand(num)
        mean, variance = dense_posterior(X_t, y_t, noise, units.x(X_new))
        z = (units.y(Y_new) - mean) / (variance + scored).sqrt()
        expected.update(units.x(X_new), z)
        X_t, y_t = torch.cat([X_t, units.x(X_new)]), torch.cat([y_t, units.y(Y_new)])
        noise = torch.cat([noise, scored])
        if fixed_noise:
            mean_noise = noise.mean()

    X_test = grid(transforms=transforms)
    theta = model.calibrator.tracker.threshold(model.transform_inputs(X_test))
    expected_theta = expected.tracker.threshold(units.x(X_test))
    torch.testing.assert_close(theta, expected_theta, atol=1e-8, rtol=0)
    assert model.train_targets.shape == (12 + 4,) and model.calibrator is calibrator
    mean, variance = dense_posterior(X_t, y_t, noise, units.x(X_test))
    posterior = model.posterior(X_test).corrected(None)
    torch.testing.assert_close(units.y(posterior.mean), mean, atol=1e-6, rtol=0)
    torch.testing.assert_close(
        (posterior.variance / units.scale.square()).flatten(), variance, atol=1e-6, rtol=0
    )


def test_observe_without_conditioning():
    gp = make_variational()
    model = CalibratedModel(gp, LocalizedConformal(**TEMPLATE))
    X, Y, _ = make_data(3, seed=40)
    noisy = gp.posterior(X, observation_noise=True)
    expected = LocalizedConformal(**TEMPLATE)
    expected.update(X, ((Y - noisy.mean) / noisy.variance.sqrt()).detach().flatten())
    model.observe(X, Y, condition=False)
    torch.testing.assert_close(half_widths(model, grid()), expected.half_width(grid()))
    assert model.model is gp
    before = snapshot(model)
    with pytest.raises(UnsupportedError, match="condition=False"):
        model.observe(X, Y)
    with pytest.raises(UnsupportedError, match="SingleTaskVariationalGP"):
        model.condition_on_observations(X, Y)
    assert_unchanged(model, before, gp)


GOOD_X, GOOD_Y = torch.tensor([[0.1, 0.2], [0.3, 0.4]]), torch.tensor([[0.5], [-0.5]])
BAD_X, BAD_Y = GOOD_X.clone(), GOOD_Y.clone()
BAD_X[1, 1], BAD_Y[1, 0] = math.inf, math.nan
BAD_OBSERVATIONS: dict[str, tuple[Tensor, Tensor, Any, type[Exception], str]] = {
    "NaN in Y": (GOOD_X, BAD_Y, None, InputDataError, "`Y`"),
    "infinity in X": (BAD_X, GOOD_Y, None, InputDataError, "`X`"),
    "vector Y": (GOOD_X, GOOD_Y.squeeze(-1), None, BotorchTensorDimensionError, "`Y`"),
    "too few Y": (GOOD_X, GOOD_Y[:1], None, BotorchTensorDimensionError, "`Y`"),
    "two outcomes": (GOOD_X, GOOD_Y.expand(2, 2), None, BotorchTensorDimensionError, "`Y`"),
    "batched": (GOOD_X[None], GOOD_Y[None], None, BotorchTensorDimensionError, "`X`"),
    "wide X": (torch.ones(2, 3), GOOD_Y, None, BotorchTensorDimensionError, "dimension|`X`"),
    "negative Yvar": (GOOD_X, GOOD_Y, -GOOD_Y.abs(), InputDataError, "`Yvar`"),
    "infinite Yvar": (GOOD_X, GOOD_Y, GOOD_Y.abs() / 0, InputDataError, "`Yvar`"),
    "short Yvar": (GOOD_X, GOOD_Y, GOOD_Y[:1].abs(), InputDataError, "`Yvar`"),
    "a number for Yvar": (GOOD_X, GOOD_Y, 0.1, InputDataError, "`Yvar` must be a tensor"),
}


@pytest.mark.parametrize(("fixed_noise", "transforms"), [(False, False), (True, True)])
def test_failed_observe_mutates_nothing(fixed_noise, transforms):
    model = CalibratedModel.from_history(
        make_gp(fixed_noise, transforms), LocalizedConformal(**TEMPLATE)
    )
    base, before = model.model, snapshot(model)
    X_test = grid(transforms=transforms)
    mean = model.posterior(X_test).mean
    for X, Y, Yvar, error, match in BAD_OBSERVATIONS.values():
        with pytest.raises(error, match=match):
            Yvar = Yvar.double() if isinstance(Yvar, Tensor) else Yvar
            model.observe(X.double(), Y.double(), Yvar=Yvar)
        assert_unchanged(model, before, base)
    assert model.train_targets.shape == (12,)
    torch.testing.assert_close(model.posterior(X_test).mean, mean, rtol=0, atol=0)


@fixed
def test_observations_in_single_precision(fixed_noise):
    """They are taken in the model's precision, and no transform is rounded to theirs."""
    models = [
        CalibratedModel.from_history(
            make_gp(fixed_noise, transforms=True), LocalizedConformal(**TEMPLATE)
        )
        for _ in range(2)
    ]
    Yvar = torch.tensor([[0.3], [0.1]]) if fixed_noise else None
    models[0].observe(GOOD_X, GOOD_Y, Yvar)
    models[1].observe(GOOD_X.double(), GOOD_Y.double(), None if Yvar is None else Yvar.double())
    states = [model.state_dict() for model in models]
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], rtol=0, atol=0)
    means = [model.posterior(grid(transforms=True)).mean for model in models]
    torch.testing.assert_close(means[0], means[1], rtol=0, atol=0)


# ------------------------------------------------------------------ posterior


@bases
def test_an_identity_distribution_gives_back_the_base_model(base):
    """Its noise variance, too, and its shapes."""
    gp, shape = BASES[base](), (2, 1, 5, 1)
    model, X = CalibratedModel(gp, GaussianLaw()), grid(10).view(2, 1, 5, 2)
    reference, posterior = gp.posterior(X), model.posterior(X)
    assert isinstance(posterior, CalibratedPosterior)
    assert posterior.mean.shape == posterior.variance.shape == shape
    torch.testing.assert_close(posterior.mean, reference.mean)
    torch.testing.assert_close(posterior.variance, reference.variance)
    noisy, observation = gp.posterior(X, observation_noise=True), model.posterior(X, None, True)
    torch.testing.assert_close(observation.mean, noisy.mean)
    torch.testing.assert_close(observation.variance, noisy.variance)
    noise = noisy.variance - reference.variance
    assert (noise > 1e-3).all()
    for found in (stated_noise(gp, X), stated_noise(model, X)):
        torch.testing.assert_close(found.expand(shape), noise, rtol=1e-8, atol=1e-12)
    generator, size = torch.Generator().manual_seed(0), torch.Size([3])
    base_samples = torch.randn(3, 2, 1, 5, 2, **DOUBLE, generator=generator)
    torch.testing.assert_close(
        posterior.rsample_from_base_samples(size, base_samples),
        reference.rsample_from_base_samples(size, base_samples[..., 0]),
    )
    given = calibrated(base).posterior(X, observation_noise=torch.full((1,), 0.1, **DOUBLE))
    assert SobolQMCNormalSampler(size, seed=0)(given).shape == (*size, *shape)
    assert given.mean.isfinite().all() and given.rsample().isfinite().all()
    assert (model.num_outputs, model.batch_shape) == (1, torch.Size())
    assert model.likelihood is gp.likelihood


@single_task
@pytest.mark.parametrize("denoise", [False, True])
def test_posterior_is_that_of_its_parts(base, denoise):
    gp = SINGLE_TASK[base]()
    model = CalibratedModel(gp, far_from_gaussian(), denoise=denoise)
    X = grid(5, transforms="transforms" in base)
    predictive = model.calibrator.predictive(model.transform_inputs(X))
    given = torch.tensor([[0.3]], **DOUBLE)
    for observation_noise in (False, True, given):
        noise = True if observation_noise is False else observation_noise
        variance = gp.posterior(X, observation_noise=noise).variance - gp.posterior(X).variance
        smoothed = denoise and observation_noise is False
        expected = CalibratedPosterior(gp.posterior(X), predictive, variance, denoise=smoothed)
        posterior = model.posterior(X, output_indices=[0], observation_noise=observation_noise)
        torch.testing.assert_close(posterior.mean, expected.mean)
        torch.testing.assert_close(posterior.variance, expected.variance)
        best = gp.posterior(X).mean.max()
        torch.testing.assert_close(posterior.cdf(best), expected.cdf(best))
        if not smoothed:
            unit = (gp.posterior(X).variance + variance).sqrt()
            torch.testing.assert_close(posterior.variance, unit.square() * predictive.variance)
            torch.testing.assert_close(
                posterior.mean, gp.posterior(X).mean + unit * predictive.mean
            )


def test_excess_reaches_every_posterior():
    """Whichever way a model is made from another, its posteriors have the calibrated gain."""
    gp, calibrator = make_gp(), far_from_gaussian()
    model = CalibratedModel(gp, calibrator, excess="objective")
    X, sampler = grid(5), SobolQMCNormalSampler(torch.Size([3]), seed=0)
    transform = ScalarizedPosteriorTransform(torch.tensor([-2.0], **DOUBLE))
    pending = CensoredDelayModel(model, X[:1], 0.0), CensoredDelayModel(gp, X[:1], 0.0)
    made: list[Any] = [
        model,
        model.condition_on_observations(X[:2], torch.zeros(2, 1, **DOUBLE)),
        model.fantasize(X[:2], sampler),
        CalibratedModel.from_history(gp, calibrator, excess="objective"),
        copy.deepcopy(model),
        model.subset_output([0]),
        pending[0],
        CalibratedModel(pending[1], calibrator, excess="objective"),
    ]
    for each in made:
        posterior = each.posterior(X)
        assert posterior.excess == "objective"
        base, noise = each.gaussian_model.posterior(X), stated_noise(each, X)
        widened = CalibratedPosterior(base, posterior.predictive, noise, excess="objective")
        torch.testing.assert_close(posterior.variance, widened.variance)
        plain = CalibratedPosterior(base, posterior.predictive, noise)
        assert (posterior.variance > 1.01 * plain.variance).any()
        flipped = each.posterior(X, posterior_transform=transform)
        torch.testing.assert_close(flipped.variance, 4 * posterior.variance)
        observed = each.posterior(X, observation_noise=True)
        expected = CalibratedPosterior(base, posterior.predictive, noise, denoise=False)
        torch.testing.assert_close(observed.variance, expected.variance)
    model.observe(X[:2], torch.zeros(2, 1, **DOUBLE))
    assert model.posterior(X).excess == "objective"


@pytest.mark.parametrize(("fixed_noise", "transforms"), [(False, False), (True, True)])
def test_weight_minus_one_is_the_negated_model(fixed_noise, transforms):
    """Minimisation by a posterior transform equals maximisation on negated outcomes."""
    models = [
        CalibratedModel.from_history(
            make_gp(fixed_noise, transforms, sign=sign), LocalizedConformal(**TEMPLATE)
        )
        for sign in (1.0, -1.0)
    ]
    X = grid(5, transforms)
    transform = ScalarizedPosteriorTransform(torch.tensor([-1.0], **DOUBLE))
    for noise in (False, True):
        flipped = models[0].posterior(X, observation_noise=noise, posterior_transform=transform)
        negated = models[1].posterior(X, observation_noise=noise)
        torch.testing.assert_close(flipped.mean, negated.mean)
        torch.testing.assert_close(flipped.variance, negated.variance)
        best = negated.mean.max()
        for name in ("cdf", "density", "log_expected_improvement", "probability_of_improvement"):
            torch.testing.assert_close(getattr(flipped, name)(best), getattr(negated, name)(best))


def test_other_transforms_and_outputs_are_rejected():
    model = make_model()
    for transform in (
        ScalarizedPosteriorTransform(torch.ones(2, **DOUBLE)),
        ExpectationPosteriorTransform(n_w=2),
    ):
        with pytest.raises(UnsupportedError, match="posterior_transform"):
            model.posterior(grid(2), posterior_transform=transform)
    for indices in ([1], [0, 0], []):
        with pytest.raises(UnsupportedError, match="output_indices"):
            model.posterior(grid(2), output_indices=indices)
        with pytest.raises(UnsupportedError, match="output_indices"):
            model.subset_output(indices)
    assert model.subset_output([0]) is model
    assert ModelList(model, model).num_outputs == 2


# ------------------------------------------------------------------ conditioning


@single_task
def test_condition_on_observations(base):
    transforms = "transforms" in base
    calibrator = far_from_gaussian()
    model = CalibratedModel(SINGLE_TASK[base](), calibrator, denoise=False)
    X, Y, _ = make_data(2, transforms, seed=40)
    kwargs = {"noise": torch.full_like(Y, 0.1)} if "fixed" in base else {}
    # The model has not been evaluated yet; BoTorch's models would raise.
    conditioned = model.condition_on_observations(X, Y, **kwargs)
    gp = SINGLE_TASK[base]()
    gp.posterior(X)
    expected = gp.condition_on_observations(X, Y, **kwargs)
    X_new = grid(4, transforms)
    result, wanted = (m.posterior(X_new) for m in (conditioned.gaussian_model, expected))
    torch.testing.assert_close(result.mean, wanted.mean)
    torch.testing.assert_close(result.variance, wanted.variance)
    assert conditioned.calibrator is calibrator and calibrator.num_updates == 30
    assert not conditioned.denoise and model.train_targets.shape == (12,)
    torch.testing.assert_close(half_widths(conditioned, X_new), half_widths(model, X_new))


@single_task
def test_fantasize(base):
    batch_shape = (3,) if "fixed" in base else ()
    transforms = "transforms" in base
    model = CalibratedModel(SINGLE_TASK[base](), far_from_gaussian())
    X = grid(2 * math.prod(batch_shape), transforms).view(*batch_shape, 2, 2)
    sampler = SobolQMCNormalSampler(torch.Size([4]), seed=0)
    fantasies = model.fantasize(X, sampler)
    assert isinstance(fantasies, CalibratedModel)
    assert fantasies.batch_shape == (4, *batch_shape) and fantasies.num_outputs == 1
    assert model.calibrator.num_updates == 30 and model.train_targets.shape == (12,)
    # Fantasies are draws of the calibrated distribution of an observation.
    drawn = SobolQMCNormalSampler(torch.Size([4]), seed=0)(model.posterior(X, None, True))
    targets = fantasies.train_targets[..., -2:].unsqueeze(-1)
    if transforms:
        targets = model.model.outcome_transform.untransform(targets)[0]
    torch.testing.assert_close(targets, drawn)
    X_new = grid(10, transforms).view(5, 1, *[1] * len(batch_shape), 2, 2)
    posterior = fantasies.posterior(X_new)
    assert posterior.mean.shape == (5, 4, *batch_shape, 2, 1)
    assert posterior.variance.isfinite().all()
    assert posterior.rsample(torch.Size([6])).shape == (6, 5, 4, *batch_shape, 2, 1)
    prior = model.posterior(X).corrected(None).variance
    assert (fantasies.posterior(X).corrected(None).variance < prior).all()


# ------------------------------------------------------------------ units of the outcome


@pytest.mark.parametrize(
    ("fixed_noise", "dtype", "unit", "rtol"),
    [(False, torch.double, 2.0**-22, 1e-9), (True, torch.float, 2.0**-12, 1e-4)],
)
@pytest.mark.filterwarnings("ignore:The model inputs are of type torch.float32")
def test_statements_do_not_depend_on_the_unit(fixed_noise, dtype, unit, rtol):
    """GPyTorch's least standard deviation, 1e-5 or 1e-3 in any unit, would be all one sees."""
    X, Y, _ = (values.to(dtype) for values in make_data(12))
    X_new = grid(5).to(dtype).unsqueeze(-2)

    def statements(unit: float) -> list[Tensor]:
        Yvar = torch.full_like(Y, 0.01 * unit**2) if fixed_noise else None
        gp = SingleTaskGP(X, unit * Y, Yvar, outcome_transform=Standardize(1))
        model = CalibratedModel.from_history(gp, LocalizedConformal(**TEMPLATE))
        noisy = CalibratedModel(gp, model.calibrator, denoise=False)
        mean, deviation, *_ = predict(model.model, X_new, objective=False).spread()
        negated = ScalarizedPosteriorTransform(torch.tensor([-1.0], dtype=dtype))
        found = [mean.to(dtype), deviation.to(dtype)]
        for posterior in (
            model.posterior(X_new),
            noisy.posterior(X_new),
            model.posterior(X_new, posterior_transform=negated),
        ):
            found += [posterior.quantile(0.9), posterior.expected_improvement(unit * Y.mean())]
        report: Any = calibration_report(model, X[:6], unit * Y[:6])
        for scores in (report.calibrated, report.base):
            found.append(torch.tensor([scores.mean_width, scores.mean_crps], dtype=dtype))
        model.observe(X_new[:1, 0], unit * Y[:1])
        return [each / unit for each in found] + [half_widths(model, X_new)]

    for own, other in zip(statements(1.0), statements(unit), strict=True):
        torch.testing.assert_close(other, own, rtol=rtol, atol=rtol)


# ------------------------------------------------------------------ life as a module


@pytest.mark.parametrize(
    ("source_num", "target_num", "transforms"), [(12, 8, False), (8, 12, True)]
)
def test_state_dict_of_another_length(source_num, target_num, transforms):
    calibrator = LocalizedConformal(**TEMPLATE)
    source = CalibratedModel.from_history(
        make_gp(transforms=transforms, num=source_num), calibrator
    )
    source.model.likelihood.noise = 0.2
    source.model.covar_module.lengthscale = torch.tensor([0.9, 0.2], **DOUBLE)
    target = CalibratedModel.from_history(
        make_gp(transforms=transforms, num=target_num), calibrator
    )
    target.posterior(grid(1, transforms))  # fills caches that loading must not leave stale
    target.load_state_dict(source.state_dict())
    assert target.calibrator.num_updates == source_num
    assert target.state_dict().keys() == source.state_dict().keys()
    X_t = Units(False).x(grid())
    assert isinstance(source.calibrator, LocalizedConformal)
    assert isinstance(target.calibrator, LocalizedConformal)
    torch.testing.assert_close(target.calibrator.half_width(X_t), source.calibrator.half_width(X_t))
    torch.testing.assert_close(
        target.model.covar_module.lengthscale, source.model.covar_module.lengthscale
    )
    # The same data and the same state are the same model.
    twin = CalibratedModel(make_gp(transforms=transforms, num=source_num), calibrator)
    twin.load_state_dict(source.state_dict())
    X = grid(transforms=transforms)
    torch.testing.assert_close(twin.posterior(X).mean, source.posterior(X).mean)
    torch.testing.assert_close(twin.posterior(X).variance, source.posterior(X).variance)


@pytest.mark.parametrize("broken", ["unexpected", "calibrator"])
def test_rejected_state_changes_nothing(broken):
    model = CalibratedModel.from_history(make_gp(), LocalizedConformal(**TEMPLATE))
    other = CalibratedModel.from_history(make_gp(num=8), LocalizedConformal(**TEMPLATE))
    other.model.likelihood.noise = 0.2
    state = dict(other.state_dict())
    if broken == "unexpected":
        state["something.else"] = torch.ones(1)
    else:
        del state["calibrator.tracker.centers"]
    base, before = model.model, snapshot(model)
    with pytest.raises(RuntimeError, match="something.else|centers"):
        model.load_state_dict(state)
    assert_unchanged(model, before, base)


@single_task
def test_to_float32(base):
    """A cache in one precision, also of an observation, is not used in another."""
    transforms = "transforms" in base
    model = CalibratedModel.from_history(SINGLE_TASK[base](), LocalizedConformal(**TEMPLATE))
    model.observe(*make_data(2, transforms, seed=40)[:2])
    X = grid(5, transforms)
    expected = model.posterior(X)
    mean, deviation = expected.mean, expected.variance.sqrt()
    single = copy.deepcopy(model).to(torch.float32)
    posterior = single.posterior(X.float())
    assert posterior.dtype == posterior.mean.dtype == torch.float32
    assert posterior.rsample().dtype == torch.float32
    assert ((posterior.mean.double() - mean).abs() < 1e-3 * deviation).all()
    torch.testing.assert_close(
        posterior.variance.double().sqrt(), deviation, rtol=1e-3, atol=1e-3 * deviation.max().item()
    )
    X_new, Y_new, _ = (tensor.float() for tensor in make_data(1, transforms, seed=41))
    single.observe(X_new, Y_new)
    assert single.posterior(X.float()).mean.dtype == torch.float32
    assert model.posterior(X).dtype == torch.double
    for dtype in (torch.float32, torch.double):
        mean = model.to(dtype).posterior(X.to(dtype)).mean
        assert mean.dtype == dtype
        torch.testing.assert_close(mean.double(), expected.mean, rtol=1e-3, atol=1e-3)


@transformed
def test_gradient_reaches_the_calibrator(transforms):
    model = make_model(transforms=transforms)
    X = grid(3, transforms).unsqueeze(-2).requires_grad_()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    assert torch.autograd.gradcheck(lambda X: model.posterior(X).mean, X)
    assert torch.autograd.gradcheck(lambda X: model.posterior(X).variance, X)
    fixed = model.posterior(X).predictive
    frozen = PiecewisePredictive(fixed.knots.detach(), fixed.masses, fixed.uniform)
    base_posterior = model.model.posterior(X)
    without = CalibratedPosterior(base_posterior, frozen, stated_noise(model, X))
    (through,) = torch.autograd.grad(model.posterior(X).variance.sum(), X)
    (around,) = torch.autograd.grad(without.variance.sum(), X)
    assert not torch.allclose(through, around)


# ------------------------------------------------------------------ errors


def make_unsupported(name: str) -> Model:
    X, Y, _ = make_data()
    if name == "multi-output":
        return SingleTaskGP(X, torch.cat([Y, Y], dim=-1), outcome_transform=None)
    if name == "one kernel for all outputs":
        return KroneckerMultiTaskGP(X, torch.cat([Y, Y], dim=-1))
    if name == "every task an output":
        task = torch.arange(len(X)).remainder(2).to(X).unsqueeze(-1)
        return MultiTaskGP(torch.cat([X, task], dim=-1), Y, task_feature=-1)
    if name == "model list":
        return ModelList(make_gp(), make_gp())
    if name == "tensors":
        return HigherOrderGP(X, torch.rand(12, 3, 2, **DOUBLE))
    return PairwiseGP(X, torch.tensor([[0, 1], [2, 3]]))


UNSUPPORTED = {
    "multi-output": r"ModelList, .*`model.subset_output\(\[i\]\)`",
    "one kernel for all outputs": "ModelList, .* fitted to that outcome alone",
    "every task an output": r"ModelList, .*`output_tasks=\[task\]`",
    "model list": "ModelList",
    "tensors": "tensor|outputs",
    "preferences": "PairwiseGP has no Gaussian likelihood",
}


@pytest.mark.parametrize(("name", "match"), UNSUPPORTED.items())
def test_unsupported_bases(name, match):
    base = make_unsupported(name)
    with pytest.raises(UnsupportedError, match=match):
        CalibratedModel(base, OnlineConformal(0.2))
    with pytest.raises(UnsupportedError, match=match):
        CalibratedModel.from_history(base, OnlineConformal(0.2))


def test_batched_base_cannot_observe():
    """Rows must never be matched with the models of a batch."""
    X, Y, _ = make_data()
    model = CalibratedModel(
        SingleTaskGP(X.expand(2, -1, -1), Y.expand(2, -1, -1), outcome_transform=None),
        OnlineConformal(0.2),
    )
    assert model.batch_shape == (2,) and model.posterior(X[:3]).mean.shape == (2, 3, 1)
    for num in (2, 3):
        with pytest.raises(UnsupportedError, match="batch"):
            model.observe(X[:num], Y[:num])
    with pytest.raises(UnsupportedError, match=r"A batch of models of shape \(2,\) takes no"):
        checked_observations(model.model, X, Y, None)
    with pytest.raises(UnsupportedError, match="batched"):
        CalibratedModel.from_history(model.model, OnlineConformal(0.2))


class TestWithModel:
    """The same calibration around another model."""

    def test_says_what_a_new_model_would(self) -> None:
        model = CalibratedModel(make_gp(), far_from_gaussian(), False, "objective")
        other = make_gp(fixed_noise=True)
        expected = CalibratedModel(other, model.calibrator, False, "objective")
        points = make_data(4, seed=21)[0]
        found = model.with_model(other)
        assert found.calibrator is model.calibrator and found.model is other
        assert torch.equal(found.posterior(points).mean, expected.posterior(points).mean)
        assert torch.equal(found.posterior(points).variance, expected.posterior(points).variance)

    def test_warns_once_for_both(self) -> None:
        model = CalibratedModel(make_gp(), LocalizedConformal(0.2))
        points = make_data(4, seed=21)[0]
        with pytest.warns(CalibrationWarning):
            model.posterior(points)
        with warnings.catch_warnings():
            warnings.simplefilter("error", CalibrationWarning)
            model.with_model(make_gp()).posterior(points)

    def test_names_a_model_of_other_inputs(self) -> None:
        """Not the data, which come later, and whose width is right."""
        model = CalibratedModel.from_history(make_gp(), LocalizedConformal(0.2))
        X, Y, _ = make_data()
        with pytest.raises(BotorchTensorDimensionError, match="`model` must have 2 inputs.*got 1"):
            model.with_model(SingleTaskGP(X[:, :1], Y))


def test_a_calibrator_lies_on_the_device_of_its_model() -> None:
    elsewhere = copy.deepcopy(make_gp()).to("meta")
    fresh = LocalizedConformal(0.2)
    CalibratedModel(elsewhere, fresh)
    assert {buffer.device.type for buffer in fresh.buffers()} == {"meta"}
    learned = far_from_gaussian()
    with pytest.raises(InputDataError, match=r'calibrator.to\("meta"\)'):
        CalibratedModel(elsewhere, learned)
    assert all(buffer.device.type != "meta" for buffer in learned.buffers())


# ------------------------------------------------------------------ models of all kinds


@pytest.mark.parametrize("kind", [ModelList, ModelListGP])
def test_what_is_calibrated_one_by_one(kind):
    """Lists and models of several outcomes, as the errors advise."""
    with pytest.raises(UnsupportedError, match="CalibratedModelList.from_history"):
        CalibratedModel.from_history(kind(make_gp()), LocalizedConformal(0.2))
    X, Y, _ = make_data()
    both = SingleTaskGP(X, torch.cat([Y, 9 - Y], dim=-1), outcome_transform=Standardize(2)).eval()
    for i in (0, 1):
        model = CalibratedModel.from_history(both.subset_output([i]), OnlineConformal(0.2))
        expected = both.posterior(X).mean[:, [i]]
        torch.testing.assert_close(model.model.posterior(X).mean, expected)


def test_construct_inputs():
    X, Y, _ = make_data(transforms=True)
    data = SupervisedDataset(X, Y, feature_names=["a", "b"], outcome_names=["y"])
    model = CalibratedModel(**CalibratedModel.construct_inputs(data))
    assert isinstance(model.calibrator, LocalizedConformal) and model.calibrator.alpha == 0.2
    calibrator = OnlineConformal(0.1)
    assert CalibratedModel.construct_inputs(data, calibrator)["calibrator"] is calibrator


class Negated(Log):
    """The outcome with the other sign, as a user may write it."""

    _is_linear = True

    def forward(self, Y: Tensor, *others: Any, **named: Any) -> tuple[Tensor, None]:
        return -Y, None

    untransform = forward


class Misleading(Log):
    """Claims to be affine, wrongly."""

    _is_linear = True


@pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized")
def test_outcome_transforms_that_are_refused():
    X, Y, _ = make_data()
    gp = SingleTaskGP(X, Y, outcome_transform=Negated())
    with pytest.raises(UnsupportedError, match="decreasing outcome transform.*negate the obs"):
        CalibratedModel.from_history(gp, OnlineConformal(0.2))
    gp = SingleTaskGP(X, (Y - Y.mean()).exp(), outcome_transform=Misleading())
    with pytest.raises(UnsupportedError, match="Misleading, which declares itself affine"):
        CalibratedModel(gp, OnlineConformal(0.2))


@pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized")
def test_a_contextual_model_observes():
    """Its kernel stores matrices in the shape of the last inputs."""
    X, Y, _ = make_data()
    gp = LCEAGP(X, Y, None, {"1": [0], "2": [1]})
    model = CalibratedModel.from_history(gp, OnlineConformal(0.2))
    model.observe(X[:3] + 0.3, Y[:3] + 1.0)
    assert model.train_targets.shape == (len(Y) + 3,)
    one_by_one = model.posterior(X[:3].unsqueeze(-2)).mean.squeeze(-1)
    torch.testing.assert_close(one_by_one, model.posterior(X[:3]).mean)


UNLEARNED = {
    "conformal": (lambda: LocalizedConformal(0.2), 5),
    "rare": (lambda: LocalizedConformal(0.05, 0.3), 20),
    "quantiles": (QuantileRecalibrator, 20),
}


@pytest.mark.parametrize(("make", "needed"), UNLEARNED.values(), ids=UNLEARNED)
def test_warns_once_below_the_number_needed(make, needed):
    calibrator, at = make(), grid(3)
    assert calibrator.num_needed == needed
    for seen, warns in ((0, True), (needed - 1, True), (needed, False)):
        calibrator.reset()
        generator = torch.Generator().manual_seed(0)
        points = torch.rand(seen, 2, dtype=torch.double, generator=generator)
        calibrator.update(points, torch.randn(seen, dtype=torch.double, generator=generator))
        model = CalibratedModel(make_gp(), calibrator)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.posterior(at)
            model.posterior(at)
            model.condition_on_observations(at, at[:, :1]).posterior(at)
        found = [w for w in caught if issubclass(w.category, CalibrationWarning)]
        assert len(found) == warns
        if warns:
            assert f"seen {seen} residuals" in str(found[0].message)
