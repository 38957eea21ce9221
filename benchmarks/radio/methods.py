"""The methods of suite `radio`: who chooses one station's power and tilt among 100 random pairs.

The loop is the paper's, and where its text is silent its script's. Round ``t`` moves station
``(t - 1) mod 9`` of the incumbent, which is the point with the largest outcome among the start and
all rounds so far. The 100 pairs are uniform, and the same for all methods of a seed.

Settings are the paper's: ``alpha = 0.25``, ``l = 1/3`` in the unit cube, ``kappa = 2``, first step
0.005, its decay 0.005, ``lambda = 1e-4``, thresholds on the scale of p-values. Each outcome is
scored once, by the model that chose it, before the next one is fitted; only the weighted quantile
of ``cbo`` is taken anew in each round, over the residuals one step ahead. As in the paper, ``ocbo``
and ``ocbo_localized`` take the recalibrated distribution of outcomes for that of the objective,
while all others are denoised. For ``l = inf`` the kernel is the constant ``kappa``, which makes
three steps of one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from botorch.models.model import Model
from torch import Tensor

from benchmarks.baselines import ClassifierDensityRatio, WeightedConformal, proposal_samples
from benchmarks.framework.replicate import stream_seed
from benchmarks.framework.sequential import Method, Problem
from benchmarks.framework.strategies import (
    ACQUISITIONS,
    AcquisitionStrategy,
    RandomStrategy,
)
from benchmarks.problems.radio_corridors import NUM_STATIONS
from benchmarks.radio.problems import MOVES
from botorch_calib import CalibratedModel
from botorch_calib.calibration import (
    Calibrator,
    GaussianScore,
    LocalizedConformal,
    OnlineConformal,
    QuantileRecalibrator,
)

NUM_CANDIDATES = 100
ALPHA, LENGTHSCALE, KAPPA = 0.25, 1 / 3, 2.0
STEP_SIZE, STEP_DECAY, REGULARIZATION = 5e-3, 5e-3, 1e-4


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


@dataclass(frozen=True)
class RandomMoves(RandomStrategy):
    """The first candidate of each round: what the incumbent is worth without a model."""

    def propose(self, model: Model | None, X: Tensor, Y: Tensor) -> Tensor:
        return moves(self.problem, self.seed, X, Y)[:1]


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
        return True


def station_method(name: str, calibrator: Any = None, **settings: Any) -> Method:
    """A method that chooses among candidates by a plain or calibrated GP."""
    return Method(name, partial(StationStrategy, calibrator=calibrator, **settings))


def compared() -> tuple[Method, ...]:
    steps: dict[str, Any] = {
        "step_decay": STEP_DECAY,
        "score": GaussianScore(),
        "tails": "gaussian",
    }
    local: dict[str, Any] = {
        "lengthscale": LENGTHSCALE,
        "scale": KAPPA,
        "step_size": STEP_SIZE,
        "regularization": REGULARIZATION,
        **steps,
    }
    everywhere = partial(OnlineConformal, alpha=ALPHA, step_size=(1.0 + KAPPA) * STEP_SIZE, **steps)
    return (
        Method("random", RandomStrategy),
        Method("random_move", RandomMoves),
        station_method("ei"),
        Method("cbo", WeightedStrategy),
        station_method(
            "ocbo",
            partial(QuantileRecalibrator, lengthscale=math.inf, step_size=STEP_SIZE, **steps),
            denoise=False,
        ),
        station_method("ocbo_localized", partial(QuantileRecalibrator, **local), denoise=False),
        station_method("locbo_global", everywhere),
        station_method("locbo", partial(LocalizedConformal, alpha=ALPHA, **local)),
    )
