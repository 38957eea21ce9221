"""The calibration study of online calibrated Bayesian optimization, on synthetic functions.

The protocol, fixed before the first run: the functions below, without noise, each maximised
after a change of sign; 3 initial points (5 in ten dimensions) and 25 evaluations;
hyperparameters fitted at each of the first ten evaluations and every fifth one after. The
acquisition function belongs to the problem: the upper confidence bound on Forrester's
function, all three on the six-hump camel, expected improvement otherwise. Initial points
are scrambled Sobol, but for Forrester's function, where they miss the basin of the optimum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from botorch.test_functions.synthetic import (
    Ackley,
    Beale,
    DropWave,
    SixHumpCamel,
    SyntheticTestFunction,
)
from botorch.utils.sampling import manual_seed
from torch import Tensor

from benchmarks.framework.sequential import Problem, botorch_oracle, bounds_of, sobol_design
from benchmarks.framework.surrogates import Refitted


class Forrester(SyntheticTestFunction):
    """Forrester's function ``(6 x - 2)^2 sin(12 x - 4)`` on [0, 1], minimised.

    A local minimum near 0.14 and the global one near 0.76.
    """

    dim = 1
    continuous_inds = [0]
    _bounds = [(0.0, 1.0)]
    _optimal_value = -6.020740055767
    _optimizers = [(0.757248757841856,)]

    def _evaluate_true(self, X: Tensor) -> Tensor:
        x = X[..., 0]
        return (6.0 * x - 2.0).square() * (12.0 * x - 4.0).sin()


class Alpine1(SyntheticTestFunction):
    """The first Alpine function ``sum |x_i sin x_i + 0.1 x_i|`` on [-10, 10]^d, minimised."""

    _optimal_value = 0.0
    _check_grad_at_opt = False

    def __init__(self, dim: int = 10, negate: bool = False) -> None:
        self.dim = dim
        self.continuous_inds = list(range(dim))
        self._optimizers = [(0.0,) * dim]
        super().__init__(negate=negate, bounds=[(-10.0, 10.0)] * dim)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        return (X * X.sin() + 0.1 * X).abs().sum(dim=-1)


class Cosines(SyntheticTestFunction):
    """``sum u_i^2 - 0.3 cos(3 pi u_i)``, less 1, with ``u = 1.6 x - 0.5`` on [0, 1]^2, minimised.

    The objective called cosines in the study, whose optimum of -1.6 it has.
    """

    dim = 2
    continuous_inds = [0, 1]
    _bounds = [(0.0, 1.0)] * 2
    _optimal_value = -1.6
    _optimizers = [(0.3125, 0.3125)]

    def _evaluate_true(self, X: Tensor) -> Tensor:
        U = 1.6 * X - 0.5
        return (U.square() - 0.3 * (3.0 * math.pi * U).cos()).sum(dim=-1) - 1.0


class McCormick(SyntheticTestFunction):
    """``sin(x + y) + (x - y)^2 - 1.5 x + 2.5 y + 1`` on [-1.5, 4] x [-3, 4], minimised."""

    dim = 2
    continuous_inds = [0, 1]
    _bounds = [(-1.5, 4.0), (-3.0, 4.0)]
    _optimal_value = -1.913222954981
    _optimizers = [(-0.547197551196598, -1.547197551196598)]

    def _evaluate_true(self, X: Tensor) -> Tensor:
        x, y = X[..., 0], X[..., 1]
        return (x + y).sin() + (x - y).square() - 1.5 * x + 2.5 * y + 1.0


class Powers(SyntheticTestFunction):
    """The sum of powers ``|x|^2 + |y|^3`` on [-1, 1]^2, minimised."""

    dim = 2
    continuous_inds = [0, 1]
    _bounds = [(-1.0, 1.0)] * 2
    _optimal_value = 0.0
    _optimizers = [(0.0, 0.0)]

    def _evaluate_true(self, X: Tensor) -> Tensor:
        return X[..., 0].square() + X[..., 1].abs().pow(3)


class CrossInTray(SyntheticTestFunction):
    """Cross-in-tray on [-10, 10]^2, minimised; creased along the axes, with four optima."""

    dim = 2
    continuous_inds = [0, 1]
    _bounds = [(-10.0, 10.0)] * 2
    _optimal_value = -2.062611870823
    _optimizers = [(x, y) for x in (-1.349406609, 1.349406609) for y in (-1.349406609, 1.349406609)]

    def _evaluate_true(self, X: Tensor) -> Tensor:
        decay = (100.0 - X.norm(dim=-1) / math.pi).abs().exp()
        return -1e-4 * ((X.sin().prod(dim=-1) * decay).abs() + 1.0).pow(0.1)


@dataclass(frozen=True)
class StudyProblem(Problem):
    """A problem whose protocol names the acquisition function that all methods use."""

    acquisition: str = "ei"


def forrester_design(n: int, seed: int) -> Tensor:
    """``n x 1`` points, one drawn uniformly from each ``n``-th of [0, 0.55]."""
    with manual_seed(seed):
        return 0.55 * (torch.arange(n).unsqueeze(-1) + torch.rand(n, 1, dtype=torch.double)) / n


# Names, test functions and acquisition functions.
FUNCTIONS: tuple[tuple[str, Callable[..., SyntheticTestFunction], str], ...] = (
    ("forrester", Forrester, "ucb"),
    ("ackley", Ackley, "ei"),
    ("alpine10", Alpine1, "ei"),
    ("six_hump_camel_ucb", SixHumpCamel, "ucb"),
    ("six_hump_camel_ei", SixHumpCamel, "ei"),
    ("six_hump_camel_pi", SixHumpCamel, "pi"),
    ("cosines", Cosines, "ei"),
    ("beale", Beale, "ei"),
    ("mccormick", McCormick, "ei"),
    ("powers", Powers, "ei"),
    ("cross_in_tray", CrossInTray, "ei"),
    ("drop_wave", DropWave, "ei"),
)


def study_problem(
    name: str, function: Callable[..., SyntheticTestFunction], acquisition: str
) -> StudyProblem:
    """One problem of the study."""
    made: Any = function(negate=True)
    bounds = bounds_of(made)
    design = forrester_design if name == "forrester" else partial(sobol_design, bounds=bounds)
    return StudyProblem(
        name=name,
        build=partial(botorch_oracle, cls=function, negate=True),
        bounds=bounds,
        optimal_value=float(made.optimal_value),
        initial_design=design,
        num_initial=5 if len(bounds) == 10 else 3,
        num_evaluations=25,
        surrogate=Refitted(every=5, at_first=10),
        acquisition=acquisition,
    )


def problems() -> tuple[StudyProblem, ...]:
    return tuple(study_problem(*row) for row in FUNCTIONS)
