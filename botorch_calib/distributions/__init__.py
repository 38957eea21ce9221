"""Calibrated distributions of observations and of the objective, in closed form.

Piecewise distributions describe ``z = (y - mu) / sigma_y``, where a model predicts the mean ``mu``
and the standard deviation ``sigma_y`` of the observation ``y``. With noise, they describe ``z + r
eps``, where ``eps`` is standard normal. No module in this folder imports a model. The following
functions compute log expected improvement, from the acquisition function down::

    LogCalibratedExpectedImprovement.forward           acquisition/improvement.py
     |  evaluates the model's posterior at X, b x 1 x d -> b x 1 x 1
    Prediction.log_expected_improvement                posteriors/prediction.py
     |  converts the incumbent from outcome units to a distance from the mean
     |
     +--> SmoothedPredictive.log_excess     denoised_piecewise.py: z + r eps, with noise
     |     |  divides by the scale of the normal pieces and flattens the batch
     +--> UnsmoothedPredictive.log_excess   denoised_piecewise.py: z, without noise
           |
          log_excess -> _Integral           _denoised_integrals.py: first derivatives in closed form
           |
          Values                            _denoised_integrals.py: all pieces on one scale, so that
           |                                exp(-700) keeps its digits
           +--> _flats                      _denoised_integrals.py: uniform pieces
           +--> bivariate_tails -> _wedge   _bivariate_tails.py: normal pieces
           +--> piece_logs                  _piece_integrals.py: any pieces, if there is no noise

Probabilities of improvement use ``log_survival`` instead of ``log_excess``, and quantiles invert
``log_survival``.
"""

from botorch_calib.distributions.denoised_piecewise import SmoothedPredictive, UnsmoothedPredictive
from botorch_calib.distributions.form import PiecewiseForm
from botorch_calib.distributions.piecewise import PiecewisePredictive

__all__ = ["PiecewiseForm", "PiecewisePredictive", "SmoothedPredictive", "UnsmoothedPredictive"]
