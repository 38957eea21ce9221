"""The closed form equals GPyTorch's likelihood, and its gradient is autograd's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.models.utils.gpytorch_modules import get_matern_kernel_with_gamma_prior
from gpytorch.constraints import Interval
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import GammaPrior, LogNormalPrior, NormalPrior
from numpy.typing import NDArray
from torch import Tensor

from botorch_calib.models.marginal_likelihood import MarginalLikelihood
from botorch_calib.models.partly_known_noise import PartlyKnownNoiseGP

NOISES = ("learned", "given", "partly given")
N, D = 12, 3


def data(dtype: torch.dtype = torch.double) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(N, D, dtype=torch.double, generator=generator)
    Y = (3.0 * X).sin().sum(dim=-1, keepdim=True)
    noise = torch.randn(N, 1, dtype=torch.double, generator=generator)
    return X.to(dtype), (Y + 0.1 * noise).to(dtype)


def scaled_kernel(batch: tuple[int, ...] = ()) -> ScaleKernel:
    """A kernel with the other supported priors, and with bounds but no transforms."""
    shape = torch.Size(batch)
    kernel = RBFKernel(
        ard_num_dims=D,
        batch_shape=shape,
        lengthscale_prior=GammaPrior(3.0, 6.0),
        lengthscale_constraint=Interval(5e-3, 20.0, transform=None, initial_value=0.5),
    )
    prior = GammaPrior(2.0, 0.15)
    return ScaleKernel(kernel, batch_shape=shape, outputscale_prior=prior).double()


def made(
    noise: str,
    batch: tuple[int, ...] = (),
    is_scaled: bool = False,
    dtype: torch.dtype = torch.double,
) -> Any:
    X, Y = data(dtype)
    Yvar = None if noise == "learned" else torch.full_like(Y, 0.04)
    if noise == "partly given":
        assert Yvar is not None
        Yvar[::3] = torch.nan
    X = 2.0 + 3.0 * X
    return PartlyKnownNoiseGP(
        X.expand(*batch, N, D),
        Y.expand(*batch, N, 1),
        None if Yvar is None else Yvar.expand(*batch, N, 1),
        covar_module=scaled_kernel(batch).to(dtype) if is_scaled else None,
        input_transform=Normalize(D, bounds=torch.tensor([[2.0] * D, [5.0] * D], dtype=dtype)),
        outcome_transform=Standardize(1, batch_shape=torch.Size(batch)),
    )


def by_autograd(gp: Any) -> tuple[Tensor, NDArray[np.float64]]:
    """GPyTorch's log likelihoods with priors, and their slopes in the columns of a row."""
    mll = ExactMarginalLogLikelihood(gp.likelihood, gp).train()
    value = N * mll(gp(*gp.train_inputs), gp.train_targets)
    kernel, noise = gp.covar_module, gp.likelihood.noise_covar
    scale = kernel if isinstance(kernel, ScaleKernel) else None
    noise = getattr(noise, "unknown", noise)
    parts = [
        (gp.mean_module, "constant", False),
        (noise if hasattr(noise, "raw_noise") else None, "noise", True),
        (scale, "outputscale", True),
        (kernel if scale is None else kernel.base_kernel, "lengthscale", True),
    ]
    slopes, rows = [], value.numel()
    raw = [None if part is None else getattr(part, f"raw_{name}") for part, name, _ in parts]
    leaves = [leaf for leaf in raw if leaf is not None]
    found = iter(torch.autograd.grad(value.sum(), leaves))
    for (part, name, is_log), leaf in zip(parts, raw, strict=True):
        if leaf is None:
            slopes.append(torch.zeros(rows, 1, dtype=torch.double))
            continue
        natural = getattr(part, name).detach()
        # d natural / d raw, from the constraint's transform
        probe = leaf.detach().clone().requires_grad_()
        constraint = part.constraint_for_parameter_name(f"raw_{name}")
        moved = probe if constraint is None else constraint.transform(probe)
        (rate,) = torch.autograd.grad(moved.sum(), probe)
        slope = next(found) / rate * (natural if is_log else 1.0)
        slopes.append(slope.reshape(rows, -1).double())
    return value.detach().reshape(-1), torch.cat(slopes, dim=-1).numpy()


