"""Contextual functions of models: confidence bounds in closed form, and anything by autograd.

* `closed_form_bound`: `ClosedFormConfidenceBound`, the bound of an exact Gaussian process, plain or
  calibrated; `confidence_bound` takes any model and chooses between it and the fallback.
* `stationary_gp`: which models have that closed form, and such a posterior as a few tensors.
* `pointwise_function`: `PointwiseFunction`, any function of single inputs, by autograd.
"""
