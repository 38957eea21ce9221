"""`CensoredDelayModel`: a Gaussian process that takes account of pending queries."""

from __future__ import annotations

from operator import is_not
from typing import TYPE_CHECKING, Any

import torch
from botorch.acquisition.objective import PosteriorTransform, ScalarizedPosteriorTransform
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models.model import FantasizeMixin, Model
from botorch.posteriors import GPyTorchPosterior, Posterior
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.transforms import is_ensemble
from torch import Tensor

from botorch_calib._validation import check_inputs, check_limit, check_one_of, check_positive
from botorch_calib.models.calibrated import CalibratedModel
from botorch_calib.models.conditioning import conditioned_on, with_observations
from botorch_calib.models.fit_to_ledger import Fit, fitted_model
from botorch_calib.models.matching_rows import matching_rows
from botorch_calib.models.outcome_transforms import check_takes, transform_name
from botorch_calib.models.predict import process_posterior
from botorch_calib.models.process import (
    as_in_training,
    like,
    observed_process,
    raw_width,
    with_task_feature,
)
from botorch_calib.models.requirements import (
    batch_of_models,
    check_base,
    check_process,
    checked_observations,
)
from botorch_calib.models.wrapper import WrapperModel, check_output_indices, standardized_gp

if TYPE_CHECKING:
    from botorch_calib.ledger import FeedbackLedger

IMPUTATIONS = ("censor", "hallucinate", "none")


