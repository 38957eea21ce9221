"""`sharpened`, against posterior densities by torch at all points of its grid."""

import itertools
import math
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.robust_relevance_pursuit_model import RobustRelevancePursuitSingleTaskGP
from botorch.models.transforms import Standardize
from botorch.utils.transforms import standardize
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch.distributions import MultivariateNormal

from botorch_calib.models import sharpened
from tests.gps import DOUBLE, make_data, make_gp, make_variational
from tests.random_numbers import normal, uniform

WIDTHS, EVIDENCE = (0.4, 0.3), 3.0


def too_long(fixed_noise: bool = False, num: int = 25) -> SingleTaskGP:
    """A process whose lengthscales are too long."""
    gp = make_gp(fixed_noise=fixed_noise, num=num)
    gp.covar_module.lengthscale = 6.0 * gp.covar_module.lengthscale.detach()
    return gp


def log_posterior(gp: SingleTaskGP, a: float, b: float) -> float:
    """With factors ``exp(a)`` and ``exp(b)`` of noises and lengthscales, by torch; no constants."""
    with torch.no_grad():
        X = gp.train_inputs[0] / (gp.covar_module.lengthscale * math.exp(b))
        covariance = (-0.5 * torch.cdist(X, X).square()).exp()
        covariance += torch.eye(len(X), **DOUBLE) * gp.likelihood.noise * math.exp(a)
        mean = gp.mean_module.constant.expand(len(X))
        likelihood = MultivariateNormal(mean, covariance).log_prob(gp.train_targets)
    priors = (math.log1p((t / width) ** 2) for t, width in zip((a, b), WIDTHS, strict=True))
    return likelihood.item() - sum(priors) - EVIDENCE * ((a != 0.0) + (b != 0.0))


def factors_of(after: Any, before: Any) -> tuple[float, float]:
    """Logarithms of the factors, each the same for all noises and for all lengthscales."""
    noises, lengthscales = (
        (new.double() / old.double()).log().flatten()
        for new, old in (
            (after.likelihood.noise, before.likelihood.noise),
            (after.covar_module.lengthscale, before.covar_module.lengthscale),
        )
    )
    for ratios in (noises, lengthscales):
        assert torch.allclose(ratios, ratios[0].expand_as(ratios), atol=1e-5)
    return noises[0].item(), lengthscales[0].item()


@pytest.mark.parametrize("fixed_noise", [False, True])
def test_it_is_the_largest_posterior_density_on_the_grid(fixed_noise: bool) -> None:
    gp = too_long(fixed_noise)
    found = factors_of(sharpened(gp, *WIDTHS, EVIDENCE), gp)
    assert found[1] < -1.0  # so the grid has to be searched
    grid = [(0.4 * i, 0.35 * j) for i, j in itertools.product(range(-12, 13), range(-6, 7))]
    values = [log_posterior(gp, *factors) for factors in grid]
    assert found == pytest.approx(grid[values.index(max(values))], abs=1e-5)
    assert sorted(values)[-2] < max(values) - 1e-3  # so another point would be noticed


@pytest.mark.parametrize("make", [too_long, lambda: too_long(fixed_noise=True)])
def test_it_predicts_as_a_process_that_is_made_anew(make: Any) -> None:
    gp = make()
    X = torch.rand(7, 2, **DOUBLE)
    before, mean = {k: v.clone() for k, v in gp.state_dict().items()}, gp.posterior(X).mean
    twin = sharpened(gp)
    for name, value in gp.state_dict().items():
        assert torch.equal(value, before[name])
    assert torch.equal(gp.posterior(X).mean, mean)
    assert not torch.allclose(twin.posterior(X).mean, mean, atol=1e-2)
    anew = make()
    anew.load_state_dict(twin.state_dict())
    if isinstance(anew.likelihood, FixedNoiseGaussianLikelihood):
        anew.likelihood.noise_covar.noise = twin.likelihood.noise
    for observation_noise in (False, True):
        posteriors = [m.posterior(X, observation_noise=observation_noise) for m in (twin, anew)]
        assert torch.allclose(posteriors[0].mean, posteriors[1].mean, atol=1e-10)
        assert torch.allclose(posteriors[0].variance, posteriors[1].variance, atol=1e-10)


