"""`CensoredDelayModel`: a Gaussian process that knows which of its queries are still running."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models.model import FantasizeMixin, Model
from botorch.posteriors import Posterior
from botorch.utils.datasets import SupervisedDataset
from torch import Tensor

from botorch_calib._validation import check_inputs
from botorch_calib.models.calibrated import CalibratedModel
from botorch_calib.models.hyperparameters import Fit, fitted_model, matching_rows
from botorch_calib.models.imputation import (
    check_settings,
    impute,
    missing_censor_value,
)
from botorch_calib.models.inspection import (
    check_base,
    check_observations,
    conditioned_on,
    gaussian_part,
    given_noise,
    like,
    raw_width,
    standardized_gp,
    with_task_feature,
)
from botorch_calib.models.wrapper import WrapperModel, check_output_indices

if TYPE_CHECKING:
    from botorch_calib.ledger import FeedbackLedger


class _Conditioned(NamedTuple):
    """A model conditioned on values, and the objects that these are good for."""

    model: Any
    values: Tensor
    basis: tuple[object, ...]


class CensoredDelayModel(WrapperModel, FantasizeMixin):
    r"""A fitted model of the observed data, conditioned on stand-ins for the pending values.

    With ``imputation="censor"`` the posterior is that of [Verma2022], eq. 1,

        mu(x) = k(x)^T (K + noise)^{-1} y~,  cov(x, x') = k(x, x') - k(x)^T (K + noise)^{-1} k(x'),

    with ``K`` the covariance of all queries and ``y~`` their values, or ``censor_value``, the least
    value that the objective can take, where that is missing: around pending points the mean
    sinks, and the search looks elsewhere. (The paper's prior mean is zero; here it is the
    model's.) With ``"hallucinate"`` a missing value is the posterior mean there, which leaves the
    mean as it is and shrinks the variance, as in GP-BUCB. With ``"none"`` delays are ignored.

    Hyperparameters and transforms are those of ``model``, fitted to observed data. So is its
    factorisation, which is extended by rows for the pending points, not computed anew. The
    model is never modified, except that `observe` makes a `CalibratedModel` inside learn.

    Calibration composes in either order, with equal posteriors, and sees observed data only:
    ``CensoredDelayModel(CalibratedModel(gp, calibrator), X_pending, 0.0)`` and
    ``CalibratedModel(CensoredDelayModel(gp, X_pending, 0.0), calibrator)``.

    Args:
        model: A fitted model of the observed data with one output, a Gaussian likelihood and no
            batch dimensions that can be conditioned on observations: an exact Gaussian process
            such as ``SingleTaskGP``, or a `CalibratedModel` of one.
        X_pending: Points whose values are missing, ``n x d``, before any input transform.
        censor_value: Value to censor by, in units of the outcome: the least that the objective can
            take (for minimisation, the greatest). Needed to censor pending points.
        imputation: ``"censor"``, ``"hallucinate"`` or ``"none"``.

    Raises:
        UnsupportedError: For models with several outputs or batch dimensions, ensembles,
            non-Gaussian likelihoods, models that cannot be conditioned, a `CensoredDelayModel` in
            another, and hallucination under a nonlinear outcome transform.
        InputDataError: If ``X_pending`` holds NaN or infinite values, ``imputation`` is unknown, or
            ``censor_value`` is missing where it is needed, or not finite, as such or transformed.
        BotorchTensorDimensionError: If ``X_pending`` is not ``n x d``.

    Example:
        >>> model = CensoredDelayModel(gp, ledger.incomplete(), censor_value=0.0)
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
        check_settings(imputation, censor_value)
        self.model = model
        self.censor_value = None if censor_value is None else float(censor_value)
        self.imputation = imputation
        if X_pending is None:
            X_pending = torch.zeros(0, raw_width(gaussian_part(model)) or 0)
        self.register_buffer("X_pending", self._checked("X_pending", X_pending).clone())
        if message := missing_censor_value(self.X_pending, imputation, censor_value):
            raise InputDataError(message)
        self._cache: _Conditioned | None = None
        self._conditioned()  # what cannot be conditioned is refused at once

    @classmethod
    def from_ledger(
        cls,
        ledger: FeedbackLedger,
        fit: Fit,
        imputation: str = "censor",
        hyperparameters: str = "observed",
        now: float | None = None,
    ) -> CensoredDelayModel:
        """Fit a model to what a ledger holds, and impute what it lacks.

        Queries without a usable value, pending or given up, are censored (``ledger.incomplete``);
        those still waited for are hallucinated (``ledger.pending``).

        Args:
            ledger: A `FeedbackLedger`; its ``censor_value`` is used.
            fit: Builds a fitted model from inputs ``n x d`` and values ``n x 1`` (double
                precision, on the CPU).
            imputation: See the class.
            hyperparameters: ``"observed"``: ``fit`` sees observed data only. ``"censored"``, as in
                the paper: it sees ``ledger.training_data``. Its model's hyperparameters and
                transforms are kept, while the censored rows become pending points again,
                which may be resolved and never enter a calibrator. With
                ``imputation="censor"`` the posterior is that of the model that ``fit`` returned.
            now: Time as of which the ledger is read (default: its present).

        Raises:
            InputDataError: If fewer than two values have arrived, ``hyperparameters`` is unknown,
                the ledger lacks a ``censor_value`` that is needed, or ``fit`` returns no model
                or trains one on other inputs.
            UnsupportedError: If ``hyperparameters="censored"`` and ``fit`` returns anything but
                an exact Gaussian process. That includes a `CalibratedModel`, which would have
                learned from censored values: wrap the result instead.
        """
        ledger = ledger.snapshot()  # its views agree, whatever other processes enter
        now = ledger.now() if now is None else now
        model = fitted_model(ledger, fit, hyperparameters, now)
        pending = ledger.incomplete if imputation == "censor" else ledger.pending
        return cls(model, pending(now), ledger.censor_value, imputation)

    # ------------------------------------------------------------ pending points

    @property
    def observed_model(self) -> Any:
        """The model of observed data alone, which calibration asks for: `model`."""
        return self.model

    @property
    def conditioned_model(self) -> Any:
        """The model conditioned on the pending points, of the class of `model`.

        It is `model` itself if there is nothing to impute. Otherwise it is built once, and
        again after `model` was refitted, loaded or converted.
        """
        return self._conditioned().model

    @property
    def Y_imputed(self) -> Tensor:
        """Values imputed at `X_pending`, ``n x 1``, in units of the outcome.

        There are none, ``0 x 1``, if ``imputation="none"``. Hallucinated values are posterior
        means of the Gaussian process, also where that is calibrated.
        """
        return self._conditioned().values

    def with_pending(self, X: Tensor) -> CensoredDelayModel:
        """The model with further pending points ``n x d``; errors are those of the class."""
        X = self._checked("X", X)
        return self._remade(self.model, torch.cat([self.X_pending, X]))

    def resolve(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> CensoredDelayModel:
        """The model once values of pending points have arrived: they count as observed.

        A `CalibratedModel` inside takes its calibrator along unchanged; `observe` lets it learn.

        Args:
            X: Rows of `X_pending`, ``n x d``, exactly as they were given. Of equal rows, as many
                are resolved as ``X`` has.
            Y: Their values ``n x 1``, in units of the outcome.
            Yvar: Their noise variances ``n x 1``, for a base model with given noise (default:
                the mean of its training noise).

        Raises:
            InputDataError: If a row is not pending, or ``X``, ``Y`` or ``Yvar`` hold NaN or
                infinite values, or a variance is negative.
            BotorchTensorDimensionError: If shapes are not ``n x d`` and ``n x 1``.
            UnsupportedError: If ``Yvar`` is given to a model that learns its noise.
        """
        X = self._checked("X", X)
        for index, row in enumerate(matching_rows(X, self.X_pending)):
            if row is None:
                raise InputDataError(f"Row {index} of `X` is not pending: {X[index].tolist()}.")
        return self.with_observations(X, Y, Yvar)

    def with_observations(
        self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None
    ) -> CensoredDelayModel:
        """As `resolve`, but rows that are not pending are simply observed as well."""
        X, Y, Yvar = self._observations(X, Y, Yvar)
        noise = given_noise(gaussian_part(self.model), Y, Yvar)
        with torch.no_grad():
            model = conditioned_on(self.model, X, Y, **noise)
        return self._remade(model, self._still_pending(X))

    def observe(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> None:
        """Take in new observations, in place; rows that were pending are so no longer.

        A `CalibratedModel` inside scores them by the model of observed data alone and learns
        (see `CalibratedModel.observe`). A call that raises changes nothing.

        Args:
            X: Inputs ``n x d``, in the order of observation, pending or not.
            Y: Observed values ``n x 1``, in units of the outcome.
            Yvar: See `resolve`.

        Raises:
            InputDataError: As in `resolve`, except for rows that are not pending.
            BotorchTensorDimensionError: As in `resolve`.
            UnsupportedError: As in `resolve`.
        """
        X, Y, Yvar = self._observations(X, Y, Yvar)
        pending = self._still_pending(X)
        if isinstance(self.model, CalibratedModel):
            self.model.observe(X, Y, Yvar)
        else:
            with torch.no_grad():
                self.model = conditioned_on(self.model, X, Y, **given_noise(self.model, Y, Yvar))
        self.X_pending = pending

    # ------------------------------------------------------------ the model interface

    def posterior(  # type: ignore[override]
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        """Posterior of `conditioned_model`, of the kind that `model` has.

        Args:
            X: ``batch_shape x q x d``.
            output_indices: None or ``[0]``, as there is one output.
            observation_noise: As in BoTorch.
            posterior_transform: As `model` takes them.
        """
        check_output_indices(output_indices)
        if isinstance(self.model, CalibratedModel) and self.model._may_warn:
            self.model.warn_if_unlearned()  # what it is conditioned to keeps silent
        posterior: Posterior = self.conditioned_model.posterior(
            X, observation_noise=observation_noise, posterior_transform=posterior_transform
        )
        return posterior

    def transform_inputs(self, X: Tensor, input_transform: torch.nn.Module | None = None) -> Tensor:
        """Inputs in the base model's transformed space."""
        transformed: Tensor = self.conditioned_model.transform_inputs(
            X, input_transform=input_transform
        )
        return transformed

    def condition_on_observations(  # type: ignore[override]
        self, X: Tensor, Y: Tensor, **kwargs: Any
    ) -> Model:
        """`conditioned_model`, conditioned further: for fantasies, beside the pending points.

        Values that have really arrived belong into `observe` or `resolve`, which also end
        their being pending.

        Args:
            X: ``batch_shape x n' x d``.
            Y: ``batch_shape' x n' x 1``.
            kwargs: Passed on to the base model (``noise`` for example).

        Returns:
            A model of the class of `model`.
        """
        X = with_task_feature(gaussian_part(self.model), X)
        return conditioned_on(self.conditioned_model, X, Y, **kwargs)

    @classmethod
    def construct_inputs(
        cls,
        training_data: SupervisedDataset,
        X_pending: Tensor | None = None,
        censor_value: float | None = None,
        imputation: str = "censor",
    ) -> dict[str, Any]:
        """Arguments of the constructor from a dataset with one outcome.

        Args:
            training_data: Data of a ``SingleTaskGP`` (still to be fitted), which is built with
                ``Normalize`` and ``Standardize``.
            X_pending: See the class.
            censor_value: See the class.
            imputation: See the class.
        """
        return {
            "model": standardized_gp(**super().construct_inputs(training_data)),
            "X_pending": X_pending,
            "censor_value": censor_value,
            "imputation": imputation,
        }

    # ------------------------------------------------------------ life as a module

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": None}

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Take pending points whatever their number, if they make sense here."""
        incoming = state_dict.get(prefix + "X_pending")
        if incoming is not None:
            message: str | None = f"`X_pending` must be n x d, not {tuple(incoming.shape)}."
            if incoming.dim() == 2 and incoming.shape[-1] == self.X_pending.shape[-1]:
                message = missing_censor_value(incoming, self.imputation, self.censor_value)
            if message:
                error_msgs: list[str] = args[-1]
                error_msgs.append(message)
                return
            self.X_pending = self.X_pending.new_empty(incoming.shape)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    # ------------------------------------------------------------ conditioning

    @torch.no_grad()
    def _conditioned(self) -> _Conditioned:
        """What the pending points make of `model`, from the cache if that is still good."""
        if self.imputation == "none" or not len(self.X_pending):
            return _Conditioned(self.model, self.X_pending.new_zeros(0, 1), ())
        basis = self._basis()
        if self._cache is None or any(
            old is not new for old, new in zip(self._cache.basis, basis, strict=True)
        ):
            conditioned, Y = impute(self.model, self.X_pending, self.imputation, self.censor_value)
            # The basis once more, as conditioning evaluates a model that was not yet.
            self._cache = _Conditioned(conditioned, Y, self._basis())
        return self._cache

    def _basis(self) -> tuple[object, ...]:
        """Objects that are replaced by whatever makes the conditioned model outdated."""
        gp = gaussian_part(self.model)
        return self.X_pending, gp, getattr(gp, "prediction_strategy", None)

    def _checked(self, name: str, X: Tensor) -> Tensor:
        """Inputs ``n x d`` with all columns the model takes, in its precision."""
        gp = gaussian_part(self.model)
        X = check_inputs(name, with_task_feature(gp, X), raw_width(gp))
        return like(gp, X)

    def _observations(
        self, X: Tensor, Y: Tensor, Yvar: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Checked observations in the model's precision."""
        gp = gaussian_part(self.model)
        X = with_task_feature(gp, X)
        check_observations(gp, X, Y, Yvar)
        return like(gp, X), like(gp, Y), None if Yvar is None else like(gp, Yvar)

    def _still_pending(self, X: Tensor) -> Tensor:
        """The pending points without those observed at ``X``."""
        arrived = set(matching_rows(X, self.X_pending))
        return self.X_pending[[i for i in range(len(self.X_pending)) if i not in arrived]]

    def _remade(self, model: Model, X_pending: Tensor) -> CensoredDelayModel:
        return CensoredDelayModel(model, X_pending, self.censor_value, self.imputation)


def _check_model(model: Any) -> None:
    if any(isinstance(part, CensoredDelayModel) for part in model.modules()):
        raise UnsupportedError(
            "`model` already accounts for pending points: add further ones by `with_pending`."
        )
    check_base(model, "CensoredDelayModel")
    if model.batch_shape:
        raise UnsupportedError(
            "CensoredDelayModel needs a `model` without batch dimensions, got "
            f"{tuple(model.batch_shape)}."
        )