@pytest.mark.parametrize("is_scaled", [False, True], ids=["default", "scaled"])
@pytest.mark.parametrize("batch", [(), (1,), (4,)], ids=str)
@pytest.mark.parametrize("noise", NOISES)
def test_values_and_slopes_are_those_of_gpytorch(
    noise: str, batch: tuple[int, ...], is_scaled: bool
) -> None:
    likelihood = MarginalLikelihood(made(noise, batch, is_scaled))
    generator = np.random.default_rng(0)
    learned = likelihood.bounds[0] < likelihood.bounds[1]
    moved = 0.5 * generator.standard_normal((5, len(learned))) * learned
    rows = np.clip(likelihood.start[:1] + moved, *likelihood.bounds)
    values, slopes = likelihood(rows)
    for row, value, slope in zip(rows, values, slopes, strict=True):
        gp = made(noise, (), is_scaled)
        MarginalLikelihood(gp).set(row)
        expected, gradient = by_autograd(gp)
        # GPyTorch keeps the parameters of priors in single precision.
        assert value == pytest.approx(expected.item(), rel=1e-7, abs=1e-6)
        np.testing.assert_allclose(slope * learned, gradient[0], rtol=1e-6, atol=1e-6)


def test_the_rows_of_a_batch_are_its_models() -> None:
    gp = made("learned", (3,))
    gp.likelihood.noise = torch.tensor([[0.01], [0.1], [0.5]], dtype=torch.double)
    likelihood = MarginalLikelihood(gp)
    values, slopes = likelihood(likelihood.start)
    expected, gradients = by_autograd(gp)
    np.testing.assert_allclose(values, expected.numpy(), rtol=1e-7)
    np.testing.assert_allclose(slopes[:, [0, 1, 3, 4, 5]], gradients[:, [0, 1, 3, 4, 5]], rtol=1e-5)
    likelihood.set(likelihood.start[1])
    torch.testing.assert_close(gp.likelihood.noise, torch.full((3, 1), 0.1, dtype=torch.double))
    again = MarginalLikelihood(gp)
    np.testing.assert_allclose(again.start, likelihood.start[[1, 1, 1]], atol=1e-14)


def test_bounds() -> None:
    low, high = MarginalLikelihood(made("learned", is_scaled=True)).bounds
    expected = [-math.inf, math.log(1e-4), -math.inf, *[math.log(5e-3)] * D]
    assert low.tolist() == pytest.approx(expected, abs=1e-6)
    assert high.tolist() == pytest.approx([*[math.inf] * 3, *[math.log(20.0)] * D], abs=1e-6)


@pytest.mark.parametrize("noise", NOISES)
def test_what_is_not_learned_keeps_its_value(noise: str) -> None:
    gp = made(noise)
    gp.mean_module.raw_constant.requires_grad_(False)
    gp.mean_module.constant = 0.25
    likelihood = MarginalLikelihood(gp)
    is_fixed = likelihood.bounds[0] == likelihood.bounds[1]
    assert is_fixed.tolist() == [True, noise == "given", True, *[False] * D]
    assert likelihood.start[0, 0] == 0.25
    likelihood.set(likelihood.start[0] - 1.0)
    assert gp.mean_module.constant.item() == 0.25
    given, before = gp.likelihood.noise_covar.noise, made(noise).likelihood.noise_covar.noise
    if noise != "learned":
        torch.testing.assert_close(given, before, equal_nan=True)


def test_single_precision_models_have_double_precision_likelihoods() -> None:
    single, double = (made("learned", dtype=dtype) for dtype in (torch.float, torch.double))
    likelihood = MarginalLikelihood(single)
    value, _ = likelihood(likelihood.start)
    assert value == pytest.approx(by_autograd(double)[0].numpy(), rel=1e-5)
    likelihood.set(likelihood.start[0])
    assert single.covar_module.lengthscale.dtype is torch.float


