"""Our generator in blop's adapter of Xopt's generators."""

from __future__ import annotations

import random
from typing import Any

import torch
from blop.xopt.optimizer import XoptOptimizer
from xopt import VOCS
from xopt.generators.bayesian.models.standard import StandardModelConstructor

from botorch_calib.integrations.xopt import ChanceConstrainedGenerator

VOCABULARY = VOCS(
    variables={"a": [0.0, 1.0], "b": [0.0, 1.0]},
    objectives={"current": "MAXIMIZE"},
    constraints={"loss": ["LESS_THAN", 1.0]},
)


def measured(points):
    """Outcomes by id alone, as blop's evaluation functions give them."""
    sums = [(point["_id"], point["a"] + point["b"]) for point in points]
    return [{"_id": i, "current": s, "loss": s + random.gauss(0, 0.02)} for i, s in sums]


def test_certified_suggestions(tmp_path) -> None:
    torch.manual_seed(0)
    random.seed(0)
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
    for known in (0, 2):
        points = optimizer.suggest(2)
        assert generator.outstanding() == [dict(point) for point in points]
        optimizer.ingest(measured(points))
        constraint = generator.chance_constraint()
        assert constraint.num_observed == constraint.num_decisions == known + 2
    lost = optimizer.suggest(1)
    assert set_to and set_to[-1]["a"] + set_to[-1]["b"] < 1.1
    again = ChanceConstrainedGenerator(
        vocs=VOCABULARY, gp_constructor=StandardModelConstructor(), books=generator.books
    )
    again.ingest([row for row in generator.data.to_dict("records") if row["_id"] != lost[0]["_id"]])
    assert [row["_id"] for row in again.outstanding()] == [lost[0]["_id"]]
    again.withdraw(lost)
    assert again.chance_constraint().num_decisions == 4
