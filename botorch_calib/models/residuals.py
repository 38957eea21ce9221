"""One-step-ahead and leave-one-out residuals of a GP's training data, without refits.

A *standardised residual* is ``z = (y - mu) / s_y``, where ``mu`` and ``s_y`` are the predictive
mean and standard deviation of ``y``. ``s_y`` includes the noise of a new observation.
"""

from __future__ import annotations

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.nn import Module

from botorch_calib._validation import check_one_of
from botorch_calib.models.training_prior import training_prior

#: Kinds of residuals of a history: one step ahead, and leave-one-out.
RESIDUALS = ("prequential", "loo")


def prequential_residuals(model: Module) -> Tensor:
    """Return one-step-ahead standardised residuals ``n`` of a GP's training data, in order.

    With ``K + noise = L L^T`` they are ``e = L^{-1} (y - mean)``. ``e_t`` equals ``(y_t - mu_t) /
    s_t``, where ``mu_t`` and ``s_t`` are predicted from the observations before ``t``, at the
    current hyperparameters. They are residuals of the model's targets; an increasing affine outcome
    transform such as ``Standardize`` does not change them. They have no gradient.

    ``model`` is an exact GP with one output and no batch dimension, such as ``SingleTaskGP``.

    Example:
        >>> z = prequential_residuals(gp)  # 20, standard normal if the model is correct
    """
    return forecast_history(model)[1]


def loo_residuals(model: Module) -> Tensor:
    """Return leave-one-out standardised residuals ``n`` of a GP's training data, in order.

    ``z_i = [K^{-1} (y - mean)]_i / sqrt([K^{-1}]_ii)``, where ``K`` is the prior covariance of the
    observations, including noise (Rasmussen & Williams 2006, eqs. 5.10-5.12). They equal the
    residuals of ``botorch.cross_validation.efficient_loo_cv``, but avoid the cancellation in
    ``y - mu_i``. This is OCBO's Algorithm 4 with a single factorisation. For ``model`` see
    `prequential_residuals`.

    Example:
        >>> z = loo_residuals(gp)  # 20, standard normal if the model is correct
    """
    return forecast_history(model, "loo")[1]


@torch.no_grad()
def forecast_history(
    model: Module, residuals: str = "prequential", members: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs, standardised residuals and predictive standard deviations of training data.

    The inputs, ``n x d``, are transformed. In the space of the targets, the predictive mean is
    ``y - deviation * residual``. An outlier-robust likelihood learns the noise of an observation
    from its value, so the noise of a new observation is used instead. With ``members`` the model is
    an ensemble of exact GPs, and residuals and deviations are ``num_members x n``; otherwise they
    are ``n``.
    """
    check_one_of("residuals", residuals, RESIDUALS)
    prior = training_prior(model, members=members)
    cholesky = psd_safe_cholesky(prior.covariance + prior.noise.diag_embed())
    deviation = prior.deviation.unsqueeze(-1)
    if residuals == "loo":
        # The predictive variance of y_i is v_i = 1 / [K^-1]_ii, and the residual is
        # v_i [K^-1 (y - m)]_i.
        precision = torch.cholesky_inverse(cholesky).diagonal(dim1=-2, dim2=-1)
        weighted = torch.cholesky_solve(deviation, cholesky).squeeze(-1)
        z, deviations = weighted / precision.sqrt(), precision.rsqrt()
    else:
        z = torch.linalg.solve_triangular(cholesky, deviation, upper=False).squeeze(-1)
        deviations = cholesky.diagonal(dim1=-2, dim2=-1)
    # Replace the row's learned noise by the noise that was predicted before the observation.
    ratio = (1.0 + (prior.new_noise - prior.noise) / deviations.square()).sqrt()
    return prior.inputs, z / ratio, deviations * ratio
