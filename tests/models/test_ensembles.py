"""Calibrated fully Bayesian models and ensembles: histories, posteriors, acquisition functions."""

import pytest
import torch
from botorch.acquisition.analytic import LogExpectedImprovement, PosteriorMean
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.exceptions import InputDataError, UnsupportedError
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.transforms import is_ensemble
from torch.testing import assert_close

from botorch_calib import (
    CalibratedModel,
    LocalizedConformal,
    LogCalibratedExpectedImprovement,
    OnlineConformal,
    QuantileRecalibrator,
)
from botorch_calib.distributions import PiecewisePredictive
from botorch_calib.models import NoisyEnsemble
from botorch_calib.models.predict import (
    history,
    moments_by_factor,
    predict,
    scores_of_observations,
)
from botorch_calib.models.process import with_task_feature
from tests.models.ensembles import KINDS, Lines, make_ensemble

kinds = pytest.mark.parametrize("kind", KINDS)


class Nothing(OnlineConformal):
    """A calibrator that corrects nothing."""

    def predictive(self, X):
        return PiecewisePredictive.gaussian(X.shape[:-1] + (1,), X.dtype)


def points(*shape: int, dtype=torch.double) -> torch.Tensor:
    generator = torch.Generator().manual_seed(8)
    return 10.0 * torch.rand(*shape, 2, generator=generator).to(dtype) - 5.0


def points_of(kind: str, *shape: int) -> torch.Tensor:
    X = points(*shape)
    return (X + 5.0) / 10.0 if kind.startswith("multi-task") else X


@kinds
def test_the_engine_has_the_members_posteriors(kind):
    model, X = make_ensemble(kind), points_of(kind, 5, 1)
    single, whole = predict(model, X), model.posterior(X)
    assert moments_by_factor(model, with_task_feature(model, X), members=True) is not None
    assert_close(single.mean, whole.mean, rtol=1e-9, atol=1e-9)
    assert_close(single.variance, whole.variance, rtol=1e-7, atol=1e-9)


@kinds
def test_history_by_conditioning_densely(kind):
    """One step ahead and leave-one-out, from joint normal distributions of each member."""
    model = make_ensemble(kind)
    prior = model.forward(model.train_inputs[0])
    noisy = model.likelihood(prior, model.train_inputs)
    K, deviation = noisy.covariance_matrix, model.train_targets - prior.mean
    num = deviation.shape[-1]
    for residuals in ("prequential", "loo"):
        expected = []
        for i in range(num):
            rest = [j for j in range(num) if (j < i if residuals == "prequential" else j != i)]
            weights = torch.linalg.solve(K[:, rest][:, :, rest], K[:, rest, i, None]).squeeze(-1)
            mean = (weights * deviation[:, rest]).sum(dim=-1)
            variance = K[:, i, i] - (weights * K[:, rest, i]).sum(dim=-1)
            cdf = torch.special.ndtr((deviation[:, i] - mean) / variance.sqrt()).mean()
            expected.append(torch.special.ndtri(cdf))
        X, z, *_ = history(model, residuals)
        expected = torch.stack(expected).detach()
        if kind.startswith("multi-task"):
            expected = expected[1::2]
        assert_close(z, expected, rtol=1e-6, atol=1e-7)
        assert X.shape == (len(z), 3 if kind.startswith("multi-task") else 2)


