"""How long does a proposal take after thousands of values, beside Optuna's ``GPSampler``?

Both are given the same values of Hartmann's function at uniformly random points, and then choose
further points in turn, each of which is evaluated before the next. The first proposal of either
finds nothing computed: `DelayAwareProposer` fits its hyperparameters, by the chain of fits that a
resumed run computes. After that it fits when the number of values has grown by a tenth, and Optuna
each time. Reported are the seconds of each proposal, in this process, on one thread.

    python -m benchmarks.studies.proposal_time --values 2000 --proposals 20
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import optuna
import torch
from botorch.test_functions import Hartmann
from torch import Tensor

from benchmarks.framework.markdown import table
from benchmarks.framework.runner import one_torch_thread
from botorch_calib import DelayAwareProposer, FeedbackLedger

DIM = 6


def data(num: int) -> tuple[Tensor, Tensor]:
    """Points ``n x d`` of the unit cube and their values ``n``, to be maximised."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(num, DIM, generator=generator, dtype=torch.double)
    return X, Hartmann(DIM, negate=True)(X)


def ours(X: Tensor, Y: Tensor) -> Callable[[], None]:
    """Chooses the next point by `DelayAwareProposer`, and evaluates it."""
    ledger = FeedbackLedger(DIM, censor_value=0.0)
    for x, y in zip(X, Y.tolist(), strict=True):
        ledger.observe(ledger.submit(x), y)
    bounds = torch.tensor([[0.0] * DIM, [1.0] * DIM], dtype=torch.double)
    propose = DelayAwareProposer(bounds)

    def step() -> None:
        x = propose(ledger)
        ledger.observe(ledger.submit(x), Hartmann(DIM, negate=True)(x.unsqueeze(0)).item())

    return step


def optunas(X: Tensor, Y: Tensor) -> Callable[[], None]:
    """The same by Optuna."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.GPSampler(seed=0, deterministic_objective=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    names = [f"x{i}" for i in range(DIM)]
    unit = optuna.distributions.FloatDistribution(0.0, 1.0)
    for x, y in zip(X.tolist(), Y.tolist(), strict=True):
        study.add_trial(
            optuna.trial.create_trial(
                params=dict(zip(names, x, strict=True)),
                distributions=dict.fromkeys(names, unit),
                value=y,
            )
        )

    def step() -> None:
        trial = study.ask(dict.fromkeys(names, unit))
        x = torch.tensor([[trial.params[name] for name in names]], dtype=torch.double)
        study.tell(trial, Hartmann(DIM, negate=True)(x).item())

    return step


def times(num_values: int, num_proposals: int) -> dict[str, list[float]]:
    """Seconds of each proposal, taken in turn."""
    X, Y = data(num_values)
    steps = {"DelayAwareProposer": ours(X, Y), "Optuna's GPSampler": optunas(X, Y)}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(num_proposals):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def report(seconds: dict[str, list[float]]) -> str:
    """A table of first, median and mean seconds."""
    header = ["", "first, s", "median of the others, s", "mean of all, s"]
    rows = [
        [
            name,
            f"{each[0]:.2f}",
            f"{statistics.median(each[1:]):.2f}",
            f"{statistics.mean(each):.2f}",
        ]
        for name, each in seconds.items()
    ]
    return "\n".join(table(header, rows))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=int, default=2000)
    parser.add_argument("--proposals", type=int, default=20)
    arguments = parser.parse_args()
    with one_torch_thread():
        print(report(times(arguments.values, max(arguments.proposals, 2))))


if __name__ == "__main__":
    main()
