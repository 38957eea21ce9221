"""The radio network of the paper on LOCBO: who chooses one station's power and tilt in each round.

Problems: ``text_1`` to ``text_4`` are the network of the paper's text, whose links all fade, with
one to four draws of the fading in an outcome; ``script_1`` is the network of the published
experiments, see `RadioCorridors`. Each seed places the ground users anew. After 50 uniform random
points comes the start, where every station sends at full power and looks at the horizon. The
largest capacity is not known: the optimal value is set to 0, so that regrets are minus capacities.

The loop is the paper's, and its script's where the text is silent. Round ``t`` moves station
``(t - 1) mod 9`` of the incumbent, which is the point with the largest outcome among the start and
all rounds so far. The 100 candidates are uniform pairs, the same for all methods of a seed.
Hyperparameters are fitted in every tenth round.

Settings are the paper's: ``l = 1/3`` in the unit cube, ``kappa = 2``, first step 0.005, its decay
0.005, ``lambda = 1e-4``, thresholds on the scale of p-values. Each outcome is scored once, by the
model that chose it, before the next one is fitted; only the weighted quantile of ``cbo`` is taken
anew in each round, over the residuals one step ahead. As in the paper, ``ocbo`` and
``ocbo_localized`` take the recalibrated distribution of outcomes for the distribution of the
objective, while all others are denoised. For ``l = inf`` the kernel is the constant ``kappa``,
which makes three steps of one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from botorch.models.model import Model
from torch import Tensor

from benchmarks.baselines import ClassifierDensityRatio, WeightedConformal, proposal_samples
from benchmarks.framework.replicate import stream_seed
from benchmarks.framework.sequential import Method, Oracle, Problem
from benchmarks.framework.stored_results import FLAGS, REGRETS
from benchmarks.framework.strategies import ACQUISITIONS, AcquisitionStrategy, RandomStrategy
from benchmarks.framework.surrogates import Refitted
from benchmarks.problems.radio import NUM_STATIONS, NUM_UAVS, RadioCorridors
from botorch_calib import CalibratedModel
from botorch_calib.calibration import (
    Calibrator,
    GaussianScore,
    LocalizedConformal,
    OnlineConformal,
    QuantileRecalibrator,
)

# Numbers of random streams, see `framework.replicate`. Never renumber.
DESIGN, MOVES = 40, 41

NUM_RANDOM, NUM_ROUNDS, REFIT_EVERY, NUM_CANDIDATES = 50, 250, 10, 100

# Power and tilt of every station at the start: 46 dBm, 0 degrees.
START = (1.0, 0.5)

ALPHA, LENGTHSCALE, KAPPA = 0.25, 1 / 3, 2.0
STEP_SIZE, STEP_DECAY, REGULARIZATION = 5e-3, 5e-3, 1e-4
# The published experiments have the last.
FURTHER_LEVELS = (0.15, 0.35, 0.45)

ARCHIVED = replace(REGRETS, extras={"covered": FLAGS}, others=None)


# ------------------------------------------------------------ problems


def network(
    seed: int, *, num_fading: int, uav_weight: float, uav_fading: bool, uav_divisor: int
) -> Oracle:
    """The network of a seed."""
    problem = RadioCorridors(num_fading, uav_weight, uav_fading, uav_divisor, user_seed=seed)

    def observe(X: Tensor) -> Tensor:
        return problem(X).unsqueeze(-1)

    def truth(X: Tensor) -> Tensor:
        return problem(X, noise=False).unsqueeze(-1)

    return Oracle(observe, truth)


def random_points_and_start(n: int, seed: int, *, start: tuple[float, float]) -> Tensor:
    """``n - 1`` uniform points, then ``start`` as power and tilt of all stations: ``n x 18``."""
    generator = torch.Generator().manual_seed(stream_seed(seed, DESIGN))
    points = torch.rand(n - 1, 2 * NUM_STATIONS, generator=generator, dtype=torch.double)
    last = points.new_tensor(start).repeat_interleave(NUM_STATIONS)
    return torch.cat([points, last.unsqueeze(0)])


def corridors(name: str, num_fading: int = 1, **settings: Any) -> Problem:
    """The network observed with so many draws of the fading, by default that of the text."""
    text = {"uav_weight": 0.7, "uav_fading": True, "uav_divisor": NUM_UAVS}
    return Problem(
        name=f"{name}_{num_fading}",
        build=partial(network, num_fading=num_fading, **{**text, **settings}),
        bounds=((0.0, 1.0),) * (2 * NUM_STATIONS),
        optimal_value=0.0,
        initial_design=partial(random_points_and_start, start=START),
        num_initial=NUM_RANDOM + 1,
        num_evaluations=NUM_ROUNDS,
        surrogate=Refitted(every=REFIT_EVERY),
    )


def by_the_text() -> tuple[Problem, ...]:
    """With one to four draws."""
    return tuple(corridors("text", num_fading) for num_fading in range(1, 5))


def by_the_script() -> Problem:
    """With one draw."""
    return corridors("script", uav_weight=0.3, uav_fading=False, uav_divisor=200)


# ------------------------------------------------------------ methods


def moves(problem: Problem, seed: int, X: Tensor, Y: Tensor, num: int = NUM_CANDIDATES) -> Tensor:
    """The candidates of a round: one station of the incumbent moved, ``num x 18``.

    Args:
        problem: The problem; the last of its initial points is the start.
        seed: The seed of the replicate.
        X: All points so far, ``n x 18``.
        Y: Their outcomes, ``n x 1``.
        num: Number of candidates.
    """
    start, step = problem.num_initial - 1, len(X) - problem.num_initial
    incumbent = X[start + int(Y[start:].argmax())]
    generator = torch.Generator().manual_seed(stream_seed(seed, MOVES, step))
    pairs = torch.rand(num, 2, generator=generator, dtype=X.dtype)
    candidates = incumbent.repeat(num, 1)
    station = step % NUM_STATIONS
    candidates[:, [station, NUM_STATIONS + station]] = pairs
    return candidates


@dataclass
class StationStrategy(AcquisitionStrategy):
    """The candidate with the largest log expected improvement on the incumbent's outcome.

    The calibrator, if there is one, is handed on from model to model.

    Args:
        num_candidates: Number of candidates.
        denoise: Whether the calibrated distribution is made one of the objective.
    """

    alpha: float = ALPHA
    num_candidates: int = NUM_CANDIDATES
    denoise: bool = True
    model: CalibratedModel | None = field(default=None, init=False, repr=False)
    num_seen: int = field(default=0, init=False, repr=False)

    def fit(self, X: Tensor, Y: Tensor) -> Model:
        if self.calibrator is None:
            return self.update_gp(X, Y)
        learned: Calibrator
        if self.model is None:
            learned = self.calibrator()
        else:
            # The next model is made of all data, so the last one need not be conditioned.
            self.model.observe(X[self.num_seen :], Y[self.num_seen :], condition=False)
            learned = self.model.calibrator
        self.num_seen = len(X)
        self.model = CalibratedModel(self.update_gp(X, Y), learned, denoise=self.denoise)
        return self.model

    def propose(self, model: Model | None, X: Tensor, Y: Tensor) -> Tensor:
        assert model is not None
        candidates = moves(self.problem, self.seed, X, Y, self.num_candidates)
        improvement = ACQUISITIONS[self.acquisition, self.calibrated](model, self.best(Y))
        with torch.no_grad():
            values = improvement(candidates.unsqueeze(-2))
        return candidates[values.argmax()].unsqueeze(0)

    def best(self, Y: Tensor) -> Tensor:
        """The incumbent's outcome."""
        return Y[self.problem.num_initial - 1 :].max()


