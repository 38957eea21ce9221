"""`MarginalLikelihood`: the likelihood of BoTorch's default process, and its gradient, by formulas.

GPyTorch's likelihood and its derivatives by autograd take 157 operations, which cost more than the
factorization if data are few. The formulas take 46 operations (`docs/results/simpler_forms.md`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.priors import GammaPrior, LogNormalPrior, Prior
from numpy.typing import NDArray
from torch import Tensor

from botorch_calib.models.partly_known_noise import PartlyKnownNoiseLikelihood

Array = NDArray[np.float64]
_LOG_SQRT_2_PI = 0.5 * math.log(2.0 * math.pi)


class Hyperparameters(NamedTuple):
    """Hyperparameters of ``k`` processes with ``d`` inputs, or derivatives with respect to them."""

    mean: Tensor  # k x 1
    noise: Tensor  # variance of the noise where it is not given, k x 1
    outputscale: Tensor  # k x 1
    lengthscales: Tensor  # k x d


def log_likelihood(
    X: Tensor, Y: Tensor, noise: Tensor, at: Hyperparameters
) -> tuple[Tensor, Hyperparameters]:
    """Return log marginal likelihoods ``k`` of processes with squared-exponential kernels.

    The second result has their derivatives with respect to the mean and to the *logarithms* of the
    other hyperparameters. Where a covariance has no Cholesky factor, the likelihood is NaN and its
    derivatives are meaningless.

    Args:
        X: Inputs, ``n x d``, with means near 0 for accurate distances.
        Y: Outcomes, ``n``.
        noise: Given variances of the noise, ``n``, NaN where the variance is ``at.noise``.
        at: The hyperparameters.
    """
    Z = X / at.lengthscales.unsqueeze(-2)
    norms = Z.square().sum(dim=-1, keepdim=True)
    squares = torch.baddbmm(norms + norms.mT, Z, Z.mT, alpha=-2.0)
    squares.diagonal(dim1=-2, dim2=-1).zero_()
    K = squares.mul_(-0.5).exp_() * at.outputscale.unsqueeze(-1)
    unknown = noise.isnan()
    L, info = torch.linalg.cholesky_ex(K + torch.where(unknown, at.noise, noise).diag_embed())
    failed = info > 0
    # One process without a factor must not make the inverses of the others fail.
    L = torch.where(failed.view(-1, 1, 1), torch.eye(len(Y), dtype=L.dtype, device=L.device), L)
    inverse = torch.cholesky_inverse(L)
    residuals = (Y - at.mean).unsqueeze(-1)
    weights = torch.cholesky_solve(residuals, L)
    quadratic = (residuals * weights).sum(dim=(-2, -1))
    half_log_determinant = L.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
    values = -0.5 * quadratic - half_log_determinant - len(Y) * _LOG_SQRT_2_PI
    # Rasmussen and Williams (2006), eq. 5.9: with the covariance C and the weights w = C^-1 (Y -
    # mean), the derivative with respect to a hyperparameter t is sum_ij G_ij (dC/dt)_ij / 2, where
    # G = w w' - C^-1.
    G = torch.baddbmm(inverse, weights, weights.mT, beta=-1.0)
    # The derivative of C is K for the log outputscale, and K_ij (z_i - z_j)^2 for the log
    # lengthscale of an input z. As M_ij = G_ij K_ij is symmetric, sum_ij M_ij (z_i - z_j)^2 / 2 =
    # sum_i z_i (z_i sum_j M_ij - sum_j M_ij z_j).
    M = G * K
    rows = M.sum(dim=-1, keepdim=True)
    of_unknown = (G.diagonal(dim1=-2, dim2=-1) * unknown).sum(dim=-1, keepdim=True)
    slopes = Hyperparameters(
        mean=weights.sum(dim=-2),
        noise=0.5 * at.noise * of_unknown,
        outputscale=0.5 * rows.sum(dim=-2),
        lengthscales=(Z * (rows * Z - M @ Z)).sum(dim=-2),
    )
    return torch.where(failed, torch.nan, values), slopes


class MarginalLikelihood:
    """The log marginal likelihood with priors, as a function of rows of hyperparameters.

    A row has ``p = 3 + d`` columns: the mean, and the logarithms of the noise variance, of the
    outputscale and of the lengthscales.

    Args:
        model: A ``SingleTaskGP`` of one outcome, or a batch of these with the same data, which is
            set to training mode. It has a ``ConstantMean``, given or learned Gaussian noise, and an
            ``RBFKernel`` with a lengthscale for each input, in a ``ScaleKernel`` or not. All
            hyperparameters are learned. Constraints have no transforms, and each prior is a
            ``LogNormalPrior`` or a ``GammaPrior``.

    Attributes:
        start: The hyperparameters of each model of the batch, ``b x p``.
        bounds: The least and the largest value in each column, ``2 x p``. Both are 0 if the model
            has no such hyperparameter.

    Raises:
        UnsupportedError: If the model has other parts.
    """

    def __init__(self, model: Any) -> None:
        self._parts = _parts(model)
        model.train()  # in evaluation mode, BoTorch's models have transformed inputs
        X, Y, noise = model.train_inputs[0], model.train_targets, model.likelihood.noise_covar.noise
        if not isinstance(model.likelihood, FixedNoiseGaussianLikelihood):
            noise = torch.full_like(Y, torch.nan)
        with torch.no_grad():
            X = model.transform_inputs(X)
        X, Y = X.reshape(-1, *X.shape[-2:]), Y.reshape(-1, X.shape[-2])
        if bool((X != X[:1]).any()) or bool((Y != Y[:1]).any()):
            raise UnsupportedError("All models of the batch must have the same data.")
        self._data = X[0] - X[0].mean(dim=0), Y[0], noise.reshape(-1, Y.shape[-1])[0]
        columns = [part.columns(len(Y)) for part in self._parts]
        self.start, self.bounds, self._prior = (
            np.concatenate(each, axis=-1) for each in zip(*columns, strict=True)
        )

    def __call__(self, rows: Array) -> tuple[Array, Array]:
        """Return the log likelihoods ``k`` and their gradients ``k x p`` at ``rows``, ``k x p``.

        They are computed in double precision. Both may be NaN or infinite, in particular if a
        covariance has no Cholesky factor.
        """
        X, Y, noise = self._data
        with np.errstate(over="ignore", invalid="ignore"), torch.no_grad():
            values = np.concatenate([rows[:, :1], np.exp(rows[:, 1:])], axis=-1)
            parts = torch.from_numpy(values).to(X.device).split([1, 1, 1, X.shape[-1]], dim=-1)
            found, slopes = log_likelihood(X, Y, noise, Hyperparameters(*parts))
            both = torch.cat([found.unsqueeze(-1), *slopes], dim=-1).cpu().numpy()
            constant, power, precision, center, rate = self._prior
            z, decay = rows - center, rate * values
            prior = constant + power * rows - 0.5 * precision * z**2 - decay
            return both[:, 0] + prior.sum(axis=-1), both[:, 1:] + power - precision * z - decay

    def set(self, row: Array) -> None:
        """Set the hyperparameters of all models of the batch to a row, ``p``."""
        for part, values in zip(self._parts, np.split(row, [1, 2, 3]), strict=True):
            part.set(values)


class _Part(NamedTuple):
    """Some columns of a row: the hyperparameter ``name`` of a module, if there is a module."""

    module: Any
    name: str
    width: int = 1

    @property
    def raw(self) -> Any:
        """The parameter, which equals the hyperparameter (None without a module)."""
        return getattr(self.module, f"raw_{self.name}", None)

    @property
    def constraint(self) -> Any:
        """The constraint (None if there is none)."""
        return getattr(self.module, f"raw_{self.name}_constraint", None)

    @property
    def prior(self) -> Any:
        """The prior (None if there is none)."""
        return getattr(self.module, f"{self.name}_prior", None)

    def columns(self, num: int) -> tuple[Array, Array, Array]:
        """Return the values of ``num`` models, their bounds, and the coefficients of their prior.

        With the value t in a column, the log density of the prior is c + a t - p (t - m)^2 / 2 -
        r exp(t). The coefficients are in the order c, a, p, m, r.
        """
        if self.module is None:
            return np.zeros((num, self.width)), np.zeros((2, self.width)), np.zeros((5, self.width))
        bounds = np.tile([[-np.inf], [np.inf]], (1, self.width))
        if self.constraint is not None:
            bounds[0] = self._read(self.constraint.lower_bound).reshape(-1)
            bounds[1] = self._read(self.constraint.upper_bound).reshape(-1)
        start = self._read(self.raw).reshape(num, self.width)
        return start, bounds, _coefficients(self.prior, self.width)

    def set(self, values: Array) -> None:
        """Set the hyperparameter of all models, if there is a module."""
        if self.module is not None:
            every = torch.from_numpy(values if self.name == "constant" else np.exp(values))
            raw = self.raw.data
            raw.copy_(every.to(raw).repeat(raw.numel() // self.width).reshape(raw.shape))

    def _read(self, value: Tensor) -> Array:
        """Return a value of the hyperparameter on the scale of the columns."""
        values: Array = value.detach().double().cpu().numpy()
        with np.errstate(divide="ignore"):
            return values if self.name == "constant" else np.log(values)


def _parts(model: Any) -> list[_Part]:
    """Return the parts of a row of hyperparameters of a model."""
    _check(isinstance(model, SingleTaskGP) and model.num_outputs == 1, "a model of one outcome")
    mean, kernel, likelihood = model.mean_module, model.covar_module, model.likelihood
    scale, noise = None, likelihood.noise_covar
    if isinstance(kernel, ScaleKernel) and kernel.active_dims is None:
        scale, kernel = kernel, kernel.base_kernel
    if isinstance(likelihood, PartlyKnownNoiseLikelihood):
        noise = noise.unknown
    elif isinstance(likelihood, FixedNoiseGaussianLikelihood):
        noise = None
    d, num = model.train_inputs[0].shape[-1], model.train_targets.shape[:-1].numel()
    parts = [
        _Part(mean, "constant"),
        _Part(noise, "noise"),
        _Part(scale, "outputscale"),
        _Part(kernel, "lengthscale", d),
    ]
    _check(type(mean) is ConstantMean, "a `ConstantMean`")
    _check(type(kernel) is RBFKernel and kernel.active_dims is None, "an `RBFKernel` of all inputs")
    gaussian = GaussianLikelihood, FixedNoiseGaussianLikelihood, PartlyKnownNoiseLikelihood
    _check(type(likelihood) in gaussian, "given or learned Gaussian noise")
    own = [part for part in parts if part.module is not None]
    for part in own:
        _check(part.raw.requires_grad, f"a learned {part.name}")
        wanted = f"a {part.name} for each model" + (" and input" if part.width > 1 else "")
        _check(part.raw.numel() == num * part.width, wanted)
        has_transform = part.constraint is not None and part.constraint.enforced
        _check(not has_transform, f"a constraint of its {part.name} without a transform")
    known = {id(each) for part in own for each in (part.raw, part.prior)}
    others = [*model.parameters(), *(prior for _, _, prior, *_ in model.named_priors())]
    _check(all(id(each) in known for each in others), "no other parameters or priors")
    return parts


def _check(is_supported: bool, part: str) -> None:
    if not is_supported:
        raise UnsupportedError(f"The closed form is for a `SingleTaskGP` with {part}.")


def _coefficients(prior: Prior | None, width: int) -> Array:
    """Return the coefficients of a prior, ``5 x width``, as `_Part.columns` defines them."""
    found = np.zeros((5, width))
    if isinstance(prior, LogNormalPrior):
        # The density of x is the density of a normal t = log(x), divided by x.
        mean, deviation = (each.double().cpu().numpy() for each in (prior.loc, prior.scale))
        found[0], found[1] = -np.log(deviation) - _LOG_SQRT_2_PI, -1.0
        found[2], found[3] = deviation**-2, mean
    elif isinstance(prior, GammaPrior):
        shape, rate = (each.double().cpu() for each in (prior.concentration, prior.rate))
        found[0] = shape * rate.log() - shape.lgamma()
        found[1], found[4] = shape - 1.0, rate
    else:
        _check(prior is None, f"log-normal or gamma priors, not a {type(prior).__name__}")
    return found
