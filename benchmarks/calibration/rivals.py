"""Optuna's and Ax's own methods beside ours, through the interfaces of both: suite `rivals`.

What is run; what is compared, and on which seeds, is in ``benchmarks/protocols/rivals.md``. All
methods are told the same initial trials, and then asked for one trial after the other: no two run
at the same time. Whatever a method does not need for that is at its default. Optuna and Ax are
imported when a run begins, as they are
optional, and Syne Tune is in an environment of its own.
"""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import time
import warnings
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import NormalDist
from typing import Any

import torch
from botorch.models.model import Model
from torch import Tensor

from benchmarks.calibration import syne_tune_process
from benchmarks.calibration.methods import ALPHA
from benchmarks.framework.sequential import Method, Problem
from benchmarks.framework.strategies import random_search
from botorch_calib.calibration import LocalizedConformal

METRIC = "value"

# The environment variable that names the interpreter of Syne Tune's environment.
INTERPRETER = "BOTORCH_CALIB_SYNE_TUNE_PYTHON"

REACH = NormalDist().inv_cdf(1.0 - ALPHA / 2)


def names(problem: Problem) -> list[str]:
    """Those of the parameters."""
    return [f"x{i}" for i in range(len(problem.bounds))]


def values_of(x: Tensor, problem: Problem) -> dict[str, Any]:
    """The parameters of a point of length ``d``."""
    return dict(zip(names(problem), x.tolist(), strict=True))


def point_of(parameters: Mapping[str, Any], problem: Problem) -> Tensor:
    """The point of parameters, ``1 x d``."""
    values = [[float(parameters[name]) for name in names(problem)]]
    return torch.tensor(values, dtype=torch.double)


def sampler(name: str, seed: int) -> Any:
    """A sampler of Optuna."""
    import optuna

    if name == "gp":
        return optuna.samplers.GPSampler(seed=seed)
    if name == "tpe":
        return optuna.samplers.TPESampler(seed=seed)
    from botorch_calib.integrations.optuna_delays import DelayAwareSampler

    return DelayAwareSampler(calibrator=LocalizedConformal(ALPHA), seed=seed)


class ClientStrategy:
    """What the strategies of clients share: they state nothing, and record processor time."""

    seconds: float = 0.0

    def extras(self, model: Model | None, x: Tensor, y: Tensor) -> dict[str, float]:
        return {"cpu_seconds": self.seconds}

    def objective_covered(self, model: Model | None, X: Tensor, f: Tensor) -> None:
        return None


