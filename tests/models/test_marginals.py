"""Moments by the cached factor agree with ``posterior``, also after changes of the model."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from botorch.models import KroneckerMultiTaskGP, MixedSingleTaskGP, MultiTaskGP, SingleTaskGP
from botorch.models.robust_relevance_pursuit_model import RobustRelevancePursuitSingleTaskGP
from botorch.models.transforms import (
    ChainedInputTransform,
    ChainedOutcomeTransform,
    Normalize,
    Standardize,
    Warp,
)
from botorch.models.transforms.input import InputPerturbation
from botorch.models.transforms.outcome import StratifiedStandardize
from botorch.sampling import SobolQMCNormalSampler
from botorch.settings import propagate_grads
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import (
    AdditiveKernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    RBFKernel,
    ScaleKernel,
)
from gpytorch.means import LinearMean
from gpytorch.settings import lazily_evaluate_kernels, max_eager_kernel_size
from torch import Tensor
from torch.testing import assert_close

from botorch_calib.models.cholesky_factor import factor_of
from botorch_calib.models.conditioning import conditioned_on
from botorch_calib.models.outcome_transforms import outcome_map_of
from botorch_calib.models.predict import moments_by_factor, predict, process_posterior
from botorch_calib.models.process import with_task_feature
from tests.gps import DOUBLE, make_data, make_gp, make_multitask, make_variational


def data(num: int = 20, d: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(num + d)
    X = torch.rand(num, d, generator=generator, **DOUBLE)
    Y = (5 * X).sin().sum(dim=-1, keepdim=True)
    return X, Y, 0.01 + 0.1 * torch.rand(num, 1, generator=generator, **DOUBLE)


def plain_data(d: int = 3) -> dict[str, Any]:
    X, Y, _ = data(d=d)
    return {"train_X": X, "train_Y": Y}


def with_kernel(kernel: Any, **kwargs: Any) -> SingleTaskGP:
    X, Y, _ = data()
    return SingleTaskGP(X, Y, covar_module=kernel.double(), **kwargs)


def mixed() -> MixedSingleTaskGP:
    X, Y, _ = data()
    X[:, 1] = (3 * X[:, 1]).floor()
    return MixedSingleTaskGP(X, Y, cat_dims=[1])


def near_duplicates() -> SingleTaskGP:
    X, Y, _ = data()
    X = torch.cat([X, X + 1e-9])
    gp = SingleTaskGP(X, torch.cat([Y, Y + 1e-3]))
    gp.likelihood.noise_covar.register_constraint(
        "raw_noise", type(gp.likelihood.noise_covar.raw_noise_constraint)(1e-7)
    )
    gp.likelihood.noise = 1e-6
    return gp


def warped() -> SingleTaskGP:
    X, Y, _ = data()
    warp: Any = Warp(d=3, indices=[0, 2], concentration0_prior=None)
    gp = SingleTaskGP(X, Y, input_transform=ChainedInputTransform(n=Normalize(3), w=warp))
    warp.concentration0.data.fill_(1.7)
    return gp


def stratified() -> SingleTaskGP:
    X, Y, _ = data()
    X[:, 2] = (2 * X[:, 2]).floor()
    transform = StratifiedStandardize(2, torch.tensor([0.0, 1.0], **DOUBLE))
    with warnings.catch_warnings():  # each stratum is standardized, the whole is not
        warnings.filterwarnings("ignore", "Data .outcome observations. is not standardized")
        return SingleTaskGP(X, Y + X[:, 2:], outcome_transform=transform)


MODELS: dict[str, Callable[[], Any]] = {
    "default": lambda: SingleTaskGP(**plain_data()),
    "given noise": lambda: SingleTaskGP(*data()),
    "raw units": lambda: make_gp(transforms=True),
    "Matern": lambda: with_kernel(ScaleKernel(MaternKernel(2.5, ard_num_dims=3))),
    "no outcome transform": lambda: with_kernel(RBFKernel(), outcome_transform=None),
    "sum": lambda: with_kernel(
        AdditiveKernel(ScaleKernel(RBFKernel(active_dims=[0, 2])), ScaleKernel(PeriodicKernel()))
    ),
    "product": lambda: with_kernel(RBFKernel(active_dims=[0]) * MaternKernel(1.5)),
    "linear": lambda: with_kernel(LinearKernel()),
    "linear mean": lambda: SingleTaskGP(**plain_data(), mean_module=LinearMean(3)),
    "mixed": mixed,
    "near duplicates": near_duplicates,
    "learned warp": warped,
    "chain of outcome transforms": lambda: SingleTaskGP(
        **plain_data(),
        outcome_transform=ChainedOutcomeTransform(a=Standardize(1), b=Standardize(1)),
    ),
    "strata": stratified,
    "tasks": make_multitask,
    "tasks, given noise": lambda: make_multitask(fixed_noise=True),
    "relevance pursuit": lambda: RobustRelevancePursuitSingleTaskGP(**plain_data()),
}


def points(model: Any, *batch: int) -> Tensor:
    """Points of the model's box, ``batch x 1 x d``, with whole numbers where those are needed."""
    generator = torch.Generator().manual_seed(7)
    low, high = (getattr(make_inputs(model), name)(dim=0).values for name in ("min", "max"))
    X = low + (high - low) * torch.rand(*batch, 1, len(low), generator=generator, **DOUBLE)
    if isinstance(model, MixedSingleTaskGP):
        X[..., 1] = X[..., 1].round()
    if isinstance(getattr(model, "outcome_transform", None), StratifiedStandardize):
        X[..., 2] = X[..., 2].round()
    if isinstance(model, MultiTaskGP):
        X[..., -1] = 0.0
    return X


