"""Speed of a trial in Ax under an outcome constraint, as a ratio to a trial with plain models.

Importing this module registers the comparison with `perf.measure`, if Ax is installed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.perf.measure import Call, Workload, comparison
from botorch_calib.test_functions import HeteroscedasticAckley

if TYPE_CHECKING:
    from ax.api.client import Client

NUM_TRIALS = 20
LIMIT = 13.0


def outcomes(parameters: Any) -> dict[str, float]:
    """Minus Ackley's function with noise, and the limited, noisy distance from a corner."""
    x = torch.tensor([parameters["a"], parameters["b"]], dtype=torch.double)
    problem = HeteroscedasticAckley()
    value = float(problem(x.unsqueeze(0)))
    return {"y": value, "z": float((x - problem.bounds[0]).norm()) + 0.1 * value}


def started_client(work: Workload, set_strategy: Callable[[Client, Any], None]) -> Client:
    """A client with twenty completed trials, which do not depend on the strategy."""
    from ax.api.client import Client
    from ax.api.configs import RangeParameterConfig
    from ax.api.utils.structs import GenerationStrategyDispatchStruct

    logging.getLogger("ax.api.client").setLevel(logging.ERROR)
    client = Client(random_seed=0)
    ends = work.bounds.t().tolist()
    client.configure_experiment(
        [
            RangeParameterConfig(name=name, parameter_type="float", bounds=tuple(bounds))
            for name, bounds in zip("ab", ends, strict=True)
        ]
    )
    client.configure_optimization("y", outcome_constraints=[f"z <= {LIMIT}"])
    # The points are attached, since Ax's initial trials do not matter here.
    struct = GenerationStrategyDispatchStruct(
        method="custom",
        initialization_budget=NUM_TRIALS,
        use_existing_trials_for_initialization=True,
        initialize_with_center=False,
        torch_device=str(work.device),
    )
    set_strategy(client, struct)
    for a, b in work.X[:NUM_TRIALS].tolist():
        parameters = {"a": a, "b": b}
        client.complete_trial(client.attach_trial(parameters), outcomes(parameters))
    return client


def calibrated_strategy(client: Client, struct: Any) -> None:
    """Calibrated models and their acquisition function."""
    from botorch_calib.integrations.ax import calibrated_generation_strategy

    client.set_generation_strategy(calibrated_generation_strategy(client, struct=struct))


def certified_strategy(client: Client, struct: Any) -> None:
    """Trials that a chance constraint on plain models certifies."""
    from botorch_calib.integrations.ax_decisions import chance_constrained_generation_strategy

    client.set_generation_strategy(chance_constrained_generation_strategy(client, struct=struct))


def plain_strategy(client: Client, struct: Any) -> None:
    """Ax's own models and acquisition function, with the same initial trials."""
    from ax.api.utils.generation_strategy_dispatch import choose_generation_strategy
    from ax.generators.torch.botorch_modular.utils import ModelConfig

    client.set_generation_strategy(
        choose_generation_strategy(struct, model_config=ModelConfig(name="plain"))
    )


def trial_of(client: Client) -> Call:
    """Ask for a trial, which fits the models, and complete it."""

    def trial(repetition: int) -> object:
        (item,) = client.get_next_trials(max_trials=1).items()
        index, parameters = item
        return client.complete_trial(index, outcomes(parameters))

    return trial


def trials_by(strategy: Callable[[Client, Any], None], work: Workload) -> tuple[Call, Call]:
    """Cost of a trial including fits, by a strategy and by Ax's own, after 20 or more trials."""
    return trial_of(started_client(work, strategy)), trial_of(started_client(work, plain_strategy))


if find_spec("ax") is not None:
    # Targets: at most 1.6 and 1.2.
    for name, strategy in (("calibrated", calibrated_strategy), ("certified", certified_strategy)):
        comparison(f"{name} / plain trial in Ax, one constraint", repetitions=15, warm_up=2)(
            partial(trials_by, strategy)
        )
