"""The Gaussian processes that a problem gives to its methods.

The model that methods use is part of a problem, so that a problem can have a model that is wrong in
a known way, to test calibration. A surrogate decides when hyperparameters are fitted, if ever.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

from botorch.exceptions import UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import GammaPrior
from torch import Tensor

from botorch_calib.models import sharpened, with_learned_spread
from botorch_calib.models.spread_likelihood import LearnedSpreadLikelihood


class Surrogate(Protocol):
    """Makes the GP of one step, which depends only on the arguments and torch's random state."""

    def __call__(
        self, X: Tensor, Y: Tensor, bounds: Tensor, step: int, previous: SingleTaskGP | None
    ) -> SingleTaskGP:
        """The GP of all data so far.

        Args:
            X: Points, ``n x d``.
            Y: Outcomes, ``n x 1``.
            bounds: The box, ``2 x d``.
            step: The number of evaluations after the initial ones.
            previous: The GP of the previous step, if any. It must not be used afterwards, as the
                new GP may share its parts.
        """


def fit_gp(X: Tensor, Y: Tensor, bounds: Tensor) -> SingleTaskGP:
    """Fit a Gaussian process with an isotropic Matern-5/2 kernel on the unit cube.

    The kernel has the former default priors of BoTorch's Matern kernel. Without priors, a fit to a
    few points often explains them as noise only, which would be an unfair baseline.

    Args:
        X: Points, ``batch_shape x n x d``; each batch gets hyperparameters of its own.
        Y: Outcomes, ``batch_shape x n x 1``.
        bounds: The box, ``2 x d``.
    """
    shape = X.shape[:-2]
    kernel = ScaleKernel(
        MaternKernel(nu=2.5, lengthscale_prior=GammaPrior(3.0, 6.0), batch_shape=shape),
        outputscale_prior=GammaPrior(2.0, 0.15),
        batch_shape=shape,
    )
    gp = on_unit_cube(X, Y, bounds, covar_module=kernel)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    return gp


def on_unit_cube(X: Tensor, Y: Tensor, bounds: Tensor, **parts: Any) -> SingleTaskGP:
    """Return an unfitted process with inputs scaled to the unit cube and standardised outcomes."""
    return SingleTaskGP(
        X,
        Y,
        input_transform=Normalize(X.shape[-1], bounds=bounds),
        outcome_transform=Standardize(1, batch_shape=X.shape[:-2]),
        **parts,
    )


