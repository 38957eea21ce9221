"""Calibrated models in Ax, through its modular BoTorch generator.

It needs Ax (``pip install botorch_calib[ax]``). Importing this module teaches Ax to build, fit and
store a `CalibratedModel`, and to store the acquisition functions of one. The Gaussian process
within is the one that Ax would have used by itself: its choice of class, its transforms, data and
fit. After the fit the calibrator replays the history, in the order of trials.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

try:
    from ax.core.search_space import SearchSpaceDigest
except ImportError as error:
    raise ImportError("botorch_calib.ax needs Ax: pip install botorch_calib[ax]") from error
from ax.generators.torch.botorch_modular.surrogate import Surrogate, submodel_input_constructor
from ax.generators.torch.botorch_modular.utils import (
    ModelConfig,
    choose_model_class,
    fit_botorch_model,
)
from ax.storage.botorch_modular_registry import register_acquisition_function, register_model
from botorch.models.model import Model
from botorch.utils.datasets import SupervisedDataset
from gpytorch.mlls import MarginalLogLikelihood

from botorch_calib import calibration
from botorch_calib.acquisition import (
    CalibratedExpectedImprovement,
    CalibratedProbabilityOfImprovement,
    CalibratedUpperConfidenceBound,
    LogCalibratedExpectedImprovement,
)
from botorch_calib.calibration import Calibrator, LocalizedConformal
from botorch_calib.models import CalibratedModel

DEFAULT_ALPHA = 0.2

register_model(CalibratedModel)
for _acquisition in (
    CalibratedExpectedImprovement,
    CalibratedProbabilityOfImprovement,
    CalibratedUpperConfidenceBound,
    LogCalibratedExpectedImprovement,
):
    register_acquisition_function(_acquisition)


def calibrated_model_config(
    calibrator: type[Calibrator] = LocalizedConformal, *, denoise: bool = True, **options: Any
) -> ModelConfig:
    """How Ax shall model outcomes: its own Gaussian process, one for each, calibrated.

    The result goes into Ax's ``choose_generation_strategy`` (method ``"custom"``) or into a
    ``SurrogateSpec``. Any acquisition function of Ax will do: the one that it would have chosen,
    or, for one objective without constraints, a closed form such as
    ``LogCalibratedExpectedImprovement`` as ``botorch_acqf_class``. What is calibrated are the
    outcomes as Ax hands them over, after its transforms: very bad ones are winsorized by default.

    Fields of the configuration that describe the Gaussian process (kernel, likelihood,
    transforms, marginal likelihood) mean what they mean without calibration:
    ``dataclasses.replace(calibrated_model_config(), covar_module_class=...)``.

    Args:
        calibrator: The class of the calibrator. Each fit makes a new one.
        denoise: See `CalibratedModel`.
        options: Arguments of the calibrator; ``alpha=0.2`` if there are none and it is a
            `LocalizedConformal`. Ax can save an experiment as JSON if they are plain values and
            the class is one of this package.

    Example:
        >>> strategy = choose_generation_strategy(
        ...     GenerationStrategyDispatchStruct(method="custom"),
        ...     model_config=calibrated_model_config(LocalizedConformal, alpha=0.1),
        ... )
        >>> client.set_generation_strategy(strategy)
    """
    if calibrator is LocalizedConformal and not options:
        options = {"alpha": DEFAULT_ALPHA}
    own = getattr(calibration, calibrator.__name__, None) is calibrator
    return ModelConfig(
        botorch_model_class=CalibratedModel,
        model_options={
            "calibrator": calibrator.__name__ if own else calibrator,
            "calibrator_options": options,
            "denoise": denoise,
        },
        name=f"Calibrated:{calibrator.__name__}",
    )


@submodel_input_constructor.register(CalibratedModel)
def _calibrated_inputs(
    botorch_model_class: type[Model],
    model_config: ModelConfig,
    dataset: SupervisedDataset,
    search_space_digest: SearchSpaceDigest,
    surrogate: Surrogate,
) -> dict[str, Any]:
    """Arguments of `CalibratedModel`: Ax's own model, not fitted yet, and a new calibrator."""
    options = dict(model_config.model_options)
    make = options.pop("calibrator", LocalizedConformal.__name__)
    settings = options.pop("calibrator_options", {"alpha": DEFAULT_ALPHA})
    denoise = options.pop("denoise", True)
    base_class = choose_model_class(dataset=dataset, search_space_digest=search_space_digest)
    inputs = submodel_input_constructor(
        base_class,
        model_config=replace(model_config, botorch_model_class=base_class, model_options=options),
        dataset=dataset,
        search_space_digest=search_space_digest,
        surrogate=surrogate,
    )
    if isinstance(make, str):
        make = getattr(calibration, make)
    return {"model": base_class(**inputs), "calibrator": make(**settings), "denoise": denoise}


@fit_botorch_model.register(CalibratedModel)
def _fit_calibrated(
    model: CalibratedModel,
    mll_class: type[MarginalLogLikelihood],
    mll_options: dict[str, Any] | None = None,
) -> None:
    """Fit the Gaussian process as Ax does, then replay the history."""
    fit_botorch_model(model.model, mll_class=mll_class, mll_options=mll_options)
    replayed = CalibratedModel.from_history(model.model, model.calibrator.fresh())
    model.calibrator = replayed.calibrator
