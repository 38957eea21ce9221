"""The radio network of the paper on LOCBO: each round chooses the power and tilt of one station.

Problems: ``text_1`` to ``text_4`` are the network of the paper's text, in which all links fade; an
outcome averages one to four draws of the fading. ``script_1`` is the network of the published
experiments, see `RadioCorridors`. Each seed draws the positions of the ground users. The initial
points are 50 uniform random points and then the start, where every station sends at full power and
points to the horizon. The largest capacity is not known: the optimal value is set to 0, so that
regrets are minus capacities.

The loop follows the paper, and its script where the text is silent. The incumbent is the point with
the largest outcome among the start and all rounds so far. Round ``t`` changes station
``(t - 1) mod 9`` of the incumbent. The 100 candidates are uniform pairs of power and tilt, the same
for all methods of a seed. Hyperparameters are fitted in every tenth round.

Settings are the paper's: ``l = 1/3`` in the unit cube, ``kappa = 2``, a first step of 0.005 with
decay 0.005, ``lambda = 1e-4``, and thresholds on the scale of p-values. Each outcome is scored
once, by the model that chose it, before the next model is fitted. Only ``cbo`` computes its
weighted quantile again in each round, from residuals one step ahead. As in the paper, ``ocbo`` and
``ocbo_localized`` use the recalibrated distribution of outcomes as the distribution of the
objective, while all other methods are denoised. For ``l = inf`` the kernel is the constant
``kappa``, which triples the step.
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

# Numbers of random streams, which must not change, see `framework.replicate`.
DESIGN, MOVES = 40, 41

NUM_RANDOM, NUM_ROUNDS, REFIT_EVERY, NUM_CANDIDATES = 50, 250, 10, 100

# Power and tilt of every station at the start: 46 dBm, 0 degrees.
START = (1.0, 0.5)

ALPHA, LENGTHSCALE, KAPPA = 0.25, 1 / 3, 2.0
STEP_SIZE, STEP_DECAY, REGULARIZATION = 5e-3, 5e-3, 1e-4
# The last level is the level of the published experiments.
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
    """The network, by default as in the paper's text; outcomes average ``num_fading`` draws."""
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
    """The network of the paper's text, with one to four draws of the fading."""
    return tuple(corridors("text", num_fading) for num_fading in range(1, 5))


def by_the_script() -> Problem:
    """The network of the published experiments, with one draw of the fading."""
    return corridors("script", uav_weight=0.3, uav_fading=False, uav_divisor=200)


# ------------------------------------------------------------ methods


def moves(problem: Problem, seed: int, X: Tensor, Y: Tensor, num: int = NUM_CANDIDATES) -> Tensor:
    """The candidates of a round, ``num x 18``: the incumbent with one station changed.

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

    Each new model takes over the calibrator of the previous model, if there is one.

    Args:
        num_candidates: Number of candidates.
        denoise: Whether to remove the noise from the calibrated distribution.
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
            # The next model is made from all data, so the last model need not be conditioned.
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
    """Weighted conformal prediction with samples of the plain GP's next query in the box.

    The candidates of a round cannot be these samples: all candidates share 16 of 18 coordinates, by
    which a classifier distinguishes them from all past points. The interval would have the maximum
    width in almost every round.

    Args:
        num_proposals: Number of samples of the next query.
        num_points: Number of Sobol points from which they are drawn.
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
        """Always true: each step makes its own calibrator."""
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
    """The methods that depend on a level, at level ``alpha``."""
    everywhere = partial(OnlineConformal, alpha=alpha, step_size=(1.0 + KAPPA) * STEP_SIZE, **STEPS)
    locbo = partial(LocalizedConformal, alpha=alpha, **LOCAL)
    return (
        Method(f"cbo{suffix}", partial(WeightedStrategy, alpha=alpha)),
        station_method(f"locbo_global{suffix}", everywhere, alpha=alpha),
        station_method(f"locbo{suffix}", locbo, alpha=alpha),
    )


def plain_and_recalibrated() -> tuple[Method, ...]:
    """The methods that do not depend on a level."""
    everywhere = partial(QuantileRecalibrator, lengthscale=math.inf, step_size=STEP_SIZE, **STEPS)
    return (
        station_method("ei"),
        station_method("ocbo", everywhere, denoise=False),
        station_method("ocbo_localized", partial(QuantileRecalibrator, **LOCAL), denoise=False),
    )


def compared() -> tuple[Method, ...]:
    """Random points, and expected improvement, plain and with five calibrations."""
    return (Method("random", RandomStrategy), *plain_and_recalibrated(), *conformal(ALPHA))


def level_suffix(alpha: float) -> str:
    return f"_{alpha:g}"


def compared_at_further_levels() -> tuple[Method, ...]:
    """The methods that do not depend on a level, and the other methods at further levels."""
    at_levels = [method for a in FURTHER_LEVELS for method in conformal(a, level_suffix(a))]
    return (*plain_and_recalibrated(), *at_levels)
