"""Sample paths of calibrated models are functions of x with the posterior's marginals."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.acquisition.utils import get_optimal_samples
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.deterministic import MatheronPathModel
from botorch.models.likelihoods.sparse_outlier_noise import SparseOutlierGaussianLikelihood
from botorch.models.transforms.input import InputPerturbation
from botorch.optim import optimize_acqf
from botorch.sampling.pathwise import draw_kernel_feature_paths, draw_matheron_paths
from botorch.sampling.pathwise.paths import SamplePath
from botorch.utils.sampling import manual_seed
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.likelihoods.gaussian_likelihood import _GaussianLikelihoodBase
from gpytorch.likelihoods.noise_models import HeteroskedasticNoise, HomoskedasticNoise
from torch import Size, Tensor
from torch.testing import assert_close

from botorch_calib import CalibratedModel, CensoredDelayModel, LocalizedConformal
from botorch_calib.acquisition.thompson import draw_path
from botorch_calib.calibration import Calibrator, QuantileRecalibrator
from botorch_calib.models.sample_paths import CalibratedPath
from botorch_calib.posteriors import CalibratedPosterior
from tests.gps import DOUBLE, make_data, make_gp, make_multitask, make_variational
from tests.models.ensembles import make_ensemble

CALIBRATORS: list[Calibrator] = [
    LocalizedConformal(0.2, lengthscale=0.25, step_size=0.3),
    QuantileRecalibrator(step_size=0.3),
]


def model(calibrator: Calibrator = CALIBRATORS[0], **kwargs: Any) -> CalibratedModel:
    transforms = kwargs.pop("transforms", False)
    return CalibratedModel.from_history(make_gp(transforms=transforms), calibrator, **kwargs)


def points(transforms: bool = False) -> Tensor:
    """Two visited points and three others."""
    X, _, _ = make_data(transforms=transforms)
    new = 0.5 * (X[2:5] + X[6:9])
    return torch.cat([X[:2], new])


def paths(calibrated: CalibratedModel, sample_shape: Size, seed: int = 0) -> CalibratedPath:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        path: Any = draw_matheron_paths(calibrated, sample_shape)
    assert type(path) is CalibratedPath
    return path


@pytest.mark.parametrize(
    ("calibrator", "excess", "transforms"),
    [(CALIBRATORS[0], "objective", False), (CALIBRATORS[1], "noise", True)],
)
def test_marginals_are_those_of_the_posterior(
    calibrator: Calibrator, excess: str, transforms: bool
) -> None:
    calibrated, X = model(calibrator, excess=excess, transforms=transforms), points(transforms)
    num = 4000
    values = paths(calibrated, Size([num]))(X)
    assert values.shape == (num, 5)
    pits = calibrated.posterior(X).cdf(values.unsqueeze(-1)).squeeze(-1).sort(dim=0).values
    grid = (torch.arange(num, dtype=torch.double) + 0.5) / num
    distance = (pits - grid.unsqueeze(-1)).abs().amax(dim=0)
    # Kolmogorov's and Smirnov's test at a level of 1e-4, for five points; it tells the calibrated
    # distribution from the plain one.
    assert (distance < 2.4 / num**0.5).all()
    plain = calibrated.model.posterior(X)
    z = (values - plain.mean.squeeze(-1)) / plain.variance.sqrt().squeeze(-1)
    wrong = (torch.special.ndtr(z).sort(dim=0).values - grid.unsqueeze(-1)).abs().amax(dim=0)
    assert wrong.amax() > 2.4 / num**0.5


@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_paths_are_the_transport_of_the_formula(calibrator: Calibrator) -> None:
    calibrated, X = model(calibrator), points()
    drawn = paths(calibrated, Size([7]))
    posterior, base = calibrated.posterior(X), calibrated.model.posterior(X)
    mean, v = base.mean.squeeze(-1), base.variance.squeeze(-1)
    noise = calibrated.model.likelihood.noise
    f, other = drawn.of_process(X)
    sy = (v + noise).sqrt()
    z = (f + (noise / v).sqrt() * (other - mean) - mean) / sy
    assert isinstance(posterior, CalibratedPosterior) and posterior.predictive is not None
    moved = posterior.predictive.transport(z.unsqueeze(-1)).squeeze(-1)
    assert_close(drawn(X), f + v / sy * (moved - z), rtol=1e-10, atol=1e-10)
    assert not torch.allclose(f, other)


def test_paths_are_functions_of_x() -> None:
    """Equal rows, in any company and shape, have equal values; and gradients are right."""
    drawn, X = paths(model(), Size([3])), points()
    values = drawn(X)
    assert_close(drawn(torch.cat([X, X.flip(0)])), torch.cat([values, values.flip(-1)], dim=-1))
    assert_close(drawn(X[3:4]), values[:, 3:4])
    batch = X.expand(3, 5, 2)
    assert_close(drawn(batch), values)
    assert paths(model(), Size([3, 1]))(X.expand(4, 5, 2)).shape == (3, 4, 5)
    assert paths(model(), Size([]))(X.expand(4, 5, 2)).shape == (4, 5)
    new = X[2:].clone().requires_grad_()
    assert torch.autograd.gradcheck(drawn, (new,), atol=1e-5, rtol=1e-4)


def test_paths_of_a_model_with_perturbed_inputs() -> None:
    """As in BoTorch, the values at the perturbed copies of a point are adjacent."""
    shifts = torch.tensor([[0.0, 0.0], [0.05, -0.02], [-0.03, 0.04]], **DOUBLE)
    calibrated, X = model(), points()
    calibrated.model.input_transform = InputPerturbation(shifts).eval()
    perturbed = paths(calibrated, Size([2]))
    moved = (X.unsqueeze(-2) + shifts).reshape(-1, 2)
    values, mean = perturbed.with_mean(X)
    assert values.shape == perturbed.of_process(X)[0].shape == (2, 15)
    assert_close(mean, calibrated.posterior(X).mean.squeeze(-1))
    base = calibrated.model.posterior(X)
    v, noise = base.variance.squeeze(-1), calibrated.model.likelihood.noise
    (f, other), mu = perturbed.of_process(X), base.mean.squeeze(-1)
    z = (f + (noise / v).sqrt() * (other - mu) - mu) / (v + noise).sqrt()
    transport = calibrated.calibrator.predictive(moved).transport(z.unsqueeze(-1)).squeeze(-1)
    assert_close(values, f + v / (v + noise).sqrt() * (transport - z), rtol=1e-8, atol=1e-8)


def test_paths_of_a_batch_of_models() -> None:
    """Paths of each model, with its moments, as in BoTorch."""
    X, Y, _ = make_data()
    data = X.expand(2, *X.shape), torch.stack([Y, Y.flip(0)])
    both = SingleTaskGP(*data, outcome_transform=None).eval()
    calibrated, new = CalibratedModel(both, model().calibrator), points()
    drawn = paths(calibrated, Size([3, 1]))
    values, mean = drawn.with_mean(new)
    assert values.shape == (3, 1, 2, 5) and drawn(new.expand(4, 2, 5, 2)).shape == (3, 4, 2, 5)
    assert_close(drawn(new.expand(2, 5, 2)), values)
    (f, other), base = drawn.of_process(new), both.posterior(new.expand(2, 5, 2))
    mu, v, noise = base.mean.squeeze(-1), base.variance.squeeze(-1), both.likelihood.noise
    z = (f + (noise / v).sqrt() * (other - mu) - mu) / (v + noise).sqrt()
    transport = calibrated.calibrator.predictive(new).transport(z.unsqueeze(-1)).squeeze(-1)
    assert_close(values, f + v / (v + noise).sqrt() * (transport - z), rtol=1e-8, atol=1e-8)
    assert_close(mean, calibrated.posterior(new.expand(2, 5, 2)).mean.squeeze(-1))
    box = torch.tensor([[0.0, 0.0], [1.0, 1.0]], **DOUBLE)
    optima, _ = get_optimal_samples(calibrated, box, num_optima=3, raw_samples=8, num_restarts=1)
    assert optima.shape == (3, 2, 2)


def test_an_uncalibrated_model_keeps_its_paths() -> None:
    gp = make_gp()
    calibrated = CalibratedModel(gp, QuantileRecalibrator())
    drawn = paths(calibrated, Size([4]))
    assert_close(drawn(points()), drawn.of_process(points())[0], rtol=1e-6, atol=1e-6)


def noise_of_kind(kind: str) -> Any:
    """A likelihood whose noise differs between the training points in other ways than usual."""
    X, _, _ = make_data()
    if kind == "outliers":
        likelihood = SparseOutlierGaussianLikelihood(HomoskedasticNoise(), len(X), [0, 4])
        likelihood.noise_covar.sparse_parameter.data.fill_(0.9)
        return likelihood
    if kind == "inputs":
        return _GaussianLikelihoodBase(HeteroskedasticNoise(SingleTaskGP(X, 0.1 + X[:, :1])))
    likelihood = FixedNoiseGaussianLikelihood(0.01 + X[:, 0], learn_additional_noise=True)
    likelihood.second_noise = 0.4
    return likelihood


@pytest.mark.filterwarnings("ignore:SparseOutlierNoise", "ignore:Data .input data")
@pytest.mark.parametrize("kind", ["given and learned", "outliers", "inputs"])
def test_noise_of_the_training_data(kind: str) -> None:
    """Paths have the mean and the variance of the posterior, for any noise of the process."""
    (X, Y, _), new = make_data(), points()
    kernel = ScaleKernel(MaternKernel(ard_num_dims=2))
    kernel.outputscale = 2.5
    gp: Any = SingleTaskGP(X, Y, likelihood=noise_of_kind(kind), covar_module=kernel.double())
    posterior = gp.double().eval().requires_grad_(False).posterior(new)
    mean, deviation = posterior.mean.squeeze(-1), posterior.variance.sqrt().squeeze(-1)
    num, calibrated = 2000, CalibratedModel(gp, QuantileRecalibrator())
    for wrapped in (CensoredDelayModel(gp, imputation="none"), calibrated):
        torch.manual_seed(0)
        drawn: Any = draw_matheron_paths(wrapped, Size([num]))
        z = (
            (drawn(new) if wrapped is not calibrated else drawn.of_process(new)) - mean
        ) / deviation
        assert z.mean(dim=-2).abs().max() < 4.5 * num**-0.5
        assert (z.var(dim=-2) - 1.0).abs().max() < 4.5 * (2 / num) ** 0.5
    # Without any deviations from the mean, a draw is the mean.
    drawn = draw_path(gp, torch.zeros((), dtype=torch.double), seed=0)
    assert_close(drawn(new), mean, rtol=1e-6, atol=1e-6)


def test_thompson_sampling_of_botorch() -> None:
    calibrated = model()
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
    torch.manual_seed(0)
    acqf = PathwiseThompsonSampling(calibrated)
    candidates, _ = optimize_acqf(
        acqf, bounds, q=2, num_restarts=2, raw_samples=8, options={"maxiter": 10}
    )
    assert candidates.shape == (2, 2) and (candidates[0] - candidates[1]).norm() > 1e-3
    path_model = MatheronPathModel(calibrated, sample_shape=Size([2]), seed=1)
    assert path_model(points()).shape == (2, 5, 1)


def test_pending_points_shape_the_paths() -> None:
    pending = points()[2:3]
    delayed = CensoredDelayModel(make_gp(), pending, censor_value=-3.0)
    calibrated = CalibratedModel.from_history(delayed, CALIBRATORS[0])
    values = paths(calibrated, Size([500]))(pending)
    expected = calibrated.posterior(pending)
    assert_close(values.mean(), expected.mean.squeeze(), rtol=0.0, atol=0.1)
    assert expected.mean.squeeze() < model().posterior(pending).mean.squeeze() - 0.3


@pytest.mark.parametrize(("calibrated", "imputation"), [(False, "censor"), (True, "hallucinate")])
def test_paths_of_a_model_that_knows_pending_points(calibrated: bool, imputation: str) -> None:
    """They equal paths of the conditioned model, for one sample or many."""
    base: Any = model() if calibrated else make_gp()
    pending = points()[2:3]
    delayed = CensoredDelayModel(base, pending, -3.0, imputation)
    conditioned = delayed.gaussian_model
    if calibrated:
        conditioned = CalibratedModel(conditioned, base.calibrator)
    for shape in (Size([]), Size([3])):
        drawn = []
        for each in (delayed, conditioned):
            torch.manual_seed(0)
            drawn.append(draw_matheron_paths(each, shape))
        assert (type(drawn[0]) is CalibratedPath) == calibrated
        assert torch.equal(drawn[0](points()), drawn[1](points()))
        assert drawn[0](points()).shape == (*shape, 5)
    assert PathwiseThompsonSampling(delayed)(points()[:2]).isfinite().all()


@pytest.mark.parametrize("order", ["alone", "inside", "outside"])
def test_paths_stay_what_they_are_when_the_model_observes(order: str) -> None:
    X, pending = points(), points()[3:]
    if order == "outside":
        changing: Any = CalibratedModel.from_history(
            CensoredDelayModel(make_gp(), pending, -3.0), CALIBRATORS[0]
        )
    else:
        changing = model()
        if order == "inside":
            changing = CensoredDelayModel(changing, pending, -3.0)
    torch.manual_seed(0)
    drawn = draw_matheron_paths(changing, Size([3]))
    values, before = drawn(X), changing.posterior(X).mean
    changing.observe(X[2:3], torch.full((1, 1), 4.0, dtype=torch.double))
    assert (changing.posterior(X).mean - before).abs().max() > 0.1
    assert torch.equal(drawn(X), values)


def change_hyperparameters(gp: Any) -> None:
    """As a fit does: in place, in training mode."""
    gp.train()
    gp.covar_module.lengthscale = 2.0 * gp.covar_module.lengthscale
    gp.mean_module.constant.data += 1.0
    gp.likelihood.noise = 4.0 * gp.likelihood.noise
    gp.eval()


@pytest.mark.parametrize(
    ("order", "transforms"),
    [("alone", True), ("inside", True), ("outside", False), ("uncalibrated", True)],
)
def test_paths_stay_what_they_are_when_the_process_is_fitted(order: str, transforms: bool) -> None:
    X, gp = points(transforms), make_gp(transforms=transforms)
    if order == "outside":
        fitted: Any = CalibratedModel.from_history(
            CensoredDelayModel(gp, X[3:], -3.0), CALIBRATORS[0]
        )
    elif order == "uncalibrated":
        fitted = CensoredDelayModel(gp, X[3:], -3.0)
    else:
        fitted = CalibratedModel.from_history(gp, CALIBRATORS[0])
        if order == "inside":
            fitted = CensoredDelayModel(fitted, X[3:], -3.0)
    torch.manual_seed(0)
    drawn = draw_matheron_paths(fitted, Size([3]))
    single = draw_path(fitted, torch.ones((), dtype=torch.double), seed=0)
    values, value = drawn(X), single(X)
    before = gp.posterior(X).mean
    change_hyperparameters(gp)
    assert (gp.posterior(X).mean - before).abs().max() > 0.1
    torch.testing.assert_close(drawn(X), values, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(single(X), value, rtol=1e-12, atol=1e-12)


def test_samplers_are_passed_on() -> None:
    shapes = []

    def weights(shape: Size) -> Tensor:
        shapes.append(shape)
        return torch.randn(shape, dtype=torch.double)

    sampler = partial(draw_kernel_feature_paths, weight_generator=weights)
    drawn = draw_matheron_paths(model(), Size([2]), prior_sampler=sampler)
    assert drawn(points()).shape == (2, 5)
    assert [shape[:2] for shape in shapes] == [(2, 2)]  # two independent paths of each


class OwnPath(SamplePath):
    """A user's path, which is no `GeneralizedLinearPath`."""

    def __init__(self, path: SamplePath) -> None:
        super().__init__()
        self.path = path

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        values: Tensor = self.path(x)
        return values

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        pass