@kinds
def test_nothing_corrected_is_the_plain_model(kind):
    model = make_ensemble(kind)
    calibrated = CalibratedModel(model, Nothing(0.2))
    assert is_ensemble(calibrated)
    X, best = points_of(kind, 6, 1).requires_grad_(), 33.0
    plain = LogExpectedImprovement(model, best_f=best)
    values = plain(X)
    (gradient,) = torch.autograd.grad(values.sum(), X)
    for own in (
        LogCalibratedExpectedImprovement(calibrated, best),
        LogExpectedImprovement(calibrated, best),
    ):
        assert_close(own(X), values, rtol=1e-8, atol=1e-8)
        assert_close(torch.autograd.grad(own(X).sum(), X)[0], gradient, rtol=1e-5, atol=1e-7)
    assert_close(PosteriorMean(calibrated)(X), PosteriorMean(model)(X), rtol=1e-9, atol=1e-9)
    X = points_of(kind, 3, 2)
    for noise in (False, True):
        own, base = (m.posterior(X, observation_noise=noise) for m in (calibrated, model))
        assert_close(own.mean, base.mean, rtol=1e-9, atol=1e-9)
        if not kind.startswith("multi-task") or not noise:
            assert_close(own.variance, base.variance, rtol=1e-6, atol=1e-8)
            assert_close(own.mixture_variance, base.mixture_variance, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    "template", [LocalizedConformal(0.2, lengthscale=0.4), QuantileRecalibrator()]
)
def test_monte_carlo_averages_over_members(template):
    """To the closed form: one definition. Standard errors of 2048 Sobol points are below these."""
    model = CalibratedModel.from_history(make_ensemble(num=20), template)
    X, best = points(6, 1), 33.0
    sampler = SobolQMCNormalSampler(torch.Size([2048]), seed=1)
    sampled = qLogExpectedImprovement(model, best, sampler=sampler)(X).exp()
    exact = LogCalibratedExpectedImprovement(model, best)(X).exp()
    assert_close(sampled, exact, rtol=0.02, atol=0.01)


@kinds
def test_observe(kind):
    """Scores are under the mixture of the members' predictions; conditioning is BoTorch's."""
    model, calibrator = make_ensemble(kind), OnlineConformal(0.2)
    calibrated = CalibratedModel(model, calibrator)
    X, Y = points_of(kind, 3), torch.tensor([[25.0], [31.0], [38.0]]).double()
    plain = model.posterior(X.unsqueeze(-2), observation_noise=True)
    t = (Y.view(3, 1, 1, 1) - plain.mean) / plain.variance.sqrt()
    below, above = (torch.special.ndtr(side).mean(dim=-3).flatten() for side in (t, -t))
    expected = torch.where(below < above, torch.special.ndtri(below), -torch.special.ndtri(above))
    _, z = scores_of_observations(model, with_task_feature(model, X), Y)
    if not kind.startswith("multi-task"):  # BoTorch's model has a noise attribute
        assert_close(z, expected, rtol=1e-5, atol=1e-6)
    for _ in range(2):
        calibrated.observe(X, Y)
        X, Y = X + 0.01, Y + 0.1
    assert calibrator.num_updates == 6
    assert calibrated.model.train_targets.shape[-1] == 12 + 6
    X, Y = X - 0.01, Y - 0.1
    errors = [
        (m.posterior(X).mixture_mean.squeeze(-1) - Y).abs().sum() for m in (calibrated, model)
    ]
    assert errors[0] < 0.95 * errors[1]


def test_quantiles_are_kept():
    """A threshold that grows by misses widens the intervals of observations."""
    model = CalibratedModel.from_history(make_ensemble(num=20), OnlineConformal(0.2), denoise=False)
    X = points(4, 1)
    before = model.posterior(X)
    model.observe(points(3), torch.full((3, 1), 1e3).double(), condition=False)
    after = model.posterior(X)
    widths = [p.quantile(0.9) - p.quantile(0.1) for p in (before, after)]
    assert (widths[1] > widths[0]).all()
    level = torch.linspace(0.05, 0.95, 7).double()
    q = after.quantile(level)
    assert_close(after.cdf(q), level.view(-1, 1, 1, 1).expand_as(q), rtol=0, atol=1e-10)


