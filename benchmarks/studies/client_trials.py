"""The time of a certified trial in each client, relative to the client's own search under a limit.

The problem has a parameter in steps of 0.05 (continuous except in BayBE), an integer and a
category, a gain to be maximised and a noisy loss of at most 1. Trials 18 to 22, 38 to 42 and 58 to
62 are chosen by both searches in turn, in one thread. All other trials are random and the same for
both. The time of a trial is the median processor time of five trials, to suggest, evaluate and
report it. BayBE's own search has no limits on outcomes: it searches the Pareto front of gain and
loss among 693 candidates.

python -m benchmarks.studies.client_trials
"""

from __future__ import annotations

import logging
import math
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import pandas as pd
import torch
from botorch.utils.sampling import manual_seed

from benchmarks.framework.markdown import table
from benchmarks.studies.command_line import run_study

SEEDS = range(33000, 33003)
COMMAND = "python -m benchmarks.studies.client_trials"
AROUND, REACH = (20, 40, 60), 2
CATEGORIES, COUNTS = ("u", "v", "w"), range(11)
LIMIT, NOISE = 1.0, 0.1

Parameters = Mapping[str, Any]
#: Runs a trial at given parameters or, with None, at parameters that the client chooses.
Trial = Callable[[Parameters | None], object]


def outcomes(parameters: Parameters) -> tuple[float, float]:
    """The gain and the noisy loss."""
    a, b, is_last = parameters["a"], parameters["b"] / 10, parameters["c"] in ("w", 2)
    loss = a**2 + b + 0.2 * math.sin(6 * a) + 0.1 * is_last
    return float(a + 2 * b + 0.3 * is_last), float(loss + NOISE * torch.randn(()))


def in_ax(seed: int, is_ours: bool) -> Trial:
    from ax.api.client import Client
    from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
    from ax.api.utils.generation_strategy_dispatch import choose_generation_strategy
    from ax.api.utils.structs import GenerationStrategyDispatchStruct

    from botorch_calib.integrations.ax_decisions import chance_constrained_generation_strategy

    client = Client(random_seed=seed)
    client.configure_experiment(
        [
            RangeParameterConfig("a", bounds=(0, 1), parameter_type="float"),
            RangeParameterConfig("b", bounds=(0, 10), parameter_type="int"),
            ChoiceParameterConfig("c", [*CATEGORIES], "str", is_ordered=False),
        ]
    )
    client.configure_optimization("gain", outcome_constraints=[f"loss <= {LIMIT}"])
    struct = GenerationStrategyDispatchStruct(
        method="custom" if is_ours else "fast",
        initialization_budget=2,
        use_existing_trials_for_initialization=True,
        initialize_with_center=False,
    )
    client.set_generation_strategy(
        chance_constrained_generation_strategy(client, struct=struct)
        if is_ours
        else choose_generation_strategy(struct)
    )

    def trial(given: Parameters | None) -> None:
        if given is None:
            ((index, parameters),) = client.get_next_trials(max_trials=1).items()
        else:
            index, parameters = client.attach_trial({**given}), given
        gain, loss = outcomes(parameters)
        client.complete_trial(index, {"gain": gain, "loss": loss})

    return trial


def in_optuna(seed: int, is_ours: bool) -> Trial:
    import optuna

    from botorch_calib.integrations.optuna_decisions import ChanceConstrainedSampler

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler: Any = ChanceConstrainedSampler if is_ours else optuna.samplers.GPSampler
    study = optuna.create_study(direction="maximize", sampler=sampler(seed=seed))

    space: dict[str, Any] = {
        "a": optuna.distributions.FloatDistribution(0.0, 1.0),
        "b": optuna.distributions.IntDistribution(0, 10),
        "c": optuna.distributions.CategoricalDistribution(CATEGORIES),
    }

    def trial(given: Parameters | None) -> None:
        if given is None:
            chosen = study.ask(space)
            gain, loss = outcomes(chosen.params)
            chosen.set_constraint("loss", loss - LIMIT)
            study.tell(chosen, gain)
        else:
            gain, loss = outcomes(given)
            study.add_trial(
                optuna.trial.create_trial(
                    params={**given},
                    distributions=space,
                    value=gain,
                    constraints={"loss": loss - LIMIT},
                )
            )

    return trial


