"""Calibrated distributions of observations and of the objective, in closed form.

All units are standardised, ``z = (y - mu) / sigma_y``; this package does not depend on models or on
units of outcomes. The call chain of log expected improvement, from the acquisition function down::

    LogCalibratedExpectedImprovement.forward           acquisition/improvement.py
     |  the model's posterior at X, b x 1 x d -> b x 1 x 1
    Prediction.log_expected_improvement                posteriors/prediction.py
     |  outcome units -> distance from the mean; number or tensor -> broadcast
     |
     +--> SmoothedPredictive.log_excess     denoised_piecewise.py: with noise, z + r eps
     |     |  units of z -> standard units of the normal pieces, batch -> columns
     +--> UnsmoothedPredictive.log_excess   denoised_piecewise.py: without noise, z
           |
          log_excess -> _Integral           _denoised_integrals.py: first derivatives in closed form
           |
          Values                            _denoised_integrals.py: all pieces on one scale, so that
           |                                exp(-700) keeps its digits
           +--> _flats                      _denoised_integrals.py: uniform pieces
           +--> bivariate_tails -> _wedge   _bivariate_tails.py: normal pieces
           +--> piece_logs                  _piece_integrals.py: without noise, or if bounded

Probabilities of improvement follow the same chain through ``log_survival``, and quantiles invert
``log_survival``.
"""

from botorch_calib.distributions.denoised_piecewise import SmoothedPredictive, UnsmoothedPredictive
from botorch_calib.distributions.form import PiecewiseForm
from botorch_calib.distributions.piecewise import PiecewisePredictive

__all__ = ["PiecewiseForm", "PiecewisePredictive", "SmoothedPredictive", "UnsmoothedPredictive"]
