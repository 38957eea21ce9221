"""`RecalibratedCdf`: the recalibration that experiments with OCBO ran, by regression on PITs."""

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

# Of residuals: farther out, scikit-learn takes probabilities for 0 or 1.
MAX_WIDTH = 7.0

# Maps probabilities, increasing, and their shares to nodes in (0, 1) and values there.
Regression = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def isotonic(probabilities: np.ndarray, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Isotonic regression [Kuleshov, Fenner and Ermon, 2018]."""
    nodes = np.unique(probabilities)
    return nodes, IsotonicRegression().fit(probabilities, shares).predict(nodes)


def gaussian_process(
    probabilities: np.ndarray, shares: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The mean of a Gaussian process at 19 levels, made to increase."""
    kernel = ConstantKernel() * RBF(0.3) + WhiteKernel(0.01)
    process = GaussianProcessRegressor(kernel, normalize_y=True)
    nodes = np.arange(1, 20) / 20
    with warnings.catch_warnings():
        # Few points often leave a hyperparameter at its bound.
        warnings.simplefilter("ignore", ConvergenceWarning)
        process.fit(probabilities[:, None], shares)
    return nodes, np.maximum.accumulate(process.predict(nodes[:, None]).clip(0.0, 1.0))


class RecalibratedCdf(Calibrator):
    r"""The distribution function ``R(F(y))`` of an observation [Deshpande2024, Algorithms 1 and 4].

    ``F`` is the model's distribution function, and ``R`` a regression of ``|{s: F_s <= p}| / N`` on
    ``p = F_t`` over a calibration set of ``N`` forecasts and outcomes. Between nodes, and towards
    (0, 0) and (1, 1) outside of them, ``R`` is linear, so that the distribution of a standardised
    observation consists of truncated normal pieces. The shares are increasing, so that isotonic
    regression keeps them: ``R`` is the empirical distribution function of the PITs, interpolated.

    Algorithm 4 names eq. 11, which states quantiles of the PITs, where the experiments name
    regressions (table 4). Without regularizer and linearization both agree, up to interpolation.

    The paper minimises. Its ``R`` keeps the mass ``1 / N`` below the least PIT, on the side of an
    improvement, and none above the greatest. Here everything is maximised: PITs are those of
    ``-y``.

    Args:
        regression: Fits ``R``.
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
        """Fit anew, with further members of the calibration set in any order."""
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
