"""`ReplayedModel`, by which Ax models a calibrated outcome: its own Gaussian process, and a replay.

Importing this module teaches Ax to build, fit, cross-validate and store a `ReplayedModel`, and to
store a `PartlyKnownNoiseGP`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ax.core.search_space import SearchSpaceDigest
from ax.generators.torch.botorch_modular.surrogate import Surrogate as AxSurrogate
from ax.generators.torch.botorch_modular.surrogate import submodel_input_constructor
from ax.generators.torch.botorch_modular.utils import (
    ModelConfig,
    choose_model_class,
    fit_botorch_model,
)
from ax.storage.botorch_modular_registry import (
    MODEL_REGISTRY,
    REVERSE_MODEL_REGISTRY,
    register_model,
)
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.posteriors.ensemble import EnsemblePosterior
from botorch.utils.datasets import MultiTaskDataset, SupervisedDataset

from botorch_calib._validation import check_one_of
from botorch_calib.calibration import Calibrator, LocalizedConformal
from botorch_calib.integrations.stored_calibrators import (
    calibrator_class,
    checked_options,
    stored_name,
)
from botorch_calib.models import CalibratedModel, PartlyKnownNoiseGP
from botorch_calib.models.residuals import RESIDUALS
from botorch_calib.models.surrogate import Surrogate
from botorch_calib.posteriors import CalibratedPosterior
from botorch_calib.posteriors.prediction import EXCESS


class Replays(Surrogate):
    """A surrogate that makes its calibrator, if it has one, by replaying its own data."""

    new_calibrator: Callable[[], Calibrator] | None = None
    residuals = "prequential"

    def replay(self) -> None:
        """Calibrate anew, from the training data of the Gaussian process as it is now."""
        if self.new_calibrator is not None:
            fresh, residuals = self.new_calibrator(), self.residuals
            replayed = CalibratedModel.from_history(self.model, fresh, residuals=residuals)
            self.calibrator = replayed.calibrator

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load the Gaussian process, and replay."""
        loaded = super().load_state_dict(*args, **kwargs)
        self.replay()
        return loaded


class ReplayedModel(Replays, CalibratedModel):
    """A `CalibratedModel` whose calibrator is always the replay of its own data.

    In cross-validation Ax loads the hyperparameters of the whole into a model of a part of the
    data. The calibrator then replays that part, and nothing that is held out. ``model`` is yet to
    be fitted; other arguments are as of `CalibratedModel.from_history`.
    """

    def __init__(
        self,
        model: Model,
        new_calibrator: Callable[[], Calibrator],
        residuals: str = "prequential",
        **settings: Any,
    ) -> None:
        super().__init__(model, new_calibrator(), **settings)
        self.new_calibrator, self.residuals = new_calibrator, residuals


def calibrated_model_config(
    calibrator: type[Calibrator] = LocalizedConformal,
    *,
    denoise: bool = True,
    residuals: str = "prequential",
    excess: str = "noise",
    model_class: type[Model] | None = None,
    **options: Any,
) -> ModelConfig:
    """A configuration that has Ax model an outcome by its own Gaussian process, calibrated.

    It is for `calibrated_generation_strategy`, for Ax's own ``choose_generation_strategy`` (method
    ``"custom"``) or, as the only configuration of an outcome, for a ``SurrogateSpec``. Outcomes are
    calibrated after Ax's transforms: very bad ones are winsorized by default.

    Other fields of the configuration describe the Gaussian process, as without calibration:
    ``dataclasses.replace(calibrated_model_config(), covar_module_class=...)``. Not supported are
    tasks, Ax's selection among models and its sensitivity analysis. An objective that is a sum of
    outcomes needs `calibrated_generation_strategy`, or constraints. To save an experiment as JSON
    the calibrator must be a class of this package.

    Args:
        calibrator: The class of the calibrator. Each fit makes a new one.
        denoise: As in `CalibratedModel`.
        residuals: As in `CalibratedModel.from_history`.
        excess: As in `CalibratedModel`.
        model_class: The class of the model beneath (default: Ax chooses), of those that Ax stores,
            such as ``SaasFullyBayesianSingleTaskGP``, for which ``dataclasses.replace`` sets the
            options of its sampler, ``mll_options``.
        options: Arguments of the calibrator, plain values; ``alpha=0.2`` if there are none and it
            is a `LocalizedConformal`. For other values, write a subclass that sets them.

    Raises:
        InputDataError: If an argument is unknown, or an option of the calibrator not a plain value.

    Example:
        >>> config = calibrated_model_config(QuantileRecalibrator, step_decay=0.3)
        >>> client.set_generation_strategy(calibrated_generation_strategy(client, config))
    """
    check_one_of("residuals", residuals, RESIDUALS)
    check_one_of("excess", excess, EXCESS)
    options = checked_options(calibrator, options)
    if model_class is not None and model_class not in MODEL_REGISTRY:
        raise InputDataError(
            f"`model_class` must be one that Ax can store, got {model_class}: teach Ax another by "
            "`ax.storage.botorch_modular_registry.register_model`."
        )
    beneath = {} if model_class is None else {"model_class": MODEL_REGISTRY[model_class]}
    settings = ", ".join(f"{name}={value}" for name, value in options.items())
    return ModelConfig(
        botorch_model_class=ReplayedModel,
        model_options={
            "calibrator": stored_name(calibrator),
            "calibrator_options": options,
            "denoise": denoise,
            "residuals": residuals,
            "excess": excess,
            **beneath,
        },
        name=f"{calibrator.__name__}({settings})",
    )


