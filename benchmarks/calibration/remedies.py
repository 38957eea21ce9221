"""Methods of suite `understated_noise`: what a user can do about standard errors that may be wrong.

All maximise log expected improvement over the largest posterior mean at the evaluated points, with
the settings of suite `misspecified`.

* ``plain``: the reported variances are taken for true.
* ``refit``: they are dropped, and a noise variance is fitted, with BoTorch's prior, from the
  reported one on.
* ``loo``: all variances of the Gaussian process, the objective's and the noise's, are multiplied by
  the mean square of its leave-one-out residuals.
* ``robust``: BoTorch's relevance pursuit adds variance to outcomes that it finds to be outliers.
* ``recalibrated``: the plain Gaussian process with `QuantileRecalibrator`, replayed.
* ``localized``: likewise with `LocalizedConformal`, as ``locbo`` of suite `misspecified`.
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

# Evaluations from one fit to the next, as in suite `misspecified`.
EVERY = 5


class Remedy(Protocol):
    """Makes another surrogate of the one that takes reported variances for true."""

    def __call__(self, reported: ReportedErrors) -> Surrogate:
        """The surrogate."""


@dataclass
class RemediedStrategy(AcquisitionStrategy):
    """An acquisition function of the Gaussian process that a remedy makes."""

    remedy: Remedy | None = None
    surrogate: Surrogate = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        reported = self.problem.surrogate
        if self.remedy is None or not isinstance(reported, ReportedErrors):
            raise ValueError("A remedy is needed, and a problem with reported errors.")
        self.surrogate = self.remedy(reported)

    def update_gp(self, X: Tensor, Y: Tensor) -> SingleTaskGP:
        step = X.shape[0] - self.problem.num_initial
        self.gp = self.surrogate(X, Y, self.problem.bounds_tensor(), step, self.gp)
        return self.gp


def fitted_noise(reported: ReportedErrors, every: int = EVERY) -> Surrogate:
    """The noise variance is fitted, the same for all outcomes, and all else is as it was."""
    return NoiseRefitted(Fixed(reported.template, noise_factor=reported.factor), every)


@dataclass(frozen=True)
class LeaveOneOutScaled:
    """All variances are multiplied by the mean square of leave-one-out residuals.

    This leaves the posterior mean as it is, and residuals of mean square 1.

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
    """Outliers get variance of their own (Ament et al. 2024), on top of what was reported.

    Fitted are the variances of outliers alone: the kernel is right. One outlier is the least, as
    BoTorch's fit needs a parameter; its variance may be zero. Between fits, new outcomes are no
    outliers. The predictive distribution of a new outcome has the mean of all variances, as is
    BoTorch's way with variances that differ.

    Args:
        reported: Makes the process without outliers.
        every: Steps from one fit to the next.
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
        """The variances ``n x 1`` of outliers, 0 for all else."""
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
            # That new points have no variance of their own, and how BoTorch reads a tensor.
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
    """A variance of transformed outcomes in squared units of the outcomes themselves."""
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
