"""What a calibrator states about an observation, and that denoised: distributions in closed form.

Everything is in standardised units, ``z = (y - mu) / sigma_y``; nothing here knows of models or
outcome units. Where log expected improvement is computed, from the acquisition function down to
arithmetic::

    LogCalibratedExpectedImprovement.forward           acquisition/expected_improvement.py
     |  the model's posterior at X, b x 1 x d -> b x 1 x 1
    CalibratedPosterior.log_expected_improvement       posteriors/calibrated.py
     |  outcome units -> z; number or tensor -> broadcast
     |
     +--> SmoothedPredictive.log_excess                smoothed.py: denoised, z + r eps
     |     |  units of z -> standard units of the normal pieces, batch -> columns
     |    SmoothedExcess.forward (and .backward)       _denoised_improvement.py
     |     |  pieces mixed by their masses; derivatives in closed form
     |    piece_values                                 _denoised_pieces.py
     |     |  all pieces on one scale, so that exp(-700) keeps its digits
     |     +--> interval_means                         _denoised_pieces.py: uniform pieces
     |     +--> bivariate_tails -> _wedge              _bivariate_tails.py: normal pieces
     |     +--> SeparatePieces                         _separate_pieces.py: if bounded
     |
     +--> UnsmoothedPredictive.log_excess              smoothed.py: z itself, no noise
           |
          ObservationIntegrals.forward (and .backward)   _observation_improvement.py

Probabilities of improvement take the same way through ``log_survival`` and ``SmoothedIntegrals``.
Quantiles invert it, with ``SmoothedQuantile`` of ``_smoothed_quantile.py`` in that place.

What each file holds:

* ``piecewise.py``: `PiecewisePredictive`, the distribution of ``z`` by pieces; its constructors
  ``gaussian``, ``conformal`` and ``recalibrated``, moments, quantiles and the transport of samples.
* ``moments.py``: `WithMoments`, mean and variance of whatever finds both together.
* ``form.py``: `PiecewiseForm`, which pieces are uniform and which ends are open.
* ``smoothed.py``: `SmoothedPredictive`, that distribution plus Gaussian noise (the objective), and
  `UnsmoothedPredictive`, the same questions without noise (the observation).
* ``scoring.py``: scores of forecasts (CRPS, interval score, calibration error).
* ``_denoised_pieces.py``, ``_bivariate_tails.py``, ``_separate_pieces.py``: integrals with noise,
  of each piece.
* ``_denoised_improvement.py``: these mixed, with their derivatives.
* ``_observation_improvement.py``: integrals without noise.
* ``_survival_curve.py``, ``_smoothed_quantile.py``: quantiles, in a fixed number of steps.
* ``_transport.py``: the monotone map from a normal number to a piecewise distribution.
* ``_normal_moments.py``: moments of recalibrated distributions, with their derivatives.
* ``_normal_functions.py``: special functions of the normal distribution, far into its tails.
"""

from botorch_calib.distributions.form import PiecewiseForm
from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.distributions.smoothed import SmoothedPredictive, UnsmoothedPredictive

__all__ = ["PiecewiseForm", "PiecewisePredictive", "SmoothedPredictive", "UnsmoothedPredictive"]
