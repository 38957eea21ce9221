"""`CalibratedModelList`: a model of several independent outcomes, with calibrated marginals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform, ScalarizedPosteriorTransform
from botorch.exceptions import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models.deterministic import DeterministicModel
from botorch.models.ensemble import EnsembleModel
from botorch.models.gpytorch import BatchedMultiOutputGPyTorchModel, GPyTorchModel
from botorch.models.model import Model, ModelList
from botorch.models.model_list_gp_regression import ModelListGP
from botorch.posteriors import Posterior
from botorch.posteriors.ensemble import EnsemblePosterior
from botorch.sampling.base import MCSampler
from botorch.sampling.list_sampler import ListSampler
from botorch.utils.transforms import is_ensemble
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor

from botorch_calib._validation import check_flag, check_model, check_tensor
from botorch_calib.calibration import Calibrator
from botorch_calib.models.calibrated import CalibratedModel
from botorch_calib.models.conditioning import conditioned_on, with_observations
from botorch_calib.models.known_data import without_known
from botorch_calib.models.outcome_transforms import check_takes
from botorch_calib.models.predict import predict, slots_of
from botorch_calib.models.process import (
    checked_observations,
    likelihood_of,
    observed_process,
    raw_train_inputs,
)
from botorch_calib.models.requirements import check_fantasizes, one_outcome_of, scalar_affine
from botorch_calib.models.surrogate import Surrogate
from botorch_calib.posteriors import CalibratedPosterior, CalibratedPosteriorList


class CalibratedModelList(ModelList):
    """A model with several independent outputs, each calibrated or not.

    The model can replace a ``ModelListGP``: BoTorch's Monte Carlo acquisition functions of several
    outcomes, pending points, noise tensors and fantasies work in the same way. Without calibrators,
    acquisition functions have the same values. With calibrators, the joint posterior is not normal.
    For a weighted sum of outcomes, pass an ``objective`` instead of a ``posterior_transform`` to
    the acquisition function. For entropy search, pass `gaussian_model`.

    Args:
        models: One model with a single output for each outcome. A model may be a `CalibratedModel`,
            a `CensoredDelayModel`, a Gaussian model, or a ``DeterministicModel``, but not an
            ensemble. The models may have different training inputs.

    Raises:
        UnsupportedError: If no model is given, or a model has several outputs or is an ensemble.

    Example:
        >>> gps = ModelListGP(SingleTaskGP(X, Y), SingleTaskGP(X, -Y))
        >>> model = CalibratedModelList.from_history(gps, LocalizedConformal(0.2))
        >>> samples = model.posterior(X).rsample(torch.Size([16]))  # 16 x 20 x 2
    """

    models: Any  # a ``ModuleList`` of models

    # BoTorch's noisy expected improvement can cache Cholesky roots only for BoTorch's models.
    _supports_cache_root = False

    def __init__(self, *models: Model) -> None:
        if not models:
            raise UnsupportedError("A CalibratedModelList needs a model for each outcome.")
        for model in models:
            _check_member(model)
        super().__init__(*models)

    @classmethod
    def from_history(
        cls,
        model: Model,
        calibrator: Calibrator | Sequence[Calibrator | None],
        num_initial: int = 0,
        denoise: bool = True,
        residuals: str = "prequential",
        excess: str = "noise",
    ) -> CalibratedModelList:
        """Calibrate each outcome of a fitted model by replaying its training data.

        ``model`` is a ``ModelListGP`` or ``ModelList`` of models that
        `CalibratedModel.from_history` accepts, or a model with a batch of independent outputs, such
        as a ``SingleTaskGP`` of ``m`` outcomes. A single ``calibrator`` is copied for each outcome.
        A sequence contains one element for each outcome: a calibrator, which is copied, or None for
        an outcome without calibration. For the other arguments see `CalibratedModel.from_history`.
        If their values differ between outcomes, pass `CalibratedModel` objects to the constructor.

        Raises:
            UnsupportedError: If a model cannot be calibrated, or has correlated outputs.
            InputDataError: If the length of ``calibrator`` is not the number of outcomes.
        """
        models = _models_of_outcomes(check_model(model))
        each = list(calibrator) if isinstance(calibrator, Sequence) else [calibrator] * len(models)
        if len(each) != len(models):
            raise InputDataError(
                f"`calibrator` must be one calibrator, or one for each of {len(models)} outcomes, "
                f"got {len(each)}."
            )
        options = num_initial, denoise, residuals, excess
        return cls(
            *(
                part if own is None else CalibratedModel.from_history(part, own, *options)
                for part, own in zip(models, each, strict=True)
            )
        )

    @property
    def gaussian_model(self) -> ModelListGP:
        """A ``ModelListGP`` without calibration, whose models are conditioned on pending points."""
        return ModelListGP(*(getattr(model, "gaussian_model", model) for model in self.models))

    @property
    def train_inputs(self) -> list[Tensor]:
        """Raw training inputs, ``n_i x d`` for outcome ``i``; outcomes without data are skipped."""
        inputs = (raw_train_inputs(model) for model in self.models)
        return [own for own in inputs if own is not None]

    # ------------------------------------------------------------ the model interface

    def posterior(  # type: ignore[override]
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
        baseline: Tensor | None = None,
    ) -> Any:
        """Return a `CalibratedPosteriorList` of the outcomes at ``X``, ``batch_shape x q x d``.

        For arguments see `CalibratedModel.posterior`. A tensor ``observation_noise`` has one column
        for each outcome. A ``posterior_transform`` must be a ``ScalarizedPosteriorTransform`` with
        one weight for each selected outcome, of which one is not zero; the result is then the
        transformed posterior of the outcome with this weight.
        """
        num = self.num_outputs
        indices = range(num) if output_indices is None else output_indices
        if not all(-num <= i < num for i in indices):
            raise InputDataError(f"`output_indices` {indices} name none of {num} outcomes.")
        chosen = [i % num for i in indices]
        if isinstance(observation_noise, Tensor) and observation_noise.shape[-1:] != (num,):
            raise BotorchTensorDimensionError(
                f"`observation_noise` must have one column for each of {num} outcomes, got shape "
                f"{tuple(observation_noise.shape)}."
            )
        if posterior_transform is not None:
            place, transform = _of_sole_outcome(posterior_transform, len(chosen))
            index = chosen[place]
            part: Any = self._posterior_of(index, X, observation_noise, baseline)
            if isinstance(self.models[index], DeterministicModel):  # `transform` needs a Gaussian
                return EnsemblePosterior(transform.offset + transform.weights * part.values)
            if isinstance(part, CalibratedPosterior):
                return part.affine(*scalar_affine(transform, "an outcome"))
            return transform(part, X=X)
        parts = (self._posterior_of(i, X, observation_noise, baseline) for i in chosen)
        return CalibratedPosteriorList(*parts)

    def _posterior_of(
        self, index: int, X: Tensor, noise: bool | Tensor, baseline: Tensor | None
    ) -> Posterior:
        model = self.models[index]
        if isinstance(model, DeterministicModel):  # it has no noise
            return model.posterior(X)
        given = noise[..., index : index + 1] if isinstance(noise, Tensor) else None
        noise = noise if given is None else given
        if slots_of(model).calibrator is not None:
            return model.posterior(X, observation_noise=noise, baseline=baseline)
        if not isinstance(model, (Surrogate, GPyTorchModel)):
            return model.posterior(X, observation_noise=noise)
        return predict(model, X, objective=noise is False, noise=given, baseline=baseline)

    def fantasize(
        self,
        X: Tensor,
        sampler: MCSampler,
        observation_noise: Tensor | None = None,
        evaluation_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> CalibratedModelList:
        """Return the model conditioned on draws from its posterior at ``X``.

        For arguments see ``ModelListGP``. A ``ListSampler`` contains one sampler for each outcome.
        Any other ``sampler`` draws all outcomes together, with independent base samples. An
        ``evaluation_mask`` needs a ``ListSampler``.
        """
        for model in self.models:
            check_fantasizes(model, "`fantasize`")
            # BoTorch needs models that have been evaluated, and does not evaluate a model itself if
            # the mask selects no point for its outcome. So evaluate each model here.
            if getattr(model, "prediction_strategy", sampler) is None:
                with torch.no_grad():
                    model.posterior(X)
        if isinstance(sampler, ListSampler) or evaluation_mask is not None:
            return super().fantasize(X, sampler, observation_noise, evaluation_mask, **kwargs)  # type: ignore[return-value]
        noise = True if observation_noise is None else observation_noise
        samples = sampler(self.posterior(X, observation_noise=noise))
        conditioned = []
        for i, model in enumerate(self.models):
            own = samples[..., i : i + 1]
            given = None if observation_noise is None else observation_noise[..., i : i + 1]
            conditioned.append(
                model.fantasize(X, lambda _, own=own: own, observation_noise=given, **kwargs)
            )
        return CalibratedModelList(*conditioned)

    def condition_on_observations(
        self, X: Tensor | Sequence[Tensor], Y: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> CalibratedModelList:
        """Return the model conditioned on fantasies or imputed values; calibrators do not change.

        For arguments see ``ModelListGP``. ``X`` is ``batch_shape x n' x d``, or a sequence of one
        tensor of this shape for each of the ``m`` outcomes. ``Y`` and the noise variances ``noise``
        (after the outcome transforms) are ``batch_shape' x n' x m``.
        """
        inputs = self._inputs_of_outcomes(X, Y)
        conditioned = []
        for i, (model, own) in enumerate(zip(self.models, inputs, strict=True)):
            given = {} if noise is None else {"noise": noise[..., i : i + 1]}
            conditioned.append(conditioned_on(model, own, Y[..., i : i + 1], **given, **kwargs))
        return CalibratedModelList(*conditioned)

    @torch.no_grad()
    def observe(
        self,
        X: Tensor | Sequence[Tensor],
        Y: Tensor,
        Yvar: Tensor | None = None,
        condition: bool = True,
    ) -> None:
        """Update all calibrators with new observations, and condition the models on them.

        For each outcome this is `CalibratedModel.observe`. For observations of a single outcome
        ``i``, call ``model.models[i].observe(X, Y)``.

        Args:
            X: Inputs ``n x d`` in the order of observation, or a sequence of one
                tensor of this shape for each of the ``m`` outcomes.
            Y: Observed values ``n x m``, in units of the outcomes.
            Yvar: Noise variances ``n x m``, in squared units of the outcomes; ignored for models
                that learn the noise.
            condition: Whether to condition the models; if not, only the calibrators are updated.

        Raises:
            InputDataError: If an argument is malformed. In this case no model is changed.
            UnsupportedError: If a model is batched or cannot be conditioned.
        """
        check_flag("condition", condition)
        if Yvar is not None and check_tensor("Yvar", Yvar).shape != Y.shape:
            raise BotorchTensorDimensionError(
                f"`Yvar` must have the shape of `Y`, {tuple(Y.shape)}, got {tuple(Yvar.shape)}."
            )
        data: list[tuple[int, Tensor, Tensor, Tensor | None]] = []
        for i, own in enumerate(self._inputs_of_outcomes(X, Y)):
            gp = observed_process(self.models[i])
            if isinstance(gp, DeterministicModel):
                continue
            takes_noise = isinstance(likelihood_of(gp), FixedNoiseGaussianLikelihood)
            given = Yvar[..., i : i + 1] if Yvar is not None and takes_noise else None
            checked = checked_observations(gp, own, Y[..., i : i + 1], given)
            check_takes(gp, *checked[:2])
            data.append((i, *without_known(gp, *checked)[:3]))
        for i, own, values, given in data:
            model = self.models[i]
            if isinstance(model, Surrogate):
                model.learn(own, values, given, condition)
            elif condition and len(own):
                self.models[i] = with_observations(model, own, values, given)

    def _inputs_of_outcomes(self, X: Tensor | Sequence[Tensor], Y: Tensor) -> list[Tensor]:
        inputs = [X] * self.num_outputs if isinstance(X, Tensor) else list(X)
        if not (isinstance(Y, Tensor) and Y.shape[-1:] == (self.num_outputs,) == (len(inputs),)):
            raise BotorchTensorDimensionError(
                f"`Y` must have {self.num_outputs} columns, and `X` be a tensor or as many of them."
            )
        return inputs


def _check_member(model: Model) -> None:
    name = type(check_model(model)).__name__
    if isinstance(model, ModelList) or model.num_outputs != 1:
        raise UnsupportedError(
            f"Each model of a CalibratedModelList has one outcome, and {name} has "
            f"{model.num_outputs}: give them one by one, each around {one_outcome_of(model)}."
        )
    is_known = isinstance(model, DeterministicModel)
    if is_ensemble(model) or (isinstance(model, EnsembleModel) and not is_known):
        raise UnsupportedError(
            f"{name} is an ensemble, whose samples are not from one process: pass all models to "
            "BoTorch's ModelList, and use BoTorch's acquisition functions."
        )


def _models_of_outcomes(model: Any) -> list[Model]:
    """Return single-output models of the outcomes of a list, or of a model with several outputs.

    Models with correlated outputs raise ``UnsupportedError``.
    """
    if isinstance(model, ModelList):
        return [part for each in model.models for part in _models_of_outcomes(each)]
    if model.num_outputs == 1:
        return [model]
    if isinstance(model, BatchedMultiOutputGPyTorchModel):
        return [model.subset_output([i]) for i in range(model.num_outputs)]
    raise UnsupportedError(
        f"The {model.num_outputs} outputs of a {type(model).__name__} are correlated, and "
        "calibrated outcomes are independent: give a ModelListGP of one model per outcome, "
        f"each around {one_outcome_of(model)}."
    )


def _of_sole_outcome(
    transform: PosteriorTransform, num: int
) -> tuple[int, ScalarizedPosteriorTransform]:
    """Return the index of the only outcome with a nonzero weight, and its own transform.

    ``num`` is the number of outcomes. Other transforms raise ``UnsupportedError``.
    """
    if isinstance(transform, ScalarizedPosteriorTransform):
        weights: Any = transform.weights
        places = weights.nonzero().flatten().tolist()
        if len(weights) == num and len(places) == 1:
            (place,) = places
            own = ScalarizedPosteriorTransform(weights[place : place + 1], transform.offset)
            return place, own
    raise UnsupportedError(
        f"`posterior_transform` {type(transform).__name__} needs jointly normal outcomes, and "
        "calibrated outcomes are not: pass `objective=LinearMCObjective(weights)`, or a "
        "GenericMCObjective, of `botorch.acquisition.objective` to a Monte Carlo acquisition "
        "function instead."
    )
