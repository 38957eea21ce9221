"""`fit_in_logarithms`: maximises a marginal likelihood fast, from several starts together.

BoTorch's models store noise and lengthscales without a transform, so BoTorch's search is slow. It
takes about 45 evaluations, whereas a search over logarithms takes about 20. With few data, the
likelihood often has one maximum with noise and one without noise, and a search from a single start
may end at the lower maximum. Several starts are evaluated together; with up to 20 data, two starts
take about as long as one start.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
from botorch.exceptions.errors import UnsupportedError
from botorch.exceptions.warnings import OptimizationWarning
from botorch.optim.batched_lbfgs_b import fmin_l_bfgs_b_batched
from botorch.optim.core import OptimizationResult, OptimizationStatus
from gpytorch.mlls import ExactMarginalLogLikelihood
from linear_operator.utils.errors import NotPSDError
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from botorch_calib.models.marginal_likelihood import Array, MarginalLikelihood

# This loss replaces a loss that is NaN or infinite, or whose gradient is. Line searches recover
# from a large loss, but not from NaN. If a search ends at such a loss, it has failed.
LARGE_LOSS = 1e10


def fit_in_logarithms(
    mll: ExactMarginalLogLikelihood,
    closure: None = None,
    options: dict[str, Any] | None = None,
    timeout_sec: float | None = None,
) -> OptimizationResult:
    """Maximise a marginal likelihood over the mean and the logarithms of other hyperparameters.

    Pass this function to ``fit_gpytorch_mll`` as the ``optimizer``. Each model of a batch is the
    starting point of a separate L-BFGS-B search (BoTorch's batched version). At the end all models
    have the hyperparameters of the best search.

    Args:
        mll: The marginal likelihood of a model that `MarginalLikelihood` takes, with standardised
            outcomes. The model's batch shape is the number of starts, or empty for one start.
        closure: Must be None, since a closure returns only the sum of the losses of all starts.
        options: Arguments of ``fmin_l_bfgs_b_batched``, such as ``ftol``.
        timeout_sec: Seconds after which all searches stop (default: no limit).

    Returns:
        The loss, number of steps and message of the best search, and the seconds of all searches.

    Warns:
        OptimizationWarning: If the time ran out, or all searches failed.

    Raises:
        UnsupportedError: If there is no closed form for the model or for the type of ``mll``.
        NotPSDError: If no search finds a finite likelihood. ``fit_gpytorch_mll`` then draws new
            starting points.
    """
    if type(mll) is not ExactMarginalLogLikelihood:  # a subclass may have another objective
        raise UnsupportedError(f"The closed form is not of a {type(mll).__name__}.")
    likelihood = MarginalLikelihood(mll.model)
    num_data = mll.model.train_targets.shape[-1]

    def losses(rows: Array) -> tuple[Array, Array]:
        values, gradients = (each / -num_data for each in likelihood(rows))
        failed = ~(np.isfinite(values) & np.isfinite(gradients).all(axis=-1))
        return np.where(failed, LARGE_LOSS, values), np.where(failed[:, None], 0.0, gradients)

    begun = time.monotonic()

    def stop_if_late(x: Array) -> None:
        if timeout_sec is not None and time.monotonic() - begun > timeout_sec:
            raise StopIteration

    # Without this limit, which BoTorch also sets, SciPy and torch compete for cores.
    with threadpool_limits(limits=1, user_api="blas"):
        x, values, results = fmin_l_bfgs_b_batched(
            losses,
            likelihood.start,
            likelihood.bounds.T,
            factr=None,
            callback=stop_if_late,
            **{"ftol": 2.2e-9, **(options or {})},
        )
    halted = np.array([each.status == 2 for each in results])
    is_late = np.array([each.message.startswith("STOP") for each in results]) & halted
    if (gave_up := halted & ~is_late).any():
        # A search that gave up returns its last iterate with the loss at a different point, so
        # evaluate the loss at the iterate.
        values[gave_up], _ = losses(x[gave_up])
    best, runtime = values.argmin(), time.monotonic() - begun
    result = results[best]
    if values[best] >= LARGE_LOSS:
        raise NotPSDError("No start has a likelihood.")
    likelihood.set(x[best])
    status = OptimizationStatus.SUCCESS if result.success else OptimizationStatus.STOPPED
    if is_late.any():
        # `fit_gpytorch_mll` recognises this text, issues the warning, and accepts the fit.
        warning = f"Optimization timed out after {runtime:.3g} seconds."
        warnings.warn(warning, OptimizationWarning, stacklevel=2)
    elif (gave_up | (values >= LARGE_LOSS)).all():  # one successful search is enough
        status = OptimizationStatus.FAILURE
        warnings.warn(f"The fit failed: {result.message}.", OptimizationWarning, stacklevel=2)
    return OptimizationResult(result.nit, float(values[best]), status, runtime, result.message)
