"""`CalibratedModelList`: each outcome as a single model, all outcomes as a ``ModelListGP``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from botorch.acquisition import qUpperConfidenceBound
from botorch.acquisition.multi_objective.max_value_entropy_search import (
    qLowerBoundMultiObjectiveMaxValueEntropySearch,
)
from botorch.acquisition.multi_objective.predictive_entropy_search import (
    qMultiObjectivePredictiveEntropySearch,
)
from botorch.acquisition.multi_objective.utils import (
    compute_sample_box_decomposition,
    random_search_optimizer,
    sample_optimal_points,
)
from botorch.acquisition.objective import LinearMCObjective, ScalarizedPosteriorTransform
from botorch.exceptions.errors import (
    BotorchError,
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.models import KroneckerMultiTaskGP, ModelList, ModelListGP, MultiTaskGP, SingleTaskGP
from botorch.models.deterministic import GenericDeterministicModel
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from botorch.models.transforms import Log, Normalize, Standardize
from botorch.models.transforms.input import InputPerturbation
from botorch.sampling.list_sampler import ListSampler
from botorch.sampling.normal import IIDNormalSampler, SobolQMCNormalSampler
from torch import Size, Tensor
from torch.testing import assert_close

from botorch_calib import (
    CalibratedModel,
    CalibratedModelList,
    CensoredDelayModel,
    LocalizedConformal,
    QuantileRecalibrator,
)
from botorch_calib.calibration import NoCalibration
from tests.contracts import ModelContract
from tests.gps import DOUBLE, GaussianLaw, far_from_gaussian, make_data, make_gp, make_model
from tests.models.test_by_normal_scores import HeavyTails

X, Y, Yvar = make_data()
NEW_X = torch.tensor([[0.25, 0.7], [0.8, 0.35]], **DOUBLE)
NEW_Y = torch.tensor([[0.4, -1.0], [-0.7, 0.2]], **DOUBLE)
T = torch.tensor([[0.1, 0.9], [0.45, 0.5], [0.9, 0.2]], **DOUBLE)
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], **DOUBLE)


def gps(fixed_noise: bool = False, transforms: bool = False) -> list[SingleTaskGP]:
    """Two outcomes, the second with other training inputs than the first."""
    first = make_gp(fixed_noise=fixed_noise, transforms=transforms)
    second = make_gp(fixed_noise=fixed_noise, transforms=transforms, num=9, sign=-1.0)
    return [first, second]


def plain(**kwargs: bool) -> Any:
    return ModelListGP(*gps(**kwargs)).eval()


def uncorrected(**kwargs: bool) -> Any:
    return CalibratedModelList(*(CalibratedModel(gp, GaussianLaw()) for gp in gps(**kwargs)))


def corrected(dtype: torch.dtype = torch.double) -> Any:
    models = make_model(dtype), make_model(dtype, num=9, sign=-1.0)
    return CalibratedModelList(*models)


class TestMixedContract(ModelContract):
    """With a Gaussian process, and pending points of the third."""

    num_outputs = 3

    def make_model(self, dtype: torch.dtype) -> Any:
        third = CensoredDelayModel(make_model(dtype), NEW_X.to(dtype), -1.0)
        return CalibratedModelList(make_model(dtype), make_gp(dtype=dtype, sign=-1.0), third)


# ------------------------------------------------------------------ sources


def batch_of_outcomes() -> SingleTaskGP:
    """One model of two outcomes, independent a priori."""
    outcomes = torch.cat([Y, X[:, :1] - Y], dim=-1)
    model = SingleTaskGP(
        X, outcomes, input_transform=Normalize(2), outcome_transform=Standardize(2)
    )
    model.covar_module.lengthscale = torch.tensor([[[0.4, 0.7]], [[0.6, 0.3]]], **DOUBLE)
    return model.eval()


SOURCES: dict[str, Any] = {
    "ModelListGP": plain,
    "ModelList": lambda: ModelList(*gps()),
    "batch": batch_of_outcomes,
    "batch in a list": lambda: ModelList(batch_of_outcomes()),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_from_history(kind: str) -> None:
    """Each outcome is calibrated independently, and the calibrator does not change."""
    source, calibrator = SOURCES[kind](), QuantileRecalibrator()
    model = CalibratedModelList.from_history(source, calibrator, num_initial=2, excess="objective")
    assert calibrator.num_updates == 0 and model.num_outputs == 2
    for i, own in enumerate(model.models):
        alone = source.subset_output([i])
        expected = CalibratedModel.from_history(alone, calibrator, 2, excess="objective")
        assert own.calibrator.num_updates == len(alone.train_targets) - 2
        assert_close(own.posterior(T).mean, expected.posterior(T).mean)
        assert_close(own.posterior(T).variance, expected.posterior(T).variance)
    assert_close(model.gaussian_model.posterior(T).mean, source.posterior(T).mean)


def test_one_calibrator_for_each() -> None:
    model = CalibratedModelList.from_history(plain(), [LocalizedConformal(0.3), None])
    first, second = model.models
    assert isinstance(first, CalibratedModel) and first.calibrator.num_updates == len(X)
    assert isinstance(second, SingleTaskGP)
    with pytest.raises(InputDataError, match="one for each of 2 outcomes, got 3"):
        CalibratedModelList.from_history(plain(), [LocalizedConformal(0.3)] * 3)


def test_correlated_outputs_and_the_remedy() -> None:
    both = torch.cat([Y, -Y], dim=-1)
    task = torch.arange(len(X)).remainder(2).to(X).unsqueeze(-1)
    tasks = torch.cat([X, task], dim=-1)
    cases: dict[str, Any] = {
        "fitted to that outcome alone": KroneckerMultiTaskGP(X, both),
        r"`output_tasks=\[task\]`": MultiTaskGP(tasks, Y, task_feature=-1),
    }
    for remedy, model in cases.items():
        with pytest.raises(UnsupportedError, match=f"ModelListGP of one model .*{remedy}"):
            CalibratedModelList.from_history(model, LocalizedConformal(0.2))
        with pytest.raises(UnsupportedError, match=f"one outcome, .*{remedy}"):
            CalibratedModelList(model)
    single = [MultiTaskGP(tasks, Y, task_feature=-1, output_tasks=[i]).eval() for i in range(2)]
    model = CalibratedModelList.from_history(ModelListGP(*single), LocalizedConformal(0.2))
    assert model.posterior(T).mean.shape == (3, 2)


def test_what_is_no_outcome() -> None:
    ensemble = EnsembleMapSaasSingleTaskGP(X, Y, num_taus=2)
    with pytest.raises(UnsupportedError, match="EnsembleMapSaasSingleTaskGP is an ensemble"):
        CalibratedModelList(make_model(), ensemble)
    with pytest.raises(UnsupportedError, match="CalibratedModelList has 2: give them one by one"):
        CalibratedModelList(corrected())
    with pytest.raises(UnsupportedError, match="needs a model for each outcome"):
        CalibratedModelList()


# ------------------------------------------------------------------ its posterior


@pytest.mark.parametrize(("noise", "transforms"), [(False, True), (True, False)])
def test_without_a_correction_moments_are_those_of_the_processes(
    noise: bool, transforms: bool
) -> None:
    for points in (T, T.unsqueeze(-2), T.expand(2, 3, 2)):
        ours, theirs = (
            model(transforms=transforms).posterior(points, observation_noise=noise)
            for model in (uncorrected, plain)
        )
        assert_close(ours.mean, theirs.mean, rtol=1e-9, atol=1e-9)
        assert_close(ours.variance, theirs.variance, rtol=1e-9, atol=1e-9)


def test_outcomes_and_noise_are_each_ones_own() -> None:
    model = CalibratedModelList(*corrected().models, make_gp())
    given = torch.tensor([0.1, 0.3, 0.7], **DOUBLE).expand(3, 3)
    for noise in (True, given, given[:1]):
        for indices in ([2, 0], [-1], None):
            posterior = model.posterior(T, output_indices=indices, observation_noise=noise)
            for place, i in enumerate(indices or range(3)):
                own = noise if noise is True else noise[:, i % 3, None]
                alone: Any = model.models[i].posterior(T, observation_noise=own)
                assert_close(posterior.mean[..., place], alone.mean[..., 0])
                assert_close(posterior.variance[..., place], alone.variance[..., 0])
    with pytest.raises(InputDataError, match=r"`output_indices` \[3\] name none of 3"):
        model.posterior(T, output_indices=[3])
    for bad in (given[:, :1], given[:, :0], given[0, 0]):
        with pytest.raises(BotorchTensorDimensionError, match="one column for each of 3 outcomes"):
            model.posterior(T, observation_noise=bad)
    subset = model.subset_output([2, 0])
    assert type(subset) is CalibratedModelList
    assert_close(subset.posterior(T).mean, model.posterior(T, output_indices=[2, 0]).mean)
    assert model.subset_output([1]) is model.models[1]


def test_weighted_sums() -> None:
    """A single nonzero weight selects an outcome; for several the error names the remedy."""
    model = corrected()
    sole = ScalarizedPosteriorTransform(torch.tensor([0.0, 2.0], **DOUBLE), offset=1.0)
    posterior: Any = model.posterior(T, posterior_transform=sole)
    alone: Any = model.models[1].posterior(T)
    assert_close(posterior.mean, 1.0 + 2.0 * alone.mean)
    assert_close(posterior.quantile(0.9), 1.0 + 2.0 * alone.quantile(0.9))
    for weights in ([1.0, 1.0], [0.0, 0.0], [1.0]):
        several = ScalarizedPosteriorTransform(torch.tensor(weights, **DOUBLE))
        with pytest.raises(UnsupportedError, match=r"`objective=LinearMCObjective\(weights\)`"):
            model.posterior(T, posterior_transform=several)
    objective = LinearMCObjective(torch.tensor([1.0, 1.0], **DOUBLE))
    assert qUpperConfidenceBound(model, 0.5, objective=objective)(T).isfinite().all()


def test_inputs_that_stand_for_several_points() -> None:
    """The same number for each outcome, or an error."""

    def perturbed(num: int) -> CalibratedModel:
        transform = InputPerturbation(0.01 * X[:num]).eval()
        return CalibratedModel(
            SingleTaskGP(X, Y, input_transform=transform).eval(), far_from_gaussian()
        )

    assert CalibratedModelList(perturbed(2), perturbed(2)).posterior(T).mean.shape == (6, 2)
    with pytest.raises(UnsupportedError, match="equally many points of one"):
        CalibratedModelList(perturbed(2), make_model()).posterior(T)


def test_a_known_outcome() -> None:
    known = GenericDeterministicModel(lambda X: X.sum(dim=-1, keepdim=True))
    model = CalibratedModelList(make_model(), known)
    posterior = model.posterior(T)
    assert_close(posterior.mean[:, 1], T.sum(dim=-1))
    samples = SobolQMCNormalSampler(Size([4]), seed=0)(posterior)
    assert_close(samples[..., 1], T.sum(dim=-1).expand(4, 3))
    noise = torch.full((3, 2), 0.3, **DOUBLE)
    noisy = model.posterior(T, observation_noise=noise)
    assert_close(noisy.variance[:, 1], torch.zeros(3, **DOUBLE))
    alone = model.models[0].posterior(T, observation_noise=noise[:, :1])
    assert_close(noisy.variance[:, :1], alone.variance)
    transform = ScalarizedPosteriorTransform(torch.tensor([0.0, -3.0], **DOUBLE), offset=2.0)
    alone = model.posterior(T, posterior_transform=transform)
    assert_close(alone.mean, 2.0 - 3.0 * T.sum(dim=-1, keepdim=True))
    assert_close(alone.variance, torch.zeros_like(alone.mean))
    before = model.models[0].posterior(T).mean
    model.observe(NEW_X, NEW_Y)
    assert not torch.equal(model.models[0].posterior(T).mean, before)
    with pytest.raises(UnsupportedError, match="and a GenericDeterministicModel cannot"):
        model.fantasize(NEW_X, SobolQMCNormalSampler(Size([4])))


# ------------------------------------------------------------------ conditioning


class Given:
    """A sampler of given outcomes."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def __call__(self, posterior: Any) -> Tensor:
        assert posterior._extended_shape() == self.values.shape[1:]
        return self.values


