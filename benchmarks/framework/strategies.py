"""Strategies: random search, and maximizing an acquisition function of a plain or calibrated GP.

Given the problem and the seed, each strategy is deterministic.

The problem's surrogate makes the Gaussian process of every model-based method, so that methods
differ only in calibration and acquisition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import NormalDist

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import (
    LogExpectedImprovement,
    LogProbabilityOfImprovement,
    UpperConfidenceBound,
)
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.optim import optimize_acqf
from botorch.posteriors import GPyTorchPosterior, Posterior
from botorch.utils.sampling import draw_sobol_samples
from torch import Tensor

from benchmarks.framework.replicate import SOBOL, stream_seed
from benchmarks.framework.sequential import Problem, posterior_mean
from botorch_calib import (
    CalibratedModel,
    CalibratedProbabilityOfImprovement,
    CalibratedUpperConfidenceBound,
    LogCalibratedExpectedImprovement,
)
from botorch_calib.calibration import Calibrator

CalibratorFactory = Callable[[], Calibrator]

# Quantile level of the upper confidence bound.
UCB_LEVEL = 0.9
# Number of standard deviations between the mean and this quantile of a Gaussian distribution.
UCB_SCALE = NormalDist().inv_cdf(UCB_LEVEL)


def optimize(
    acquisition: AcquisitionFunction,
    bounds: Tensor,
    num_restarts: int,
    raw_samples: int,
    maxiter: int | None = None,
) -> Tensor:
    """The maximiser of an acquisition function over the box, ``1 x d``."""
    candidate, _ = optimize_acqf(
        acquisition,
        bounds=bounds,
        q=1,
        num_restarts=num_restarts,
        raw_samples=raw_samples,
        options={} if maxiter is None else {"maxiter": maxiter},
    )
    return candidate.detach()


def prediction_extras(model: Model, x: Tensor, y: Tensor, alpha: float) -> dict[str, float]:
    """Return the PIT of ``y``, and the coverage and width of its prediction interval.

    ``covered`` is 1 if ``y`` (``1 x 1``) is inside the central ``1 - alpha`` interval that
    ``model`` predicts at ``x`` (``1 x d``), else 0. ``width`` is the length of this interval.
    """
    with torch.no_grad():
        posterior = model.posterior(x, observation_noise=True)
        pit = predictive_cdf(posterior, y).item()
        tails = torch.tensor([alpha / 2, 1 - alpha / 2], dtype=x.dtype, device=x.device)
        lower, upper = posterior.quantile(tails).flatten().tolist()
    covered = alpha / 2 <= pit <= 1 - alpha / 2
    return {"pit": pit, "covered": float(covered), "width": upper - lower}


@torch.no_grad()
def within_interval(model: Model, X: Tensor, f: Tensor, alpha: float) -> Tensor:
    """Whether values ``n x 1`` lie in the model's central ``1 - alpha`` intervals, ``n`` flags."""
    # Each point is a batch, as only marginal distributions are needed.
    posterior = model.posterior(X.unsqueeze(-2))
    tails = torch.tensor([alpha / 2, 1 - alpha / 2], dtype=X.dtype, device=X.device)
    lower, upper = posterior.quantile(tails).flatten(1)
    f = f.flatten()
    return (lower <= f) & (f <= upper)


def predictive_cdf(posterior: Posterior, y: Tensor) -> Tensor:
    """The distribution function of a posterior at ``y``, with the shape of the posterior mean."""
    if isinstance(posterior, GPyTorchPosterior):
        normal = torch.distributions.Normal(posterior.mean, posterior.variance.sqrt())
        return normal.cdf(y)
    cdf: Callable[[Tensor], Tensor] = posterior.cdf  # type: ignore[attr-defined]
    return cdf(y)


@dataclass(frozen=True)
class RandomStrategy:
    """Scrambled Sobol points, without a model."""

    problem: Problem
    seed: int

    def fit(self, X: Tensor, Y: Tensor) -> None:
        return None

    def propose(self, model: Model | None, X: Tensor, Y: Tensor) -> Tensor:
        step = X.shape[0] - self.problem.num_initial
        points = draw_sobol_samples(
            self.problem.bounds_tensor(), n=step + 1, q=1, seed=stream_seed(self.seed, SOBOL)
        )
        return points[step]

    def extras(self, model: Model | None, x: Tensor, y: Tensor) -> dict[str, float]:
        return {}

    def objective_covered(self, model: Model | None, X: Tensor, f: Tensor) -> None:
        return None


