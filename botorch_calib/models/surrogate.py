"""`Surrogate`: a model that consists of a process, pending points and a calibrator."""

from __future__ import annotations

from copy import copy
from operator import is_not
from typing import Any, Self

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models.model import FantasizeMixin, Model
from botorch.posteriors import GPyTorchPosterior
from torch import Tensor

from botorch_calib._validation import check_flag, check_inputs, check_tensor, check_variances
from botorch_calib.calibration import Calibrator
from botorch_calib.exceptions import warn
from botorch_calib.models.beyond import checked_beyond, stand_ins, teach
from botorch_calib.models.cholesky_factor import keep_in_step
from botorch_calib.models.conditioning import conditioned_on, with_observations
from botorch_calib.models.known_data import still_pending, without_known
from botorch_calib.models.outcome_transforms import check_takes
from botorch_calib.models.predict import (
    observations_only,
    predict,
    process_posterior,
    scores_of_observations,
)
from botorch_calib.models.process import (
    as_in_training,
    batch_shape_of,
    checked_observations,
    in_output_task,
    kind_of,
    like,
    observed_process,
    raw_width,
    with_task_feature,
)
from botorch_calib.models.requirements import check_fantasizes, check_same_width, scalar_affine
from botorch_calib.models.wrapper import WrapperModel, check_output_indices


