"""Methods of suite `understated_noise`: remedies for standard errors that may be wrong.

All methods maximise log expected improvement over the largest posterior mean at the evaluated
points, with the settings of suite `misspecified`.

* ``plain``: the model trusts the reported variances.
* ``refit``: one noise variance is fitted with BoTorch's prior, starting from the reported variance.
* ``loo``: the variances of the objective and of the noise are multiplied by the mean square of the
  leave-one-out residuals.
* ``robust``: BoTorch's relevance pursuit adds variance to outcomes that look like outliers.
* ``recalibrated``: the plain Gaussian process with `QuantileRecalibrator`, replayed.
* ``localized``: the plain Gaussian process with `LocalizedConformal`, replayed, which is ``locbo``
  of suite `misspecified`.
"""

from __future__ import annotations

import math
import warnings
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from botorch.exceptions.warnings import InputDataWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.robust_relevance_pursuit_model import (
    FRACTIONS_OF_OUTLIERS,
    RobustRelevancePursuitSingleTaskGP,
)
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.calibration.methods import ALPHA, CHEAP, cheap
from benchmarks.calibration.understated import ReportedErrors
from benchmarks.framework.sequential import Method
from benchmarks.framework.strategies import AcquisitionStrategy
from benchmarks.framework.surrogates import Fixed, NoiseRefitted, Surrogate, with_data
from botorch_calib.calibration import LocalizedConformal, QuantileRecalibrator
from botorch_calib.models import loo_residuals

# Number of evaluations between fits, as in suite `misspecified`.
EVERY = 5


class Remedy(Protocol):
    """Makes a surrogate from the surrogate that trusts the reported variances."""

    def __call__(self, reported: ReportedErrors) -> Surrogate:
        """The surrogate."""


@dataclass
class RemediedStrategy(AcquisitionStrategy):
    """Maximizes an acquisition function of the Gaussian process that a remedy makes."""

    remedy: Remedy | None = None
    surrogate: Surrogate = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        reported = self.problem.surrogate
        if self.remedy is None or not isinstance(reported, ReportedErrors):
            raise ValueError("`remedy` is missing, or the problem has no reported errors.")
        self.surrogate = self.remedy(reported)

    def update_gp(self, X: Tensor, Y: Tensor) -> SingleTaskGP:
        step = X.shape[0] - self.problem.num_initial
        self.gp = self.surrogate(X, Y, self.problem.bounds_tensor(), step, self.gp)
        return self.gp


def fitted_noise(reported: ReportedErrors, every: int = EVERY) -> Surrogate:
    """A surrogate with one fitted noise variance; other hyperparameters do not change."""
    return NoiseRefitted(Fixed(reported.template, noise_factor=reported.factor), every)


@dataclass(frozen=True)
class LeaveOneOutScaled:
    """A surrogate with all variances multiplied by the mean square of leave-one-out residuals.

    The posterior mean does not change, and the new residuals have the mean square 1.

    Args:
        reported: Makes the process whose variances are scaled.
    """

    reported: ReportedErrors

    def __call__(
        self, X: Tensor, Y: Tensor, bounds: Tensor, step: int, previous: SingleTaskGP | None
    ) -> SingleTaskGP:
        factor = loo_residuals(self.reported(X, Y, bounds, step, None)).square().mean()
        scaled = deepcopy(self.reported.template())
        scaled.covar_module.outputscale = factor * scaled.covar_module.outputscale.detach()
        return with_data(scaled, X, Y, factor * self.reported.variances(X))


@dataclass(frozen=True)
class RelevancePursuit:
    """A surrogate that adds variance to the reported variance of outliers (Ament et al. 2024).

    Only the variances of outliers are fitted, since the kernel is right. There is at least one
    outlier, since BoTorch's fit needs a parameter; its added variance may be zero. Between fits,
    new outcomes are not outliers. The predictive distribution of a new outcome has the mean of all
    variances, as usual in BoTorch if variances differ.

    Args:
        reported: Makes the process without outliers.
        every: Number of steps between fits.
    """

    reported: ReportedErrors
    every: int = EVERY

    def __call__(
        self, X: Tensor, Y: Tensor, bounds: Tensor, step: int, previous: SingleTaskGP | None
    ) -> SingleTaskGP:
        template = self.reported.template()
        variances = self.reported.variances(X)
        if previous is None or step % self.every == 0:
            variances = variances + self.added(X, Y, variances)
        else:
            # In units of the transformed outcomes.
            kept = previous.likelihood.noise.unsqueeze(-1) * _unit(template)
            variances = torch.cat([kept, variances[len(kept) :]])
        return with_data(template, X, Y, variances)

    def added(self, X: Tensor, Y: Tensor, variances: Tensor) -> Tensor:
        """The added variances, ``n x 1``, which are 0 except for outliers."""
        template = deepcopy(self.reported.template())
        targets, given = template.outcome_transform(Y, variances)
        for module in (template.covar_module, template.mean_module):
            module.requires_grad_(False)
        gp = RobustRelevancePursuitSingleTaskGP(
            X,
            targets,
            given,
            covar_module=template.covar_module,
            mean_module=template.mean_module,
            input_transform=template.input_transform,
            outcome_transform=None,
        )
        numbers = {max(1, int(share * len(X))) for share in FRACTIONS_OF_OUTLIERS}
        with warnings.catch_warnings():
            # These warnings are about the variance of new points, and about BoTorch's own code.
            warnings.simplefilter("ignore", InputDataWarning)
            warnings.filterwarnings("ignore", message="Converting a tensor with requires_grad")
            fit_gpytorch_mll(
                ExactMarginalLogLikelihood(gp.likelihood, gp), numbers_of_outliers=sorted(numbers)
            )
            gp.train()
            with torch.no_grad():
                prior = gp(*gp.train_inputs)
                noisy = gp.likelihood(prior, gp.transform_inputs(*gp.train_inputs))
        noise = (noisy.variance - prior.variance).unsqueeze(-1)
        return (noise - given).clamp_min(0.0) * _unit(template)


def _unit(gp: SingleTaskGP) -> Tensor:
    """The factor that converts variances of transformed outcomes to squared outcome units."""
    transform: Any = gp.outcome_transform
    stdvs: Tensor = transform.stdvs.squeeze()
    return stdvs.square()


def remedied(name: str, remedy: Remedy) -> Method:
    """The plain method with another Gaussian process."""
    return Method(name, partial(RemediedStrategy, remedy=remedy, acquisition="ei", **CHEAP))


def compared() -> tuple[Method, ...]:
    return (
        cheap("plain"),
        remedied("refit", fitted_noise),
        remedied("loo", LeaveOneOutScaled),
        remedied("robust", RelevancePursuit),
        cheap("recalibrated", partial(QuantileRecalibrator, lengthscale=math.inf)),
        cheap("localized", partial(LocalizedConformal, alpha=ALPHA)),
    )
