"""Thompson sampling under delayed feedback."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions import InputDataError, UnsupportedError
from botorch.models.model import Model
from botorch.posteriors import GPyTorchPosterior, TransformedPosterior
from botorch.sampling import pathwise
from botorch.sampling.pathwise.utils import get_train_inputs
from botorch.utils.transforms import is_ensemble, t_batch_mode_transform
from gpytorch.models import ExactGP
from linear_operator.operators import DiagLinearOperator
from linear_operator.utils.warnings import NumericalWarning
from torch import Size, Tensor
from torch.nn import Module

from botorch_calib._validation import check_count, check_inputs, check_width
from botorch_calib.acquisition.delayed import DelayAwareAcquisitionFunction, input_width
from botorch_calib.models.matching_rows import first_places
from botorch_calib.models.predict import check_one_value_each, mean_and_deviation, slots_of
from botorch_calib.models.process import like, with_own_hyperparameters
from botorch_calib.models.requirements import scalar_affine
from botorch_calib.models.sample_paths import CalibratedPath, noise_of_data, process_of_paths
from botorch_calib.optim.random_seeds import derived_seed, random_stream

# Number added to the diagonal of a covariance matrix, as a fraction of the largest variance. It
# usually makes the matrix positive definite despite rounding errors. It adds noise with a standard
# deviation of 3e-5 times the largest standard deviation.
JITTER = 1e-9


class DelayedThompsonSampling(DelayAwareAcquisitionFunction):
    """Thompson sampling under delayed feedback (GP-TS-SDF), [Verma2022]_, eq. 3.

    The value is one draw from ``GP(mu, nu^2 sigma^2)``, with the posterior mean ``mu``, the
    posterior variance ``sigma^2`` and the multiplier ``nu`` of `DelayedUpperConfidenceBound`:
    ``mu(x) + nu (f(x) - mu(x))`` for one draw ``f`` from the posterior. Each query needs a new
    instance with a new ``seed``. Without ``X_window``, ``nu = sqrt(beta)``. If ``beta`` is also 1,
    this is ordinary Thompson sampling, which is called asy-TS for a model that ignores pending
    points, and GP-BTS for a `CensoredDelayModel` with ``imputation="hallucinate"``.

    On a continuous domain the draw is a differentiable function, made by pathwise conditioning of a
    prior draw with 1024 random features. Over ``choices`` the draw is an exact joint draw.

    With a calibrated model ``nu`` widens the calibrated distribution about its mean. The proof that
    ``nu`` covers the bias of the mean due to censored queries applies to Gaussian processes only.

    Args:
        model: A model with one output and without batch dimensions. On a continuous domain it must
            be an exact Gaussian process with one task, a `CalibratedModel` of such a process with
            ``denoise=True``, or a combination of these with a `CensoredDelayModel`. Over
            ``choices`` any model whose posterior can be sampled jointly is supported.
        beta, X_window, feedback_bound, X_pending: See `DelayedUpperConfidenceBound`.
        choices: The points to choose from, ``n x d``, for ``optimize_acqf_discrete``. The function
            is then defined at these points only, and has no gradient.
        seed: Seed of the draw. The draw also depends on the number of points in ``X_pending``, and
            on whether the device is a GPU.
        posterior_transform: None or a ``ScalarizedPosteriorTransform`` with one weight.
        maximize: If False, the value is minus the draw.

    Raises:
        UnsupportedError: If the model has several outputs or batch dimensions, is an ensemble, or
            does not accept ``X_pending``. Without ``choices``, if pathwise conditioning does not
            support the model.
        InputDataError: If the function is evaluated at a point that is not one of ``choices``.

    Example:
        >>> model = CensoredDelayModel(gp, X_pending=torch.rand(3, 2).double(), censor_value=-2.0)
        >>> acqf = DelayedThompsonSampling(model, seed=len(Y))  # a new function in each round
    """

    choices: Tensor | None
    _values: Tensor | None

    def __init__(
        self,
        model: Model,
        beta: float = 1.0,
        X_window: Tensor | None = None,
        feedback_bound: float = 1.0,
        choices: Tensor | None = None,
        seed: int = 0,
        posterior_transform: PosteriorTransform | None = None,
        maximize: bool = True,
        X_pending: Tensor | None = None,
    ) -> None:
        super().__init__(model, beta, X_window, feedback_bound, posterior_transform, maximize)
        if self.model.batch_shape or is_ensemble(self.model):
            raise UnsupportedError(
                f"{type(self).__name__} needs a single model, not a batch or an ensemble."
            )
        self.seed = check_count("seed", seed, least=0)
        self._weight, self._offset = scalar_affine(posterior_transform, "a draw")
        if choices is not None:
            choices = like(model, check_inputs("choices", choices, input_width(self.model)))
            if len(choices) == 0:
                raise InputDataError("`choices` is empty.")
        self.register_buffer("choices", choices)
        self.register_buffer("_values", None)
        self._places = {} if choices is None else first_places(choices)
        self._path: Module | None = None
        self.set_X_pending(X_pending)

    def _prepare(self, model: Model, nu: Tensor, num_pending: int) -> None:
        seed = self.seed if num_pending == 0 else derived_seed(self.seed, num_pending)
        if self.choices is None:
            self._path = draw_path(model, nu, seed)
        else:
            mean, draw = draw_jointly(model, self.choices, seed)
            check_one_value_each(len(mean), self.choices, type(self).__name__)
            self._values = mean + nu * (draw - mean)

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        if self._path is not None:
            # A path is evaluated faster at one set of all points than at a batch of sets.
            draw = self._path(X.reshape(-1, X.shape[-1])).view(*X.shape[:-2], -1)
            check_one_value_each(draw.shape[-1], X, type(self).__name__)
            draw = draw.squeeze(-1)
        else:
            draw = self._drawn_at_choices(X)
        value = self._offset + self._weight * draw
        return value if self.maximize else -value

    def _drawn_at_choices(self, X: Tensor) -> Tensor:
        assert self.choices is not None and self._values is not None
        check_width(X, self.choices.shape[-1])
        points = X.to(self.choices).reshape(-1, X.shape[-1])
        places = [self._places.get(tuple(point)) for point in points.tolist()]
        if None in places:
            raise InputDataError(
                "`X` contains a point that is not one of `choices`: use `optimize_acqf_discrete`."
            )
        return self._values[places].reshape(X.shape[:-2])


@torch.no_grad()
def draw_path(model: Model, nu: Tensor, seed: int) -> Module:
    """Draw one function from the posterior, with deviations from the mean multiplied by ``nu``.

    ``nu`` is a scalar tensor. The function maps ``batch_shape x n x d`` to ``batch_shape x n``, in
    units of the outcome. It is drawn by pathwise conditioning (Wilson et al., Pathwise conditioning
    of Gaussian processes, JMLR 2021). If the prior covariance and the noise variance are multiplied
    by ``nu^2``, the posterior mean is unchanged, and deviations from it are multiplied by ``nu``.
    For a calibrated model, which has no such prior, deviations of the draw from the calibrated mean
    are multiplied.
    """
    gp = process_of_paths(model, "give `choices` to draw at these points")
    is_calibrated = slots_of(model).calibrator is not None
    factor = torch.ones_like(nu) if is_calibrated else nu
    # A draw uses the hyperparameters of the process, so it uses a copy that later fits do not
    # change. For a calibrated model, this package's method of `draw_matheron_paths` makes the copy.
    drawn_from = model if is_calibrated else with_own_hyperparameters(gp)

    def weights(shape: Size) -> Tensor:
        # Drawn on the CPU, since BoTorch moves the weights to the device of the features.
        return factor.cpu() * torch.randn(shape, dtype=torch.double, device="cpu")

    try:
        with random_stream(seed, nu.device):
            path = pathwise.draw_matheron_paths(
                drawn_from,
                sample_shape=Size(),
                prior_sampler=partial(pathwise.draw_kernel_feature_paths, weight_generator=weights),
                update_strategy=_scaled_update(gp, factor),
            )
    except NotImplementedError as error:
        raise UnsupportedError(
            "Draws on continuous domains need random features, which the kernel of this "
            f"{type(gp).__name__} does not have: give `choices` to draw at these points. ({error})"
        ) from error
    return _Widened(path, nu) if isinstance(path, CalibratedPath) else path


class _Widened(Module):
    """A draw from a calibrated model, with deviations from the mean multiplied by ``nu``."""

    nu: Tensor

    def __init__(self, path: CalibratedPath, nu: Tensor) -> None:
        super().__init__()
        self.path = path
        self.register_buffer("nu", nu)

    def forward(self, X: Tensor) -> Tensor:
        value, mean = self.path.with_mean(X)
        return mean + self.nu * (value - mean)


def _scaled_update(gp: ExactGP, nu: Tensor) -> Callable[..., pathwise.SamplePath]:
    """Return a function that conditions a prior draw, scaled by ``nu``, on the training data.

    The noise is also scaled by ``nu``. The covariance is factored once.
    """
    (points,) = get_train_inputs(gp, transformed=True)
    noise = noise_of_data(gp, points)
    return partial(
        pathwise.gaussian_update,
        noise_covariance=DiagLinearOperator(nu.square() * noise.diagonal()),
        # Not scaled: ``nu^2`` would cancel in ``k(x) (K + noise)^{-1}``, with the prior covariances
        # ``k(x)`` of a point with the training points, and ``K`` of the training points.
        scale_tril=(gp.covar_module(points) + noise).cholesky(),
    )


@torch.no_grad()
def draw_jointly(model: Any, X: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return the posterior mean at ``X`` (``n x d``) and one joint draw, both of shape ``n``.

    If the input transform turns each point into ``k`` points, their shape is ``n k``.
    """
    posterior = model.posterior(X)
    # BoTorch's posterior under a nonlinear outcome transform may lack a mean.
    is_transformed = isinstance(posterior, TransformedPosterior)
    mean: Tensor = mean_and_deviation(model, X)[0] if is_transformed else posterior.mean
    mean = mean.squeeze(-1)
    if type(posterior) is not GPyTorchPosterior:
        with random_stream(seed, X.device), warnings.catch_warnings():
            # GPyTorch warns of the jitter that close points need. The jitter has no visible effect.
            warnings.simplefilter("ignore", NumericalWarning)
            return mean, posterior.rsample(Size([1])).squeeze(0).squeeze(-1)
    covariance = posterior.distribution.covariance_matrix.double()
    jitter = JITTER * covariance.diagonal().amax()
    root, failed = torch.linalg.cholesky_ex(covariance + jitter * torch.eye(len(mean)).to(jitter))
    if failed:  # many close points: indefinite despite the jitter, so drop eigenvalues below 0
        values, vectors = torch.linalg.eigh(covariance)
        root = vectors * values.clamp_min(0.0).sqrt()
    # Drawn on the CPU, so that the numbers do not depend on the device
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(len(mean), dtype=torch.double, generator=generator).to(X.device)
    return mean, mean + (root @ normal).to(mean)
