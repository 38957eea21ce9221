"""`RecalibratedCdf`: the recalibration of OCBO's experiments, by regression on PITs."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.isotonic import IsotonicRegression
from torch import Tensor

from botorch_calib.calibration.base import Calibrator, check_residuals
from botorch_calib.distributions.piecewise import PiecewisePredictive

# Residuals are clipped here: farther out, scikit-learn treats probabilities as 0 or 1.
MAX_WIDTH = 7.0

# Maps increasing probabilities and their shares to nodes in (0, 1) and the values at the nodes.
Regression = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def isotonic(probabilities: np.ndarray, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Isotonic regression [Kuleshov, Fenner and Ermon, 2018]."""
    nodes = np.unique(probabilities)
    # scikit-learn joins probabilities that differ in the last digits, and may leave out the last.
    fitted = IsotonicRegression(out_of_bounds="clip").fit(probabilities, shares)
    return nodes, fitted.predict(nodes)


def gaussian_process(
    probabilities: np.ndarray, shares: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The mean of a Gaussian process at 19 levels, made monotone."""
    kernel = ConstantKernel() * RBF(0.3) + WhiteKernel(0.01)
    process = GaussianProcessRegressor(kernel, normalize_y=True)
    nodes = np.arange(1, 20) / 20
    with warnings.catch_warnings():
        # With few points a hyperparameter often ends at its bound.
        warnings.simplefilter("ignore", ConvergenceWarning)
        process.fit(probabilities[:, None], shares)
    return nodes, np.maximum.accumulate(process.predict(nodes[:, None]).clip(0.0, 1.0))


class RecalibratedCdf(Calibrator):
    r"""The distribution function ``R(F(y))`` of an observation [Deshpande2024, Algorithms 1 and 4].

    ``F`` is the model's distribution function, and ``R`` a regression of ``|{s: F_s <= p}| / N`` on
    ``p = F_t`` over a calibration set of ``N`` forecasts and outcomes. ``R`` is linear between
    nodes, and from the outer nodes to (0, 0) and (1, 1), so that the distribution of a standardised
    observation consists of truncated normal pieces. Isotonic regression does not change the shares,
    which increase: ``R`` is the interpolated empirical distribution function of the PITs.

    Algorithm 4 refers to eq. 11, which states quantiles of the PITs, whereas the experiments use
    regressions (table 4). Without regularizer and linearization both agree, up to interpolation.

    The paper minimises. Its ``R`` has the mass ``1 / N`` below the smallest PIT, where
    improvements are, and none above the largest PIT. Here everything is maximised, so PITs are
    computed from ``-y``.

    Args:
        regression: The function that fits ``R``.
    """

    max_width = MAX_WIDTH
    residuals: Tensor
    knots: Tensor
    masses: Tensor

    def __init__(self, regression: Regression = isotonic) -> None:
        super().__init__()
        self.regression = regression
        self.register_buffer("residuals", torch.zeros(0, dtype=torch.double))
        self.reset()

    def predictive(self, X: Tensor) -> PiecewisePredictive:
        knots = self.knots.to(X).expand(*X.shape[:-1], 1, -1)
        uniform = [False] * len(self.masses)
        return PiecewisePredictive(knots, self.masses.to(X), uniform, validate=self.num_updates > 0)

    @torch.no_grad()
    def update(self, X: Tensor, z: Tensor) -> PiecewisePredictive:
        """Add members to the calibration set, in any order, and fit again."""
        check_residuals(X, z)
        stated = self.predictive(X)
        self.residuals = torch.cat([self.residuals, z.to(self.residuals)])
        pits = torch.special.ndtr(-self.residuals.clamp(-MAX_WIDTH, MAX_WIDTH)).sort().values
        shares = torch.searchsorted(pits, pits, right=True) / len(pits)
        nodes, values = self.regression(pits.numpy(), shares.numpy())
        ends = np.concatenate([[0.0], values, [1.0]])
        self.knots = -torch.special.ndtri(torch.from_numpy(nodes)).flip(0)
        self.masses = torch.from_numpy(np.diff(ends)).flip(0)
        return stated

    def reset(self) -> None:
        self.residuals = self.residuals.new_zeros(0)
        self.knots, self.masses = self.residuals.new_zeros(0), self.residuals.new_ones(1)

    @property
    def num_updates(self) -> int:
        return len(self.residuals)
