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

# `sharpened` tries these logarithms of the factor of all noise variances and of the factor of all
# lengthscales.
_NOISES, _LENGTHSCALES = (
    step * torch.arange(-most, most + 1, dtype=torch.double)
    for step, most in ((0.4, 12), (0.35, 6))
)
# Widths of the priors of these logarithms. They were chosen on the tuning seeds of the benchmark
# suite `decisions_budget`.
NOISE_WIDTH, LENGTHSCALE_WIDTH = 0.4, 0.3
# A correction must gain at least this much log density, which Kass and Raftery (1995) call "very
# strong" evidence; otherwise the given hyperparameters are kept. Without a minimum gain, correct
# hyperparameters would sometimes be changed.
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
    Cauchy density proportional to ``1 / (1 + (t / width)^2)``. The point mass counts
    ``exp(evidence)`` times as much as the density at its peak, so a factor other than 1 must gain
    more than ``evidence`` in log likelihood. The Cauchy density has heavy tails, so a large
    correction needs little more evidence than a small correction. As the posterior may have several
    local maxima, its maximum is sought on a grid of 25 noise factors (from 1/120 to 120) by 13
    lengthscale factors (from 1/8 to 8).

    During a search, sharpen the *given* model with all data so far; every fifth round is enough. Do
    not sharpen the result of an earlier round, which has used most of the data already.
    Hyperparameters that were fitted to the same data do not improve.

    Args:
        model: An exact Gaussian process with one output and its training data. It is not changed.
        noise_width: Positive ``width`` in the prior of the noise factor.
        lengthscale_width: Positive ``width`` in the prior of the lengthscale factor.
        evidence: Gain in log likelihood, at least 0, that each factor other than 1 needs.

    Returns:
        The copy, of the same class. It shares its data with ``model``.

    Raises:
        UnsupportedError: If the model is not an exact Gaussian process with one noise variance or
            with given noise variances.
        InputDataError: If a width is not positive, or ``evidence`` is negative.

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
    twin.prediction_strategy = None  # was computed with the old hyperparameters
    set_lengthscales = scaled_lengthscales(twin)
    costs = []
    for t in _LENGTHSCALES:
        set_lengthscales(t)
        costs.append(costs_by_noise(twin) + _penalty(t, lengthscale_width, evidence))
    cost = torch.stack(costs) + _penalty(_NOISES, noise_width, evidence)
    best, noise = divmod(int(cost.argmin()), len(_NOISES))
    set_lengthscales(_LENGTHSCALES[best])
    # Scale both given and learned noise variances.
    for part in twin.likelihood.modules():
        if isinstance(part, (HomoskedasticNoise, FixedGaussianNoise)):
            _set(part, "noise", part.noise, _NOISES[noise])
    return twin


def _penalty(t: Tensor, width: float, evidence: float) -> Tensor:
    return (t / width).square().log1p() + evidence * (t != 0.0)


def scaled_lengthscales(model: ExactGP) -> Callable[[Tensor], None]:
    """Return a function of ``t`` that sets lengthscales to ``exp(t)`` times the present values."""
    kernels = [
        part for part in model.modules() if isinstance(part, Kernel) and part.has_lengthscale
    ]
    given = [kernel.lengthscale.clone() for kernel in kernels]

    def scale(t: Tensor) -> None:
        for kernel, lengthscale in zip(kernels, given, strict=True):
            _set(kernel, "lengthscale", lengthscale, t)

    return scale


def costs_by_noise(model: ExactGP) -> Tensor:
    """Return the negative log likelihood of the data, up to a constant, for each noise factor.

    The factors are ``a = exp(t)`` for ``t`` in `_NOISES`. The result is in double precision on the
    CPU. Let ``K`` be the prior covariance of the objective at the training inputs, ``D`` the
    diagonal matrix of noise variances, and ``D^{-1/2} K D^{-1/2} = Q Lambda Q^T`` an
    eigendecomposition. Then ``K + a D = D^{1/2} (Q Lambda Q^T + a I) D^{1/2}``, so one
    eigendecomposition serves all factors.
    """
    prior = training_prior(model, dtype=torch.double)
    root = prior.noise.sqrt()
    values, vectors = torch.linalg.eigh(prior.covariance / (root.unsqueeze(-1) * root))
    squares = (vectors.mT @ (prior.deviation / root)).square()
    variances = values.clamp(min=0.0) + _NOISES.to(values).exp().unsqueeze(-1)
    return 0.5 * (squares / variances + variances.log()).sum(dim=-1).cpu()


def _set(part: Module, name: str, value: Tensor, t: Tensor) -> None:
    """Set the hyperparameter ``name`` of a module to ``value exp(t)``, within its constraint."""
    value = value * t.exp().to(value)
    constraint = getattr(part, f"raw_{name}_constraint", None)
    if constraint is not None:
        # At a bound the raw parameter would be infinite, so stay 0.1 % away from it.
        value = value.clamp(1.001 * constraint.lower_bound, 0.999 * constraint.upper_bound)
    setattr(part, name, value)
