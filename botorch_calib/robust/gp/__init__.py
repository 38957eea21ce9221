"""Functions ``u(x, c)`` of decisions and contexts, with their gradients.

Gradients are in closed form for confidence bounds, and by autograd for other functions.

* `closed_form_bound`: `ClosedFormConfidenceBound`, the bound of an exact Gaussian process, plain or
  calibrated. `confidence_bound` takes any model and falls back to `PointwiseFunction`.
* `stationary_gp`: checks whether a model has the closed form, and stores its posterior as a few
  tensors.
* `pointwise_function`: `PointwiseFunction`, which differentiates any function by autograd.
"""