class Surrogate(WrapperModel, FantasizeMixin):
    """A model of one outcome: a process of observed data, pending points and a calibrator.

    The process is a BoTorch model that is fitted to observed data only. It predicts each new
    observation, and from these predictions the calibrator learns. The surrogate's posterior is the
    process's posterior given imputed values at the pending points, corrected by the calibrator.
    `CalibratedModel` sets the calibrator, and `CensoredDelayModel` sets the pending points, so
    these two classes can wrap each other in either order.

    Args:
        model: The process, or another surrogate, whose process is used. Pending points and
            calibrator of the other surrogate are used unless they are given here.
        X_pending: Pending points ``n x d``, before any input transform.
        censor_value, imputation: See `CensoredDelayModel`; None without pending points.
        calibrator: A calibrator, or None.
        denoise, excess: See `CalibratedModel`.
    """

    X_pending: Tensor
    censor_value: float | None
    imputation: str | None

    def __init__(
        self,
        model: Model,
        X_pending: Tensor | None = None,
        censor_value: float | None = None,
        imputation: str | None = None,
        calibrator: Calibrator | None = None,
        denoise: bool = True,
        excess: str = "noise",
    ) -> None:
        super().__init__()
        if isinstance(model, Surrogate):
            if imputation is None:
                X_pending, censor_value = model.X_pending, model.censor_value
                imputation = model.imputation
            if calibrator is None:
                calibrator, denoise, excess = model.calibrator, model.denoise, model.excess
            model = model.model
        self.model = model
        self.censor_value, self.imputation = censor_value, imputation
        self.calibrator, self.denoise, self.excess = calibrator, denoise, excess
        self._may_warn = True
        if X_pending is None:
            pending = like(model, torch.zeros(0, raw_width(model) or 0))
        else:
            pending = self._checked("X_pending", X_pending).clone()
        self.register_buffer("X_pending", pending)
        # Cached by `_conditioned`: the objects of `_basis`, the process conditioned on imputed
        # values, and the imputed values.
        self._cache: tuple[tuple[object, ...], Any, Tensor] | None = None

    def _with(self, model: Model, X_pending: Tensor) -> Self:
        """Return a copy with the process ``model`` and other pending points, without checks."""
        twin = copy(self)
        # `copy` shares these dicts of the module, so copy them before they are changed.
        for name in ("_parameters", "_buffers", "_modules"):
            twin.__dict__[name] = dict(self.__dict__[name])
        twin.model, twin.X_pending = model, X_pending
        return twin

    @property
    def gaussian_model(self) -> Any:
        return self._conditioned()[0]

    @property
    def batch_shape(self) -> torch.Size:
        """The batch shape of the process; empty for a model without training data."""
        return batch_shape_of(self.model)

    @property
    def _is_ensemble(self) -> bool:  # type: ignore[override]
        """Whether the process is an ensemble, over whose members BoTorch averages samples."""
        return kind_of(self.model) == "members"

    @property
    def Y_imputed(self) -> Tensor:
        """Values imputed at ``X_pending``, ``n x 1``; ``0 x 1`` with ``imputation="none"``.

        Hallucinated values are posterior means of the process, without calibration. For an ensemble
        these are the members' means, ``num_members x n x 1``.
        """
        return self._conditioned()[1]

    # ------------------------------------------------------------ data

    @torch.no_grad()
    def observe(
        self,
        X: Tensor,
        Y: Tensor,
        Yvar: Tensor | None = None,
        condition: bool = True,
        beyond: Tensor | None = None,
    ) -> None:
        """Score new observations, update the calibrator, and condition the process on them.

        To score an observation is to compute its normal score: the standard normal quantile at its
        predicted cdf. The current process, before it is conditioned on any row, scores all rows.
        Call this method before refitting; `with_model` combines the refitted process with the
        calibrator. Observations that the data of an exact Gaussian process already contain, with
        the same point and value to six digits, are ignored. An exact Gaussian process converts data
        to its own precision. For a ``MultiTaskGP``, the calibrator learns only from observations of
        the output task. If an error is raised, nothing has changed.

        Args:
            X: Inputs ``n x d``, in the order of observation. Unless ``condition`` is
                False, each row removes one pending point that is equal to six digits.
            Y: Observed values ``n x 1``, in units of the outcome.
            Yvar: Noise variances ``n x 1``, in squared units of the outcome, for a process with
                given noise, excluding any noise that the process learns in addition. NaN, the
                default, is replaced with the mean of the training noise, or with the learned noise
                of a `PartlyKnownNoiseGP`.
            condition: Whether to condition the process. If not, only the calibrator is updated, and
                pending points remain pending.
            beyond: Which outcomes are beyond ``Y``, as for `stand_ins` (default: no outcome). For
                such an outcome, the process is conditioned on a training value beyond the bound
                ``Y``, and the calibrator learns a draw from its predictive distribution beyond the
                bound.

        Raises:
            UnsupportedError: If the process is batched or cannot be conditioned.
            InputDataError, BotorchTensorDimensionError: If an argument is malformed.

        Warns:
            CalibrationWarning: If the process's data already contain some of the observations.
        """
        given = checked_observations(self.model, X, Y, Yvar)
        check_flag("condition", condition)
        sides = None if beyond is None else checked_beyond(beyond, given[1])
        if not condition:  # otherwise the process checks them when it is conditioned
            exact = slice(None) if sides is None else sides.squeeze(-1) == 0.0
            check_takes(self.model, given[0][exact], given[1][exact])
        x, y, yvar, sides = without_known(self.model, *given, sides)
        self.learn(x, y, yvar, condition, sides)

    @torch.no_grad()
    def learn(
        self,
        X: Tensor,
        Y: Tensor,
        Yvar: Tensor | None = None,
        condition: bool = True,
        sides: Tensor | None = None,
    ) -> None:
        """Do the same as `observe`, without checks, and without ignoring known observations.

        ``X``, ``Y`` and ``Yvar`` are results of `checked_observations`, and ``sides``, called
        ``beyond`` in `observe`, is a result of `checked_beyond`.
        """
        if not len(X):
            return
        process, pending, calibrator = self.model, self.X_pending, self.calibrator
        own = in_output_task(process, X)
        x, y = X[own], Y[own]
        yvar, told = (None if each is None else each[own] for each in (Yvar, sides))
        if calibrator is not None and len(x):
            scored = scores_of_observations(process, x, y, yvar)
        if condition:
            pending = still_pending(pending, X, process)
            values = Y if sides is None else stand_ins(process, X, Y, sides)
            process = with_observations(process, X, values, Yvar)
        if calibrator is not None and len(x):  # last: an error above must not change anything
            if told is None:
                calibrator.update(*scored)
            else:
                teach(calibrator, *scored, x, y, told)
        self.model, self.X_pending = process, pending

    @torch.no_grad()
    def with_observations(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> Self:
        """Return the model conditioned on observations, with the same calibrator.

        The calibrator is not updated. For arguments see `observe`.
        """
        X, Y, Yvar = checked_observations(self.model, X, Y, Yvar)
        process = with_observations(self.model, X, Y, Yvar)
        return self._with(process, still_pending(self.X_pending, X, self.model))

    def with_pending(self, X: Tensor) -> Self:
        """Return the model with further pending points ``X``, ``n x d``, before any transform.

        Raises:
            UnsupportedError: If the model was not made from a `CensoredDelayModel`.
            InputDataError: If the model needs a ``censor_value`` and has none.
        """
        if self.imputation is None:
            raise UnsupportedError(
                f"This {type(self).__name__} takes no pending points: make it from a "
                "CensoredDelayModel(model, censor_value=...), which imputes values."
            )
        pending = self._checked("X", X)
        if len(self.X_pending):  # if it is empty, a model of unknown width has no columns here
            pending = torch.cat([self.X_pending, pending])
        if message := self._missing_censor_value(pending):
            raise InputDataError(message)
        twin = self._with(self.model, pending)
        twin._conditioned()  # raises if the model cannot be conditioned
        return twin

    def with_model(self, model: Model, calibrator: Calibrator | None = None) -> Self:
        """Return a copy of this surrogate with another process, such as a refitted process.

        If ``model`` is a surrogate, its process is used, and its pending points and its calibrator,
        each with their settings, replace the pending points and the calibrator of this surrogate.
        If ``calibrator`` is given, it is used instead of either surrogate's calibrator.

        Raises:
            BotorchTensorDimensionError: If the inputs of ``model`` have a different width.
            UnsupportedError: If ``model`` or ``calibrator`` is not supported.
        """
        check_same_width(self.model, model)
        self._check_model(model)
        process = observed_process(model)
        twin = self._with(process, self.X_pending)
        if isinstance(model, Surrogate) and model.imputation is not None:
            twin.X_pending = model.X_pending
            twin.censor_value, twin.imputation = model.censor_value, model.imputation
        if isinstance(model, Surrogate) and model.calibrator is not None:
            calibrator = model.calibrator if calibrator is None else calibrator
            twin.denoise, twin.excess = model.denoise, model.excess
        calibrator = self.calibrator if calibrator is None else calibrator
        if calibrator is not None:
            twin.calibrator = checked_calibrator(process, calibrator, twin.denoise)
            twin._may_warn = self._may_warn or calibrator is not self.calibrator
        twin._conditioned()  # raises if the model cannot be conditioned
        return twin

    @staticmethod
    def _check_model(model: Model) -> None:
        """Raise ``UnsupportedError`` for a model that the subclass does not support.

        Each subclass overrides this method; here all models are accepted.
        """

    # ------------------------------------------------------------ the model interface

    def posterior(  # type: ignore[override]
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
        baseline: Tensor | None = None,
    ) -> Any:
        """Return the posterior at ``X``, given imputed values at pending points.

        With a calibrator this is a `CalibratedPosterior`, and otherwise the process's posterior.

        Args:
            X: Points ``batch_shape x q x d``.
            output_indices: None, or ``[0]`` for the only output.
            observation_noise: As in BoTorch's models, True for the distribution of an observation,
                or a tensor of noise variances after the outcome transform. With False, ``denoise``
                decides whether a calibrated posterior is of the objective or of an observation.
            posterior_transform: As in BoTorch's models. With a calibrator it must be a
                ``ScalarizedPosteriorTransform`` with one weight.
            baseline: Points ``r x d``. A calibrated posterior then contains the covariance of the
                objective at ``X`` with the objective at the baseline.

        Warns:
            CalibrationWarning: Once, if the calibrator has seen too few residuals.
        """
        check_output_indices(output_indices)
        check_tensor("X", X)
        if self.calibrator is None:
            return process_posterior(self.gaussian_model, X, observation_noise, posterior_transform)
        given = None
        if isinstance(observation_noise, Tensor):  # only then, as a check waits for the device
            given = check_variances("observation_noise", observation_noise)
        elif not isinstance(observation_noise, bool):
            raise InputDataError(
                "`observation_noise` must be True, False or a tensor of variances, got "
                f"{observation_noise!r}."
            )
        self.warn_if_unlearned()
        denoise = self.denoise and observation_noise is False
        posterior = predict(self, X, objective=denoise, noise=given, baseline=baseline)
        if posterior_transform is None:
            return posterior
        return posterior.affine(*scalar_affine(posterior_transform, "a calibrated posterior"))

    def warn_if_unlearned(self) -> None:
        if self.calibrator is None or not self._may_warn:  # later calls need not read the device
            return
        self._may_warn = False
        seen, needed = self.calibrator.num_updates, self.calibrator.num_needed
        if seen < needed:
            warn(
                f"{type(self.calibrator).__name__} has seen {seen} residuals and needs about "
                f"{needed} for its levels: until then its distribution relies on the model or on "
                "bounds."
            )

    def fantasize(self, X: Tensor, sampler: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the result of BoTorch's ``fantasize``, or raise ``UnsupportedError``."""
        check_fantasizes(self.gaussian_model, "`fantasize`")
        return super().fantasize(X, sampler, *args, **kwargs)

    def condition_on_observations(  # type: ignore[override]
        self, X: Tensor, Y: Tensor, **kwargs: Any
    ) -> Model:
        """Return the model conditioned on fantasies or imputed values; its calibrator is unchanged.

        ``X`` is ``batch_shape x n' x d`` and ``Y`` is ``batch_shape' x n' x 1``. Other arguments,
        such as ``noise``, are passed to the process. Use `observe` for real observations. The
        result has no pending points: its process is conditioned on their imputed values, too.
        Without a calibrator, the result is the conditioned process itself.
        """
        if Y.shape[-2:] != (*X.shape[-2:-1], 1):
            raise BotorchTensorDimensionError(
                f"`Y` must have shape ... x {X.shape[-2]} x 1, one row for each of `X`, got "
                f"{tuple(Y.shape)}."
            )
        process = conditioned_on(self.gaussian_model, X, Y, **kwargs)
        if self.calibrator is None:
            return process
        conditioned = self._with(process, self.X_pending[:0])
        conditioned._may_warn = False  # a fantasy does not repeat the warning
        return conditioned

    # ------------------------------------------------------------ pickling and loading

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": None}

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Load the state, in which the number of pending points may differ, but not their width."""
        incoming = state_dict.get(prefix + "X_pending")
        if incoming is not None:
            # A width of 0 stands for no pending points of a model whose width is unknown.
            width, own = incoming.shape[-1], self.X_pending.shape[-1]
            fits = incoming.dim() == 2 and (width == own or 0 in (width, own))
            wrong = f"`X_pending` must be n x d, not {tuple(incoming.shape)}."
            if message := self._missing_censor_value(incoming) if fits else wrong:
                args[-1].append(message)
                return
            self.X_pending = self.X_pending.new_empty(incoming.shape)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    # ------------------------------------------------------------ pending points

    @torch.no_grad()
    def _conditioned(self) -> tuple[Any, Tensor]:
        """Return the process conditioned on imputed values, and these values, from a cache."""
        if self.imputation == "none" or not len(self.X_pending):
            return self.model, self.X_pending.new_zeros(0, 1)
        keep_in_step(self.model)  # after in-place changes this replaces the strategy in `_basis`
        if self._cache is None or any(map(is_not, self._cache[0], self._basis())):
            Y = self._imputed()
            conditioned = with_observations(self.model, self.X_pending, Y)
            # Read the basis after conditioning, since the model's first evaluation replaces the
            # prediction strategy.
            self._cache = self._basis(), conditioned, Y
        return self._cache[1:]

    def _basis(self) -> tuple[object, ...]:
        """Return the objects on which ``_cache`` depends; replacing any of them invalidates it."""
        strategy = getattr(self.model, "prediction_strategy", None)
        return self.X_pending, self.imputation, self.censor_value, self.model, strategy

    def _imputed(self) -> Tensor:
        """Return the values to impute at the ``n`` pending points, ``n x 1``.

        Hallucinated values of an ensemble are ``num_members x n x 1``.
        """
        process, X = self.model, self.X_pending
        if self.imputation == "censor" and self.censor_value is not None:
            Y = X.new_full((len(X), 1), self.censor_value)
            check_takes(process, X, Y, "censor_value")
            return Y
        # `process_posterior` uses the cached Cholesky factor. GPyTorch would compute its caches for
        # variances, in O(n^3), even though only the mean is needed.
        with as_in_training(process):
            posterior = process_posterior(process, X)
        if not isinstance(posterior, GPyTorchPosterior):
            raise UnsupportedError(
                "`imputation='hallucinate'` needs a posterior that is Gaussian in the units of the "
                f"outcome, got a {type(posterior).__name__}: apply nonlinear transforms to the "
                "observations beforehand."
            )
        return posterior.mean

    def _missing_censor_value(self, X_pending: Tensor) -> str | None:
        """Return an error message if there are points to censor, but no ``censor_value``.

        The points are ``X_pending``, ``n x d``. None means that there is no error.
        """
        is_needed = self.imputation in (None, "censor") and self.censor_value is None
        if not (is_needed and len(X_pending)):
            return None
        return "`censor_value` is needed to censor pending points: the least possible value."

    def _checked(self, name: str, X: Tensor) -> Tensor:
        """Validate ``X``, ``n x d``, called ``name`` in errors, and convert it for the process.

        The result includes any task column, in the process's precision and on its device.
        """
        X = with_task_feature(self.model, X)
        return like(self.model, check_inputs(name, X, raw_width(self.model)))


def check_calibrator(calibrator: object) -> None:
    """Raise ``UnsupportedError`` unless ``calibrator`` is a `Calibrator`."""
    if not isinstance(calibrator, Calibrator):
        kind = calibrator if isinstance(calibrator, type) else type(calibrator)
        raise UnsupportedError(
            "`calibrator` must be a calibrator such as LocalizedConformal(0.2), got "
            f"{kind.__name__}."
        )


def checked_calibrator(process: Model, calibrator: Calibrator, denoise: bool) -> Calibrator:
    """Validate a calibrator for a process, and return it.

    ``denoise`` tells whether the objective is to be predicted. A calibrator that has learned
    nothing is moved to the process's device. Other calibrators are not moved, since another model
    may use them.

    Raises:
        UnsupportedError: If the argument is not a calibrator, or the process predicts observations
            only and ``denoise`` is True.
        InputDataError: If the calibrator has learned on another device.
    """
    check_calibrator(calibrator)
    if denoise and kind_of(process) == "cdf":
        raise observations_only(process)
    parameter = next(process.parameters(), None)
    if parameter is None or all(each.device == parameter.device for each in calibrator.buffers()):
        return calibrator
    if calibrator.num_updates:
        raise InputDataError(
            f"`calibrator` has learned on another device than the model's, {parameter.device}: "
            f'pass `calibrator.to("{parameter.device}")`, or a copy if another model uses it.'
        )
    return calibrator.to(parameter.device)
