"""One-step-ahead and leave-one-out residuals of a GP's training data, without refits.

A *standardised residual* of an observation ``y`` is ``z = (y - mu) / s_y``, where ``mu`` and
``s_y`` are the mean and standard deviation that the GP predicts for ``y`` without having seen
``y``. ``s_y`` includes the noise of a new observation.
"""

from __future__ import annotations

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.nn import Module

from botorch_calib._validation import check_one_of
from botorch_calib.models.training_prior import training_prior

#: Kinds of residuals of training data: one-step-ahead, and leave-one-out.
RESIDUALS = ("prequential", "loo")


def prequential_residuals(model: Module) -> Tensor:
    """Return one-step-ahead standardised residuals ``n`` of a GP's training data, in order.

    Let ``y`` be the training targets, and ``L L^T`` their prior covariance, including noise.
    The residuals are ``e = L^{-1} (y - prior mean)``. ``e_t`` equals ``(y_t - mu_t) / s_t``, where
    the mean ``mu_t`` and the standard deviation ``s_t`` of ``y_t`` are predicted from the
    observations before ``t``, at the current hyperparameters. An increasing affine outcome
    transform such as ``Standardize`` does not change residuals. The result has no gradient.

    ``model`` is an exact GP with one output and no batch dimension, such as ``SingleTaskGP``.
    Unsupported models raise ``UnsupportedError``; without data, ``InputDataError`` is raised.

    Example:
        >>> z = prequential_residuals(gp)  # 20, standard normal if the model is correct
    """
    return forecast_history(model)[1]


def loo_residuals(model: Module) -> Tensor:
    """Return leave-one-out standardised residuals ``n`` of a GP's training data, in order.

    Let ``y`` be the training targets, and ``K`` their prior covariance, including noise. The
    residuals are ``z_i = [K^{-1} (y - prior mean)]_i / sqrt([K^{-1}]_ii)`` (Rasmussen & Williams
    2006, eqs. 5.10-5.12). They equal the residuals of
    ``botorch.cross_validation.efficient_loo_cv``, but avoid the cancellation in the difference of
    ``y_i`` and its predicted mean. This is Algorithm 4 of OCBO (Deshpande et al., 2024) with a
    single factorisation. For ``model`` and errors see `prequential_residuals`.

    Example:
        >>> z = loo_residuals(gp)  # 20, standard normal if the model is correct
    """
    return forecast_history(model, "loo")[1]


@torch.no_grad()
def forecast_history(
    model: Module, residuals: str = "prequential", members: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs, standardised residuals and predictive standard deviations of training data.

    The inputs, ``n x d``, are transformed. Residuals and deviations are ``n``; with ``members`` the
    model is an ensemble of exact GPs, and residuals and deviations are ``num_members x n``. The
    predictive mean of the training targets ``y`` is ``y - deviation * residual``. An outlier-robust
    likelihood learns the noise of an observation from the observed value, so the noise of a new
    observation at the same input is used instead.
    """
    check_one_of("residuals", residuals, RESIDUALS)
    prior = training_prior(model, members=members)
    cholesky = psd_safe_cholesky(prior.covariance + prior.noise.diag_embed())
    deviation = prior.deviation.unsqueeze(-1)
    if residuals == "loo":
        # With the covariance K of the observations and their prior mean m, the predictive variance
        # of y_i is v_i = 1 / [K^-1]_ii. The residual y_i - mu_i is v_i [K^-1 (y - m)]_i, and is
        # standardised by sqrt(v_i).
        precision = torch.cholesky_inverse(cholesky).diagonal(dim1=-2, dim2=-1)
        weighted = torch.cholesky_solve(deviation, cholesky).squeeze(-1)
        z, deviations = weighted / precision.sqrt(), precision.rsqrt()
    else:
        z = torch.linalg.solve_triangular(cholesky, deviation, upper=False).squeeze(-1)
        deviations = cholesky.diagonal(dim1=-2, dim2=-1)
    # Replace a row's learned noise with the noise that was predicted before the observation. This
    # changes the predictive variance, but not the predictive mean.
    ratio = (1.0 + (prior.new_noise - prior.noise) / deviations.square()).sqrt()
    return prior.inputs, z / ratio, deviations * ratio
