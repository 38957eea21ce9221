"""Calibration of the tail above good values only, by a generalised normal residual.

The idea is from tcGP [Pion and Vazquez, Goal-oriented lower-tail calibration of Gaussian processes
for Bayesian optimization, ICML 2026, arXiv 2605.20145]. Without noise, the Gaussian process states
``f(x) = m(x) + s(x) R`` with a standard normal residual. Here ``R`` has the density

    ``beta / (2 lambda Gamma(1 / beta)) exp(-|r / lambda|^beta)``,

which is standard normal for ``beta = 2`` and ``lambda = sqrt(2)``. Only its tail beyond a threshold
``t`` matters. The paper has two requirements: values beyond ``t`` occur as often as stated, and
these values follow the stated distribution. The paper's procedure was not available. Here shape and
scale maximise the likelihood of the leave-one-out residuals, censored at ``t``: a value beyond
``t`` contributes its density, any other value the probability of not exceeding ``t``. This is a
proper score for exactly these two requirements [Diks, Panchenko and van Dijk 2011, J. of
Econometrics 163, eq. 14]. Log-normal priors around the normal distribution limit the influence of
few values. Everything is maximised, so the tail is the upper tail.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from botorch.acquisition.analytic import AnalyticAcquisitionFunction
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.utils.transforms import t_batch_mode_transform
from scipy.special import gamma, gammaincc, gammaln
from torch import Tensor

from benchmarks.framework.strategies import AcquisitionStrategy
from botorch_calib.models.residuals import forecast_history

# Above this, the closed form of the improvement would suffer from cancellation, so quadrature
# replaces it.
FAR = 4.0
NODES, WEIGHTS = np.polynomial.laguerre.laggauss(32)

# Prior standard deviation of the logarithms of shape and scale around the normal distribution.
PRIOR_DEVIATION = 0.5
SHAPES = np.geomspace(0.5, 8.0, 17)
SCALES = math.sqrt(2.0) * np.geomspace(0.1, 10.0, 61)
LEAST = 1e-300  # smallest probability inside a logarithm


class GeneralizedNormal(NamedTuple):
    """A generalised normal distribution around zero with ``shape`` beta and ``scale`` lambda."""

    shape: float = 2.0
    scale: float = math.sqrt(2.0)

    def survival(self, u: np.ndarray) -> np.ndarray:
        """``P(R > u)``."""
        return _survival(self.shape, self.scale, u)

    def log_improvement(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``log E (R - u)+`` and its derivative, accurate even if the expectation is tiny."""
        beta, r = self.shape, np.abs(u)
        w = (r / self.scale) ** beta
        far = (u > 0.0) & (w > FAR)
        mean = 0.5 * self.scale * gamma(2.0 / beta) / gamma(1.0 / beta)
        ahead = mean * gammaincc(2.0 / beta, w) - 0.5 * r * gammaincc(1.0 / beta, w)
        # By symmetry, E (R - u)+ = -u + E (R + u)+ for u < 0.
        near = np.where(u >= 0.0, ahead, r + ahead).clip(LEAST)
        # The integral over the tail, in v = |r / lambda|^beta - w, has the weight exp(-v).
        w = np.where(far, w, FAR)[..., None]
        density = (w + NODES) ** (1.0 / beta - 1.0)
        excess = w ** (1.0 / beta) * np.expm1(np.log1p(NODES / w) / beta)
        probability, integral = density @ WEIGHTS, (density * excess) @ WEIGHTS
        tail = np.log(0.5 * self.scale * integral / gamma(1.0 / beta)) - w[..., 0]
        slope = np.where(far, -probability / integral / self.scale, -self.survival(u) / near)
        return np.where(far, tail, np.log(near)), slope


def _survival(shape: float | np.ndarray, scale: float | np.ndarray, u: np.ndarray) -> np.ndarray:
    half = 0.5 * gammaincc(1.0 / shape, np.abs(u / scale) ** shape)
    return np.where(u >= 0.0, half, 1.0 - half)


@torch.no_grad()
def fitted_tail(model: SingleTaskGP, share: float) -> GeneralizedNormal:
    """The most probable tail, given a model's training data.

    Args:
        model: An exact Gaussian process with one output.
        share: Share of the outcomes that lie beyond the threshold. With a share of 1, the whole
            distribution is calibrated.
    """
    _, residuals, deviations = forecast_history(model, "loo")
    z, deviation, y = (v.numpy() for v in (residuals, deviations, model.train_targets))
    threshold = np.quantile(y, 1.0 - share)
    # The threshold in standard deviations from the leave-one-out prediction.
    u = (threshold - y) / deviation + z
    shape, scale = SHAPES[:, None, None], SCALES[:, None]
    density = np.log(0.5 * shape / scale) - gammaln(1.0 / shape) - np.abs(z / scale) ** shape
    below = np.log(_survival(shape, scale, -u).clip(LEAST))
    likelihood = np.where(y >= threshold, density, below).sum(axis=-1)
    prior = np.log(SHAPES[:, None] / 2.0) ** 2 + np.log(SCALES / math.sqrt(2.0)) ** 2
    posterior = likelihood - 0.5 * prior / PRIOR_DEVIATION**2
    row, column = np.unravel_index(posterior.argmax(), posterior.shape)
    return GeneralizedNormal(float(SHAPES[row]), float(SCALES[column]))


class LogTailExpectedImprovement(AnalyticAcquisitionFunction):
    """The logarithm of the expected improvement with a generalised normal residual.

    Args:
        model: A Gaussian process of a function without noise.
        tail: The distribution of its standardised residuals.
        best_f: The value to improve on.
    """

    def __init__(self, model: Model, tail: GeneralizedNormal, best_f: Tensor) -> None:
        super().__init__(model)
        self.tail = tail
        self.best_f: Tensor
        self.register_buffer("best_f", best_f)

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        mean, sigma = self._mean_and_sigma(X)
        assert sigma is not None
        u = (self.best_f - mean) / sigma
        value, slope = map(torch.from_numpy, self.tail.log_improvement(u.detach().numpy()))
        return (sigma.log() + value + slope * (u - u.detach())).squeeze(-1)


@dataclass
class TailStrategy(AcquisitionStrategy):
    """Expected improvement by a Gaussian process with a calibrated tail.

    Args:
        share: See `fitted_tail`.
    """

    share: float = 0.25
    tail: GeneralizedNormal = field(default=GeneralizedNormal(), init=False, repr=False)

    def fit(self, X: Tensor, Y: Tensor) -> Model:
        gp = self.update_gp(X, Y)
        self.tail = fitted_tail(gp, self.share)
        return gp

    def propose(self, model: Model | None, X: Tensor, Y: Tensor) -> Tensor:
        assert model is not None
        return self.maximise(LogTailExpectedImprovement(model, self.tail, Y.max()))

    def extras(self, model: Model | None, x: Tensor, y: Tensor) -> dict[str, float]:
        return {"shape": self.tail.shape, "scale": self.tail.scale}

    def objective_covered(self, model: Model | None, X: Tensor, f: Tensor) -> Tensor | None:
        return None

    def exceedance(self, model: Model, X: Tensor, level: Tensor) -> Tensor:
        """The stated probabilities ``n`` that values at ``n x d`` points exceed a level."""
        posterior: Any = model.posterior(X.unsqueeze(-2))
        mean, sigma = posterior.mean.flatten(), posterior.variance.sqrt().flatten()
        return torch.from_numpy(self.tail.survival(((level - mean) / sigma).numpy()))
