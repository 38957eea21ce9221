"""`fit_in_logarithms`: maximises a marginal likelihood fast, from several starts together.

BoTorch's models store noise and lengthscales without a transform, so BoTorch's search is slow. It
takes about 45 evaluations, whereas a search over logarithms takes about 15. With few data, the
likelihood often has one maximum with noise and one without noise, and a search from a single start
may end at the lower maximum. Several starts are evaluated as a batch of models; with few data, two
starts take as long as one start.
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

# This loss replaces NaN: line searches recover from a large loss, but not from NaN. A search whose
# loss is at least this large has failed.
LARGE_LOSS = 1e10


def fit_in_logarithms(
    mll: ExactMarginalLogLikelihood,
    closure: None = None,
    options: dict[str, Any] | None = None,
    timeout_sec: float | None = None,
) -> OptimizationResult:
    """Maximise a marginal likelihood, with a search over logarithms of positive parameters.

    A parameter counts as positive if its lower bound is positive. Pass this function to
    ``fit_gpytorch_mll`` as the ``optimizer``. Each model of a batch is the starting point of a
    separate L-BFGS-B search (BoTorch's batched version). At the end all models have the
    hyperparameters of the best search.

    Args:
        mll: The marginal likelihood of an exact Gaussian process of standardised outcomes. The
            process's batch shape is the number of starts, or empty for one start.
        closure: Must be None, since a closure returns only the sum of the losses of all starts.
        options: Arguments of ``fmin_l_bfgs_b_batched``, such as ``ftol``.
        timeout_sec: Seconds after which all searches stop (default: no limit).

    Returns:
        The loss, number of steps and message of the best search, and the seconds of all searches.

    Warns:
        OptimizationWarning: If the time ran out, or all searches failed.

    Raises:
        NotPSDError: If no search finds a finite likelihood. ``fit_gpytorch_mll`` then draws new
            starting points.
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
        with np.errstate(over="ignore"):  # line searches recover from an infinite parameter
            rows = np.exp(x, out=x.copy(), where=positive)
        values, gradients = _losses_at(losses, rows, batch_indices)
        return values, np.multiply(gradients, rows, out=gradients, where=positive)

    begun = time.monotonic()

    def stop_if_late(x: Array) -> None:
        if timeout_sec is not None and time.monotonic() - begun > timeout_sec:
            raise StopIteration

    # In single precision, rounding errors of losses exceed L-BFGS-B's default tolerance 2.2e-9, so
    # the tolerance is at least 16 rounding errors.
    accuracy = max((torch.finfo(value.dtype).eps for value in parameters.values()), default=0.0)
    options = {"ftol": max(2.2e-9, 16.0 * accuracy), **(options or {})}
    # Without this limit, which BoTorch also sets, SciPy and torch compete for cores.
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
        # A search that gave up returns its last iterate with the loss at a different point, so
        # evaluate the loss at the iterate.
        values[gave_up], _ = in_logarithms(x[gave_up], [*np.flatnonzero(gave_up)])
    best, runtime = values.argmin(), time.monotonic() - begun
    result = results[best]
    if values[best] >= LARGE_LOSS:
        raise NotPSDError("No start has a likelihood.")
    x[:] = np.exp(x[best], out=x[best].copy(), where=positive)
    losses.state = x
    status = OptimizationStatus.SUCCESS if result.success else OptimizationStatus.STOPPED
    if is_late.any():
        # `fit_gpytorch_mll` recognises this text, issues the warning, and accepts the fit.
        warning = f"Optimization timed out after {runtime:.3g} seconds."
        warnings.warn(warning, OptimizationWarning, stacklevel=2)
    elif (gave_up | (values >= LARGE_LOSS)).all():  # one successful search is enough
        status = OptimizationStatus.FAILURE
        warnings.warn(f"The fit failed: {result.message}.", OptimizationWarning, stacklevel=2)
    return OptimizationResult(result.nit, float(values[best]), status, runtime, result.message)


def _losses_at(
    losses: BatchedNDarrayOptimizationClosure, rows: Array, starts: list[int]
) -> tuple[Array, Array]:
    """Return losses and gradients of the ``starts``, each at its own row of parameters.

    ``starts`` contains the indices of ``k`` models of the batch, and ``rows``, ``k x p``, their
    parameters. The losses are ``k``, and the gradients ``k x p``. If a loss cannot be computed, it
    is set to `LARGE_LOSS`, and its gradient to 0.
    """
    everywhere = np.repeat(rows[:1], losses.batch_size, axis=0)
    everywhere[starts] = rows
    try:
        values, gradients = (each[starts] for each in losses(everywhere))
    except NotPSDError:
        values, gradients = np.full(len(rows), np.nan), np.zeros_like(rows)
    failed = np.isnan(values)
    if len(rows) > 1 and failed.any():
        # The failure of one start makes the whole batch fail, so evaluate the starts one by one.
        alone = [_losses_at(losses, rows[[i]], [start]) for i, start in enumerate(starts)]
        values, gradients = (np.concatenate(each) for each in zip(*alone, strict=True))
    elif failed.any():
        values, gradients = np.full(1, LARGE_LOSS), np.zeros_like(rows)
    return values, gradients
