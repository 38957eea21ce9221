"""Chance constraints in BayBE: certified recommendations, their books in its campaigns."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.interruptions import fail_second_call

pytest.importorskip("baybe")

import torch
from baybe import Campaign
from baybe.constraints import DiscreteBatchConstraint
from baybe.exceptions import NotEnoughPointsLeftError
from baybe.objectives import ParetoObjective
from baybe.parameters import (
    CategoricalParameter,
    NumericalContinuousParameter,
    NumericalDiscreteParameter,
)
from baybe.recommenders import RandomRecommender, TwoPhaseMetaRecommender
from baybe.searchspace import SearchSpace
from baybe.targets import NumericalTarget
from botorch.acquisition import UpperConfidenceBound
from botorch.exceptions.errors import InputDataError, UnsupportedError

from botorch_calib import ChanceConstraint, optimize_chance_constrained
from botorch_calib.integrations import baybe
from botorch_calib.integrations.baybe import ChanceConstrainedRecommender

NUM_INITIAL = 12

pytestmark = [
    pytest.mark.filterwarnings("ignore:A point is not certified"),
    pytest.mark.usefixtures("short_fits"),
]

SPACE = SearchSpace.from_product(
    [
        NumericalDiscreteParameter("a", np.linspace(0.0, 1.0, 9)),
        CategoricalParameter("kind", ["u", "v"]),
    ]
)
OBJECTIVE = ParetoObjective([NumericalTarget("gain"), NumericalTarget("loss", minimize=True)])


def measured(experiments: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Without noise, the loss is above 0.6 at the best gain."""
    rng = np.random.default_rng(seed)
    total = experiments["a"] + 0.1 * (experiments["kind"] == "u")
    loss = total + 0.05 * rng.standard_normal(len(experiments))
    return experiments.assign(gain=total, loss=loss)


def new_recommender(**options: Any) -> ChanceConstrainedRecommender:
    return ChanceConstrainedRecommender(**{"limits": {"loss": (None, 0.6)}, **options})


def new_campaign(recommender: Any) -> Campaign:
    np.random.seed(0)
    phases = TwoPhaseMetaRecommender(
        initial_recommender=RandomRecommender(), recommender=recommender, switch_after=NUM_INITIAL
    )
    campaign = Campaign(
        SPACE,
        OBJECTIVE,
        phases,
        allow_recommending_already_measured=True,
        allow_recommending_already_recommended=True,
    )
    campaign.add_measurements(measured(campaign.recommend(NUM_INITIAL), 0))
    return campaign


def test_candidates_are_those_of_the_bare_loop_and_books_are_stored() -> None:
    """The bare loop keeps one constraint; the campaign is loaded for each half."""
    recommender = new_recommender()
    campaign = new_campaign(recommender)
    choices = torch.tensor(SPACE.transform(SPACE.discrete.exp_rep).to_numpy())
    constraint = None
    for number in range(4):
        surrogate: Any = recommender.get_surrogate(SPACE, OBJECTIVE, campaign.measurements)
        gain, loss = surrogate.to_botorch().models
        if constraint is None:
            constraint = ChanceConstraint({"loss": loss}, limits={"loss": (None, 0.6)})
        else:
            constraint = constraint.with_model(loss)
        expected = optimize_chance_constrained(
            UpperConfidenceBound(gain, beta=4.0), constraint, None, choices=choices
        )
        row = campaign.recommend(1)
        assert torch.equal(torch.tensor(SPACE.transform(row).to_numpy()), expected.candidate)
        result = measured(row, 1 + number)
        campaign.add_measurements(result)
        constraint.observe(
            expected.candidate, torch.tensor(result[["loss"]].to_numpy()), condition=False
        )
        if number == 2:
            campaign = Campaign.from_json(campaign.to_json())
            recommender = campaign.recommender.recommender  # type: ignore[attr-defined]
            assert type(recommender) is ChanceConstrainedRecommender
    known = recommender.chance_constraint(SPACE, OBJECTIVE, campaign.measurements)
    assert constraint is not None
    for ours, theirs in zip(known.decisions, constraint.decisions, strict=True):
        quantile = theirs.pop("quantiles")["loss"][1]
        assert ours.pop("quantiles")["loss"] == [None, pytest.approx(quantile, rel=1e-6)]
        assert ours == theirs
    rows = campaign.measurements.iloc[NUM_INITIAL:]
    certified = [decision["certified"] for decision in recommender.decisions]
    assert known.num_certified == sum(certified) > 2
    assert known.num_violations == sum(rows["loss"][certified] > 0.6)


def test_batches_and_pending_experiments() -> None:
    recommender = new_recommender()
    campaign = new_campaign(recommender)
    batch = recommender.recommend(3, SPACE, OBJECTIVE, campaign.measurements)
    assert not batch.duplicated().any()
    recommender.recommend(1, SPACE, OBJECTIVE, campaign.measurements, pending_experiments=batch)
    known = recommender.chance_constraint(SPACE, OBJECTIVE, campaign.measurements)
    assert known.num_decisions == 4 and known.num_observed == 0
    assert known.num_outstanding == known.num_certified
    measurements = pd.concat([campaign.measurements, measured(batch, 1)], ignore_index=True)
    known = recommender.chance_constraint(SPACE, OBJECTIVE, measurements)
    assert known.num_observed == 3


