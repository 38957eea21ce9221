"""Problems without noise, and the probabilities that models state for good values there.

The runs and comparisons are in ``benchmarks/protocols/tail_only.md``.

* ``published``: test functions from papers without noise: Goldstein-Price, Branin, Hartmann in 3, 4
  and 6 dimensions, and Ackley, Rosenbrock and Shekel in 4 dimensions. They do not depend on the
  seed.
* ``bbob``: functions of COCO [Hansen et al. 2021, Optimization Methods and Software 36]: the
  second function of each of the five groups of its noise-free suite, in 2, 3 and 5 dimensions.
  Each seed has another instance.
* 5 d initial points, scrambled Sobol, and 30 evaluations. The Gaussian process has a Matern-5/2
  kernel with one lengthscale for each input. Hyperparameters maximise the likelihood; they are
  fitted at each of the first five evaluations and at every fifth evaluation after them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.optim.fit import fit_gpytorch_mll_scipy
from botorch.test_functions.base import BaseTestProblem
from botorch.test_functions.synthetic import (
    Ackley,
    Branin,
    Hartmann,
    Rosenbrock,
    Shekel,
    SyntheticTestFunction,
)
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.calibration.methods import ALPHA
from benchmarks.calibration.tail import TailStrategy
from benchmarks.framework.landscapes import Landscape
from benchmarks.framework.replicate_result import Result
from benchmarks.framework.sequential import (
    Bounds,
    Method,
    Oracle,
    Problem,
    SequentialReplicate,
    bounds_of,
    sobol_design,
)
from benchmarks.framework.strategies import (
    AcquisitionStrategy,
    CalibratorFactory,
    predictive_cdf,
)
from benchmarks.framework.surrogates import Refitted, on_unit_cube
from botorch_calib.calibration import LocalizedConformal, QuantileRecalibrator

SETTINGS: dict[str, Any] = {"num_restarts": 4, "raw_samples": 512, "maxiter": 20}

# The second function of each group of COCO's noise-free suite.
BBOB_FUNCTIONS = (2, 7, 11, 16, 21)
BBOB_DIMENSIONS = (2, 3, 5)

# Noise variance that keeps covariance matrices regular, in units of the outcomes' variance.
NUGGET = 1e-6

FIT = {"maxiter": 100}

# The minimum of Hartmann's function in four dimensions, which BoTorch does not state.
HARTMANN4 = -3.1344941

# Share of the outcomes that count as good: the best quarter.
SHARE = 0.25


class GoldsteinPrice(SyntheticTestFunction):
    """The function of Goldstein and Price, minimised: 3 at (0, -1)."""

    dim = 2
    continuous_inds = [0, 1]
    _bounds = [(-2.0, 2.0), (-2.0, 2.0)]
    _optimal_value = 3.0
    _optimizers = [(0.0, -1.0)]

    def _evaluate_true(self, X: Tensor) -> Tensor:
        x, y = X.unbind(dim=-1)
        first = 19 - 14 * x + 3 * x**2 - 14 * y + 6 * x * y + 3 * y**2
        second = 18 - 32 * x + 12 * x**2 + 48 * y - 36 * x * y + 27 * y**2
        return (1 + (x + y + 1) ** 2 * first) * (30 + (2 * x - 3 * y) ** 2 * second)


FUNCTIONS: dict[str, Callable[[], BaseTestProblem]] = {
    "goldstein_price": GoldsteinPrice,
    "branin": Branin,
    "hartmann3": partial(Hartmann, dim=3),
    "hartmann4": partial(Hartmann, dim=4),
    "hartmann6": partial(Hartmann, dim=6),
    "ackley4": partial(Ackley, dim=4),
    "rosenbrock4": partial(Rosenbrock, dim=4),
    "shekel10": Shekel,
}


@dataclass(frozen=True)
class Noiseless:
    """Makes the oracle of a landscape, which does not depend on the seed."""

    landscape: Landscape

    def __call__(self, seed: int) -> Oracle:
        return Oracle(self.landscape, self.landscape)


@dataclass(frozen=True)
class Bbob:
    """Makes the oracle of a COCO function, whose instance depends on the seed.

    It needs ``coco-experiment``.
    """

    function: int
    dimension: int

    def __call__(self, seed: int) -> Oracle:
        import cocoex

        problem = cocoex.BareProblem("bbob", self.function, self.dimension, 1 + seed % 10000)

        def negated(X: Tensor) -> Tensor:
            values = [-problem(x) for x in X.numpy()]
            return torch.tensor(values, dtype=torch.double).unsqueeze(-1)

        return Oracle(negated, negated, -problem.best_value())


@dataclass(frozen=True)
class Interpolating(Refitted):
    """A Gaussian process without noise, by maximum likelihood, on the unit cube."""

    every: int = 5
    at_first: int = 5

    def fit(self, X: Tensor, Y: Tensor, bounds: Tensor) -> SingleTaskGP:
        dim = X.shape[-1]
        lengthscales = Interval(0.01, 20.0, initial_value=0.5)
        kernel = MaternKernel(nu=2.5, ard_num_dims=dim, lengthscale_constraint=lengthscales)
        likelihood = GaussianLikelihood(noise_constraint=GreaterThan(0.1 * NUGGET))
        likelihood.noise = NUGGET
        likelihood.requires_grad_(False)
        gp = on_unit_cube(X, Y, bounds, likelihood=likelihood, covar_module=ScaleKernel(kernel))
        gp.train()
        # If covariances become singular, the best hyperparameters so far are used.
        fit_gpytorch_mll_scipy(ExactMarginalLogLikelihood(likelihood, gp), options=FIT)
        return gp.eval()


def published(function: str) -> Problem:
    """A function of ``published``."""
    made: Any = FUNCTIONS[function]()
    bounds = bounds_of(made)
    minimum = HARTMANN4 if function == "hartmann4" else float(made.optimal_value)
    return noise_free(function, Noiseless(Landscape(FUNCTIONS[function], bounds)), bounds, -minimum)


def bbob(function: int, dimension: int) -> Problem:
    """A function of COCO."""
    build, bounds = Bbob(function, dimension), ((-5.0, 5.0),) * dimension
    return noise_free(f"bbob_f{function:02d}_{dimension}d", build, bounds, math.nan)


def noise_free(name: str, build: Callable[[int], Oracle], bounds: Bounds, best: float) -> Problem:
    return Problem(
        name=name,
        build=build,
        bounds=bounds,
        optimal_value=best,
        initial_design=partial(sobol_design, bounds=bounds),
        num_initial=5 * len(bounds),
        num_evaluations=30,
        surrogate=Interpolating(),
    )


def names_by_group() -> dict[str, tuple[str, ...]]:
    names = [f"bbob_f{f:02d}_{d}d" for d in BBOB_DIMENSIONS for f in BBOB_FUNCTIONS]
    return {"published": tuple(FUNCTIONS), "bbob": tuple(names)}


def problems() -> tuple[Problem, ...]:
    own = [published(function) for function in FUNCTIONS]
    return (*own, *(bbob(f, d) for d in BBOB_DIMENSIONS for f in BBOB_FUNCTIONS))


def methods() -> tuple[Method, ...]:
    """The plain process, three calibrations of the whole distribution, and one of its tail."""
    calibrators: dict[str, CalibratorFactory | None] = {
        "plain": None,
        "locbo": partial(LocalizedConformal, alpha=ALPHA),
        "ocbo": partial(QuantileRecalibrator, lengthscale=math.inf),
    }
    shares = {"whole": 1.0, "tail_only": SHARE}
    return (
        *(
            Method(name, partial(AcquisitionStrategy, calibrator=calibrator, **SETTINGS))
            for name, calibrator in calibrators.items()
        ),
        *(
            Method(name, partial(TailStrategy, share=share, **SETTINGS))
            for name, share in shares.items()
        ),
    )


def replicate(problem: Problem, method: Method, seed: int) -> Result:
    """Run ``method`` on ``problem`` and record its stated probabilities of good values."""
    return TailReplicate(problem, method, seed).run()


class TailReplicate(SequentialReplicate):
    """Sequential optimization that records stated probabilities of good values.

    Extras for each choice: the ``stated`` probability that it improves on the best value, and
    whether it has ``improved``. The other extras have one entry. They concern the model of the
    initial design at points of the box, where a value is good if it exceeds the upper quartile of
    the initial values: the mean stated probability of a good value (``box_stated``), the share of
    good values (``box_found``), and the mean squared difference between the stated probability and
    whether the value is good (``box_brier``). ``spread`` is the spread of the objective.
    """

    def evaluate(self, x: Tensor, model: Model | None, step: int) -> None:
        best = self.Y.max()
        self.extras.setdefault("stated", []).append(self.exceedance(model, x, best).item())
        if step == 0:
            self._judge_first(model)
        super().evaluate(x, model, step)
        self.extras.setdefault("improved", []).append(float(self.Y[-1] > best))

    def _judge_first(self, model: Model | None) -> None:
        space = self.space()
        f, level = self.oracle.truth(space).flatten(), torch.quantile(self.Y, 1.0 - SHARE)
        stated, found = self.exceedance(model, space, level), (f > level).double()
        self.extras["box_stated"] = [stated.mean().item()]
        self.extras["box_found"] = [found.mean().item()]
        self.extras["box_brier"] = [(stated - found).square().mean().item()]
        self.extras["spread"] = [f.std().item()]

    @torch.no_grad()
    def exceedance(self, model: Model | None, X: Tensor, level: Tensor) -> Tensor:
        """The stated probabilities ``n`` that values at ``n x d`` points exceed a level."""
        if model is None:
            raise TypeError("The method must have a model.")
        if isinstance(self.strategy, TailStrategy):
            return self.strategy.exceedance(model, X, level)
        # Each point is a batch, since only marginals are needed.
        return 1.0 - predictive_cdf(model.posterior(X.unsqueeze(-2)), level).flatten()
