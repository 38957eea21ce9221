"""`sharpened`: a given process, with other noise and lengthscales where data contradict them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.likelihoods.noise_models import FixedGaussianNoise, HomoskedasticNoise
from gpytorch.models import ExactGP
from torch import Tensor

from botorch_calib._validation import check_nonnegative, check_positive
from botorch_calib.models.partly_known_noise import PartlyKnownNoiseLikelihood
from botorch_calib.models.process import likelihood_of, with_own_hyperparameters
from botorch_calib.models.training_prior import training_prior

# Logarithms of the factors that are compared, of noise variances and of lengthscales.
_NOISES, _LENGTHSCALES = (
    step * torch.arange(-most, most + 1, dtype=torch.double)
    for step, most in ((0.4, 12), (0.35, 6))
)
# Widths of their priors, chosen on the tuning seeds of suite `decisions_budget`.
NOISE_WIDTH, LENGTHSCALE_WIDTH = 0.4, 0.3
# What a correction has to gain: "very strong" evidence for Kass and Raftery (1995). If nothing is
# asked, right hyperparameters are changed now and then.
EVIDENCE = 5.0


@torch.no_grad()
def sharpened(
    model: Any,
    noise_width: float = NOISE_WIDTH,
    lengthscale_width: float = LENGTHSCALE_WIDTH,
    evidence: float = EVIDENCE,
) -> Any:
    r"""A copy of a model, its hyperparameters corrected where its data are clearly against them.

    For hyperparameters that were *given*, as those of another task, or noise that was reported with
    the data: a refit would forget what is known of them, and with few data find worse ones. Two
    factors are found, one of all noise variances and one of all lengthscales. Their logarithms
    ``t`` have Cauchy priors with median 0, proportional to ``1 / (1 + (t / width)^2)``, and a point
    mass at 0: each factor other than 1 has to gain ``evidence``, and once there is that much a
    large correction costs little more than a small one. The factors have the largest posterior
    density on a grid of 25 noises (from 1/120 to 120 times) by 13 lengthscales (from 1/8 to 8
    times), as there may be several local maxima.

    Sharpen the model *as it was given* each time, with all data so far, and not the last result,
    which has used most of them already. Every fifth round is enough. A model whose hyperparameters
    were fitted to these data gains nothing.

    Args:
        model: An exact Gaussian process with one output, with its training data. It is left as it
            is.
        noise_width: Width of the prior of the noises' factor.
        lengthscale_width: Width of the prior of the lengthscales'.
        evidence: By how much each factor other than 1 has to raise the logarithm of the posterior
            density; not negative.

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
            "`model` must be an exact Gaussian process with one noise variance or given ones, such "
            f"as SingleTaskGP, got {type(model).__name__} with {type(likelihood).__name__}."
        )
    noise_width = check_positive("noise_width", noise_width)
    lengthscale_width = check_positive("lengthscale_width", lengthscale_width)
    evidence = check_nonnegative("evidence", evidence)
    twin: Any = with_own_hyperparameters(model)
    twin.prediction_strategy = None  # that of the old hyperparameters
    set_lengthscales = scaled_lengthscales(twin)
    costs = []
    for t in _LENGTHSCALES:
        set_lengthscales(t)
        costs.append(costs_by_noise(twin) + _penalty(t, lengthscale_width, evidence))
    cost = torch.stack(costs) + _penalty(_NOISES, noise_width, evidence)
    best, noise = divmod(int(cost.argmin()), len(_NOISES))
    set_lengthscales(_LENGTHSCALES[best])
    # One variance, or given ones, and the one that may be learned beside these.
    for part in twin.likelihood.modules():
        if isinstance(part, (HomoskedasticNoise, FixedGaussianNoise)):
            _set(part, "noise", part.noise, _NOISES[noise])
    return twin


def _penalty(t: Tensor, width: float, evidence: float) -> Tensor:
    return (t / width).square().log1p() + evidence * (t != 0.0)


def scaled_lengthscales(model: Any) -> Callable[[Tensor], None]:
    """A function that sets all lengthscales to ``exp(t)`` times what they are now."""
    kernels = [
        part for part in model.modules() if isinstance(part, Kernel) and part.has_lengthscale
    ]
    given = [kernel.lengthscale.clone() for kernel in kernels]

    def scale(t: Tensor) -> None:
        for kernel, lengthscale in zip(kernels, given, strict=True):
            _set(kernel, "lengthscale", lengthscale, t)

    return scale


def costs_by_noise(model: Any) -> Tensor:
    """Negative log likelihood of the data for each of `_NOISES`, but for a constant.

    With noise variances ``D``, ``K + a D = D^{1/2} (Q Lambda Q^T + a I) D^{1/2}``.
    """
    prior = training_prior(model, dtype=torch.double)
    root = prior.noise.sqrt()
    values, vectors = torch.linalg.eigh(prior.covariance / (root.unsqueeze(-1) * root))
    squares = (vectors.mT @ (prior.deviation / root)).square()
    variances = values.clamp(min=0.0) + _NOISES.to(values).exp().unsqueeze(-1)
    return 0.5 * (squares / variances + variances.log()).sum(dim=-1).cpu()


def _set(part: Any, name: str, value: Tensor, t: Tensor) -> None:
    """Set a hyperparameter to ``value exp(t)``, or as near as its constraint allows."""
    value = value * t.exp().to(value)
    constraint = getattr(part, f"raw_{name}_constraint", None)
    if constraint is not None:
        # At the very bound its parameter would be infinite.
        value = value.clamp(1.001 * constraint.lower_bound, 0.999 * constraint.upper_bound)
    setattr(part, name, value)