@pytest.mark.parametrize("column", [1, 3], ids=["noise", "lengthscale"])
@pytest.mark.parametrize("extreme", [-800.0, -20.0, 20.0, 800.0])
def test_extreme_rows_leave_the_others(column: int, extreme: float) -> None:
    likelihood = MarginalLikelihood(made("learned"))
    rows = np.repeat(likelihood.start, 2, axis=0)
    rows[1, column] = extreme
    alone, both = likelihood(rows[:1]), likelihood(rows)
    np.testing.assert_allclose(both[0][0], alone[0][0], rtol=1e-12)
    np.testing.assert_allclose(both[1][0], alone[1][0], rtol=1e-10)
    if abs(extreme) < 100.0 and not (column == 1 and extreme < 0.0):
        assert np.isfinite(both[0]).all() and np.isfinite(both[1]).all()


def test_a_covariance_without_a_factor_is_not_finite() -> None:
    X, Y = data()
    gp = SingleTaskGP(X[:1].expand(N, D), Y, 1e-4 * Y.square(), outcome_transform=Standardize(1))
    gp.likelihood.noise_covar.noise.fill_(0.0)
    likelihood = MarginalLikelihood(gp)
    assert not np.isfinite(likelihood(likelihood.start)[0]).any()


def test_more_data_than_a_naive_sum_of_squares_bears() -> None:
    """Lengthscales a thousandth of the range: distances are differences of large numbers."""
    X, Y = data()
    kernel = RBFKernel(ard_num_dims=D).double()
    kernel.lengthscale = 1e-3
    gp = SingleTaskGP(0.9 + 1e-3 * X, Y, covar_module=kernel, outcome_transform=Standardize(1))
    likelihood = MarginalLikelihood(gp)
    expected, gradient = by_autograd(gp)
    value, slope = likelihood(likelihood.start)
    assert value == pytest.approx(expected.numpy(), rel=1e-6)
    slope[:, 2] = 0.0  # there is no outputscale
    np.testing.assert_allclose(slope, gradient, rtol=1e-5, atol=1e-5)


def unsupported(case: str) -> Any:
    X, Y = data()
    one = RBFKernel().double()
    parts: dict[str, Any] = {
        "kernel": {"covar_module": get_matern_kernel_with_gamma_prior(D)},
        "one lengthscale": {"covar_module": one},
        "some inputs": {"covar_module": RBFKernel(ard_num_dims=2, active_dims=(0, 1)).double()},
        "prior": {
            "covar_module": RBFKernel(
                ard_num_dims=D, lengthscale_prior=NormalPrior(1.0, 1.0)
            ).double()
        },
        "mean's prior": {"mean_module": ConstantMean(constant_prior=NormalPrior(0.0, 1.0))},
        "two outcomes": {},
    }
    Y = torch.cat([Y, Y], dim=-1) if case == "two outcomes" else Y
    return SingleTaskGP(X, Y, outcome_transform=Standardize(Y.shape[-1]), **parts[case])


@pytest.mark.parametrize(
    "case", ["kernel", "one lengthscale", "some inputs", "prior", "mean's prior", "two outcomes"]
)
def test_other_models_are_refused(case: str) -> None:
    with pytest.raises(UnsupportedError, match="closed form"):
        MarginalLikelihood(unsupported(case))


def test_a_prior_equals_its_density() -> None:
    """Beyond the hyperparameters above: three parameters of each prior."""
    X, Y = data()
    Y = (Y - Y.mean()) / Y.std()
    for prior in (LogNormalPrior(0.7, 0.3), GammaPrior(0.5, 2.0), GammaPrior(9.0, 0.1)):
        kernels = [RBFKernel(ard_num_dims=D, lengthscale_prior=each) for each in (prior, None)]
        models = [SingleTaskGP(X, Y, covar_module=kernel.double()) for kernel in kernels]
        for gp in models:
            gp.covar_module.lengthscale = torch.tensor([0.3, 1.0, 4.0], dtype=torch.double)
        (with_prior, _), (without, _) = (
            each(each.start) for each in map(MarginalLikelihood, models)
        )
        density = prior.log_prob(models[0].covar_module.lengthscale).sum().item()
        assert with_prior - without == pytest.approx(density, rel=1e-6)
