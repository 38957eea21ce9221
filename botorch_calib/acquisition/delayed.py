"""Upper confidence bounds under delayed feedback, and their base class.

If pending queries are censored, the posterior mean is biased. Replacing the future value ``y_s`` of
a query ``x_s`` with the censoring value ``c`` moves the mean at ``x`` by

    ``(c - y_s) Cov(f(x), f(x_s)) / noise``, at most ``|y_s - c| sigma(x) sigma(x_s) / noise``,

where ``noise`` is the noise variance. The covariance and the standard deviations ``sigma`` are from
the posterior given all queries. The paper ([Verma2022]_, eq. 2) adds the factors of ``sigma(x)`` in
these bounds to the usual multiplier ``sqrt(beta)`` of ``sigma(x)``. In iteration ``t`` it sums them
over the queries of the last ``m`` iterations, ``s = max(1, t - m), ..., t - 1``. (In the paper the
sum starts at ``t - m``, which is before the first query if ``t <= m``.) Only queries without a
value cause a bias, so a sum over these queries gives a smaller multiplier that is also valid.

The tighter multiplier ``sqrt(sum_ij |S_ij|)``, with the covariance matrix ``S`` of the values
``f(x_s)``, did not help, because many censored values far below the mean change the mean
everywhere. So if many queries are pending, a `DelayAwareProposer` replaces their values with the
posterior mean (hallucination) instead of the censoring value.
"""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, Any, Self

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions import UnsupportedError
from botorch.models.gpytorch import MultiTaskGPyTorchModel
from botorch.models.model import Model
from botorch.utils import t_batch_mode_transform
from botorch.utils.transforms import average_over_ensemble_models, is_ensemble
from torch import Tensor

from botorch_calib._validation import check_flag, check_inputs, check_nonnegative, check_one_of
from botorch_calib.acquisition.base import sole_output
from botorch_calib.acquisition.pending_points import PendingPoints
from botorch_calib.models.predict import check_one_value_each, mean_and_deviation
from botorch_calib.models.process import like, observed_process, raw_width, with_task_feature
from botorch_calib.models.surrogate import Surrogate

if TYPE_CHECKING:
    from botorch_calib.ledger import FeedbackLedger

# Choices for the argument ``window`` of `from_ledger`, which explains them
WINDOWS = ("pending", "all", None)


@torch.no_grad()
def confidence_width(
    model: Model, beta: float, X_window: Tensor | None, feedback_bound: float
) -> Tensor:
    """The multiplier ``sqrt(beta) + feedback_bound * sum_s sigma(x_s)`` of [Verma2022]_, eq. 2.

    The sum is over the rows of ``X_window``, ``n x d``. The result has the model's batch shape, or
    is a scalar if the sum is 0.
    """
    if X_window is None or len(X_window) == 0 or feedback_bound == 0.0:
        return like(model, torch.tensor(beta**0.5, dtype=torch.double))
    # Each point is its own batch, so no joint covariance is formed. The batch dimensions of the
    # model must broadcast against the points; an ensemble adds its dimension itself.
    batch_dims = 0 if is_ensemble(model) else len(model.batch_shape)
    X = X_window.reshape(len(X_window), *[1] * batch_dims, 1, X_window.shape[-1])
    _, sigma = mean_and_deviation(model, X)
    return feedback_bound * sigma.squeeze(-1).squeeze(-1).sum(dim=0) + beta**0.5


class DelayAwareAcquisitionFunction(PendingPoints, ABC):
    """Base class that computes the multiplier ``nu`` and accepts further pending points.

    The constructor of a subclass must end with a call of `set_X_pending`, which computes ``nu``.
    The model is conditioned on the points that `set_X_pending` receives, and the sum in ``nu``
    includes them in addition to ``X_window``. So ``optimize_acqf(..., q=q, sequential=True)``
    chooses a batch as in the paper ([Verma2022]_, section 4). If ``X_window`` is None and the model
    does not censor (GP-BUCB, GP-BTS), ``nu`` stays ``sqrt(beta)``. For the arguments see
    `DelayedUpperConfidenceBound`.

    Attributes:
        nu: The multiplier of the standard deviation in [Verma2022]_, eq. 2, a scalar or in the
            model's batch shape.
    """

    model: Any  # a BoTorch model, with more attributes than ``Model`` declares
    nu: Tensor
    X_window: Tensor | None

    def __init__(
        self,
        model: Model,
        beta: float,
        X_window: Tensor | None,
        feedback_bound: float,
        posterior_transform: PosteriorTransform | None,
        maximize: bool,
    ) -> None:
        model = sole_output(type(self).__name__, model)
        super().__init__(model=model)
        self.beta = check_nonnegative("beta", beta)
        self.feedback_bound = check_nonnegative("feedback_bound", feedback_bound)
        self.posterior_transform = posterior_transform
        self.maximize = check_flag("maximize", maximize)
        if X_window is not None:
            X_window = self._points("X_window", X_window)
        self.register_buffer("X_window", X_window)
        self.register_buffer("nu", None)
        self._pending_model: Model | None = None  # conditioned on `X_pending`, if there are any

    @classmethod
    def from_ledger(
        cls,
        model: Model,
        ledger: FeedbackLedger,
        window: str | None = "pending",
        now: float | None = None,
        **kwargs: Any,
    ) -> Self:
        """Build the acquisition function with ``X_window`` taken from the queries of a ledger.

        Args:
            model: A model conditioned on all queries, as from `CensoredDelayModel.from_ledger`.
            ledger: The queries so far; ``maximize`` is taken from the ledger.
            window: Which queries enter the sum in the multiplier ``nu`` ([Verma2022]_).
                ``"pending"`` selects pending queries, which suffice for the paper's proof.
                ``"all"`` selects all queries of the last ``ledger.max_wait`` iterations or seconds,
                as in the paper. None selects no queries.
            now: Time at which the ledger is evaluated (default: the current time).
            kwargs: Further arguments of the constructor.
        """
        kwargs["maximize"] = ledger.checked_maximize(kwargs.get("maximize"))
        if check_one_of("window", window, WINDOWS) is None:
            return cls(model, **kwargs)
        X_window = ledger.pending(now) if window == "pending" else ledger.window(now)
        return cls(model, X_window=X_window, **kwargs)

    def _points(self, name: str, X: Tensor) -> Tensor:
        """Return points ``n x d`` as the model takes them, with the task column if it has one."""
        X = check_inputs(name, X, input_width(self.model))
        return like(self.model, with_task_feature(self.model, X))

    def _account_for(self, X_pending: Tensor | None) -> None:
        model, window = self.model, self.X_window
        if X_pending is not None:
            X_pending = self._points("X_pending", X_pending)
            if not isinstance(model, Surrogate) or model.imputation is None:
                raise UnsupportedError(
                    "`X_pending` needs a model that accepts pending points, such as "
                    f"CensoredDelayModel(model, censor_value=...), got a {type(model).__name__}."
                )
            if window is not None:
                window = torch.cat([window, X_pending])
            elif model.imputation == "censor":
                window = X_pending
            model = model.with_pending(X_pending)
        nu = confidence_width(model, self.beta, window, self.feedback_bound)
        self._prepare(model, nu, 0 if X_pending is None else len(X_pending))
        self._pending_model, self.nu = None if X_pending is None else model, nu

    def _prepare(self, model: Model, nu: Tensor, num_pending: int) -> None:
        """Compute attributes from a model that is conditioned on ``num_pending`` pending points.

        An implementation that raises an error must leave the attributes unchanged.
        """