def make_inputs(model: Any) -> Tensor:
    original: Tensor | None = getattr(model, "_original_train_inputs", None)
    return model.train_inputs[0] if original is None else original


def moments_and_gradient(posterior: Any, X: Tensor) -> tuple[Tensor, ...]:
    weights = torch.linspace(0.3, 1.0, posterior.mean.numel(), dtype=X.dtype)
    total = (weights * (posterior.mean + 2 * posterior.variance).flatten()).sum()
    (gradient,) = torch.autograd.grad(total, X)
    return posterior.mean, posterior.variance, gradient


def served_posterior(model: Any, X: Tensor) -> Any:
    """The posterior where the kept factor serves the model, else None."""
    kept = moments_by_factor(model, with_task_feature(model, X))
    return None if kept is None else process_posterior(model, X)


def assert_same(model: Any, reference: Any, X: Tensor) -> None:
    """Compare moments by the factor, and their gradients, with another model's ``posterior``."""
    own_X, other_X = (X.clone().requires_grad_(True) for _ in range(2))
    served = served_posterior(model, own_X)
    assert served is not None
    own = moments_and_gradient(served, own_X)
    other = moments_and_gradient(reference.posterior(other_X), other_X)
    for mine, theirs in zip(own, other, strict=True):
        assert mine.shape == theirs.shape
        assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


# Every kind of model at a batch of points, and one kind at other batches
each_model = pytest.mark.parametrize(
    ("name", "batch"), [*((name, (2, 3)) for name in MODELS), ("default", (5,)), ("default", ())]
)


@each_model
def test_single_points_have_the_posterior_of_botorch(name: str, batch: tuple[int, ...]) -> None:
    model = MODELS[name]()
    assert_same(model, deepcopy(model), points(model, *batch))


def joint_and_gradient(posterior: Any, X: Tensor) -> tuple[Tensor, ...]:
    covariance = posterior.distribution.covariance_matrix
    weights = torch.linspace(0.3, 1.0, covariance.numel(), dtype=X.dtype).view_as(covariance)
    total = (weights * covariance + posterior.mean).sum()
    (gradient,) = torch.autograd.grad(total, X)
    return posterior.mean, covariance, gradient


@each_model
def test_served_posteriors_are_those_of_botorch(name: str, batch: tuple[int, ...]) -> None:
    model = MODELS[name]()
    reference, X = deepcopy(model), points(model, *batch, 4).squeeze(-2)
    own_X, other_X = (X.clone().requires_grad_(True) for _ in range(2))
    served = served_posterior(model, own_X)
    own = joint_and_gradient(served, own_X)
    other = joint_and_gradient(reference.posterior(other_X), other_X)
    for mine, theirs in zip(own, other, strict=True):
        assert mine.shape == theirs.shape
        assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["default", "Matern", "tasks"])