@pytest.mark.parametrize(("fixed_noise", "transforms"), [(False, False), (True, True)])
def test_conditioning_is_that_of_the_processes(fixed_noise: bool, transforms: bool) -> None:
    kind = {"fixed_noise": fixed_noise, "transforms": transforms}
    ours, theirs = uncorrected(**kind), plain(**kind)
    theirs.posterior(T)
    fantasies = torch.stack([NEW_Y, -NEW_Y, 0.3 * NEW_Y])
    expected = [
        own.fantasize(NEW_X, Given(fantasies[..., i : i + 1]))
        for i, own in enumerate(theirs.models)
    ]
    ours = ours.fantasize(NEW_X, Given(fantasies))
    assert type(ours) is CalibratedModelList and ours.batch_shape == (3,)
    posterior = ours.posterior(T)
    for i, own in enumerate(expected):
        alone = own.posterior(T)
        assert_close(posterior.mean[..., i : i + 1], alone.mean, rtol=1e-9, atol=1e-9)
        assert_close(posterior.variance[..., i : i + 1], alone.variance, rtol=1e-8, atol=1e-9)


def test_noise_of_new_observations_is_checked() -> None:
    for fixed_noise in (False, True):
        model = uncorrected(fixed_noise=fixed_noise)
        with pytest.raises(InputDataError, match="`Yvar` must be a tensor, got float"):
            model.observe(NEW_X, NEW_Y, 0.1)
        with pytest.raises(BotorchTensorDimensionError, match="`Yvar` must have the shape of `Y`"):
            model.observe(NEW_X, NEW_Y, torch.ones(2, 1, **DOUBLE))


