"""Contextual functions of models: confidence bounds in closed form, and anything by autograd.

* `closed_form_bound`: `ClosedFormConfidenceBound`, the bound of an exact Gaussian process with its
  gradients, and `confidence_bound`, which takes any model and chooses between it and the fallback.
* `stationary_gp`: which models have that closed form, and such a posterior as a few tensors.
* `radial_kernels`: the kernels of these, as functions of the squared distance.
* `autograd_fallback`: `PointwiseFunction`, any function of single inputs, by autograd.
"""
