"""Conditioning: noise that is given and learned, copies that fail, and one-to-many transforms."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.robust_relevance_pursuit_model import RobustRelevancePursuitSingleTaskGP
from botorch.models.transforms import ChainedOutcomeTransform, Normalize, Standardize
from botorch.models.transforms.input import AppendFeatures, ChainedInputTransform, InputPerturbation
from botorch.sampling.normal import SobolQMCNormalSampler
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.likelihoods.gaussian_likelihood import _GaussianLikelihoodBase
from gpytorch.likelihoods.noise_models import HeteroskedasticNoise
from gpytorch.models import GP
from torch import Tensor
from torch.testing import assert_close

from botorch_calib import (
    CalibratedModel,
    CensoredDelayModel,
    LogCalibratedExpectedImprovement,
    calibration_report,
)
from botorch_calib.asynchronous.refits import with_later_values
from botorch_calib.calibration import NoCalibration
from botorch_calib.models import prequential_residuals, with_learned_spread
from botorch_calib.models.conditioning import given_noise, with_observations
from botorch_calib.models.predict import predict
from tests.gps import (
    DOUBLE,
    NOISE,
    GaussianLaw,
    dense_posterior,
    far_from_gaussian,
    make_data,
    make_gp,
    make_multitask,
    stated_noise,
)
from tests.long_grids import mostly_slow

GIVEN, LEARNED = 0.01, 0.2
T_NEW = torch.tensor([[0.1, 0.9], [0.4, 0.4], [0.8, 0.2], [0.6, 0.7]], **DOUBLE)

# ------------------------------------------------------------ given and learned noise


class Recorded(GaussianLaw):
    """Records the residuals that it learns."""

    def update(self, X: Tensor, z: Tensor) -> Any:
        self.seen = z
        return super().update(X, z)


class Chain(ChainedOutcomeTransform):
    """A subclass, whose scale is not read off."""


def noisy_gp(transform: Any = None) -> SingleTaskGP:
    """Twenty rows, with given noise that differs and a learned part of the same size for all."""
    X, Y, _ = make_data(20)
    noise = GIVEN * (1.0 + torch.arange(20, **DOUBLE) / 10)
    likelihood = FixedNoiseGaussianLikelihood(noise, learn_additional_noise=True)
    likelihood.second_noise = LEARNED
    gp = SingleTaskGP(X, Y, likelihood=likelihood, outcome_transform=transform)
    return gp.requires_grad_(False).eval()


def by_formulas(gp: Any, Y: Tensor, noise: Tensor, T: Tensor, more: Tensor) -> tuple[Tensor, ...]:
    """Mean and variance at ``T``; ``Y`` are targets at the training inputs and ``more``."""
    X, mean = torch.cat([gp.train_inputs[0], more]), gp.mean_module.constant
    K, k = gp.covar_module(X).to_dense() + noise.diag(), gp.covar_module(T, X).to_dense()
    variance = gp.covar_module(T, diag=True) - (k * torch.linalg.solve(K, k.mT).mT).sum(dim=-1)
    return mean + k @ torch.linalg.solve(K, Y - mean), variance


@pytest.mark.parametrize(
    "transform", [lambda: None, lambda: Standardize(1), lambda: Chain(s=Standardize(1))]
)
@pytest.mark.parametrize("given", [None, 0.03])
def test_noise_that_is_given_and_learned(given: float | None, transform: Callable[[], Any]) -> None:
    gp: Any = noisy_gp(transform())
    scale = 1.0 if transform() is None else make_data(20)[1].std()
    shift = 0.0 if transform() is None else make_data(20)[1].mean()
    Q = torch.tensor([[0.2, 0.3], [0.7, 0.6]], **DOUBLE)
    y, T = torch.tensor([[1.5], [-1.2]], **DOUBLE), torch.tensor([[0.25, 0.4]], **DOUBLE)
    own = gp.likelihood.noise_covar.noise
    known = own.mean() if given is None else torch.as_tensor(given / scale**2, **DOUBLE)
    mean, variance = by_formulas(gp, gp.train_targets, own + LEARNED, Q, Q[:0])
    targets = (y.squeeze(-1) - shift) / scale
    model = CalibratedModel(gp, Recorded())
    model.observe(Q, y, None if given is None else torch.full_like(y, given))
    expected = (targets - mean) / (variance + known + LEARNED).sqrt()
    torch.testing.assert_close(model.calibrator.seen, expected, rtol=1e-6, atol=0.0)

    noise = torch.cat([own, known.expand(2)])
    Y = torch.cat([gp.train_targets, targets])
    mean, variance = by_formulas(gp, Y, noise + LEARNED, T, Q)
    conditioned: Any = model.model
    torch.testing.assert_close(conditioned.likelihood.noise_covar.noise, noise, rtol=1e-6, atol=0.0)
    for _ in range(2):  # from the factor that gained rows, and from a new one
        posterior = conditioned.posterior(T)
        torch.testing.assert_close(
            posterior.mean.view(1), shift + scale * mean, rtol=1e-6, atol=0.0
        )
        torch.testing.assert_close(
            posterior.variance.view(1), scale**2 * variance, rtol=1e-6, atol=0.0
        )
        conditioned.train().eval()
    # Again, from the conditioned model
    model.observe(T, torch.zeros(1, 1, **DOUBLE))
    refit = CalibratedModel(conditioned.train().eval(), GaussianLaw())
    refit.observe(T, torch.zeros(1, 1, **DOUBLE))
    torch.testing.assert_close(
        model.posterior(Q).variance, refit.posterior(Q).variance, rtol=1e-6, atol=0.0
    )


def test_fantasies_and_pending_points_have_given_and_learned_noise() -> None:
    gp = noisy_gp()
    X = torch.tensor([[0.2, 0.3], [0.7, 0.6]], **DOUBLE)
    own = gp.likelihood.noise_covar.noise
    total = torch.cat([own, own.mean().expand(2)]) + LEARNED
    T = torch.tensor([[0.25, 0.4], [0.1, 0.9]], **DOUBLE)
    Y = torch.cat([gp.train_targets, X[:, 0]])
    mean, expected = by_formulas(gp, Y, total, T, X)
    model = CalibratedModel(gp, GaussianLaw())
    fantasies = model.fantasize(X, SobolQMCNormalSampler(torch.Size([3]), seed=1))
    pending = CensoredDelayModel(gp, X, imputation="hallucinate")
    points = X.clone().requires_grad_()
    with_graph: Any = model.condition_on_observations(points, X[:, :1], noise=total[-2:, None])
    each: Any
    for each in (fantasies, pending, with_graph):
        variance = each.posterior(T).variance.squeeze(-1)
        torch.testing.assert_close(variance, expected.expand_as(variance), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(with_graph.posterior(T).mean.squeeze(-1), mean, rtol=1e-8, atol=0.0)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("by", ["neither", "X", "Y"])
def test_given_noise_of_a_model_that_learns_its_noise(by: str, grad: bool) -> None:
    """The new rows have it, and the other rows and new predictions have the learned noise."""
    X, Y, _ = make_data(14)
    gp = make_gp(num=12)
    given = torch.tensor([[0.5], [2.0]], **DOUBLE)
    noise = torch.cat([torch.full((12,), NOISE, **DOUBLE), given.squeeze(-1)])
    values = Y[12:] + torch.arange(3, **DOUBLE).view(3, 1, 1)
    data, outcomes = torch.cat([make_data(12)[0], X[12:]]), make_data(12)[1].squeeze(-1)
    points, targets = X[12:].repeat(3, 1, 1), values.clone()
    with torch.set_grad_enabled(grad):
        (points if by == "X" else targets).requires_grad_(by != "neither")
        model = CalibratedModel(gp, NoCalibration())
        conditioned: Any = model.condition_on_observations(
            points, targets, noise=given.expand_as(targets)
        )
        for each in (conditioned, copy.deepcopy(conditioned) if by == "neither" else conditioned):
            posterior = each.posterior(T_NEW)
            for i, own in enumerate(values.squeeze(-1)):
                mean, variance = dense_posterior(data, torch.cat([outcomes, own]), noise, T_NEW)
                assert_close(posterior.mean[i].squeeze(-1), mean, rtol=1e-8, atol=1e-9)
                assert_close(posterior.variance[i].squeeze(-1), variance, rtol=1e-6, atol=1e-9)
            noisy = each.posterior(T_NEW, observation_noise=True)
            assert_close(
                noisy.variance - posterior.variance, torch.full((3, 4, 1), NOISE, **DOUBLE)
            )
    assert type(gp.likelihood) is GaussianLikelihood


def test_given_noise_stays_when_a_model_is_conditioned_again() -> None:
    """The second time without given noise, for which the learned noise stands."""
    (X, Y, _), (more, values, _) = make_data(12), make_data(15)
    model = CalibratedModel(make_gp(num=12), NoCalibration())
    once = model.condition_on_observations(more[:1], values[:1], noise=0.0 * values[:1] + 0.5)
    twice: Any = once.condition_on_observations(more[1:3], values[1:3])
    noise = torch.tensor([*[NOISE] * 12, 0.5, NOISE, NOISE], **DOUBLE)
    data, outcomes = torch.cat([X, more[:3]]), torch.cat([Y, values[:3]]).squeeze(-1)
    mean, variance = dense_posterior(data, outcomes, noise, T_NEW)
    posterior = twice.posterior(T_NEW)
    assert_close(posterior.mean.squeeze(-1), mean, rtol=1e-8, atol=1e-9)
    assert_close(posterior.variance.squeeze(-1), variance, rtol=1e-6, atol=1e-9)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("make", [lambda: with_learned_spread(make_gp(num=8)), make_multitask])
def test_given_noise_has_no_place_beside_noise_that_depends_on_inputs(make: Any) -> None:
    X, Y, _ = make_data(8)
    model = CalibratedModel(make(), NoCalibration())
    with pytest.raises(UnsupportedError, match="takes no given `noise`"):
        model.condition_on_observations(X[:1], Y[:1], noise=torch.ones(1, 1, **DOUBLE))


@pytest.mark.parametrize("transform", [lambda: None, lambda: Chain(s=Standardize(1))])
def test_stated_noise_is_not_doubled(transform: Callable[[], Any]) -> None:
    """BoTorch's posterior of an observation has twice the noise."""
    gp: Any = noisy_gp(transform())
    X, Y, _ = make_data(20)
    squared = 1.0 if transform() is None else Y.var()
    expected = squared * (gp.likelihood.noise_covar.noise.mean() + LEARNED)
    posterior = gp.posterior(X)
    noise = stated_noise(gp, X)
    torch.testing.assert_close(noise.expand(20, 1), expected.expand(20, 1))
    given = torch.full((20, 1), 0.3, **DOUBLE)
    of_given = predict(gp, X, objective=False, noise=given).spread().of_noise.square()
    torch.testing.assert_close(of_given, squared * given)
    report = calibration_report(gp, X, Y)
    z = (Y - posterior.mean) / (posterior.variance + expected).sqrt()
    assert report.base.coverage == float((z.abs() < 1.2815515655446004).double().mean())


