"""Wasserstein balls of order 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from botorch.exceptions.errors import UnsupportedError
from torch import Tensor

from botorch_calib._validation import check_one_of
from botorch_calib.robust.contexts import ContextDistribution, pairwise_distances
from botorch_calib.robust.contextual_function import ContextualFunction
from botorch_calib.robust.sets.base import Ball

# Largest accepted gap between primal and dual values, for values that range over [0, 1]; the search
# of a row ends at a smaller gap.
_GAP = 1e-12
# Limit on the number of cutting planes. Even without a limit the search would end after finitely
# many planes, and no instance has yet needed this many.
_MAX_STEPS = 200
# On a GPU the test for convergence forces a synchronization, so it runs once in this many steps.
# Most instances need 4 to 14 steps. On a CPU the test runs after each step.
_BLIND_STEPS = 16
# Number of costs of moving one atom to another that are computed together, on a CPU and on a GPU.
# On a CPU such a block fits into the cache.
_BLOCK, _DEVICE_BLOCK = 2**17, 2**24


class WassersteinBall(Ball):
    r"""Distributions within Wasserstein distance ``radius`` (order 1, Euclidean ground distance).

    Let the centre have the ``M`` atoms ``c_i`` with weights ``w_i``, let ``u_i`` be the values of
    the function ``u`` at the atoms, and let ``E u`` be their mean under the centre.

    * ``method="exact"``: distributions on all atoms, even of weight 0. By duality, the worst case
      is

        ``max_{gamma >= 0} -gamma radius + sum_i w_i min_j (u_j + gamma |c_j - c_i|)``.

      The function of ``gamma`` is concave and piecewise linear. Cutting planes from both sides find
      its maximum to a duality gap of 1e-12 times the range of ``u``. The worst-case distribution
      moves the mass of each atom to the cheapest atom at the optimal ``gamma``. If two transport
      plans tie, it mixes them such that the transport costs exactly the radius. Time and memory
      grow with ``M^2``.
    * ``method="lipschitz"``: ``E u - radius max_c |grad_c u|`` of [Micheli2025wdrbo, eq. 12], with
      gradients at the ``lipschitz_points`` of the `ContextDistribution`. If these points fill the
      range of the contexts, this is a lower bound of the worst case, which is not always attained.
      **If the points are samples**, steeper contexts may be missed, and the value may exceed the
      worst case. Only `evaluate` is available, as `worst_case` receives no gradients of ``u``.

    If ``L`` is the Lipschitz constant of ``u`` in the context, over the whole range, the value of
    the exact method is between ``max(E u - radius L, min u)`` and ``E u``.

    The maximum over contexts has kinks, which slow a quasi-Newton search: use `optimize_robust`.

    Args:
        radius: Radius in units of the contexts (see `Ball`).
        method: ``"exact"`` or ``"lipschitz"``, as described above.

    Example:
        >>> values = X[:, 1].square()  # of some decision, in each context
        >>> worst = WassersteinBall(0.1).worst_case(values, contexts)
    """

    def __init__(
        self, radius: float | Tensor | Callable[[int], float], method: str = "exact"
    ) -> None:
        super().__init__(radius)
        self.method = check_one_of("method", method, ("exact", "lipschitz"))

    @property
    def needs_gradients(self) -> bool:
        """Whether the method needs gradients; if so, use `evaluate` instead of `worst_case`."""
        return self.method == "lipschitz"

    def evaluate(
        self, function: ContextualFunction, X: Tensor, contexts: ContextDistribution
    ) -> Tensor:
        if self.radius == 0.0:
            # The worst case is the expectation: neither gradients nor plans are needed.
            return contexts.expectation(function(X, contexts.points))
        if not self.needs_gradients:
            return super().evaluate(function, X, contexts)
        values, steepness = function.with_steepness(X, contexts.points, contexts.lipschitz_points)
        return contexts.expectation(values) - self.radius * steepness

    def _minimiser(self, values: Tensor, contexts: ContextDistribution) -> Tensor:
        if self.needs_gradients and self.radius != 0:
            raise UnsupportedError(
                "WassersteinBall(method='lipschitz') needs gradients with respect to the context: "
                "call `evaluate`, or use method='exact'."
            )
        return super()._minimiser(values, contexts)

    def _solve(self, u: Tensor, contexts: ContextDistribution) -> Tensor:
        return _Transport(u, contexts, self.radius).solve()


class _Plan(NamedTuple):
    """A transport plan for each of ``b`` functions; the ``m`` sources have positive weight."""

    target: Tensor  # index of the atom to which the mass of each source moves, b x m
    mean: Tensor  # mean of the function after the move, b x 1
    cost: Tensor  # cost of the transport, b x 1

    def replaced(self, other: _Plan, rows: Tensor) -> _Plan:
        """Return the plan with rows of ``other`` where the mask ``rows``, ``b x 1``, is True."""
        return _Plan(*(torch.where(rows, new, old) for new, old in zip(other, self, strict=True)))


class _Transport:
    """Computes the exact worst-case distributions of ``b`` functions.

    A plan that moves atom ``i`` to ``j(i)`` gives the line ``mean + gamma (cost - radius)`` in the
    dual variable ``gamma`` (see `WassersteinBall`). The line lies above the concave dual function
    and touches it where the plan is cheapest. The search keeps
    two plans: ``near`` costs at most the radius, and ``far`` costs more. The next ``gamma`` is
    where the lines of both plans cross. The value of the lines at the crossing is an upper bound on
    the optimum, and equals the mean of the mixture of both plans that costs exactly the radius. The
    cheapest plan at this ``gamma`` gives a lower bound, and replaces ``near`` or ``far``.

    Sources are the atoms of positive weight. If a source has the same target in both plans, it has
    this target for every ``gamma`` in between.
    """

    def __init__(self, u: Tensor, contexts: ContextDistribution, radius: float) -> None:
        self.u, self.radius = u, radius
        self.sources = contexts.support()
        self.weights = contexts.weights[self.sources]
        self.distances = contexts.memo(
            "distances", lambda: pairwise_distances(contexts.points[self.sources], contexts.points)
        )

    @property
    def on_processor(self) -> bool:
        """Whether tensors are on the CPU, so that reading a result does not synchronize."""
        return self.u.device.type == "cpu"

    def solve(self) -> Tensor:
        """Worst-case distributions, ``b x M``."""
        # At gamma = infinity the cheapest plan moves nothing. At gamma = 0 it moves all mass to the
        # smallest value.
        near = self._plan(self.sources.expand(len(self.u), -1))
        far = self._plan(self.u.argmin(dim=-1, keepdim=True).expand_as(near.target))
        done = far.cost <= self.radius
        for step in range(_MAX_STEPS):
            gamma = (near.mean - far.mean) / (far.cost - near.cost)
            bound = near.mean + gamma * (near.cost - self.radius)
            unsettled = (near.target != far.target) & ~done
            looks = self.on_processor or (step > 0 and step % _BLIND_STEPS == 0)
            if looks and not unsettled.any():
                break
            plan = self._plan(torch.where(unsettled, self._cheapest(gamma), far.target))
            done = done | (plan.mean + gamma * (plan.cost - self.radius) >= bound - _GAP)
            within = plan.cost <= self.radius
            near = near.replaced(plan, within & ~done)
            far = far.replaced(plan, ~within & ~done)
        # The mixture that costs exactly the radius, or ``far`` if it costs at most the radius
        share = (self.radius - near.cost) / (far.cost - near.cost)
        share = torch.where(far.cost <= self.radius, 1.0, share.clamp(0.0, 1.0))
        worst = torch.zeros_like(self.u)
        worst.scatter_add_(-1, far.target, share * self.weights)
        return worst.scatter_add_(-1, near.target, (1 - share) * self.weights)

    def _plan(self, target: Tensor) -> _Plan:
        places = torch.arange(target.shape[-1], device=target.device)
        mean, cost = self.u.gather(-1, target), self.distances[places, target]
        weights = self.weights.unsqueeze(-1)
        return _Plan(target, mean @ weights, cost @ weights)

    def _cheapest(self, gamma: Tensor) -> Tensor:
        """Targets ``b x m`` of the sources in the cheapest plan at ``gamma``."""
        block = _BLOCK if self.on_processor else _DEVICE_BLOCK
        size = max(1, block // self.distances.numel())
        parts = zip(self.u.unsqueeze(-2).split(size), gamma.unsqueeze(-1).split(size), strict=True)
        cost = (torch.addcmul(u, factor, self.distances) for u, factor in parts)
        # ``min`` with its indices takes half the time of ``argmin``.
        return torch.cat([each.min(dim=-1).indices for each in cost])
