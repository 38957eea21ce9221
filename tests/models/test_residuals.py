"""Residuals of a history, one step ahead and leave-one-out, against brute-force conditioning."""

import copy
from typing import Any

import gpytorch
import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models import ModelListGP, MultiTaskGP, SingleTaskGP, SingleTaskVariationalGP
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from botorch.models.robust_relevance_pursuit_model import RobustRelevancePursuitSingleTaskGP
from botorch.models.transforms import Log

from botorch_calib.models.residuals import loo_residuals, prequential_residuals
from tests.gps import DOUBLE, make_gp

N = 12


def conditioned_residual(gp: Any, index: int, kept: list[int]) -> float:
    """Standardised residual of an observation, predicted by BoTorch from the ``kept`` observations.

    Hyperparameters and transforms come from the full model; the residual is formed in the raw
    outcome space.
    """
    part = copy.deepcopy(gp)
    part.set_train_data(gp.train_inputs[0][kept], gp.train_targets[kept], strict=False)
    noise: bool | torch.Tensor = True
    if isinstance(gp.likelihood, gpytorch.likelihoods.FixedNoiseGaussianLikelihood):
        noise = gp.likelihood.noise[index].reshape(1, 1)
        part.likelihood.noise_covar.noise = gp.likelihood.noise[kept]
    X, y = gp.train_inputs[0][index : index + 1], gp.train_targets[index].reshape(1, 1)
    if hasattr(gp, "input_transform"):
        X = gp.input_transform.untransform(X)
        y = gp.outcome_transform.untransform(y)[0]
    with gpytorch.settings.prior_mode(not kept):
        posterior = part.posterior(X, observation_noise=noise)
    return ((y - posterior.mean) / posterior.variance.sqrt()).item()


@pytest.mark.parametrize("fixed_noise", [False, True])
@pytest.mark.parametrize("transforms", [False, True])
def test_residuals_equal_brute_force(fixed_noise: bool, transforms: bool):
    gp = make_gp(fixed_noise, transforms)
    one_step = [conditioned_residual(gp, i, list(range(i))) for i in range(N)]
    left_out = [conditioned_residual(gp, i, [j for j in range(N) if j != i]) for i in range(N)]
    for train_mode in (False, True):
        gp.train(train_mode)
        for result, expected in (
            (prequential_residuals(gp), one_step),
            (loo_residuals(gp), left_out),
        ):
            assert result.shape == (N,) and not result.requires_grad
            values = torch.tensor(expected, **DOUBLE)
            torch.testing.assert_close(result, values, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("residuals", [prequential_residuals, loo_residuals])
def test_model_is_left_as_it_was(residuals):
    gp = make_gp(transforms=True)
    gp.posterior(torch.zeros(1, 2, **DOUBLE))
    caches = gp.prediction_strategy
    residuals(gp)
    assert not gp.training and gp.prediction_strategy is caches
    gp.train()
    gp.likelihood.eval()
    raw = gp.train_inputs[0].clone()
    residuals(gp)
    assert gp.training and gp.covar_module.training and not gp.likelihood.training
    assert torch.equal(gp.train_inputs[0], raw)


def test_pit_is_invariant_to_increasing_outcome_transforms():
    gp = make_gp()
    X, log_y = gp.train_inputs[0], gp.train_targets.unsqueeze(-1)
    logged = SingleTaskGP(X, log_y.exp(), outcome_transform=Log())
    plain = SingleTaskGP(X, log_y, outcome_transform=None)
    torch.testing.assert_close(prequential_residuals(logged), prequential_residuals(plain))


def test_residuals_float32():
    gp = make_gp(transforms=True)
    for residuals in (prequential_residuals, loo_residuals):
        single = residuals(make_gp(transforms=True, dtype=torch.float))
        assert single.dtype == torch.float
        torch.testing.assert_close(single.double(), residuals(gp), atol=1e-3, rtol=1e-3)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # from the multi-task kernel
def test_other_exact_gps():
    class PlainGP(gpytorch.models.ExactGP):
        def __init__(self, X, y):
            super().__init__(X, y, gpytorch.likelihoods.GaussianLikelihood())
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.RBFKernel()

        def forward(self, X):
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(X), self.covar_module(X)
            )

    gp = make_gp()
    X, y = gp.train_inputs[0], gp.train_targets
    plain = PlainGP(X, y).double()
    noise = plain.likelihood.noise * torch.eye(N, **DOUBLE)
    L = torch.linalg.cholesky(plain.covar_module(X).to_dense() + noise)
    torch.testing.assert_close(prequential_residuals(plain), torch.linalg.solve(L, y).detach())

    tasks = torch.arange(N, **DOUBLE).remainder(2).unsqueeze(-1)
    multi = MultiTaskGP(torch.cat([X, tasks], dim=-1), y.unsqueeze(-1), 2, output_tasks=[0])
    assert prequential_residuals(multi).shape == (N,)


