"""Forecasts by six kinds of model, before and after calibration: suite `any_model`.

The comparisons and seeds are in ``benchmarks/protocols/any_model.md``. A run has these steps:

* The problems are the problems of `misspecified`, with their initial points and 40 evaluations.
* The points are scrambled Sobol points, the same for all models. Nothing is optimized.
* Before each of the last 20 evaluations, a model that knows all earlier outcomes states the
  distribution of the next outcome: uncalibrated (``plain``), with `LocalizedConformal` at 80 %
  (``localized``) and with `QuantileRecalibrator` (``recalibrated``), both at their defaults.
* Models are fitted before every fifth evaluation. Gaussian processes, including ensembles of
  Gaussian processes, then replay their history without the initial points
  (`CalibratedModel.from_history`). Between fits, `CalibratedModel.observe` conditions them, which
  equals a replay with the same hyperparameters. Ensembles of trees and networks can do neither:
  their calibrators learn from each outcome once, and the models do not change between fits.
* The loss of a forecast is the mean of twice the pinball loss over the levels 0.05, 0.1, 0.2, ...,
  0.9 and 0.95, which approximates the CRPS.

Each kind of model is a `Forecaster`. Prior-fitted networks are left out, since no package contains
their weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.ensemble import EnsembleModel
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms import Log, Normalize, Standardize
from botorch.models.transforms.outcome import ChainedOutcomeTransform
from gpytorch.mlls import ExactMarginalLogLikelihood
from sklearn.ensemble import RandomForestRegressor
from torch import Tensor

from benchmarks.calibration.methods import ALPHA
from benchmarks.framework.landscapes import NoisyLandscape
from benchmarks.framework.sequential import Method, Problem
from benchmarks.framework.stored_results import Condensation, average, ceiling
from benchmarks.framework.strategies import RandomStrategy
from botorch_calib import CalibratedModel
from botorch_calib.calibration import (
    Calibrator,
    LocalizedConformal,
    NoCalibration,
    QuantileRecalibrator,
)
from botorch_calib.models import NoisyEnsemble

# Number of steps between fits, for models whose fit is not cheap.
EVERY = 5

# Number of outcomes, the last ones, whose forecasts are evaluated.
NUM_JUDGED = 20

# Levels of the loss. The second and the last but one are the ends of 80 % intervals.
LOSS_LEVELS = torch.tensor([0.05, *(j / 10 for j in range(1, 10)), 0.95], dtype=torch.double)

STATEMENTS: dict[str, Callable[[], Calibrator]] = {
    "plain": NoCalibration,
    "localized": partial(LocalizedConformal, alpha=ALPHA),
    "recalibrated": QuantileRecalibrator,
}


class Forecaster(Protocol):
    """A kind of model, deterministic in its arguments and torch's random state."""

    @property
    def replays(self) -> bool:
        """Whether a model can predict its own past data one step ahead, and be conditioned."""

    def outcomes(self, Y: Tensor, problem: Problem) -> Tensor:
        """The outcomes to which it is fitted, which may have other units or signs."""
        return Y

    def __call__(self, X: Tensor, Y: Tensor, problem: Problem) -> Model:
        """The model fitted to ``n x d`` points and ``n x 1`` outcomes."""


@dataclass(frozen=True)
class GivenProcess(Forecaster):
    """The Gaussian process of suite `misspecified`, which is misspecified on purpose."""

    replays: bool = True

    def __call__(self, X: Tensor, Y: Tensor, problem: Problem) -> Model:
        return problem.surrogate(X, Y, problem.bounds_tensor(), 0, None)


@dataclass(frozen=True)
class DefaultProcess(GivenProcess):
    """``SingleTaskGP`` with BoTorch's priors, fitted."""

    def __call__(self, X: Tensor, Y: Tensor, problem: Problem) -> Model:
        return fitted(SingleTaskGP(X, Y, input_transform=unit_cube(problem)))


@dataclass(frozen=True)
class LogProcess(GivenProcess):
    """``SingleTaskGP`` with BoTorch's priors, fitted to the logarithm of a loss.

    The loss is the distance to the maximum plus one standard deviation of the function, so that
    noise seldom makes it negative. Losses are at least a hundredth of this standard deviation.
    """

    def outcomes(self, Y: Tensor, problem: Problem) -> Tensor:
        assert isinstance(problem.build, NoisyLandscape)
        spread = problem.build.landscape.spread()
        return (problem.optimal_value + spread - Y).clamp(min=0.01 * spread)

    def __call__(self, X: Tensor, Y: Tensor, problem: Problem) -> Model:
        logarithms = ChainedOutcomeTransform(log=Log(), standardize=Standardize(1))
        scaling = unit_cube(problem)
        return fitted(SingleTaskGP(X, Y, input_transform=scaling, outcome_transform=logarithms))


