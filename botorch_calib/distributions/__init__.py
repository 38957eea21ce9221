"""Distributions that calibrators state of observations, and of the objective, in closed form.

Everything is in standardised units, ``z = (y - mu) / sigma_y``; nothing here knows models or units
of outcomes. Log expected improvement, from the acquisition function down to arithmetic::

    LogCalibratedExpectedImprovement.forward           acquisition/improvement.py
     |  the model's posterior at X, b x 1 x d -> b x 1 x 1
    StatedPosterior.log_expected_improvement           posteriors/base.py
    DenoisedMarginals._log_improvement                 posteriors/denoised_marginals.py
     |  outcome units -> distance from the mean; number or tensor -> broadcast
     |
     +--> SmoothedPredictive.log_excess     denoised_piecewise.py: denoised, z + r eps
     |     |  units of z -> standard units of the normal pieces, batch -> columns
     +--> UnsmoothedPredictive.log_excess   denoised_piecewise.py: z itself, no noise
           |
          log_excess -> _Integral           _denoised_integrals.py: first derivatives in closed form
           |
          Values                            _denoised_integrals.py: all pieces on one scale, so that
           |                                exp(-700) keeps its digits
           +--> _flats                      _denoised_integrals.py: uniform pieces
           +--> bivariate_tails -> _wedge   _bivariate_tails.py: normal pieces
           +--> piece_logs                  _piece_integrals.py: without noise, or if bounded

Probabilities of improvement take the same way through ``log_survival``, which quantiles invert.

* ``piecewise.py``: `PiecewisePredictive`, the distribution of ``z`` by pieces; its constructors
  ``gaussian``, ``conformal`` and ``recalibrated``, moments, quantiles and the transport of samples.
* ``moments.py``: `WithMoments`, the base class with mean and variance, found together.
* ``form.py``: `PiecewiseForm`, which pieces are uniform and which ends are open.
* ``denoised_piecewise.py``: `SmoothedPredictive`, that distribution plus Gaussian noise (the
  objective), and `UnsmoothedPredictive`, the same questions without noise (the observation).
* ``expectations.py``: expectations of any function of these, by quadrature.
* ``student_t.py``: Student's t distribution and its inverse, on the scale of normal scores.
* ``mixture_scores.py``: normal scores of a mixture of normal distributions, and back.
* ``denoised_mixture.py``: `DenoisedMixture`, the objective under a calibrated mixture.
* ``scoring_rules.py``: scores of forecasts (CRPS, interval score, calibration error).
* ``_denoised_integrals.py``: improvement, survival and density with noise, and their derivatives.
* ``_bivariate_tails.py``: bivariate normal integrals for that.
* ``_piece_integrals.py``: any piece by itself, with and without noise, with a graph.
* ``_denoised_quantile.py``: quantiles by Halley's method.
* ``_ratio_table.py``: quantiles of one distribution at any noise, as polynomials.
* ``_piecewise_transport.py``: the monotone map from a normal number to a piecewise distribution.
* ``_truncated_normal.py``: truncated normal pieces as differences of tails.
* ``_cached_constants.py``: nodes, weights and flags that are made once for each device.
* ``_normal_functions.py``: special functions of the normal distribution, far into its tails.
"""

from botorch_calib.distributions.denoised_piecewise import SmoothedPredictive, UnsmoothedPredictive
from botorch_calib.distributions.form import PiecewiseForm
from botorch_calib.distributions.piecewise import PiecewisePredictive

__all__ = ["PiecewiseForm", "PiecewisePredictive", "SmoothedPredictive", "UnsmoothedPredictive"]
