"""Suite `real_limits`: limits on outcomes of real data and simulators, with their own noise.

The problems are tables in ``benchmarks/data/real_limits.npz``: noisy repetitions of the outcome and
the objective at 128 settings, from which all methods choose. The tables were made by
``benchmarks/decisions/real_tables.py`` of commit 1ce965b8, which names the packages with the data.

* ``real_missed_cases``: at most 6 % of the malignant cases may be missed. The outcome lies on a
  coarse grid, and its noise ranges from none to a third of the cases.
* ``real_glucose``: glucose must not fall below 70 mg/dl. The noise of some settings is ten times as
  large as the noise of others.
* ``real_portfolio``: at most 5 % may be lost in a month, with weights from 0 to 2 of the three
  factors. Months are in historical order from a random month, with their crashes and calm decades.

There are 15 random settings and then 80 rounds. Gaussian processes of the outcome and the
objective are `SingleTaskGP` at its defaults, fitted in every fifth round. The objective is
shifted and scaled so that its means at the settings have the mean 0 and the standard deviation 1.
A setting is truly safe if at most a tenth of its repetitions (for the portfolio, of all months)
violate the limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction, UpperConfidenceBound
from botorch.models import SingleTaskGP
from torch import Tensor

from benchmarks.decisions.replicate import DESIGN, DecisionMethod, DecisionReplicate, Round
from benchmarks.decisions.tasks import LEVEL, cube
from benchmarks.framework.replicate import OBSERVE, Replicate, stream_seed
from benchmarks.framework.replicate_result import Result
from benchmarks.framework.sequential import Bounds
from benchmarks.framework.surrogates import DefaultPriors, Surrogate
from botorch_calib import ChanceConstraint
from botorch_calib.decisions.chance_constrained_search import LeastMargin, Place, best_certified

FILE = Path(__file__).parents[1] / "data" / "real_limits.npz"
NUM_SETTINGS = 128

# Largest weight of a factor in the portfolio.
MOST_WEIGHT = 2.0


class Table(NamedTuple):
    """The data of a problem: settings ``128 x 3``, other fields ``128 x repetitions``."""

    settings: Tensor
    outcomes: Tensor
    objectives: Tensor


@cache
def table(name: str) -> Table:
    """The table of a problem, with a scaled objective."""
    U = cube(3, NUM_SETTINGS, seed=0)
    with np.load(FILE) as file:
        stored = torch.as_tensor(file[name]).to(U)
    if name == "portfolio":
        gains = MOST_WEIGHT * U @ stored.T
        outcomes, objectives = -gains, gains
    else:
        outcomes, objectives = stored
    means = objectives.mean(dim=-1)
    return Table(U, outcomes, (objectives - means.mean()) / means.std())


@dataclass(frozen=True)
class Tabulated:
    """The outcome of a table, whose points are the settings of the table.

    Args:
        name: The name of the table.
        limit: The upper limit.
        level: The required probability that the outcome is within the limit.
    """

    name: str
    limit: float
    level: float = LEVEL

    def violation_probability(self, U: Tensor, time: float) -> Tensor:
        """Share of the repetitions beyond the limit, ``n x 1``, at ``n x d`` settings."""
        return (self._repetitions(U) > self.limit).double().mean(dim=-1, keepdim=True)

    def room(self, U: Tensor, time: float) -> Tensor:
        """By how much outcomes could increase and still be safe, ``n x 1``; negative if unsafe."""
        ordered = self._repetitions(U).sort(dim=-1).values
        allowed = int((1.0 - self.level) * ordered.shape[-1] + 1e-9)
        return self.limit - ordered[..., -1 - allowed].unsqueeze(-1)

    def _repetitions(self, U: Tensor) -> Tensor:
        return table(self.name).outcomes[rows(self.name, U)]


@dataclass(frozen=True)
class MeanObjective:
    """Means of the objective at the settings of a table.

    Args:
        name: The name of the table.
    """

    name: str

    def __call__(self, U: Tensor) -> Tensor:
        return table(self.name).objectives[rows(self.name, U)].mean(dim=-1, keepdim=True)


def rows(name: str, U: Tensor) -> Tensor:
    """The rows of a table that contain the settings ``... x d``."""
    return torch.cdist(U, table(name).settings).argmin(dim=-1)


@dataclass(frozen=True)
class RealTask:
    """One of the problems.

    Args:
        name: The name, unique within a suite.
        outcome: The outcome.
        in_order: Whether repetitions are used in their order, the same for all settings.
        surrogate: Makes both Gaussian processes.
        num_initial: Number of initial settings, drawn at random.
        num_rounds: Number of rounds after them.
        beta: ``beta`` of the upper confidence bound that is maximised over certified settings.
    """

    name: str
    outcome: Tabulated
    in_order: bool = False
    surrogate: Surrogate = DefaultPriors(every=5)
    num_initial: int = 15
    num_rounds: int = 80
    beta: float = 4.0

    @property
    def objective(self) -> MeanObjective:
        """The objective without noise."""
        return MeanObjective(self.outcome.name)

    @property
    def bounds(self) -> Bounds:
        return ((0.0, 1.0),) * table(self.outcome.name).settings.shape[-1]

    def best_safe_point(self) -> Tensor:
        """The truly safe setting with the best mean of the objective, ``1 x d``."""
        U = table(self.outcome.name).settings
        unsafe = (self.outcome.room(U, 1.0) < 0.0).squeeze(-1)
        return U[self.objective(U).squeeze(-1).masked_fill(unsafe, -torch.inf).argmax()][None]


TASKS = (
    RealTask("real_missed_cases", Tabulated("missed_cases", 6.0)),
    RealTask("real_glucose", Tabulated("glucose", -70.0)),
    RealTask("real_portfolio", Tabulated("portfolio", 5.0), in_order=True),
)


class RealReplicate(DecisionReplicate):
    """Each round chooses a setting of a table and observes one of its repetitions."""

    def __init__(self, task: RealTask, method: DecisionMethod, seed: int) -> None:
        Replicate.__init__(self, task, method, seed, task.num_rounds)  # a table has no other points
        self.table = table(task.outcome.name)
        self.bounds = self.table.settings.new_tensor(task.bounds).T
        self.surrogate = method.surrogate(task.surrogate)
        self.certifier = method.start(task.outcome)
        self.gp: SingleTaskGP | None = None
        self.objective_gp: SingleTaskGP | None = None
        self.certifies = True
        self.rounds: dict[str, list[float | None]] = {}
        drawn = np.random.default_rng(stream_seed(seed, DESIGN))
        spare = self.table.outcomes.shape[-1] - task.num_initial - task.num_rounds
        self.first = int(drawn.integers(spare)) if task.in_order else 0
        chosen = drawn.choice(len(self.table.settings), task.num_initial, replace=False)
        self.X = self.table.settings[torch.as_tensor(chosen)]
        self.objectives, self.outcomes = self._observe(self.X, step=0, time=0.0)

    def fit(self, step: int) -> Round:
        self.gp = self.surrogate(self.X, self.outcomes, self.bounds, step, self.gp)
        self.objective_gp = self.problem.surrogate(
            self.X, self.objectives, self.bounds, step, self.objective_gp
        )
        constraint = self.certifier.constraint(self.gp, self._time(step))
        return Round(self.objective_gp.eval(), constraint)

    def propose(self, model: Round) -> Tensor:
        acqf = self.method.acquisition(model, self.X, self.problem.outcome.limit)
        self.certifies = acqf is None
        if acqf is None:
            bound = UpperConfidenceBound(model.objective, beta=self.problem.beta)
            return self._best(bound, model.constraint)[0]
        settings = self.table.settings
        with torch.no_grad():
            return settings[acqf(settings.unsqueeze(-2)).argmax()][None]

    def evaluate(self, x: Tensor, model: Round, step: int) -> None:
        super().evaluate(x, model, step)
        if not self.certifies:
            self.rounds["certified"][-1] = 1.0

    def _best(
        self,
        acqf: AcquisitionFunction,
        constraint: ChanceConstraint,
        confidence: float | None = None,
    ) -> tuple[Tensor, bool]:
        margin = LeastMargin(constraint, confidence)
        return best_certified(acqf, margin, Place(None, choices=self.table.settings))

    def _observe(self, X: Tensor, step: int, time: float) -> tuple[Tensor, Tensor]:
        """Objective and outcome of the same repetition at ``n x d`` settings, ``n x 1`` each."""
        num = self.table.outcomes.shape[-1]
        if self.problem.in_order:
            start = self.first + (self.problem.num_initial + step - 1 if step else 0)
            repetition = np.arange(start, start + len(X))
        else:
            drawn = np.random.default_rng(stream_seed(self.seed, OBSERVE, step))
            repetition = drawn.integers(num, size=len(X))
        at = (rows(self.problem.outcome.name, X), torch.as_tensor(repetition))
        return self.table.objectives[at].unsqueeze(-1), self.table.outcomes[at].unsqueeze(-1)


def replicate(task: RealTask, method: DecisionMethod, seed: int) -> Result:
    """Run ``method`` on ``task``; the result is deterministic, except for wall times."""
    return RealReplicate(task, method, seed).run()
