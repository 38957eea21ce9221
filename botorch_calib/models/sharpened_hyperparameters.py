"""`sharpened`: corrects a Gaussian process's given hyperparameters if its data contradict them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from botorch.exceptions.errors import UnsupportedError
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.likelihoods.noise_models import FixedGaussianNoise, HomoskedasticNoise
from gpytorch.models import ExactGP
from torch import Tensor
from torch.nn import Module

from botorch_calib._validation import check_nonnegative, check_positive
from botorch_calib.models.partly_known_noise import PartlyKnownNoiseLikelihood
from botorch_calib.models.process import likelihood_of, with_own_hyperparameters
from botorch_calib.models.training_prior import training_prior

# Grids for the logarithms of the noise factor and the lengthscale factor.
_NOISES, _LENGTHSCALES = (
    step * torch.arange(-most, most + 1, dtype=torch.double)
    for step, most in ((0.4, 12), (0.35, 6))
)
# Widths of the priors of these logarithms, chosen on the tuning seeds of suite `decisions_budget`.
NOISE_WIDTH, LENGTHSCALE_WIDTH = 0.4, 0.3
# Least gain in log posterior density of a correction, which Kass and Raftery (1995) call "very
# strong" evidence. Without a least gain, correct hyperparameters are sometimes changed.
EVIDENCE = 5.0


@torch.no_grad()
def sharpened(
    model: ExactGP,
    noise_width: float = NOISE_WIDTH,
    lengthscale_width: float = LENGTHSCALE_WIDTH,
    evidence: float = EVIDENCE,
) -> ExactGP:
    r"""Return a copy of a model, with hyperparameters corrected if the data contradict them.

    This is for *given* hyperparameters, such as the hyperparameters of another task, or noise that
    was reported with the data. A refit would ignore this knowledge, and with few data find worse
    hyperparameters. The correction has two factors, one for all noise variances and one for all
    lengthscales. The prior of a factor's logarithm ``t`` is a mixture of a point mass at 0 and a
    Cauchy density proportional to ``1 / (1 + (t / width)^2)``. A factor other than 1 must therefore
    gain ``evidence`` in log density, and a large correction costs little more than a small one. As
    the posterior may have several local maxima, its maximum is sought on a grid of 25 noise factors
    (from 1/120 to 120) by 13 lengthscale factors (from 1/8 to 8).

    Each time, sharpen the *given* model with all data so far. Do not sharpen the last result, which
    has used most of the data already. Every fifth round is enough. Hyperparameters that were fitted
    to the same data do not improve.

    Args:
        model: An exact Gaussian process with one output and its training data. It is not changed.
        noise_width: Width of the prior of the noise factor.
        lengthscale_width: Width of the prior of the lengthscale factor.
        evidence: Least gain in log posterior density of each factor other than 1, at least 0.

    Returns:
        The copy, of the same class. It shares its data with ``model``.

    Example:
        >>> gp.likelihood.noise = 1e-4  # given, not fitted
        >>> corrected = sharpened(gp)
    """
    likelihood = likelihood_of(model)
    if not isinstance(model, ExactGP) or type(likelihood) not in (
        GaussianLikelihood,
        FixedNoiseGaussianLikelihood,
        PartlyKnownNoiseLikelihood,
    ):
        raise UnsupportedError(
            "`model` must be an exact Gaussian process with one or with given noise variances, "
            f"such as SingleTaskGP, got {type(model).__name__} with {type(likelihood).__name__}."
        )
    noise_width = check_positive("noise_width", noise_width)
    lengthscale_width = check_positive("lengthscale_width", lengthscale_width)
    evidence = check_nonnegative("evidence", evidence)
    twin = with_own_hyperparameters(model)
    twin.prediction_strategy = None  # it was computed with the old hyperparameters
    set_lengthscales = scaled_lengthscales(twin)
    costs = []
    for t in _LENGTHSCALES:
        set_lengthscales(t)
        costs.append(costs_by_noise(twin) + _penalty(t, lengthscale_width, evidence))
    cost = torch.stack(costs) + _penalty(_NOISES, noise_width, evidence)
    best, noise = divmod(int(cost.argmin()), len(_NOISES))
    set_lengthscales(_LENGTHSCALES[best])
    # Both given and learned variances
    for part in twin.likelihood.modules():
        if isinstance(part, (HomoskedasticNoise, FixedGaussianNoise)):
            _set(part, "noise", part.noise, _NOISES[noise])
    return twin


def _penalty(t: Tensor, width: float, evidence: float) -> Tensor:
    return (t / width).square().log1p() + evidence * (t != 0.0)


def scaled_lengthscales(model: ExactGP) -> Callable[[Tensor], None]:
    """Return a function of ``t`` that sets lengthscales to ``exp(t)`` times their given values."""
    kernels = [
        part for part in model.modules() if isinstance(part, Kernel) and part.has_lengthscale
    ]
    given = [kernel.lengthscale.clone() for kernel in kernels]

    def scale(t: Tensor) -> None:
        for kernel, lengthscale in zip(kernels, given, strict=True):
            _set(kernel, "lengthscale", lengthscale, t)

    return scale


def costs_by_noise(model: ExactGP) -> Tensor:
    """Negative log likelihood of the data for each of `_NOISES`, up to a constant.

    With noise variances ``D`` and a factor ``a``, ``K + a D = D^{1/2} (Q Lambda Q^T + a I)
    D^{1/2}``, so one eigendecomposition serves all factors.
    """
    prior = training_prior(model, dtype=torch.double)
    root = prior.noise.sqrt()
    values, vectors = torch.linalg.eigh(prior.covariance / (root.unsqueeze(-1) * root))
    squares = (vectors.mT @ (prior.deviation / root)).square()
    variances = values.clamp(min=0.0) + _NOISES.to(values).exp().unsqueeze(-1)
    return 0.5 * (squares / variances + variances.log()).sum(dim=-1).cpu()


def _set(part: Module, name: str, value: Tensor, t: Tensor) -> None:
    """Set a hyperparameter to ``value exp(t)``, clamped to its constraint."""
    value = value * t.exp().to(value)
    constraint = getattr(part, f"raw_{name}_constraint", None)
    if constraint is not None:
        # At the bound the raw parameter would be infinite.
        value = value.clamp(1.001 * constraint.lower_bound, 0.999 * constraint.upper_bound)
    setattr(part, name, value)