def test_fantasies_of_outcomes_are_independent() -> None:
    """By one sampler; a ``ModelListGP`` gives all outcomes the same numbers.

    The correlation of 2048 independent pairs has a standard error of 0.022.
    """
    models = uncorrected()
    for sampler in (SobolQMCNormalSampler, IIDNormalSampler):
        fantasies = models.fantasize(NEW_X[:1], sampler(Size([2048]), seed=3))
        drawn = [model.model.train_targets[:, -1] for model in fantasies.models]
        assert torch.corrcoef(torch.stack(drawn))[0, 1].abs() < 4 * 0.022
        alone: Any = models.posterior(NEW_X[:1], observation_noise=True)
        values = torch.stack(drawn, dim=-1)
        error = 4 * (alone.variance.squeeze(0) / 2048).sqrt()
        assert ((values.mean(dim=0) - alone.mean.squeeze(0)).abs() < error).all()


def test_outcomes_evaluated_at_different_points() -> None:
    """As in ``qHypervolumeKnowledgeGradient``, with a sampler for each outcome."""
    samplers = ListSampler(*(SobolQMCNormalSampler(Size([4]), seed=i) for i in range(2)))
    mask = torch.tensor([[True, False], [True, True]])
    fantasies = corrected().fantasize(NEW_X, samplers, evaluation_mask=mask)
    assert type(fantasies) is CalibratedModelList
    lengths = [model.model.train_targets.shape for model in fantasies.models]
    assert lengths == [(4, 14), (4, 10)]
    assert fantasies.posterior(T).mean.shape == (4, 3, 2)


