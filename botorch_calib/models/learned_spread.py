"""`with_learned_spread`: learns from residuals how a process's noise depends on the input."""

from __future__ import annotations

import math

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.gpytorch import MultiTaskGPyTorchModel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.models import ExactGP
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_calib.models.process import likelihood_of, with_own_hyperparameters
from botorch_calib.models.sharpened_hyperparameters import costs_by_noise, scaled_lengthscales
from botorch_calib.models.spread_likelihood import LearnedSpreadLikelihood, SpreadNoise
from botorch_calib.models.training_prior import training_prior

# Prior of ``g``, the logarithm of a factor of the noise variance (see `with_learned_spread`):
# `LEVEL` is the variance of its level, `VARYING` are the variances that are tried for its variation
# around the level, and `CONSTANT` is the probability that ``g`` is constant.
LEVEL, VARYING, CONSTANT = 0.25, (0.5, 2.0), 0.5
# Larger residuals, in standard deviations, are clamped to this number, so an outlier has no more
# effect than a residual of this size.
_MOST_DEVIATIONS = 4.0
# Fisher scoring: `_STEPS` limits the number of steps, and `_HALVINGS` how often a step is halved.
# A step changes ``g`` by at most `_LONGEST` at each point. If a full step would change ``g`` by
# less than `_SHORTEST` everywhere, the search stops.
_STEPS, _LONGEST, _SHORTEST, _HALVINGS = 25, 2.0, 1e-3, 10
# A model is refused as too smooth if multiplying all its lengthscales by ``exp(_SHORTER)`` raises
# its log likelihood by more than `_GAIN`; otherwise it is accepted. (`sharpened` corrects
# lengthscales by this factor if the gain exceeds 7.3, a slightly lower limit.)
_SHORTER, _GAIN = -0.9, 8.0


@torch.no_grad()
def with_learned_spread(model: ExactGP) -> ExactGP:
    r"""Return a copy of a Gaussian process with input-dependent noise, learned from its data.

    The noise variance is ``sigma^2 exp g(x)``, where ``sigma^2`` is the process's noise variance.
    The leave-one-out residual of the ``i``-th observation is modelled as ``r_i ~ N(0, v_i + sigma^2
    exp g(x_i))``, where ``v_i`` is the predictive variance without noise. There are five hypotheses
    about ``g``. In the first, which has prior probability one half, ``g`` is a constant with prior
    variance 0.25. In the other four, ``g`` is a constant of this kind plus a Gaussian process with
    variance 0.5 or 2 and a lengthscale of 0.3 or 0.8 times ``sqrt(d)`` in the unit cube. The
    learned ``g`` is the average of the five posterior modes, weighted by their Laplace evidences,
    and clamped to [-5, 3]. A second round repeats this with residuals under the learned noise.

    The copy can be used like any BoTorch model. Later observations and
    ``posterior(X, observation_noise=True)`` have the learned noise at their own inputs. During a
    search, it is enough to learn the noise again every fifth round. Hyperparameters are not
    changed; a refit with the learned noise does not improve them. If ``sigma^2`` is about correct,
    ``likelihood.constant_probability`` is the posterior probability that the noise is constant.
    This number is also near 0 if there is no noise, or if ``sigma^2`` is ten times too large or too
    small.

    Args:
        model: An exact Gaussian process with one output, one noise variance and its training data,
            such as a fitted ``SingleTaskGP``. Its transformed inputs must be in the unit cube, as
            after ``Normalize``. The model is not changed, and shares its data with the copy.

    Raises:
        UnsupportedError: If the model is not supported, or if it is so smooth that the learned
            noise would compensate for its errors. A model is too smooth if 0.41 times its
            lengthscales make the data ``e^8`` times as likely, with the learned noise in both
            cases. Of models with lengthscales three times too long, 7, 73 and 98 % were refused at
            20, 40 and 80 data points. None of 2,400 models with correct lengthscales was refused.

    Example:
        >>> spread = with_learned_spread(gp)
        >>> noisy = spread.posterior(X, observation_noise=True)
    """
    likelihood = likelihood_of(model)
    served = type(likelihood) in (GaussianLikelihood, LearnedSpreadLikelihood)
    if not (served and isinstance(model, ExactGP)) or isinstance(model, MultiTaskGPyTorchModel):
        raise UnsupportedError(
            "`model` must be an exact Gaussian process of one task with one noise variance, such "
            f"as a SingleTaskGP made without `train_Yvar`, got {type(model).__name__} with "
            f"{type(likelihood).__name__}."
        )
    prior = training_prior(model, torch.double)
    twin = with_own_hyperparameters(model)
    twin.prediction_strategy = None  # was computed with the old noise
    level = twin.likelihood.noise_covar
    level = level.level if isinstance(level, SpreadNoise) else level
    value, spread = level.noise.double(), SpreadNoise(level, prior.inputs)
    kernels = torch.stack(spread.correlations(prior.inputs))
    varying = kernels.new_tensor(VARYING).unsqueeze(-1)
    added = (varying.unsqueeze(-1) * kernels.unsqueeze(1)).flatten(0, 1)
    priors = LEVEL + torch.cat([torch.zeros_like(added[:1]), added])
    modes = torch.zeros_like(priors[..., 0])
    for _ in range(2):  # the second time with residuals under the noise that was learned first
        noise = value * spread.g(prior.inputs).exp()
        cholesky = psd_safe_cholesky(prior.covariance + noise.diag_embed())
        variances = torch.cholesky_inverse(cholesky).diagonal().reciprocal()
        weighted = torch.cholesky_solve(prior.deviation.unsqueeze(-1), cholesky).squeeze(-1)
        of_objective = torch.maximum(variances - noise, 1e-6 * variances)
        residuals = variances * weighted
        modes, evidence = _posterior_modes(priors, residuals, of_objective, value, modes)
        evidence[0] += math.log(CONSTANT / (1.0 - CONSTANT) * len(added))
        probabilities = evidence.softmax(dim=0)
        weights = probabilities.unsqueeze(-1) * modes
        by_variance = varying * weights[1:].view(len(kernels), len(VARYING), -1)
        spread.shift, spread.weights = LEVEL * weights.sum(), by_variance.sum(dim=1)
        spread.constant_probability = probabilities[0]
    twin.likelihood = LearnedSpreadLikelihood(spread.to(twin.train_targets))
    _check_lengthscales(twin)
    return twin


