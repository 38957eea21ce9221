"""`fit_in_logarithms`: fits by marginal likelihood in fewer steps, from several starts at once.

Noise and lengthscales of BoTorch's models have no transform, so its search creeps: it takes some 45
evaluations where logarithms take 15. Where there are few data, the likelihood often has two maxima,
one that takes everything for signal and one that knows of noise, and a single start ends in either.
Starts are a batch of models, as the time of a likelihood of few data is that of the calls, not of
the arithmetic: two starts take as long as one.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import torch
from botorch.exceptions.warnings import OptimizationWarning
from botorch.optim.batched_lbfgs_b import fmin_l_bfgs_b_batched
from botorch.optim.closures import BatchedNDarrayOptimizationClosure, get_loss_closure
from botorch.optim.core import OptimizationResult, OptimizationStatus
from botorch.optim.utils import get_parameters_and_bounds
from botorch.optim.utils.numpy_utils import get_per_element_bounds
from gpytorch.mlls import ExactMarginalLogLikelihood
from linear_operator.utils.errors import NotPSDError
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

Array = NDArray[np.float64]

# Stands for a loss where there is none: a line search comes back from it, as it would not from NaN.
NONE = 1e10


def fit_in_logarithms(
    mll: ExactMarginalLogLikelihood,
    closure: None = None,
    options: dict[str, Any] | None = None,
    timeout_sec: float | None = None,
) -> OptimizationResult:
    """Maximise a marginal likelihood in logarithms of parameters with positive bounds.

    It is an ``optimizer`` of ``fit_gpytorch_mll``. The models of a batch are starts, each of which
    is searched from on its own, by BoTorch's L-BFGS-B: at the end all of them are the best one.

    Args:
        mll: The likelihood of an exact Gaussian process, of standardised outcomes, whose batch
            shape is the number of starts, or empty.
        closure: None: it would tell the sum of the losses alone.
        options: Arguments of ``fmin_l_bfgs_b_batched``, such as ``ftol``.
        timeout_sec: Seconds after which all searches stop where they are.

    Warns:
        OptimizationWarning: If the time ran out, or all searches gave up.

    Raises:
        NotPSDError: If the likelihood fails at all starts. `fit_gpytorch_mll` then draws others.
    """
    shape = mll.model.train_targets.shape[:-1]
    bounds: Any
    parameters, bounds = get_parameters_and_bounds(mll, requires_grad=True)
    losses = BatchedNDarrayOptimizationClosure(get_loss_closure(mll), parameters, shape)
    state, ends = losses.state, get_per_element_bounds(parameters, bounds, shape)
    if ends is None:
        ends = np.tile([-np.inf, np.inf], (state.shape[-1], 1))
    positive = ends[:, 0] > 0.0
    ends[positive], state[:, positive] = np.log(ends[positive]), np.log(state[:, positive])

    def in_logarithms(x: Array, batch_indices: list[int]) -> tuple[Array, Array]:
        with np.errstate(over="ignore"):  # the line search comes back from infinity
            rows = np.exp(x, out=x.copy(), where=positive)
        values, gradients = _losses_at(losses, rows, batch_indices)
        return values, np.multiply(gradients, rows, out=gradients, where=positive)

    begun = time.monotonic()

    def stop_if_late(x: Array) -> None:
        if timeout_sec is not None and time.monotonic() - begun > timeout_sec:
            raise StopIteration

    # Single precision cannot tell losses apart that differ by less than L-BFGS-B's own tolerance.
    accuracy = max((torch.finfo(value.dtype).eps for value in parameters.values()), default=0.0)
    options = {"ftol": max(2.2e-9, 16.0 * accuracy), **(options or {})}
    # Otherwise SciPy and torch compete for cores, as BoTorch says.
    with threadpool_limits(limits=1, user_api="blas"):
        x, values, results = fmin_l_bfgs_b_batched(
            in_logarithms,
            state,
            ends,
            factr=None,
            callback=stop_if_late,
            pass_batch_indices=True,
            **options,
        )
    halted = np.array([each.status == 2 for each in results])
    is_late = np.array([each.message.startswith("STOP") for each in results]) & halted
    if (gave_up := halted & ~is_late).any():
        # L-BFGS-B then returns to the last iterate, and leaves the value of another point.
        values[gave_up], _ = in_logarithms(x[gave_up], [*np.flatnonzero(gave_up)])
    best, runtime = values.argmin(), time.monotonic() - begun
    result = results[best]
    if values[best] >= NONE:
        raise NotPSDError("No start has a likelihood.")
    x[:] = np.exp(x[best], out=x[best].copy(), where=positive)
    losses.state = x
    status = OptimizationStatus.SUCCESS if result.success else OptimizationStatus.STOPPED
    if is_late.any():
        # With these words `fit_gpytorch_mll` hands the warning on, and keeps the fit.
        warning = f"Optimization timed out after {runtime:.3g} seconds."
        warnings.warn(warning, OptimizationWarning, stacklevel=2)
    elif (gave_up | (values >= NONE)).all():  # else it is no worse than a maximum
        status = OptimizationStatus.FAILURE
        warnings.warn(f"The fit failed: {result.message}.", OptimizationWarning, stacklevel=2)
    return OptimizationResult(result.nit, float(values[best]), status, runtime, result.message)


def _losses_at(
    losses: BatchedNDarrayOptimizationClosure, rows: Array, starts: list[int]
) -> tuple[Array, Array]:
    """Losses and gradients of some starts at a row of parameters each; `NONE` where that fails."""
    everywhere = np.repeat(rows[:1], losses.batch_size, axis=0)
    everywhere[starts] = rows
    try:
        values, gradients = (each[starts] for each in losses(everywhere))
    except NotPSDError:
        values, gradients = np.full(len(rows), np.nan), np.zeros_like(rows)
    failed = np.isnan(values)
    if len(rows) > 1 and failed.any():
        # One that fails takes the others with it.
        alone = [_losses_at(losses, rows[[i]], [start]) for i, start in enumerate(starts)]
        values, gradients = (np.concatenate(each) for each in zip(*alone, strict=True))
    elif failed.any():
        values, gradients = np.full(1, NONE), np.zeros_like(rows)
    return values, gradients
