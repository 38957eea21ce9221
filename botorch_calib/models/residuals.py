"""One-step-ahead and leave-one-out residuals of a GP on its own training data, without refits.

A *standardised residual* is ``z = (y - mu) / s_y``, where ``mu`` and ``s_y`` are the predictive
mean and standard deviation of ``y`` (noise included): one step ahead, each observation predicted
from those before it (`prequential_residuals`), or leave-one-out, from all others
(`loo_residuals`). Both follow from one Cholesky factorisation. `forecast_history` gives, with
them, the inputs and the predictive deviations: what replaying and judging a history takes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.nn import Module

from botorch_calib._validation import check_one_of
from botorch_calib.models.training_prior import TrainingPrior, training_prior

#: Kinds of residuals of a history: one step ahead, and leave-one-out.
RESIDUALS = ("prequential", "loo")


@torch.no_grad()
def prequential_residuals(model: Module) -> Tensor:
    r"""One-step-ahead standardised residuals of a GP's own training data, in its order.

    With ``K + noise = L L^T``, the residuals are ``e = L^{-1} (y - mean)``: ``e_t`` equals
    ``(y_t - mu_t) / s_t``, with ``mu_t`` and ``s_t`` predicted from the observations before
    ``t`` alone. One Cholesky factorisation and one triangular solve replace ``n`` refits.

    The hyperparameters are the model's current ones at every step. The residuals live in
    the space of the model's targets: an increasing affine outcome transform such as
    ``Standardize`` leaves them unchanged, and any increasing one leaves ``pit`` unchanged.

    Args:
        model: An exact GP with one output and no batch dimension (such as
            ``SingleTaskGP``), in train or eval mode; it is left in the mode it was in.

    Returns:
        Residuals of shape ``n``, in the order of the training data, without gradient.

    Raises:
        UnsupportedError: If ``model`` is no exact GP, has several outputs, or is batched or an
            ensemble.
        InputDataError: If it has no training data.
    """
    return _whitened(*_factorized(training_prior(model)))


@torch.no_grad()
def loo_residuals(model: Module) -> Tensor:
    r"""Leave-one-out standardised residuals of a GP's own training data.

    ``z_i = [K^{-1} (y - mean)]_i / sqrt([K^{-1}]_ii)``, with ``K`` the prior covariance of
    the observations, noise included (Rasmussen & Williams 2006, eqs. 5.10-5.12): the
    numbers of ``botorch.cross_validation.efficient_loo_cv`` without the cancellation in
    ``y - mu_i``. This is OCBO's Algorithm 4 at the price of one factorisation.

    Args:
        model: An exact GP with one output and no batch dimension, in train or eval mode; it is
            left in the mode it was in.

    Returns:
        Residuals of shape ``n``, in the order of the training data, without gradient.

    Raises:
        UnsupportedError: If ``model`` is no exact GP, has several outputs, or is batched or an
            ensemble.
        InputDataError: If it has no training data.
    """
    return _left_out(*_factorized(training_prior(model)))[0]


class History(NamedTuple):
    """Forecasts of a GP's own training data, in its order, in the space of its targets."""

    inputs: Tensor  # n x d, transformed as the GP sees them
    residuals: Tensor  # n, standardised
    deviations: Tensor  # n, predictive standard deviations of the observations


@torch.no_grad()
def forecast_history(model: Module, residuals: str = "prequential") -> History:
    r"""Inputs, standardised residuals and predictive deviations of a GP's own training data.

    The deviations come with the residuals: ``L_tt`` one step ahead and
    ``1 / sqrt([K^{-1}]_ii)`` leave-one-out, so that the prediction's mean is
    ``y - deviation * residual``.

    Args:
        model: An exact GP with one output and no batch dimension, in train or eval mode; it is
            left in the mode it was in.
        residuals: ``"prequential"``: each observation is predicted from those before it;
            ``"loo"``: from all others.

    Raises:
        UnsupportedError: If ``model`` is no exact GP, has several outputs, or is batched or an
            ensemble.
        InputDataError: If it has no training data, or ``residuals`` is unknown.
    """
    check_one_of("residuals", residuals, RESIDUALS)
    prior = training_prior(model)
    cholesky, deviation = _factorized(prior)
    if residuals == "loo":
        return History(prior.inputs, *_left_out(cholesky, deviation))
    return History(prior.inputs, _whitened(cholesky, deviation), cholesky.diagonal().clone())


def _whitened(cholesky: Tensor, deviation: Tensor) -> Tensor:
    """``L^{-1} (y - mean)``, of length ``n``."""
    residuals: Tensor = torch.linalg.solve_triangular(cholesky, deviation, upper=False)
    return residuals.squeeze(-1)


def _left_out(cholesky: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
    """Leave-one-out residuals and deviations, each of length ``n``."""
    # K^-1 = L^-T L^-1, so its diagonal holds the sums of squares of the columns of L^-1. Left out,
    # y_i has the variance 1 / [K^-1]_ii and is missed by [K^-1 (y - mean)]_i / [K^-1]_ii.
    eye = torch.eye(cholesky.shape[-1], dtype=cholesky.dtype, device=cholesky.device)
    inverse: Tensor = torch.linalg.solve_triangular(cholesky, eye, upper=False)
    precision = inverse.square().sum(dim=-2)
    weighted = inverse.mT @ (inverse @ deviation)
    return weighted.squeeze(-1) / precision.sqrt(), precision.rsqrt()


def _factorized(prior: TrainingPrior) -> tuple[Tensor, Tensor]:
    """Cholesky factor ``n x n`` of ``K + noise`` and deviations ``y - mean`` as ``n x 1``."""
    cholesky = psd_safe_cholesky(prior.covariance + prior.noise.diag())
    return cholesky, prior.deviation.unsqueeze(-1)