def _posterior_modes(
    priors: Tensor, residuals: Tensor, variances: Tensor, noise: Tensor, start: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the posterior modes of ``g`` under ``h`` hypotheses, and the log evidences ``h``.

    The ``n`` residuals are modelled as ``N(0, variances + noise exp g)``. ``priors``, ``h x n x
    n``, contains the prior covariance of ``g`` for each hypothesis. A mode ``g = prior a`` is
    returned as ``a``, ``h x n``. Fisher scoring starts from ``start``, which contains values of
    ``a``. The priors are never inverted, since the covariance of a constant is singular. A step is
    halved while it lowers the posterior density: if residuals are far smaller than the noise, full
    steps oscillate around the mode.
    """
    squares = residuals.square().clamp_max(_MOST_DEVIATIONS**2 * (variances + noise))
    eye = torch.eye(len(squares)).to(priors)

    def density(a: Tensor, g: Tensor) -> Tensor:
        total = variances + noise * g.exp()
        return -0.5 * ((total.log() + squares / total).sum(dim=-1) + (a * g).sum(dim=-1))

    a, g = start, (priors @ start.unsqueeze(-1)).squeeze(-1)
    for _ in range(_STEPS):
        own = noise * g.exp()
        total = variances + own
        share = own / total
        root = share / math.sqrt(2.0)  # root of the Fisher information
        cholesky = torch.linalg.cholesky(eye + root.unsqueeze(-1) * priors * root.unsqueeze(-2))
        b = root.square() * g + 0.5 * (squares / total - 1.0) * share
        scaled = root.unsqueeze(-1) * (priors @ b.unsqueeze(-1))
        change = b - root * torch.cholesky_solve(scaled, cholesky).squeeze(-1) - a
        step = (priors @ change.unsqueeze(-1)).squeeze(-1)
        length = step.abs().amax(dim=-1, keepdim=True)
        if length.max() < _SHORTEST:
            break
        factor, before = (_LONGEST / length).clamp_max(1.0), density(a, g)
        for _ in range(_HALVINGS):
            is_lower = density(a + factor * change, g + factor * step) < before
            if not is_lower.any():
                break
            factor = torch.where(is_lower.unsqueeze(-1), 0.5 * factor, factor)
        a, g = a + factor * change, g + factor * step
    log_determinant = 2.0 * cholesky.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
    return a, density(a, g) - 0.5 * log_determinant


def _check_lengthscales(model: ExactGP) -> None:
    """Raise ``UnsupportedError`` if shorter lengthscales are much more likely, given the data.

    Both likelihoods are maximised over a factor of all noise variances (see `costs_by_noise`). In
    the end the model has its given lengthscales again.
    """
    given = [(parameter, parameter.clone()) for parameter in model.parameters()]
    cost = costs_by_noise(model).min()
    scaled_lengthscales(model)(torch.tensor(_SHORTER))
    gain = float(cost - costs_by_noise(model).min())
    for parameter, value in given:  # restored bit for bit
        parameter.copy_(value)
    if gain > _GAIN:
        raise UnsupportedError(
            f"`model` is too smooth: lengthscales {math.exp(_SHORTER):.2g} times as long raise the "
            f"log likelihood by {gain:.0f}, and noise would compensate for its errors. Fit its "
            "hyperparameters, or correct given hyperparameters first, by "
            "`with_learned_spread(sharpened(model))`."
        )
