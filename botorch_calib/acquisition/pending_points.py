"""`PendingPoints`, a base class of acquisition functions, and models conditioned on fantasies."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions import UnsupportedError
from botorch.models.model import Model
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.sampling import draw_sobol_normal_samples
from torch import Tensor

from botorch_calib._validation import check_inputs, check_precision, check_tensor
from botorch_calib.models.process import (
    as_in_training,
    batch_shape_of,
    observed_process,
    raw_train_inputs,
    raw_width,
    with_task_feature,
)
from botorch_calib.models.requirements import check_fantasizes


class PendingPoints(AcquisitionFunction):
    """Base class of acquisition functions that support points under evaluation.

    ``X_pending`` can be set by `set_X_pending` or as an attribute, since BoTorch does both.
    ``optimize_acqf_mixed_alternating`` and ``optimize_acqf_discrete_local_search`` choose ``q``
    points one after another and then evaluate all of them together, as ``q x d``. For such an input
    the result is the sum over the points, where each point is evaluated with the earlier points
    pending. If values are logarithms, the result is the logarithm of the sum. Such an input must
    not require gradients.
    """

    _X_pending: Tensor | None = None
    _log = False  # whether values are logarithms

    def __call__(self, X: Tensor) -> Tensor:
        """Values ``b`` at points ``b x 1 x d``.

        For points ``q x d`` the result is the sum described in the class docstring, of shape 1.
        """
        if X.dim() != 2 or len(X) == 1 or X.requires_grad:
            values: Tensor = super().__call__(X)
            return values
        base, parts = self.X_pending, []
        try:
            for num in range(len(X)):
                self.X_pending = X[:num] if base is None else torch.cat([base, X[:num]])
                parts.append(super().__call__(X[num : num + 1]))
        finally:
            self.X_pending = base
        total = torch.stack(parts)
        return total.logsumexp(dim=0) if self._log else total.sum(dim=0)

    @property  # type: ignore[override]
    def X_pending(self) -> Tensor | None:
        """Points under evaluation, ``n x d``; None if there are none, or an empty tensor is set."""
        return self._X_pending

    @X_pending.setter
    def X_pending(self, X_pending: Tensor | None) -> None:
        if X_pending is not None:
            num = check_tensor("X_pending", X_pending).numel()
            X_pending = check_inputs("X_pending", X_pending).detach().clone() if num else None
        self._account_for(X_pending)
        self._X_pending = X_pending

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Set the points under evaluation, ``n x d``, or clear them if ``X_pending`` is None.

        Raises:
            UnsupportedError: If the model does not support pending points. The points that were set
                before remain.
        """
        self.X_pending = X_pending

    @abstractmethod
    def _account_for(self, X_pending: Tensor | None) -> None:
        """Update the function's state for pending points, finite ``n x d``, or for none if None.

        An implementation that raises an error must leave the state unchanged.
        """


@torch.no_grad()
def fantasy_models(models: Sequence[Any], X_pending: Tensor, num_fantasies: int) -> list[Any]:
    """Condition each model on ``num_fantasies`` draws of its outcomes at pending points.

    ``X_pending`` is ``n x d``. Each model must have one output and no batch dimensions. The results
    have the batch shape ``num_fantasies``. The seed is fixed, so each call makes the same draws.
    """
    # All models share one Sobol sequence, so that outcomes of different models are independent.
    # Separate sequences have correlations of 0.3 to 0.9 for any seeds, since scrambling keeps the
    # order of points.
    parts = []
    for model in models:
        X = _checked(model, X_pending)
        with as_in_training(observed_process(model)):  # as `fantasize` does for its draws
            parts.append((model, X, model.posterior(X, observation_noise=True)))
    sizes = [posterior.base_sample_shape.numel() for *_, posterior in parts]
    draws = draw_sobol_normal_samples(sum(sizes), num_fantasies, dtype=torch.double, seed=0)
    conditioned = []
    for (model, X, posterior), draw in zip(parts, draws.split(sizes, dim=-1), strict=True):
        sampler = SobolQMCNormalSampler(torch.Size([num_fantasies]))
        base_samples = draw.reshape(-1, *posterior.base_sample_shape)
        base_samples = base_samples.to(posterior.device, posterior.dtype)
        sampler.register_buffer("base_samples", base_samples)
        conditioned.append(model.fantasize(X, sampler))
    return conditioned


def _checked(model: Model, X_pending: Tensor) -> Tensor:
    """Check the model and the points; return the points, with the task feature if there is one."""
    if batch_shape_of(model):
        raise UnsupportedError(
            "`X_pending` needs a model without batch dimensions. For an ensemble, use a Monte "
            "Carlo acquisition function such as qLogExpectedImprovement."
        )
    check_fantasizes(model, "`X_pending`")
    base = observed_process(model)
    X = check_inputs("X_pending", with_task_feature(base, X_pending), raw_width(base))
    inputs = raw_train_inputs(base)
    # A model in double precision accepts points in single precision.
    if inputs is not None and torch.promote_types(X.dtype, inputs.dtype) != inputs.dtype:
        check_precision("X_pending", X, inputs.dtype)
    return X
