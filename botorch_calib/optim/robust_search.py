"""`optimize_robust`: maximises a robust bound whose kinks stop a quasi-Newton search.

The bound ``E u(x) - radius max_c |grad_c u(x, c)|``, with the expectation ``E u(x)`` over contexts
``c``, has a kink at each decision ``x`` where the steepest context changes. Most of its maxima are
at kinks, and line searches along the gradient fail there. First a smooth form of the bound is
maximised roughly, from several starts. Then sequential quadratic programming improves the best
result in the equivalent form without kinks

    maximise ``E u(x) - radius t``  subject to  ``t >= |grad_c u(x, c)|`` for the contexts ``c``,

which converges equally fast at kinks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.warnings import BadInitialCandidatesWarning
from botorch.generation.gen import gen_candidates_scipy
from botorch.optim.initializers import initialize_q_batch
from botorch.utils.sampling import draw_sobol_samples
from scipy.optimize import OptimizeWarning, minimize
from torch import Tensor

from botorch_calib._validation import check_acquisition, check_bounds, check_count
from botorch_calib.optim.scaled_search import (
    SEPARATE_STARTS,
    optimize_in_unit_box,
    without_search_warnings,
)

Array = npt.NDArray[np.float64]

#: The smooth form replaces the largest gradient norm by ``(sum_i n_i^32)^(1/32)``, where ``n_i``
#: are the 16 largest gradient norms. This is at most 9 % larger than the largest norm. A closer
#: approximation would take more steps, and is unnecessary, since the second search is exact.
SMOOTHING = 1.0 / 32.0
# Settings of the first, rough search; the tolerance is relative to the spread of the values over
# the box. BoTorch's own L-BFGS-B requires `factr` to be None with `ftol`. SciPy's L-BFGS-B, which
# BoTorch calls from SciPy 1.18 on, has no `factr`.
_ROUGH = {"maxiter": 10, "ftol": 1e-2, "factr": None}
# Settings of the second, exact search; the tolerance is relative to the spread of the values, too.
_FINE: dict[str, Any] = {"ftol": 1e-6, "maxiter": 50}


@dataclass(frozen=True)
class LipschitzBound:
    """The parts of the bound ``E u(x) - radius max_c |grad_c u(x, c)|``.

    ``E u(x)`` is the expectation of ``u(x, c)`` over contexts ``c``. The method
    ``lipschitz_bound(bounds)`` of an acquisition function returns a `LipschitzBound`, or None.
    """

    smooth: Callable[[Tensor], Tensor]  # b x 1 x d_x -> b, the smooth form of the bound
    expectation: Callable[[Tensor], Tensor]  # b x d_x -> b, E u(x), differentiable
    # b x d_x and M x d_c -> norms of grad_c u(x, c), b x M, and their gradients in x
    norms_with_slopes: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    contexts: Tensor  # M x d_c, over which the maximum is taken
    radius: float  # the factor of the maximum


@torch.enable_grad()
def optimize_robust(
    acq_function: AcquisitionFunction, bounds: Tensor, num_restarts: int = 4, raw_samples: int = 128
) -> tuple[Tensor, Tensor]:
    """Maximise a robust acquisition function; return a decision ``1 x d_x`` and its scalar value.

    For Lipschitz bounds of a Wasserstein ball, such as `WassersteinUpperConfidenceBound`, this
    takes less than a fifth of the time of BoTorch's ``optimize_acqf`` (on two problems of
    ``python -m benchmarks perf``), and finds maxima at kinks more accurately. Other functions are
    passed to ``optimize_acqf``. The search does not depend on the units of decisions and values.

    Args:
        acq_function: The function of decisions ``b x 1 x d_x`` to be maximised.
        bounds: Lower and upper bounds of the decisions, ``2 x d_x``. Equal bounds fix a column.
        num_restarts: Number of starting points.
        raw_samples: Number of Sobol points from which the starting points are chosen.

    Example:
        >>> acqf = WassersteinUpperConfidenceBound(gp, beta=2.25, radius=0.1, contexts=contexts)
        >>> decision, value = optimize_robust(acqf, bounds[:, :1])
    """
    check_acquisition(acq_function)
    bounds = check_bounds(bounds)
    num = check_count("num_restarts", num_restarts)
    # Values are scaled by their standard deviation, which needs at least two values.
    raw_samples = max(num, 2, check_count("raw_samples", raw_samples))
    parts = getattr(acq_function, "lipschitz_bound", lambda bounds: None)(bounds)
    if parts is None:
        return optimize_in_unit_box(acq_function, bounds, num_restarts=num, raw_samples=raw_samples)
    with torch.no_grad():
        pool = draw_sobol_samples(bounds, n=raw_samples, q=1)
        values = acq_function(pool)
        scale = float(values.std(correction=0))
        best = values.nan_to_num(-torch.inf).argmax()  # alone, `argmax` would find NaN
        if not 0.0 < scale < float("inf"):  # the values are equal, or some are not finite
            return pool[best], values[best]
        climbed = _climbed(parts, bounds, pool, values, num, scale)
        ends = torch.cat([climbed, pool[best].unsqueeze(0)])
        values = acq_function(ends)
        best = values.nan_to_num(-torch.inf).argmax()
        end = _without_kinks(parts, bounds, ends[best], scale)
        reached = acq_function(end)
        if reached.isfinite() and reached > values[best]:
            return end, reached.squeeze()
        return ends[best], values[best]


def _climbed(
    parts: LipschitzBound, bounds: Tensor, pool: Tensor, values: Tensor, num: int, scale: float
) -> Tensor:
    """Maximise the smooth form from ``num`` points of ``pool``; return ``num x 1 x d_x``.

    ``values`` are the values of the bound at the pool, and ``scale`` is their standard deviation.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BadInitialCandidatesWarning)
        starts, _ = initialize_q_batch(pool, values, num)
    centre = float(values.mean())
    with torch.enable_grad(), without_search_warnings():
        warnings.filterwarnings("ignore", "Unknown solver options: factr", OptimizeWarning)
        ends, _ = gen_candidates_scipy(
            starts,
            # SciPy's tolerance is relative to the value, so values are centred and scaled.
            lambda X: (parts.smooth(X) - centre) / scale,  # type: ignore[arg-type]
            lower_bounds=bounds[0],
            upper_bounds=bounds[1],
            options={**_ROUGH, **SEPARATE_STARTS},
        )
    return ends.detach()