@dataclass
class WeightedStrategy(StationStrategy):
    """Weighted conformal prediction: by where in the box the plain GP would query next.

    The candidates of a round are no samples for this: all share 16 of 18 coordinates, by which a
    classifier tells them from all past points, so that the interval would be the widest one allowed
    in almost every round.

    Args:
        num_proposals: Number of samples of the next query.
        num_points: Number of Sobol points that they are drawn from.
    """

    num_proposals: int = 256
    num_points: int = 512

    def fit(self, X: Tensor, Y: Tensor) -> Model:
        gp = self.update_gp(X, Y)
        plain = ACQUISITIONS[self.acquisition, False](gp, self.best(Y))
        proposals = proposal_samples(
            plain, self.problem.bounds_tensor(), self.num_proposals, self.num_points
        )
        ratio = ClassifierDensityRatio(gp.transform_inputs(X), gp.transform_inputs(proposals))
        calibrator = WeightedConformal(self.alpha, density_ratio=ratio)
        return CalibratedModel.from_history(gp, calibrator, self.problem.num_initial)

    @property
    def calibrated(self) -> bool:
        """The calibrator is made anew at each step."""
        return True


def station_method(name: str, calibrator: Any = None, **settings: Any) -> Method:
    """A method that chooses among candidates by a plain or calibrated GP."""
    return Method(name, partial(StationStrategy, calibrator=calibrator, **settings))


STEPS: dict[str, Any] = {
    "step_decay": STEP_DECAY,
    "score": GaussianScore(),
    "tails": "gaussian",
}
LOCAL: dict[str, Any] = {
    "lengthscale": LENGTHSCALE,
    "scale": KAPPA,
    "step_size": STEP_SIZE,
    "regularization": REGULARIZATION,
    **STEPS,
}


def conformal(alpha: float, suffix: str = "") -> tuple[Method, ...]:
    """The methods with a level, at this one."""
    everywhere = partial(OnlineConformal, alpha=alpha, step_size=(1.0 + KAPPA) * STEP_SIZE, **STEPS)
    locbo = partial(LocalizedConformal, alpha=alpha, **LOCAL)
    return (
        Method(f"cbo{suffix}", partial(WeightedStrategy, alpha=alpha)),
        station_method(f"locbo_global{suffix}", everywhere, alpha=alpha),
        station_method(f"locbo{suffix}", locbo, alpha=alpha),
    )


def plain_and_recalibrated() -> tuple[Method, ...]:
    """The methods without a level."""
    everywhere = partial(QuantileRecalibrator, lengthscale=math.inf, step_size=STEP_SIZE, **STEPS)
    return (
        station_method("ei"),
        station_method("ocbo", everywhere, denoise=False),
        station_method("ocbo_localized", partial(QuantileRecalibrator, **LOCAL), denoise=False),
    )


def compared() -> tuple[Method, ...]:
    """Random points, expected improvement, and five ways to calibrate it."""
    return (Method("random", RandomStrategy), *plain_and_recalibrated(), *conformal(ALPHA))


def level_suffix(alpha: float) -> str:
    return f"_{alpha:g}"


def compared_at_further_levels() -> tuple[Method, ...]:
    """The methods without a level, and the others at further levels."""
    at_levels = [method for a in FURTHER_LEVELS for method in conformal(a, level_suffix(a))]
    return (*plain_and_recalibrated(), *at_levels)
