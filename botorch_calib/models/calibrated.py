"""`CalibratedModel`: a Gaussian BoTorch model with calibrated marginals."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from functools import wraps
from numbers import Integral, Number
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.models.model import FantasizeMixin, Model
from botorch.posteriors import GPyTorchPosterior
from botorch.utils.datasets import SupervisedDataset
from torch import Tensor

from botorch_calib._validation import check_one_of, check_tensor, check_variances
from botorch_calib.calibration import Calibrator, LocalizedConformal
from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.exceptions import CalibrationWarning
from botorch_calib.models.conditioning import conditioned_on, given_noise
from botorch_calib.models.inspection import (
    in_output_task,
    least_variance,
    objective_variance,
    observation_noise_variance,
    observed_process,
    predicting_process,
    with_task_feature,
)
from botorch_calib.models.marginals import posterior_at
from botorch_calib.models.requirements import (
    check_base,
    check_observations,
    check_outcome_transform,
    scalar_affine,
)
from botorch_calib.models.residuals import forecast_history
from botorch_calib.models.wrapper import WrapperModel, check_output_indices, standardized_gp
from botorch_calib.posteriors import CalibratedPosterior
from botorch_calib.posteriors.calibrated import EXCESS
from botorch_calib.posteriors.single_points import SinglePointPosterior, is_gaussian


def _refuses_training_data(init: Callable[..., None]) -> Callable[..., None]:
    """Of an ``__init__``: BoTorch's ``batch_cross_validation`` gives training data to a class."""

    @wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        if "train_X" in kwargs:
            name = type(self).__name__
            raise UnsupportedError(
                f"{name} takes a model, not training data. Cross-validate the Gaussian "
                "process; `calibration_report` and `from_history(..., residuals='loo')` judge and "
                "calibrate it by what was held out."
            )
        init(self, *args, **kwargs)

    return checked