class CensoredDelayModel(WrapperModel, FantasizeMixin):
    """A fitted model of the observed data, conditioned on imputed values at pending points.

    With ``imputation="censor"`` the posterior is that of [Verma2022]_, eq. 1,

        mu(x) = k(x)^T (K + noise)^{-1} y~,  cov(x, x') = k(x, x') - k(x)^T (K + noise)^{-1} k(x'),

    where ``K`` is the covariance matrix of all queries, and ``y~`` holds their values or, where
    these are missing, ``censor_value``. This lowers the mean around pending points, and the search
    looks elsewhere. (The paper's prior mean is zero; here it is the model's.) With
    ``"hallucinate"`` the posterior mean replaces a missing value, which shrinks the variance and
    leaves the mean unchanged, as in GP-BUCB. With ``"none"`` pending points are ignored.

    **Values that never arrive.** Queries whose wait is over (the ledger's ``max_wait``) stay
    censored. Then the mean does not estimate ``f``, but ``c + rho (f - c)`` with the
    ``censor_value`` ``c`` and the probability ``rho`` that a value arrives in time ([Verma2022]_,
    Theorem 1): see `rescaling`. Hallucination leaves such queries out.

    Hyperparameters and transforms are those of ``model``, which is never modified, except that
    `observe` updates the calibrator of a `CalibratedModel` inside. Calibration composes in either
    order, with equal posteriors, and uses observed data only.

    Args:
        model: A fitted exact Gaussian process of the observed data with one output, a Gaussian
            likelihood and no batch dimensions, such as ``SingleTaskGP``; an ensemble of such, as
            ``SaasFullyBayesianSingleTaskGP``; or a `CalibratedModel` of either.
        X_pending: Points whose values are missing, ``n x d``, before any input transform.
        censor_value: The least value that the objective can take (for minimization, the greatest),
            in units of the outcome. Needed to censor pending points.
        imputation: What replaces missing values: ``"censor"``, ``"hallucinate"`` or ``"none"``.

    Raises:
        UnsupportedError: For other models, a `CensoredDelayModel` inside another one, and
            hallucination under a nonlinear outcome transform.
        InputDataError: If ``censor_value`` is missing where it is needed, or not finite once
            transformed.

    Example:
        >>> X_pending = torch.rand(3, 2, dtype=torch.double)
        >>> model = CensoredDelayModel(gp, X_pending, censor_value=-2.0)
        >>> acqf = LogExpectedImprovement(model, best_f=Y.max())

    .. [Verma2022]
        A. Verma, Z. Dai, B. K. H. Low. Bayesian optimization under stochastic delayed feedback.
        ICML 2022.
    """

    X_pending: Tensor

    def __init__(
        self,
        model: Model,
        X_pending: Tensor | None = None,
        censor_value: float | None = None,
        imputation: str = "censor",
    ) -> None:
        super().__init__()
        _check_model(model)
        self.imputation: str = check_one_of("imputation", imputation, IMPUTATIONS)
        self.censor_value = check_limit("censor_value", censor_value)
        self.model = model
        if X_pending is None:
            X_pending = torch.zeros(0, raw_width(observed_process(model)) or 0)
        self.register_buffer("X_pending", self._checked("X_pending", X_pending).clone())
        if message := self._missing_censor_value(self.X_pending):
            raise InputDataError(message)
        # Objects of which the conditioned model is a function, that model, and the imputed values
        self._cache: tuple[tuple[object, ...], Any, Tensor] | None = None
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
        """Fit a model to the values in a ledger, and impute the missing ones.

        Censoring applies to all queries without a usable value, pending and expired
        (``ledger.incomplete``), and hallucination to pending ones (``ledger.pending``).

        Args:
            ledger: Its ``censor_value`` is used.
            fit: Builds a fitted model from inputs ``n x d`` and values ``n x 1`` (double precision,
                on the CPU).
            imputation: As in the class.
            hyperparameters: Whether ``fit`` is called on ``"observed"`` values or, as in the paper,
                on ``"censored"`` ones, ``ledger.training_data``. Censored rows then become pending
                points, which can be resolved and never enter a calibrator.
            now: Time as of which the ledger is read (default: the current time).

        Raises:
            InputDataError: If fewer than two values have arrived, or ``fit`` trains its model on
                other inputs.
            UnsupportedError: If ``hyperparameters="censored"`` and ``fit`` returns anything but an
                exact Gaussian process; to calibrate, wrap the result instead.
        """
        ledger = ledger.snapshot()  # consistent even if other processes write to the ledger
        now = ledger.now() if now is None else now
        model = fitted_model(ledger, fit, hyperparameters, now)
        pending = queries_to_impute(ledger, imputation, now)
        return cls(model, pending, ledger.censor_value, imputation)

    # ------------------------------------------------------------ pending points

    @property
    def conditioned_model(self) -> Any:
        """The model conditioned on the pending points; `model` itself if nothing is imputed."""
        return self._conditioned()[0]

    @property
    def predicting_model(self) -> Model:
        return self.conditioned_model

    @property
    def Y_imputed(self) -> Tensor:
        """Values imputed at ``X_pending``, ``n x 1``; ``0 x 1`` with ``imputation="none"``.

        Hallucinated values are posterior means of the Gaussian process, even if it is calibrated;
        of an ensemble they are those of each member, ``num_members x n x 1``.
        """
        return self._conditioned()[1]

    def rescaling(self, arrival_probability: float) -> ScalarizedPosteriorTransform:
        """A ``posterior_transform`` that undoes what censoring values that never arrive does.

        By [Verma2022]_, Theorem 1, ``|mu - c - rho (f - c)| <= nu sigma`` with ``nu`` of
        `DelayedUpperConfidenceBound`. So ``f`` is within ``nu sigma / rho`` of ``c + (mu - c) /
        rho``: the transform divides the distance of the mean from ``c``, and the standard
        deviation, by ``rho``. Upper confidence bounds and Thompson sampling choose the same query
        with it as without; predictions and expected improvement differ.

        The theorem's prior mean is ``c``. Where data are scarce, the mean returns to the prior mean
        ``m`` of the model, and rescaled to ``c + (m - c) / rho``: let ``m`` be fitted to censored
        values as well (``hyperparameters="censored"``), or be ``c``.

        Args:
            arrival_probability: ``rho``, in (0, 1], such as ``FeedbackLedger.arrival_probability``
                estimates it.

        Raises:
            UnsupportedError: If the model does not censor, or its outcome transform is not affine:
                the mean shrinks in the space of the targets.
            InputDataError: If ``arrival_probability`` is no probability above 0.

        Example:
            >>> model = CensoredDelayModel(gp, X[:3] / 2, censor_value=-2.0)
            >>> posterior = model.posterior(X, posterior_transform=model.rescaling(0.9))
        """
        if self.imputation != "censor" or self.censor_value is None:
            raise UnsupportedError(
                "Only a model with imputation='censor' and a `censor_value` is to be rescaled."
            )
        gp = observed_process(self.model)
        if not getattr(getattr(gp, "outcome_transform", None), "_is_linear", True):
            raise UnsupportedError(
                f"The outcome transform {transform_name(gp)} is not affine, and the mean shrinks "
                "in the space of the targets: apply it to the observations and `censor_value` "
                "beforehand, and let the model have Standardize or no transform."
            )
        rho = check_positive("arrival_probability", arrival_probability)
        if rho > 1.0:
            raise InputDataError(f"`arrival_probability` must be at most 1, got {rho!r}.")
        weight = like(self.model, torch.tensor([1.0 / rho], dtype=torch.double))
        return ScalarizedPosteriorTransform(weight, self.censor_value * (1.0 - 1.0 / rho))

    def with_pending(self, X: Tensor) -> CensoredDelayModel:
        """The model with further pending points ``X``, ``n x d``, before any input transform."""
        pending = torch.cat([self.X_pending, self._checked("X", X)])
        return CensoredDelayModel(self.model, pending, self.censor_value, self.imputation)

    def resolve(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> CensoredDelayModel:
        """The model after values of pending points have arrived, which then count as observed.

        Arguments are those of `with_observations`, but ``X`` holds rows of ``X_pending``, exactly
        as they were given; other rows are an ``InputDataError``.
        """
        X = self._checked("X", X)
        for index, row in enumerate(matching_rows(X, self.X_pending)):
            if row is None:
                raise InputDataError(f"Row {index} of `X` is not pending: {X[index].tolist()}.")
        return self.with_observations(X, Y, Yvar)

    @torch.no_grad()
    def with_observations(
        self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None
    ) -> CensoredDelayModel:
        """The model after further observations, of pending points or others.

        A `CalibratedModel` inside keeps its calibrator unchanged; `observe` updates it.

        Args:
            X: Inputs ``n x d``. Rows that were pending are so no longer, of equal ones as many as
                there are here.
            Y: Their values ``n x 1``, in units of the outcome.
            Yvar: Their noise variances ``n x 1``, for a base model with given noise (default: the
                mean of its training noise).
        """
        X, Y, Yvar = checked_observations(observed_process(self.model), X, Y, Yvar)
        model, pending = with_observations(self.model, X, Y, Yvar), self._still_pending(X)
        return CensoredDelayModel(model, pending, self.censor_value, self.imputation)

    @torch.no_grad()
    def observe(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> None:
        """Add new observations in place; a call that raises changes nothing.

        Arguments are those of `with_observations`, rows of ``X`` in the order of observation. A
        `CalibratedModel` inside learns from them by `CalibratedModel.observe`.
        """
        X, Y, Yvar = checked_observations(observed_process(self.model), X, Y, Yvar)
        pending = self._still_pending(X)
        if isinstance(self.model, CalibratedModel):
            self.model.observe(X, Y, Yvar)
        else:
            self.model = with_observations(self.model, X, Y, Yvar)
        self.X_pending = pending

    # ------------------------------------------------------------ the model interface

    def posterior(  # type: ignore[override]
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
        **kwargs: Any,
    ) -> Posterior:
        """Posterior of `conditioned_model`, which takes further arguments if it is calibrated."""
        check_output_indices(output_indices)
        self.warn_if_unlearned()
        model: Any = self.conditioned_model
        if isinstance(model, CalibratedModel):
            options = {"posterior_transform": posterior_transform, **kwargs}
            return model.posterior(X, observation_noise=observation_noise, **options)
        return process_posterior(model, X, observation_noise, posterior_transform)

    def warn_if_unlearned(self) -> None:
        """Have a `CalibratedModel` inside warn, once, as the conditioned copy of it does not."""
        if isinstance(self.model, CalibratedModel):
            self.model.warn_if_unlearned()

    def condition_on_observations(  # type: ignore[override]
        self, X: Tensor, Y: Tensor, **kwargs: Any
    ) -> Model:
        """Condition `conditioned_model` on further values, such as fantasies.

        For values that have really arrived use `observe` or `resolve`.
        """
        X = with_task_feature(observed_process(self.model), X)
        return conditioned_on(self.conditioned_model, X, Y, **kwargs)

    @classmethod
    def construct_inputs(
        cls,
        training_data: SupervisedDataset,
        X_pending: Tensor | None = None,
        censor_value: float | None = None,
        imputation: str = "censor",
    ) -> dict[str, Any]:
        """Arguments of the constructor, with an unfitted ``SingleTaskGP`` of the data."""
        return {
            "model": standardized_gp(**super().construct_inputs(training_data)),
            "X_pending": X_pending,
            "censor_value": censor_value,
            "imputation": imputation,
        }

    # ------------------------------------------------------------ pickling and loading

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": None}

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Load any number of pending points, provided that they fit the model."""
        incoming = state_dict.get(prefix + "X_pending")
        if incoming is not None:
            message: str | None = f"`X_pending` must be n x d, not {tuple(incoming.shape)}."
            if incoming.dim() == 2 and incoming.shape[-1] == self.X_pending.shape[-1]:
                message = self._missing_censor_value(incoming)
            if message:
                args[-1].append(message)
                return
            self.X_pending = self.X_pending.new_empty(incoming.shape)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    # ------------------------------------------------------------ conditioning

    @torch.no_grad()
    def _conditioned(self) -> tuple[Any, Tensor]:
        """`model` conditioned on imputed values, from the cache while that is valid, and these."""
        if self.imputation == "none" or not len(self.X_pending):
            return self.model, self.X_pending.new_zeros(0, 1)
        if self._cache is None or any(map(is_not, self._cache[0], self._basis())):
            Y = self._imputed()
            conditioned = with_observations(self.model, self.X_pending, Y)
            # The basis afterwards, as conditioning evaluates a model that was not evaluated yet.
            self._cache = self._basis(), conditioned, Y
        return self._cache[1:]

    def _imputed(self) -> Tensor:
        """Values at the pending points, ``n x 1``.

        Each member of an ensemble hallucinates its own, ``num_members x n x 1``. Given noise of
        imputed values is the mean of that of the observed ones.
        """
        gp, X = observed_process(self.model), self.X_pending
        if self.imputation == "censor" and self.censor_value is not None:
            Y = X.new_full((len(X), 1), self.censor_value)
            check_takes(gp, X, Y, "censor_value")
            return Y
        with as_in_training(gp):
            posterior = gp.posterior(X)
        if not isinstance(posterior, GPyTorchPosterior):
            raise UnsupportedError(
                "`imputation='hallucinate'` needs a posterior that is Gaussian in the units of the "
                f"outcome, got a {type(posterior).__name__}: apply nonlinear transforms to the "
                "observations beforehand."
            )
        return posterior.mean

    def _missing_censor_value(self, X_pending: Tensor) -> str | None:
        """An error message if there are points ``n x d`` to censor but no value."""
        if self.imputation != "censor" or self.censor_value is not None or not len(X_pending):
            return None
        return "`censor_value` is needed to censor pending points: the least possible value."

    def _basis(self) -> tuple[object, ...]:
        """Objects one of which is replaced by anything that invalidates the conditioned model."""
        gp = observed_process(self.model)
        settings = [getattr(self.model, name, None) for name in ("calibrator", "denoise", "excess")]
        strategy = getattr(gp, "prediction_strategy", None)
        return (self.X_pending, self.imputation, self.censor_value, gp, strategy, *settings)

    def _checked(self, name: str, X: Tensor) -> Tensor:
        """Inputs ``n x d`` with all columns the model takes, in its precision."""
        gp = observed_process(self.model)
        X = check_inputs(name, with_task_feature(gp, X), raw_width(gp))
        return like(gp, X)

    def _still_pending(self, X: Tensor) -> Tensor:
        """The pending points without those observed at ``X``."""
        arrived = set(matching_rows(X, self.X_pending))
        return self.X_pending[[i for i in range(len(self.X_pending)) if i not in arrived]]


def queries_to_impute(ledger: FeedbackLedger, imputation: str, now: float | None) -> Tensor:
    """Queries ``n x d`` of a ledger whose values are imputed.

    The paper censors expired queries as well; hallucination is for values that will still arrive.
    """
    return ledger.incomplete(now) if imputation == "censor" else ledger.pending(now)


def _check_model(model: Any) -> None:
    if is_ensemble(model):
        check_process(observed_process(model))
    else:
        check_base(model, "CensoredDelayModel")
    if any(isinstance(part, CensoredDelayModel) for part in model.modules()):
        raise UnsupportedError(
            "`model` already accounts for pending points: add further ones by `with_pending`."
        )
    if batch_shape := batch_of_models(model):
        raise UnsupportedError(
            "CensoredDelayModel needs a `model` without batch dimensions, got "
            f"{tuple(batch_shape)}."
        )