def input_width(model: Model) -> int | None:
    """Number of columns of a model's inputs before any transform; None if unknown."""
    process = observed_process(model)
    # A multi-task model with one output accepts inputs with and without the task feature.
    return None if isinstance(process, MultiTaskGPyTorchModel) else raw_width(process)


class DelayedUpperConfidenceBound(DelayAwareAcquisitionFunction):
    """GP-UCB under delayed feedback (GP-UCB-SDF), [Verma2022]_, eq. 2.

    The value is ``mu(x) + nu sigma(x)``, with the posterior mean ``mu`` and standard deviation
    ``sigma``, ``nu = feedback_bound * sum_s sigma(x_s) + sqrt(beta)`` and the sum over the rows
    ``x_s`` of ``X_window``. For a `CensoredDelayModel` with ``imputation="censor"`` this is the
    paper's algorithm. Without ``X_window`` it is GP-UCB for any model, and GP-BUCB for a
    `CensoredDelayModel` with ``imputation="hallucinate"``.

    Args:
        model: A model with one output, conditioned on all queries, whose posterior has a mean and a
            variance. It may have batch dimensions; the values of an ensemble are averaged.
        beta: Factor of the variance without pending queries, as in BoTorch's
            ``UpperConfidenceBound``: the square of the paper's factor of ``sigma``.
        X_window: The queries ``x_s`` of the sum, ``n x d``: pending queries, or all queries of the
            last ``m`` iterations (see `from_ledger`). If it is None or empty, the sum is 0.
        feedback_bound: The factor of the sum, in reciprocal units of the outcome. Let ``B_y`` bound
            ``|y - censor_value|``. Then ``B_y`` divided by the noise variance covers the bias of
            censoring with certainty, but is large if there is little noise. The paper uses ``B_y``
            for outcomes scaled to a prior variance of at most 1. This corresponds to ``B_y / s**2``
            for outcomes with standard deviation ``s``. The default is the paper's value for
            feedback in [0, 1].
        posterior_transform: Affine transform of the outcome. It does not affect ``nu``.
        maximize: If False, the value is ``-(mu - nu sigma)``, and ``censor_value`` should be the
            greatest possible value instead of the least.
        X_pending: Points under evaluation, ``n x d``, on which the model is not yet conditioned.

    Raises:
        UnsupportedError: If the model has several outputs, or does not accept ``X_pending``.

    Example:
        >>> model = CensoredDelayModel(gp, X_pending=torch.rand(3, 2).double(), censor_value=-2.0)
        >>> acqf = DelayedUpperConfidenceBound(model, beta=1.0, X_window=model.X_pending)
    """

    def __init__(
        self,
        model: Model,
        beta: float = 1.0,
        X_window: Tensor | None = None,
        feedback_bound: float = 1.0,
        posterior_transform: PosteriorTransform | None = None,
        maximize: bool = True,
        X_pending: Tensor | None = None,
    ) -> None:
        super().__init__(model, beta, X_window, feedback_bound, posterior_transform, maximize)
        self.set_X_pending(X_pending)

    @t_batch_mode_transform(expected_q=1)
    @average_over_ensemble_models  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        model, transform = self._pending_model or self.model, self.posterior_transform
        moments = mean_and_deviation(model, X, transform)
        check_one_value_each(moments[0].shape[-2], X, type(self).__name__)
        mean, sigma = (moment.squeeze(-1).squeeze(-1) for moment in moments)
        return (mean if self.maximize else -mean) + self.nu * sigma
