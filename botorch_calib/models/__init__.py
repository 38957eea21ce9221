"""Models that wrap BoTorch models, and residuals of a Gaussian process on its own training data.

========================= ========================================================================
file                      content
========================= ========================================================================
``calibrated``            `CalibratedModel`: calibrated marginals
``model_list``            `CalibratedModelList`: independent outcomes as one model
``delayed``               `CensoredDelayModel`: pending queries
``fit_to_ledger``         models of the values in a ledger
``hyperparameter_fits``   the search of a fit by marginal likelihood
``matching_rows``         rows of a table that equal given ones
``partly_known_noise``    `PartlyKnownNoiseGP`: known variances are used, others are fitted
``noisy_ensemble``        `NoisyEnsemble`: point predictions with a stated noise
``sharpened``             `sharpened`: given hyperparameters, corrected by the data
``wrapper``               the base class of models around another one
``inspection``            how parts, data, noise and units of any model are reached
``requirements``          checks of models, inputs and observations
``outcome_transforms``    outcome transforms as increasing maps, and which ones are not
``predictors``            how each kind of base model predicts observations
``marginals``             posteriors of exact processes, at all points at once
``cholesky_factor``       their Cholesky factors, renewed when a process changes
``radial_kernels``        kernels that are functions of the distance, with their derivatives
``conditioning``          conditioning on observations, with errors that help
``cholesky_row_updates``  rows that are added to a Cholesky factor
``training_prior``        a process's prior of its training data
``residuals``             one-step-ahead and leave-one-out residuals of training data
``sample_paths``          sample paths of wrapped models
========================= ========================================================================
"""

from botorch_calib.models.calibrated import CalibratedModel
from botorch_calib.models.delayed import CensoredDelayModel
from botorch_calib.models.model_list import CalibratedModelList
from botorch_calib.models.noisy_ensemble import NoisyEnsemble
from botorch_calib.models.partly_known_noise import PartlyKnownNoiseGP, PartlyKnownNoiseLikelihood
from botorch_calib.models.residuals import loo_residuals, prequential_residuals
from botorch_calib.models.sample_paths import CalibratedPath
from botorch_calib.models.sharpened import sharpened

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
]
