"""The test functions of the paper on OCBO, without noise, and its table 4.

Functions are maximised after a change of sign. Each problem determines the acquisition function:
the upper confidence bound for Forrester's function, all three acquisition functions for the
six-hump camel, and expected improvement for the other functions.

* ``problems``: 3 initial points (5 in ten dimensions) and 25 evaluations. Hyperparameters have
  priors and are fitted at each of the first ten evaluations and every fifth evaluation after them.
  Initial points are scrambled Sobol points; for Forrester's function they avoid the basin of the
  optimum. The last problem is Alpine over 100 evaluations, from the paper's appendix A.4.
* ``table_4``: Forrester's function from uniform points, with four kernels and expected improvement;
  with the linear kernel and two other acquisition functions; and with the Matern kernel from other
  designs. As in GPyOpt, which the paper uses, hyperparameters have no priors, the mean is zero, the
  linear kernel has no offset, and hyperparameters are fitted in every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from botorch.models import SingleTaskGP
from botorch.optim.fit import fit_gpytorch_mll_scipy
from botorch.test_functions.synthetic import (
    Ackley,
    Beale,
    DropWave,
    SixHumpCamel,
    SyntheticTestFunction,
)
from botorch.utils.sampling import manual_seed
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import (
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    RBFKernel,
    ScaleKernel,
)
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.calibration.published_ocbo import StudyProblem
from benchmarks.framework.sequential import Bounds, botorch_oracle, bounds_of, box, sobol_design
from benchmarks.framework.surrogates import Refitted, on_unit_cube


class Forrester(SyntheticTestFunction):
    """Forrester's function ``(6 x - 2)^2 sin(12 x - 4)`` on [0, 1], minimised.

    It has a local minimum near 0.14 and the global minimum near 0.76.
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
    """The first Alpine function ``sum |x_i sin x_i + 0.1 x_i|`` on [-10, 10]^10, minimised."""

    dim = 10
    continuous_inds = list(range(10))
    _bounds = [(-10.0, 10.0)] * 10
    _optimal_value = 0.0
    _optimizers = [(0.0,) * 10]
    _check_grad_at_opt = False

    def _evaluate_true(self, X: Tensor) -> Tensor:
        return (X * X.sin() + 0.1 * X).abs().sum(dim=-1)


