"""The closed form equals GPyTorch's likelihood, and its gradient is autograd's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.models.utils.gpytorch_modules import get_matern_kernel_with_gamma_prior
from botorch.settings import validate_input_scaling
from gpytorch.constraints import GreaterThan, Interval, Positive
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean, ZeroMean
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


def rbf_kernel(batch: tuple[int, ...] = (), **settings: Any) -> RBFKernel:
    constraint = Interval(5e-3, 20.0, transform=None, initial_value=0.5)
    settings = {"ard_num_dims": D, "lengthscale_constraint": constraint, **settings}
    kernel: RBFKernel = RBFKernel(batch_shape=torch.Size(batch), **settings).double()
    return kernel


def scaled_kernel(batch: tuple[int, ...] = (), **settings: Any) -> ScaleKernel:
    """A kernel with the other supported priors."""
    kernel = rbf_kernel(batch, lengthscale_prior=GammaPrior(3.0, 6.0))
    bounds: Any = Positive(transform=None, initial_value=1.0)
    settings = {"outputscale_prior": GammaPrior(2.0, 0.15), "batch_shape": torch.Size(batch)} | (
        settings
    )
    scaled: ScaleKernel = ScaleKernel(kernel, outputscale_constraint=bounds, **settings).double()
    return scaled


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
    value = gp.train_targets.shape[-1] * mll(gp(*gp.train_inputs), gp.train_targets)
    kernel, noise = gp.covar_module, gp.likelihood.noise_covar
    scale = kernel if isinstance(kernel, ScaleKernel) else None
    noise = getattr(noise, "unknown", noise)
    raw = [
        gp.mean_module.raw_constant,
        getattr(noise, "raw_noise", None),
        None if scale is None else scale.raw_outputscale,
        (kernel if scale is None else kernel.base_kernel).raw_lengthscale,
    ]
    found = iter(torch.autograd.grad(value.sum(), [leaf for leaf in raw if leaf is not None]))
    slopes, num = [], value.numel()
    for place, leaf in enumerate(raw):
        if leaf is None:
            slopes.append(torch.zeros(num, 1, dtype=torch.double))
        else:
            rate = leaf.detach() if place else 1.0
            slopes.append((next(found) * rate).reshape(num, -1).double())
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


def test_a_model_in_evaluation_mode() -> None:
    gp = made("learned")
    expected = MarginalLikelihood(gp)
    gp.eval()
    found = MarginalLikelihood(gp)
    assert found(found.start)[0] == expected(expected.start)[0]


def test_bounds() -> None:
    low, high = MarginalLikelihood(made("learned", is_scaled=True)).bounds
    expected = [-math.inf, math.log(1e-4), -math.inf, *[math.log(5e-3)] * D]
    assert low.tolist() == pytest.approx(expected, abs=1e-6)
    assert high.tolist() == pytest.approx([*[math.inf] * 3, *[math.log(20.0)] * D], abs=1e-6)


@pytest.mark.parametrize("noise", NOISES)
def test_given_noise_is_left_as_it_is(noise: str) -> None:
    gp, before = made(noise), made(noise).likelihood.noise_covar.noise
    likelihood = MarginalLikelihood(gp)
    is_fixed = likelihood.bounds[0] == likelihood.bounds[1]
    assert is_fixed.tolist() == [False, noise == "given", True, *[False] * D]
    likelihood.set(likelihood.start[0] + 1.0)
    found = gp.likelihood.noise_covar.noise
    factor = math.e if noise == "learned" else 1.0
    torch.testing.assert_close(found, factor * before, equal_nan=True)


def test_single_precision_models_have_double_precision_likelihoods() -> None:
    single, double = (made("learned", dtype=dtype) for dtype in (torch.float, torch.double))
    likelihood = MarginalLikelihood(single)
    value, _ = likelihood(likelihood.start)
    assert value == pytest.approx(by_autograd(double)[0].numpy(), rel=1e-5)
    # The likelihood is continuous far below the rounding errors of single precision.
    step = np.zeros_like(likelihood.start)
    step[0, 3] = 1e-9
    rise = likelihood(likelihood.start + step)[0] - value
    assert rise == pytest.approx(1e-9 * likelihood(likelihood.start)[1][:, 3], rel=1e-3)
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


def test_inputs_far_from_zero() -> None:
    """Distances are differences of large numbers, unless inputs are centred."""
    X, Y = data()
    found = []
    for offset in (0.0, 1e5):
        with validate_input_scaling(False):
            gp = SingleTaskGP(
                X + offset, Y, covar_module=rbf_kernel(), outcome_transform=Standardize(1)
            )
        likelihood = MarginalLikelihood(gp)
        found.append(likelihood(likelihood.start))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-8)
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-6, atol=1e-6)


def test_lengthscales_far_below_the_distances() -> None:
    """The covariance is a multiple of the identity, whose diagonal is computed without rounding."""
    gp = made("learned")
    likelihood = MarginalLikelihood(gp)
    row = likelihood.start.copy()
    row[:, 3:] = -20.0
    value, _ = likelihood(row)
    deviation = math.sqrt(1.0 + math.exp(row[0, 1]))
    independent = torch.distributions.Normal(row[0, 0], deviation)
    kernel, noise = gp.covar_module.lengthscale_prior, gp.likelihood.noise_covar.noise_prior
    expected = (
        independent.log_prob(gp.train_targets).sum()
        + kernel.log_prob(torch.tensor(math.exp(-20.0), dtype=torch.double)) * D
        + noise.log_prob(gp.likelihood.noise).sum()
    )
    assert value == pytest.approx(expected.item(), rel=1e-6)


def unsupported(case: str) -> Any:
    X, Y = data()

    class OtherKernel(RBFKernel):
        pass

    class OtherLikelihood(GaussianLikelihood):
        pass

    frozen = rbf_kernel()
    frozen.raw_lengthscale.requires_grad_(False)
    transformed: dict[str, Kernel] = {
        "kernel": get_matern_kernel_with_gamma_prior(D),
        "kernel of a subclass": OtherKernel(ard_num_dims=D).double(),
        "one lengthscale": rbf_kernel(ard_num_dims=1),
        "some inputs": rbf_kernel(active_dims=(2, 1, 0)),
        "some inputs, scaled": scaled_kernel(active_dims=(2, 1, 0)),
        "transform": RBFKernel(ard_num_dims=D).double(),
        "prior": rbf_kernel(lengthscale_prior=NormalPrior(1.0, 1.0)),
        "frozen": frozen,
    }
    parts: dict[str, Any] = {
        "mean": {"mean_module": ZeroMean()},
        "mean's prior": {"mean_module": ConstantMean(constant_prior=NormalPrior(0.0, 1.0))},
        "likelihood": {"likelihood": OtherLikelihood().double()},
        "transform of the noise": {"likelihood": GaussianLikelihood().double()},
        "two outcomes": {},
    }
    own = parts[case] if case in parts else {"covar_module": transformed[case]}
    Y = torch.cat([Y, Y], dim=-1) if case == "two outcomes" else Y
    return SingleTaskGP(X, Y, outcome_transform=Standardize(Y.shape[-1]), **own)


@pytest.mark.parametrize(
    ("case", "named"),
    [
        ("kernel", "RBFKernel"),
        ("kernel of a subclass", "RBFKernel"),
        ("one lengthscale", "a lengthscale for each model and input"),
        ("some inputs", "of all inputs"),
        ("some inputs, scaled", "RBFKernel"),
        ("transform", "constraint of its lengthscale without"),
        ("prior", "NormalPrior"),
        ("frozen", "a learned lengthscale"),
        ("mean", "ConstantMean"),
        ("mean's prior", "no other parameters or priors"),
        ("likelihood", "Gaussian noise"),
        ("transform of the noise", "constraint of its noise without"),
        ("two outcomes", "one outcome"),
    ],
)
def test_other_models_are_refused_by_name(case: str, named: str) -> None:
    with pytest.raises(UnsupportedError, match=named):
        MarginalLikelihood(unsupported(case))


def test_other_batches_are_refused() -> None:
    X, Y = data()
    both = torch.stack([X, X]), torch.stack([Y, Y + X[:, :1]])
    gp = SingleTaskGP(*both, outcome_transform=Standardize(1, batch_shape=torch.Size([2])))
    with pytest.raises(UnsupportedError, match="the same data"):
        MarginalLikelihood(gp)
    one: Any = GreaterThan(1e-4, transform=None, initial_value=0.1)
    shared = GaussianLikelihood(noise_constraint=one).double()
    standardize = Standardize(1, batch_shape=torch.Size([2]))
    gp = SingleTaskGP(
        both[0], torch.stack([Y, Y]), likelihood=shared, outcome_transform=standardize
    )
    with pytest.raises(UnsupportedError, match="a noise for each model"):
        MarginalLikelihood(gp)
    with pytest.raises(UnsupportedError, match="SingleTaskGP"):
        MarginalLikelihood(ModelListGP(made("learned")))


@pytest.mark.parametrize(
    "prior",
    [
        LogNormalPrior(0.7, 0.3),
        LogNormalPrior(torch.tensor([0.0, 0.5, 1.0]), torch.tensor([0.5, 1.0, 2.0])),
        GammaPrior(0.5, 2.0),
        GammaPrior(9.0, 0.1),
    ],
)
def test_a_prior_equals_its_density(prior: Any) -> None:
    X, Y = data()
    values = []
    for own in ({"lengthscale_prior": prior}, {}):
        gp = SingleTaskGP(X, Y, covar_module=rbf_kernel(**own), outcome_transform=Standardize(1))
        kernel: Any = gp.covar_module
        kernel.raw_lengthscale.data.copy_(torch.tensor([[0.3, 1.0, 4.0]]))
        likelihood = MarginalLikelihood(gp)
        values.append(likelihood(likelihood.start)[0].item())
    density = prior.log_prob(kernel.lengthscale.detach()).sum().item()
    assert values[0] - values[1] == pytest.approx(density, rel=1e-6)
