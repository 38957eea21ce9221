"""Calibrated models in Xopt, as the model constructor of its Bayesian generators.

It needs Xopt (``pip install botorch_calib[xopt]``). The Gaussian processes are those of Xopt's
``StandardModelConstructor``. After its fit the calibrator of each outcome replays the rows of the
data in their order.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any, Self

try:
    from xopt import Xopt
except ImportError as error:
    raise ImportError(
        "botorch_calib.integrations.xopt needs Xopt: pip install botorch_calib[xopt]"
    ) from error
import yaml
from pydantic import Field, field_validator, model_validator
from xopt.generators.bayesian.models.standard import StandardModelConstructor
from xopt.pydantic import remove_none_values

from botorch_calib._validation import check_one_of
from botorch_calib.exceptions import CalibrationWarning, level_of_caller
from botorch_calib.integrations.stored_calibrators import (
    calibrator_class,
    checked_options,
    stored_name,
)
from botorch_calib.models import CalibratedModelList
from botorch_calib.models.residuals import RESIDUALS
from botorch_calib.posteriors.prediction import EXCESS

#: Under which Xopt stores the constructor.
NAME = "calibrated"


class CalibratedModelConstructor(StandardModelConstructor):
    """Xopt's standard model constructor, with each outcome calibrated.

    Its fields are those of ``StandardModelConstructor`` and the following; all are given by name.
    The model is a `CalibratedModelList`, with an outcome for each objective and constraint. Xopt's
    generators evaluate it by joint samples, except where a single candidate is asked for without
    constraints: BoTorch's analytic functions, used there, read its mean and variance alone.

    Args:
        calibrator: The class of the calibrator, by its name if it is one of this package. Each fit
            makes a new one for each outcome.
        calibrator_options: Arguments of the calibrator, plain values; ``alpha=0.2`` if there are
            none and it is a `LocalizedConformal`.
        denoise, residuals, excess: As of `CalibratedModel.from_history`.

    Raises:
        InputDataError: If an argument is unknown, or an option of the calibrator not a plain value.

    Example:
        >>> constructor = CalibratedModelConstructor(calibrator_options={"alpha": 0.2})
        >>> generator = ExpectedImprovementGenerator(vocs=vocs, gp_constructor=constructor)
    """

    name: str = Field(NAME, frozen=True)
    calibrator: Any = Field("LocalizedConformal", description="class of the calibrators")
    calibrator_options: dict[str, Any] = Field({}, description="arguments of a calibrator")
    denoise: bool = Field(True, description="whether posteriors are of noise-free outcomes")
    residuals: str = Field("prequential", description="which residuals are replayed")
    excess: str = Field("noise", description="whose is the spread that the model does not state")

    @field_validator("calibrator")
    @classmethod
    def _by_name(cls, value: object) -> object:
        return stored_name(value) if isinstance(value, type) else value

    @field_validator("calibrator_options")
    @classmethod
    def _with_infinities(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Xopt writes an infinite number as a string."""
        return {k: math.inf if value == "inf" else value for k, value in options.items()}

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_one_of("residuals", self.residuals, RESIDUALS)
        check_one_of("excess", self.excess, EXCESS)
        checked_options(calibrator_class(self.calibrator), self.calibrator_options)
        return self

    def build_model(self, *args: Any, **kwargs: Any) -> CalibratedModelList:
        """The models that Xopt would have used, fitted by it and then calibrated."""
        kind = calibrator_class(self.calibrator)
        return CalibratedModelList.from_history(
            super().build_model(*args, **kwargs),
            kind(**checked_options(kind, self.calibrator_options)),
            denoise=self.denoise,
            residuals=self.residuals,
            excess=self.excess,
        )


def load_xopt(file: str | Path) -> Xopt:
    """Load what ``Xopt.dump`` has written, also with the classes of this package.

    ``Xopt.from_file`` knows Xopt's own model constructors and generators alone.

    Warns:
        CalibrationWarning: If a `ChanceConstrainedGenerator` has data and no decisions in its file.

    Example:
        >>> generator = ChanceConstrainedGenerator(vocs=vocs)
        >>> run = Xopt(generator=generator, evaluator=Evaluator(function=deepcopy))  # or yours
        >>> run.dump("run.yaml")
        >>> run = load_xopt("run.yaml")
    """
    from botorch_calib.integrations import xopt_decisions  # which registers the generator

    config = remove_none_values(yaml.safe_load(Path(file).read_text(encoding="utf-8")))
    generator = config["generator"]
    decides = generator["name"] == xopt_decisions.NAME
    if decides and config.get("data") and not generator.get("decisions"):
        warnings.warn(
            "The file holds data, and no decisions about them: the count of violations starts now, "
            "and theirs are not in it.",
            CalibrationWarning,
            stacklevel=level_of_caller(),
        )
    constructor = generator.get("gp_constructor")
    if constructor is not None and constructor["name"] == NAME:
        generator["gp_constructor"] = CalibratedModelConstructor(**constructor)
    return Xopt.model_validate(config)
