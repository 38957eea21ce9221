"""Baselines of the calibration study: other remedies for a Gaussian process that is wrong.

Each keeps its problem's acquisition function and the optimiser of all methods, so that it
differs from plain BO in its model alone.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from botorch.acquisition.analytic import UpperConfidenceBound
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms.input import Warp
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from gpytorch.priors import LogNormalPrior
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from benchmarks.baselines import ClassifierDensityRatio, WeightedConformal, proposal_samples
from benchmarks.calibration.methods import ALPHA, CHEAP
from benchmarks.calibration.synthetic import StudyProblem
from benchmarks.calibration.warping import BoxCox, Family, Logarithm, OutcomeWarp, TanhSum, fit_warp
from benchmarks.framework.sequential import Method, Problem, Strategy
from benchmarks.framework.strategies import ACQUISITIONS, UCB_SCALE, AcquisitionStrategy
from benchmarks.framework.surrogates import Refitted, fit_gp
from botorch_calib import CalibratedModel, LocalizedConformal, QuantileRecalibrator

# Without noise the largest outcome is the value to improve upon.
SETTINGS: dict[str, Any] = {**CHEAP, "incumbent": "outcome"}

NUM_BAGS = 5
NUM_PROPOSALS = 256


def in_study(
    problem: Problem, seed: int, strategy: Callable[..., Strategy], **options: Any
) -> Strategy:
    """A strategy with the acquisition function that the problem's protocol names."""
    if not isinstance(problem, StudyProblem):
        raise TypeError(f"{problem.name!r} is not a problem of the calibration study.")
    return strategy(problem, seed, acquisition=problem.acquisition, **options)


def study_method(
    name: str, strategy: Callable[..., Strategy] = AcquisitionStrategy, **options: Any
) -> Method:
    """A method of the calibration study."""
    return Method(name, partial(in_study, strategy=strategy, **SETTINGS, **options))


@dataclass(frozen=True)
class WarpedInputs(Refitted):
    """A GP on inputs warped by Kumaraswamy's distribution function, fitted along with the rest.

    The priors of its parameters have median 1, which does not warp (Snoek et al. 2014); they
    are those that BoTorch's documentation uses.
    """

    def fit(self, X: Tensor, Y: Tensor, bounds: Tensor) -> SingleTaskGP:
        """The GP fitted to ``n x d`` points and ``n x 1`` outcomes."""
        dim = X.shape[-1]
        warp = Warp(
            d=dim,
            indices=list(range(dim)),
            concentration1_prior=LogNormalPrior(0.0, 0.75**0.5),
            concentration0_prior=LogNormalPrior(0.0, 0.75**0.5),
            bounds=X.new_tensor([[0.0] * dim, [1.0] * dim]),
        )
        return fit_gp(X, Y, bounds, warp=warp)


@dataclass
class InputWarpingStrategy(AcquisitionStrategy):
    """Input warping, with the schedule of fits of plain BO."""

    surrogate: WarpedInputs = WarpedInputs(every=5, at_first=10)

    def update_gp(self, X: Tensor, Y: Tensor) -> SingleTaskGP:
        """See `AcquisitionStrategy`."""
        step = X.shape[0] - self.problem.num_initial
        self.gp = self.surrogate(X, Y, self.problem.bounds_tensor(), step, self.gp)
        return self.gp


@dataclass
class OutcomeWarpingStrategy(AcquisitionStrategy):
    """A GP of transformed outcomes, refitted at each step together with the transform.

    The acquisition function is that of the transformed objective, which is as good a guide:
    the transform is increasing.
    """

    family: Family = Logarithm()
    warp: OutcomeWarp | None = field(default=None, init=False, repr=False)

    def fit(self, X: Tensor, Y: Tensor) -> Model:
        """Fit the transform, then the GP of the transformed outcomes."""
        self.warp = fit_warp(self.family, Y)
        # A new transform has new units, to which earlier hyperparameters do not apply.
        self.gp = None
        return super().fit(X, self.warp(Y))

    def propose(self, model: Model | None, X: Tensor, Y: Tensor) -> Tensor:
        """The maximiser of the acquisition function, ``1 x d``."""
        return super().propose(model, X, self._transformed(Y))

    def extras(self, model: Model | None, x: Tensor, y: Tensor) -> dict[str, float]:
        """The PIT and coverage, which no increasing transform changes; widths do not compare."""
        recorded = super().extras(model, x, self._transformed(y))
        return {name: recorded[name] for name in ("pit", "covered")}

    def objective_covered(self, model: Model | None, X: Tensor, f: Tensor) -> Tensor | None:
        """See `Strategy`; no increasing transform changes it."""
        return super().objective_covered(model, X, self._transformed(f))

    def _transformed(self, Y: Tensor) -> Tensor:
        if self.warp is None:
            raise ValueError("The transform has not been fitted.")
        return self.warp(Y)


