"""Closed forms of expected improvement, its logarithm, and the probability of improvement."""

from __future__ import annotations

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions import BotorchTensorDimensionError
from botorch.models.model import Model
from botorch.utils import t_batch_mode_transform
from torch import Tensor

from botorch_calib._validation import broadcasts_to, check_numbers
from botorch_calib.acquisition.base import CalibratedAcquisitionFunction
from botorch_calib.models.process import in_output_task
from botorch_calib.posteriors import Prediction


class ImprovementFunction(CalibratedAcquisitionFunction):
    """Base class of acquisition functions that measure improvement over an incumbent.

    Without pending points the incumbent is ``best_f``. With pending points each fantasy (draw of
    their outcomes) has its own incumbent: the better of ``best_f`` and the best posterior mean at
    the pending points, given the fantasy. For a multi-task model, only pending points of the output
    task count.
    """

    best_f: Tensor
    _best_pending: Tensor | None = None

    @torch.no_grad()
    def _account_for(self, X_pending: Tensor | None) -> None:
        super()._account_for(X_pending)
        best = None
        if X_pending is not None:
            model = next(iter(self._models.values()))
            own = in_output_task(model, X_pending)
            means = self._means_at(X_pending.unsqueeze(-2)).squeeze(-1).squeeze(-1)
            best = means.masked_fill(~own.unsqueeze(-1), -torch.inf).amax(dim=0)
        self._best_pending = best

    def _means_at(self, X: Tensor) -> Tensor:
        """Posterior means at pending points ``X``, ``n x 1 x d``, in the shape of `_marginals`."""
        # Fantasised outcomes include noise, so the best of them would be better than the objective.
        return self._marginals(X).moments()[0]

    def _incumbent(self, marginals: Prediction) -> Tensor:
        """The value to improve upon, in a shape that broadcasts against the ``marginals``.

        Like the marginals, it is multiplied by -1 if ``maximize`` is False.
        """
        best = self.best_f if self.maximize else -self.best_f
        shape = points = marginals.shape[:-2]
        if self._best_pending is not None:
            best = best.to(self._best_pending.device, torch.double).unsqueeze(-1)
            best, points = torch.maximum(best, self._best_pending), points[:-1]
        if not broadcasts_to(best.shape, shape):
            raise BotorchTensorDimensionError(
                f"`best_f` of shape {tuple(self.best_f.shape)} does not broadcast to the batch "
                f"shape of the points, {tuple(points)}."
            )
        return best.unsqueeze(-1).unsqueeze(-1)


class ImprovementOfSoleOutcome(ImprovementFunction):
    """Base class of improvement functions for models with one outcome."""

    def __init__(
        self,
        model: Model,
        best_f: float | Tensor,
        posterior_transform: PosteriorTransform | None = None,
        maximize: bool = True,
        X_pending: Tensor | None = None,
        num_fantasies: int = 16,
    ) -> None:
        super().__init__(model, posterior_transform, maximize, num_fantasies)
        self.register_buffer("best_f", check_numbers("best_f", best_f))
        self.set_X_pending(X_pending)


class CalibratedExpectedImprovement(ImprovementOfSoleOutcome):
    """Calibrated expected improvement ``E(f~ - best_f)+`` [Kim2024locbo, eq. 31].

    ``f~`` has the calibrated distribution of the objective. For optimisation prefer
    `LogCalibratedExpectedImprovement`. Its docstring explains the arguments and errors.

    Example:
        >>> acqf = CalibratedExpectedImprovement(model, best_f=Y.max())
        >>> acqf(X.unsqueeze(-2)).shape
        torch.Size([20])
    """

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        f = self._marginals(X)
        return self._reduce(f.expected_improvement(self._incumbent(f)))


class LogCalibratedExpectedImprovement(ImprovementOfSoleOutcome):
    """Logarithm of the calibrated expected improvement, ``log E(f~ - best_f)+``.

    ``f~`` has the calibrated distribution of the objective. As with BoTorch's
    ``LogExpectedImprovement``, the logarithm has gradients where the expectation underflows to 0.

    Args:
        model: Model with one output and a calibrated posterior, such as a `CalibratedModel`.
        best_f: Value to improve upon, in units of the outcome: a scalar, or a tensor that
            can be broadcast to the batch shape of the points.
        posterior_transform: Affine transform of the outcome. ``best_f`` must be transformed too.
        maximize: If False, the improvement is ``(best_f - f~)+``.
        X_pending: Points under evaluation, ``n x d``. The expected improvement is averaged over
            draws (fantasies) of their outcomes.
        num_fantasies: Number of fantasies.

    Raises:
        UnsupportedError: If the model has several outputs, or if it has batch dimensions and there
            are pending points. On evaluation, if the posterior is not calibrated or has several
            values per point.

    Example:
        >>> acqf = LogCalibratedExpectedImprovement(model, best_f=Y.max())
        >>> candidate, value = optimize_acqf(acqf, bounds, q=1, num_restarts=2, raw_samples=16)
    """

    _log = True

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        f = self._marginals(X)
        return self._reduce(f.log_expected_improvement(self._incumbent(f)))


class CalibratedProbabilityOfImprovement(ImprovementOfSoleOutcome):
    """Calibrated probability of improvement, ``P(f~ > best_f)``.

    ``f~`` has the calibrated distribution of the objective. If ``maximize`` is False, the value is
    ``P(f~ < best_f)``. `LogCalibratedExpectedImprovement` explains the arguments and errors.

    Example:
        >>> acqf = CalibratedProbabilityOfImprovement(model, best_f=Y.max())
        >>> probabilities = acqf(X.unsqueeze(-2))
    """

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        f = self._marginals(X)
        return self._reduce(f.probability_of_improvement(self._incumbent(f)))