@pytest.mark.parametrize("by", ["inputs", "values"])
def test_gradients_by_inputs_or_values_alone(by: str) -> None:
    """Gradients of predictions given observations, against differences."""
    model = CalibratedModel(make_gp(), GaussianLaw())
    X, Y = torch.tensor([[[0.2, 0.3], [0.7, 0.6]], [[0.5, 0.5], [-0.4, 0.1]]], **DOUBLE)
    Y = Y[:, :1]
    T = torch.tensor([[0.25, 0.4], [0.6, 0.8]], **DOUBLE)

    def moments(observed: Tensor) -> tuple[Tensor, Tensor]:
        data = (observed, Y) if by == "inputs" else (X, observed)
        posterior: Any = model.condition_on_observations(*data).posterior(T)
        return posterior.mean, posterior.variance + 0.0 * observed.sum()

    observed = (X if by == "inputs" else Y).clone().requires_grad_()
    assert torch.autograd.gradcheck(moments, observed)


# ------------------------------------------------------------ models without training data


class Sum(GP, GPyTorchModel):
    """Of other models, as in BoTorch's tutorial on rank-weighted ensembles."""

    _num_outputs = 1

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.models, self.likelihood = torch.nn.ModuleList([model]), GaussianLikelihood().double()

    def forward(self, x: Tensor) -> Any:
        model: Any = self.models[0]
        return model.posterior(x).distribution


