"""Contextual functions of models: confidence bounds in closed form, other functions by autograd.

* `closed_form_bound`: `ClosedFormConfidenceBound`, the bound of an exact Gaussian process, plain or
  calibrated. `confidence_bound` takes any model and falls back to `PointwiseFunction`.
* `stationary_gp`: which models have the closed form, and their posterior as a few tensors.
* `pointwise_function`: `PointwiseFunction`, any function of single inputs, by autograd.
"""