def outlier_robust(X: torch.Tensor, y: torch.Tensor, outliers: list[int], share: float) -> Any:
    """An outlier-robust GP; a ``share`` of the variance of outliers is their additional noise."""
    robust: Any = RobustRelevancePursuitSingleTaskGP(X, y, outcome_transform=None)
    noise = robust.likelihood.noise_covar
    noise.expand_support(outliers)
    noise.raw_rho.data.fill_(share)
    return robust.eval()


@pytest.mark.parametrize("residuals", [prequential_residuals, loo_residuals])
def test_an_outlier_is_predicted_with_the_noise_of_any_new_observation(residuals):
    X, y = make_gp().train_inputs[0], make_gp().train_targets
    robust = outlier_robust(X, y.unsqueeze(-1), [4], 0.9)
    base = robust.likelihood.noise_covar.base_noise.noise.detach()
    K = robust.covar_module(X).to_dense().detach()
    own = base + torch.zeros(N, **DOUBLE)
    own[4] += (1.0 + base.item()) * 0.9 / 0.1
    expected = []
    for i in range(N):  # each observation predicted by dense algebra
        seen = (
            list(range(i)) if residuals is prequential_residuals else [*range(i), *range(i + 1, N)]
        )
        gain = torch.linalg.solve(K[seen][:, seen] + own[seen].diag(), K[seen][:, i])
        mean = robust.mean_module.constant + gain @ (y[seen] - robust.mean_module.constant)
        expected.append((y[i] - mean) / (K[i, i] - gain @ K[seen][:, i] + base).sqrt())
    torch.testing.assert_close(residuals(robust), torch.cat(expected).detach())


def test_given_noise_of_an_outlier_robust_model_is_the_rows_own():
    gp = make_gp(fixed_noise=True)
    X, y, Yvar = gp.train_inputs[0], gp.train_targets, gp.likelihood.noise
    robust: Any = RobustRelevancePursuitSingleTaskGP(
        X, y.unsqueeze(-1), Yvar.unsqueeze(-1), outcome_transform=None
    )
    robust.load_state_dict(gp.state_dict(), strict=False)
    for residuals in (prequential_residuals, loo_residuals):  # without outliers nothing differs
        torch.testing.assert_close(residuals(robust.eval()), residuals(gp))


def unsupported_models() -> dict[str, torch.nn.Module]:
    gp = make_gp()
    X, Y = gp.train_inputs[0], gp.train_targets.unsqueeze(-1)
    return {
        "not an exact GP.*CalibratedModel.observe.*held-out": SingleTaskVariationalGP(
            X, Y, inducing_points=4
        ),
        "several outputs: use a model of one": SingleTaskGP(
            X, torch.cat([Y, -Y], dim=-1), outcome_transform=None
        ),
        "a batch of models: fit a single": SingleTaskGP(
            X.expand(1, N, 2), Y.expand(1, N, 1), outcome_transform=None
        ),
        "take one of its `models`": ModelListGP(gp, gp),
        "an ensemble: fit a single model": EnsembleMapSaasSingleTaskGP(X, Y, num_taus=3),
    }


@pytest.mark.parametrize("residuals", [prequential_residuals, loo_residuals])
def test_unsupported_models(residuals):
    for reason, model in unsupported_models().items():
        with pytest.raises(UnsupportedError, match=f"{type(model).__name__}.*{reason}"):
            residuals(model)


def test_empty_history():
    gp = make_gp()
    gp.set_train_data(torch.empty(0, 2, **DOUBLE), torch.empty(0, **DOUBLE), strict=False)
    with pytest.raises(InputDataError, match="history is empty"):
        prequential_residuals(gp)