def test_a_model_without_training_data_is_calibrated_online() -> None:
    X, Y, _ = make_data()
    model = CalibratedModel(Sum(SingleTaskGP(X[:6], Y[:6])).eval(), far_from_gaussian())
    assert model.batch_shape == torch.Size()
    model.observe(X[6:], Y[6:], condition=False)
    assert model.calibrator.num_updates == 30 + 6
    assert LogCalibratedExpectedImprovement(model, 0.0)(X.unsqueeze(-2)).isfinite().all()
    with pytest.raises(UnsupportedError, match="condition=False"):
        model.observe(X[6:], Y[6:])


class ConditionedSum(Sum):
    """A sum that conditions its summands."""

    def condition_on_observations(  # type: ignore[override]
        self, X: Tensor, Y: Tensor, **kwargs: Any
    ) -> Any:
        model: Any = self.models[0]
        return ConditionedSum(model.condition_on_observations(X, Y, **kwargs))


def test_a_model_that_conditions_itself_takes_inputs_with_a_graph() -> None:
    gp = make_gp()
    gp.posterior(X)
    model = CalibratedModel(ConditionedSum(gp).eval(), GaussianLaw())
    observed: Any = model.condition_on_observations(0.9 * X[:2].clone().requires_grad_(), Y[:2])
    expected = gp.condition_on_observations(0.9 * X[:2], Y[:2]).posterior(X).mean
    torch.testing.assert_close(observed.posterior(X).mean, expected)