class BaggedModel(Model):
    """A mixture of GPs, by the Gaussian distribution of its mean and variance, point by point.

    Args:
        gps: A batch of GPs, of batch shape ``m``.
    """

    def __init__(self, gps: SingleTaskGP) -> None:
        super().__init__()
        self.gps = gps

    @property
    def num_outputs(self) -> int:
        """One output."""
        return 1

    @property
    def batch_shape(self) -> torch.Size:
        """No batch: the members are mixed."""
        return torch.Size()

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> GPyTorchPosterior:
        """The distribution at ``batch_shape x q x d`` points; their correlations are left out."""
        if output_indices is not None or posterior_transform is not None:
            raise UnsupportedError("A bagged model has one output, without transforms.")
        members = self.gps.posterior(X.unsqueeze(-3), observation_noise=observation_noise)
        means, variances = members.mean.squeeze(-1), members.variance.squeeze(-1)
        variance = variances.mean(dim=-2) + means.var(dim=-2, correction=0)
        marginals = MultivariateNormal(means.mean(dim=-2), DiagLinearOperator(variance))
        return GPyTorchPosterior(marginals)


@dataclass
class BaggingStrategy(AcquisitionStrategy):
    """Five GPs of bootstrap samples of the data, fitted at each step."""

    def fit(self, X: Tensor, Y: Tensor) -> Model:
        """Resample and fit."""
        chosen = torch.randint(len(X), (NUM_BAGS, len(X)))
        return BaggedModel(fit_gp(X[chosen], Y[chosen], self.problem.bounds_tensor()))


@dataclass
class AdaptiveUCBStrategy(AcquisitionStrategy):
    r"""A-GP-UCB (Berkenkamp, Schoellig & Krause 2019): ever wilder functions are allowed for.

    Shrinking the lengthscale by ``g`` enlarges the class of functions, whose norm then grows
    by at most ``g^d``. So at evaluation ``t`` the fitted lengthscale is divided by
    ``g(t) = t^(growth / d)``, and the multiple of the standard deviation, at first that of plain
    UCB, is multiplied by ``g(t)^d = t^growth``. The paper leaves ``g`` to the user, up to a rate
    at which regret stays sublinear; it too replaces its initial lengthscale by the fitted one.
    On every problem the acquisition function is the upper confidence bound.
    """

    growth: float = 0.25

    def fit(self, X: Tensor, Y: Tensor) -> Model:
        """Make the GP and shrink its lengthscale; the unshrunk one is handed on."""
        gp = deepcopy(self.update_gp(X, Y))
        kernel = gp.covar_module.base_kernel
        shrinkage = self._evaluation(X) ** (self.growth / X.shape[-1])
        kernel.lengthscale = kernel.lengthscale.detach() / shrinkage
        return gp

    def propose(self, model: Model | None, X: Tensor, Y: Tensor) -> Tensor:
        """The maximiser of the bound, ``1 x d``."""
        assert model is not None
        multiple = UCB_SCALE * self._evaluation(X) ** self.growth
        return self.maximise(UpperConfidenceBound(model, beta=multiple**2))

    def _evaluation(self, X: Tensor) -> int:
        return X.shape[0] - self.problem.num_initial + 1


@dataclass
class ConformalStrategy(AcquisitionStrategy):
    """Conformal Bayesian optimization: weighted by where the plain GP would query next."""

    def fit(self, X: Tensor, Y: Tensor) -> Model:
        """Estimate the density ratio and replay the calibrator with it."""
        gp = self.update_gp(X, Y)
        plain = ACQUISITIONS[self.acquisition, False](gp, Y.max())
        proposals = proposal_samples(plain, self.problem.bounds_tensor(), NUM_PROPOSALS)
        ratio = ClassifierDensityRatio(gp.transform_inputs(X), gp.transform_inputs(proposals))
        calibrator = WeightedConformal(self.alpha, density_ratio=ratio)
        return CalibratedModel.from_history(gp, calibrator, self.problem.num_initial)

    @property
    def calibrated(self) -> bool:
        """The calibrator is made anew at each step."""
        return True


def study_methods() -> tuple[Method, ...]:
    """All methods of the calibration study, the baseline first."""
    return (
        study_method("bo"),
        study_method("locbo", calibrator=partial(LocalizedConformal, alpha=ALPHA)),
        study_method("ocbo", calibrator=QuantileRecalibrator),
        study_method("cbo", ConformalStrategy),
        study_method("input_warping", InputWarpingStrategy),
        study_method("output_warping", OutcomeWarpingStrategy, family=TanhSum()),
        study_method("box_cox", OutcomeWarpingStrategy, family=BoxCox()),
        study_method("logarithm", OutcomeWarpingStrategy, family=Logarithm()),
        study_method("bagging", BaggingStrategy),
        study_method("a_gp_ucb", AdaptiveUCBStrategy),
    )
