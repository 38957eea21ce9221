"""Sixty decisions in Xopt and in BayBE, whose noise the models understate, stopped in the middle.

Violations stay within the bound, and books equal a count that does not use them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Standardize

from botorch_calib.decisions import ChanceConstraint
from tests.documentation import frozen_heap

LEVEL, LIMIT, NOISE = 0.9, 1.0, 0.1
# A tenth of the true variance is what models are told.
STATED = NOISE**2 / 10.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:A candidate is not certified"),
    pytest.mark.filterwarnings("ignore:A recommendation is not certified"),
    pytest.mark.filterwarnings("ignore:Optimization failed:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Heteroskedastic modeling has been removed"),
]


def check(constraint: ChanceConstraint, decisions: list[dict[str, Any]], losses: Any) -> None:
    certified = [decision["certified"] for decision in decisions]
    assert len(decisions) == len(losses) == 60
    violated = int(sum(c and loss > LIMIT for c, loss in zip(certified, losses, strict=True)))
    assert constraint.num_certified == sum(certified) > 20
    assert constraint.num_violations == violated
    assert constraint.num_outstanding == 0
    assert violated <= (1.0 - LEVEL) * sum(certified) + 10.0 + LEVEL


def beam(inputs: dict[str, float]) -> dict[str, float]:
    """In this module, as Xopt finds it again by its name. The noise depends on the place."""
    total = inputs["a"] + inputs["b"]
    rng = np.random.default_rng(int(1e12 * (total % 1.0)))
    loss = total + NOISE * rng.standard_normal()
    return {"gain": total, "loss": loss, "loss_var": STATED, "gain_var": STATED}


def test_xopt(tmp_path: Path, default_precision: None) -> None:
    pytest.importorskip("xopt")
    from xopt import VOCS, Evaluator, Xopt
    from xopt.generators.bayesian.models.standard import StandardModelConstructor

    from botorch_calib.integrations.xopt import load_xopt
    from botorch_calib.integrations.xopt_decisions import ChanceConstrainedGenerator

    torch.set_default_dtype(torch.double)
    vocs = VOCS(
        variables={"a": [0.0, 1.0], "b": [0.0, 1.0]},
        objectives={"gain": "MAXIMIZE"},
        constraints={"loss": ["LESS_THAN", LIMIT]},
    )
    generator = ChanceConstrainedGenerator(
        vocs=vocs,
        gp_constructor=StandardModelConstructor(train_model=False),
        raw_samples=64,
        num_restarts=2,
    )
    torch.manual_seed(0)
    run = Xopt(generator=generator, evaluator=Evaluator(function=beam))
    run.random_evaluate(16, seed=0)
    for _ in range(2):
        for _ in range(30):
            run.step()
        run.dump(str(tmp_path / "run.yaml"))
        run.step()  # is lost
        run = load_xopt(tmp_path / "run.yaml")
    (constraint,) = run.generator.chance_constraints()
    check(constraint, run.generator.decisions, run.data["loss"].to_numpy()[16:])


class Understated:
    """Models of BayBE's targets that are told a tenth of the noise."""

    def fit(self, searchspace: Any, objective: Any, measurements: pd.DataFrame) -> None:
        X = torch.tensor(searchspace.transform(measurements, allow_extra=True).to_numpy())
        names = [target.name for target in objective.targets]
        models = []
        for column in torch.tensor(measurements[names].to_numpy()).split(1, dim=-1):
            noise = torch.full_like(column, STATED)
            models.append(SingleTaskGP(X, column, noise, outcome_transform=Standardize(1)))
        self.model = ModelListGP(*models)

    def to_botorch(self) -> ModelListGP:
        return self.model


def test_baybe() -> None:
    with frozen_heap():
        pytest.importorskip("baybe")
    from baybe.objectives import ParetoObjective
    from baybe.parameters import NumericalDiscreteParameter
    from baybe.searchspace import SearchSpace
    from baybe.targets import NumericalTarget

    from botorch_calib.integrations.baybe import ChanceConstrainedRecommender

    rng = np.random.default_rng(0)
    grid = np.linspace(0.0, 1.0, 21)
    space = SearchSpace.from_product([NumericalDiscreteParameter(name, grid) for name in "ab"])
    objective = ParetoObjective([NumericalTarget("gain"), NumericalTarget("loss", minimize=True)])

    def measured(rows: pd.DataFrame) -> pd.DataFrame:
        total = rows["a"] + rows["b"]
        return rows.assign(gain=total, loss=total + NOISE * rng.standard_normal(len(rows)))

    def recommender(decisions: Any = ()) -> ChanceConstrainedRecommender:
        return ChanceConstrainedRecommender(
            limits={"loss": (None, LIMIT)}, decisions=[*decisions], surrogate_model=Understated()
        )

    data = measured(space.discrete.exp_rep.sample(16, random_state=0))
    current = recommender()
    for number in range(30):
        if number == 15:  # what is stored goes on, in another object
            current = recommender(current.decisions)
        batch = current.recommend(2, space, objective, data)
        data = pd.concat([data, measured(batch)], ignore_index=True)
    (constraint,) = current.chance_constraints(space, objective, data)
    check(constraint, current.decisions, data["loss"].to_numpy()[16:])
