"""Sequences of scores that try to break a tracker's guarantee."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from botorch_calib.calibration.learners.quantile_learner import QuantileLearner

Strategy = Callable[[int, float, Generator], float]


def above(t: int, threshold: float, generator: Generator) -> float:
    """Just above the threshold, so the outcome is 0 whenever it can be."""
    return min(max(threshold + 1e-9, 0.0), 1.0)


def below(t: int, threshold: float, generator: Generator) -> float:
    """At the threshold, so the outcome is 1 whenever it can be."""
    return min(max(threshold, 0.0), 1.0)


def waves(t: int, threshold: float, generator: Generator) -> float:
    """Runs of the outcome 0 and the outcome 1 in turn, each longer than the last."""
    return (above if int(t**0.5) % 4 < 2 else below)(t, threshold, generator)


def coin(t: int, threshold: float, generator: Generator) -> float:
    """The outcome 0 or 1 at random, whenever it can be."""
    side = torch.rand((), generator=generator).item()
    return (above if side < 0.5 else below)(t, threshold, generator)


def iid(t: int, threshold: float, generator: Generator) -> float:
    """Independent scores of a miscalibrated model."""
    return torch.rand((), generator=generator).item() ** 3


def drifting(t: int, threshold: float, generator: Generator) -> float:
    """Scores whose support moves at an increasing speed."""
    return 0.5 * torch.rand((), generator=generator).item() + 0.5 * ((t**1.5 / 4000) % 1.0)


STRATEGIES: dict[str, Strategy] = {
    strategy.__name__: strategy for strategy in (above, below, waves, coin, iid, drifting)
}


def play(tracker: QuantileLearner, name: str, num_steps: int, target: int = 0) -> Tensor:
    """Outcomes ``num_steps x M`` of the tracker against a strategy, in the unit square.

    The strategy is given the threshold of the level with index ``target`` before it returns a
    score. Adversaries also choose the worst of a few random inputs: an input at which their outcome
    is barely possible, so that the threshold is pushed back least.
    """
    generator = torch.Generator().manual_seed(0)
    choices = 1 if not tracker.localized or name in ("iid", "drifting") else 8
    outcomes = []
    for t in range(num_steps):
        X = torch.rand(choices, 2, dtype=torch.double, generator=generator)
        theta = tracker.threshold(X)[:, target]
        wanted = theta < 1.0 if name == "above" else theta >= 0.0
        extreme = theta if name == "above" else -theta
        best = torch.where(wanted, extreme, -torch.inf).argmax()
        u = torch.tensor([STRATEGIES[name](t, theta[best].item(), generator)], dtype=torch.double)
        used = tracker.update(X[best : best + 1], u)
        outcomes.append(u.unsqueeze(-1) <= used)
    return torch.cat(outcomes)