def _without_kinks(parts: LipschitzBound, bounds: Tensor, start: Tensor, scale: float) -> Tensor:
    """Maximise ``E u(x) - radius t`` subject to ``t >= |grad_c u(x, c)|`` for all contexts ``c``.

    The start and the result are decisions ``1 x d_x``. The search scales the box to the unit cube,
    and divides values and ``radius t`` by ``scale``.
    """
    lower, width = bounds[0], bounds[1] - bounds[0]

    def point(x: Array) -> Tensor:
        # Rounding may take the sum beyond the upper bound.
        return (lower + width * torch.as_tensor(x).to(lower)).clamp(*bounds).unsqueeze(0)

    @lru_cache(maxsize=1)  # SLSQP calls all functions at a point before it moves
    def at(x: bytes) -> tuple[Array, ...]:
        """Return ``E u``, its gradient, the penalties ``radius |grad_c u|`` and their gradients.

        All of them are divided by ``scale``, and gradients are with respect to the unit cube.
        """
        with torch.enable_grad():
            X = point(np.frombuffer(x).copy()).requires_grad_()
            value = parts.expectation(X).squeeze()
            (slope,) = torch.autograd.grad(value, X)
        norms, slopes = parts.norms_with_slopes(X.detach(), parts.contexts)
        found = (
            value.detach() / scale,
            slope[0] * width / scale,
            parts.radius / scale * norms[0],
            parts.radius / scale * width * slopes[0],
        )
        return tuple(each.double().cpu().numpy() for each in found)

    # A column of width 0 has no effect on the point, so its coordinate may be 0.
    x = torch.where(width > 0, (start[0] - lower) / width, 0.0).clamp(0.0, 1.0)
    first = x.double().cpu().numpy()
    with warnings.catch_warnings():
        # SciPy warns when rounding takes a step out of the bounds, and clips the step.
        warnings.simplefilter("ignore", RuntimeWarning)
        result = minimize(
            lambda z: z[-1] - at(z[:-1].tobytes())[0],
            np.append(first, at(first.tobytes())[2].max()),
            jac=lambda z: np.append(-at(z[:-1].tobytes())[1], 1.0),
            method="SLSQP",
            bounds=[(0.0, 1.0)] * len(first) + [(0.0, None)],
            constraints={
                "type": "ineq",
                "fun": lambda z: z[-1] - at(z[:-1].tobytes())[2],
                "jac": lambda z: np.pad(
                    -at(z[:-1].tobytes())[3], ((0, 0), (0, 1)), constant_values=1.0
                ),
            },
            options=_FINE,
        )
    return point(np.clip(result.x[:-1], 0.0, 1.0))
