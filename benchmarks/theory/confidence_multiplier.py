"""`confidence_multiplier`: the factor of the variance for which a confidence bound is proven."""

from __future__ import annotations

import math
from typing import Any

import torch
from botorch.models.model import Model
from torch import Tensor

from botorch_calib.models.outcome_transforms import unit_of_targets
from botorch_calib.models.process import predicting_process
from botorch_calib.models.training_prior import training_prior


@torch.no_grad()
def confidence_multiplier(
    model: Model, delta: float, noise_bound: float, norm_bound: float
) -> Tensor:
    r"""``beta`` for which ``mu +- sqrt(beta) sigma`` contains the objective everywhere, always.

    With probability at least ``1 - delta``, ``|mu(x) - f(x)| <= sqrt(beta) sigma(x)`` for all ``x``
    and after any number of observations, however queries are chosen, with

        ``sqrt(beta) = B + R / sqrt(lambda) sqrt(log det(I + K / lambda) + 2 log(1 / delta))``,

    the kernel's matrix ``K`` of the training inputs and the noise variance ``lambda`` of the model
    (Abbasi-Yadkori 2013, theorem 3.11; [Micheli2025wdrbo, lemma 1, eq. 7]). In the latter paper
    ``beta`` multiplies the standard deviation, which eq. 5 divides by ``sqrt(lambda)``; here it
    multiplies the variance of the Gaussian process, as in BoTorch's ``UpperConfidenceBound``. Half
    of the logarithm of the determinant is the information gain.

    The bound assumes that the kernel and the prior mean were not fitted to these data. If rows have
    different noise, ``I + K / lambda`` is ``I + D^{-1/2} K D^{-1/2}`` with the matrix ``D`` of
    variances, and ``lambda`` before the root is the smallest variance.

    * **Delays.** For Theorem 1 of [Verma2022]_ pass the `CensoredDelayModel`, whose matrix ``K``
      includes all queries, ``delta / 2`` and ``noise_bound = R + B_y``, where ``B_y`` bounds
      ``|y - censor_value|``. The paper's ``beta_t`` is larger: its root is of
      ``2 (gamma_{t-1} + 1 + log(2 / delta))``, with the largest gain of any ``t - 1`` queries
      instead of half the logarithm of the determinant, and with a 1 due to ``lambda =
      1 + 2 / T``. The paper assumes ``lambda > 1`` and therefore leaves out ``1 / sqrt(lambda)``.
      `DelayedRegret.root` follows the paper.
    * **Wasserstein radius.** ``sqrt(beta)`` bounds the norm of the posterior mean in lemma 3 of
      [Micheli2025wdrbo]: it is the ``norm_bound`` of `log_covering_number` in units in which the
      kernel is at most 1.

    Args:
        model: An exact Gaussian process with one output, or this package's wrapper of such a
            process. It may have one batch dimension.
        delta: Failure probability, in (0, 1).
        noise_bound: ``R``, in units of the outcome. The noise is ``R``-sub-Gaussian, such as normal
            noise with standard deviation ``R``.
        norm_bound: ``B``, bound of the norm of ``f`` minus the prior mean in the reproducing kernel
            Hilbert space of the kernel including its scale. It does not depend on units.

    Returns:
        ``beta``, of the batch shape, in the precision of the model.

    Example:
        >>> beta = confidence_multiplier(gp, delta=0.1, noise_bound=0.05, norm_bound=2.0)
        >>> acqf = UpperConfidenceBound(gp, beta=beta)
    """
    gp: Any = predicting_process(model)
    prior = training_prior(gp, torch.double, members=gp.train_targets.dim() > 1)
    root = prior.noise.sqrt()
    scaled = prior.covariance / root.unsqueeze(-1) / root.unsqueeze(-2)
    scaled.diagonal(dim1=-2, dim2=-1).add_(1.0)
    # Its eigenvalues are at least 1, so it needs no jitter unless their ratio exceeds 1e15.
    factor = torch.linalg.cholesky(scaled)
    log_det = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
    deviation = (root * unit_of_targets(gp).squeeze(-1).double()).amin(dim=-1)
    width = norm_bound + noise_bound / deviation * (log_det - 2.0 * math.log(delta)).sqrt()
    return width.square().to(gp.train_targets)