# ------------------------------------------------------------ conditioning that fails


class LockedKernel(ScaleKernel):
    """Python cannot copy it."""

    def __init__(self) -> None:
        super().__init__(RBFKernel())
        self.lock = threading.Lock()


class LockedNoise(FixedNoiseGaussianLikelihood):
    def __init__(self, noise: Tensor) -> None:
        super().__init__(noise)
        self.lock = threading.Lock()


def robust() -> Any:
    """As BoTorch's fit leaves it: probabilities of supports keep their graph, which none copies."""
    X, Y, _ = make_data()
    gp = RobustRelevancePursuitSingleTaskGP(X, Y, outcome_transform=None)
    gp.likelihood.noise_covar.expand_support([4])
    gp.likelihood.noise_covar.raw_rho.data.fill_(0.9)
    gp.bmc_probabilities = gp.likelihood.noise_covar.raw_rho * 1.0
    return gp


X, Y, Yvar = make_data()
UNCOPIED: dict[str, Callable[[], Any]] = {
    "kernel": lambda: SingleTaskGP(X, Y, covar_module=LockedKernel(), input_transform=Normalize(2)),
    "likelihood": lambda: SingleTaskGP(X, Y, likelihood=LockedNoise(Yvar.squeeze(-1))),
    "robust": robust,
}
ACTS: dict[str, Callable[[Any], Any]] = {
    "observe": lambda gp: CalibratedModel(gp, far_from_gaussian()).observe(0.9 * X[:1], Y[:1]),
    "fantasize": lambda gp: CalibratedModel(gp, far_from_gaussian()).fantasize(
        X[:1], SobolQMCNormalSampler(torch.Size([2]))
    ),
    "pending": lambda gp: LogCalibratedExpectedImprovement(
        CalibratedModel(gp, far_from_gaussian()), 0.0, X_pending=X[:1]
    ),
    "delay": lambda gp: CensoredDelayModel(gp, X[:1], imputation="hallucinate"),
    "later": lambda gp: with_later_values(gp, X[:1], Y[:1]),
    "graph": lambda gp: CalibratedModel(gp, far_from_gaussian()).condition_on_observations(
        X[:1].clone().requires_grad_(), Y[:1], **given_noise(gp, X[:1], Y[:1], None)
    ),
}


@pytest.mark.parametrize("make", UNCOPIED.values(), ids=UNCOPIED)
@pytest.mark.parametrize("train_mode", [False, True])
@pytest.mark.filterwarnings("ignore:SparseOutlierNoise")
def test_conditioning_that_fails_changes_nothing(make: Callable[[], Any], train_mode: bool) -> None:
    gp, twin = make(), make()
    for act in ACTS.values():
        gp.train(train_mode)
        with pytest.raises(UnsupportedError, match="cannot be condition.*condition=False"):
            act(gp)
    T = torch.rand(3, 2, **DOUBLE)
    expected, got = twin.eval().posterior(T), gp.posterior(T)
    torch.testing.assert_close(got.mean, expected.mean)
    torch.testing.assert_close(got.variance, expected.variance)
    model = CalibratedModel.from_history(gp, far_from_gaussian())
    model.observe(X[:1] * 0.9, Y[:1], condition=False)  # the remedy
    assert model.calibrator.num_updates == 30 + 12 + 1


# ------------------------------------------------------------ one-to-many input transforms