class CalibratedModel(WrapperModel, FantasizeMixin):
    """A single-output Gaussian model whose stated coverage is kept true by a calibrator.

    Two ways to keep it up to date:

    * `from_history` replays the calibrator over the training data of a fitted Gaussian
      process, from its one-step-ahead residuals: stateless, for loops and pipelines that
      build the model anew each round;
    * `observe` scores a new observation with the model that predicted it and conditions
      the model on it: stateful, as in the paper.

    What is kept true is the coverage of statements about *observations*, over all rounds together:
    bounds on it hold for any sequence. With ``denoise=True``, the default, the posterior is of the
    objective, and its coverage is not guaranteed: it rests on the model's noise variance. Where
    this is too small, intervals of the objective are too narrow at visited points even after
    calibration, and ``excess="objective"`` widens them. `CalibratedPosterior` has the formulas.

    Its posterior is a `CalibratedPosterior`; BoTorch's analytic (by moments) and Monte Carlo
    acquisition functions, ``optimize_acqf``, pending points and ``ModelList`` take it as they
    take any model.

    Args:
        model: A fitted model with one output, a Gaussian likelihood and a Gaussian
            posterior: ``SingleTaskGP``, ``SingleTaskVariationalGP``, ``MultiTaskGP`` with one
            output task, with any input transform and no or an affine outcome transform; or a
            `CensoredDelayModel` of one, whose pending points shape the prediction alone: the
            calibrator sees residuals of observed values, by the model of observed data.
        calibrator: What it has learned so far is used as it is, and shared, not copied. One that
            has learned nothing is moved to the model's device.
        denoise: Whether `posterior` is of the objective (the default) or, as in the
            paper on OCBO, of the observation. Without observation noise they agree.
        excess: Whose is the spread that the calibrator finds in excess of what the model states,
            ``"noise"`` or ``"objective"``? The former keeps the model's own gain, and is meant for
            the search; the latter takes the model's noise variance for true, and is meant for
            claims about the objective. With ``denoise=False`` it does not matter.

    Raises:
        UnsupportedError: For models with several outputs, ensembles (fully Bayesian models),
            non-Gaussian likelihoods, nonlinear outcome transforms (``Log``, ``Power``, ``Bilog``,
            alone or in a chain: apply them to the observations beforehand) and models that are
            calibrated already, and where ``calibrator`` is none.
        InputDataError: If ``excess`` is unknown, or ``calibrator`` has learned on another device
            than the model's.

    Example:
        >>> gp = SingleTaskGP(X, Y, input_transform=Normalize(d), outcome_transform=Standardize(1))
        >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
        >>> model = CalibratedModel.from_history(gp, LocalizedConformal(0.2, lengthscale=0.25))
        >>> acqf = LogCalibratedExpectedImprovement(model, best_f=Y.max())
    """

    @_refuses_training_data
    def __init__(
        self,
        model: Model,
        calibrator: Calibrator,
        denoise: bool = True,
        excess: str = "noise",
    ) -> None:
        super().__init__()
        _check_model(model)
        _check_calibrator(calibrator)
        self.excess: str = check_one_of("excess", excess, EXCESS)
        self.model = model
        self.calibrator = _beside(model, calibrator)
        self.denoise = denoise
        self._may_warn = True

    @classmethod
    def from_history(
        cls,
        model: Model,
        calibrator: Calibrator,
        num_initial: int = 0,
        denoise: bool = True,
        residuals: str = "prequential",
        excess: str = "noise",
    ) -> CalibratedModel:
        """Calibrate a fitted Gaussian process by replaying its own training data.

        The training data are taken in the order in which they are stored, which must be the
        order in which they were observed. The residuals are those of one-step-ahead
        predictions at the model's current hyperparameters, or, as a calibration set for
        ``QuantileRecalibrator(method="exact")``, those of leaving one out.

        These hyperparameters were fitted to the very data, so with a few dozen of them the
        replayed residuals are somewhat smaller than those met at the time, and the intervals
        somewhat too narrow. The coverage bounds hold for the replayed predictions; for those
        that were made, use `observe`.

        Args:
            model: A fitted exact Gaussian process (not a batch of them), or a
                `CensoredDelayModel` of one, whose observed data alone are replayed. Of a
                ``MultiTaskGP``, whose other tasks help to predict, the output task's are.
            calibrator: Copied, so one template serves every round of a loop. What it has
                learned is built upon: ``calibrator.fresh()`` starts anew.
            num_initial: Number of initial observations (the design) to skip.
            denoise: Whether the model's posterior is of the objective (the default) or of the
                observation.
            residuals: ``"prequential"``, one step ahead, or ``"loo"``, leave-one-out; one
                factorisation either way.
            excess: Whose excess of spread is, ``"noise"`` or ``"objective"``, as in the class.

        Raises:
            UnsupportedError: If ``model`` is not an exact single-output Gaussian process; use
                `observe` instead. Or if its outcome transform is nonlinear, or ``calibrator`` is
                none.
            InputDataError: If there are no training data or fewer than ``num_initial``, or
                ``residuals`` or ``excess`` is unknown.
        """
        _check_model(model)
        _check_calibrator(calibrator)
        observed = observed_process(model)
        X, z, _ = forecast_history(observed, residuals)
        own = in_output_task(observed, X)
        X, z = X[own], z[own]
        if not (isinstance(num_initial, Integral) and 0 <= num_initial <= len(z)):
            raise InputDataError(
                "`num_initial` must be an integer between 0 and the number of observations "
                f"{len(z)}, got {num_initial!r}."
            )
        observed.eval()
        replayed = deepcopy(calibrator).to(z)
        replayed.update(X[num_initial:], z[num_initial:])
        return cls(model, replayed, denoise=denoise, excess=excess)

    @torch.no_grad()
    def observe(
        self,
        X: Tensor,
        Y: Tensor,
        Yvar: Tensor | None = None,
        condition: bool = True,
        learn_from: Tensor | None = None,
        beyond: Tensor | None = None,
    ) -> None:
        """Score new observations, update the calibrator, and condition the model on them.

        All rows are scored with the present model, which has seen none of them. Call it
        before refitting; a refitted model takes the calibrator over: ``model.with_model(new_gp)``
        or ``CalibratedModel(new_gp, model.calibrator)``. Rows that were pending in a
        `CensoredDelayModel` are pending no longer, unless ``condition`` is False.

        Args:
            X: Inputs ``n x d``, in the order of observation.
            Y: Observed values ``n x 1``, in the units of the outcome.
            Yvar: Their noise variances ``n x 1``, in squared units of the outcome, for a base
                model with given noise (default: the mean of its training noise).
            condition: Whether to also condition the base model on the observations.
            learn_from: Which rows teach the calibrator, ``n`` booleans, each compared with its
                present quantiles, which a decision had to be taken by: for an observation with the
                model's noise, whatever ``Yvar`` has become of it. All other rows only condition
                the model. By default all rows teach, in order.
            beyond: Rows that teach and are known to lie beyond every quantile they are compared
                with, whatever rounding makes of it: ``n`` numbers, 1 above it, -1 below it, and 0
                where the residual tells.

        Raises:
            InputDataError: If ``X``, ``Y`` or ``Yvar`` hold NaN or infinite values, a variance is
                negative, ``X`` is more precise than the model, or ``beyond`` holds other numbers
                than -1, 0 and 1.
            BotorchTensorDimensionError: If their shapes are not ``n x d`` and ``n x 1``, or that
                of ``learn_from`` or ``beyond`` is not ``n``.
            UnsupportedError: If the base model is a batch of models or cannot be conditioned.
        """
        observed = observed_process(self.model)
        X = with_task_feature(observed, X)
        check_observations(observed, X, Y, Yvar)
        X, Y = (_as_precise_as(observed, values) for values in (X, Y))
        Yvar = None if Yvar is None else _as_precise_as(observed, Yvar)
        if learn_from is not None and (learn_from.shape, learn_from.dtype) != (
            X.shape[:1],
            torch.bool,
        ):
            raise BotorchTensorDimensionError(
                f"`learn_from` must hold {len(X)} booleans, one for each row of `X`, got "
                f"{learn_from.dtype} of shape {tuple(learn_from.shape)}."
            )
        if beyond is not None:
            _check_beyond(beyond, len(X))
        # One point a batch: only the marginals are needed.
        known = Yvar if learn_from is None else None
        mean, deviation = self.observation_moments(X.unsqueeze(-2), known)
        z = ((Y.unsqueeze(-1) - mean) / deviation).reshape(-1)
        if beyond is not None:
            z = torch.where(beyond == 0, z, beyond.to(z) * torch.finfo(z.dtype).max)
        conditioned = self.model
        if condition:
            conditioned = _extended_by(self.model, X, Y, Yvar)
        inputs = self.transform_inputs(X)
        if learn_from is None:
            self.calibrator.update(inputs, z)
        else:
            self.calibrator.update_at_once(inputs[learn_from], z[learn_from])
        self.model = conditioned

    def observation_moments(self, X: Tensor, Yvar: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of an observation under the Gaussian model.

        By these its residual is standardised, ``z = (y - mean) / deviation``. Pending points of a
        `CensoredDelayModel` do not enter.

        Args:
            X: ``batch_shape x q x d``.
            Yvar: Noise variances ``n x 1`` of ``n`` observations, in squared units of the outcome,
                for ``X`` of shape ``n x 1 x d`` (default: the model's).

        Returns:
            Both ``batch_shape x q x 1``, in units of the outcome.

        Raises:
            UnsupportedError: Under one-to-many input transforms.
        """
        observed = observed_process(self.model)
        X = with_task_feature(observed, X)
        posterior = _gaussian_posterior(observed, X)
        if posterior.mean.shape[-2] != X.shape[-2]:
            raise UnsupportedError(
                "Observations cannot be predicted one by one under one-to-many input transforms."
            )
        if Yvar is None:
            noise = observation_noise_variance(observed, posterior, X)
        else:
            noise = Yvar.unsqueeze(-1)
        return posterior.mean, (objective_variance(observed, posterior) + noise).sqrt()

    # ------------------------------------------------------------ the model interface

    @property
    def gaussian_model(self) -> Model:
        """The model that is calibrated, `model`; `botorch_calib.models.inspection` asks for it."""
        return self.model

    def posterior(  # type: ignore[override]
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> CalibratedPosterior:
        """Calibrated posterior at ``X``; the base posterior is evaluated once.

        Args:
            X: ``batch_shape x q x d``.
            output_indices: None or ``[0]``, as there is one output.
            observation_noise: True for the distribution of an observation; a tensor sets the
                noise variance, in the outcome-transformed space, as in BoTorch.
            posterior_transform: None or a ``ScalarizedPosteriorTransform`` of one weight (for
                example -1 to turn minimisation into maximisation).

        Raises:
            UnsupportedError: For any other transform, or where the base posterior is not
                Gaussian.
            InputDataError: If ``X`` is no tensor or more precise than the model, or
                ``observation_noise`` is neither a boolean nor a tensor of finite variances.
            BotorchTensorDimensionError: If ``X`` has another number of columns than the model.

        Warns:
            CalibrationWarning: Once, if the calibrator has seen too few residuals.
        """
        check_output_indices(output_indices)
        check_tensor("X", X)
        given = _checked_noise(observation_noise)
        if self._may_warn:
            self.warn_if_unlearned()
        predicting = predicting_process(self.model)
        X = with_task_feature(predicting, X)
        base = _gaussian_posterior(predicting, X)
        posterior = self._corrected(base, X, given, self.denoise and observation_noise is False)
        if posterior_transform is None:
            return posterior
        return posterior.affine(*scalar_affine(posterior_transform, "a calibrated posterior"))

    def corrected(
        self,
        posterior: GPyTorchPosterior,
        X: Tensor,
        predictive: PiecewisePredictive | None = None,
    ) -> CalibratedPosterior:
        """The calibrated posterior that belongs to one of the base model, which is at hand already.

        Args:
            posterior: What the base model, pending points included, states at ``X``: in units of
                the outcome, without noise, ``batch_shape x q x 1``.
            X: ``batch_shape x q x d``, with all columns of the base model.
            predictive: What the calibrator states at ``X``, if that is at hand as well.
        """
        predicting = predicting_process(self.model)
        if predicting.training:  # an input transform would learn from X
            predicting.eval()
        return self._corrected(posterior, X, None, self.denoise, predictive)

    def _corrected(
        self,
        base: GPyTorchPosterior,
        X: Tensor,
        given: Tensor | None,
        denoise: bool,
        predictive: PiecewisePredictive | None = None,
    ) -> CalibratedPosterior:
        """From the base posterior at ``X``, with the noise that is given, if any."""
        predicting = predicting_process(self.model)
        noise = observation_noise_variance(predicting, base, X, given=given)
        if predictive is None:
            at_hand = isinstance(base, SinglePointPosterior)
            inputs = base.inputs if at_hand else self.transform_inputs(X)
            predictive = self.calibrator.predictive(inputs)
        least = least_variance(predicting, base)
        return CalibratedPosterior.of_model(base, predictive, noise, denoise, self.excess, least)

    def warn_if_unlearned(self) -> None:
        """Warn where the calibrator has seen too little to correct the model.

        The first `posterior` calls it, and no later one.

        Warns:
            CalibrationWarning: If it has seen fewer residuals than it needs.
        """
        self._may_warn = False
        seen, needed = self.calibrator.num_updates, self.calibrator.num_needed
        if seen < needed:
            warnings.warn(
                f"{type(self.calibrator).__name__} has seen {seen} residuals and needs about "
                f"{needed} to tell its levels: until then its distribution rests on the model or "
                "on bounds.",
                CalibrationWarning,
                stacklevel=3,
            )

    def transform_inputs(self, X: Tensor, input_transform: torch.nn.Module | None = None) -> Tensor:
        """Inputs in the base model's transformed space, where the calibrator works."""
        return self.model.transform_inputs(X, input_transform=input_transform)

    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> CalibratedModel:
        """The model conditioned on observations, its calibrator unchanged.

        Meant for fantasies and pending points, which carry no evidence on calibration; real
        observations belong into `observe`.

        Args:
            X: ``batch_shape x n' x d``.
            Y: ``batch_shape' x n' x 1``.
            kwargs: Passed on to the base model (``noise`` for example).

        Raises:
            BotorchTensorDimensionError: If ``Y`` has not one column and a row for each of ``X``.
            UnsupportedError: If the base model cannot be conditioned.
        """
        if Y.shape[-2:] != (*X.shape[-2:-1], 1):
            raise BotorchTensorDimensionError(
                f"`Y` must have shape ... x {X.shape[-2]} x 1, one row for each of `X`, got "
                f"{tuple(Y.shape)}."
            )
        predicting = predicting_process(self.model)
        base = conditioned_on(predicting, with_task_feature(predicting, X), Y, **kwargs)
        conditioned = self.with_model(base)
        conditioned._may_warn = False  # a fantasy has nothing to add
        return conditioned

    def with_model(self, model: Model, calibrator: Calibrator | None = None) -> CalibratedModel:
        """The same statements by another model, such as one that is refitted or knows more.

        Args:
            model: A model as the constructor takes it.
            calibrator: In place of this model's own, which both then share.

        Raises:
            UnsupportedError: As the constructor does.
            InputDataError: As the constructor does.
        """
        calibrator = self.calibrator if calibrator is None else calibrator
        other = CalibratedModel(model, calibrator, denoise=self.denoise, excess=self.excess)
        other._may_warn = self._may_warn  # once is enough
        return other

    @classmethod
    def construct_inputs(
        cls, training_data: SupervisedDataset, calibrator: Calibrator | None = None
    ) -> dict[str, Any]:
        """Arguments of the constructor from a dataset with one outcome.

        Args:
            training_data: Data of a ``SingleTaskGP`` (still to be fitted), which is built with
                ``Normalize`` and ``Standardize``.
            calibrator: Calibrator to use (default: `LocalizedConformal` at ``alpha = 0.2``).
        """
        data: dict[str, Any] = super().construct_inputs(training_data)
        default = LocalizedConformal(alpha=0.2)
        return {
            "model": standardized_gp(**data),
            "calibrator": default if calibrator is None else calibrator,
        }


def _check_model(model: Model) -> None:
    check_base(model)
    check_outcome_transform(observed_process(model))
    if any(isinstance(part, CalibratedModel) for part in model.modules()):
        raise UnsupportedError(
            f"`model` must be a Gaussian model, and this {type(model).__name__} is calibrated "
            "already: give the model inside it."
        )


def _check_calibrator(calibrator: object) -> None:
    if not isinstance(calibrator, Calibrator):
        kind = calibrator if isinstance(calibrator, type) else type(calibrator)
        raise UnsupportedError(
            "`calibrator` must be a calibrator such as LocalizedConformal(0.2), got "
            f"{kind.__name__}."
        )


def _beside(model: Model, calibrator: Calibrator) -> Calibrator:
    """The calibrator, on the model's device: one that has learned nothing lies on the CPU.

    A state that is loaded into it goes to where it lies. One that has learned may serve another
    model where it lies, so it is not moved.
    """
    parameter = next(model.parameters(), None)
    if parameter is None or all(each.device == parameter.device for each in calibrator.buffers()):
        return calibrator
    if calibrator.num_updates:
        raise InputDataError(
            f"`calibrator` has learned on another device than the model's, {parameter.device}: "
            f'give `calibrator.to("{parameter.device}")`, or a copy of it if another model has it.'
        )
    return calibrator.to(parameter.device)


def _check_beyond(beyond: Tensor, num: int) -> None:
    if beyond.shape != (num,):
        raise BotorchTensorDimensionError(
            f"`beyond` must hold {num} numbers, one for each row of `X`, got the shape "
            f"{tuple(beyond.shape)}."
        )
    if not ((beyond == 0) | (beyond.abs() == 1)).all():
        raise InputDataError(f"`beyond` must hold -1, 0 and 1 only, got {beyond.tolist()}.")


def _as_precise_as(model: Model, values: Tensor) -> Tensor:
    """``values`` in the precision of the model's parameters, where that is the greater one.

    BoTorch rounds its input transforms to the precision of what they are given, for good.
    """
    parameter = next(model.parameters(), None)
    if parameter is None:
        return values
    return values.to(torch.promote_types(values.dtype, parameter.dtype))


def _extended_by(model: Any, X: Tensor, Y: Tensor, Yvar: Tensor | None) -> Model:
    """``model`` conditioned on observations, which then are pending no longer."""
    if observed_process(model) is not model:
        extended: Model = model.with_observations(X, Y, Yvar)
        return extended
    return conditioned_on(model, X, Y, **given_noise(model, X, Y, Yvar))


def _checked_noise(observation_noise: bool | Tensor) -> Tensor | None:
    """The noise variances that are given, if there are any."""
    if isinstance(observation_noise, Tensor):
        # Acquisition functions give booleans, so this waits for no device where that costs.
        return check_variances("observation_noise", observation_noise)
    if isinstance(observation_noise, Number) and not isinstance(observation_noise, bool):
        raise InputDataError(
            "`observation_noise` must be True, False or a tensor of variances, got "
            f"{observation_noise!r}."
        )
    return None


def _gaussian_posterior(model: Any, X: Tensor) -> GPyTorchPosterior:
    posterior = posterior_at(model, X)
    if not is_gaussian(posterior):
        raise UnsupportedError(
            f"The posterior of {type(model).__name__} is a {type(posterior).__name__}, "
            "not Gaussian in the units of the outcome. Use no outcome transform or "
            "Standardize, and apply nonlinear transforms to the observations beforehand."
        )
    return posterior