def in_xopt(seed: int, is_ours: bool, is_noise_given: bool = False) -> Trial:
    from xopt import VOCS, Evaluator, Xopt
    from xopt.generators.bayesian import ExpectedImprovementGenerator

    from botorch_calib.integrations.xopt import ChanceConstrainedGenerator

    vocs = VOCS(
        variables={"a": [0.0, 1.0], "b": {*map(float, COUNTS)}, "c": {0.0, 1.0, 2.0}},
        objectives={"gain": "MAXIMIZE"},
        constraints={"loss": ["LESS_THAN", LIMIT]},
    )

    def evaluate(parameters: Parameters) -> dict[str, float]:
        gain, loss = outcomes(parameters)
        known = {"gain_var": 1e-4, "loss_var": NOISE**2} if is_noise_given else {}
        return {"gain": gain, "loss": loss, **known}

    generator = ChanceConstrainedGenerator if is_ours else ExpectedImprovementGenerator
    run = Xopt(generator=generator(vocs=vocs), evaluator=Evaluator(function=evaluate))

    def trial(given: Parameters | None) -> None:
        if given is None:
            run.step()
        else:
            run.evaluate_data({**given, "c": float(CATEGORIES.index(given["c"]))})

    return trial


def in_baybe(seed: int, is_ours: bool) -> Trial:
    from baybe import Campaign
    from baybe.objectives import ParetoObjective
    from baybe.parameters import CategoricalParameter, NumericalDiscreteParameter
    from baybe.recommenders import BotorchRecommender
    from baybe.searchspace import SearchSpace
    from baybe.targets import NumericalTarget

    from botorch_calib.integrations.baybe import ChanceConstrainedRecommender

    space = SearchSpace.from_product(
        [
            NumericalDiscreteParameter("a", [i / 20 for i in range(21)]),
            NumericalDiscreteParameter("b", COUNTS),
            CategoricalParameter("c", CATEGORIES),
        ]
    )
    targets = ParetoObjective([NumericalTarget("gain"), NumericalTarget("loss", minimize=True)])
    own = ChanceConstrainedRecommender(limits={"loss": (None, LIMIT)})
    recommender = own if is_ours else BotorchRecommender()
    campaign = Campaign(space, targets, recommender, allow_recommending_already_recommended=True)

    def trial(given: Parameters | None) -> None:
        rows = campaign.recommend(1) if given is None else pd.DataFrame([given])
        rows["gain"], rows["loss"] = zip(*map(outcomes, rows.to_dict("records")), strict=True)
        campaign.add_measurements(rows)

    return trial


CLIENTS: dict[str, Callable[[int, bool], Trial]] = {
    "Ax": in_ax,
    "Optuna": in_optuna,
    "Xopt, noise fitted": in_xopt,
    "Xopt, noise given": lambda seed, is_ours: in_xopt(seed, is_ours, is_noise_given=True),
    "BayBE": in_baybe,
}


def run(cell: Mapping[str, str], seed: int) -> dict[str, Any]:
    """Processor seconds of the chosen trials, by our search and by the client's own search."""
    logging.disable(logging.WARNING)
    spent: dict[str, dict[str, list[float]]] = {"ours": {}, "own": {}}
    with warnings.catch_warnings(), manual_seed(seed):
        warnings.simplefilter("ignore")
        trials = [CLIENTS[cell["client"]](seed, name == "ours") for name in spent]
        for number in range(1, max(AROUND) + REACH + 1):
            given = None
            near = [str(each) for each in AROUND if abs(number - each) <= REACH]
            if not near:
                a, b, c = (int(torch.randint(num, ())) for num in (21, 11, 3))
                given = {"a": a / 20, "b": b, "c": CATEGORIES[c]}
            for trial, seconds in zip(trials, spent.values(), strict=True):
                start = time.process_time()
                trial(given)
                for each in near:
                    seconds.setdefault(each, []).append(round(time.process_time() - start, 4))
    return spent


def report(runs: list[dict[str, Any]]) -> str:
    """A table of medians over trials and seeds, and of their ratios."""
    rows = []
    for client in dict.fromkeys(each["client"] for each in runs):
        own = [each for each in runs if each["client"] == client]
        for num in AROUND:
            ours, theirs = ([each[name][str(num)] for each in own] for name in ("ours", "own"))
            seconds = [median(t for of_seed in by for t in of_seed) for by in (ours, theirs)]
            seconds.append(seconds[0] / seconds[1])
            rows.append([client, str(num), *(f"{each:.2f}" for each in seconds)])
    lines = ["# The time of a trial under a limit", "", f"Reproduce with `{COMMAND}`.", ""]
    lines += ["Processor seconds, medians over five trials of each run.", ""]
    columns = ["client", "trials so far", "ours", "its own", "ratio"]
    return "\n".join([*lines, *table(columns, rows), ""])


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing and write the table."""
    cells = [{"client": client} for client in CLIENTS]
    return run_study(COMMAND, __doc__, SEEDS, cells, run, report, argv)


if __name__ == "__main__":
    sys.exit(main())