SHIFTS = torch.tensor([[0.0, 0.0], [0.05, 0.02], [-0.04, 0.03]], **DOUBLE)
ONE_TO_MANY: dict[str, Callable[[], Any]] = {
    "perturbed": lambda: InputPerturbation(SHIFTS),
    "appended": lambda: AppendFeatures(torch.tensor([[0.1], [0.5]], **DOUBLE)),
    "chained": lambda: ChainedInputTransform(
        a=Normalize(2, bounds=torch.tensor([[-1.0, 0.0], [2.0, 3.0]], **DOUBLE)),
        b=InputPerturbation(SHIFTS),
    ),
}


def one_to_many(transform: Any, num: int) -> Any:
    gp: Any = SingleTaskGP(X[:num], Y[:num], input_transform=transform, outcome_transform=None)
    gp.covar_module.lengthscale = 0.3
    gp.likelihood = GaussianLikelihood().to(X)
    gp.likelihood.noise = 0.05
    return gp.eval()


@pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized")
@pytest.mark.parametrize("transform", ONE_TO_MANY.values(), ids=ONE_TO_MANY)
def test_one_to_many_transforms_observe_as_in_training(transform: Callable[[], Any]) -> None:
    full, model = (
        one_to_many(transform(), 12),
        CalibratedModel(one_to_many(transform(), 9), Recorded()),
    )
    residuals = prequential_residuals(full)
    for row in range(9, 12):
        model.observe(X[row : row + 1], Y[row : row + 1])
        torch.testing.assert_close(model.calibrator.seen, residuals[row : row + 1])
    width = 1 if transform is ONE_TO_MANY["appended"] else 2
    T = torch.rand(4, 2, width, **DOUBLE)
    expected = full.posterior(T)
    delayed = CensoredDelayModel(one_to_many(transform(), 9), X[9:], imputation="hallucinate")
    delayed.observe(X[9:], Y[9:])
    got: Any
    for got in (model.model, delayed):
        torch.testing.assert_close(got.posterior(T).mean, expected.mean)
        torch.testing.assert_close(got.posterior(T).variance, expected.variance)
    calibrated = CalibratedModel(full, GaussianLaw())
    pending = LogCalibratedExpectedImprovement  # it takes single points only, as the error explains
    if width == 2:
        with pytest.raises(UnsupportedError, match="one value for each point"):
            pending(calibrated, 0.0, X_pending=X[:2] + 0.01)(T[:, :1])
    replay = CalibratedModel.from_history(full, far_from_gaussian())
    assert replay.calibrator.num_updates == 30 + 12 or width == 1


@pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized")
@pytest.mark.parametrize(
    "transform", mostly_slow(ONE_TO_MANY.values(), [ONE_TO_MANY["chained"]]), ids=ONE_TO_MANY
)
def test_one_to_many_transforms_are_judged_at_the_points_themselves(
    transform: Callable[[], Any],
) -> None:
    gp = one_to_many(transform(), 9)
    plain = SingleTaskGP(X[:9], Y[:9], outcome_transform=None, input_transform=None)
    if transform is ONE_TO_MANY["chained"]:
        plain = one_to_many(transform()["a"], 9)
    else:
        plain.covar_module.lengthscale, plain.likelihood = 0.3, gp.likelihood
    for data in ((), (X[9:], Y[9:])):
        reports = [calibration_report(each, *data, alpha=0.4) for each in (gp, plain.eval())]
        assert reports[0].base == reports[1].base or str(reports[0]) == str(reports[1])
    model = CalibratedModel(gp, far_from_gaussian())
    assert calibration_report(model, X[9:], Y[9:], alpha=0.4).calibrated is not None


def test_noise_that_another_model_predicts() -> None:
    X, Y, _ = make_data(12)
    of_noise = HeteroskedasticNoise(SingleTaskGP(X, 0.1 + X[:, :1]))
    gp: Any = SingleTaskGP(X[:10], Y[:10], likelihood=_GaussianLikelihoodBase(of_noise)).eval()
    refitted: Any = SingleTaskGP(X, Y, likelihood=_GaussianLikelihoodBase(of_noise)).eval()
    refitted.outcome_transform = gp.outcome_transform
    refitted.set_train_data(targets=gp.outcome_transform(Y)[0].squeeze(-1), strict=False)
    conditioned: Any = with_observations(gp, X[10:], Y[10:])
    found, expected = conditioned.posterior(X), refitted.posterior(X)
    assert_close(found.mean, expected.mean)
    assert_close(found.variance, expected.variance)
    assert len(gp.train_targets) == 10