@dataclass(frozen=True)
class SaasProcesses(GivenProcess):
    """Four processes with SAAS priors of different strength, each at its posterior mode."""

    def __call__(self, X: Tensor, Y: Tensor, problem: Problem) -> Model:
        return fitted(EnsembleMapSaasSingleTaskGP(X, Y, input_transform=unit_cube(problem)))


def unit_cube(problem: Problem) -> Normalize:
    """Scales the problem's box to the unit cube."""
    return Normalize(len(problem.bounds), bounds=problem.bounds_tensor()).eval()


def fitted(gp: SingleTaskGP) -> SingleTaskGP:
    """The process with its hyperparameters at their posterior mode."""
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    return gp


class ScaledEnsemble(EnsembleModel):
    """An ensemble whose members receive points of the unit cube.

    With an ``input_transform`` BoTorch would warn that there are no training inputs to transform.
    """

    num_outputs = 1

    def __init__(self, scaling: Normalize) -> None:
        super().__init__()
        self.scaling = scaling

    def transform_inputs(self, X: Tensor, input_transform: Any = None) -> Tensor:
        """Points of the unit cube."""
        scaled: Tensor = self.scaling(X)
        return scaled


class TreesModel(ScaledEnsemble):
    """The trees of a random forest."""

    def __init__(self, forest: RandomForestRegressor, scaling: Normalize) -> None:
        super().__init__(scaling)
        self.trees = [tree.tree_ for tree in forest.estimators_]

    def forward(self, X: Tensor) -> Tensor:
        """Values ``batch_shape x num_trees x q x 1``."""
        rows = X.reshape(-1, X.shape[-1]).float().numpy()
        values = [torch.as_tensor(tree.predict(rows)) for tree in self.trees]
        return torch.stack(values).view(len(values), *X.shape[:-1], 1).movedim(0, -3)


@dataclass(frozen=True)
class Trees(Forecaster):
    """A random forest, whose noise variance is the out-of-bag error."""

    num_trees: int = 30
    replays: bool = False

    def __call__(self, X: Tensor, Y: Tensor, problem: Problem) -> Model:
        scaling = unit_cube(problem)
        seed = int(torch.randint(2**31, ()))
        forest = RandomForestRegressor(self.num_trees, oob_score=True, random_state=seed)
        targets = Y.flatten().numpy()
        forest.fit(scaling(X).numpy(), targets)
        noise = float(((forest.oob_prediction_ - targets) ** 2).mean())
        return NoisyEnsemble(TreesModel(forest, scaling), noise)


class NetworksModel(ScaledEnsemble):
    """Networks with two hidden layers of hyperbolic tangents, as a batch."""

    def __init__(self, num: int, width: int, scaling: Normalize, standard: Standardize) -> None:
        super().__init__(scaling)
        dim = scaling.bounds.shape[-1]
        self.weights = torch.nn.ParameterList(
            torch.randn(num, inputs + 1, outputs, dtype=torch.double) / inputs**0.5
            for inputs, outputs in ((dim, width), (width, width), (width, 1))
        )
        self.standard = standard

    def standardized(self, X: Tensor) -> Tensor:
        """Values ``... x num x q x 1`` of standardised outcomes, at points of the unit cube."""
        H = 2.0 * X.unsqueeze(-3) - 1.0
        for i, weights in enumerate(self.weights):
            H = (H.tanh() if i else H) @ weights[:, :-1] + weights[:, -1:]
        return H

    def forward(self, X: Tensor) -> Tensor:
        """Values ``batch_shape x num x q x 1``."""
        values: Tensor = self.standardized(X) * self.standard.stdvs + self.standard.means
        return values


