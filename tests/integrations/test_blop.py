"""blop: our generator in its adapter of Xopt's, and our strategy in its agent's client of Ax."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("blop")
pytest.importorskip("ax")
pytest.importorskip("xopt")

from ax.api.utils.structs import GenerationStrategyDispatchStruct
from blop import optimize
from blop.ax import Agent, Objective, OutcomeConstraint, RangeDOF
from blop.protocols import OptimizationProblem
from blop.xopt.optimizer import XoptOptimizer
from bluesky.run_engine import RunEngine
from xopt import VOCS
from xopt.generators.bayesian.models.standard import StandardModelConstructor

from botorch_calib.integrations.ax_decisions import (
    chance_constrained_generation_strategy,
    decided_trials,
    recommendation,
    withdraw,
)
from botorch_calib.integrations.xopt import ChanceConstrainedGenerator
from tests.integrations.test_ax import quiet

__all__ = ["quiet"]  # a fixture

VOCABULARY = VOCS(
    variables={"a": [0.0, 1.0], "b": [0.0, 1.0]},
    objectives={"current": "MAXIMIZE"},
    constraints={"loss": ["LESS_THAN", 1.0]},
)


class Motor:
    """An actuator for bluesky."""

    parent = None

    def __init__(self, name: str) -> None:
        self.name, self.position = name, 0.0

    def set(self, value: float) -> Done:
        self.position = value
        return Done()

    def read(self) -> dict[str, Any]:
        return {self.name: {"value": self.position, "timestamp": 0.0}}

    def describe(self) -> dict[str, Any]:
        return {self.name: {"source": self.name, "dtype": "number", "shape": []}}


class Done:
    done = success = True

    def add_callback(self, callback: Any) -> None:
        callback(self)

    def exception(self, timeout: float | None = 0.0) -> None:
        return None


def measured(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Outcomes by id alone, as blop's evaluation functions give them."""
    sums = [(point["_id"], point["a"] + point["b"]) for point in points]
    return [{"_id": i, "current": s, "loss": s + random.gauss(0, 0.02)} for i, s in sums]


def evaluate(uid: str, suggestions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return measured(suggestions)


@pytest.fixture(autouse=True)
def seeds() -> None:
    torch.manual_seed(0)
    random.seed(0)


def test_suggestions_of_the_generator(tmp_path: Path) -> None:
    set_to: list[Any] = []
    generator = ChanceConstrainedGenerator(
        vocs=VOCABULARY,
        gp_constructor=StandardModelConstructor(),  # of outcomes with their noise
        raw_samples=64,
        num_restarts=2,
        books=str(tmp_path / "books"),
        on_violation=set_to.append,
    )
    optimizer = XoptOptimizer(generator)
    optimizer.ingest(measured(optimizer.suggest(12)))
    problem = OptimizationProblem(
        optimizer=optimizer,
        actuators=[Motor("a"), Motor("b")],
        sensors=[],
        evaluation_function=evaluate,
    )
    RunEngine({})(optimize(problem, iterations=2, n_points=2))
    constraint = generator.chance_constraint()
    assert constraint.num_observed == constraint.num_decisions == 4
    assert set_to and set_to[-1]["a"] + set_to[-1]["b"] < 1.1
    lost = optimizer.suggest(1)
    assert generator.outstanding() == [dict(point) for point in lost]
    again = ChanceConstrainedGenerator(
        vocs=VOCABULARY, gp_constructor=StandardModelConstructor(), books=generator.books
    )
    again.ingest([row for row in generator.data.to_dict("records") if row["_id"] != lost[0]["_id"]])
    assert [row["_id"] for row in again.outstanding()] == [lost[0]["_id"]]
    again.withdraw(lost)
    assert again.chance_constraint().num_decisions == 4


def test_trials_of_the_strategy(tmp_path: Path) -> None:
    motors = [Motor("a"), Motor("b")]
    current, loss = Objective(name="current", minimize=False), Objective(name="loss", minimize=True)
    agent = Agent(
        sensors=[],
        dofs=[RangeDOF(actuator=each, bounds=(0, 1), parameter_type="float") for each in motors],
        objectives=[current],
        evaluation_function=evaluate,
        outcome_constraints=[OutcomeConstraint("x <= 1", x=loss)],
        checkpoint_path=str(tmp_path / "agent.json"),
    )
    client = agent.ax_client
    struct = GenerationStrategyDispatchStruct(method="custom", initialization_budget=11)
    client.set_generation_strategy(chance_constrained_generation_strategy(client, struct=struct))
    engine = RunEngine({})
    engine(agent.optimize(iterations=1, n_points=12))
    engine(optimize(agent.to_optimization_problem(), 2, n_points=2, checkpoint_interval=1))
    again = Agent.from_checkpoint(agent.checkpoint_path, motors, [], evaluate)
    (suggestion,) = again.suggest()
    decided = decided_trials(again.ax_client._experiment)
    assert [bool(each.outcomes) for each in decided] == [True] * 4 + [False]
    assert all(each.decision["certified"] for each in decided)
    again.ax_client.mark_trial_abandoned(suggestion["_id"])
    withdraw(again.ax_client, suggestion["_id"])
    parameters, stated = recommendation(again.ax_client)
    assert stated.certified and parameters["a"] + parameters["b"] <= 1.0
