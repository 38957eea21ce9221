"""`CalibratedModel`: a BoTorch model with calibrated marginals."""

from __future__ import annotations

import warnings
from copy import deepcopy
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models.model import FantasizeMixin, Model
from botorch.utils.datasets import SupervisedDataset
from torch import Tensor

from botorch_calib._validation import (
    check_flag,
    check_model,
    check_one_of,
    check_tensor,
    check_variances,
)
from botorch_calib.calibration import Calibrator, LocalizedConformal
from botorch_calib.exceptions import CalibrationWarning, level_of_caller
from botorch_calib.models.conditioning import conditioned_on, with_observations
from botorch_calib.models.predict import (
    history,
    inputs_of_calibrator,
    observations_only,
    predict,
    prediction_of_observations,
)
from botorch_calib.models.process import (
    has_members,
    observed_process,
    predicting_process,
    states_cdf_alone,
    with_task_feature,
)
from botorch_calib.models.requirements import (
    check_fantasizes,
    check_process,
    check_same_width,
    checked_observations,
    scalar_affine,
)
from botorch_calib.models.wrapper import WrapperModel, check_output_indices, standardized_gp
from botorch_calib.posteriors import CalibratedPosterior
from botorch_calib.posteriors.prediction import EXCESS


class CalibratedModel(WrapperModel, FantasizeMixin):
    """A single-output Gaussian model whose stated coverage is kept true by a calibrator.

    `from_history` makes it anew in each round, by replaying the training data of a fitted Gaussian
    process; `observe` keeps one model up to date, as in the paper. BoTorch's analytic and Monte
    Carlo acquisition functions, ``optimize_acqf`` and pending points take it as any model; several
    outcomes go into a `CalibratedModelList`.

    The calibrator keeps the coverage of statements about *observations* true, over all rounds
    together and for any sequence of data. The coverage of the objective rests on the model's noise
    variance: where that is too small, intervals of the objective stay too narrow at visited points,
    and ``excess="objective"`` widens them. `CalibratedPosterior` has the formulas.

    Args:
        model: A fitted model with one output, a Gaussian likelihood and a Gaussian posterior, as
            ``SingleTaskGP``, ``SingleTaskVariationalGP`` or ``MultiTaskGP`` with one output task,
            with any input transform and no or an increasing outcome transform; a
            `CensoredDelayModel` of one, whose calibrator sees residuals of observed values alone;
            an ensemble of such, as ``SaasFullyBayesianSingleTaskGP`` or a `NoisyEnsemble`, whose
            members' mixture is calibrated; or any model whose posterior has a cdf and its inverse.
        calibrator: Shared, not copied, with what it has learned. One that has learned nothing is
            moved to the model's device.
        denoise: Whether `posterior` is of the objective or, as in the paper on OCBO, of the
            observation.
        excess: ``"noise"`` or ``"objective"``, the source of spread in excess of the model's.
            The former keeps the model's own gain, for the search; the latter takes the model's
            noise variance for true, for claims about the objective. With ``denoise=False`` it does
            not matter.

    Raises:
        UnsupportedError: For models with several outputs, non-Gaussian likelihoods, outcome
            transforms that do not increase and calibrated models.
        InputDataError: If ``calibrator`` has learned on another device.

    Example:
        >>> model = CalibratedModel.from_history(gp, LocalizedConformal(0.2))
        >>> posterior = model.posterior(X)
        >>> upper = posterior.quantile(0.9)  # 20 x 1
        >>> model.observe(X[:1], Y[:1])  # new data, scored by the model before its refit
    """

    def __init__(
        self, model: Model, calibrator: Calibrator, denoise: bool = True, excess: str = "noise"
    ) -> None:
        super().__init__()
        _check_model(model)
        _check_calibrator(calibrator)
        self.excess: str = check_one_of("excess", excess, EXCESS)
        process = observed_process(model)
        if denoise and states_cdf_alone(process):
            raise observations_only(process)
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

        They must be stored in the order in which they were observed. Residuals are computed at the
        present hyperparameters. These were fitted to the same data, so with a few dozen of them
        residuals are somewhat smaller than those met at the time, and intervals too narrow. The
        coverage bounds hold for the replayed predictions; for those that were made, use `observe`.

        Args:
            model: A fitted exact Gaussian process, not a batch, an ensemble of such, or a
                `CensoredDelayModel`, whose observed data are replayed. For a ``MultiTaskGP`` these
                are the data of the output task.
            calibrator: Copied, with what it has learned: ``calibrator.fresh()`` starts anew.
            num_initial: Number of initial observations (the design) to skip.
            denoise: As in the class.
            residuals: ``"prequential"``, one step ahead, or ``"loo"``, leave-one-out, as a
                calibration set for ``QuantileRecalibrator(method="exact")``.
            excess: As in the class.

        Raises:
            UnsupportedError: If ``model`` is no exact Gaussian process: use `observe`.
            InputDataError: If there are no training data, or fewer than ``num_initial``.
        """
        _check_model(model)
        _check_calibrator(calibrator)
        process = observed_process(model)
        X, z, *_ = history(process, residuals, num_initial)
        process.eval()
        replayed = deepcopy(calibrator).to(z)
        replayed.update(X, z)
        return cls(model, replayed, denoise=denoise, excess=excess)

    @torch.no_grad()
    def observe(
        self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None, condition: bool = True
    ) -> None:
        """Score new observations, update the calibrator, and condition the model on them.

        The present model, which has seen none of them, scores all rows. Call it before refitting;
        the refitted model takes the calibrator over by `with_model`. Data in another precision than
        an exact Gaussian process are converted to its own.

        Args:
            X: Inputs ``n x d``, in the order of observation.
            Y: Observed values ``n x 1``, in units of the outcome.
            Yvar: Their noise variances ``n x 1``, for a base model with given noise (default, and
                where they are NaN: the mean of its training noise, and that which a
                `PartlyKnownNoiseGP` has learned), without what it learns beside them.
            condition: Whether to also condition the base model on the observations. Rows that were
                pending in a `CensoredDelayModel` then no longer are.

        Raises:
            UnsupportedError: If the base model is batched or cannot be conditioned.
        """
        process = observed_process(self.model)
        X, Y, Yvar = checked_observations(process, X, Y, Yvar)
        stated, z = prediction_of_observations(process, X, Y, Yvar)
        conditioned = self.model
        if check_flag("condition", condition):
            # A model of pending points keeps those that are still out.
            with_data = getattr(self.model, "with_observations", None)
            data = X, Y, Yvar
            conditioned = with_data(*data) if with_data else with_observations(self.model, *data)
        self.calibrator.update(inputs_of_calibrator(stated).squeeze(-2), z)
        self.model = conditioned

    # ------------------------------------------------------------ the model interface

    @property
    def _is_ensemble(self) -> bool:  # type: ignore[override]
        """Whether samples have a dimension of members, over which BoTorch averages."""
        return has_members(observed_process(self.model))

    def posterior(  # type: ignore[override]
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
        baseline: Tensor | None = None,
    ) -> CalibratedPosterior:
        """Calibrated posterior at ``X``, ``batch_shape x q x d``.

        As in BoTorch's models, ``observation_noise`` is True for the distribution of an
        observation, or a tensor of noise variances in the outcome-transformed space.
        ``posterior_transform`` is a ``ScalarizedPosteriorTransform`` of one weight, if any. With a
        ``baseline``, ``r x d``, the posterior knows its covariance with the objective there.

        Warns:
            CalibrationWarning: Once, if the calibrator has seen too few residuals.
        """
        check_output_indices(output_indices)
        check_tensor("X", X)
        # Acquisition functions give booleans, so this waits for no device where that costs.
        given = None
        if isinstance(observation_noise, Tensor):
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
        """Warn, once, if the calibrator has seen fewer residuals than it needs."""
        if not self._may_warn:  # nothing is read from a device then
            return
        self._may_warn = False
        seen, needed = self.calibrator.num_updates, self.calibrator.num_needed
        if seen < needed:
            warnings.warn(
                f"{type(self.calibrator).__name__} has seen {seen} residuals and needs about "
                f"{needed} to tell its levels: until then its distribution rests on the model or "
                "on bounds.",
                CalibrationWarning,
                stacklevel=level_of_caller(),
            )

    def fantasize(self, X: Tensor, sampler: Any, *args: Any, **kwargs: Any) -> CalibratedModel:
        """BoTorch's ``fantasize``; ``UnsupportedError`` for models that cannot be conditioned."""
        check_fantasizes(predicting_process(self.model), "`fantasize`")
        return super().fantasize(X, sampler, *args, **kwargs)

    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> CalibratedModel:
        """The model conditioned on fantasies or imputed values, its calibrator unchanged.

        ``X`` is ``batch_shape x n' x d``, ``Y`` is ``batch_shape' x n' x 1``, and the base model
        takes further arguments, such as ``noise``. Real observations belong into `observe`.
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
        """The same settings and calibrator, or another ``calibrator``, with another model.

        Raises:
            BotorchTensorDimensionError: If ``model`` has inputs of another width.
        """
        check_same_width(self.model, model)
        calibrator = self.calibrator if calibrator is None else calibrator
        other = CalibratedModel(model, calibrator, denoise=self.denoise, excess=self.excess)
        other._may_warn = self._may_warn  # once is enough
        return other

    @classmethod
    def construct_inputs(
        cls, training_data: SupervisedDataset, calibrator: Calibrator | None = None
    ) -> dict[str, Any]:
        """Arguments of the constructor, with an unfitted ``SingleTaskGP`` of the data.

        ``calibrator`` is by default a `LocalizedConformal` at ``alpha = 0.2``.
        """
        return {
            "model": standardized_gp(**super().construct_inputs(training_data)),
            "calibrator": LocalizedConformal(alpha=0.2) if calibrator is None else calibrator,
        }


def _check_model(model: Model) -> None:
    check_model(model)
    process = observed_process(model)
    check_process(process)
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
    """The calibrator, moved to the model's device if it has learned nothing.

    One that has learned may serve another model where it lies, so it is not moved.
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