@dataclass(frozen=True)
class Networks(Forecaster):
    """A deep ensemble, trained by Adam with weight decay.

    Each network learns from all outcomes except its own share. The noise variance is the mean
    squared error at the outcomes from which a network has not learned.
    """

    num: int = 5
    width: int = 32
    num_epochs: int = 100
    rate: float = 0.03
    weight_decay: float = 1e-2
    replays: bool = False

    def __call__(self, X: Tensor, Y: Tensor, problem: Problem) -> Model:
        scaling = unit_cube(problem)
        standard = Standardize(1)
        targets, _ = standard(Y)
        networks = NetworksModel(self.num, self.width, scaling, standard.eval())
        optimizer = torch.optim.AdamW(
            networks.parameters(), lr=self.rate, weight_decay=self.weight_decay
        )
        U, share = scaling(X), torch.arange(len(X)) % self.num
        held_out = share == torch.arange(self.num).unsqueeze(-1)
        for _ in range(self.num_epochs):
            optimizer.zero_grad()
            squares = (networks.standardized(U) - targets).square().squeeze(-1)
            (squares * ~held_out).mean(dim=-1).sum().backward()
            optimizer.step()
        networks.requires_grad_(False)
        errors = (networks(U) - Y).squeeze(-1)[held_out]
        return NoisyEnsemble(networks, float(errors.square().mean()))


@dataclass
class ForecastStrategy:
    """Sobol points, and the forecasts of their outcomes by a kind of model.

    Args:
        problem: The problem.
        seed: The seed of the replicate.
        forecaster: The kind of model.
    """

    problem: Problem
    seed: int
    forecaster: Forecaster
    step: int = field(default=0, init=False, repr=False)
    stated: dict[str, CalibratedModel] = field(default_factory=dict, init=False, repr=False)

    def fit(self, X: Tensor, Y: Tensor) -> None:
        self.step = X.shape[0] - self.problem.num_initial
        is_over = self.step == self.problem.num_evaluations
        if is_over or self.step % EVERY or (self.forecaster.replays and not self.is_judged):
            return
        model = self.forecaster(X, self.forecaster.outcomes(Y, self.problem), self.problem)
        for name, calibrator in STATEMENTS.items():
            if self.forecaster.replays:
                self.stated[name] = CalibratedModel.from_history(
                    model, calibrator(), num_initial=self.problem.num_initial, denoise=False
                )
            elif name in self.stated:
                self.stated[name] = self.stated[name].with_model(model)
            else:
                self.stated[name] = CalibratedModel(model, calibrator(), denoise=False)

    @property
    def is_judged(self) -> bool:
        """Whether the forecast of this step is evaluated."""
        return self.step >= self.problem.num_evaluations - NUM_JUDGED

    def propose(self, model: Model | None, X: Tensor, Y: Tensor) -> Tensor:
        return RandomStrategy(self.problem, self.seed).propose(None, X, Y)

    @torch.no_grad()
    def extras(self, model: Model | None, x: Tensor, y: Tensor) -> dict[str, float]:
        """The PIT, the width of the 80 % interval and the loss of each stated distribution.

        Then the calibrators learn from the outcome, and processes are conditioned on it.
        """
        y = self.forecaster.outcomes(y, self.problem)
        found = {}
        if self.is_judged:
            for name, stated in self.stated.items():
                posterior = stated.posterior(x, observation_noise=True)
                quantiles = posterior.quantile(LOSS_LEVELS).flatten()
                excess = quantiles - y.squeeze()
                found[f"pit_{name}"] = float(posterior.cdf(y))
                found[f"width_{name}"] = float(quantiles[-2] - quantiles[1])
                found[f"loss_{name}"] = float(
                    2.0 * (((excess >= 0.0).double() - LOSS_LEVELS) * excess).mean()
                )
        conditions = self.forecaster.replays
        for stated in self.stated.values():
            stated.observe(x, y, condition=conditions)
        return found

    def objective_covered(self, model: Model | None, X: Tensor, f: Tensor) -> None:
        return None


FORECASTERS: dict[str, Forecaster] = {
    "given": GivenProcess(),
    "default": DefaultProcess(),
    "log": LogProcess(),
    "saas": SaasProcesses(),
    "forest": Trees(),
    "networks": Networks(),
}


def methods() -> tuple[Method, ...]:
    return tuple(
        Method(name, partial(ForecastStrategy, forecaster=forecaster))
        for name, forecaster in FORECASTERS.items()
    )


# PITs are compared with levels that have three decimals.
ARCHIVED = Condensation(
    fields={"fit_seconds": average(), "acquisition_seconds": average()},
    extras={f"pit_{name}": ceiling(3) for name in STATEMENTS},
    others=average(6),
)
