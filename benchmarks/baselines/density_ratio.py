"""Samples of the next query, and the ratio of its density to the density of past queries."""

from __future__ import annotations

import math

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.utils.sampling import draw_sobol_samples
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from torch import Tensor
from torch.nn import Module

# The largest logarithm of a ratio, since quadratic functions extrapolate badly.
_LARGEST_LOG = math.log(100.0)


class ClassifierDensityRatio(Module):
    r"""Ratio ``p'(x) / p(x)`` of two densities, from a classifier of their samples.

    If both classes have the same weight, the logarithm of the ratio is the log-odds that a point
    is drawn from ``p'`` (Sugiyama, Suzuki & Kanamori 2012, chapter 4). The log-odds are fitted as
    a quadratic function by penalised logistic regression, which is exact for two Gaussian
    distributions. The ratio is clipped to [1 / 100, 100].

    Args:
        X_past: Samples of ``p``, ``n x d``, in the base model's transformed input space.
        X_proposal: Samples of ``p'``, ``m x d``, in the same space.
    """

    center: Tensor
    spread: Tensor
    constant: Tensor
    linear: Tensor
    quadratic: Tensor

    def __init__(self, X_past: Tensor, X_proposal: Tensor) -> None:
        super().__init__()
        sizes, dim = [len(X_past), len(X_proposal)], X_past.shape[-1]
        # Both classes have the weight of the smaller one, so that the prior odds are 1.
        weights = np.repeat([min(sizes) / size for size in sizes], sizes)
        # The terms are standardised, so that the penalty does not depend on units.
        inputs, terms = StandardScaler(), StandardScaler()
        u = torch.cat([X_past, X_proposal]).detach().double().cpu().numpy()
        u = inputs.fit_transform(u, sample_weight=weights)
        u = PolynomialFeatures(2, include_bias=False).fit_transform(u)
        u = terms.fit_transform(u, sample_weight=weights)
        model = LogisticRegression(solver="newton-cholesky", tol=1e-10, max_iter=1000)
        model.fit(u, np.repeat([0, 1], sizes), sample_weight=weights)
        # Convert the coefficients from standardised terms to the original terms.
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
        for name, value in fitted.items():
            self.register_buffer(name, torch.as_tensor(value).to(X_past))

    def forward(self, X: Tensor) -> Tensor:
        """The ratio at ``X``: values of shape ``...`` for inputs ``... x d``."""
        u = (X.to(self.center) - self.center) / self.spread
        log_ratio = self.constant + ((u @ self.quadratic + self.linear) * u).sum(dim=-1)
        return log_ratio.clamp(-_LARGEST_LOG, _LARGEST_LOG).exp()


@torch.no_grad()
def proposal_samples(
    acq_function: AcquisitionFunction, bounds: Tensor, num_samples: int, seed: int = 0
) -> Tensor:
    """Points where an acquisition function is large, ``num_samples x d``, before any transform.

    The next query is a maximizer and has no density. Conformal Bayesian optimization replaces it
    by a distribution that favors large acquisition values, and draws from it by Langevin dynamics
    (Stanton, Maddox and Wilson 2023). This function draws with replacement from 1024 Sobol points
    of the box ``2 x d``. Their probabilities are proportional to ``exp(Z)`` for the standardized
    acquisition values ``Z``, as in BoTorch's ``initialize_q_batch``.
    """
    points = draw_sobol_samples(bounds, n=1024, q=1, seed=seed)
    values = acq_function(points).double()
    spread = values.std(unbiased=False).clamp(min=torch.finfo(torch.double).tiny)
    weights = ((values - values.max()) / spread).exp()
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.multinomial(weights, num_samples, replacement=True, generator=generator)
    return points.squeeze(-2)[chosen]
