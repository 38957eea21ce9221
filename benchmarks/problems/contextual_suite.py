r"""Problems with a context from [Micheli2025wdrbo, sections 5 and 9], *maximised* by default.

The paper's other problems are in `botorch_calib.test_functions`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from botorch.test_functions.synthetic import Ackley, Hartmann
from scipy.stats import norm
from torch import Tensor

from botorch_calib.robust.joint_inputs import join_contexts
from botorch_calib.test_functions.contextual import ContextualProblem, clipped_normal

# Edges of panels in units of the distance from the centre of the unit interval: panels of width
# 1/64, and panels that become finer towards the centre.
_RIGHT = (0.0, *(k / 64 for k in range(1, 33)), *(2.0**-k / 64 for k in range(1, 13)))
_GRADED = tuple(sorted({0.5 + r for r in _RIGHT} | {0.5 - r for r in _RIGHT}))
_ICDF = partial(clipped_normal, mean=0.5, std=0.2)


@cache
def _rule(edges: Sequence[float]) -> Tensor:
    """Nodes and weights of a context: 16 Gauss-Legendre nodes per panel, and atoms at 0 and 1."""
    reference, weight = np.polynomial.legendre.leggauss(16)
    left, width = np.array(edges[:-1])[:, None], np.diff(edges)[:, None]
    nodes = (left + width * (reference + 1.0) / 2.0).ravel()
    weights = (width * weight / 2.0).ravel() * norm.pdf(nodes, 0.5, 0.2)
    return torch.tensor([[*nodes, 0.0, 1.0], [*weights, *norm.cdf([-2.5, -2.5])]])


class QuadratureProblem(ContextualProblem):
    """Expectations over one context by Gauss-Legendre quadrature on panels between edges."""

    _icdfs: tuple[Any, ...] = (_ICDF,)
    _edges: tuple[float, ...]

    def _expectation(self, X: Tensor) -> Tensor:
        nodes, weights = _rule(self._edges).to(X)
        rows = X.reshape(-1, 1, self.num_decisions).split(2**19 // len(nodes))
        joint = (join_contexts(part, nodes.unsqueeze(-1)) for part in rows)
        return torch.cat([self._evaluate_true(Z) @ weights for Z in joint]).reshape(X.shape[:-1])


class ContextualAckley(QuadratureProblem):
    r"""Ackley in three dimensions, the last of which is a context, on the unit cube.

    Coordinates are scaled to [-32.768, 32.768]; the context is N(0.5, 0.2^2), clipped to [0, 1].
    The best decisions are at the centre, whatever the context. There are two decisions, as in the
    paper's code; the paper's table 1 has one. The panels become finer towards the cone at the
    centre.
    """

    num_decisions = 2
    _bounds = [(0.0, 1.0)] * 3
    _stochastic_optimum = -12.531436760119306
    _stochastic_optimizer = (0.5, 0.5)
    _edges = _GRADED
    _ackley = Ackley(dim=3)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        return self._ackley._evaluate_true(65.536 * (X - 0.5))


class ContextualHartmann6(QuadratureProblem):
    r"""Hartmann-6 on the unit cube with ``x_6`` as the context, N(0.5, 0.2^2) clipped to [0, 1]."""

    num_decisions = 5
    _bounds = [(0.0, 1.0)] * 6
    _stochastic_optimum = 2.316916796256601
    _stochastic_optimizer = (0.198322040, 0.151669720, 0.485013171, 0.273286481, 0.312928452)
    _edges = (0.0, 0.25, 0.5, 0.75, 1.0)

    _hartmann = Hartmann(dim=6)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        return self._hartmann.to(X)._evaluate_true(X)


class ModifiedBranin(QuadratureProblem):
    r"""``sqrt(B(u_1, v_1) B(u_2, v_2))`` with the Branin function ``B``, on the unit cube.

    The decisions are ``u_1`` and ``v_2``, the contexts ``v_1`` and ``u_2``, in this order:
    ``u = 15 x - 5`` and ``v = 15 x``. Contexts are independent, N(0.5, 0.2^2) clipped to [0, 1].
    The expectation is the product of two expectations of ``sqrt(B)``.
    """

    num_decisions = 2
    _bounds = [(0.0, 1.0)] * 4
    _icdfs = (_ICDF,) * 2
    _stochastic_optimum = -16.064257804965646
    _stochastic_optimizer = (0.185240718, 0.201188443)
    _edges = tuple(k / 32 for k in range(33))

    def _evaluate_true(self, X: Tensor) -> Tensor:
        first, second = _branin(X[..., 0], X[..., 2]), _branin(X[..., 3], X[..., 1])
        return (first * second).sqrt()

    def _expectation(self, X: Tensor) -> Tensor:
        nodes, weights = _rule(self._edges).to(X)
        first = _branin(X[..., :1], nodes).sqrt() @ weights
        second = _branin(nodes, X[..., 1:]).sqrt() @ weights
        return first * second


def _branin(x: Tensor, y: Tensor) -> Tensor:
    """The Branin function with its box scaled to the unit square."""
    u, v = 15.0 * x - 5.0, 15.0 * y
    valley = v - 5.1 / (4.0 * math.pi**2) * u.square() + 5.0 / math.pi * u - 6.0
    return valley.square() + 10.0 * (1.0 - 1.0 / (8.0 * math.pi)) * u.cos() + 10.0


class ThreeHumpCamel(ContextualProblem):
    r"""``2 x^2 - 1.05 x^4 + x^6 / 6 + x c + c^2`` on [-1, 1]^2, with a uniform context (eq. 83).

    In expectation ``x c + c^2`` is 1/3, so the best decision is 0.
    """

    num_decisions = 1
    _bounds = [(-1.0, 1.0)] * 2
    _icdfs = (lambda u: 2.0 * u - 1.0,)
    _stochastic_optimum = -1.0 / 3.0
    _stochastic_optimizer = (0.0,)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        x, c = X.unbind(dim=-1)
        return self._decision_part(x) + x * c + c.square()

    def _expectation(self, X: Tensor) -> Tensor:
        return self._decision_part(X[..., 0]) + 1.0 / 3.0

    @staticmethod
    def _decision_part(x: Tensor) -> Tensor:
        return 2.0 * x.square() - 1.05 * x.pow(4) + x.pow(6) / 6.0