def test_a_correction_is_made_if_it_gains_as_much_as_is_asked() -> None:
    gp = too_long()
    asked = dict.fromkeys(factors_of(sharpened(gp, evidence=e), gp) for e in (0.0, 5.0, 1e3))
    both, one, none = asked  # all three differ
    assert one[0] == 0.0 and min(both[1], one[1]) < -1.0 and none == (0.0, 0.0)


def test_units_and_precision_do_not_matter() -> None:
    plain = make_gp(num=25)
    expected = factors_of(sharpened(plain, evidence=0.0), plain)
    assert max(map(abs, expected)) > 0.3
    scaled = make_gp(num=25, transforms=True)
    single = make_gp(num=25, dtype=torch.float32)
    for gp in (scaled, single):
        twin = sharpened(gp, evidence=0.0)
        assert twin.likelihood.noise.dtype == gp.likelihood.noise.dtype
        assert factors_of(twin, gp) == pytest.approx(expected, abs=1e-4)


def test_a_lengthscale_five_times_too_long_is_found_and_right_values_are_kept() -> None:
    gp: Any = make_gp()
    generator = torch.Generator().manual_seed(2)
    X = uniform(80, 2, generator=generator)
    with torch.no_grad():
        covariance = gp.covar_module(X).to_dense() + gp.likelihood.noise * torch.eye(80, **DOUBLE)
        Y = torch.linalg.cholesky(covariance) @ normal(80, 1, generator=generator) + 0.3
    gp.set_train_data(X, Y.squeeze(-1), strict=False)
    assert factors_of(sharpened(gp), gp) == (0.0, 0.0)
    # The standard error of the log noise variance is sqrt(2 / 80) = 0.16; four of them are within
    # two steps.
    a, b = factors_of(sharpened(gp, evidence=0.0), gp)
    assert abs(a) <= 0.4 + 1e-6 and abs(b) <= 0.35 + 1e-6
    gp.covar_module.lengthscale = 5.0 * gp.covar_module.lengthscale.detach()
    a, b = factors_of(sharpened(gp), gp)
    assert abs(a) <= 0.8 + 1e-6 and abs(b + math.log(5.0)) <= 0.35


def test_it_stays_within_constraints() -> None:
    generator = torch.Generator().manual_seed(2)
    X = uniform(40, 2, generator=generator)
    Y = standardize(X.sum(dim=-1, keepdim=True))
    gp = SingleTaskGP(X, Y, outcome_transform=None).eval()
    gp.likelihood.noise = 2e-4  # of data without noise; at least 1e-4 is allowed
    twin = sharpened(gp)
    assert twin.likelihood.noise.item() == pytest.approx(1.001e-4)
    assert all(value.isfinite().all() for value in twin.parameters())


def test_other_models_are_refused() -> None:
    gp: Any = make_gp()
    X, Y, _ = make_data()
    robust = RobustRelevancePursuitSingleTaskGP(X, Y, outcome_transform=Standardize(1))
    two = SingleTaskGP(X, torch.cat([Y, -Y], dim=-1))
    for model in (ModelListGP(gp), make_variational(), robust, two):
        with pytest.raises(UnsupportedError):
            sharpened(model)
    with pytest.raises(InputDataError, match="noise_width"):
        sharpened(gp, noise_width=0.0)
    with pytest.raises(InputDataError, match="evidence"):
        sharpened(gp, evidence=-1.0)
    with pytest.raises(InputDataError):
        sharpened(SingleTaskGP(X[:0], Y[:0], outcome_transform=None))