def test_point_predictions_with_noise():
    """The objective is the ensemble's; observations are calibrated."""
    ensemble, X = NoisyEnsemble(Lines(), 0.04), points(5, 1)
    values = Lines()(X)
    objective = CalibratedModel(ensemble, OnlineConformal(0.2)).posterior(X)
    assert_close(objective.mean, values, rtol=1e-5, atol=1e-5)
    assert_close(objective.mixture_variance, values.var(dim=-3, correction=0), rtol=1e-3, atol=1e-8)
    model = CalibratedModel(ensemble, Nothing(0.2), denoise=False)
    posterior = model.posterior(X)
    z = (1.5 - values) / 0.2
    expected = torch.special.ndtr(z).mean(dim=-3)
    assert_close(posterior.cdf(1.5), expected, rtol=1e-6, atol=1e-9)
    calibrator = OnlineConformal(0.2)
    model = CalibratedModel(ensemble, calibrator, denoise=False)
    model.observe(X.squeeze(-2), values[:, 2, 0], condition=False)
    assert calibrator.num_updates == 5
    assert model.posterior(points(2, 3)).rsample(torch.Size([4])).shape == (4, 2, 6, 3, 1)
    each = NoisyEnsemble(Lines(), torch.linspace(0.1, 0.6, 6).double())
    assert_close(
        each.posterior(X, observation_noise=True).variance[0, :, 0, 0],
        torch.linspace(0.1, 0.6, 6).double(),
    )
    with pytest.raises(UnsupportedError, match="condition=False"):
        model.observe(X.squeeze(-2), values[:, 2, 0])
    with pytest.raises(UnsupportedError, match="observe"):
        CalibratedModel.from_history(ensemble, OnlineConformal(0.2))


def test_refusals_name_the_remedy():
    with pytest.raises(UnsupportedError, match="NoisyEnsemble"):
        CalibratedModel(Lines(), OnlineConformal(0.2))
    with pytest.raises(UnsupportedError, match="repeat"):
        NoisyEnsemble(Lines(torch.arange(6.0)), 0.1)
    NoisyEnsemble(Lines(torch.ones(6)), 0.1)
    with pytest.raises(InputDataError, match="positive"):
        NoisyEnsemble(Lines(), 0.0)
    with pytest.raises(UnsupportedError, match="EnsembleModel"):
        NoisyEnsemble(make_ensemble(), 0.1)


def test_unfitted():
    pytest.importorskip("numpyro")
    model = make_ensemble("SAAS")
    model.train()
    CalibratedModel(model, OnlineConformal(0.2))  # a client may fit it there
    with pytest.raises(UnsupportedError, match="fit_fully_bayesian_model_nuts"):
        CalibratedModel.from_history(model, OnlineConformal(0.2))


def test_a_state_is_loaded_into_an_unfitted_model():
    pytest.importorskip("numpyro")
    source = CalibratedModel.from_history(make_ensemble("SAAS"), OnlineConformal(0.2))
    target = CalibratedModel(make_ensemble("SAAS").train(), OnlineConformal(0.2))
    assert target.model.covar_module is None
    target.load_state_dict(source.state_dict())
    X = points(3)
    assert_close(target.posterior(X).mean, source.posterior(X).mean)


def test_noise_given_for_tasks_is_that_of_each_point():
    """As many points as members, so that a mix-up of both would not raise an error."""
    model = make_ensemble("multi-task, given noise")
    tasks = torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=torch.double)
    X = torch.cat([points_of("multi-task", 4), tasks.unsqueeze(-1)], dim=-1)
    given, own = model.likelihood.noise[0], model.train_inputs[0][..., -1]
    expected = torch.stack([given[own == task].mean() for task in tasks])
    noise = predict(model, X.unsqueeze(-2), objective=False).target_noise
    assert_close(noise, expected.view(4, 1, 1, 1).expand(4, len(tasks), 1, 1))
    joint = predict(model, X, objective=False).target_noise
    assert_close(joint, expected.view(4, 1).expand(len(tasks), 4, 1))