def with_data(gp: SingleTaskGP, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> SingleTaskGP:
    """Return the same Gaussian process with other data, without fitting it.

    The outcome transform is kept too, as the hyperparameters are in its units.

    Args:
        gp: The process; its parts are shared with the result.
        X: Points, ``n x d``.
        Y: Outcomes, ``n x 1``.
        Yvar: Noise variances of ``Y``, ``n x 1`` (default: the likelihood of ``gp``).
    """
    transform = getattr(gp, "outcome_transform", None)
    if transform is not None:
        transform.eval()
        Y, Yvar = transform(Y, Yvar)
    other = SingleTaskGP(
        X,
        Y,
        Yvar,
        likelihood=gp.likelihood if Yvar is None else None,
        covar_module=gp.covar_module,
        mean_module=gp.mean_module,
        input_transform=getattr(gp, "input_transform", None),
        outcome_transform=None,
    )
    if transform is not None:
        # The constructor would fit the transform to the new data.
        other.outcome_transform = transform
    return other


@dataclass(frozen=True)
class Refitted:
    """A surrogate whose hyperparameters are fitted at each step, or only at some steps.

    Args:
        every: Number of steps between fits; in between, the last hyperparameters are used.
        at_first: Number of initial steps at each of which hyperparameters are fitted.
    """

    every: int = 1
    at_first: int = 0

    def __call__(
        self, X: Tensor, Y: Tensor, bounds: Tensor, step: int, previous: SingleTaskGP | None
    ) -> SingleTaskGP:
        if previous is None or step < self.at_first or step % self.every == 0:
            return self.fit(X, Y, bounds)
        return with_data(previous, X, Y)

    def fit(self, X: Tensor, Y: Tensor, bounds: Tensor) -> SingleTaskGP:
        return fit_gp(X, Y, bounds)


@dataclass(frozen=True)
class DefaultPriors(Refitted):
    """A refitted surrogate with BoTorch's default kernel and priors on the unit cube."""

    def fit(self, X: Tensor, Y: Tensor, bounds: Tensor) -> SingleTaskGP:
        gp = on_unit_cube(X, Y, bounds)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
        return gp


@dataclass(frozen=True)
class Fixed:
    """A surrogate with the outcome transform and the hyperparameters of a template, distorted.

    Args:
        template: Makes a Gaussian process with an isotropic ``ScaleKernel``.
        lengthscale_factor: Factor of the template's lengthscale.
        noise_factor: Factor of the template's noise variance.
    """

    template: Callable[[], SingleTaskGP]
    lengthscale_factor: float = 1.0
    noise_factor: float = 1.0

    def __call__(
        self, X: Tensor, Y: Tensor, bounds: Tensor, step: int, previous: SingleTaskGP | None
    ) -> SingleTaskGP:
        return with_data(self.distorted() if previous is None else previous, X, Y)

    def distorted(self) -> SingleTaskGP:
        """A copy of the template, with lengthscale and noise variance times their factors."""
        gp = deepcopy(self.template())
        kernel = gp.covar_module.base_kernel
        kernel.lengthscale = kernel.lengthscale.detach() * self.lengthscale_factor
        gp.likelihood.noise = gp.likelihood.noise.detach() * self.noise_factor
        return gp


@dataclass(frozen=True)
class NoiseRefitted:
    """A surrogate with given hyperparameters, except for the noise variance, which is fitted.

    Args:
        given: Makes the process with all hyperparameters as given.
        every: Number of steps between fits.
    """

    given: Fixed
    every: int

    def __call__(
        self, X: Tensor, Y: Tensor, bounds: Tensor, step: int, previous: SingleTaskGP | None
    ) -> SingleTaskGP:
        gp = self.given(X, Y, bounds, step, previous)
        if previous is None or step % self.every == 0:
            for name, parameter in gp.named_parameters():
                parameter.requires_grad_(name.startswith("likelihood."))
            fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
        return gp


@dataclass(frozen=True)
class Sharpened:
    """A surrogate with given hyperparameters, which `sharpened` corrects by the data so far.

    Args:
        given: Makes the process with all hyperparameters as given.
        every: Number of steps between corrections.
        settings: Arguments of `sharpened` after the model, in order.
    """

    given: Fixed
    every: int
    settings: tuple[float, float, float]

    def __call__(
        self, X: Tensor, Y: Tensor, bounds: Tensor, step: int, previous: SingleTaskGP | None
    ) -> SingleTaskGP:
        if previous is not None and step % self.every:
            return with_data(previous, X, Y)
        gp: SingleTaskGP = sharpened(self.given(X, Y, bounds, step, None), *self.settings)
        return gp


@dataclass(frozen=True)
class SpreadLearned:
    """A surrogate whose noise depends on the input and is learned from the data so far.

    The noise is not learned if the model is too smooth for it (see `with_learned_spread`).

    Args:
        given: Makes the process with one noise variance.
        every: Number of steps between updates of the noise. A process that was fitted in between
            learns its noise at once.
    """

    given: Surrogate
    every: int

    def __call__(
        self, X: Tensor, Y: Tensor, bounds: Tensor, step: int, previous: SingleTaskGP | None
    ) -> SingleTaskGP:
        gp = self.given(X, Y, bounds, step, previous)
        if step % self.every and isinstance(gp.likelihood, LearnedSpreadLikelihood):
            return gp
        try:
            learned: SingleTaskGP = with_learned_spread(gp)
        except UnsupportedError:
            return gp
        return learned