def test_many_points_some_of_them_equal(name: str) -> None:
    # From 26 points on, distances are computed by a matrix product, with errors at small distances.
    model = MODELS[name]()
    X = points(model, 30).squeeze(-2)
    X[20] = X[3]
    served: Any = served_posterior(model, X)
    expected: Any = model.posterior(X)
    own, other = (p.distribution.covariance_matrix for p in (served, expected))
    assert_close(own, other, rtol=1e-10, atol=1e-10)
    assert_close(own[20], own[3], rtol=0.0, atol=1e-13)
    assert torch.equal(own.diagonal()[[20]], own.diagonal()[[3]]) or name != "Matern"


def dense_moments(model: SingleTaskGP, X: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance in the space of the targets, by an eigendecomposition of K + noise."""
    model.eval()
    inputs = model.train_inputs[0]
    K = model.likelihood(model.forward(inputs)).covariance_matrix
    values, vectors = torch.linalg.eigh(K)
    x = model.transform_inputs(X.squeeze(-2))
    k = model.covar_module(x, inputs).to_dense() @ vectors
    target = vectors.mT @ (model.train_targets - model.mean_module(inputs))
    mean = model.mean_module(x) + (k / values) @ target
    return mean, model.covar_module(x).to_dense().diagonal() - (k.square() / values).sum(dim=-1)


def test_small_noise_and_repeated_rows_keep_their_digits() -> None:
    """The variance is absolute to rounding over the least eigenvalue; the prior's is about 1."""
    model = near_duplicates()
    X = torch.cat([make_inputs(model)[:3].unsqueeze(-2), points(model, 4)])
    served = served_posterior(model, X)
    assert served is not None
    transform: Any = model.outcome_transform
    scale, shift = transform.stdvs.squeeze(), transform.means.squeeze()
    mean, variance = dense_moments(model, X)
    assert_close(served.mean.flatten(), shift + scale * mean, rtol=0.0, atol=1e-8)
    assert_close(served.variance.flatten(), scale**2 * variance, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("q", [1, 3])
def test_second_derivatives(q: int) -> None:
    model = SingleTaskGP(**plain_data(), covar_module=RBFKernel(ard_num_dims=3).double())
    X = points(model, 2, q).transpose(-2, -3).reshape(2, q, 3).requires_grad_(True)

    def moments(X: Tensor) -> tuple[Tensor, Tensor]:
        served: Any = served_posterior(model, X)
        return served.mean, served.distribution.covariance_matrix

    assert torch.autograd.gradcheck(moments, (X,))
    assert torch.autograd.gradgradcheck(moments, (X,))


def test_single_precision() -> None:
    model = make_gp(dtype=torch.float)
    X = points(make_gp(), 6)
    served, exact = (
        served_posterior(m, X.to(t)) for m, t in ((model, torch.float), (make_gp(), torch.double))
    )
    assert served is not None and exact is not None
    assert served.mean.dtype == torch.float
    assert_close(served.mean.double(), exact.mean, rtol=1e-4, atol=1e-4)
    assert_close(served.variance.double(), exact.variance, rtol=1e-3, atol=1e-5)
    joint: Any = served_posterior(model, X.squeeze(-2).float())
    assert joint.mean.dtype == torch.float
    assert_close(joint.mean.double().flatten(), exact.mean.flatten(), rtol=1e-4, atol=1e-4)
    assert_close(joint.variance.double().flatten(), exact.variance.flatten(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("fixed_noise", [False, True])
def test_fantasies_and_conditioned_models(fixed_noise: bool) -> None:
    """Batches of models: their batch dimensions come last in the batch shape of the points."""
    model = make_gp(fixed_noise=fixed_noise, transforms=True)
    X = points(model, 4)
    with torch.no_grad():
        fantasies = model.fantasize(X[:2, 0], SobolQMCNormalSampler(torch.Size([3])))
        other = model.fantasize(X[:2], SobolQMCNormalSampler(torch.Size([3])))
    assert fantasies.batch_shape == (3,) and other.batch_shape == (3, 2)
    assert_same(fantasies, deepcopy(fantasies), X.unsqueeze(-3))
    # They share one factor, and others have one each; joint posteriors do not notice.
    num = fantasies.train_targets.shape[-1]
    shared, own = factor_of(fantasies), factor_of(other)
    assert shared is not None and shared.cholesky.shape == (1, num, num)
    assert own is not None and own.cholesky.shape == (3, 2, num - 1, num - 1)
    dropped: Any = deepcopy(fantasies)
    dropped.prediction_strategy = None
    assert served_posterior(dropped, X.unsqueeze(-3)) is not None
    joint: Any = dropped.posterior(X[:, 0])
    expected: Any = deepcopy(fantasies).posterior(X[:, 0])
    assert_close(joint.mean, expected.mean)
    assert_close(joint.covariance_matrix, expected.covariance_matrix)
    assert_same(other, deepcopy(other), X[:, None, None])
    assert_same(other, deepcopy(other), X[:2])
    noise = {"noise": 0.1 * X[:, 0, :1].abs()} if fixed_noise else {}
    conditioned = model.condition_on_observations(X[:, 0], X[:, 0, :1], **noise)
    assert_same(conditioned, deepcopy(conditioned), X)


def change_targets(model: Any) -> None:
    model.set_train_data(targets=model.train_targets.flip(0), strict=False)


def write_targets(model: Any) -> None:
    model.train_targets.mul_(1.5)


def change_inputs(model: Any) -> None:
    model.train()
    inputs = model.train_inputs[0][:-2]
    model.set_train_data(inputs, model.train_targets[:-2], strict=False)


def load(model: Any) -> None:
    other = make_gp(transforms=True)
    other.covar_module.lengthscale = 0.9
    model.load_state_dict(other.state_dict())


def initialize(model: Any) -> None:
    model.covar_module.lengthscale = 0.2
    model.likelihood.noise = 0.3


def step(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)


def refit(model: Any) -> None:
    model.train()
    step(model)
    model.eval()


def replace_kernel(model: Any) -> None:
    model.covar_module = ScaleKernel(MaternKernel(1.5, ard_num_dims=2)).double()


@pytest.mark.parametrize(
    "change",
    [change_targets, write_targets, change_inputs, load, initialize, step, refit, replace_kernel],
)
def test_changes_of_data_and_hyperparameters_are_noticed(change: Callable[[Any], None]) -> None:
    model = make_gp(transforms=True)
    X = points(model, 4)
    before = served_posterior(model, X)
    change(model)
    after = served_posterior(model, X)
    assert before is not None and after is not None
    assert not torch.allclose(before.mean, after.mean)
    fresh = deepcopy(model)
    fresh.train()  # drops GPyTorch's caches
    assert_same(model, fresh.eval(), X)


def test_given_noise_that_is_replaced_is_noticed() -> None:
    model = make_gp(fixed_noise=True)
    X = points(model, 4)
    served_posterior(model, X)
    model.likelihood.noise = 3 * model.likelihood.noise
    fresh = deepcopy(model)
    fresh.train()
    assert_same(model, fresh.eval(), X)


class OwnPosterior(SingleTaskGP):
    def posterior(self, *args: Any, **kwargs: Any) -> Any:
        return super().posterior(*args, **kwargs)


def perturbed() -> SingleTaskGP:
    X, Y, _ = data()
    transform = InputPerturbation(torch.tensor([[0.0, 0.0, 0.0], [0.1, 0.0, 0.1]], **DOUBLE))
    return SingleTaskGP(X, Y, input_transform=transform)


@pytest.mark.parametrize(
    "make",
    [
        make_variational,
        perturbed,
        lambda: OwnPosterior(**plain_data(d=2)),
        lambda: SingleTaskGP(make_data()[0], make_data()[1].repeat(1, 2)),
        lambda: KroneckerMultiTaskGP(make_data()[0], make_data()[1].repeat(1, 2)),
    ],
)
def test_what_the_engine_does_not_serve_comes_from_posterior(make: Callable[[], Any]) -> None:
    model = make()
    X = torch.rand(4, 1, 3 if make is perturbed else 2, **DOUBLE)
    assert served_posterior(model, X) is None
    assert served_posterior(model, X.squeeze(-2)) is None
    for at in (X, X.squeeze(-2)):
        posterior: Any = process_posterior(model, at)
        expected = model.posterior(at)
        assert_close(posterior.mean, expected.mean)
        assert_close(posterior.variance, expected.variance)


def rows_and_gradient(mean: Tensor, rows: Tensor, X: Tensor) -> tuple[Tensor, ...]:
    weights = torch.linspace(0.3, 1.0, rows.numel(), dtype=X.dtype).view_as(rows)
    (gradient,) = torch.autograd.grad((weights * rows).sum() + mean.sum(), X)
    return mean, rows, gradient


BESIDE = MODELS | {
    "variational": make_variational,
    "one to many": perturbed,
    "own posterior": lambda: OwnPosterior(**plain_data()),
}


@pytest.mark.parametrize(
    ("name", "shape"),
    [*((name, (3, 2)) for name in BESIDE), ("default", (2, 3, 1)), ("tasks", (2,))],
)
def test_rows_beside_a_baseline_are_those_of_served_posteriors(
    name: str, shape: tuple[int, ...]
) -> None:
    model = BESIDE[name]().eval()
    reference = deepcopy(model)
    if name == "variational":
        every = torch.rand(4 + torch.Size(shape).numel(), 2, **DOUBLE)
    else:
        every = points(model, 4 + torch.Size(shape).numel()).squeeze(-2)
    baseline, new = every[:4], every[4:].view(*shape, -1)
    own_X, other_X = (new.clone().requires_grad_(True) for _ in range(2))
    served: Any = predict(model, own_X, baseline=baseline)
    expected: Any = reference.posterior(
        torch.cat([baseline.expand(*shape[:-1], -1, -1), other_X], dim=-2)
    )
    num = shape[-1] * (2 if name == "one to many" else 1)
    assert served.mean.shape[-2] == num
    rows = torch.cat([served.with_baseline, served.covariance], dim=-1)
    maps: list[Any] = [outcome_map_of(model, at) for at in (every[:4], new)]
    units = [each.scaled(torch.ones(1, 1, **DOUBLE)) for each in maps]
    if name == "strata":  # each stratum has its unit
        units = [units[1], torch.cat([units[0].expand(*shape[:-1], -1, 1), units[1]], dim=-2)]
    rows = rows * units[0] * units[1].mT
    own = rows_and_gradient(served.mean, rows, own_X)
    last = expected.distribution.covariance_matrix[..., -num:, :]
    other = rows_and_gradient(expected.mean[..., -num:, :], last, other_X)
    for mine, theirs in zip(own, other, strict=True):
        assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


def test_a_baseline_is_explained_once_and_again_after_changes() -> None:
    model = MODELS["Matern"]().eval()
    baseline, X = points(model, 6).squeeze(-2), points(model, 3)

    def explained(baseline: Tensor) -> Tensor:
        """The cached part of the baseline, after a comparison of posteriors."""
        posterior: Any = predict(model, X, baseline=baseline)
        joint = model.posterior(torch.cat([baseline.expand(3, -1, -1), X], dim=-2))
        expected = joint.distribution.covariance_matrix[..., -1:, :]
        rows = torch.cat([posterior.with_baseline, posterior.covariance], dim=-1)
        rows = posterior.outcome_map.scaled(rows, power=2)
        assert_close(rows, expected, rtol=1e-10, atol=1e-10)
        return own_factor()._of_baseline(model, baseline)[1]

    def own_factor() -> Any:
        return factor_of(model)

    first = explained(baseline)
    assert explained(baseline) is first
    baseline += 0.01
    second = explained(baseline)
    assert second is not first
    with torch.no_grad():
        model.covar_module.base_kernel.raw_lengthscale += 0.3
    model.train()
    assert explained(baseline) is not second
    assert len(own_factor()._baselines) == 1
    del baseline
    gc.collect()
    assert len(own_factor()._baselines) == 0


def test_a_large_covariance_is_not_evaluated_before_it_is_asked_for() -> None:
    model = SingleTaskGP(*data()[:2])
    with max_eager_kernel_size(25):
        assert served_posterior(model, torch.rand(5, 3, **DOUBLE)) is not None
        assert served_posterior(model, torch.rand(6, 3, **DOUBLE)) is None


def test_a_conditioned_model_has_the_factor_that_conditioning_extended() -> None:
    model = make_gp(transforms=True)
    X = points(model, 4)
    with torch.no_grad():
        conditioned: Any = conditioned_on(model, X[:3, 0], X[:3, 0, :1])
        further: Any = conditioned_on(conditioned, X[3:, 0], X[3:, 0, :1])
    fresh = [deepcopy(each) for each in (conditioned, further)]  # copies have no cached factor
    for each, copy in zip((conditioned, further), fresh, strict=True):
        assert_same(each, copy, X)


def test_conditioning_after_an_in_place_change() -> None:
    """GPyTorch would go on from the factor of the old hyperparameters."""
    model = make_gp()
    X = points(model, 4)
    with torch.no_grad():
        conditioned_on(model, X[:2, 0], X[:2, 0, :1])
        initialize(model)
        conditioned: Any = conditioned_on(model, X[:2, 0], X[:2, 0, :1])
    fresh: Any = deepcopy(conditioned)
    assert_same(conditioned, fresh, X)
    assert_close(conditioned.posterior(X).mean, fresh.posterior(X).mean)


def test_kernels_that_are_evaluated_at_once_come_from_posterior() -> None:
    """Even with a cached factor: the setting is global, and other threads switch it."""
    model = make_gp()
    X = points(model, 4)
    before = served_posterior(model, X)
    with lazily_evaluate_kernels(False):
        assert served_posterior(model, X) is None
        posterior: Any = process_posterior(model, X)
    assert before is not None
    assert_close(posterior.mean, before.mean, rtol=1e-10, atol=1e-10)
    assert served_posterior(model, X) is not None


def swap_kernel(model: Any) -> None:
    """Another kernel, whose parameters have the same values.

    It is smooth at 0: distances of many points come from a matrix product, which leaves sqrt(eps)
    of the distance of a point to itself, and by a kink at 0 the kernel would pass it on.
    """
    kernel = MaternKernel(2.5, ard_num_dims=2).double()
    kernel.raw_lengthscale.data.copy_(model.covar_module.raw_lengthscale)
    model.covar_module = kernel


def change_constraint(model: Any) -> None:
    model.likelihood.noise_covar.register_constraint("raw_noise", GreaterThan(0.3))


@pytest.mark.parametrize("change", [swap_kernel, change_constraint])
def test_training_mode_drops_the_factor(change: Callable[[Any], None]) -> None:
    model = SingleTaskGP(**plain_data(d=2), covar_module=RBFKernel(ard_num_dims=2).double())
    X = points(model, 4)
    served_posterior(model, X)
    change(model)
    model.train()
    fresh = deepcopy(model)
    assert_same(model.eval(), fresh.eval(), X)


@pytest.mark.parametrize("lengthscale", [0.1, 3.0])
def test_what_gpytorch_kept_before_an_in_place_change(lengthscale: float) -> None:
    model = make_gp()
    X = points(model, 4)
    model.posterior(X)
    model.covar_module.lengthscale = lengthscale
    fresh = deepcopy(model)
    assert_same(model, fresh, X)
    joint = model.posterior(X[:, 0])
    assert_close(joint.mean, fresh.posterior(X[:, 0]).mean, rtol=1e-10, atol=1e-10)


def test_a_factor_that_was_made_in_inference_mode() -> None:
    model = make_gp(transforms=True)
    X = points(model, 4)
    with torch.inference_mode():
        served_posterior(model, X)
    assert_same(model, make_gp(transforms=True), X)


def test_gradients_by_hyperparameters_come_from_posterior() -> None:
    model = make_gp()
    X = points(model, 4)
    with propagate_grads(True):
        assert served_posterior(model, X) is None
