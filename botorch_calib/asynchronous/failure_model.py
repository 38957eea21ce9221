"""A model of failures: where queries bring values."""

from __future__ import annotations

import math

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor

from botorch_calib.robust.contexts import pairwise_distances

# Lengthscales to choose from, in units of the box, times the square root of the dimension.
LENGTHSCALES = (0.1, 0.2, 0.4, 0.8)

# Variance of a label about the model, in units of its prior variance: neighbours may differ.
NOISE = 1e-2

# Distance from a failure up to which a query is at its border, in units of the box, times the
# square root of the dimension.
BORDER = 0.1

# Width of the step from predicted failure to predicted success.
WIDTH = 0.1

# After so many lost evaluations the threshold of the prediction is half way from 1/2 to 1.
CAUTION = 4.0


def are_near(X: Tensor, failures: Tensor) -> Tensor:
    """Which of the points ``n x d`` of the unit cube are at the border of which of ``m``."""
    return pairwise_distances(X, failures) < BORDER * math.sqrt(X.shape[-1])


class Feasibility:
    r"""Predicts from values and failures whether a query brings a value.

    The label of a query is 1 if its value has arrived and 0 if it has failed. Labels are modeled by
    a Gaussian process with mean 1 (untried queries succeed) and an isotropic Matern-5/2 kernel over
    the unit cube, with the lengthscale of `LENGTHSCALES` that maximizes the likelihood. With the
    labels less 1 as ``r``, ``K`` their correlation matrix with `NOISE` on its diagonal, and
    ``k(x)`` the correlations with ``x``, the prediction is ``p(x) = 1 + k(x)' K^{-1} r``. The
    variance that maximizes the likelihood is ``r'K^{-1}r / n``, and the log likelihood then is, up
    to a constant, ``-n/2 log(r'K^{-1}r / n) - 1/2 log det K``.

    ``p`` comes near 1/2 half way between a value and a failure. The score of a query is

        ``Phi((p(x) - t) / 0.1)``  with  ``t = 1 - 1 / (2 (1 + F / 4))``

    after failures that cost ``F`` evaluations. At first the search halves the distance to a region
    that fails again and again, as the best point may lie on its border; the more has been lost, the
    closer to known values it stays.

    Of the queries ``X``, ``n x d``, at least one ``failed``: ``n`` booleans, or degrees from 0 to
    1. They cost the search so many evaluations (default: one each).
    """

    def __init__(
        self, X: Tensor, failed: Tensor, bounds: Tensor, cost: float | None = None
    ) -> None:
        self.bounds = bounds
        self.X = self._in_unit_cube(X)
        self.failures = self.X[failed.to(self.X) == 1.0]
        cost = float(failed.sum()) if cost is None else cost
        self.threshold = 1.0 - 0.5 / (1.0 + cost / CAUTION)
        residuals = -failed.to(self.X).unsqueeze(-1)
        lengthscales = self.X.new_tensor(LENGTHSCALES) * math.sqrt(X.shape[-1])
        K = _matern(pairwise_distances(self.X, self.X) / lengthscales.view(-1, 1, 1))
        K.diagonal(dim1=-2, dim2=-1).add_(NOISE)
        L = torch.linalg.cholesky(K)
        whitened = torch.linalg.solve_triangular(L, residuals, upper=False)
        variances = whitened.square().mean(dim=(-2, -1))
        log_roots = L.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
        best = int((-0.5 * len(X) * variances.log() - log_roots).argmax())
        self.lengthscale = float(lengthscales[best])
        self.weights = torch.linalg.solve_triangular(L[best].mT, whitened[best], upper=True)

    def _in_unit_cube(self, X: Tensor) -> Tensor:
        return (X - self.bounds[0]) / (self.bounds[1] - self.bounds[0])

    def predict(self, X: Tensor) -> Tensor:
        """The predicted label at ``X``, ``batch_shape x d``, of shape ``batch_shape``."""
        X = self._in_unit_cube(X.to(self.bounds))
        k = _matern(pairwise_distances(X, self.X) / self.lengthscale)
        return 1.0 + (k @ self.weights).squeeze(-1)

    def score(self, X: Tensor) -> Tensor:
        """The score of ``X``, ``batch_shape x d``: the share of a gain that counts, from 0 to 1."""
        return torch.special.ndtr((self.predict(X) - self.threshold) / WIDTH)

    def are_at_border(self, X: Tensor) -> Tensor:
        """Which of the points ``n x d`` are at the border of a failure."""
        return are_near(self._in_unit_cube(X), self.failures).any(dim=-1)

    def safest(self, X: Tensor) -> Tensor:
        """The one of the points ``n x d`` that is the most likely to bring a value, ``d``.

        Points at the border of a failure are passed over if there is another one.
        """
        near = self.are_at_border(X)
        return X[self.predict(X).masked_fill(near & ~near.all(), -math.inf).argmax()]


class FeasibleAcquisition(AcquisitionFunction):
    """An acquisition function for which a query that fails is as good as a ``poor`` value.

    An acquisition value ``a > poor`` becomes ``poor + s (a - poor)``, with the score ``s``.
    """

    def __init__(
        self, acqf: AcquisitionFunction, model: Model, feasibility: Feasibility, poor: float
    ) -> None:
        super().__init__(model=model)
        self.acqf = acqf
        self.feasibility = feasibility
        self.poor = poor

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        values: Tensor = self.acqf(X)
        gains = values - self.poor
        scores = self.feasibility.score(X.squeeze(-2)).to(values)
        return self.poor + torch.where(gains > 0.0, scores * gains, gains)


def _matern(distances: Tensor) -> Tensor:
    """Matern-5/2 correlations at distances in units of the lengthscale."""
    scaled = math.sqrt(5.0) * distances
    return (1.0 + scaled + scaled.square() / 3.0) * (-scaled).exp()
