"""`optimize_robust`: the best decision by a robust bound whose kinks stop a quasi-Newton search.

The bound ``E u(x) - radius max_c |grad_c u(x, c)|`` has a kink wherever the steepest context
changes, and its maxima mostly lie on kinks, where a line search along a gradient finds nothing.
Here a smooth form of the bound is climbed from several starts, roughly, and the best end is
improved in the form without kinks

    maximise ``E u(x) - radius t``  subject to  ``t >= |grad_c u(x, c)|`` for the contexts ``c``,

by sequential quadratic programming, which converges on a kink as fast as anywhere else. Only the
steepest contexts enter, and those that turn out to be steeper at its end.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
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
from botorch_calib.optim.scaled_search import SEPARATE_STARTS, optimize_in_unit_box
from botorch_calib.optim.search_warnings import without_search_warnings

Array = npt.NDArray[np.float64]

#: The smooth form has the norm of order 32 of the gradient norms, within 9 % of the largest one.
#: Closer ones take more steps, and the end of the search makes up for it.
SMOOTHING = 1.0 / 32.0
# Its search is rough, relative to the spread of the values over the box. BoTorch's own L-BFGS-B
# wants `factr` to be None beside `ftol`; SciPy's, which BoTorch takes from SciPy 1.18 on, has none.
_ROUGH = {"maxiter": 10, "ftol": 1e-2, "factr": None}
# The accuracy of the exact end, in units of that spread, and the most steps.
_FINE: dict[str, Any] = {"ftol": 1e-6, "maxiter": 50}
# Contexts that enter it, and how often others may be added.
_STEEPEST, _ROUNDS = 32, 3


@dataclass(frozen=True)
class LipschitzBound:
    """The bound ``E u(x) - radius max_c |grad_c u(x, c)|`` in its parts.

    An acquisition function has a method ``lipschitz_bound(bounds)`` that returns one, or None.
    """

    smooth: Callable[[Tensor], Tensor]  # with a maximum of order 1 / SMOOTHING, of b x 1 x d_x
    expectation: Callable[[Tensor], Tensor]  # b, of decisions b x d_x; differentiable
    # grad_c u(x, c), b x M x d_c, of b x d_x and M x d_c
    gradients: Callable[[Tensor, Tensor], Tensor]
    # Their norms b x M, and the derivatives of these by x
    norms_with_slopes: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    contexts: Tensor  # that the maximum is over, M x d_c
    radius: float  # the factor of the maximum


@torch.enable_grad()
def optimize_robust(
    acq_function: AcquisitionFunction, bounds: Tensor, num_restarts: int = 4, raw_samples: int = 128
) -> tuple[Tensor, Tensor]:
    """Maximise a robust acquisition function: the decision, ``1 x d_x``, and its value, a scalar.

    For the Lipschitz bound of a Wasserstein ball, `WassersteinUpperConfidenceBound` among them,
    this takes less than a fifth of the time of BoTorch's ``optimize_acqf`` (two problems of
    ``python -m benchmarks perf``), and finds maxima on kinks more accurately. Any other function is
    handed to ``optimize_acqf``. Either way the units of decisions and values do not matter.

    Args:
        acq_function: The function, of decisions ``b x 1 x d_x``, to be maximised.
        bounds: ``2 x d_x`` lower and upper bounds of the decisions. A column whose bounds are equal
            is fixed.
        num_restarts: Number of points from which the search climbs.
        raw_samples: Number of Sobol points from which these are picked.

    Example:
        >>> acqf = WassersteinUpperConfidenceBound(gp, beta=2.25, radius=0.1, contexts=contexts)
        >>> decision, value = optimize_robust(acqf, bounds[:, :1])
    """
    check_acquisition(acq_function)
    bounds = check_bounds(bounds)
    num = check_count("num_restarts", num_restarts)
    # The spread of the values tells their unit, which takes two of them.
    raw_samples = max(num, 2, check_count("raw_samples", raw_samples))
    parts = getattr(acq_function, "lipschitz_bound", lambda bounds: None)(bounds)
    if parts is None:
        return optimize_in_unit_box(acq_function, bounds, num_restarts=num, raw_samples=raw_samples)
    with torch.no_grad():
        pool = draw_sobol_samples(bounds, n=raw_samples, q=1)
        values = acq_function(pool)
        scale = float(values.std(correction=0))
        best = _place_of_best(values)
        if not 0.0 < scale < float("inf"):  # nothing to climb, or nothing to climb by
            return pool[best], values[best]
        climbed = _climbed(parts, bounds, pool, values, num, scale)
        ends = torch.cat([climbed, pool[best].unsqueeze(0)])
        values = acq_function(ends)
        best = _place_of_best(values)
        problem = _Epigraph(parts, bounds, scale)
        return _finished(acq_function, problem, ends[best], values[best])


def _place_of_best(values: Tensor) -> Tensor:
    """Where the greatest value is; not where one is NaN, which PyTorch takes for the greatest."""
    return torch.where(values.isnan(), -torch.inf, values).argmax()


# ------------------------------------------------------------ the rough search


def _climbed(
    parts: LipschitzBound, bounds: Tensor, pool: Tensor, values: Tensor, num: int, scale: float
) -> Tensor:
    """Ends ``num x 1 x d_x`` of a search by the smooth form, from promising ones of the pool."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BadInitialCandidatesWarning)
        starts, _ = initialize_q_batch(pool, values, num)
    centre = float(values.mean())
    with torch.enable_grad(), without_search_warnings():
        warnings.filterwarnings("ignore", "Unknown solver options: factr", OptimizeWarning)
        ends, _ = gen_candidates_scipy(
            starts,
            # Its tolerance is relative to the value: a level, or a unit, must not count.
            lambda X: (parts.smooth(X) - centre) / scale,  # type: ignore[arg-type]
            lower_bounds=bounds[0],
            upper_bounds=bounds[1],
            options={**_ROUGH, **SEPARATE_STARTS},
        )
    return ends.detach()