@dataclass
class AcquisitionStrategy:
    """A strategy that maximizes an acquisition function of the problem's GP, plain or calibrated.

    Args:
        problem: The problem.
        seed: The seed of the replicate.
        calibrator: Makes the calibrator; ``None`` for the plain GP.
        acquisition: ``"ei"``, ``"pi"`` or ``"ucb"``.
        incumbent: The value to improve on for ``"ei"`` and ``"pi"``: the largest ``"outcome"``, or
            the largest posterior ``"mean"`` at the evaluated points, which is less noisy.
        alpha: The coverage of central ``1 - alpha`` intervals is recorded.
        num_restarts: Number of starting points of the acquisition optimiser.
        raw_samples: Number of points from which the starting points are chosen.
        maxiter: Maximum number of iterations from each starting point (default: BoTorch's).
    """

    problem: Problem
    seed: int
    calibrator: CalibratorFactory | None = None
    acquisition: str = "ei"
    incumbent: str = "outcome"
    alpha: float = 0.2
    num_restarts: int = 4
    raw_samples: int = 128
    maxiter: int | None = None
    gp: SingleTaskGP | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.incumbent not in ("outcome", "mean"):
            raise ValueError(f"There is no incumbent {self.incumbent!r}.")
        if (self.acquisition, False) not in ACQUISITIONS:
            raise ValueError(f"There is no acquisition function {self.acquisition!r}.")

    def fit(self, X: Tensor, Y: Tensor) -> Model:
        gp = self.update_gp(X, Y)
        if self.calibrator is None:
            return gp
        return calibrate(gp, self.calibrator, self.problem.num_initial)

    def update_gp(self, X: Tensor, Y: Tensor) -> SingleTaskGP:
        step = X.shape[0] - self.problem.num_initial
        bounds = self.problem.bounds_tensor()
        self.gp = self.problem.surrogate(X, Y, bounds, step, self.gp)
        return self.gp

    def propose(self, model: Model | None, X: Tensor, Y: Tensor) -> Tensor:
        model = _fitted(model)
        best = posterior_mean(model, X).max() if self.incumbent == "mean" else Y.max()
        return self.maximise(ACQUISITIONS[self.acquisition, self.calibrated](model, best))

    def maximise(self, acquisition: AcquisitionFunction) -> Tensor:
        """The maximiser of any acquisition function over the problem's box, ``1 x d``."""
        return optimize(
            acquisition,
            self.problem.bounds_tensor(),
            self.num_restarts,
            self.raw_samples,
            self.maxiter,
        )

    @property
    def calibrated(self) -> bool:
        return self.calibrator is not None

    def extras(self, model: Model | None, x: Tensor, y: Tensor) -> dict[str, float]:
        return prediction_extras(_fitted(model), x, y, self.alpha)

    def objective_covered(self, model: Model | None, X: Tensor, f: Tensor) -> Tensor | None:
        return within_interval(_fitted(model), X, f, self.alpha)


def _fitted(model: Model | None) -> Model:
    if model is None:
        raise ValueError("An acquisition function needs a fitted model.")
    return model


def calibrate(gp: SingleTaskGP, calibrator: CalibratorFactory, num_initial: int) -> Model:
    """Return a GP with a new calibrator, which has learned from the GP's training data in order."""
    return CalibratedModel.from_history(gp, calibrator(), num_initial=num_initial)


def upper_confidence_bound(model: Model, best_f: Tensor) -> AcquisitionFunction:
    """BoTorch's upper confidence bound, at the quantile level of the calibrated one."""
    return UpperConfidenceBound(model, beta=UCB_SCALE**2)


def calibrated_ucb(model: Model, best_f: Tensor) -> AcquisitionFunction:
    """The upper confidence bound as a quantile of the calibrated posterior."""
    return CalibratedUpperConfidenceBound(model, level=UCB_LEVEL)


# Acquisition functions, by name and by whether the model is calibrated. Each function takes the
# model and the value to improve on.
ACQUISITIONS: dict[tuple[str, bool], Callable[[Model, Tensor], AcquisitionFunction]] = {
    ("ei", False): LogExpectedImprovement,
    ("ei", True): LogCalibratedExpectedImprovement,
    ("pi", False): LogProbabilityOfImprovement,
    ("pi", True): CalibratedProbabilityOfImprovement,
    ("ucb", False): upper_confidence_bound,
    ("ucb", True): calibrated_ucb,
}