def test_no_decisions_of_a_call_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would count as violations forever, since nobody gets the candidates."""
    recommender = new_recommender()
    campaign = new_campaign(recommender)
    with pytest.raises(NotEnoughPointsLeftError, match="Fewer than 19 candidates .* are 18"):
        recommender.recommend(19, SPACE, OBJECTIVE, campaign.measurements)
    fail_second_call(monkeypatch, baybe, "best_certified")
    with pytest.raises(RuntimeError, match="interrupted"):
        recommender.recommend(2, SPACE, OBJECTIVE, campaign.measurements)
    assert not recommender.decisions


@pytest.mark.slow  # it imports all anew
def test_loaded_with_the_documented_import_alone() -> None:
    recommender = new_recommender()
    campaign = new_campaign(recommender)
    campaign.recommend(2)
    script = """
import json, sys
from baybe import Campaign
from botorch_calib.integrations import baybe
from botorch_calib.integrations.baybe import ChanceConstrainedRecommender
recommender = Campaign.from_json(sys.stdin.read()).recommender.recommender
print(json.dumps([recommender.decisions, recommender.limits, recommender.level]))
"""
    found = subprocess.run(
        [sys.executable, "-c", script], input=campaign.to_json(), capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == [recommender.decisions, {"loss": [None, 0.6]}, 0.9]


def test_wrong_limits() -> None:
    limits: Any
    for limits in ({"gain": (0.0, None), "loss": (None, 0.6)}, {"cost": (None, 1.0)}, {}):
        with pytest.raises(InputDataError, match="All but one of the targets"):
            new_campaign(new_recommender(limits=limits)).recommend(1)
    for pair in (0.6, (0.6,)):
        with pytest.raises(InputDataError, match="a pair .* for each, got .'loss'"):
            new_recommender(limits={"loss": pair})
    with pytest.raises(InputDataError, match="`limits` must hold a pair"):
        new_recommender(limits=[(None, 0.6)])


def test_what_cannot_be_recommended() -> None:
    continuous = SearchSpace.from_product([NumericalContinuousParameter("a", (0, 1))])
    # Optimising the measured values would lead beyond the value that is to be matched.
    matched = NumericalTarget.match_absolute("gain", 0.4)
    transformed = ParetoObjective([matched, NumericalTarget("loss", minimize=True)])
    measurements = new_campaign(new_recommender()).measurements
    given: Any
    for error, match, *given in (
        (UnsupportedError, "optimised as measured", SPACE, transformed, measurements),
        (UnsupportedError, "discrete", continuous, OBJECTIVE, pd.DataFrame()),
        (InputDataError, "measurements", SPACE, OBJECTIVE, pd.DataFrame()),
    ):
        with pytest.raises(error, match=match):
            new_recommender().recommend(1, *given)
    with pytest.raises(InputDataError, match="`beta`"):
        new_campaign(new_recommender(beta=-1.0)).recommend(1)
    shared = SearchSpace.from_product(SPACE.parameters, [DiscreteBatchConstraint(["kind"])])
    with pytest.raises(UnsupportedError, match="on batches would be ignored"):
        new_recommender().recommend(2, shared, OBJECTIVE, measurements)
    assert len(new_recommender().recommend(1, shared, OBJECTIVE, measurements)) == 1
    with pytest.raises(UnsupportedError, match="`acquisition_function` would be ignored"):
        new_campaign(new_recommender(acquisition_function="qUCB")).recommend(1)


def test_tables_that_lack_columns() -> None:
    campaign = new_campaign(recommender := new_recommender())
    rows = campaign.recommend(2)
    for table in (rows[["a"]], rows.iloc[0], rows.to_dict("records")):
        with pytest.raises(InputDataError, match="`experiments` must be a table"):
            recommender.withdraw(campaign, table)
    given = SPACE, OBJECTIVE, campaign.measurements
    with pytest.raises(InputDataError, match="`pending_experiments` .* lacks .'kind'"):
        recommender.recommend(1, *given, rows[["a"]])
    for name in ("a", "loss"):
        with pytest.raises(InputDataError, match=f"`measurements` .* lacks .'{name}'"):
            recommender.recommend(1, *given[:2], given[2].drop(columns=name))


@pytest.mark.parametrize("name", ["constraints", "outcome_constraints"])
def test_constraints_that_later_versions_of_baybe_may_have(name: str) -> None:
    later: Any = SimpleNamespace(targets=OBJECTIVE.targets, **{name: ("loss <= 0.6",)})
    measurements = new_campaign(new_recommender()).measurements
    with pytest.raises(UnsupportedError, match="`limits`"):
        new_recommender()._models(SPACE, later, measurements)
