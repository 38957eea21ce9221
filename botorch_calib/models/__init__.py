"""Models that wrap BoTorch models, and residuals of a Gaussian process on its own training data.

==================== ===============================================================================
file                 content
==================== ===============================================================================
``calibrated``       `CalibratedModel`: calibrated marginals
``delayed``          `CensoredDelayModel`: pending queries
``imputation``       values that are put in place of missing ones
``fit_to_ledger``    models of the values in a ledger
``matching_rows``    which pending points have got their values
``wrapper``          what these two share as models around another one
``inspection``       how parts, data, noise and units of any model are reached
``requirements``     what a wrapped model, its inputs and observations have to be
``marginals``        posteriors at single points, for all of them at once
``conditioning``     conditioning on observations, with errors that help
``factorization``    that by adding rows to a Cholesky factor
``training_prior``   what a process states of its data before it sees them
``residuals``        one-step-ahead and leave-one-out residuals, from that
``sample_paths``     sample paths of wrapped models
``fourier_paths``    paths of a Gaussian process, evaluated together and with its posterior
==================== ===============================================================================
"""

from botorch_calib.models.calibrated import CalibratedModel
from botorch_calib.models.delayed import CensoredDelayModel
from botorch_calib.models.residuals import loo_residuals, prequential_residuals
from botorch_calib.models.sample_paths import CalibratedPath

__all__ = [
    "CalibratedModel",
    "CalibratedPath",
    "CensoredDelayModel",
    "loo_residuals",
    "prequential_residuals",
]
