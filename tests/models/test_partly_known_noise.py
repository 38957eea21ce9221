"""Known noise of some rows and learned noise of the others, against dense algebra."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models import MultiTaskGP, SingleTaskGP
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.datasets import SupervisedDataset
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor
from torch.distributions import MultivariateNormal

from botorch_calib import CalibratedModel, OnlineConformal
from botorch_calib.calibration import NoCalibration
from botorch_calib.models import (
    PartlyKnownNoiseGP,
    PartlyKnownNoiseLikelihood,
    loo_residuals,
    prequential_residuals,
)
from botorch_calib.models.conditioning import conditioned_on, given_noise
from botorch_calib.models.predict import process_posterior
from tests.gps import (
    CONSTANT,
    DOUBLE,
    LENGTHSCALES,
    NOISE,
    dense_posterior,
    make_data,
    make_gp,
    make_partly_known,
    stated_noise,
)
from tests.random_numbers import uniform

# Outcomes are not standardized, since the hyperparameters are given in their units.
pytestmark = pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized")

N = 12
KNOWN = torch.arange(N) % 3 == 1
X_NEW = uniform(5, 2, generator=torch.Generator().manual_seed(8))
MORE = uniform(3, 2, generator=torch.Generator().manual_seed(9))
VALUES = torch.tensor([[0.5], [-1.0], [0.2]], **DOUBLE)
UNKNOWN = torch.full((3, 1), torch.nan, **DOUBLE)
NOISES = torch.tensor([[0.3], [torch.nan], [0.01]], **DOUBLE)


def rows_noise() -> Tensor:
    """Variances of the noise of all rows, ``n``."""
    return torch.where(KNOWN, make_data()[2].squeeze(-1), NOISE)


def assert_close(actual: Tensor, expected: Tensor, tolerance: float = 1e-11) -> None:
    torch.testing.assert_close(actual.flatten(), expected.flatten(), rtol=tolerance, atol=tolerance)


def fitted(gp: Any) -> Any:
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    return gp


def statements(gp: Any) -> Tensor:
    """Means and variances of the objective and of observations, at new points."""
    posteriors = (gp.posterior(X_NEW, observation_noise=noise) for noise in (False, True))
    return torch.cat([torch.cat([p.mean, p.variance]) for p in posteriors]).detach()


def check_against_dense(gp: Any, X: Tensor, Y: Tensor, noise: Tensor) -> None:
    """Predictions, from BoTorch and from the engine of marginals, in the space of the targets."""
    mean, variance = dense_posterior(X, Y.squeeze(-1), noise, X_NEW)
    posteriors: tuple[Any, ...] = (
        gp.posterior(X_NEW),
        process_posterior(gp, X_NEW.unsqueeze(-2)),
    )
    for posterior in posteriors:
        assert_close(posterior.mean, mean, 1e-9)
        assert_close(posterior.variance, variance, 1e-9)
    observed = gp.posterior(X_NEW, observation_noise=True)
    assert_close(observed.variance, variance + NOISE, 1e-9)
    assert_close(stated_noise(gp, X_NEW), torch.full((len(X_NEW), 1), NOISE, **DOUBLE))


# ------------------------------------------------------------ the two ends


@pytest.mark.parametrize("known", [True, False], ids=["all known", "none known"])
def test_the_two_ends_are_botorchs_models(known: bool) -> None:
    X, Y, Yvar = make_data(20)
    own = PartlyKnownNoiseGP(X, Y, Yvar if known else torch.full_like(Y, torch.nan))
    botorchs = SingleTaskGP(X, Y, Yvar if known else None)
    fitted(own)
    for learned, other in zip(own.parameters(), botorchs.parameters(), strict=True):
        other.data.copy_(learned)
    botorchs.eval()
    # Rounding errors are eps times the condition number of the factorised matrix.
    with torch.no_grad():
        K = botorchs.covar_module(botorchs.train_inputs[0]).to_dense()
        K = K + botorchs.likelihood.noise.expand(len(X)).diag_embed()
    tolerance = 10 * torch.finfo(torch.double).eps * float(torch.linalg.cond(K))
    assert_close(statements(own), statements(botorchs), tolerance)
    assert_close(prequential_residuals(own), prequential_residuals(botorchs), tolerance)
    later = [
        conditioned_on(gp, MORE, VALUES, **given_noise(gp, MORE, VALUES, None))
        for gp in (own, botorchs)
    ]
    assert_close(statements(later[0]), statements(later[1]), tolerance)


# ------------------------------------------------------------ dense algebra


def test_predictions() -> None:
    X, Y, _ = make_data()
    check_against_dense(make_partly_known(), X, Y, rows_noise())


def test_units_of_the_outcome() -> None:
    gp, (_, Y, Yvar) = make_partly_known(transforms=True), make_data(transforms=True)
    x = 10.0 * X_NEW - 5.0
    found = gp.posterior(x, observation_noise=True)
    inputs, y = gp.train_inputs[0], (Y - Y.mean()) / Y.std()
    noise = torch.where(KNOWN, Yvar.squeeze(-1) / Y.var(), NOISE)
    mean, variance = dense_posterior(inputs, y.squeeze(-1), noise, gp.transform_inputs(x))
    assert_close(found.mean, Y.std() * mean + Y.mean(), 1e-9)
    assert_close(found.variance, Y.var() * (variance + NOISE), 1e-9)


def test_marginal_likelihood_and_its_gradient() -> None:
    gp = make_partly_known()
    gp.train()
    X, Y, Yvar = make_data()
    mll = ExactMarginalLogLikelihood(gp.likelihood, gp)
    value = mll(gp(*gp.train_inputs), gp.train_targets)
    value.backward()
    raw = gp.likelihood.noise_covar.unknown.raw_noise
    prior = gp.likelihood.noise_covar.unknown.noise_prior

    def dense(noise: Tensor) -> Tensor:
        scale = torch.tensor(LENGTHSCALES, **DOUBLE)
        K = (-0.5 * torch.cdist(X / scale, X / scale).square()).exp()
        variances = torch.where(KNOWN, Yvar.squeeze(-1), noise)
        normal_ = MultivariateNormal(torch.full((N,), CONSTANT, **DOUBLE), K + variances.diag())
        log = normal_.log_prob(Y.squeeze(-1)) + prior.log_prob(noise).sum()
        lengthscale_prior = gp.covar_module.lengthscale_prior
        return (log + lengthscale_prior.log_prob(gp.covar_module.lengthscale).sum()) / N

    noise = torch.tensor([NOISE], requires_grad=True, **DOUBLE)
    expected = dense(noise)
    expected.backward()
    assert_close(value.detach(), expected.detach())
    assert noise.grad is not None
    assert_close(raw.grad, noise.grad, 1e-9)  # BoTorch's constraint is the identity


# ------------------------------------------------------------ new observations


@pytest.mark.parametrize("noise", [NOISES, UNKNOWN, None], ids=["some", "none", "left out"])
def test_conditioning(noise: Tensor | None) -> None:
    gp, (X, Y, _) = make_partly_known(), make_data()
    gp.posterior(X_NEW)
    stated = {} if noise is None else {"noise": noise}
    variances = (UNKNOWN if noise is None else noise).squeeze(-1)
    variances = torch.cat([rows_noise(), variances.nan_to_num(nan=NOISE)])
    data = torch.cat([X, MORE]), torch.cat([Y, VALUES])
    check_against_dense(gp.condition_on_observations(MORE, VALUES, **stated), *data, variances)
    with torch.no_grad():
        later: Any = conditioned_on(gp, MORE, VALUES, **given_noise(gp, MORE, VALUES, noise))
    check_against_dense(later, *data, variances)
    # Unknown variances still follow the learned variance.
    later.likelihood.noise_covar.unknown.noise = 1.0
    known = later.likelihood.noise_covar.noise
    mean, variance = dense_posterior(
        data[0], data[1].squeeze(-1), torch.where(known.isnan(), 1.0, variances), X_NEW
    )
    assert_close(later.train().eval().posterior(X_NEW).mean, mean, 1e-9)
    check_against_dense(gp, X, Y, rows_noise())  # unchanged


def test_fantasies_have_the_learned_noise() -> None:
    gp, (X, _, _) = make_partly_known(), make_data()
    sampler = SobolQMCNormalSampler(torch.Size([4]), seed=1)
    fantasy: Any = gp.fantasize(MORE, sampler)
    assert fantasy.posterior(X_NEW).mean.shape == (4, 5, 1)
    noise = torch.cat([rows_noise(), torch.full((3,), NOISE, **DOUBLE)])
    for i in range(4):
        values = fantasy.train_targets[i]
        mean, _ = dense_posterior(torch.cat([X, MORE]), values, noise, X_NEW)
        assert_close(fantasy.posterior(X_NEW).mean[i], mean, 1e-9)


def test_observing_with_and_without_a_known_error() -> None:
    gp, (X, Y, _) = make_partly_known(), make_data()
    model = CalibratedModel.from_history(gp, OnlineConformal(0.2))
    before, n = copy.deepcopy(model.calibrator), rows_noise()
    mean, variance = dense_posterior(X, Y.squeeze(-1), n, MORE)
    added = NOISES.squeeze(-1).nan_to_num(nan=NOISE)
    before.update(MORE, (VALUES.squeeze(-1) - mean) / (variance + added).sqrt())
    model.observe(MORE, VALUES, NOISES)
    for name, value in before.state_dict().items():
        torch.testing.assert_close(model.calibrator.state_dict()[name], value)
    data = torch.cat([X, MORE]), torch.cat([Y, VALUES])
    check_against_dense(model.model, *data, torch.cat([n, added]))


# ------------------------------------------------------------ wrappers


# ------------------------------------------------------------ states, shapes, precision


def test_single_precision() -> None:
    single, double = make_partly_known(dtype=torch.float), make_partly_known()
    posterior = single.posterior(X_NEW.float(), observation_noise=True)
    assert posterior.mean.dtype == torch.float
    expected = double.posterior(X_NEW, observation_noise=True)
    assert_close(posterior.mean.double(), expected.mean, 1e-4)
    assert_close(posterior.variance.double(), expected.variance, 1e-4)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(single.likelihood, single))


def test_batches_and_several_outcomes_are_single_models() -> None:
    X, Y, Yvar = make_data()
    masks = torch.stack([KNOWN, ~KNOWN], dim=-1)
    both = torch.where(masks, Yvar, torch.nan)
    outcomes = torch.cat([Y, Y.square()], dim=-1)
    gp: Any = PartlyKnownNoiseGP(X, outcomes, both)
    batch: Any = PartlyKnownNoiseGP(
        X.expand(2, N, 2), outcomes.mT.unsqueeze(-1), both.mT.unsqueeze(-1)
    )
    learned = torch.tensor([[0.1], [0.2]], **DOUBLE)
    for model in (gp, batch):
        model.likelihood.noise_covar.unknown.noise = learned
        model.eval()
    for i in range(2):
        single: Any = PartlyKnownNoiseGP(X, outcomes[:, i : i + 1], both[:, i : i + 1])
        single.likelihood.noise_covar.unknown.noise = learned[i]
        expected = single.eval().posterior(X_NEW, observation_noise=True)
        fantasized = single.condition_on_observations(MORE, VALUES, noise=NOISES).posterior(X_NEW)
        for model in (gp.subset_output([i]), gp):
            found = model.posterior(X_NEW, observation_noise=True)
            index = i if model is gp else 0
            assert_close(found.mean[..., index], expected.mean)
            assert_close(found.variance[..., index], expected.variance)
        found = batch.posterior(X_NEW, observation_noise=True)
        assert_close(found.mean[i], expected.mean)
        assert_close(found.variance[i], expected.variance)
        batch.posterior(X_NEW)
        later = batch.condition_on_observations(
            MORE.expand(2, 3, 2), VALUES.expand(2, 3, 1), noise=NOISES.expand(2, 3, 1)
        )
        assert_close(later.posterior(X_NEW).mean[i], fantasized.mean, 1e-9)


def test_a_likelihood_for_other_models() -> None:
    """Several tasks: known noise by row, and the learned one for new observations of any task."""
    X, Y, Yvar = make_data()
    task = torch.arange(N, **DOUBLE).remainder(2).unsqueeze(-1)
    noise = torch.where(KNOWN, Yvar.squeeze(-1), torch.nan)
    gp: Any = MultiTaskGP(
        torch.cat([X, task], dim=-1),
        Y,
        task_feature=-1,
        likelihood=PartlyKnownNoiseLikelihood(noise),
        outcome_transform=None,
    )
    gp.likelihood.noise_covar.unknown.noise = NOISE
    gp.eval()
    posterior, noisy = (gp.posterior(X_NEW, observation_noise=each) for each in (False, True))
    assert_close(noisy.variance - posterior.variance, torch.full((10,), NOISE, **DOUBLE), 1e-9)
    inputs = gp.train_inputs[0]
    K = gp.covar_module(inputs).to_dense()
    y = gp.train_targets - gp.forward(inputs).mean
    own = torch.cat([X_NEW, torch.zeros(5, 1, **DOUBLE)], dim=-1)
    cross = gp.covar_module(own, inputs).to_dense()
    mean = gp.forward(own).mean + cross @ torch.linalg.solve(K + rows_noise().diag(), y)
    assert_close(posterior.mean[..., 0], mean, 1e-9)


def test_noise_that_is_not_known_where_none_is_learned() -> None:
    X, Y, Yvar = make_data()
    gp = PartlyKnownNoiseGP(X, Y, Yvar).eval()
    gp.posterior(X_NEW)
    with pytest.raises(InputDataError, match="`noise` must not be NaN"):
        gp.condition_on_observations(MORE, VALUES, noise=NOISES)


def test_datasets() -> None:
    X, Y, Yvar = make_data()
    data = SupervisedDataset(
        X,
        Y,
        Yvar=torch.where(KNOWN.unsqueeze(-1), Yvar, torch.nan),
        feature_names=["a", "b"],
        outcome_names=["y"],
    )
    inputs: dict[str, Any] = PartlyKnownNoiseGP.construct_inputs(data)
    gp = PartlyKnownNoiseGP(**inputs)
    assert isinstance(gp.likelihood, PartlyKnownNoiseLikelihood)


@pytest.mark.parametrize("others_known", [True, False])
@pytest.mark.parametrize("wrong", [-1.0, math.inf])
def test_wrong_variances(wrong: float, others_known: bool) -> None:
    X, Y, Yvar = make_data()
    Yvar[0], Yvar[1] = 1.0 if others_known else torch.nan, wrong
    with pytest.raises(InputDataError, match="`train_Yvar` must hold variances"):
        PartlyKnownNoiseGP(X, Y, Yvar)
    model = CalibratedModel(make_partly_known(), NoCalibration())
    with pytest.raises(InputDataError, match="or NaN if unknown"):
        model.observe(MORE, VALUES, torch.full((3, 1), wrong, **DOUBLE))


def test_residuals_are_those_of_sequential_refits() -> None:
    gp, (X, Y, _), noise = make_partly_known(), make_data(), rows_noise()
    y, rows = Y.squeeze(-1), torch.arange(N)
    for residuals, knows in ((prequential_residuals, rows.lt), (loo_residuals, rows.ne)):
        expected = []
        for t in range(N):
            kept = knows(t)
            mean, variance = dense_posterior(X[kept], y[kept], noise[kept], X[t : t + 1])
            expected.append((y[t] - mean) / (variance + noise[t]).sqrt())
        assert_close(residuals(gp), torch.cat(expected), 1e-9)


def test_a_known_error_needs_a_model_that_has_place_for_it() -> None:
    model = CalibratedModel(make_gp(fixed_noise=False), NoCalibration())
    with pytest.raises(UnsupportedError, match="A PartlyKnownNoiseGP does both"):
        model.observe(MORE, VALUES, NOISES)


def test_copies_and_states() -> None:
    gp, (X, Y, Yvar) = make_partly_known(), make_data()
    Yvar = torch.where(KNOWN.unsqueeze(-1), Yvar, torch.nan)
    loaded: Any = PartlyKnownNoiseGP(X, Y, Yvar, outcome_transform=None)
    loaded.load_state_dict(gp.state_dict())
    for other in (copy.deepcopy(gp), pickle.loads(pickle.dumps(gp)), loaded.eval()):
        assert_close(statements(other), statements(gp), 1e-12)