def own_sampler(model: Any, sample_shape: Size, **kwargs: Any) -> SamplePath:
    return OwnPath(draw_kernel_feature_paths(model, sample_shape=sample_shape))


@pytest.mark.parametrize("num", [2, 4])
def test_paths_of_a_users_own(num: int) -> None:
    """The formula of `test_paths_are_the_transport_of_the_formula`, in batches of any size."""
    calibrated, X = model(), points()[:num]
    drawn: Any = draw_matheron_paths(calibrated, Size([4]), prior_sampler=own_sampler)
    base, noise = calibrated.model.posterior(X), calibrated.model.likelihood.noise
    mean, v = base.mean.squeeze(-1), base.variance.squeeze(-1)
    f, other = drawn.of_process(X)
    z = (f + (noise / v).sqrt() * (other - mean) - mean) / (v + noise).sqrt()
    moved = calibrated.calibrator.predictive(X).transport(z.unsqueeze(-1)).squeeze(-1)
    expected = f + v / (v + noise).sqrt() * (moved - z)
    for Z in (X, X.expand(4, num, -1)):
        assert_close(drawn(Z), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    "sampler",
    [
        draw_kernel_feature_paths,
        partial(draw_kernel_feature_paths, num_features=256),
        own_sampler,
    ],
)
def test_both_paths_of_a_pair_are_independent(sampler: Any) -> None:
    """Weights from neighbours in BoTorch's Sobol sequence give a correlation of -0.5."""
    num = 2000
    with manual_seed(0):
        drawn: Any = draw_matheron_paths(model(), Size([num]), prior_sampler=sampler)
    f, other = ((v - v.mean(dim=0)) / v.std(dim=0) for v in drawn.of_process(points()))
    assert ((f * other).mean(dim=0).abs() < 4.0 / num**0.5).all()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: model(denoise=False), "denoise=True"),
        (lambda: CalibratedModel(make_multitask(), CALIBRATORS[0]), "one task"),
        (lambda: CalibratedModel(make_variational(), CALIBRATORS[0]), "exact"),
        (lambda: CalibratedModel(make_ensemble(), CALIBRATORS[0]), "is an ensemble.*`posterior`"),
    ],
)
def test_what_has_no_paths(make: Any, match: str) -> None:
    with pytest.raises(UnsupportedError, match=match):
        draw_matheron_paths(make(), Size([2]))
