"""Models that wrap BoTorch models, and residuals of a Gaussian process on its own training data.

======================= =====================================================================
"""

from botorch_calib.models.calibrated import CalibratedModel
from botorch_calib.models.confidence_multiplier import confidence_multiplier
from botorch_calib.models.delayed import CensoredDelayModel
from botorch_calib.models.noisy_ensemble import NoisyEnsemble
from botorch_calib.models.outcome_probability import OutcomeProbability
from botorch_calib.models.partly_known_noise import PartlyKnownNoiseGP, PartlyKnownNoiseLikelihood
from botorch_calib.models.residuals import loo_residuals, prequential_residuals
from botorch_calib.models.sample_paths import CalibratedPath
from botorch_calib.models.several_outcomes import CalibratedModelList
from botorch_calib.models.sharpened import sharpened

__all__ = [
    "CalibratedModel",
    "CalibratedModelList",
    "CalibratedPath",
    "CensoredDelayModel",
    "NoisyEnsemble",
    "OutcomeProbability",
    "PartlyKnownNoiseGP",
    "PartlyKnownNoiseLikelihood",
    "confidence_multiplier",
    "loo_residuals",
    "prequential_residuals",
    "sharpened",
]