@dataclass
class OptunaStrategy(ClientStrategy):
    """A sampler at work in a study.

    Args:
        problem: The problem.
        seed: The seed.
        name: Of the sampler.
    """

    problem: Problem
    seed: int
    name: str
    study: Any = field(default=None, init=False, repr=False)
    trial: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna calls two of the samplers experimental
            chosen = sampler(self.name, self.seed)
        self.study = optuna.create_study(direction="maximize", sampler=chosen)
        self.space: dict[str, Any] = {
            name: optuna.distributions.FloatDistribution(*ends)
            for name, ends in zip(names(self.problem), self.problem.bounds, strict=True)
        }

    def fit(self, X: Tensor, Y: Tensor) -> None:
        import optuna

        self.seconds = -time.process_time()
        if self.trial is not None:
            self.study.tell(self.trial, Y[-1].item())
            return
        for x, y in zip(X, Y.flatten().tolist(), strict=True):
            parameters = values_of(x, self.problem)
            told = optuna.trial.create_trial(params=parameters, distributions=self.space, value=y)
            self.study.add_trial(told)

    def propose(self, model: Model | None, X: Tensor, Y: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.trial = self.study.ask(self.space)
        self.seconds += time.process_time()
        return point_of(self.trial.params, self.problem)


@dataclass
class AxStrategy(ClientStrategy):
    """A client of Ax at work.

    Args:
        problem: The problem.
        seed: The seed.
        calibrated: Whether with our generation strategy in place of Ax's default.
    """

    problem: Problem
    seed: int
    calibrated: bool
    client: Any = field(default=None, init=False, repr=False)
    trial: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        from ax.api.client import Client
        from ax.api.configs import RangeParameterConfig

        logging.getLogger("ax.api.client").setLevel(logging.ERROR)
        self.client = Client(random_seed=self.seed)
        parameters = [
            RangeParameterConfig(name=name, parameter_type="float", bounds=ends)
            for name, ends in zip(names(self.problem), self.problem.bounds, strict=True)
        ]
        self.client.configure_experiment(parameters)
        self.client.configure_optimization(METRIC)
        if self.calibrated:
            from botorch_calib.integrations.ax import calibrated_generation_strategy

            self.client.set_generation_strategy(calibrated_generation_strategy(self.client))

    def fit(self, X: Tensor, Y: Tensor) -> None:
        self.seconds = -time.process_time()
        if self.trial is not None:
            self.client.complete_trial(self.trial, {METRIC: Y[-1].item()})
            return
        for x, y in zip(X, Y.flatten().tolist(), strict=True):
            told = self.client.attach_trial(values_of(x, self.problem))
            self.client.complete_trial(told, {METRIC: y})

    def propose(self, model: Model | None, X: Tensor, Y: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ((self.trial, parameters),) = self.client.get_next_trials(max_trials=1).items()
        self.seconds += time.process_time()
        return point_of(parameters, self.problem)

    def extras(self, model: Model | None, x: Tensor, y: Tensor) -> dict[str, float]:
        """Whether the outcome lies in the 80 % interval by the client's mean and variance.

        The prediction is of an outcome with its noise, by the models that proposed the trial. The
        client's processor time is recorded as well.
        """
        from ax.core.observation import ObservationFeatures
        from ax.exceptions.core import AxError

        features = [ObservationFeatures(parameters=values_of(x.flatten(), self.problem))]
        try:
            mean, covariance = self.client._generation_strategy.adapter.predict(
                features, use_posterior_predictive=True
            )
        except (AxError, NotImplementedError):  # by a node without a model
            nothing = dict.fromkeys(("covered", "width", "pit"), math.nan)
            return {"cpu_seconds": self.seconds, **nothing}
        centre, deviation = mean[METRIC][0], covariance[METRIC][METRIC][0] ** 0.5
        pit = NormalDist(centre, deviation).cdf(y.item())
        covered = abs(y.item() - centre) <= REACH * deviation
        stated = {"covered": float(covered), "width": 2.0 * REACH * deviation, "pit": pit}
        return {"cpu_seconds": self.seconds, **stated}


@dataclass
class CqrStrategy(ClientStrategy):
    """Conformal quantile regression of Syne Tune, in a process of the environment that has it.

    Args:
        problem: The problem.
        seed: The seed.
    """

    problem: Problem
    seed: int
    process: Any = field(default=None, init=False, repr=False)

    def fit(self, X: Tensor, Y: Tensor) -> None:
        if self.process is not None:
            self._send({"y": Y[-1].item()})
            return
        if INTERPRETER not in os.environ:
            raise ImportError(
                f"Set {INTERPRETER} to the interpreter of an environment with syne-tune, xgboost "
                "and huggingface_hub."
            )
        self.process = subprocess.Popen(
            [os.environ[INTERPRETER], syne_tune_process.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        weakref.finalize(self, end, self.process)
        bounds, points, values = self.problem.bounds, X.tolist(), Y.flatten().tolist()
        self._send({"bounds": bounds, "seed": self.seed, "X": points, "Y": values})

    def propose(self, model: Model | None, X: Tensor, Y: Tensor) -> Tensor:
        answer = json.loads(self.process.stdout.readline())
        self.seconds = answer["cpu_seconds"]
        return torch.tensor([answer["x"]], dtype=torch.double)

    def _send(self, message: dict[str, Any]) -> None:
        print(json.dumps(message), file=self.process.stdin, flush=True)


def end(process: subprocess.Popen[str]) -> None:
    """Stop a process, and leave nothing of it."""
    process.kill()
    process.communicate()


def methods() -> tuple[Method, ...]:
    return (
        Method("optuna_ours", partial(OptunaStrategy, name="delay_aware")),
        Method("ax_ours", partial(AxStrategy, calibrated=True)),
        Method("optuna_gp", partial(OptunaStrategy, name="gp")),
        Method("optuna_tpe", partial(OptunaStrategy, name="tpe")),
        Method("ax", partial(AxStrategy, calibrated=False)),
        Method("syne_tune_cqr", CqrStrategy),
        random_search(),
    )
