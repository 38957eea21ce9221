"""Density ratios of inputs, estimated from samples: the weights of `WeightedConformal`."""

from __future__ import annotations

import math

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from torch import Tensor
from torch.nn import Module

from botorch_calib._validation import check_inputs, check_positive, check_width


class ClassifierDensityRatio(Module):
    r"""Ratio ``p'(x) / p(x)`` of two densities, by classifying samples of both.

    Where both classes weigh the same, the logarithm of the ratio is the log-odds that a point
    is drawn from ``p'`` (Sugiyama, Suzuki & Kanamori 2012, chapter 4). They are fitted as a
    quadratic function by penalised logistic regression, which is exact for two Gaussian
    distributions. The terms ``x_i`` and ``x_i x_j`` are standardised, so the penalty does not
    depend on units; both classes get the weight of the smaller one.

    Args:
        X_past: Samples of ``p``, ``n x d``, in the base model's transformed input space.
        X_proposal: Samples of ``p'``, ``m x d``, in the same space.
        penalty: Factor of half the squared norm of the coefficients without the constant, on the
            scale of a sum over ``2 min(n, m)`` points.
        max_ratio: Largest ratio, and the inverse of the smallest; beyond, the gradient is zero.
            Quadratic functions extrapolate badly.
    """

    center: Tensor
    spread: Tensor
    constant: Tensor
    linear: Tensor
    quadratic: Tensor

    def __init__(
        self, X_past: Tensor, X_proposal: Tensor, penalty: float = 1.0, max_ratio: float = 100.0
    ) -> None:
        super().__init__()
        check_inputs("X_past", X_past)
        check_inputs("X_proposal", X_proposal, num_dims=X_past.shape[-1])
        if not len(X_past) or not len(X_proposal):
            raise InputDataError("`X_past` and `X_proposal` must hold at least one point each.")
        check_positive("penalty", penalty)
        self.max_ratio = check_positive("max_ratio", max_ratio)
        if self.max_ratio <= 1.0:
            raise InputDataError(f"`max_ratio` must exceed 1, got {max_ratio!r}.")
        fitted = _fit_quadratic(X_past.detach(), X_proposal.detach(), float(penalty))
        for name, value in fitted.items():
            self.register_buffer(name, value.to(X_past))

    def log_ratio(self, X: Tensor) -> Tensor:
        """Logarithm of the ratio at inputs ``... x d``, within ``+-log(max_ratio)``, ``...``."""
        check_width(X, self.center.shape[-1])
        u = (X.to(self.center) - self.center) / self.spread
        value = self.constant + ((u @ self.quadratic + self.linear) * u).sum(dim=-1)
        limit = math.log(self.max_ratio)
        return value.clamp(min=-limit, max=limit)

    def forward(self, X: Tensor) -> Tensor:
        """The ratio at ``X``: values of shape ``...`` for inputs ``... x d``."""
        return self.log_ratio(X).exp()

    def extra_repr(self) -> str:
        return f"d={len(self.center)}, max_ratio={self.max_ratio}"


def _fit_quadratic(X_past: Tensor, X_proposal: Tensor, penalty: float) -> dict[str, Tensor]:
    """The log-odds ``constant + linear u + u' quadratic u`` of standardised inputs ``u``."""
    samples = [points.double().cpu().numpy() for points in (X_past, X_proposal)]
    sizes, dim = [len(points) for points in samples], X_past.shape[-1]
    # Both classes get the weight of the smaller one: the prior odds are then 1, and the log-odds
    # are the logarithm of the ratio as they are.
    weights = np.repeat([min(sizes) / size for size in sizes], sizes)
    inputs, terms = StandardScaler(), StandardScaler()
    u = inputs.fit_transform(np.concatenate(samples), sample_weight=weights)
    u = PolynomialFeatures(2, include_bias=False).fit_transform(u)
    u = terms.fit_transform(u, sample_weight=weights)
    model = LogisticRegression(C=1.0 / penalty, solver="newton-cholesky", tol=1e-10, max_iter=1000)
    model.fit(u, np.repeat([0, 1], sizes), sample_weight=weights)
    # Back from standardised terms: the slopes are divided, the constant takes up the means.
    slopes = model.coef_[0] / terms.scale_
    quadratic = np.zeros((dim, dim))
    quadratic[np.triu_indices(dim)] = slopes[dim:]
    fitted = {
        "center": inputs.mean_,
        "spread": inputs.scale_,
        "constant": model.intercept_[0] - slopes @ terms.mean_,
        "linear": slopes[:dim],
        "quadratic": quadratic,
    }
    return {name: torch.as_tensor(value) for name, value in fitted.items()}