@pytest.mark.parametrize("fixed_noise", [False, True])
def test_observe(fixed_noise: bool) -> None:
    """As if each model observed its outcome; a model without a calibrator is conditioned."""

    def models() -> list[Any]:
        first, second, third = (make_gp(fixed_noise=fixed_noise, sign=s) for s in (1.0, -1.0, 1.0))
        delayed = CensoredDelayModel(CalibratedModel(third, GaussianLaw()), NEW_X, -1.0)
        return [CalibratedModel(first, far_from_gaussian()), second, delayed]

    values = torch.cat([NEW_Y, NEW_Y[:, :1]], dim=-1)
    noise = torch.full_like(values, 0.2) if fixed_noise else None
    model, (first, second, third) = CalibratedModelList(*models()), models()
    model.observe(NEW_X, values, noise)
    own = None if noise is None else noise[:, :1]
    first.observe(NEW_X, values[:, :1], own)
    third.observe(NEW_X, values[:, 2:], own)
    second.posterior(T)
    second = second.condition_on_observations(
        NEW_X, values[:, 1:2], **({} if own is None else {"noise": own})
    )
    posterior = model.posterior(T)
    for i, alone in enumerate((first, second, third)):
        assert_close(posterior.mean[:, i : i + 1], alone.posterior(T).mean)
        assert_close(posterior.variance[:, i : i + 1], alone.posterior(T).variance)
    assert model.models[0].calibrator.num_updates == 32
    assert len(model.models[2].X_pending) == 0