@submodel_input_constructor.register(ReplayedModel)
def _replayed_inputs(
    botorch_model_class: type[Model], *, model_config: ModelConfig, **given: Any
) -> dict[str, Any]:
    """Arguments of `ReplayedModel`: Ax's own model, not fitted yet, and how to calibrate it."""
    spec = given["surrogate"].surrogate_spec
    for name in given["dataset"].outcome_names:
        if len(spec.metric_to_model_configs.get(name, spec.model_configs)) > 1:
            raise UnsupportedError(
                "Ax selects among models by their Gaussian posteriors: give the outcome "
                f"{name!r} the calibrated configuration alone."
            )
    options = dict(model_config.model_options)
    calibrator, settings = options.pop("calibrator"), options.pop("calibrator_options")
    own = {name: options.pop(name) for name in ("denoise", "residuals", "excess")}
    beneath = REVERSE_MODEL_REGISTRY.get(options.pop("model_class", ""))
    model = model_within(beneath, options, model_config, **given)
    new_calibrator = partial(calibrator_class(calibrator), **settings)
    return {"model": model, "new_calibrator": new_calibrator, **own}


def model_within(
    model_class: type[Model] | None,
    options: dict[str, Any],
    model_config: ModelConfig,
    dataset: SupervisedDataset,
    search_space_digest: SearchSpaceDigest,
    surrogate: AxSurrogate,
) -> Model:
    """The model to be wrapped, not fitted, by its own class (None: Ax chooses) and options."""
    if isinstance(dataset, MultiTaskDataset):
        raise UnsupportedError("Wrapped models of several tasks are not supported in Ax.")
    if model_class is None:
        model_class = choose_model_class(dataset=dataset, search_space_digest=search_space_digest)
        # The standard errors of some trials may not be known, which BoTorch's class refuses.
        if model_class is SingleTaskGP and dataset.Yvar is not None:
            model_class = PartlyKnownNoiseGP
    inputs = submodel_input_constructor(
        model_class,
        model_config=replace(model_config, botorch_model_class=model_class, model_options=options),
        dataset=dataset,
        search_space_digest=search_space_digest,
        surrogate=surrogate,
    )
    return model_class(**inputs)


def calibrated_or_plain(calibrated: ModelConfig | None) -> ModelConfig:
    """The configuration, of a `ReplayedModel` or of Ax's own model, which None stands for."""
    config = ModelConfig() if calibrated is None else calibrated
    model_class = config.botorch_model_class if isinstance(config, ModelConfig) else config
    if model_class not in (None, ReplayedModel, PartlyKnownNoiseGP):
        raise InputDataError(
            "`calibrated` must be a calibrated_model_config, or one of a PartlyKnownNoiseGP, got "
            f"one of {model_class}."
        )
    return config


@fit_botorch_model.register(Replays)
def _fit_replayed(model: Replays, **given: Any) -> None:
    """Fit the Gaussian process as Ax does, then replay the history."""
    fit_botorch_model(model.model, **given)
    model.replay()
    # Now, as the optimiser's heuristics would be the first to ask for a posterior, and drop it.
    model.warn_if_unlearned()


register_model(ReplayedModel)
register_model(PartlyKnownNoiseGP)
# Of such a posterior Ax predicts the moments of the mixture, which members have as well.
EnsemblePosterior.register(CalibratedPosterior)