class Cosines(SyntheticTestFunction):
    """``sum (u_i^2 - 0.3 cos(3 pi u_i)) - 1`` with ``u = 1.6 x - 0.5`` on [0, 1]^2, minimised.

    This is the paper's objective "cosines", with the same optimum of -1.6.
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
    """Cross-in-tray on [-10, 10]^2, minimised, with creases along the axes and four optima."""

    dim = 2
    continuous_inds = [0, 1]
    _bounds = [(-10.0, 10.0)] * 2
    _optimal_value = -2.062611870823
    _optimizers = [(x, y) for x in (-1.349406609, 1.349406609) for y in (-1.349406609, 1.349406609)]

    def _evaluate_true(self, X: Tensor) -> Tensor:
        decay = (100.0 - X.norm(dim=-1) / math.pi).abs().exp()
        return -1e-4 * ((X.sin().prod(dim=-1) * decay).abs() + 1.0).pow(0.1)


# ------------------------------------------------------------ problems


def forrester_design(n: int, seed: int) -> Tensor:
    """``n x 1`` points, drawn uniformly from each of ``n`` equal parts of [0, 0.55]."""
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
LONG = "alpine10_100"


def study_problem(
    name: str, function: Callable[..., SyntheticTestFunction], acquisition: str
) -> StudyProblem:
    """One problem of `problems`."""
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
    """All functions over 25 evaluations, and Alpine over 100 evaluations."""
    studied = {row[0]: study_problem(*row) for row in FUNCTIONS}
    return (*studied.values(), replace(studied["alpine10"], name=LONG, num_evaluations=100))


# Areas under the curve from the paper's table 3, calibrated and uncalibrated.
PUBLISHED = {
    "forrester": (0.8187, 0.9866),
    "ackley": (0.5516, 0.7815),
    "cosines": (0.2969, 0.3441),
    "alpine10": (0.6423, 0.6527),
}


# ------------------------------------------------------------ table 4


KERNELS: dict[str, Callable[[], Kernel]] = {
    "matern": lambda: ScaleKernel(MaternKernel(nu=2.5)),
    "linear": LinearKernel,
    "rbf": lambda: ScaleKernel(RBFKernel()),
    "periodic": lambda: ScaleKernel(PeriodicKernel()),
}


@dataclass(frozen=True)
class MostLikely(Refitted):
    """A Gaussian process with zero mean whose hyperparameters have no priors.

    Args:
        kernel: One of `KERNELS`.
    """

    kernel: str = "matern"

    def fit(self, X: Tensor, Y: Tensor, bounds: Tensor) -> SingleTaskGP:
        gp = on_unit_cube(
            X,
            Y,
            bounds,
            likelihood=GaussianLikelihood(
                noise_constraint=GreaterThan(1e-6, transform=None, initial_value=0.01)
            ),
            covar_module=KERNELS[self.kernel](),
            mean_module=ZeroMean(),
        )
        # GPy starts here.
        for name, _ in gp.covar_module.named_parameters():
            gp.covar_module.initialize(**{name.replace("raw_", ""): 1.0})
        # Without priors line searches often end early, which `fit_gpytorch_mll` treats as a
        # failure.
        fit_gpytorch_mll_scipy(
            ExactMarginalLogLikelihood(gp.likelihood, gp), options={"maxiter": 100}
        )
        return gp.eval()


def random_design(n: int, seed: int, *, bounds: Bounds) -> Tensor:
    """``n x d`` independent uniform points."""
    lower, upper = box(bounds)
    with manual_seed(seed):
        return lower + (upper - lower) * torch.rand(n, len(bounds), dtype=torch.double)


def latin_design(n: int, seed: int, *, bounds: Bounds) -> Tensor:
    """``n x d`` points of a random Latin hypercube design."""
    lower, upper = box(bounds)
    with manual_seed(seed):
        within = torch.rand(n, len(bounds), dtype=torch.double)
        order = torch.stack([torch.randperm(n) for _ in bounds], dim=-1)
    return lower + (upper - lower) * (order + within) / n


# Rows of the table by name: kernel, acquisition function, design, number of initial points, and the
# published areas under the curve, calibrated and uncalibrated.
TABLE_4: dict[str, tuple[str, str, Callable[..., Tensor], int, tuple[float, float]]] = {
    "matern": ("matern", "ei", random_design, 3, (0.2811, 0.3454)),
    "linear": ("linear", "ei", random_design, 3, (0.5221, 1.0)),
    "rbf": ("rbf", "ei", random_design, 3, (0.2366, 0.2922)),
    "periodic": ("periodic", "ei", random_design, 3, (0.2586, 0.3305)),
    "linear_ucb": ("linear", "ucb", random_design, 3, (1.0, 1.0)),
    "linear_pi": ("linear", "pi", random_design, 3, (0.6920, 1.0)),
    "random_4": ("matern", "ei", random_design, 4, (0.0557, 0.0614)),
    "random_7": ("matern", "ei", random_design, 7, (0.0719, 0.0736)),
    "random_10": ("matern", "ei", random_design, 10, (0.0825, 0.0817)),
    "sobol_4": ("matern", "ei", sobol_design, 4, (0.0415, 0.0414)),
    "latin_4": ("matern", "ei", latin_design, 4, (0.2358, 0.2181)),
}


def table_4() -> tuple[StudyProblem, ...]:
    """Forrester's function with the settings of each row."""
    problem = study_problem("forrester", Forrester, "ei")
    return tuple(
        replace(
            problem,
            name=name,
            surrogate=MostLikely(kernel=kernel),
            acquisition=acquisition,
            initial_design=partial(design, bounds=problem.bounds),
            num_initial=num_initial,
        )
        for name, (kernel, acquisition, design, num_initial, _) in TABLE_4.items()
    )


PUBLISHED_IN_TABLE_4 = {name: row[-1] for name, row in TABLE_4.items()}
