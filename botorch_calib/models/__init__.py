"""Models that wrap BoTorch models, and residuals of Gaussian processes at their training data."""

from botorch_calib.models.beyond import stand_ins
from botorch_calib.models.calibrated import CalibratedModel
from botorch_calib.models.delayed import CensoredDelayModel
from botorch_calib.models.learned_spread import with_learned_spread
from botorch_calib.models.model_list import CalibratedModelList
from botorch_calib.models.noisy_ensemble import NoisyEnsemble
from botorch_calib.models.partly_known_noise import PartlyKnownNoiseGP, PartlyKnownNoiseLikelihood
from botorch_calib.models.residuals import loo_residuals, prequential_residuals
from botorch_calib.models.sample_paths import CalibratedPath
from botorch_calib.models.sharpened_hyperparameters import sharpened

__all__ = [
    "CalibratedModel",
    "CalibratedModelList",
    "CalibratedPath",
    "CensoredDelayModel",
    "NoisyEnsemble",
    "PartlyKnownNoiseGP",
    "PartlyKnownNoiseLikelihood",
    "loo_residuals",
    "prequential_residuals",
    "sharpened",
    "stand_ins",
    "with_learned_spread",
]
