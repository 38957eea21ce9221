"""The problems of suite `radio`: a network for UAV corridors, with one or four draws of fading.

Each seed places the ground users anew, so that conclusions are not about one network. After 50
uniform random points comes the start, where every station sends at full power and looks at the
horizon; from there, 250 rounds each move one station, see `benchmarks.radio.methods`.

The largest capacity is not known. The optimal value is set to 0, so that regrets are minus
capacities.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from benchmarks.framework.replicate import stream_seed
from benchmarks.framework.sequential import Oracle, Problem
from benchmarks.framework.surrogates import Refitted
from benchmarks.problems import RadioCorridors
from benchmarks.problems.radio_corridors import NUM_STATIONS

# Numbers of random streams, see `framework.replicate`. Never renumber.
DESIGN, MOVES = 40, 41

NUM_RANDOM, NUM_ROUNDS, REFIT_EVERY = 50, 250, 10

# Power and tilt of every station at the start: 46 dBm, 0 degrees.
START = (1.0, 0.5)


def network(seed: int, *, num_fading: int, uav_weight: float, uav_fading: bool) -> Oracle:
    """The network of a seed."""
    problem = RadioCorridors(num_fading, uav_weight, uav_fading, user_seed=seed)

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


def corridors(num_fading: int) -> Problem:
    """The network observed with so many draws of the fading, weighted as in the paper."""
    return Problem(
        name=f"fading_{num_fading}",
        build=partial(network, num_fading=num_fading, uav_weight=0.7, uav_fading=False),
        bounds=((0.0, 1.0),) * (2 * NUM_STATIONS),
        optimal_value=0.0,
        initial_design=partial(random_points_and_start, start=START),
        num_initial=NUM_RANDOM + 1,
        num_evaluations=NUM_ROUNDS,
        surrogate=Refitted(every=REFIT_EVERY),
    )


def problems() -> tuple[Problem, ...]:
    return (corridors(1), corridors(4))