def test_an_outcome_outside_a_domain_changes_no_model() -> None:
    positive = SingleTaskGP(X, Y.exp(), outcome_transform=Log())
    models = CalibratedModelList(CalibratedModel(make_gp(), far_from_gaussian()), positive)
    seen = models.models[0].calibrator.num_updates
    with pytest.raises(
        InputDataError,
        match="`Y` has the value -1, outside the domain of the outcome transform Log",
    ):
        models.observe(NEW_X, NEW_Y)
    assert models.models[0].calibrator.num_updates == seen
    assert models.models[0].train_inputs[0].shape == X.shape


def test_outcomes_without_probabilities_and_the_remedy() -> None:
    positive = SingleTaskGP(X, Y.exp(), outcome_transform=Log()).eval()
    calibrated, total = uncorrected().models[0], GenericDeterministicModel(lambda X: X[..., :1])
    models = CalibratedModelList(calibrated, positive, total)
    with pytest.raises(UnsupportedError, match="EnsemblePosterior .*NoCalibration.*supported"):
        models.posterior(T).quantile(0.5)
    with pytest.raises(UnsupportedError, match="EnsemblePosterior .*other outcomes by `output_in"):
        models.posterior(T, output_indices=[2]).cdf(0.5)
    stated = CalibratedModelList(calibrated, CalibratedModel(positive, NoCalibration()))
    median = SingleTaskGP(X, Y).eval().posterior(T).mean.exp()
    assert_close(stated.posterior(T).quantile(0.5)[..., 1:], median)


def test_an_outcome_of_a_model_without_likelihood_is_observed() -> None:
    heavy = CalibratedModel(HeavyTails(), QuantileRecalibrator(), denoise=False)
    model = CalibratedModelList(make_model(), heavy)
    model.observe(NEW_X, NEW_Y, Yvar=NEW_Y.square(), condition=False)
    assert heavy.calibrator.num_updates == len(NEW_X)


def test_what_cannot_be_observed_changes_no_model() -> None:
    model = corrected()
    before = model.posterior(T).mean
    bad = NEW_Y.clone()
    bad[1, 1] = torch.nan
    for X_bad, Y_bad in ((NEW_X, bad), (NEW_X, NEW_Y[:, :1]), (NEW_X[:, :1], NEW_Y)):
        with pytest.raises(BotorchError):
            model.observe(X_bad, Y_bad)
    assert torch.equal(model.posterior(T).mean, before)
    assert [own.calibrator.num_updates for own in model.models] == [30, 30]


# ------------------------------------------------------------------ attributes for BoTorch


def test_entropy_search_of_several_objectives_takes_the_processes() -> None:
    model = corrected()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sets, fronts = sample_optimal_points(
            model,
            BOUNDS,
            num_samples=2,
            num_points=2,
            optimizer=random_search_optimizer,
            optimizer_kwargs={"pop_size": 50, "max_tries": 3},
        )
    cells = compute_sample_box_decomposition(fronts)

    def values(model: Any) -> list[Tensor]:
        entropy = qLowerBoundMultiObjectiveMaxValueEntropySearch(model, cells, None, "LB")
        predictive = qMultiObjectivePredictiveEntropySearch(model, sets)
        return [function(T.unsqueeze(-2)) for function in (entropy, predictive)]

    with pytest.raises(UnsupportedError, match=r"`model\.gaussian_model`"):
        values(model)
    assert all(value.isfinite().all() for value in values(model.gaussian_model))
