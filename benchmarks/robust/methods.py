"""The methods of suite `robust`: one strategy, with different ambiguity sets and centres.

All methods except GP-UCB use the same Gaussian process of decisions and contexts, and maximise the
worst expectation of its upper confidence bound over an ambiguity set. They differ in the set and
its centre: observed contexts (WDRBO, ERBO), draws from a kernel density estimate of observed
contexts (the KDE methods), or observed contexts moved to the nearest point of a grid (the MMD
methods). GP-UCB ignores contexts, which act as noise.

The paper's beta of 1.5 multiplies the standard deviation, so it is 2.25 here. The paper has no
radii for balls in total variation or maximum mean discrepancy; here they equal the radii of
Wasserstein balls. The numbers of points of density estimates and grids are our choice, too.
StableOpt's box is the mean of the contexts plus and minus their standard deviation, cut at the
range of contexts.

The Lipschitz constant is the largest slope over draws from the whole range of contexts, since the
paper does not define the range. In problem `context_shift` this range extends to five standard
deviations of the stated distribution. The minimax approximation uses the sensitivity for the ball's
kernel, as it is defined; published code uses the identity instead, which makes the sensitivity much
smaller.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from botorch.acquisition import AcquisitionFunction, UpperConfidenceBound
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from torch import Tensor

from benchmarks.baselines import MMDBall
from benchmarks.framework.strategies import optimize
from benchmarks.robust.replicate import ContextualTask, History
from botorch_calib.acquisition import RobustUpperConfidenceBound, WassersteinUpperConfidenceBound
from botorch_calib.optim import optimize_robust
from botorch_calib.robust import (
    AmbiguitySet,
    ContextDistribution,
    TotalVariationBall,
    WassersteinBall,
    WorstCase,
)
from botorch_calib.test_functions import ContextualProblem

BETA = 1.5**2
LIPSCHITZ_DRAWS = 100
KDE_POINTS = 128

# Approximate numbers of points of grids over contexts: points to which mass may move (exact
# Wasserstein), atoms of distributions (MMD, exact and minimax), and contexts of StableOpt's box.
CANDIDATES = 36
MMD_POINTS, MINIMAX_POINTS = 36, 100
STABLE_POINTS = 36


@dataclass(frozen=True)
class Situation:
    """The arguments of an acquisition function other than the model.

    Args:
        contexts: Samples of the known distribution, ``m x d_c``.
        bounds: The box of the contexts, ``2 x d_c``.
        radius: The radius of the ambiguity set.
    """

    contexts: Tensor
    bounds: Tensor
    radius: float

    def empirical(self) -> ContextDistribution:
        """The distribution of the samples."""
        return ContextDistribution.empirical(self.contexts)

    def smoothed(self) -> ContextDistribution:
        """Draws from a density estimate of the samples, which differ between rounds."""
        seed = int(torch.randint(2**31, (1,)))
        return ContextDistribution.kde(self.contexts, self.bounds, KDE_POINTS, seed=seed)

    def gridded(self, num_points: int) -> ContextDistribution:
        """The samples, moved to the nearest point of a grid over the box."""
        points = grid(self.bounds, num_points)
        nearest = torch.cdist(self.contexts, points).argmin(dim=-1)
        counts = torch.bincount(nearest, minlength=len(points))
        return ContextDistribution(points, counts.to(points) / len(nearest))

    def with_candidates(self, num_points: int) -> ContextDistribution:
        """The distribution of the samples, with further grid points of weight 0."""
        return self.empirical().with_candidates(grid(self.bounds, num_points))


def grid(bounds: Tensor, num_points: int) -> Tensor:
    """A regular grid ``n x d`` over a box, with its boundary and at most ``num_points`` points."""
    dim = bounds.shape[-1]
    per_axis = math.floor(num_points ** (1.0 / dim) + 1e-9)
    unit = torch.linspace(0.0, 1.0, per_axis, dtype=bounds.dtype)
    points = torch.cartesian_prod(*[unit] * dim).reshape(-1, dim)
    return bounds[0] + (bounds[1] - bounds[0]) * points


def wasserstein(model: Model, situation: Situation) -> AcquisitionFunction:
    """WDRBO: the Lipschitz bound, with the largest slope over uniform draws of contexts."""
    lower, upper = situation.bounds
    unit = torch.rand(LIPSCHITZ_DRAWS, len(lower), dtype=lower.dtype)
    return WassersteinUpperConfidenceBound(
        model,
        beta=BETA,
        radius=situation.radius,
        contexts=situation.empirical(),
        lipschitz_contexts=lower + (upper - lower) * unit,
    )


def wasserstein_exact(model: Model, situation: Situation) -> AcquisitionFunction:
    """The exact Wasserstein ball of distributions on the samples and a grid."""
    contexts = situation.with_candidates(CANDIDATES)
    return robust(model, WassersteinBall(situation.radius, method="exact"), contexts)


def empirical_risk(model: Model, situation: Situation) -> AcquisitionFunction:
    """ERBO: the expectation under the distribution of the samples."""
    return expected(model, situation.empirical())


def smoothed_risk(model: Model, situation: Situation) -> AcquisitionFunction:
    """SBO-KDE: the expectation under draws from the density estimate."""
    return expected(model, situation.smoothed())


def total_variation(model: Model, situation: Situation) -> AcquisitionFunction:
    """DRBO-KDE: a ball in total variation around draws from the density estimate."""
    return robust(model, TotalVariationBall(situation.radius), situation.smoothed())


def mean_discrepancy(model: Model, situation: Situation) -> AcquisitionFunction:
    """DRBO-MMD: a ball in maximum mean discrepancy, on a grid."""
    return robust(model, MMDBall(situation.radius), situation.gridded(MMD_POINTS))


def mean_discrepancy_minimax(model: Model, situation: Situation) -> AcquisitionFunction:
    """DRBO-MMD Minimax: an approximation by the worst-case sensitivity, on a finer grid."""
    ball = MMDBall(situation.radius, method="minimax")
    return robust(model, ball, situation.gridded(MINIMAX_POINTS))


def worst_in_box(model: Model, situation: Situation) -> AcquisitionFunction:
    """StableOpt: the worst context of a box around the mean of the samples."""
    samples, (lower, upper) = situation.empirical(), situation.bounds
    box = torch.stack([samples.mean - samples.std, samples.mean + samples.std]).clamp(lower, upper)
    return robust(model, WorstCase(), ContextDistribution.empirical(grid(box, STABLE_POINTS)))


def expected(model: Model, contexts: ContextDistribution) -> AcquisitionFunction:
    """The expectation of the upper confidence bound over contexts."""
    return WassersteinUpperConfidenceBound(model, beta=BETA, radius=0.0, contexts=contexts)


def robust(
    model: Model, ambiguity: AmbiguitySet, contexts: ContextDistribution
) -> AcquisitionFunction:
    """The worst expectation of the upper confidence bound over an ambiguity set."""
    return RobustUpperConfidenceBound(model, beta=BETA, ambiguity=ambiguity, contexts=contexts)


@dataclass(frozen=True)
class RobustBO:
    """A method, defined by its acquisition function.

    Args:
        name: The name, unique within a suite.
        acquisition: Makes the acquisition function of a round; ``None`` for GP-UCB, which
            ignores contexts.
        num_restarts: Number of starts of the maximisation.
        raw_samples: Number of random points from which the starts are chosen.
        maxiter: The largest number of iterations.
    """

    name: str
    acquisition: Callable[[Model, Situation], AcquisitionFunction] | None
    num_restarts: int = 4
    raw_samples: int = 128
    maxiter: int = 100

    def start(self, task: ContextualTask, problem: ContextualProblem) -> RobustBOStrategy:
        return RobustBOStrategy(self, task, problem)

    def maximised(self, acquisition: AcquisitionFunction, bounds: Tensor) -> Tensor:
        """The maximiser over decisions, ``1 x d_x``."""
        return optimize(acquisition, bounds, self.num_restarts, self.raw_samples, self.maxiter)


@dataclass(frozen=True)
class LipschitzBO(RobustBO):
    """A method with the Lipschitz bound, whose kinks need another search."""

    def maximised(self, acquisition: AcquisitionFunction, bounds: Tensor) -> Tensor:
        """The maximiser by `optimize_robust`, which has its own stopping rule."""
        return optimize_robust(acquisition, bounds, self.num_restarts, self.raw_samples)[0]


@dataclass
class RobustBOStrategy:
    """The strategy of a `RobustBO`.

    Attributes:
        gp: The Gaussian process of the last fit.
    """

    settings: RobustBO
    task: ContextualTask
    problem: ContextualProblem
    gp: SingleTaskGP | None = field(default=None, init=False, repr=False)

    def fit(self, history: History, step: int) -> SingleTaskGP:
        X, bounds = history.X, self.problem.bounds
        if self.settings.acquisition is None:
            kept = self.problem.num_decisions
            X, bounds = X[:, :kept], bounds[:, :kept]
        self.gp = self.task.surrogate(X, history.Y, bounds, step, self.gp)
        return self.gp

    def propose(self, model: Model, history: History) -> Tensor:
        acquisition = self.acquisition_function(model, history)
        return self.settings.maximised(acquisition, self.problem.decision_bounds).squeeze(0)

    def acquisition_function(self, model: Model, history: History) -> AcquisitionFunction:
        """The acquisition function of this round."""
        if self.settings.acquisition is None:
            return UpperConfidenceBound(model, beta=BETA)
        situation = Situation(history.contexts, self.problem.context_bounds, history.radius)
        return self.settings.acquisition(model, situation)


def compared() -> tuple[RobustBO, ...]:
    return (
        LipschitzBO("wdrbo", wasserstein),
        RobustBO("wdrbo_exact", wasserstein_exact),
        RobustBO("erbo", empirical_risk),
        RobustBO("gp_ucb", None),
        RobustBO("sbo_kde", smoothed_risk),
        RobustBO("drbo_kde", total_variation),
        RobustBO("drbo_mmd", mean_discrepancy),
        RobustBO("drbo_mmd_minimax", mean_discrepancy_minimax),
        RobustBO("stable_opt", worst_in_box),
    )
