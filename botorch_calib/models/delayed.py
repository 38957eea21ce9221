"""`CensoredDelayModel`: a Gaussian process with imputed values at pending queries."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models.model import Model
from botorch.utils.datasets import SupervisedDataset
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.models import ExactGP
from torch import Tensor

from botorch_calib._validation import check_limit, check_one_of, check_positive
from botorch_calib.models.matching_rows import matching_rows
from botorch_calib.models.outcome_transforms import has_affine_outcomes, transform_name
from botorch_calib.models.process import batch_of_models, kind_of, like, observed_process
from botorch_calib.models.requirements import check_base, check_process
from botorch_calib.models.surrogate import Surrogate
from botorch_calib.models.wrapper import standardized_gp

if TYPE_CHECKING:
    from botorch_calib.ledger import FeedbackLedger

IMPUTATIONS = ("censor", "hallucinate", "none")
HYPERPARAMETERS = ("observed", "censored")

# A function that fits a model to inputs ``n x d`` and values ``n x 1``, and returns the model.
Fit = Callable[[Tensor, Tensor], Model]


class CensoredDelayModel(Surrogate):
    """A fitted model of the observed data, conditioned on imputed values at pending points.

    With ``imputation="censor"`` the posterior is the posterior of [Verma2022]_, eq. 1,

        mu(x) = k(x)^T (K + noise)^{-1} y~,  cov(x, x') = k(x, x') - k(x)^T (K + noise)^{-1} k(x'),

    where ``k(x, x')`` is the prior covariance of the objective, the matrix ``K`` contains this
    covariance for all pairs of queries, and the vector ``k(x)`` for each query and ``x``. ``y~``
    contains the observed values, and ``censor_value`` for each missing value. Censoring lowers the
    mean around pending points, so the search avoids these points. (The paper assumes the prior mean
    zero; here the model's prior mean is used.) With ``"hallucinate"`` the posterior mean replaces
    missing values, which shrinks the variance and leaves the mean unchanged, as in GP-BUCB. With
    ``"none"`` pending points are ignored.

    **Values that never arrive.** In a `FeedbackLedger`, a query expires if its value does not
    arrive within ``max_wait``. Expired queries remain censored, which biases the mean; `rescaling`
    corrects this bias. Hallucination ignores expired queries.

    The hyperparameters and transforms of ``model`` are used. ``model`` is not modified, except that
    `observe` updates the calibrator of a `CalibratedModel`. A `CalibratedModel` can wrap a
    `CensoredDelayModel` and vice versa, with equal posteriors. Calibrators learn from observed data
    only.

    Args:
        model: A fitted exact Gaussian process of the observed data with one output, a Gaussian
            likelihood and no batch dimensions, such as ``SingleTaskGP``; an ensemble, such as
            ``SaasFullyBayesianSingleTaskGP``; or a `CalibratedModel` of either.
        X_pending: Pending points ``n x d``, before any input transform.
        censor_value: The least value that the objective can take (for minimization, the greatest
            value), in units of the outcome. It is needed to censor pending points.
        imputation: Treatment of missing values: ``"censor"``, ``"hallucinate"`` or ``"none"``.

    Raises:
        UnsupportedError: If ``model`` is not supported, if it accounts for pending points already,
            or if values are hallucinated under a nonlinear outcome transform.
        InputDataError: If ``censor_value`` is missing, or not finite after the outcome transform.

    Example:
        >>> X_pending = torch.rand(3, 2, dtype=torch.double)
        >>> model = CensoredDelayModel(gp, X_pending, censor_value=-2.0)
        >>> acqf = LogExpectedImprovement(model, best_f=Y.max())

    .. [Verma2022]
        A. Verma, Z. Dai, B. K. H. Low. Bayesian optimization under stochastic delayed feedback.
        ICML 2022.
    """

    def __init__(
        self,
        model: Model,
        X_pending: Tensor | None = None,
        censor_value: float | None = None,
        imputation: str = "censor",
    ) -> None:
        self._check_model(model)
        if isinstance(model, CensoredDelayModel) or (
            isinstance(model, Surrogate) and len(model.X_pending)
        ):
            raise UnsupportedError(
                "`model` already accounts for pending points: add further ones by `with_pending`."
            )
        check_one_of("imputation", imputation, IMPUTATIONS)
        censor_value = check_limit("censor_value", censor_value)
        super().__init__(model, X_pending, censor_value, imputation)
        if message := self._missing_censor_value(self.X_pending):
            raise InputDataError(message)
        self._conditioned()  # raises if the model cannot be conditioned

    @classmethod
    def from_ledger(
        cls,
        ledger: FeedbackLedger,
        fit: Fit,
        imputation: str = "censor",
        hyperparameters: str = "observed",
        now: float | None = None,
    ) -> CensoredDelayModel:
        """Fit a model to the values in a ledger, and impute missing values.

        Censoring applies to pending and expired queries (``ledger.incomplete``). Hallucination
        applies to pending queries only (``ledger.pending``). With ``imputation="none"``, pending
        queries are stored, but ignored.

        Args:
            ledger: The ledger, whose ``censor_value`` is used.
            fit: A function that fits a model to inputs ``n x d`` and values ``n x 1``, both in
                double precision on the CPU, and returns the model.
            imputation: See the class.
            hyperparameters: The values to which ``fit`` is applied: ``"observed"`` for the observed
                values or, as in the paper, ``"censored"`` for ``ledger.training_data``, which
                includes censored values. In both cases, queries with an imputed value are pending
                points of the result, which can be resolved. No calibrator learns from such queries.
            now: Time on the ledger's clock at which the ledger is read (default: the current time).

        Raises:
            InputDataError: If fewer than two values have arrived, or if ``fit`` trains its model on
                other inputs.
            UnsupportedError: If ``hyperparameters="censored"`` and ``fit`` does not return an exact
                Gaussian process. To calibrate, wrap the `CensoredDelayModel` instead.
        """
        ledger = ledger.snapshot()  # consistent even if other processes write to the ledger
        now = ledger.now() if now is None else now
        model = fitted_model(ledger, fit, hyperparameters, now)
        pending = queries_to_impute(ledger, imputation, now)
        return cls(model, pending, ledger.censor_value, imputation)

    def rescaling(self, arrival_probability: float) -> ScalarizedPosteriorTransform:
        """Return a ``posterior_transform`` that removes the bias due to values that never arrive.

        At a point, let ``f`` be the objective, and let ``mu`` and ``sigma`` be its posterior mean
        and standard deviation under this model. Let ``c`` be the ``censor_value``, and ``rho`` the
        probability that a value arrives in time. By [Verma2022]_, Theorem 1, ``|mu - c - rho (f -
        c)| <= nu sigma``, where ``nu`` is the factor of `DelayedUpperConfidenceBound`. So ``f`` is
        within ``nu sigma / rho`` of ``c + (mu - c) / rho``. The transform divides ``mu - c`` and
        ``sigma`` by ``rho``. It changes predictions and expected improvement, but not the points
        that upper confidence bounds and Thompson sampling choose.

        The theorem assumes that the model's prior mean ``m`` is ``c``. Far from data, ``mu``
        approaches ``m``, and the rescaled mean approaches ``c + (m - c) / rho``. Therefore fit
        ``m`` to data that include censored values (``hyperparameters="censored"``), or set ``m`` to
        ``c``.

        Args:
            arrival_probability: The probability ``rho``, in (0, 1], such as the estimate by
                ``FeedbackLedger.arrival_probability``.

        Raises:
            UnsupportedError: If the model does not censor, or if its outcome transform is not
                affine. (Censoring shrinks the mean after the outcome transform.)
            InputDataError: If ``arrival_probability`` is not in (0, 1].

        Example:
            >>> model = CensoredDelayModel(gp, X[:3] / 2, censor_value=-2.0)
            >>> posterior = model.posterior(X, posterior_transform=model.rescaling(0.9))
        """
        if self.imputation != "censor" or self.censor_value is None:
            raise UnsupportedError(
                "Only a model with imputation='censor' and a `censor_value` can be rescaled."
            )
        if not has_affine_outcomes(self.model):
            raise UnsupportedError(
                f"The outcome transform {transform_name(self.model)} is not affine, and the mean "
                "shrinks in the space of the targets: apply it to the observations and "
                "`censor_value` beforehand, and let the model have Standardize or no transform."
            )
        rho = check_positive("arrival_probability", arrival_probability)
        if rho > 1.0:
            raise InputDataError(f"`arrival_probability` must be at most 1, got {rho!r}.")
        weight = like(self.model, torch.tensor([1.0 / rho], dtype=torch.double))
        return ScalarizedPosteriorTransform(weight, self.censor_value * (1.0 - 1.0 / rho))

    def resolve(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> CensoredDelayModel:
        """Return the model conditioned on values of pending points, which are no longer pending.

        This is `with_observations`, except that each row of ``X``, ``n x d``, must equal a
        different row of ``X_pending`` exactly. Any other row raises ``InputDataError``.
        """
        X = self._checked("X", X)
        for index, row in enumerate(matching_rows(X, self.X_pending)):
            if row is None:
                raise InputDataError(f"Row {index} of `X` is not pending: {X[index].tolist()}.")
        return self.with_observations(X, Y, Yvar)

    @classmethod
    def construct_inputs(
        cls,
        training_data: SupervisedDataset,
        X_pending: Tensor | None = None,
        censor_value: float | None = None,
        imputation: str = "censor",
    ) -> dict[str, Any]:
        """Return keyword arguments of the constructor, with an unfitted ``SingleTaskGP``.

        The process has the data ``training_data``.
        """
        return {
            "model": standardized_gp(**super().construct_inputs(training_data)),
            "X_pending": X_pending,
            "censor_value": censor_value,
            "imputation": imputation,
        }

    @staticmethod
    def _check_model(model: Model) -> None:
        process = observed_process(model)
        if kind_of(process) == "members":
            check_process(process)
        else:
            check_base(process, "CensoredDelayModel")
        if batch_shape := batch_of_models(process):
            raise UnsupportedError(
                "CensoredDelayModel needs a `model` without batch dimensions, got "
                f"{tuple(batch_shape)}."
            )


def queries_to_impute(ledger: FeedbackLedger, imputation: str, now: float | None) -> Tensor:
    """Return the ledger's queries ``n x d`` without a value, at which to impute values at ``now``.

    Expired queries are included only if ``imputation="censor"``.
    """
    return ledger.incomplete(now) if imputation == "censor" else ledger.pending(now)


def fitted_model(ledger: FeedbackLedger, fit: Fit, hyperparameters: str, now: float | None) -> Any:
    """Return a model of the ledger's observed data; see `CensoredDelayModel.from_ledger`.

    With ``hyperparameters="censored"``, the model is fitted to all data, and then keeps only the
    observed data.
    """
    check_one_of("hyperparameters", hyperparameters, HYPERPARAMETERS)
    X, Y = ledger.to_observations(now)
    if len(Y) < 2:
        raise InputDataError(
            f"`ledger` has {len(Y)} observed values, and fitting a model needs at least 2: until "
            "then, choose queries by a space-filling design."
        )
    is_censored = hyperparameters == "censored"
    if is_censored and ledger.censor_value is None:
        raise InputDataError("`hyperparameters='censored'` needs a `ledger` with a `censor_value`.")
    X_fit, Y_fit = ledger.training_data(now) if is_censored else (X, Y)
    model = fit(X_fit, Y_fit)
    if not isinstance(model, Model):
        raise InputDataError(
            f"`fit` must return a fitted BoTorch model, got {type(model).__name__}."
        )
    if not is_censored:
        return model
    rows = matching_rows(torch.cat([X, Y], dim=-1), torch.cat([X_fit, Y_fit], dim=-1))
    return _restricted(model, X_fit, [row for row in rows if row is not None])


def _restricted(model: Any, X: Tensor, rows: list[int]) -> Any:
    """Return a copy of a model that keeps only some rows of its training data.

    ``X``, ``n x d``, are the inputs to which the model was fitted, and ``rows`` are the indices of
    the rows to keep.
    """
    if not isinstance(model, ExactGP) or model.train_targets.dim() != 1:
        raise UnsupportedError(
            "`hyperparameters='censored'` needs `fit` to return an exact Gaussian process with one "
            f"output, got {type(model).__name__}. To calibrate, wrap the CensoredDelayModel: a "
            "calibrator must not see censored values."
        )
    twin = deepcopy(model)
    twin.train()  # in training mode `train_inputs` are the raw inputs
    (inputs,) = twin.train_inputs
    if inputs.shape != X.shape or not torch.equal(inputs, X.to(inputs)):
        raise InputDataError("`fit` must train its model on the given inputs, in their order.")
    twin.set_train_data(inputs[rows], twin.train_targets[rows], strict=False)
    if isinstance(twin.likelihood, FixedNoiseGaussianLikelihood):
        twin.likelihood.noise_covar.noise = twin.likelihood.noise_covar.noise[..., rows]
    return twin.eval()