# ------------------------------------------------------------ its end


def _finished(
    acqf: AcquisitionFunction, problem: _Epigraph, x: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """The point ``1 x d_x`` and its value, after a search of the form without kinks."""
    start = x
    for _ in range(_ROUNDS):
        problem.add_steepest(start)
        end, promised = problem.solve(start)
        reached = acqf(end)
        if not reached.isfinite():
            break
        if reached > value:
            x, value = end, reached.squeeze()
        # The promise misses the contexts left out. It is kept unless these matter.
        if promised - float(reached) <= _FINE["ftol"] * problem.scale:
            break
        start = end
    return x, value


class _Epigraph:
    """``E u(x) - radius t`` under ``t >= |grad_c u(x, c)|``, for some contexts ``c``.

    Decisions are measured in widths of the box, values and ``radius t`` in units of ``scale``.
    """

    def __init__(self, parts: LipschitzBound, bounds: Tensor, scale: float) -> None:
        self.parts = parts
        self.lower, self.width = bounds[0], bounds[1] - bounds[0]
        self.scale, self.factor = scale, parts.radius / scale
        self.chosen = parts.contexts[:0]
        self._known: tuple[bytes, tuple[Array, Array, Array, Array]] | None = None

    def add_steepest(self, x: Tensor) -> None:
        """Let the steepest contexts at a point ``1 x d_x`` enter."""
        contexts = self.parts.contexts
        norms = torch.linalg.vector_norm(self.parts.gradients(x, contexts)[0], dim=-1)
        places = norms.topk(min(_STEEPEST, len(norms))).indices
        self.chosen = torch.cat([self.chosen, contexts[places]]).unique(dim=0)
        self._known = None

    def solve(self, start: Tensor) -> tuple[Tensor, float]:
        """The end ``1 x d_x`` of a search from a point, and the value that it promises."""
        # A column without width stays where it is.
        share = torch.where(self.width > 0, (start[0] - self.lower) / self.width, 0.0)
        x = share.clamp(0.0, 1.0).double().cpu().numpy()
        first = np.append(x, self._at(x)[2].max())
        with warnings.catch_warnings():
            # Steps that leave the bounds by rounding are moved back.
            warnings.simplefilter("ignore", RuntimeWarning)
            result = minimize(
                lambda z: z[-1] - self._at(z[:-1])[0],
                first,
                jac=lambda z: np.append(-self._at(z[:-1])[1], 1.0),
                method="SLSQP",
                bounds=[(0.0, 1.0)] * len(x) + [(0.0, None)],
                constraints={
                    "type": "ineq",
                    "fun": lambda z: z[-1] - self._at(z[:-1])[2],
                    "jac": lambda z: np.pad(
                        -self._at(z[:-1])[3], ((0, 0), (0, 1)), constant_values=1.0
                    ),
                },
                options=_FINE,
            )
        x = np.clip(result.x[:-1], 0.0, 1.0)
        expectation, _, norms, _ = self._at(x)
        return self._point(x), self.scale * float(expectation - norms.max())

    def _point(self, x: Array) -> Tensor:
        return (self.lower + self.width * torch.as_tensor(x).to(self.lower)).unsqueeze(0)

    def _at(self, x: Array) -> tuple[Array, Array, Array, Array]:
        """Expectation and its derivatives, and penalties and theirs, in the search's units."""
        key = x.tobytes()
        if self._known is None or self._known[0] != key:
            with torch.enable_grad():
                X = self._point(x).requires_grad_()
                value = self.parts.expectation(X).squeeze()
                (slope,) = torch.autograd.grad(value, X)
            norms, slopes = self.parts.norms_with_slopes(X.detach(), self.chosen)
            width = self.width / self.scale
            found = (
                value.detach() / self.scale,
                slope[0] * width,
                self.factor * norms[0],
                self.factor * self.width * slopes[0],
            )
            a, b, c, d = (each.double().cpu().numpy() for each in found)
            self._known = key, (a, b, c, d)
        return self._known[1]
