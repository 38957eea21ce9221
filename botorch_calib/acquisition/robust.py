"""Acquisition functions for uncontrolled contexts whose distribution is only approximately known.

The value of a decision ``x`` is the worst expectation of a function ``u(x, c)`` over an ambiguity
set of distributions of the context ``c``. The functions take decisions ``b x 1 x d_x`` without
columns of contexts, and evaluate ``u`` at the contexts of a `ContextDistribution`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from botorch.acquisition.acquisition import AcquisitionFunction, MCSamplerMixin
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models.gpytorch import MultiTaskGPyTorchModel
from botorch.models.model import Model
from botorch.utils.transforms import is_ensemble, t_batch_mode_transform
from torch import Tensor

from botorch_calib._validation import check_flag, check_instance, check_nonnegative
from botorch_calib.acquisition.base import sole_output
from botorch_calib.acquisition.delayed import input_width
from botorch_calib.acquisition.pending_points import PendingPoints
from botorch_calib.models.process import (
    batch_of_models,
    observed_process,
    raw_train_inputs,
    raw_width,
    sole_member,
    training_points,
)
from botorch_calib.optim.robust_search import SMOOTHING, LipschitzBound
from botorch_calib.optim.scaled_search import is_logarithm
from botorch_calib.robust.contexts import ContextDistribution, as_distribution
from botorch_calib.robust.contextual_function import ContextualFunction
from botorch_calib.robust.gp.closed_form_bound import confidence_bound
from botorch_calib.robust.gp.pointwise_function import (
    PointwiseFunction,
    context_scale,
    pairs_per_chunk,
)
from botorch_calib.robust.joint_inputs import Columns
from botorch_calib.robust.sets.base import AmbiguitySet
from botorch_calib.robust.sets.wasserstein import WassersteinBall


class ContextRobustFunction(PendingPoints, ABC):
    """Base class of acquisition functions that are worst-case expectations over an ambiguity set.

    A subclass implements `_build`, which returns the function ``u(x, c)`` of a decision and a
    context whose expectation is taken.
    Pending points are not supported, as their contexts are unknown. ``model`` may be None;
    `RobustUpperConfidenceBound` explains the other arguments.
    """

    def __init__(
        self, model: Model | None, ambiguity: AmbiguitySet, contexts: ContextDistribution | Tensor
    ) -> None:
        name = type(self).__name__
        if model is not None and batch_of_models(model):
            kind = type(model).__name__
            raise UnsupportedError(f"{name} needs a single model, but this {kind} is a batch.")
        model = sole_member(model)
        super().__init__(model=model)
        check_instance("ambiguity", ambiguity, AmbiguitySet, "WassersteinBall(0.1)")
        self.ambiguity = at_observations(ambiguity, model)
        self.contexts = as_distribution(contexts)
        self.num_columns = None if model is None else input_width(model)
        if self.num_columns is not None:
            self._columns(self.num_columns)  # raises for invalid columns

    @property
    def X_baseline(self) -> Tensor:
        """Decisions of the model's training inputs, ``n x d_x``, without a task column.

        BoTorch's mixed searches perturb these points to obtain starts. Without this property they
        would perturb the training inputs, which have columns of contexts. BoTorch's option
        ``sample_around_best`` is not supported: it evaluates the model at decisions alone.
        """
        points = training_points(self.model)
        if not points:
            raise AttributeError("X_baseline")  # BoTorch then starts elsewhere
        return points[-1][:, self._columns(points[-1].shape[-1]).decision]

    def _account_for(self, X_pending: Tensor | None) -> None:
        refuse_pending(type(self).__name__, X_pending)

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        function, contexts = self.contextual_function(X), self._contexts_at(X)
        values = self.ambiguity.evaluate(function, X.reshape(-1, X.shape[-1]), contexts)
        return values.reshape(X.shape[:-2])

    @torch.no_grad()
    @t_batch_mode_transform(expected_q=1, assert_output_shape=False)  # type: ignore[arg-type]
    def worst_case_weights(self, X: Tensor) -> Tensor:
        """The worst distributions of the context at decisions ``b x 1 x d_x``.

        The result contains probabilities ``b x M`` of the atoms ``self.contexts.points``. The value
        of the acquisition function is the expectation under these probabilities. If several
        distributions attain the worst case, the result is one of them.

        Raises:
            UnsupportedError: If the set computes a bound without a distribution that attains it, as
                ``WassersteinBall(method="lipschitz")`` does.
        """
        contexts = self._contexts_at(X)
        values = self.contextual_function(X)(X.reshape(-1, X.shape[-1]), contexts.points)
        weights = self.ambiguity.worst_case_weights(values, contexts)
        return weights.reshape(*X.shape[:-2], contexts.num_points)

    def lipschitz_bound(self, bounds: Tensor) -> LipschitzBound | None:
        """Return the parts of ``E u(x, c) - radius max_c |grad_c u(x, c)|`` for `optimize_robust`.

        The result is None unless the set is a `WassersteinBall` with ``method="lipschitz"`` and a
        positive radius, as other values do not have this form. ``bounds``, ``2 x d_x``, determine
        the number of decision columns, the dtype and the device.
        """
        ball = self.ambiguity
        if not (isinstance(ball, WassersteinBall) and ball.needs_gradients and ball.radius > 0.0):
            return None
        contexts = self.contexts.to(bounds.dtype, bounds.device)
        function, others = self.contextual_function(bounds), contexts.lipschitz_points

        def smooth(X: Tensor) -> Tensor:
            values, steepness = function.with_steepness(
                X.squeeze(-2), contexts.points, others, smoothing=SMOOTHING
            )
            return contexts.expectation(values) - ball.radius * steepness

        return LipschitzBound(
            smooth=smooth,
            expectation=lambda X: contexts.expectation(function(X, contexts.points)),
            norms_with_slopes=function.norms_with_slopes,
            contexts=contexts.points if others is None else others,
            radius=ball.radius,
        )

    def _contexts_at(self, X: Tensor) -> ContextDistribution:
        """Check the number of columns of decisions ``X``, ``... x d_x``, and return the contexts.

        The contexts have the dtype and the device of ``X``.
        """
        if self.num_columns is not None:
            width = self.num_columns - self.contexts.points.shape[-1]
            if X.shape[-1] != width:
                raise BotorchTensorDimensionError(
                    f"`X` must have only the {width} columns of decisions, got {tuple(X.shape)}."
                )
        return self.contexts.to(X.dtype, X.device)

    def _columns(self, width: int) -> Columns:
        return columns_of(self.model, self.contexts, width)

    def contextual_function(self, X: Tensor) -> ContextualFunction:
        """Build the function ``u(x, c)``; only the number of columns of ``X`` is used."""
        width = self.num_columns or X.shape[-1] + self.contexts.points.shape[-1]
        return self._build(self._columns(width))

    @abstractmethod
    def _build(self, columns: Columns) -> ContextualFunction:
        """Build the function ``u(x, c)`` for the given columns of decisions and contexts."""


class RobustAcquisition(ContextRobustFunction):
    """Worst-case expectation of an acquisition function over a set of context distributions.

    The acquisition function takes single inputs (``q = 1``) that join a decision and a context. It
    is evaluated at all pairs of decisions and contexts, in chunks ``N x 1 x d``:

        >>> quantile = CalibratedUpperConfidenceBound(model, level=0.9)
        >>> acqf = RobustAcquisition(quantile, TotalVariationBall(0.1), contexts)

    The function's values are averaged over contexts unchanged, even if they are logarithms. With
    logarithms, contexts in which improvement is very unlikely dominate the expectation.

    Args:
        acquisition: The function to be maximised. It maps ``N x 1 x d`` to values ``N``, and each
            value depends on one row only. (``WassersteinBall(method="lipschitz")`` needs the
            norms of gradients with respect to contexts. The derivatives of these norms with respect
            to decisions are computed by finite differences. BoTorch's Monte Carlo functions vary
            too fast for finite differences, so they must be twice differentiable.)
        ambiguity, contexts: See `RobustUpperConfidenceBound`.

    Raises:
        UnsupportedError: If ``acquisition`` is not an acquisition function, if its model is a batch
            of models, or if the set has a schedule and the number of observations is unknown.
    """

    def __init__(
        self,
        acquisition: AcquisitionFunction,
        ambiguity: AmbiguitySet,
        contexts: ContextDistribution | Tensor,
    ) -> None:
        if isinstance(acquisition, Model) or not callable(acquisition):
            raise UnsupportedError(
                f"`acquisition` must be an acquisition function, got {type(acquisition).__name__}."
            )
        model = getattr(acquisition, "model", None)
        super().__init__(model, ambiguity, contexts)
        self.acquisition = acquisition
        self._log = is_logarithm(acquisition)

    def _build(self, columns: Columns) -> ContextualFunction:
        scale = None
        if not isinstance(self.acquisition, MCSamplerMixin):  # see the class docstring
            others = self.contexts.lipschitz_points
            points = self.contexts.points if others is None else others
            scale = context_scale(training_points(self.model), columns, points)
        return PointwiseFunction(self.acquisition, columns, scale, pairs_per_chunk(self.model))


class RobustUpperConfidenceBound(ContextRobustFunction):
    """Worst-case expectation of an upper confidence bound over a set of context distributions.

    The bound is ``mu + sqrt(beta) sigma``, with the posterior mean ``mu`` and standard deviation
    ``sigma`` at a joint input, and ``beta`` as in BoTorch. It has a closed form for exact Gaussian
    processes with a stationary radial kernel (see
    `botorch_calib.robust.gp.stationary_gp.is_stationary`), also inside a `CensoredDelayModel`, a
    `CalibratedModel` or both. For other models the bound is computed from the posterior.

    With ``beta=2.25``, these sets give the methods in the paper [Micheli2025wdrbo]:

    * WDRBO: ``WassersteinBall(radius, "lipschitz")``.
    * ERBO: ``WassersteinBall(0.0, "lipschitz")``.
    * SBO-KDE: the set of ERBO, with contexts from `ContextDistribution.kde`.
    * DRBO-KDE: `TotalVariationBall`, with contexts from `ContextDistribution.kde`.
    * StableOpt: `WorstCase`.

    Args:
        model: A model of decisions and contexts with one output and no batch dimensions.
        beta: Factor of the variance, at least 0; a number or a tensor with one element.
        ambiguity: The set of distributions of the context. A schedule of its radius is evaluated in
            the constructor, at the model's number of observations, without pending points.
        contexts: The centre of the set: a `ContextDistribution`, or observed contexts ``n x d_c``,
            which define an empirical distribution and belong to the last columns of the model's
            inputs. A `ContextDistribution` can name other columns, and points at which a Lipschitz
            constant is computed.
        maximize: If False, the bound is ``-mu + sqrt(beta) sigma``.
        posterior_transform: Affine transform of the outcome. If it is given, the closed form is
            not used.

    Raises:
        UnsupportedError: If the model has several outputs, is an ensemble or a batch of models, or
            if the set has a schedule and the number of observations is unknown.

    Example:
        >>> acqf = RobustUpperConfidenceBound(gp, 2.25, WassersteinBall(0.1), contexts)
        >>> values = acqf(torch.rand(5, 1, 1, dtype=torch.double))  # at five decisions
    """

    def __init__(
        self,
        model: Model,
        beta: float | Tensor,
        ambiguity: AmbiguitySet,
        contexts: ContextDistribution | Tensor,
        maximize: bool = True,
        posterior_transform: PosteriorTransform | None = None,
    ) -> None:
        name = type(self).__name__
        sole_output(name, model)
        if is_ensemble(model):
            raise UnsupportedError(
                f"{name} needs a single model, but {type(model).__name__} is an ensemble. Use "
                "RobustAcquisition with an acquisition function that averages over its members."
            )
        super().__init__(model, ambiguity, contexts)
        self.beta = check_nonnegative("beta", beta)
        self.maximize = check_flag("maximize", maximize)
        self.posterior_transform = posterior_transform

    def _build(self, columns: Columns) -> ContextualFunction:
        sign = 1.0 if self.maximize else -1.0
        return confidence_bound(self.model, columns, self.beta, sign, self.posterior_transform)


class WassersteinUpperConfidenceBound(RobustUpperConfidenceBound):
    """Wasserstein distributionally robust upper confidence bound [Micheli2025wdrbo, eq. 13].

    The value is ``sum_i w_i u(x, c_i) - radius * max_c |grad_c u(x, c)|_2`` with ``u = mu +
    sqrt(beta) sigma``, for contexts ``c_i`` with weights ``w_i``. If the maximum is over all
    contexts, the value is a lower bound of the expectation of ``u`` under each distribution in the
    ball. The class is `RobustUpperConfidenceBound` with ``WassersteinBall(radius,
    method="lipschitz")``. (The paper's factor multiplies ``sigma``, so the factor 1.5 in the paper
    is ``beta=2.25``. The paper's code omits the second term from the gradient.)

    Args:
        model, beta, maximize, posterior_transform: See `RobustUpperConfidenceBound`.
        radius: Radius of the `WassersteinBall`, in units of the contexts: a number, or a schedule
            such as `RadiusSchedule`. With 0 this is ERBO.
        contexts: The centre of the ball, see `RobustUpperConfidenceBound`.
        lipschitz_contexts: Contexts ``M' x d_c`` over which the gradient norm is maximised, in a
            second evaluation of the model (default: the ``lipschitz_points`` of ``contexts``, or
            the atoms if there are none). If the atoms are samples, the value may exceed the worst
            case.

    Example:
        >>> acqf = WassersteinUpperConfidenceBound(gp, beta=2.25, radius=0.1, contexts=contexts)
        >>> decision, value = optimize_robust(acqf, bounds[:, :1], num_restarts=2, raw_samples=16)

    .. [Micheli2025wdrbo]
        F. Micheli, E. C. Balta, A. Tsiamis, J. Lygeros. Wasserstein distributionally robust
        Bayesian optimization with continuous context. 2025.
    """

    def __init__(
        self,
        model: Model,
        beta: float | Tensor,
        radius: float | Tensor | Callable[[int], float],
        contexts: ContextDistribution | Tensor,
        lipschitz_contexts: Tensor | None = None,
        maximize: bool = True,
        posterior_transform: PosteriorTransform | None = None,
    ) -> None:
        ball, centre = WassersteinBall(radius, method="lipschitz"), as_distribution(contexts)
        if lipschitz_contexts is not None:
            centre = centre.with_lipschitz_points(lipschitz_contexts)
        super().__init__(model, beta, ball, centre, maximize, posterior_transform)


def refuse_pending(name: str, X_pending: Tensor | None) -> None:
    """Raise ``UnsupportedError`` if there are pending points; the message contains ``name``."""
    if X_pending is not None and X_pending.numel():
        raise UnsupportedError(
            f"{name} does not support `X_pending`, which lacks the contexts. Instead condition the "
            "model on decisions and contexts under evaluation: CensoredDelayModel(model, "
            "X_pending, ...)."
        )


def columns_of(model: Model | None, contexts: ContextDistribution, width: int) -> Columns:
    """Return the columns of decisions and contexts in joint inputs with ``width`` columns.

    Raises:
        InputDataError: If the columns of the contexts are wrong, or are those of tasks.
    """
    columns, process = Columns(width, contexts.points.shape[-1], contexts.indices), None
    if width == raw_width(model):  # otherwise a task column, if any, is added later
        process = observed_process(model)
    if isinstance(process, MultiTaskGPyTorchModel) and process._task_feature in columns.context:
        raise InputDataError(
            f"Contexts would fill column {process._task_feature} of the model's inputs, which "
            "names the task. Name their columns with `contexts.with_indices`; decisions then have "
            "the task column, which `fixed_features` can fix."
        )
    return columns


def at_observations(ambiguity: AmbiguitySet, model: Model | None) -> AmbiguitySet:
    """Return the set; a radius that is a schedule is evaluated at the number of observations.

    Pending points are not counted. If the number is unknown, ``UnsupportedError`` is raised.
    """
    if not ambiguity.is_scheduled:
        return ambiguity
    inputs = raw_train_inputs(model)  # without pending points
    if inputs is None:
        name = "an acquisition function without a model" if model is None else type(model).__name__
        raise UnsupportedError(
            f"`radius` is a function of the number of observations, which {name} does not have: "
            "give `ambiguity.at(t)` or a number as `radius`."
        )
    return ambiguity.at(inputs.shape[-2])
